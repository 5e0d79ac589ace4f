"""A search as a chat model: a conversation in OpenAI's shape is searched with the policy and the PRM of this server, and the chosen text is the answer.

The searches are those of `stepmark.searches`, awaited: with equal settings and seed the answer is that of `stepmark.search`. Their scores come
from the batcher that all clients share. A parameter of OpenAI's that would change the answer and cannot be honoured is refused by name.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from stepmark.backends import ChoiceLogprobs, Completion, Completions, Message, ScoreRequest, StepScore
from stepmark.backends.requests import Prompt, cut_at_stop
from stepmark.errors import InputError, UnreachableError, UsageError
from stepmark.metrics.aggregate import rank_key
from stepmark.models.http import UnansweredError
from stepmark.models.policies import Policy
from stepmark.models.prm import last_step
from stepmark.records import Problem, Refusal, Solution
from stepmark.searches.base import Budget, Grading, Search, SearchResult
from stepmark.searches.methods import METHODS, remade
from stepmark.searches.result_rows import found_row
from stepmark.searches.run import search_one
from stepmark.serving.errors import Refused, invalid, refused_input
from stepmark.serving.routes import described, service_of
from stepmark.serving.service import Service, served_name, within
from stepmark.serving.settings import search_of

POLICY: Mapping[str, Any] = {"counts": True, "memory_tokens": 65_536}
"""What the policy of a chat model is loaded with."""
_NEUTRAL: dict[str, Any] = {
    "n": 1,
    "logprobs": False,
    "tools": [],
    "functions": [],
    "response_format": {"type": "text"},
}
"""Parameters of OpenAI's without which the client would misread the answer, and the value that it may send nevertheless. Others that are unknown here are
ignored."""

router = APIRouter(tags=["a search as a model"])


class TextPart(BaseModel):
    """A part of a message. Pictures, sounds and files are refused."""

    type: Literal["text"]
    text: str


class RequestMessage(BaseModel):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks. `developer` is passed on as `system`. There are no tools."""
    content: str | list[TextPart]


class ChatRequest(BaseModel):
    """OpenAI's chat completion."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    messages: list[RequestMessage] = Field(min_length=1, max_length=1024)
    """The conversation; the last turn is the user's."""
    model: str | None = None
    """A search with its settings, such as beam:width=4,expand=2. Default: the server's."""
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    """Of a solution."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`."""
    stop: str | list[str] | None = None
    """Texts before which a solution ends."""
    seed: int | None = Field(None, ge=0, le=2**31 - 1)
    """Equal requests with equal seeds get equal texts from a policy in this process; a server does not get it."""
    stream: bool | None = None
    """Server-sent events, once the solution is chosen: a step a chunk."""
    stream_options: dict[str, Any] | None = None


@router.post("/v1/chat/completions", summary="Answer a conversation", **described(None))
async def complete(request: Request, body: ChatRequest) -> Response:
    """Search for the answer: OpenAI's chat completion, and under `stepmark` the candidates with their scores and what the search cost.

    `usage` counts the tokens of the whole search. The PRM reads the conversation without system messages as the problem.
    """
    service = service_of(request)
    assert service.policy is not None and service.verifier is not None
    for name, neutral in _NEUTRAL.items():
        if (value := (body.model_extra or {}).get(name)) is not None and value != neutral:
            raise invalid(f"cannot be honoured here; expected {neutral!r}, or the field left out", field=name)
    spec = body.model or service.chat.search
    search = _search(service, spec, body)
    messages = _conversation(body.messages)
    if service.searches >= service.chat.chats:
        raise Refused("busy", f"{service.searches} searches run (`chats`); try again later", retry_after=5.0)
    service.searches += 1
    try:
        async with within(service.chat.chat_timeout):
            policy = _ConversationPolicy(service.policy, messages, search, body.stop)
            problem = Problem(text=problem_of(messages))
            found = await search_one(problem, search, policy, _SharedScoring(service), service.verifier)
    except (UnansweredError, UnreachableError) as error:
        message = f"the policy {served_name(service.policy.name)}: {error}"
        raise Refused("unavailable", message, retry_after=5.0) from None
    finally:
        service.searches -= 1
    if isinstance(found, Refusal):
        raise refused_input(type(found.error)(found.error.message, field="messages"))
    answer = _answer(service, spec, found, search.how.stop)
    if not body.stream:
        return JSONResponse(answer)
    usage = bool((body.stream_options or {}).get("include_usage"))
    return StreamingResponse(events(answer, search.how.stop, usage=usage), media_type="text/event-stream")


def problem_of(messages: Sequence[Message]) -> str:
    """What the PRM reads as the problem: the conversation without the system's turns; several turns stand under headings."""
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return turns[0].content
    return "\n\n".join(f"{message.role.capitalize()}:\n{message.content}" for message in turns)


def _conversation(turns: Sequence[RequestMessage]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        text = turn.content if isinstance(turn.content, str) else "".join(part.text for part in turn.content)
        if not text.strip():
            raise invalid("expected a text that is not blank", field=f"messages.{number}.content")
        messages.append(Message(role="system" if turn.role == "developer" else turn.role, content=text))
    if messages[-1].role != "user":
        place = f"messages.{len(messages) - 1}.role"
        raise invalid(
            "expected the last turn to be the user's: a begun reply cannot be continued", field=place
        )
    return tuple(messages)


def _search(service: Service, spec: str, body: ChatRequest) -> Search:
    """The search that a request names, as this server runs it.

    Raises:
        Refused: none of the library's, or settings that it does not have or that are too large.
    """
    own = spec == service.chat.search
    if not own and spec.partition(":")[0] not in METHODS:
        names = f"{service.chat.search}, or one of {', '.join(METHODS)}, perhaps with settings: beam:width=4,expand=2"
        raise Refused("not_found", f"no model {spec[:80]!r} answers here; expected {names}", field="model")
    limit = body.max_completion_tokens or body.max_tokens
    try:
        search = search_of(spec)
        how = search.how
        given: dict[str, Any] = {"temperature": body.temperature, "top_p": body.top_p, "seed": body.seed}
        if limit is not None:
            given |= {"max_solution_tokens": limit, "max_tokens": min(limit, how.max_tokens)}
        grading = Grading(
            aggregate=service.grade.aggregate or service.prm.default_aggregate,
            kind=service.prm.score_kind,
            checks=service.grade.checks,
        )
        search = remade(
            search,
            how=remade(how, **{key: value for key, value in given.items() if value is not None}),
            grading=grading,
            budget=Budget(tokens=service.chat.budget),
        )
    except UsageError as error:
        raise invalid(str(error), field="model") from None
    most = service.chat.max_size
    sizes = {item.name: getattr(search, item.name) for item in fields(search)}  # type: ignore[arg-type]
    for name, size in sizes.items():
        if not own and isinstance(size, int) and size > most:
            raise invalid(f"{name}={size}: expected at most {most} (`max_size`)", field="model")
    return search


@final
class _ConversationPolicy:
    """A policy that is shown a conversation where a search shows it the problem, and whose texts end at the client's stop texts."""

    def __init__(
        self, policy: Policy, messages: Sequence[Message], search: Search, stop: str | Sequence[str] | None
    ) -> None:
        self._policy = policy
        self.identity = policy.identity
        last = search.how.prompt_of(Problem(text=messages[-1].content))
        self._prompt: Prompt = last if isinstance(last, str) else (*messages[:-1], *last)
        self._stop = [text for text in ([stop] if isinstance(stop, str) else stop or []) if text]

    async def complete(self, request: Completions) -> Sequence[Completion]:
        """See `Completing.complete`."""
        written = await self._policy.complete(replace(request, prompt=self._prompt))
        cuts = [(item, cut_at_stop(item.text, self._stop)) for item in written]
        return [replace(item, text=text, finish="end") if cut else item for item, (text, cut) in cuts]

    async def choose(self, request: ChoiceLogprobs) -> Sequence[float]:
        """See `Completing.choose`."""
        return await self._policy.choose(replace(request, prompt=self._prompt))


@final
class _SharedScoring:
    """The PRM as a search asks it, from the batcher of all clients; its cache computes what is new of a prefix."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.identity = service.prm.identity

    async def score_step(self, request: ScoreRequest) -> StepScore:
        """See `StepScoring.score_step`."""
        batcher = self._service.batcher
        [result] = await batcher.score([Solution.of(request.problem, request.steps)], bounded=False)
        reply = last_step(result, cached=batcher.backend.caches)
        if isinstance(reply, InputError):
            raise reply
        return reply

    def release(self, problem: str, prefixes: Sequence[tuple[str, ...]]) -> None:
        """The cache evicts what was used longest ago."""


def _answer(service: Service, spec: str, found: SearchResult, stop: str) -> dict[str, Any]:
    """OpenAI's chat completion, as plain data."""
    chosen, cost = found.chosen, found.cost
    if chosen is None and found.candidates:  # a vote without an answer: the client wants a text all the same
        ranks = [
            (not item.finished, rank_key(item.aggregate, refuted=item.refuted)) for item in found.candidates
        ]
        chosen = min(range(len(ranks)), key=ranks.__getitem__)
    text = _cut_off(found, stop) if chosen is None else found.candidates[chosen].text
    message = {"role": "assistant", "content": text, "refusal": None}
    finish = "stop" if chosen is not None and found.candidates[chosen].finished else "length"
    usage = {}
    if cost.prompt is not None and cost.decoded is not None:
        total = cost.prompt + cost.decoded
        usage = {"prompt_tokens": cost.prompt, "completion_tokens": cost.decoded, "total_tokens": total}
    assert service.policy is not None
    row = found_row(found)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": spec,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        **({"usage": usage} if usage else {}),
        "stepmark": {
            "policy": served_name(service.policy.name),
            "prm": service.name,
            "score_kind": found.trace.kind,
            "aggregate": found.trace.aggregate,
            **{key: row[key] for key in ("method", "candidates", "stopped", "note", "cost")},
            "chosen": chosen,
        },
    }


def _cut_off(found: SearchResult, stop: str) -> str:
    """The best text of a search that finished none: steps that were written before its limits.

    Raises:
        Refused: it wrote nothing.
    """
    nodes = {node.number: node for node in found.trace.nodes if node.step}
    ends = set(nodes) - {node.parent for node in nodes.values()}
    if not ends:
        why = f" ({found.note})" if found.note else ""
        raise Refused("failed", f"the search found no solution: {found.stopped}{why}")

    def rank(number: int) -> Any:
        return rank_key(nodes[number].aggregate, refuted=nodes[number].refuted), number

    steps: list[str] = []
    at: int | None = min(ends, key=rank)
    while at is not None and at in nodes:
        steps.append(nodes[at].step)
        at = nodes[at].parent
    return stop.join(reversed(steps))


def events(answer: Mapping[str, Any], stop: str, *, usage: bool) -> Iterator[bytes]:
    """An answer as OpenAI's server-sent events: the text step by step, `stepmark` in the last chunk with a choice.

    Args:
        answer: the chat completion.
        stop: what stands between two steps.
        usage: one more chunk with `usage` and no choice, where it is known; the others then have `usage: null`, as OpenAI's.
    """
    head = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    [choice] = answer["choices"]

    def event(data: Mapping[str, Any]) -> bytes:
        text = json.dumps({**head, **data}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"data: {text}\n\n".encode()

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return {"choices": choices, **({"usage": None} if usage else {})}

    yield event(chunk({"role": "assistant", "content": "", "refusal": None}))
    *steps, last = choice["message"]["content"].split(stop)
    for piece in (*(step + stop for step in steps), last):
        yield event(chunk({"content": piece}))
    yield event(chunk({}, choice["finish_reason"]) | {"stepmark": answer["stepmark"]})
    if usage and "usage" in answer:
        yield event({"choices": [], "usage": answer["usage"]})
    yield b"data: [DONE]\n\n"
