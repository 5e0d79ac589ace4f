"""What clients ask: every request, field by field. Read strictly: no wrong type, no unknown key, no number that is none."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_SECONDS = 3600.0
"""The longest deadline that a request may ask for."""
NOT_BLANK = r"\S"
"""What a text that must not be blank matches."""
MOST_NODE = 2**53
"""Nodes of a session are below it: every JSON reader holds such numbers exactly."""

PROBLEM = "A bakery bakes 12 trays of 8 rolls and sells 70. How many are left?"
STEPS: list[Any] = ["12 * 8 = 96 rolls are baked.", "96 - 60 = 36 rolls are left."]
RIGHT: list[Any] = ["12 * 8 = 96 rolls are baked.", "96 - 70 = 26 rolls are left."]
"""The same, with a second step that is right."""
EXAMPLE: dict[str, Any] = {"problem": PROBLEM, "steps": STEPS}
"""A request for scores that shows what they are for: the second step is wrong, and the PRM that ships says so."""


def _given(*names: str, no: tuple[str, ...] = ()) -> dict[str, Any]:
    """A JSON Schema that holds where these fields are there and not null, and those of `no` are not there or null."""
    there: dict[str, Any] = {name: {"not": {"type": "null"}} for name in names}
    return {"required": list(names), "properties": there | {name: {"type": "null"} for name in no}}


_CUT = ("split", "marker")
"""Fields that say how a text is cut."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class SolutionToScore(_Request):
    """One solution: a problem, and either its steps or its text, which the server cuts into steps."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [EXAMPLE, {"problem": PROBLEM, "solution": "\n".join(STEPS)}],
            "oneOf": [_given("steps", no=_CUT), _given("solution")],
        }
    )

    problem: str = Field(description="The question as the solver saw it; not blank.", examples=[PROBLEM])
    steps: list[str] | None = Field(
        None,
        description="The steps, in order; at least one, none of them blank.",
        examples=[STEPS],
        fail_fast=True,
    )
    solution: str | None = Field(
        None, description="The whole text instead of `steps`.", examples=["\n".join(STEPS)]
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
    checks: str | None = Field(
        None,
        description="Exact checks beside the PRM, whose findings change first_error and no score: all, none, names with commas between them, or auto (all with the default PRM, none with any other). Left out: the server's.",
        examples=["all"],
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


class _Solutions(_Request):
    solutions: list[SolutionToScore] | None = Field(
        None,
        description="The solutions; those of one problem share their computation.",
        min_length=1,
        fail_fast=True,
    )
    problem: str | None = Field(None, description="A single solution's problem.", examples=[PROBLEM])
    steps: list[str] | None = Field(
        None, description="A single solution's steps.", examples=[STEPS], fail_fast=True
    )
    solution: str | None = Field(None, description="A single solution's text, instead of `steps`.")
    split: str | None = Field(None, description="How that text is cut into steps.", examples=["auto"])
    marker: str | None = Field(None, description="The text that ends each step, for split marker and auto.")
    id: str | None = Field(None, description="Your name for the single solution.")


class ScoreRequest(_Grading, _Solutions):  # the fields of the last base come first
    """Solutions to score: many under `solutions`, or the fields of a single one beside the settings."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "solutions": [
                        EXAMPLE,
                        {"problem": PROBLEM, "solution": "\n".join([*RIGHT, "The answer is 26."])},
                    ],
                    "aggregate": "min",
                },
                EXAMPLE,
            ],
            "oneOf": [
                _given("solutions"),
                _given("problem", "steps", no=_CUT),
                _given("problem", "solution"),
            ],
        }
    )


def _candidate(value: Any) -> Any:
    return {"solution": value} if isinstance(value, str) else value


class CandidateFields(_Request):
    """A candidate: its steps, or its text."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"steps": RIGHT},
                {"solution": "\n".join(STEPS)},
            ],
            "oneOf": [_given("steps"), _given("solution")],
        }
    )

    steps: list[str] | None = Field(
        None, description="The steps, in order; none of them blank.", examples=[STEPS], fail_fast=True
    )
    solution: str | None = Field(None, description="The whole text instead of `steps`.")
    id: str | None = Field(None, description="Your name for this candidate; it comes back in the result.")


def _or_text(schema: dict[str, Any]) -> None:
    schema["items"] = {"anyOf": [{"type": "string"}, schema["items"]]}


class _Candidates(_Request):
    problem: str = Field(
        description="The question that all candidates answer; not blank.",
        examples=[PROBLEM],
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


class RankRequest(_Grading, _Candidates):
    """Candidates of one problem, to be put in order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "problem": PROBLEM,
                    "candidates": [
                        {"steps": STEPS},
                        "\n".join(RIGHT),
                    ],
                }
            ]
        }
    )


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

    model_config = ConfigDict(json_schema_extra={"examples": [{"problem": PROBLEM}]})

    problem: str = Field(
        description="The question as the solver saw it; not blank.", examples=[PROBLEM], pattern=NOT_BLANK
    )
    model: str | None = Field(None, description="The served model's name. Left out: the one that is served.")


Node = Annotated[int, Field(ge=0, le=MOST_NODE)]


class StepToScore(_Request):
    """One more step after a prefix of the session."""

    after: Node | None = Field(
        None, description="The node that it continues; null or left out: the problem itself.", examples=[0]
    )
    text: str = Field(description="The step; not blank.", examples=[STEPS[0]])


class StepsRequest(_Request):
    """Steps to score, each after a node of the session."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "steps": [
                        {"after": None, "text": STEPS[0]},
                        {"after": None, "text": "12 * 8 = 86 rolls are baked."},
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
