"""Requests and answers of the score server, field by field: the server declares its addresses with these models, and the client reads answers with them.

Requests are read strictly: unknown keys, wrong types, NaN and infinities are refused. In answers unknown keys are ignored, so that an older client reads
a newer server. Field names are those of the rows of `stepmark grade` (`models.prm.to_row`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from stepmark.records import CheckName, ScoreKind

MOST_SECONDS = 3600.0
"""The longest deadline that a request may ask for."""

PROBLEM = "A bakery bakes 12 trays of 8 rolls and sells 70. How many are left?"
STEPS: list[Any] = [
    "First, we find the total number of rolls: 12 * 8 = 96 rolls.",
    "After selling 70 rolls, 96 - 60 = 36 rolls remain.",
]
RIGHT: list[Any] = [
    "First, we find the total number of rolls: 12 * 8 = 96 rolls.",
    "After selling 70 rolls, 96 - 70 = 26 rolls remain.",
]
"""`STEPS` with a correct second step."""
EXAMPLE: dict[str, Any] = {"problem": PROBLEM, "steps": STEPS}
"""A request for scores whose second step is wrong; the default PRM says so."""


def _utf8(text: str) -> str:
    text.encode()  # half of a surrogate pair, which JSON can write, is no character, and its UnicodeEncodeError a ValueError
    return text


Text = Annotated[str, AfterValidator(_utf8)]
Timeout = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
NotBlank = Annotated[Text, Field(pattern=r"\S")]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Limit = Annotated[int, Field(ge=1)]


def examples(*rows: dict[str, Any]) -> ConfigDict:
    """Examples of a model in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": list(rows)})


class Request(BaseModel):
    """Base of all requests."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


class Response(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(
        extra="ignore", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


class SolutionFields(Request):
    """A solution of a problem: its steps, or its text."""

    model_config = examples({"steps": RIGHT}, {"solution": "\n".join(STEPS)})

    steps: Texts | None = None
    """The steps, in order; at least one, none of them blank."""
    observations: Texts | None = None
    """What came back after each step, with `steps` alone: tool output, the user's words; "" for nothing. Read before the next step and never rated."""
    solution: Text | None = None
    """The whole text instead of `steps`, which the server splits into steps."""
    id: Text | None = None
    """Your name for this solution; it comes back in the result."""


class SolutionToScore(SolutionFields):
    """One solution: a problem, and either its steps or its text."""

    model_config = examples(EXAMPLE, {"problem": PROBLEM, "solution": "\n".join(STEPS)})

    problem: Text
    """The question as the solver saw it; not blank."""
    split: Text | None = None
    """How `solution` is split (without effect beside `steps`): auto (default), line, blank-line, numbered, sentence, marker, code, whole or token."""
    marker: Text | None = None
    """The text that ends each step, for split marker and auto."""


class _Grading(Request):
    aggregate: str | None = None
    """How step scores become one number: product, min, mean, last, max, sum-logit or softmin. Default: the server's."""
    threshold: float | None = None
    """A step whose score is under this is an error, in the unit of the scores. Default: the server's."""
    checks: str | None = None
    """Exact checks beside the PRM, whose findings change first_error and no score: all, none, names with commas between them, or auto (all with the
    default PRM, none with any other). Default: the server's."""
    timeout: Timeout | None = None
    """Seconds until the answer is no longer wanted (504 afterwards). Default: the server's."""
    model: str | None = None
    """The served model's name, as /v1/models has it. Default: the one that is served."""


class _Solutions(SolutionToScore):
    solutions: Annotated[list[SolutionToScore], Field(min_length=1, fail_fast=True)] | None = None
    """The solutions; those of one problem share their computation."""
    problem: Text | None = None  # type: ignore[assignment]
    """A single solution's problem, with its `steps` or `solution`."""


class ScoreSolutionsRequest(_Grading, _Solutions):  # the fields of the last base come first
    """Solutions to score: many under `solutions`, or the fields of a single one beside the settings."""

    model_config = examples(
        {
            "solutions": [
                EXAMPLE,
                {"problem": PROBLEM, "solution": "\n".join([*RIGHT, "The answer is 26."])},
            ],
            "aggregate": "min",
        },
        EXAMPLE,
    )


def _solution_fields(value: Any) -> Any:
    if isinstance(value, str):
        return {"solution": value}
    return {"steps": value} if isinstance(value, list) else value


def _text_or_steps(schema: dict[str, Any]) -> None:
    text = {"type": "string"}
    schema["items"] = {"anyOf": [text, {"type": "array", "items": text}, schema["items"]]}


class _SolutionsOfOne(Request):
    problem: NotBlank
    """The question that all solutions answer; not blank."""
    solutions: list[Annotated[SolutionFields, BeforeValidator(_solution_fields)]] = Field(
        min_length=1, fail_fast=True, json_schema_extra=_text_or_steps
    )
    """The solutions: plain texts, lists of step texts, or objects with `steps` or `solution`."""
    split: Text | None = None
    """How texts are split into steps; as for /v1/score."""
    marker: Text | None = None
    """The text that ends each step, for split marker and auto."""


class RankRequest(_Grading, _SolutionsOfOne):
    """Solutions of one problem, to be ranked."""

    model_config = examples({"problem": PROBLEM, "solutions": [STEPS, "\n".join(RIGHT)]})


class RewardsRequest(Request):
    """Conversations whose turns are to be rewarded, for a trainer (`stepmark.rl.turn_rewards`)."""

    model_config = examples(
        {
            "messages": [[{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": STEPS[0]}]],
            "outcome": [1.0],
        }
    )

    messages: list[list[dict[str, Any]]] = Field(min_length=1, fail_fast=True)
    """Conversations, each a list of chat messages."""
    outcome: list[float | None] | None = None
    """The outcome of each conversation; null for one that is not known."""
    credit: Text | None = None
    """A credit method, whose advantages are the numbers: mt-grpo, discounted, grpo, rloo, process-grpo, min-form or progress. Default: rewards."""
    groups: list[str | int] | None = None
    """For credit, which conversations are of one problem: those with equal entries. Default: those whose problem is the same text."""
    masks: list[list[int]] | None = None
    """Of each conversation, whether the policy wrote each token (1 or 0): a run of ones is a turn. The result then has numbers for tokens too."""
    reasoning: Literal["keep", "only", "drop"] = "keep"
    """What becomes of thoughts: keep them in the turn, score them only, or drop them."""
    timeout: Timeout | None = None
    """Seconds until the answer is no longer wanted (504 afterwards). Default: the server's."""
    model: str | None = None
    """The served model's name, as /v1/models has it. Default: the one that is served."""


def _several(value: Any) -> Any:
    return [value] if isinstance(value, list) and value and isinstance(value[0], int) else value


Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]


class _TokensRequest(Request):
    model: str | None = None
    """The served model's name. Default: the one that is served."""
    use_activation: bool | None = None
    """Probabilities (true, the default) or the head's raw logits (false)."""
    user: str | None = None
    """Ignored."""
    timeout: Timeout | None = None
    """Seconds until the answer is no longer wanted (504 afterwards)."""


class PoolingRequest(_TokensRequest):
    """vLLM's request for the rows of a token classifier's head. It is for clients that have the tokenizer; others use /v1/score."""

    model_config = examples(
        {
            "model": "default",
            "input": [[1, 314, 29], [1, 314, 30]],
            "task": "token_classify",
            "use_activation": False,
        }
    )

    input: Annotated[list[Tokens], BeforeValidator(_several)] = Field(min_length=1, fail_fast=True)
    """Token ids of several sequences, or of a single one."""
    task: Literal["token_classify"] | None = None
    """The only task there is: a row of the head at each step mark."""
    encoding_format: Literal["float"] | None = None
    """Numbers as JSON has them."""


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else _several(value)


class ClassifyRequest(_TokensRequest):
    """vLLM's request for the probabilities of a classifier at the last token, such as the client of OpenHands' critic sends."""

    model_config = examples({"model": "my-critic", "input": "<|im_start|>user\nFix f.<|im_end|>\n"})

    input: Annotated[list[NotBlank | Tokens], BeforeValidator(_texts)] = Field(min_length=1, fail_fast=True)
    """Texts (with their control tokens) or token ids: several, or a single one."""


class ErrorBody(Response):
    """What is wrong, and what to do."""

    type: str
    """A word for programs; the table of errors in the documentation lists them."""
    message: str
    """A sentence for people: what was expected, what was found."""
    field: str | None = None
    """The field that it is about, from the top of the body."""
    where: str | None = None
    """Your `id` of the solution that it is about, where it has one."""


class ErrorResponse(Response):
    """The body of every answer whose status is 400 or more."""

    error: ErrorBody


class FindingBody(Response):
    """A step that an exact check proves to be wrong."""

    step: int = Field(ge=0)
    """The step, from 0."""
    check: CheckName
    """The check that found it."""
    written: str
    """What the step says."""
    right: str
    """What is right."""
    start: int = Field(ge=0)
    """Where it begins in the step's text, in characters."""
    end: int = Field(ge=0)
    """Where it ends."""


class ScoredSolution(Response):
    """The scores of one solution, or the error that prevented them."""

    index: int = Field(ge=0)
    """Which one of the request, from 0."""
    id: str | None = None
    """Your name for it, where you gave one."""
    scores: list[float | None] | None = None
    """One a step, in order, in the range of score_kind; null only for a step that was not read."""
    score: float | None = None
    """The aggregate of them; null when a step has none."""
    first_error: int | None = Field(None, ge=-1)
    """The first step under the threshold or with a finding, from 0; -1: there is none; null: unknown."""
    first_error_step: int | None = Field(None, ge=1)
    """The number of that step from 1; null: there is none, or it is unknown."""
    first_error_by: Literal["score", "check"] | None = None
    """What found it, where checks ran: score (a step under the threshold) or check (a finding alone)."""
    findings: list[FindingBody] | None = None
    """What exact checks prove to be wrong; absent where none ran."""
    steps: list[str] | None = None
    """The steps, where the server split a text."""
    classes: list[list[float] | None] | None = None
    """Class probabilities a step, for PRMs of more than two classes, in the order of class_names."""
    critiques: list[list[str]] | None = None
    """What a generative PRM wrote of each step."""
    tokens: int | None = Field(None, ge=0)
    """Tokens that the PRM read: template, problem and steps; null when it does not count."""
    problem_tokens: int | None = Field(None, ge=0)
    """Of those, template and problem."""
    step_tokens: list[int] | None = None
    """Tokens that each step adds to the prefix before it, up to where its score is read."""
    error: ErrorBody | None = None
    """Why there are no scores; the other fields are then absent, except index and id."""


class Usage(Response):
    """What the request was."""

    solutions: int
    """Solutions that have scores."""
    steps: int
    """Their steps."""
    tokens: int | None
    """Tokens of them all, each read alone; null when the PRM does not count. How many were computed is in /metrics."""


class _Graded(Response):
    model: str
    """The served model's name."""
    score_kind: ScoreKind
    """What a step score is: a probability in [0, 1], a margin in [-1, 1], a log-ratio, or unbounded."""
    aggregate: str
    """How `score` was made from `scores`."""
    threshold: float | None
    """A step strictly under it counts as an error; null when none applies."""
    class_names: list[str] | None = None
    """Of `classes`."""
    usage: Usage


class ScoreResponse(_Graded):
    """One result a solution, in the order of the request."""

    object: Literal["scores"] = "scores"
    results: list[ScoredSolution]
    """As many as solutions, in their order."""


class RankResponse(_Graded):
    """The solutions, best first."""

    object: Literal["ranking"] = "ranking"
    results: list[ScoredSolution]
    """By score, the highest first, equal ones by index; then those without a score, then those of which a check proves a step to be
    wrong, then those with an error."""


class ConversationRewards(Response):
    """The rewards of a conversation."""

    index: int = Field(ge=0)
    """Its place in the request, from 0."""
    turns: list[float | None]
    """One number for each assistant message; null where there is none."""
    scores: list[float | None]
    """The PRM's score of each assistant message."""
    refused: str | None = None
    """Why the PRM could not read it."""
    tokens: list[float] | None = None
    """With masks, one number a token: a reward at its turn's last token, an advantage at all tokens of its turn."""


class RewardsResponse(Response):
    """One result a conversation, in the order of the request."""

    object: Literal["rewards"] = "rewards"
    model: str
    """The served model."""
    results: list[ConversationRewards]


class PRMFacts(Response):
    """What a client must know of the PRM."""

    version: str
    """Of stepmark on the server."""
    identity: str
    """Name and, where the server knows it, a fingerprint of settings and weights: recorded scores are found again under it."""
    score_kind: ScoreKind
    """What its step scores are."""
    default_aggregate: str
    """How `score` is made unless a request says otherwise."""
    default_threshold: float | None
    """Under it a step is an error unless a request says otherwise; null: scores have no such point."""
    default_checks: str = "none"
    """Exact checks that run beside the PRM unless a request says otherwise: all, none, or names with commas between them."""
    max_tokens: int | None = None
    """The most that the PRM reads of one solution; null: unknown, or unlimited."""
    prefix_cache: bool = False
    """Whether a prefix that was read before is not computed again; false: the whole prefix for each step."""
    pooling: bool
    """Whether /pooling and /classify are answered."""
    max_solutions: Limit = 2**31
    """Solutions in one request."""


class ModelEntry(Response):
    """A served model, in OpenAI's shape with an object of ours."""

    id: str
    """Its name in requests."""
    object: Literal["model"] = "model"
    created: int = 0
    """When it was loaded, in Unix time."""
    owned_by: str = "stepmark"
    max_model_len: int | None = None
    """The most tokens that the PRM reads of one solution."""
    stepmark: PRMFacts | None = None
    """Facts of a PRM; absent of a chat model."""


class ModelsResponse(Response):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]
    """One entry a model."""
