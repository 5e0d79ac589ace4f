"""Best-of-N as a model: completions of a conversation are drawn from a policy, graded by the PRM of this server, and one is the answer.

Lightman et al. 2023, "Let's Verify Step by Step" (arXiv 2305.20050), section 2, behind OpenAI's API; votes as in `search.choosing`. The candidates are
graded by the batcher that all clients share.
A parameter of OpenAI's that cannot be honoured is refused by name: an answer that ignored it would look as if it had been.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, final

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BeforeValidator, Field, model_validator

from stepmark.backends import Completion, Completions, Message
from stepmark.data.conversations import solution_of
from stepmark.data.steps.splitting import split as split_text
from stepmark.errors import (
    BackendError,
    InputError,
    StepmarkError,
    UnreachableError,
    UsageError,
)
from stepmark.models.http import Patience, UnansweredError, key_variable
from stepmark.models.lazy import Lazy, is_server
from stepmark.models.policies import Policy, PolicyLike, lazy_policy
from stepmark.models.policies.openai import OpenAIPolicy
from stepmark.models.remote.wire import PROBLEM, Answer, ModelEntry, Timeout, examples
from stepmark.models.remote.wire import Request as WireRequest
from stepmark.records import Solution
from stepmark.searches.base import Choice
from stepmark.searches.choosing import Picked, pick
from stepmark.serving.batcher import LateError
from stepmark.serving.errors import Refused, invalid, retry
from stepmark.serving.routes import (
    Read,
    answer,
    arrival,
    check_grade,
    check_model,
    described,
    verdicts,
)
from stepmark.serving.service import Service, served_name
from stepmark.serving.settings import CHAT, MOST_CANDIDATES, ChatModel
from stepmark.show.text import amount
from stepmark.verifiers.base import Verifier, load_verifier
from stepmark.verifiers.finder import find_answer


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
    "presence_penalty": 0,
    "frequency_penalty": 0,
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
    """Equal requests with equal seeds get equal texts from a policy in this process; a server does not get it."""
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

    A single turn stands as it is; several stand under headings, as `data.conversations` writes a conversation.
    """
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return turns[0].content
    return "\n\n".join(f"{message.role.capitalize()}:\n{message.content}" for message in turns)


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
    stepmark: dict[str, Any]
    """How it was chosen: `n`, `chosen` (which candidate, from 0), `choose` (what decided; best, where no candidate could vote), `why`, `search`,
    `policy`, `prm`, `score_kind`, `aggregate`, `threshold`, and `candidates`: `index`, `finish_reason`, `answer` (null for none), `votes` and
    `tokens` where counted, `text` and `steps` where asked for, and the fields of a result of /v1/score, or `error`."""


_QUEUE = 4
"""Conversations that may wait for the policy, for each that it may work on."""
_POLICY_MEMORY = 65_536
"""Tokens whose keys and values a policy in this process holds."""
_LONGEST = 2048
"""Tokens of a completion where the request does not say."""
_PATIENCE = Patience(retries=2, first_wait=0.5, max_wait=10.0)


@final
class ChatService:
    """Answers conversations for a server: adds its address and its model.

    Args:
        service: the server.
        policy: writes.
        settings: how it draws and chooses.

    Raises:
        StepmarkError: the verifier cannot be loaded.
    """

    def __init__(self, service: Service, policy: Policy, settings: ChatModel) -> None:
        self._service, self._policy, self.settings = service, policy, settings
        if settings.choice != "best":  # report a missing package now and not at the first vote
            load_verifier(settings.verifier, isolation=settings.isolation).close()
        router = APIRouter(tags=["best-of-N as a model"])
        router.add_api_route(
            "/v1/chat/completions",
            self.complete,
            methods=["POST"],
            summary="Answer a conversation",
            **described(ChatAnswer),
        )
        self._verifier: Verifier | None = None
        self._room, self._verifying = asyncio.Semaphore(settings.policy_requests), asyncio.Lock()
        self._waiting = 0
        service.routers.append(router)
        service.models.append(ModelEntry(id=settings.model, created=service.created))
        service.closing.append(self._close)

    async def _close(self) -> None:
        if self._verifier is not None:
            await asyncio.to_thread(self._verifier.close)

    async def complete(self, request: Request, body: ChatRequest) -> Response:
        """Draw candidates from the policy, grade their steps, and give the best: OpenAI's chat completion, and under `stepmark` the scores of all
        candidates and why one was chosen.

        `usage` counts all candidates. With `stream` the chosen text comes as server-sent events, once it is chosen.
        """
        service = self._service
        check_model(self.settings.model, body.model)
        seconds = body.selection.timeout or self.settings.chat_timeout
        deadline = arrival(request) + seconds
        try:
            async with asyncio.timeout(max(0.0, deadline - service.clock())):
                completion = await self._answer(body, deadline)
        except TimeoutError:
            raise LateError(f"the answer was not ready within {seconds:g} s") from None
        except Refused as refused:
            if refused.error["type"] == "policy":
                service.log(f"error: {refused.error['message']}")
            raise
        if not body.stream:
            return answer(completion)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return StreamingResponse(events(completion, usage=usage), media_type="text/event-stream")

    async def _answer(self, body: ChatRequest, deadline: float) -> dict[str, Any]:
        """A `ChatAnswer` as plain data."""
        service, policy, settings = self._service, self._policy, self.settings
        grade = check_grade(service.prm, service.grade, body.selection.aggregate)
        request = self._request(body)
        texts = await self._written(request)
        solutions = await asyncio.to_thread(self._split, problem_of(body.conversation), texts)
        scores = await service.batcher.score(
            [item for item in solutions if isinstance(item, Solution)], deadline=deadline
        )
        results = await asyncio.to_thread(verdicts, solutions, scores, service.prm, grade, at="candidates")
        _check_any_scored(results, solutions, texts)
        answers = [
            None if (extracted := find_answer(item.text)) is None else extracted.text for item in texts
        ]
        picked = await self._picked(
            [result.get("score") for result in results],
            answers,
            [item.finish != "length" for item in texts],
            [bool(result.get("findings")) for result in results],
            body.selection.choose or settings.choice,
        )
        candidates = []
        for number, (written, solution, result) in enumerate(zip(texts, solutions, results, strict=True)):
            names = ("score", "scores", "first_error", "first_error_step", "findings", "error")
            more = {name: result[name] for name in names if name in result}
            more |= {} if picked.votes is None else {"votes": picked.votes[number]}
            more |= {} if written.tokens is None else {"tokens": written.tokens}
            if body.selection.texts:
                more["text"] = written.text
                more |= {"steps": list(solution.texts)} if isinstance(solution, Solution) else {}
            finish = _finish(written)
            candidates.append({"index": number, "finish_reason": finish, "answer": answers[number], **more})
        chosen, prompt = texts[picked.index], texts[0].prompt_tokens
        counts = [item.tokens for item in texts if item.tokens is not None]
        usage = {}
        if prompt is not None and len(counts) == len(texts):
            wrote = sum(counts)
            total = {"prompt_tokens": prompt, "completion_tokens": wrote, "total_tokens": prompt + wrote}
            usage = {"usage": total}
        message = {"role": "assistant", "content": chosen.text, "refusal": None}
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": settings.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(chosen)}],
            **usage,
            "stepmark": {
                "n": len(texts),
                "chosen": picked.index,
                "choose": picked.choice,
                "why": picked.why,
                "search": settings.search,
                "policy": served_name(policy.name),
                "prm": service.name,
                "score_kind": service.prm.score_kind,
                "aggregate": grade.aggregate,
                "threshold": grade.threshold,
                "candidates": candidates,
            },
        }

    def _request(self, body: ChatRequest) -> Completions:
        """What the policy is asked to write."""
        settings = self.settings
        n = body.selection.n or settings.n
        if n > settings.max_n:
            message = f"expected at most {amount(settings.max_n, 'candidate')}, found {n} (`max_n`)"
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
        return Completions(
            prompt=body.conversation,
            n=n,
            temperature=temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            max_tokens=body.max_completion_tokens or body.max_tokens or _LONGEST,
            stop=tuple(body.stop or ()),
            # By number where a seed is given: equal requests then get equal texts.
            seed=body.seed or 0,
        )

    async def _written(self, request: Completions) -> Sequence[Completion]:
        """The completions of a conversation. Those of a client that disconnects are dropped."""
        policy = self._policy
        if self._waiting >= (_QUEUE + 1) * self.settings.policy_requests:
            message = "too many conversations wait for the policy; try again later"
            raise Refused("busy", message, headers=retry(5.0))
        self._waiting += 1
        try:
            async with self._room:
                return await policy.complete(request)
        except InputError as error:
            raise type(error)(
                f"the policy refuses the conversation: {error.message}", field="messages"
            ) from None
        except UsageError as error:
            raise InputError(f"the policy {policy.name}: {error}") from None
        except (UnansweredError, UnreachableError) as error:
            message = f"the policy {policy.name}: {error}; try again later"
            raise Refused("policy_away", message, headers=retry(5.0)) from None
        except BackendError as error:
            raise Refused("policy", f"the policy {policy.name}: {error}") from None
        finally:
            self._waiting -= 1

    def _split(self, problem: str, texts: Sequence[Completion]) -> list[Read]:
        solutions: list[Read] = []
        for item in texts:
            try:
                split, marker = self.settings.split, self.settings.marker
                solutions.append(solution_of(problem, item.text, split_by=split, marker=marker))
            except InputError as error:
                solutions.append(error)
        return solutions

    async def _picked(
        self,
        scores: Sequence[float | None],
        answers: Sequence[str | None],
        finished: Sequence[bool],
        refuted: Sequence[bool],
        choice: Choice,
    ) -> Picked:
        if choice == "best":
            return pick(scores, answers, choice, finished=finished, refuted=refuted)
        if choice == "vote" and any(score is not None and score < 0 for score in scores):
            raise invalid(
                "scores of this PRM can be below 0 and are no weights; choose best or majority",
                field="stepmark.choose",
            )
        async with self._verifying:  # a verifier holds a process that answers one question at a time
            if self._verifier is None:
                self._verifier = load_verifier(self.settings.verifier, isolation=self.settings.isolation)
            return await asyncio.to_thread(
                pick,
                scores,
                answers,
                choice,
                verifier=self._verifier,
                finished=finished,
                refuted=refuted,
            )


def _check_any_scored(
    results: Sequence[dict[str, Any]], solutions: Sequence[Read], texts: Sequence[Completion]
) -> None:
    """Refuse to choose where nothing was graded: any answer would look chosen."""
    if any(item.get("score") is not None for item in results):
        return
    if not any(item.text.strip() for item in texts):
        raise Refused("policy", f"the policy wrote nothing in any of {amount(len(texts), 'candidate')}")
    for result, solution in zip(results, solutions, strict=True):
        if "error" in result and isinstance(solution, Solution):
            message = f"the PRM can read no candidate; of the first: {result['error']['message']}"
            raise Refused(result["error"]["type"], message, field="messages")
    raise Refused("policy", "no candidate has a score: the PRM left steps of each of them unread")


def _finish(written: Completion) -> Literal["stop", "length"]:
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


def check_chat(policy: PolicyLike | None, chat: ChatModel) -> Policy | Lazy[Policy] | None:
    """The policy of the chat model, not loaded yet where it is a name; None where none is given.

    Raises:
        UsageError: settings of the chat model without a policy, or a policy that cannot be loaded.
    """
    if policy is None:
        if chat != CHAT:
            name = next(name for name in ChatModel.__slots__ if getattr(chat, name) != getattr(CHAT, name))  # type: ignore[attr-defined]
            raise UsageError(f"`{name}` is for the chat model, which needs `policy`, the model that writes")
        return None
    model = lazy_policy(policy) if isinstance(policy, str) else policy
    if isinstance(model, Lazy):
        model.check()
    return model


def add_chat(service: Service, policy: Policy | Lazy[Policy] | None, chat: ChatModel) -> None:
    """Make a server answer as a chat model; nothing without a policy.

    Raises:
        StepmarkError: the policy or the verifier cannot be loaded.
    """
    if policy is None:
        return
    if isinstance(policy, Lazy) and is_server(policy.name):
        url, _, name = policy.name.partition("#")
        # Log-probabilities count the tokens of each completion.
        key = key_variable()
        policy = OpenAIPolicy(url, name or None, api_key_env=key, patience=_PATIENCE, logprobs=True)
    elif isinstance(policy, Lazy):
        policy = policy.with_arguments(memory_tokens=_POLICY_MEMORY).load()
    if service.log_requests:
        service.log(f"as a model: {chat.model} at /v1/chat/completions, written by {policy.name}")
    ChatService(service, policy, chat)
