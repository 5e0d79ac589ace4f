"""What the server answers, field by field: for the OpenAPI document, and for whoever reads an answer. The routes write plain data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stepmark.records import CheckName, ScoreKind
from stepmark.serving.wire.requests import RIGHT, STEPS


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


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


class FindingBody(_Answer):
    """A step that an exact check proves to be wrong."""

    step: int = Field(description="The step, from 0.", ge=0, examples=[1])
    check: CheckName = Field(description="The check that found it.")
    written: str = Field(description="What the step says.", examples=["96 - 60 = 26"])
    right: str = Field(description="What is right.", examples=["it is 36"])
    start: int = Field(description="Where in the step's text, in characters: from here", ge=0, examples=[0])
    end: int = Field(description="to here.", ge=0, examples=[12])


class Result(_Answer):
    """What there is of one solution: its scores, or the error that stood in their way."""

    index: int = Field(description="Which one of the request, from 0.", ge=0)
    id: str | None = Field(None, description="Your name for it, where you gave one.")
    scores: list[float | None] | None = Field(
        None,
        description="One a step, in order, in the range of score_kind; null only for a step that was not read.",
        examples=[[0.85, 0.25]],
    )
    score: float | None = Field(
        None, description="The aggregate of them; null when a step has none.", examples=[0.25]
    )
    first_error: int | None = Field(
        None,
        description="The first step under the threshold or with a finding, from 0; -1: there is none; null: that cannot be known.",
        ge=-1,
        examples=[1],
    )
    first_error_step: int | None = Field(
        None,
        description="The number of that step as people count, from 1; null: there is none, or that cannot be known.",
        ge=1,
        examples=[2],
    )
    first_error_by: Literal["score", "check"] | None = Field(
        None,
        description="What found it, where checks ran: score (a step under the threshold) or check (a finding alone).",
        examples=["score"],
    )
    findings: list[FindingBody] | None = Field(
        None, description="What exact checks prove to be wrong; absent where none ran."
    )
    steps: list[str] | None = Field(
        None, description="The steps, where the server cut them out of a text.", examples=[STEPS]
    )
    classes: list[list[float] | None] | None = Field(
        None,
        description="Class probabilities a step, for PRMs of more than two classes, in the order of class_names.",
    )
    critiques: list[list[str]] | None = Field(None, description="What a generative PRM wrote of each step.")
    tokens: int | None = Field(
        None,
        description="Tokens that the PRM read: template, problem and steps; null when it does not tell.",
        examples=[63],
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
        examples=[63],
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


_RESULT: dict[str, Any] = {
    "index": 0,
    "scores": [0.85, 0.25],
    "score": 0.25,
    "first_error": 1,
    "first_error_step": 2,
    "tokens": 63,
}
_HEAD: dict[str, Any] = {
    "model": "default",
    "score_kind": "probability",
    "aggregate": "min",
    "threshold": 0.78,
    "usage": {"solutions": 1, "steps": 2, "tokens": 63},
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
                    "usage": {"solutions": 2, "steps": 4, "tokens": 126},
                    "results": [
                        {
                            "index": 1,
                            "scores": [0.85, 0.82],
                            "score": 0.82,
                            "first_error": -1,
                            "first_error_step": None,
                            "steps": RIGHT,
                            "tokens": 63,
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
    default_checks: str = Field(
        description="Exact checks that run beside the PRM unless a request says otherwise: all, none, or names with commas between them.",
        examples=["all"],
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
    max_sessions: int = Field(description="Sessions at once, over all clients.", examples=[1024])
    session_nodes: int = Field(
        description="Steps that a session holds at once; for one more, release some.", examples=[4096]
    )


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
