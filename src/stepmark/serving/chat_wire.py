"""What travels to and from best-of-N as a model: OpenAI's chat completions, with an object of ours in each direction.

A parameter that could not be honoured is refused by name: an answer that ignored it would look as if it had been.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from stepmark.records import ScoreKind
from stepmark.serving.wire import MOST_SECONDS, ErrorBody
from stepmark.serving.wire.requests import PROBLEM

MOST_CANDIDATES = 256
"""Completions that one request may ask for, whatever the server's own limit."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TextPart(_Request):
    """A part of a message. Pictures, sounds and files are no text, and are refused."""

    type: Literal["text"] = Field(description="The only kind of part that is read.")
    text: str = Field(description="What it says.")


def _parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _or_text(schema: dict[str, Any]) -> None:
    """Say in the document that a text may stand for a list of one."""
    either = schema.get("anyOf")
    if either is None:
        schema["anyOf"] = [{"type": "string"}, {"type": schema.pop("type"), "items": schema.pop("items")}]
    else:
        either.insert(0, {"type": "string"})


class ChatMessage(_Request):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="Who speaks. `developer` is passed on as `system`. There are no tools."
    )
    content: Annotated[list[TextPart], BeforeValidator(_parts)] = Field(
        description="What they say: a text, or its parts.", json_schema_extra=_or_text
    )
    name: str | None = Field(None, description="Taken and not used.")


class StreamOptions(_Request):
    """How a stream ends."""

    include_usage: bool | None = Field(None, description="One more chunk, with `usage`.")
    include_obfuscation: bool | None = Field(None, description="Taken and not used.")


class Wanted(_Request):
    """What OpenAI's API has no name for. With the `openai` package: `extra_body={"stepmark": {…}}`."""

    n: int | None = Field(
        None, description="Completions to choose from. Left out: the server's.", ge=1, le=MOST_CANDIDATES
    )
    choose: Literal["best", "majority", "vote"] | None = Field(
        None,
        description="The highest score; the commonest answer; the answer with the highest sum of scores.",
    )
    aggregate: str | None = Field(
        None, description="How step scores become one number. Left out: the server's.", examples=["min"]
    )
    texts: bool | None = Field(
        None, description="Give the texts and steps of all candidates, not only their scores."
    )
    timeout: float | None = Field(
        None, description="Seconds until the answer is no longer wanted.", gt=0, le=MOST_SECONDS
    )


class ChatRequest(_Request):
    """OpenAI's chat completion. What is not listed here is refused as unknown."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"messages": [{"role": "user", "content": PROBLEM}]},
                {
                    "messages": [{"role": "user", "content": PROBLEM}],
                    "temperature": 0.8,
                    "stream": True,
                    "stepmark": {"n": 4, "choose": "vote"},
                },
            ]
        }
    )

    messages: list[ChatMessage] = Field(
        description="The conversation; the last turn is the user's.",
        min_length=1,
        max_length=1024,
        fail_fast=True,
    )
    model: str | None = Field(
        None, description="Its name, as /v1/models has it. Left out: the one that is served."
    )
    temperature: float | None = Field(
        None,
        description="Of the candidates, more than 0 unless one is asked for. Left out: the server's.",
        ge=0,
        le=2,
    )
    top_p: float | None = Field(None, description="Of the candidates.", gt=0, le=1)
    max_tokens: int | None = Field(None, description="Of each candidate.", ge=1)
    max_completion_tokens: int | None = Field(None, description="The newer name of `max_tokens`.", ge=1)
    stop: Annotated[list[str] | None, BeforeValidator(_texts)] = Field(
        None, description="A text, or texts, before which a candidate ends.", json_schema_extra=_or_text
    )
    seed: int | None = Field(None, description="Passed on to the policy.", ge=0, le=2**31 - 1)
    presence_penalty: float | None = Field(None, description="Passed on to the policy.", ge=-2, le=2)
    frequency_penalty: float | None = Field(None, description="Passed on to the policy.", ge=-2, le=2)
    stream: bool | None = Field(None, description="Server-sent events, once the candidate is chosen.")
    stream_options: StreamOptions | None = Field(None, description="For `stream`.")
    stepmark: Wanted | None = Field(None, description="How candidates are drawn and chosen.")
    user: str | None = Field(None, description="Taken and not used.")
    metadata: dict[str, str] | None = Field(None, description="Taken and not used.")
    store: bool | None = Field(None, description="Nothing is stored; true is refused.")
    n: int | None = Field(None, description="Answers; only 1. Candidates are `stepmark.n`.")
    logprobs: bool | None = Field(None, description="Refused where true.")
    top_logprobs: int | None = Field(None, description="Refused.")
    tools: list[Any] | None = Field(None, description="Refused where there are any.")
    tool_choice: Any = Field(None, description='Refused, save "none".')
    parallel_tool_calls: bool | None = Field(None, description="Taken and not used: there are no tools.")
    functions: list[Any] | None = Field(None, description="Refused where there are any.")
    function_call: Any = Field(None, description='Refused, save "none".')
    response_format: Any = Field(None, description='Refused, save {"type": "text"}.')
    logit_bias: dict[str, float] | None = Field(None, description="Refused where it holds any.")
    modalities: list[str] | None = Field(None, description='Refused, save ["text"].')
    audio: Any = Field(None, description="Refused.")
    prediction: Any = Field(None, description="Refused.")
    reasoning_effort: str | None = Field(None, description="Refused.")
    service_tier: str | None = Field(None, description="Taken and not used.")

    @property
    def refused(self) -> tuple[str, str] | None:
        """The first parameter that cannot be honoured, and what to do; None where there is none."""
        one = '{"type": "text"}'
        for name, bad, instead in (
            (
                "n",
                self.n not in (None, 1),
                "expected 1: of all candidates one is given; how many there are is stepmark.n",
            ),
            ("logprobs", bool(self.logprobs), "log-probabilities are not given"),
            (
                "top_logprobs",
                self.top_logprobs is not None and self.top_logprobs > 0,
                "log-probabilities are not given",
            ),
            ("tools", bool(self.tools), "tools cannot be called here"),
            ("tool_choice", self.tool_choice not in (None, "none"), "tools cannot be called here"),
            ("functions", bool(self.functions), "functions cannot be called here"),
            ("function_call", self.function_call not in (None, "none"), "functions cannot be called here"),
            ("response_format", self.response_format not in (None, {"type": "text"}), f"expected {one}"),
            ("logit_bias", bool(self.logit_bias), "a bias of tokens is not passed on"),
            ("modalities", self.modalities not in (None, ["text"]), 'expected ["text"]'),
            ("audio", self.audio is not None, "only texts are written"),
            ("prediction", self.prediction is not None, "it is not passed on"),
            ("reasoning_effort", self.reasoning_effort is not None, "it is not passed on"),
            ("store", bool(self.store), "nothing is stored"),
        ):
            if bad:
                return name, f"this cannot be honoured: {instead}"
        return None


class ChatText(_Answer):
    """The chosen text."""

    role: Literal["assistant"] = Field("assistant", description="Who speaks.")
    content: str = Field(description="The chosen candidate, character for character.")
    refusal: None = Field(None, description="Never one.")


class ChatChoice(_Answer):
    """The one choice that there is."""

    index: Literal[0] = Field(0, description="There is one.")
    message: ChatText = Field(description="The answer.")
    logprobs: None = Field(None, description="Not given.")
    finish_reason: Literal["stop", "length"] = Field(description="length: it was cut off at max_tokens.")


class ChatUsage(_Answer):
    """Tokens of the policy. All candidates count: they were written."""

    prompt_tokens: int = Field(description="Of all prompts that the policy was given.")
    completion_tokens: int = Field(description="Of all that it wrote.")
    total_tokens: int = Field(description="Both.")


class CandidateTold(_Answer):
    """What became of one candidate."""

    index: int = Field(description="Which one, from 0.", ge=0)
    finish_reason: Literal["stop", "length"] = Field(description="length: it was cut off.")
    answer: str | None = Field(description="The final answer that it names; null for none.")
    votes: float | None = Field(None, description="What its answer got in the vote.")
    tokens: int | None = Field(None, description="Tokens that it has, where the policy tells.")
    score: float | None = Field(None, description="The aggregate of its step scores.")
    scores: list[float | None] | None = Field(None, description="One a step.")
    first_error: int | None = Field(None, description="From 0; -1: none; null: that cannot be known.")
    first_error_step: int | None = Field(None, description="The same from 1; null: none, or not known.")
    text: str | None = Field(None, description="Where `texts` was asked for.")
    steps: list[str] | None = Field(None, description="Where `texts` was asked for.")
    error: ErrorBody | None = Field(None, description="Why it could not be graded; there are no scores then.")


class Chosen(_Answer):
    """How the answer was chosen."""

    n: int = Field(description="Candidates; of a search step by step, the solutions that it finished.")
    chosen: int = Field(description="Which one is the answer.")
    choose: Literal["best", "majority", "vote"] = Field(
        description="What decided; best, where a vote was wanted and no candidate could vote."
    )
    why: str = Field(description="In words.")
    search: str = Field(description="By what search.", examples=["best-of-n"])
    policy: str = Field(description="What wrote.")
    prm: str = Field(description="What graded.")
    score_kind: ScoreKind = Field(description="What a step score is.")
    aggregate: str = Field(description="How `score` was made from `scores`.")
    threshold: float | None = Field(description="A step under it is an error; null: none applies.")
    candidates: list[CandidateTold] = Field(description="All that there was to choose from.")


class ChatAnswer(_Answer):
    """OpenAI's chat completion, and how it was chosen."""

    id: str = Field(description="Of this answer.", examples=["chatcmpl-8f3c0d2a1b"])
    object: Literal["chat.completion"] = Field("chat.completion", description="As OpenAI calls it.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="What answered.", examples=["best-of-8"])
    choices: list[ChatChoice] = Field(description="One.")
    usage: ChatUsage | None = Field(None, description="Left out where the policy does not count.")
    stepmark: Chosen = Field(description="How it was chosen.")
