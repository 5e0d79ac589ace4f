"""Best-of-N as a model: completions of a conversation are drawn from a policy, graded by the PRM of this server, and one is the answer.

Lightman et al. 2023, "Let's Verify Step by Step" (arXiv 2305.20050), section 2, behind OpenAI's API; votes as in `search.choosing`. The candidates are
graded by the batcher that all clients share.
A parameter of OpenAI's that cannot be honoured is refused by name: an answer that ignored it would look as if it had been.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BeforeValidator, Field, model_validator

from stepmark.batching import Message, Write, Written
from stepmark.errors import (
    BackendError,
    InputError,
    StepmarkError,
    TooLongError,
    UnreachableError,
    UsageError,
)
from stepmark.models.http import (
    AsyncConnection,
    DeclinedError,
    GarbageError,
    Patience,
    Server,
    UnansweredError,
    Verb,
    key_variable,
)
from stepmark.models.lazy import Lazy, is_server
from stepmark.models.policies import Policy, PolicyLike, lazy_policy
from stepmark.models.policies import openai as wire
from stepmark.models.prm import PRM
from stepmark.models.remote.wire import PROBLEM, Answer, ErrorBody, ModelEntry, Timeout, examples
from stepmark.models.remote.wire import Request as WireRequest
from stepmark.problems.answers import Verifier, load_verifier
from stepmark.problems.extraction import find_answer
from stepmark.records import Problem, ScoreKind, Solution
from stepmark.search.base import Choice
from stepmark.search.choosing import Picked, pick
from stepmark.serving.batcher import LateError
from stepmark.serving.errors import Refused, invalid, retry
from stepmark.serving.routes import (
    Read,
    StrictRoute,
    answer,
    arrival,
    check_grade,
    check_model,
    described,
    service_of,
    verdicts,
)
from stepmark.serving.service import Live, served_name
from stepmark.serving.settings import CHAT, MOST_CANDIDATES, ChatModel
from stepmark.solutions.segmentation import split as split_text


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


class TextPart(WireRequest):
    """A part of a message. Pictures, sounds and files are refused."""

    type: Literal["text"]
    """The only kind of part that is read."""
    text: str
    """Its text."""


class ChatMessage(WireRequest):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks. `developer` is passed on as `system`. There are no tools."""
    content: Annotated[list[TextPart], BeforeValidator(_parts)] = Field(json_schema_extra=_or_text)
    """A text, or its parts."""
    name: str | None = None
    """Ignored."""


class StreamOptions(WireRequest):
    """How a stream ends."""

    include_usage: bool | None = None
    """One more chunk, with `usage`."""
    include_obfuscation: bool | None = None
    """Ignored."""


class Selection(WireRequest):
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


class ChatRequest(WireRequest):
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

    A single turn stands as it is; several stand under headings, as `solutions.inputs` writes a conversation.
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


_QUEUE = 4
"""Conversations that may wait for the policy, for each that it may work on."""
_POLICY_MEMORY = 65_536
"""Tokens whose keys and values a policy in this process holds."""
_LONGEST = 1024
"""Tokens of a completion from a policy in this process where the request does not say."""
_PATIENCE = Patience(retries=2, first_wait=0.5, max_wait=10.0)
_TOO_LONG = re.compile(
    r"context (length|window|size)|maximum.{0,40}tokens|too (long|large|many tokens)|max_model_len", re.I
)


class PolicyError(StepmarkError):
    """The policy failed or answered nonsense; nothing was chosen."""


class PolicyAwayError(PolicyError):
    """The policy cannot be reached, or has no room now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Completions that are asked for."""

    messages: tuple[Message, ...]
    n: int
    temperature: float
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Completions that were written."""

    texts: tuple[Written, ...]
    prompt_tokens: int | None
    """That the policy read; None where it does not count."""
    completion_tokens: int | None
    """That it wrote; None where it does not count."""


@final
class ServedWriter:
    """A model behind an OpenAI-compatible server: `/chat/completions`.

    A server that gives fewer completions than asked is asked for the rest. When the client of this server disconnects, the connection is closed, and
    servers such as vLLM then stop writing. Failures are retried as those of a score server.

    Args:
        address: `http://host:port/v1#model`; without `#model` the server is asked for its only one.
        patience: attempts and waits.
        transport: for tests.

    Raises:
        UsageError: no address.
    """

    penalties = True
    """Whether it knows presence and frequency penalties."""

    def __init__(
        self,
        address: str,
        *,
        patience: Patience = _PATIENCE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url, _, self.name = address.partition("#")
        self._server = Server(url, patience=patience)
        self._connection = AsyncConnection(key_variable(), transport=transport)

    async def draw(self, asked: Draw) -> Drawn:
        """Write `asked.n` completions.

        Raises:
            InputError: the policy cannot read the conversation.
            PolicyError: it failed.
        """
        if not self.name:
            self.name = await self._only_model()
        texts: list[Written] = []
        tokens: dict[str, int | None] = {"prompt_tokens": 0, "completion_tokens": 0}
        while len(texts) < asked.n:
            data = await self._ask("POST", "/chat/completions", self._body(asked, len(texts)))
            try:
                texts += wire.written_of(data, asked.stop, chat=True)
            except (GarbageError, BackendError) as error:
                raise PolicyError(f"the policy {self.name}: {error}") from None
            for name, before in tokens.items():
                count = wire.usage_of(data, name)
                tokens[name] = None if before is None or count is None else before + count
        return Drawn(texts=tuple(texts[: asked.n]), **tokens)

    async def close(self) -> None:
        """Close what it holds."""
        await self._connection.close()

    def _body(self, asked: Draw, have: int) -> dict[str, Any]:
        optional = {
            "top_p": asked.top_p,
            "max_tokens": asked.max_tokens,
            "stop": list(asked.stop) or None,
            "seed": None if asked.seed is None else asked.seed + have,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
        }
        return {
            "model": self.name,
            "messages": [{"role": item.role, "content": item.content} for item in asked.messages],
            "n": asked.n - have,
            "temperature": asked.temperature,
            **{name: value for name, value in optional.items() if value is not None},
        }

    async def _ask(self, verb: Verb, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        try:
            return await self._connection.run(self._server.ask(verb, path, body, lambda data: data))
        except UnicodeEncodeError as error:
            raise InputError(f"the conversation is not valid Unicode: {error}") from None
        except DeclinedError as declined:
            reason = declined.message[:200]
            if declined.status in (400, 413, 422):
                if _TOO_LONG.search(reason):
                    message = f"the policy refuses the conversation as too long: {reason}"
                    raise TooLongError(message, field="messages") from None
                raise InputError(f"the policy refuses the request: {reason}") from None
            if declined.status == 504:
                raise PolicyAwayError(f"the policy's server answers 504: {reason}") from None
            hint = "; set STEPMARK_API_KEY where the server runs" if declined.status in (401, 403) else ""
            raise PolicyError(f"the policy's server answers {declined.status}: {reason}{hint}") from None
        except UnansweredError as error:
            raise PolicyAwayError(f"the policy's server does not answer ({error.why})") from None
        except UnreachableError as error:
            raise PolicyAwayError(f"the policy's server: {error}") from None
        except BackendError as error:
            raise PolicyError(f"the policy's server: {error}") from None

    async def _only_model(self) -> str:
        listed = (await self._ask("GET", "/models", None)).get("data")
        names = (
            [item.get("id") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        )
        if len(names) != 1 or not isinstance(names[0], str):
            place = f"{self._server.address}#NAME"
            raise PolicyError(
                f"the policy's server has {len(names)} models; name one at its address, as in {place}"
            )
        return names[0]


@final
class ThreadWriter:
    """A policy in this process, in one thread of its own. What it has begun it finishes, and a disconnected client's result is dropped.

    Args:
        policy: writes.
    """

    penalties = False

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepmark-write")

    async def draw(self, asked: Draw) -> Drawn:
        """See `ServedWriter.draw`."""
        write = Write(
            prompt=asked.messages,
            n=asked.n,
            temperature=asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            max_tokens=asked.max_tokens or _LONGEST,
            stop=asked.stop,
            # By number where a seed is given: equal requests then get equal texts.
            seed=asked.seed or 0,
            first=None if asked.seed is None else 0,
        )
        loop = asyncio.get_running_loop()
        try:
            [reply] = await loop.run_in_executor(self._thread, self._policy.write, [write])
        except UsageError as error:
            raise InputError(f"the policy {self.name}: {error}") from None
        except BackendError as error:
            raise PolicyError(f"the policy {self.name}: {error}") from None
        if isinstance(reply, InputError):
            raise reply
        counts = [item.tokens for item in reply]
        return Drawn(
            texts=tuple(reply),
            prompt_tokens=reply[0].prompt_tokens,
            completion_tokens=None if None in counts else sum(count or 0 for count in counts),
        )

    async def close(self) -> None:
        """Close what it holds."""
        self._thread.shutdown(wait=False, cancel_futures=True)


Writer = ServedWriter | ThreadWriter


@final
class Completions:
    """The extension of a server that answers as a model.

    Args:
        settings: how it draws and chooses.
        writer: makes what writes; called once, in the thread that loads.
    """

    def __init__(self, settings: ChatModel, writer: Callable[[], Writer]) -> None:
        self.settings = settings
        self.router = APIRouter(tags=["best-of-N as a model"], route_class=StrictRoute)
        self.router.add_api_route(
            "/v1/chat/completions",
            self.complete,
            methods=["POST"],
            summary="Answer a conversation",
            **described(ChatAnswer),
        )
        self._make_writer = writer
        self._writer: Writer | None = None
        self._live: Live | None = None
        self._verifier: Verifier | None = None
        self._room, self._verifying = asyncio.Semaphore(settings.policy_requests), asyncio.Lock()
        self._waiting = 0

    def load(self, prm: PRM) -> None:
        """See `service.Extension`.

        Raises:
            StepmarkError: the policy or the verifier cannot be loaded.
        """
        if self.settings.choice != "best":  # report a missing package now and not at the first vote
            load_verifier(self.settings.verifier, isolation=self.settings.isolation).close()
        self._writer = self._make_writer()

    async def start(self, live: Live) -> Sequence[ModelEntry]:
        """See `service.Extension`."""
        self._live = live
        return [ModelEntry(id=self.settings.model, created=live.created)]

    async def stop(self) -> None:
        """See `service.Extension`."""
        if self._writer is not None:
            await self._writer.close()
        if self._verifier is not None:
            await asyncio.to_thread(self._verifier.close)

    async def complete(self, request: Request, body: ChatRequest) -> Response:
        """Draw candidates from the policy, grade their steps, and give the best: OpenAI's chat completion, and under `stepmark` the scores of all
        candidates and why one was chosen.

        `usage` counts all candidates. With `stream` the chosen text comes as server-sent events, once it is chosen.
        """
        service = service_of(request)
        service.need()
        check_model(self.settings.model, body.model)
        seconds = body.selection.timeout or self.settings.chat_timeout
        deadline = arrival(request) + seconds
        try:
            async with asyncio.timeout(max(0.0, deadline - service.clock())):
                completion = await self._answer(body, deadline)
        except TimeoutError:
            raise LateError(f"the answer was not ready within {seconds:g} s") from None
        except PolicyAwayError as error:
            raise Refused("policy_away", f"{error}; try again later", headers=retry(5.0)) from None
        except PolicyError as error:
            service.log(f"error: {error}")
            raise Refused("policy", str(error)) from None
        if not body.stream:
            return answer(completion)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return StreamingResponse(events(completion, usage=usage), media_type="text/event-stream")

    async def _answer(self, body: ChatRequest, deadline: float) -> dict[str, Any]:
        """A `ChatAnswer` as plain data."""
        live, writer, settings = self._live, self._writer, self.settings
        assert live is not None and writer is not None
        asked = self._draw(body)
        if not writer.penalties and (asked.presence_penalty or asked.frequency_penalty):
            name = "presence_penalty" if asked.presence_penalty else "frequency_penalty"
            raise invalid(f"the policy {writer.name} knows no penalties", field=name)
        grade = check_grade(live.prm, live.grade, body.selection.aggregate, checks="none")
        drawn = await self._drawn(writer, asked)
        solutions = await asyncio.to_thread(self._split, problem_of(asked.messages), drawn.texts)
        scores = await live.batcher.score(
            [item for item in solutions if isinstance(item, Solution)], deadline=deadline
        )
        results = verdicts(solutions, scores, live.prm, grade, at="candidates")
        _check_any_scored(results, solutions, drawn)
        answers = [
            None if (extracted := find_answer(item.text)) is None else extracted.text for item in drawn.texts
        ]
        picked = await self._picked(
            [result.get("score") for result in results],
            answers,
            [item.finish != "length" for item in drawn.texts],
            body.selection.choose or settings.choice,
        )
        candidates = []
        for number, (written, solution, result) in enumerate(
            zip(drawn.texts, solutions, results, strict=True)
        ):
            names = ("score", "scores", "first_error", "first_error_step", "error")
            more = {name: result[name] for name in names if name in result}
            more |= {} if picked.votes is None else {"votes": picked.votes[number]}
            more |= {} if written.tokens is None else {"tokens": written.tokens}
            if body.selection.texts:
                more["text"] = written.text
                more |= {"steps": list(solution.texts)} if isinstance(solution, Solution) else {}
            finish = _finish(written)
            candidates.append({"index": number, "finish_reason": finish, "answer": answers[number], **more})
        chosen = drawn.texts[picked.index]
        prompt, wrote = drawn.prompt_tokens, drawn.completion_tokens
        usage = {}
        if prompt is not None and wrote is not None:
            counts = {"prompt_tokens": prompt, "completion_tokens": wrote, "total_tokens": prompt + wrote}
            usage = {"usage": counts}
        message = {"role": "assistant", "content": chosen.text, "refusal": None}
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": settings.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(chosen)}],
            **usage,
            "stepmark": {
                "n": len(drawn.texts),
                "chosen": picked.index,
                "choose": picked.choice,
                "why": picked.why,
                "search": settings.search,
                "policy": served_name(writer.name),
                "prm": live.name,
                "score_kind": live.prm.score_kind,
                "aggregate": grade.aggregate,
                "threshold": grade.threshold,
                "candidates": candidates,
            },
        }

    def _draw(self, body: ChatRequest) -> Draw:
        """What a request asks of the policy."""
        settings = self.settings
        n = body.selection.n or settings.n
        if n > settings.max_n:
            message = f"expected at most {settings.max_n} candidates, found {n} (`max_n`)"
            raise invalid(message, field="stepmark.n")
        temperature = settings.temperature if body.temperature is None else body.temperature
        if n > 1 and not temperature:
            raise invalid(
                f"at temperature 0 all {n} candidates are one: leave it out ({settings.temperature:g}), or ask for one with stepmark.n = 1",
                field="temperature",
            )
        if body.stop and not all(body.stop):
            raise invalid("expected texts that are not empty", field="stop")
        if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
            message = "max_tokens says something else; give one of them"
            raise invalid(message, field="max_completion_tokens")
        return Draw(
            messages=body.conversation,
            n=n,
            temperature=temperature,
            top_p=body.top_p,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop=tuple(body.stop or ()),
            seed=body.seed,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
        )

    async def _drawn(self, writer: Writer, asked: Draw) -> Drawn:
        if self._waiting >= (_QUEUE + 1) * self.settings.policy_requests:
            message = "too many conversations wait for the policy; try again later"
            raise Refused("busy", message, headers=retry(5.0))
        self._waiting += 1
        try:
            async with self._room:
                return await writer.draw(asked)
        finally:
            self._waiting -= 1

    def _split(self, problem: str, texts: Sequence[Written]) -> list[Read]:
        solutions: list[Read] = []
        for item in texts:
            try:
                cut = split_text(item.text, self.settings.split, marker=self.settings.marker)
                solutions.append(Solution(problem=Problem(text=problem), steps=cut.steps, split=cut.how))
            except InputError as error:
                solutions.append(error)
        return solutions

    async def _picked(
        self,
        scores: Sequence[float | None],
        answers: Sequence[str | None],
        finished: Sequence[bool],
        choice: Choice,
    ) -> Picked:
        if choice == "best":
            return pick(scores, answers, choice, finished=finished)
        if choice == "vote" and any(score is not None and score < 0 for score in scores):
            raise invalid(
                "scores of this PRM can be below 0 and are no weights; choose best or majority",
                field="stepmark.choose",
            )
        async with self._verifying:  # a verifier holds a process that answers one question at a time
            if self._verifier is None:
                self._verifier = load_verifier(self.settings.verifier, isolation=self.settings.isolation)
            return await asyncio.to_thread(
                pick, scores, answers, choice, verifier=self._verifier, finished=finished
            )


def _check_any_scored(results: Sequence[dict[str, Any]], solutions: Sequence[Read], drawn: Drawn) -> None:
    """Refuse to choose where nothing was graded: any answer would look chosen."""
    if any(item.get("score") is not None for item in results):
        return
    if not any(item.text.strip() for item in drawn.texts):
        raise PolicyError(f"the policy wrote nothing in any of {len(drawn.texts)} candidates")
    for result, solution in zip(results, solutions, strict=True):
        if "error" in result and isinstance(solution, Solution):
            message = f"the PRM can read no candidate; of the first: {result['error']['message']}"
            raise Refused(result["error"]["type"], message, field="messages")
    raise PolicyError("no candidate has a score: the PRM left steps of each of them unread")


def _finish(written: Written) -> Literal["stop", "length"]:
    return "length" if written.finish == "length" else "stop"


def events(completion: dict[str, Any], *, usage: bool) -> Iterator[bytes]:
    """A `ChatAnswer` as OpenAI's server-sent events: the text step by step, `stepmark` in the last chunk with a choice.

    Args:
        completion: the answer.
        usage: one more chunk with `usage` and no choice, where it is known; the others then have `usage: null`, as OpenAI's.
    """
    head = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    rest: dict[str, Any] = {"usage": None} if usage else {}
    [choice] = completion["choices"]

    def event(data: dict[str, Any]) -> bytes:
        text = json.dumps({**head, **data}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"data: {text}\n\n".encode()

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **rest}

    text = choice["message"]["content"]
    yield event(chunk({"role": "assistant", "content": "", "refusal": None}))
    try:
        pieces = [step.raw for step in split_text(text)]
    except StepmarkError:
        pieces = [text]
    for piece in pieces:
        yield event(chunk({"content": piece}))
    yield event(chunk({}, choice["finish_reason"]) | {"stepmark": completion["stepmark"]})
    if usage and "usage" in completion:
        yield event({"choices": [], "usage": completion["usage"]})
    yield b"data: [DONE]\n\n"


def chat_extensions(policy: PolicyLike | None, chat: ChatModel) -> list[Completions]:
    """What makes a server answer as a chat model; nothing without a policy.

    Raises:
        UsageError: settings of the chat model without a policy.
    """
    if policy is None:
        if chat != CHAT:
            name = next(name for name in ChatModel.__slots__ if getattr(chat, name) != getattr(CHAT, name))  # type: ignore[attr-defined]
            raise UsageError(f"`{name}` is for the chat model, which needs `policy`, the model that writes")
        return []
    model = lazy_policy(policy) if isinstance(policy, str) else policy
    if not isinstance(model, Lazy):
        return [Completions(chat, lambda: ThreadWriter(model))]
    model.check()
    if is_server(model.name):
        return [Completions(chat, lambda: ServedWriter(model.name))]
    return [
        Completions(chat, lambda: ThreadWriter(model.with_arguments(memory_tokens=_POLICY_MEMORY).load()))
    ]
