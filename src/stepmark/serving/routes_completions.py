"""The address of best-of-N as a model: `POST /v1/chat/completions`, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from stepmark.errors import StepmarkError, UsageError
from stepmark.models.lazy import Lazy, is_server
from stepmark.models.policies import Policy, PolicyLike, lazy_policy
from stepmark.models.prm import PRM
from stepmark.problems.answers import load_verifier
from stepmark.search.base import Grading, Steps
from stepmark.serving.chat_wire import ChatAnswer, ChatRequest
from stepmark.serving.completions import Completer
from stepmark.serving.refusals import Refused, retry
from stepmark.serving.routing import ARRIVED, answer, body_of, described, service_of
from stepmark.serving.service import Live
from stepmark.serving.settings import CHAT, ChatModel
from stepmark.serving.stepwise import Searcher, search_of
from stepmark.serving.wire import ModelEntry
from stepmark.serving.writers import PolicyAwayError, PolicyError, ServedWriter, ThreadWriter, Writer
from stepmark.solutions.segmentation import split as split_text

_POLICY_MEMORY = 65_536
"""Tokens whose keys and values a policy in this process keeps."""


@final
class Completions:
    """The extension of a server that answers as a model.

    Args:
        settings: how it draws and chooses.
        writer: makes what writes whole completions; called once, in the thread that loads.
        policy: the same for a search that writes step by step.
        together: that policy may be asked by several threads at once.

    Raises:
        UsageError: not the one that the search needs.
    """

    def __init__(
        self,
        settings: ChatModel,
        writer: Callable[[], Writer] | None = None,
        *,
        policy: Callable[[], Policy] | None = None,
        together: bool = False,
    ) -> None:
        needed, other = (policy, writer) if settings.stepwise else (writer, policy)
        if needed is None or other is not None:
            raise UsageError(
                f"{settings.search} needs {'a policy and no writer' if settings.stepwise else 'a writer and no policy'}"
            )
        self.settings = settings
        self.router = APIRouter(tags=["best-of-N as a model"])
        self._make_writer, self._make_policy, self._together = writer, policy, together
        self._writer: Writer | None = None
        self._policy: Policy | None = None
        self._completer: Completer | Searcher | None = None
        self.router.add_api_route(
            "/v1/chat/completions",
            self.complete,
            methods=["POST"],
            summary="Answer a conversation",
            **described(ChatAnswer, 404, 500, 502, 504, body=ChatRequest),
        )

    def load(self, prm: PRM) -> None:
        """See `service.Extension`.

        Raises:
            StepmarkError: the policy or the verifier cannot be loaded.
        """
        if self.settings.choice != "best" or self.settings.stepwise:
            # A missing package is told now and not at the first vote.
            load_verifier(self.settings.verifier, isolation=self.settings.isolation).close()
        if self._make_writer is not None:
            self._writer = self._make_writer()
        if self._make_policy is not None:
            grading = Grading(aggregate=prm.default_aggregate, kind=prm.score_kind)
            search_of(self.settings.search, self.settings.n, Steps(), grading)
            self._policy = self._make_policy()

    async def start(self, live: Live) -> Sequence[ModelEntry]:
        """See `service.Extension`."""
        if self._policy is not None:
            self._completer = Searcher(self.settings, self._policy, live, together=self._together)
        else:
            assert self._writer is not None
            self._completer = Completer(self.settings, self._writer, live)
        return [ModelEntry(id=self.settings.model, created=live.created)]

    async def stop(self) -> None:
        """See `service.Extension`."""
        if self._completer is not None:
            await self._completer.close()
        elif self._writer is not None:
            await self._writer.close()
        self._completer, self._writer, self._policy = None, None, None

    async def complete(self, request: Request) -> Response:
        """Draw candidates from the policy, grade their steps, and give the best: OpenAI's chat completion, and under `stepmark` what all
        candidates got and why one was chosen.

        `usage` counts all candidates. With `stream` the chosen text comes as server-sent events, once it is chosen.
        """
        service = service_of(request)
        service.need()
        completer = self._completer
        assert completer is not None
        body = await body_of(request, ChatRequest)
        if body.model is not None and body.model != self.settings.model:
            raise Refused(
                "not_found",
                f"no model {body.model[:80]!r} answers here; {self.settings.model!r} does",
                field="model",
            )
        arrived: float = request.scope.get(ARRIVED) or service.clock()
        try:
            told = await completer.answer(body, arrived=arrived)
        except PolicyAwayError as error:
            raise Refused(
                "policy_away", f"{error}; try again later", headers=retry(error.retry_after)
            ) from None
        except PolicyError as error:
            service.log(f"error: {error}")
            raise Refused("policy", str(error)) from None
        if not body.stream:
            return answer(told)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return StreamingResponse(events(told, usage=usage), media_type="text/event-stream")


def events(told: dict[str, Any], *, usage: bool) -> Iterator[bytes]:
    """A `ChatAnswer` as OpenAI's server-sent events: the text step by step, `stepmark` in the last chunk with a choice.

    Args:
        told: the answer.
        usage: one more chunk with `usage` and no choice, where it is known; the others then have `usage: null`, as OpenAI's.
    """
    head = {key: told[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    rest: dict[str, Any] = {"usage": None} if usage else {}
    [choice] = told["choices"]

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        one = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**head, "choices": [one], **rest, **more})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for piece in _pieces(choice["message"]["content"]):
        yield chunk({"content": piece})
    yield chunk({}, choice["finish_reason"], stepmark=told["stepmark"])
    if usage and "usage" in told:
        yield _event({**head, "choices": [], "usage": told["usage"]})
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return (
        b"data: "
        + json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        + b"\n\n"
    )


def _pieces(text: str) -> list[str]:
    """The text in pieces that rejoin to it."""
    try:
        return [step.raw for step in split_text(text)]
    except StepmarkError:
        return [text]


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
    if isinstance(model, Lazy):
        model.check()
    served = isinstance(model, Lazy) and is_server(model.name)
    if chat.stepwise:
        return [Completions(chat, policy=lambda: _policy(model, chat), together=served)]

    def writer() -> Writer:
        return ServedWriter(model.name) if served else ThreadWriter(_policy(model, chat))

    return [Completions(chat, writer)]


def _policy(policy: Policy | Lazy[Policy], chat: ChatModel) -> Policy:
    """The policy, loaded; of a server, with the patience that an answer allows."""
    if not isinstance(policy, Lazy):
        return policy
    if not is_server(policy.name):
        return policy.with_arguments(memory_tokens=_POLICY_MEMORY).load()
    from stepmark.models.policies.openai import OpenAIPolicy
    from stepmark.models.policies.transport import Patience, key_variable

    url, _, model = policy.name.partition("#")
    patience = Patience(retries=2, max_wait=10.0, timeout=chat.chat_timeout)
    return OpenAIPolicy(url, model or None, api_key_env=key_variable(), patience=patience)
