"""What travels between the score server and its clients: every request and every answer, field by field.

Requests are read strictly (`read_body`): a wrong type, a key that is not known and a number that is no number are refused, and the
error names one field. Answers are written by the routes as plain data; their models here say what is in them, for the OpenAPI document and
for whoever reads one.

The words are those of the rows of `stepmark grade` (`scoring.grade.to_row`): `scores`, `score`, `aggregate`, `first_error`, `threshold`,
`score_kind`, `classes`, `class_names`, `critiques`, `steps`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from stepmark.records import ScoreKind

MOST_SECONDS = 3600.0
"""The longest deadline that a request may ask for."""
NOT_BLANK = r"\S"
"""What a text that must not be blank matches."""
MOST_NODE = 2**53
"""Nodes of a session are below it: every JSON reader holds such numbers exactly."""

_PROBLEM = "What is 12 * 8 - 70?"
_STEPS = ["12 * 8 = 96", "96 - 70 = 36"]
EXAMPLE: dict[str, Any] = {"problem": _PROBLEM, "steps": _STEPS}
"""A request for scores that shows what they are for: the second step is wrong."""


def _given(*names: str) -> dict[str, Any]:
    """A JSON Schema that holds where these fields are there and not null."""
    return {"required": list(names), "properties": {name: {"not": {"type": "null"}} for name in names}}


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


# ---- requests ----


class SolutionToScore(_Request):
    """One solution: a problem, and either its steps or its text, which the server cuts into steps."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [EXAMPLE, {"problem": _PROBLEM, "solution": "12 * 8 = 96\n96 - 70 = 36"}],
            "oneOf": [_given("steps"), _given("solution")],
        }
    )

    problem: str = Field(description="The question as the solver saw it; not blank.", examples=[_PROBLEM])
    steps: list[str] | None = Field(
        None,
        description="The steps, in order; at least one, none of them blank.",
        examples=[_STEPS],
        fail_fast=True,
    )
    solution: str | None = Field(
        None, description="The whole text instead of `steps`.", examples=["12 * 8 = 96\n96 - 70 = 36"]
    )
    split: str | None = Field(
        None,
        description="How `solution` is cut: auto (as left out), line, blank-line, numbered, sentence, marker, code, whole or token.",
        examples=["line"],
    )
    marker: str | None = Field(
        None, description="The text that ends each step, for split marker and auto.", examples=["ки"]
    )
    id: str | None = Field(
        None, description="Your name for this solution; it comes back in the result.", examples=["gsm8k-17"]
    )


class _Grading(_Request):
    """What every request for scores may say beside its solutions."""

    aggregate: str | None = Field(
        None,
        description="How step scores become one number: product, min, mean, last, max, sum-logit or softmin. Left out: the server's.",
        examples=["min"],
    )
    threshold: float | None = Field(
        None,
        description="A step whose score is under this is an error, in the unit of the scores. Left out: the server's.",
        examples=[0.5],
    )
    timeout: float | None = Field(
        None,
        description="Seconds until the answer is no longer wanted (504 afterwards). Left out: the server's.",
        gt=0,
        le=MOST_SECONDS,
        examples=[30.0],
    )
    model: str | None = Field(
        None,
        description="The served model's name, as /v1/models has it. Left out: the one that is served.",
        examples=["default"],
    )


class ScoreRequest(_Grading):
    """Solutions to score: many under `solutions`, or the fields of a single one beside the settings."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "solutions": [
                        EXAMPLE,
                        {"problem": _PROBLEM, "solution": "12 * 8 = 96\n96 - 70 = 26\nThe answer is 26."},
                    ],
                    "aggregate": "min",
                },
                EXAMPLE,
            ],
            "oneOf": [_given("solutions"), _given("problem", "steps"), _given("problem", "solution")],
        }
    )

    solutions: list[SolutionToScore] | None = Field(
        None,
        description="The solutions; those of one problem share their computation.",
        min_length=1,
        fail_fast=True,
    )
    problem: str | None = Field(None, description="A single solution's problem.", examples=[_PROBLEM])
    steps: list[str] | None = Field(
        None, description="A single solution's steps.", examples=[_STEPS], fail_fast=True
    )
    solution: str | None = Field(None, description="A single solution's text, instead of `steps`.")
    split: str | None = Field(None, description="How that text is cut into steps.", examples=["auto"])
    marker: str | None = Field(None, description="The text that ends each step, for split marker and auto.")
    id: str | None = Field(None, description="Your name for the single solution.")


def _candidate(value: Any) -> Any:
    return {"solution": value} if isinstance(value, str) else value


class CandidateFields(_Request):
    """A candidate: its steps, or its text."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"steps": ["12 * 8 = 96", "96 - 70 = 26"]},
                {"solution": "12 * 8 = 96\n96 - 70 = 36"},
            ],
            "oneOf": [_given("steps"), _given("solution")],
        }
    )

    steps: list[str] | None = Field(
        None, description="The steps, in order; none of them blank.", examples=[_STEPS], fail_fast=True
    )
    solution: str | None = Field(None, description="The whole text instead of `steps`.")
    id: str | None = Field(None, description="Your name for this candidate; it comes back in the result.")


def _or_text(schema: dict[str, Any]) -> None:
    schema["items"] = {"anyOf": [{"type": "string"}, schema["items"]]}


class RankRequest(_Grading):
    """Candidates of one problem, to be put in order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "problem": _PROBLEM,
                    "candidates": [
                        {"steps": ["12 * 8 = 96", "96 - 70 = 36"]},
                        "12 * 8 = 96\n96 - 70 = 26",
                    ],
                }
            ]
        }
    )

    problem: str = Field(
        description="The question that all candidates answer; not blank.",
        examples=[_PROBLEM],
        pattern=NOT_BLANK,
    )
    candidates: list[Annotated[CandidateFields, BeforeValidator(_candidate)]] = Field(
        description="The candidates: objects with `steps` or `solution`, or plain texts.",
        min_length=1,
        fail_fast=True,
        json_schema_extra=_or_text,
    )
    split: str | None = Field(None, description="How texts are cut into steps; as for /v1/score.")
    marker: str | None = Field(None, description="The text that ends each step, for split marker and auto.")


class PoolingRequest(_Request):
    """vLLM's request for the rows of a token classifier's head. It is for clients that have the tokenizer; others use /v1/score."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "default",
                    "input": [[1, 314, 29], [1, 314, 30]],
                    "task": "token_classify",
                    "use_activation": False,
                }
            ]
        }
    )

    input: Any = Field(
        description="Token ids of one sequence or a list of several; or a text or several, which get the tokenizer's own special tokens.",
        json_schema_extra={
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                },
            ]
        },
    )
    model: str | None = Field(None, description="The served model's name. Left out: the one that is served.")
    task: Literal["token_classify"] | None = Field(
        None, description="The only task there is: a row of the head at each step mark."
    )
    use_activation: bool | None = Field(
        None, description="Probabilities (true, or left out) or the head's raw logits (false)."
    )
    encoding_format: Literal["float"] | None = Field(None, description="Numbers as JSON has them.")
    add_special_tokens: bool | None = Field(
        None, description="For texts: whether the tokenizer adds its own (left out: it does)."
    )
    user: str | None = Field(None, description="Taken and not used.")
    timeout: float | None = Field(
        None,
        description="Seconds until the answer is no longer wanted (504 afterwards).",
        gt=0,
        le=MOST_SECONDS,
    )


class SessionRequest(_Request):
    """A problem whose prefixes will grow step by step."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"problem": _PROBLEM}]})

    problem: str = Field(
        description="The question as the solver saw it; not blank.", examples=[_PROBLEM], pattern=NOT_BLANK
    )
    model: str | None = Field(None, description="The served model's name. Left out: the one that is served.")


Node = Annotated[int, Field(ge=0, le=MOST_NODE)]


class StepToScore(_Request):
    """One more step after a prefix of the session."""

    after: Node | None = Field(
        None, description="The node that it continues; null or left out: the problem itself.", examples=[0]
    )
    text: str = Field(description="The step; not blank.", examples=["12 * 8 = 96"])


class StepsRequest(_Request):
    """Steps to score, each after a node of the session."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "steps": [
                        {"after": None, "text": "12 * 8 = 96"},
                        {"after": None, "text": "12 * 8 = 86"},
                    ]
                }
            ]
        }
    )

    steps: list[StepToScore] = Field(
        description="They are scored together; one cannot continue another of the same request.",
        min_length=1,
        fail_fast=True,
    )
    timeout: float | None = Field(
        None,
        description="Seconds until the answer is no longer wanted (504 afterwards).",
        gt=0,
        le=MOST_SECONDS,
        examples=[30.0],
    )


class ReleaseRequest(_Request):
    """Nodes that will not be continued."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"nodes": [1]}]})

    nodes: list[Node] = Field(
        description="What only they keep in memory may go. Unknown ones are passed over.",
        examples=[[1]],
        min_length=1,
        fail_fast=True,
    )


# ---- answers ----


class ErrorBody(_Answer):
    """What is wrong, and what to do."""

    type: str = Field(
        description="A word for programs; the table of errors in the documentation lists them.",
        examples=["invalid_request"],
    )
    message: str = Field(
        description="A sentence for people: what was expected, what was found.",
        examples=["expected a string, found a number"],
    )
    field: str | None = Field(
        None,
        description="The field that it is about, from the top of the body.",
        examples=["solutions.0.problem"],
    )
    where: str | None = Field(
        None, description="Your `id` of the solution that it is about, where it has one."
    )


class ErrorAnswer(_Answer):
    """The body of every answer whose status is 400 or more."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "type": "invalid_request",
                        "message": "expected a string, found a number",
                        "field": "solutions.0.problem",
                    }
                }
            ]
        }
    )

    error: ErrorBody


class Result(_Answer):
    """What there is of one solution: its scores, or the error that stood in their way."""

    index: int = Field(description="Which one of the request, from 0.", ge=0)
    id: str | None = Field(None, description="Your name for it, where you gave one.")
    scores: list[float | None] | None = Field(
        None,
        description="One a step, in order, in the range of score_kind; null only for a step that was not read.",
        examples=[[0.93, 0.11]],
    )
    score: float | None = Field(
        None, description="The aggregate of them; null when a step has none.", examples=[0.11]
    )
    first_error: int | None = Field(
        None,
        description="The first step under the threshold, from 0; -1: there is none; null: that cannot be known.",
        ge=-1,
        examples=[1],
    )
    steps: list[str] | None = Field(
        None, description="The steps, where the server cut them out of a text.", examples=[_STEPS]
    )
    classes: list[list[float] | None] | None = Field(
        None,
        description="Class probabilities a step, for PRMs of more than two classes, in the order of class_names.",
    )
    critiques: list[list[str]] | None = Field(None, description="What a generative PRM wrote of each step.")
    tokens: int | None = Field(
        None,
        description="Tokens that the PRM read: template, problem and steps; null when it does not tell.",
        examples=[31],
    )
    error: ErrorBody | None = Field(
        None, description="Why there are no scores; the other fields are then absent, save index and id."
    )


class Usage(_Answer):
    """What the request was."""

    solutions: int = Field(description="Solutions that have scores.", examples=[1])
    steps: int = Field(description="Their steps.", examples=[2])
    tokens: int | None = Field(
        description="Tokens of them all, each read alone; null when the PRM does not tell. How many were computed is in /metrics.",
        examples=[31],
    )


class _Graded(_Answer):
    model: str = Field(description="The served model's name.", examples=["default"])
    score_kind: ScoreKind = Field(
        description="What a step score is: a probability in [0, 1], a margin in [-1, 1], a log-ratio, or unbounded."
    )
    aggregate: str = Field(description="How `score` was made from `scores`.", examples=["min"])
    threshold: float | None = Field(
        description="A step strictly under it counts as an error; null when none applies.", examples=[0.5]
    )
    class_names: list[str] | None = Field(
        None, description="Of `classes`.", examples=[["negative", "neutral", "positive"]]
    )
    usage: Usage


_RESULT: dict[str, Any] = {"index": 0, "scores": [0.93, 0.11], "score": 0.11, "first_error": 1, "tokens": 31}
_HEAD: dict[str, Any] = {
    "model": "default",
    "score_kind": "probability",
    "aggregate": "min",
    "threshold": 0.5,
    "usage": {"solutions": 1, "steps": 2, "tokens": 31},
}


class ScoreAnswer(_Graded):
    """One result a solution, in the order of the request."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"object": "scores", **_HEAD, "results": [_RESULT]}]}
    )

    object: Literal["scores"] = "scores"
    results: list[Result] = Field(description="As many as solutions, in their order.")


class RankAnswer(_Graded):
    """The candidates, best first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "ranking",
                    **_HEAD,
                    "usage": {"solutions": 2, "steps": 4, "tokens": 62},
                    "results": [
                        {
                            "index": 1,
                            "scores": [0.93, 0.9],
                            "score": 0.9,
                            "first_error": -1,
                            "steps": ["12 * 8 = 96", "96 - 70 = 26"],
                            "tokens": 31,
                        },
                        _RESULT,
                    ],
                }
            ]
        }
    )

    object: Literal["ranking"] = "ranking"
    results: list[Result] = Field(
        description="By score, the highest first, equal ones by index; then those without a score, then those with an error."
    )


class PoolingRows(_Answer):
    """The rows of one sequence."""

    index: int = Field(description="Which sequence of the request, from 0.", ge=0)
    object: Literal["pooling"] = "pooling"
    data: list[list[float]] = Field(
        description="One row a step mark in the sequence, in order; one number a class.",
        examples=[[[-1.2, 1.9]]],
    )


class PoolingUsage(_Answer):
    """Tokens of the request."""

    prompt_tokens: int = Field(description="Tokens of all sequences.", examples=[6])
    total_tokens: int = Field(description="The same number.", examples=[6])
    completion_tokens: int = Field(0, description="None are written.")


class PoolingAnswer(_Answer):
    """Rows of the head, in vLLM's shape."""

    id: str = Field(description="A name of this answer.", examples=["pool-1"])
    object: Literal["list"] = "list"
    created: int = Field(description="Unix time in seconds.", examples=[1764000000])
    model: str = Field(description="The served model's name.", examples=["default"])
    data: list[PoolingRows]
    usage: PoolingUsage


class SessionAnswer(_Answer):
    """An open session."""

    id: str = Field(description="Its name in the addresses of the other calls.", examples=["Zk3vQ0m2q1s"])
    expires_in: float = Field(
        description="Seconds without a call after which it is forgotten; every call begins them anew.",
        examples=[600.0],
    )


class SteppedResult(_Answer):
    """What there is of one step: its node and score, or an error."""

    node: int | None = Field(
        None, description="The prefix that ends in this step: the `after` of what continues it.", examples=[0]
    )
    score: float | None = Field(
        None, description="The step's score, in the range of score_kind.", examples=[0.93]
    )
    classes: list[float] | None = Field(
        None, description="Class probabilities, for PRMs of more than two classes."
    )
    tokens: int | None = Field(
        None,
        description="Tokens that this prefix has and the one before has not (the problem's own are in `root`); null when the PRM does not tell.",
        examples=[9],
    )
    root: int | None = Field(
        None, description="Tokens of template and problem, which are read once a session.", examples=[22]
    )
    error: ErrorBody | None = Field(
        None, description="Why there is no score; the other fields are then absent."
    )


class StepsAnswer(_Answer):
    """One result a step, in the order of the request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "steps",
                    "model": "default",
                    "results": [
                        {"node": 1, "score": 0.93, "tokens": 9, "root": 22},
                        {"node": 2, "score": 0.08, "tokens": 9, "root": 22},
                    ],
                }
            ]
        }
    )

    object: Literal["steps"] = "steps"
    model: str = Field(description="The served model's name.", examples=["default"])
    results: list[SteppedResult] = Field(description="As many as steps, in their order.")


class ReleaseAnswer(_Answer):
    """What was let go."""

    released: int = Field(description="Nodes of the request that the session knew.", examples=[1])


class ClosedAnswer(_Answer):
    """A session that is over."""

    id: str = Field(examples=["Zk3vQ0m2q1s"])
    closed: Literal[True] = True


class PRMFacts(_Answer):
    """What a client must know of the PRM."""

    version: str = Field(description="Of stepmark on the server.", examples=["0.2.0"])
    identity: str = Field(
        description="Name and, where the server can tell, a fingerprint of settings and weights: recorded scores are found again under it.",
        examples=["default#4be0c1d2a9f3"],
    )
    score_kind: ScoreKind = Field(description="What its step scores are.")
    default_aggregate: str = Field(
        description="How `score` is made unless a request says otherwise.", examples=["product"]
    )
    default_threshold: float | None = Field(
        description="Under it a step is an error unless a request says otherwise; null: scores have no such point.",
        examples=[0.5],
    )
    family: str | None = Field(
        description="How the checkpoint is read; null for PRMs that are no checkpoint.",
        examples=["token-classification"],
    )
    max_tokens: int | None = Field(
        description="What the PRM reads at most of one solution; null: not known, or no end.", examples=[2048]
    )
    sessions: bool = Field(
        description="Whether steps of a session are read once; false: the whole prefix for each step.",
        examples=[True],
    )
    pooling: bool = Field(description="Whether /pooling is answered.", examples=[True])
    max_solutions: int = Field(description="Solutions in one request.", examples=[1024])
    max_steps: int = Field(description="Steps in one solution.", examples=[1024])
    max_body: int = Field(description="Bytes in one request.", examples=[16777216])


class ModelEntry(_Answer):
    """A served model, in OpenAI's shape with an object of ours."""

    id: str = Field(description="Its name in requests.", examples=["default"])
    object: Literal["model"] = "model"
    created: int = Field(description="When it was loaded, in Unix time.", examples=[1764000000])
    owned_by: str = Field(default="stepmark", examples=["stepmark"])
    max_model_len: int | None = Field(default=None, description="As vLLM calls `stepmark.max_tokens`.")
    stepmark: PRMFacts | None = Field(
        default=None, description="Of a PRM; absent for a model that writes (see best-of-N as a model)."
    )


class ModelsAnswer(_Answer):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class StatusAnswer(_Answer):
    """What state the server is in."""

    status: Literal["ok", "ready"] = Field(
        description="/health says ok, /ready says ready; else there is an error."
    )
