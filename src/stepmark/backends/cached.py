"""Caches around a policy, a PRM and a verifier: what makes a run resumable.

A reply is recorded, durably, before anything is computed from it, under a key that names everything that shapes it: the kind of request, who answers,
prompt, settings, seed, the number of the sample. A run that is started again asks the cache first, and a model only for what is missing. `n` is
not part of the key: where 8 samples are recorded, a request for 16 asks for 8 more. Equal requests that wait at the same time are asked once.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast, final

from stepmark.backends.base import Completing, Ready, StepScoring, Verifying, all_of, batched, spawn
from stepmark.backends.requests import (
    ChoiceLogprobs,
    Completion,
    Completions,
    ScoreRequest,
    StepScore,
    VerdictRequest,
    content_key,
    plain,
)
from stepmark.errors import BackendError, UsageError
from stepmark.records import Verdict
from stepmark.words import amount

Request = Completions | ChoiceLogprobs | ScoreRequest | VerdictRequest
Asked = TypeVar("Asked", bound=Request)


class ReplyStore(Protocol):
    """Where replies are kept: a mapping from key to text that only grows."""

    @property
    def name(self) -> str:
        """What errors call it: its file."""

    def get(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Those of the keys that are recorded, with their replies."""

    def put(self, replies: Mapping[str, str]) -> Mapping[str, str]:
        """Record replies; durable on return.

        Returns:
            What now stands under each key: the earlier reply where one was already recorded.
        """


class _Cache:
    """The replies to one kind of request.

    Args:
        store: where replies are recorded; None: equal requests are only shared while they wait.
        observe: called with each reply that was not recorded before.
    """

    def __init__(self, store: ReplyStore | None, observe: Callable[[Any], None] | None = None) -> None:
        self._store, self._observe = store, observe
        self._waiting: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def replies(
        self,
        request: Asked,
        keys: Sequence[str],
        identity: str,
        ask: Callable[[Asked], Awaitable[Sequence[Any]]],
    ) -> list[Any]:
        """The replies under some keys; `ask` is awaited for those that are neither recorded nor asked for already."""
        recorded = self._recorded(request, keys)
        waits = {key: self._waiting[key] for key in keys if key not in recorded and key in self._waiting}
        for start, end in _gaps([key in recorded or key in waits for key in keys]):
            part: Any = request
            if isinstance(request, Completions):
                part = replace(request, n=end - start, first=request.first + start)
            task = spawn(self._asked(part, keys[start:end], identity, ask))
            own = dict.fromkeys(keys[start:end], task)
            self._waiting |= own
            task.add_done_callback(partial(self._done, own))
            waits |= own
        # A task that is awaited by many, and recorded whether or not they still wait.
        tasks = dict.fromkeys(waits.values())
        for replies in (
            [await asyncio.shield(*tasks)] if len(tasks) == 1 else await all_of(map(asyncio.shield, tasks))
        ):
            recorded |= replies
        return [recorded[key] for key in keys]

    async def _asked(
        self,
        request: Asked,
        keys: Sequence[str],
        identity: str,
        ask: Callable[[Asked], Awaitable[Sequence[Any]]],
    ) -> dict[str, Any]:
        replies = await ask(request)
        _check_replies(request, replies, len(keys), identity)
        if self._observe is not None:
            for reply in replies:
                self._observe(reply)
        if self._store is None:
            return dict(zip(keys, replies, strict=True))
        packed = {key: _pack(reply) for key, reply in zip(keys, replies, strict=True)}
        standing = await batched(self._put, packed, quick=True)
        # Read back even what was just made: a replay must not differ from the first run.
        return {key: _unpack(standing[key]) for key in keys}

    def _done(self, keys: Iterable[str], task: asyncio.Task[dict[str, Any]]) -> None:
        del task
        for key in keys:
            del self._waiting[key]

    def _put(self, many: Sequence[Mapping[str, str]], ready: Ready) -> list[Mapping[str, str]]:
        """Record what waits in one go: a durable write costs milliseconds."""
        del ready
        assert self._store is not None
        standing = self._store.put({key: text for entry in many for key, text in entry.items()})
        return [standing] * len(many)

    def _recorded(self, request: Request, keys: Sequence[str]) -> dict[str, Any]:
        """Those replies that the store has, by key.

        Raises:
            UsageError: one is damaged.
        """
        if self._store is None:
            return {}
        replies: dict[str, Any] = {}
        for key, text in self._store.get(keys).items():
            try:
                replies[key] = _unpack(text)
                problem = _misfit(request, replies[key])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                problem = str(error)
            if problem is not None:
                raise UsageError(
                    f"{self._store.name}: the recorded reply {text[:80]!r} is damaged ({problem}): restore the reply store, or delete it; what it "
                    "recorded is then asked for again"
                )
        return replies


@final
class CachedPolicy:
    """A policy whose samples and probabilities are recorded; arguments as in the module."""

    def __init__(
        self,
        policy: Completing,
        store: ReplyStore | None = None,
        *,
        observe: Callable[[Any], None] | None = None,
    ) -> None:
        self._policy, self._cache = policy, _Cache(store, observe)
        self.identity = policy.identity

    async def complete(self, request: Completions) -> tuple[Completion, ...]:
        """See `Completing.complete`."""
        key = content_key(request, self.identity)
        keys = [f"{key}/{number}" for number in range(request.first, request.first + request.n)]
        return tuple(await self._cache.replies(request, keys, self.identity, self._policy.complete))

    async def choose(self, request: ChoiceLogprobs) -> tuple[float, ...]:
        """See `Completing.choose`."""
        keys = [f"{content_key(request, self.identity)}/0"]

        async def ask(request: ChoiceLogprobs) -> Sequence[Any]:
            return [await self._policy.choose(request)]

        [reply] = await self._cache.replies(request, keys, self.identity, ask)
        return tuple(reply)


@final
class CachedPRM:
    """A PRM whose scores of prefixes are recorded."""

    def __init__(self, prm: StepScoring, store: ReplyStore | None = None) -> None:
        self._prm, self._cache = prm, _Cache(store)
        self.identity = prm.identity

    async def score_step(self, request: ScoreRequest) -> StepScore:
        """See `StepScoring.score_step`."""

        async def ask(request: ScoreRequest) -> Sequence[Any]:
            return [await self._prm.score_step(request)]

        keys = [f"{content_key(request, self.identity)}/0"]
        [reply] = await self._cache.replies(request, keys, self.identity, ask)
        return cast("StepScore", reply)

    def release(self, problem: str, prefixes: Sequence[tuple[str, ...]]) -> None:
        """See `StepScoring.release`."""
        self._prm.release(problem, prefixes)


@final
class CachedVerifier:
    """A verifier whose verdicts are recorded."""

    def __init__(self, verifier: Verifying, store: ReplyStore | None = None) -> None:
        self._verifier, self._cache = verifier, _Cache(store)
        self.identity = verifier.identity

    async def verify(self, answer: str, gold: str) -> Verdict:
        """See `Verifying.verify`."""

        async def ask(request: VerdictRequest) -> Sequence[Any]:
            return [await self._verifier.verify(request.answer, request.gold)]

        request = VerdictRequest(answer=answer, gold=gold)
        keys = [f"{content_key(request, self.identity)}/0"]
        [verdict] = await self._cache.replies(request, keys, self.identity, ask)
        return cast("Verdict", verdict)


def _gaps(present: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The runs of False, as (start, end)."""
    start = None
    for place, filled in enumerate([*present, True]):
        if not filled and start is None:
            start = place
        elif filled and start is not None:
            yield start, place
            start = None


def _check_replies(request: Request, replies: Sequence[Any], count: int, identity: str) -> None:
    """Refuse replies that do not fit their request, or that hold a number that is none.

    Raises:
        BackendError: the message says what was expected and found.
    """
    if not isinstance(replies, Sequence) or isinstance(replies, str) or len(replies) != count:
        shown = len(replies) if isinstance(replies, Sequence) else repr(replies)
        problem: str | None = f"expected {amount(count, 'text')} in reply to a request, found {shown}"
    else:
        problem = next(filter(None, (_misfit(request, reply) for reply in replies)), None)
    if problem is not None:
        raise BackendError(f"{identity}: {problem}. Nothing was recorded of it")


def _misfit(request: Request, reply: object) -> str | None:
    """Why something is no reply to a request (one of the texts, for `Completions`); None where it is."""
    numbers: Sequence[float | None]
    if isinstance(request, Completions):
        if not isinstance(reply, Completion) or not isinstance(reply.text, str):
            return f"expected a completion, found {reply!r}"
        numbers, what = [reply.logprob], f"as the log-probability of {reply.text[:80]!r}"
    elif isinstance(request, ScoreRequest):
        if not isinstance(reply, StepScore):
            return f"expected the score of a step, found {reply!r}"
        numbers = [reply.score]
        what = f"as the score of step {len(request.steps) - 1} (0-based), {request.steps[-1][:80]!r}"
    elif isinstance(request, VerdictRequest):
        return None if isinstance(reply, Verdict) else f"expected a verdict, found {reply!r}"
    else:
        if not isinstance(reply, Sequence) or len(reply) != len(request.options):
            return f"expected {len(request.options)} log-probabilities, found {reply!r}"
        # An option that the model excludes has minus infinity.
        numbers = [0.0 if number == -math.inf else number for number in reply]
        what = "among the log-probabilities of the options"
    bad = next((number for number in numbers if number is not None and not math.isfinite(number)), None)
    return None if bad is None else f"expected a finite number {what}, found {bad!r}"


def _pack(reply: object) -> str:
    if isinstance(reply, Verdict):
        return json.dumps({"verdict": plain(reply)})
    if isinstance(reply, StepScore):
        return json.dumps({"score": plain(reply)})
    return json.dumps(plain(reply) if isinstance(reply, Completion) else list(reply))  # type: ignore[call-overload]


def _unpack(text: str) -> Completion | Verdict | StepScore | tuple[float, ...]:
    data = json.loads(text)
    if not isinstance(data, dict):
        return tuple(float(value) for value in data)
    if "score" in data:
        classes = data["score"]["classes"]
        return StepScore(**{**data["score"], "classes": None if classes is None else tuple(classes)})
    return Verdict(**data["verdict"]) if "verdict" in data else Completion(**data)
