"""Best-of-N as a model, field by field: OpenAI's chat completions, with an object of ours in each direction.

A parameter that cannot be honoured is refused by name: an answer that ignored it would look as if it had been.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from stepmark.batching import Message
from stepmark.models.remote.wire import PROBLEM, Answer, ErrorBody, Request, Timeout, examples
from stepmark.records import ScoreKind
from stepmark.serving.errors import invalid
from stepmark.serving.settings import MOST_CANDIDATES


def _parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _or_text(schema: dict[str, Any]) -> None:
    """A text may stand for a list of one."""
    either = schema.get("anyOf")
    if either is None:
        schema["anyOf"] = [{"type": "string"}, {"type": schema.pop("type"), "items": schema.pop("items")}]
    else:
        either.insert(0, {"type": "string"})


class TextPart(Request):
    """A part of a message. Pictures, sounds and files are refused."""

    type: Literal["text"]
    """The only kind of part that is read."""
    text: str
    """Its text."""


class ChatMessage(Request):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks. `developer` is passed on as `system`. There are no tools."""
    content: Annotated[list[TextPart], BeforeValidator(_parts)] = Field(json_schema_extra=_or_text)
    """A text, or its parts."""
    name: str | None = None
    """Ignored."""


class StreamOptions(Request):
    """How a stream ends."""

    include_usage: bool | None = None
    """One more chunk, with `usage`."""
    include_obfuscation: bool | None = None
    """Ignored."""


class Selection(Request):
    """How candidates are drawn and chosen. With the `openai` package: `extra_body={"stepmark": {…}}`."""

    n: int | None = Field(None, ge=1, le=MOST_CANDIDATES)
    """Completions to choose from. Default: the server's."""
    choose: Literal["best", "majority", "vote"] | None = None
    """The highest score; the commonest answer; the answer with the highest sum of scores."""
    aggregate: str | None = None
    """How step scores become one number. Default: the server's."""
    texts: bool | None = None
    """Give the texts and steps of all candidates, not only their scores."""
    timeout: Timeout | None = None
    """Seconds until the answer is no longer wanted."""


_NEUTRAL: dict[str, Any] = {
    "n": 1,
    "store": False,
    "logprobs": False,
    "top_logprobs": 0,
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "function_call": "none",
    "response_format": {"type": "text"},
    "logit_bias": {},
    "modalities": ["text"],
    "audio": None,
    "prediction": None,
    "reasoning_effort": None,
}
"""Parameters of OpenAI's that cannot be honoured, and the value that clients may send nevertheless."""


class ChatRequest(Request):
    """OpenAI's chat completion. Fields that are not listed here are refused as unknown."""

    model_config = examples(
        {"messages": [{"role": "user", "content": PROBLEM}]},
        {
            "messages": [{"role": "user", "content": PROBLEM}],
            "temperature": 0.8,
            "stream": True,
            "stepmark": {"n": 4, "choose": "vote"},
        },
    )

    messages: list[ChatMessage] = Field(min_length=1, max_length=1024, fail_fast=True)
    """The conversation; the last turn is the user's."""
    model: str | None = None
    """Its name, as /v1/models has it. Default: the one that is served."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Of the candidates, more than 0 unless n is 1. Default: the server's."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Of the candidates."""
    max_tokens: int | None = Field(None, ge=1)
    """Of each candidate."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`."""
    stop: Annotated[list[str] | None, BeforeValidator(_texts)] = Field(None, json_schema_extra=_or_text)
    """A text, or texts, before which a candidate ends."""
    seed: int | None = Field(None, ge=0, le=2**31 - 1)
    """Passed on to the policy."""
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    """Passed on to the policy."""
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    """Passed on to the policy."""
    stream: bool | None = None
    """Server-sent events, once the candidate is chosen."""
    stream_options: StreamOptions | None = None
    """For `stream`."""
    stepmark: Selection | None = None
    """How candidates are drawn and chosen."""
    user: str | None = None
    """Ignored."""
    metadata: dict[str, str] | None = None
    """Ignored."""
    parallel_tool_calls: bool | None = None
    """Ignored: there are no tools."""
    service_tier: str | None = None
    """Ignored."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        """Leave out what changes nothing; other values of these fields are refused as unknown."""
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k not in _NEUTRAL or (v is not None and v != _NEUTRAL[k])}

    @property
    def selection(self) -> Selection:
        """`stepmark`, or nothing but defaults."""
        return self.stepmark or Selection.model_validate({})

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages as the policy reads them.

        Raises:
            Refused: the last turn is not the user's, or a turn is blank.
        """
        read: list[Message] = []
        for number, turn in enumerate(self.messages):
            text = "".join(part.text for part in turn.content)
            if not text.strip():
                field = f"messages.{number}.content"
                raise invalid("expected a text that is not blank", field=field)
            read.append(Message(role="system" if turn.role == "developer" else turn.role, content=text))
        if read[-1].role != "user":
            raise invalid(
                f"expected the last turn to be the user's, found the {read[-1].role}'s: a begun reply cannot be continued here",
                field=f"messages.{len(read) - 1}.role",
            )
        return tuple(read)


def problem_of(messages: Sequence[Message]) -> str:
    """What the PRM reads as the problem: the conversation without the system's turns.

    A single turn stands as it is; several stand under headings, as `solutions.traces` writes a conversation.
    """
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return turns[0].content
    return "\n\n".join(f"{message.role.capitalize()}:\n{message.content}" for message in turns)


class ChatCandidate(Answer):
    """The scores and the answer of one candidate."""

    index: int = Field(ge=0)
    """Which one, from 0."""
    finish_reason: Literal["stop", "length"]
    """length: it was cut off."""
    answer: str | None
    """Its final answer; null for none."""
    votes: float | None = None
    """Of its answer in the vote."""
    tokens: int | None = None
    """Its tokens, where the policy counts them."""
    score: float | None = None
    """The aggregate of its step scores."""
    scores: list[float | None] | None = None
    """One a step."""
    first_error: int | None = None
    """From 0; -1: none; null: unknown."""
    first_error_step: int | None = None
    """The same from 1; null: none, or unknown."""
    text: str | None = None
    """Where `texts` was asked for."""
    steps: list[str] | None = None
    """Where `texts` was asked for."""
    error: ErrorBody | None = None
    """Why it could not be graded; there are no scores then."""


class Chosen(Answer):
    """How the answer was chosen."""

    n: int
    """Candidates."""
    chosen: int
    """Which one is the answer."""
    choose: Literal["best", "majority", "vote"]
    """What decided; best, where a vote was asked for and no candidate could vote."""
    why: str
    """In words."""
    search: str
    """By what search."""
    policy: str
    """What wrote."""
    prm: str
    """What graded."""
    score_kind: ScoreKind
    """What a step score is."""
    aggregate: str
    """How `score` was made from `scores`."""
    threshold: float | None
    """A step under it is an error; null: none applies."""
    candidates: list[ChatCandidate]
    """All candidates."""


class ChatAnswer(Answer):
    """OpenAI's chat completion, and how it was chosen."""

    id: str
    """Of this answer."""
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Unix time in seconds."""
    model: str
    """What answered."""
    choices: list[dict[str, Any]]
    """One, with `message.content`, the chosen candidate, and `finish_reason`: stop, or length where it was cut off."""
    usage: dict[str, int] | None = None
    """prompt_tokens, completion_tokens and total_tokens of all candidates; absent where the policy does not count."""
    stepmark: Chosen
    """How it was chosen."""
