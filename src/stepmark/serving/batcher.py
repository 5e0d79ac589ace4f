"""From requests to batches: a fair queue, one thread that tokenizes, one that computes, and answers that find their request.

Nothing waits on purpose. While a batch is computed, what arrives gathers, and is the next one; so batches are as large as the load makes them, up to
a budget of tokens. A request that is cancelled (its client disconnected, its time is over) leaves the queue; what is computed of it is dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast, final

from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.records import Refusal, Solution, StepScores
from stepmark.serving.backend import Ask, Backend, Prepared, Result, Rows, TokenIds, refusal_of
from stepmark.serving.errors import Refused
from stepmark.serving.metrics import Metrics
from stepmark.words import amount

_SLICE = 32
"""Solutions that are tokenized at a time, so that a large request does not block a small one."""
_READ = 16
"""A batch reads at most this many times its budget, however much of it is in the prefix cache."""
_SMOOTHING = 0.2
"""Weight of the last batch in the measured rate."""


@dataclass(eq=False, kw_only=True, slots=True)
class _Request:
    """What is asked together and answered together."""

    number: int
    answer: asyncio.Future[list[Result]]
    results: list[Result | None]
    missing: int = 0
    waiting: deque[tuple[int, Prepared]] = field(default_factory=deque)
    tokens: int = 0
    """Of what waits."""
    served: int = 0
    """Tokens taken into batches; of a new request, as many as of the one that has had the fewest."""
    since: float = 0.0
    begun: bool = False


@final
class Batcher:
    """Answers the requests of many clients from one PRM. Made and used in one event loop.

    Requests take turns of half a batch; within a turn the first come is first served. So a thousand solutions of one request delay the single one of
    another by at most a turn, and many small requests are finished one after the other instead of all at the end.

    Args:
        backend: what computes.
        token_budget: tokens that a batch computes at most; of a single solution that has more, all.
        queue_tokens: tokens that may wait. One request counts for at most half of them, so that it leaves room to others.
        metrics: where work is counted.

    Raises:
        UsageError: a budget or a queue without room for a token.
    """

    def __init__(
        self, backend: Backend, *, token_budget: int, queue_tokens: int, metrics: Metrics | None = None
    ) -> None:
        for name, value in (("token_budget", token_budget), ("queue_tokens", queue_tokens)):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, found {value}")
        self.backend, self.metrics = backend, metrics or Metrics()
        self._budget, self._room = token_budget, queue_tokens
        self._tokenizer = ThreadPoolExecutor(1, thread_name_prefix="stepmark-tokenize")
        self._computer = ThreadPoolExecutor(1, thread_name_prefix="stepmark-compute")
        self._live: dict[_Request, None] = {}
        self._numbers = itertools.count()
        self._work, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self.draining = False
        """Whether it takes nothing new."""
        self._computing = 0
        self._rate: float | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to compute; earlier requests wait until then."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._serve())

    async def score(
        self, solutions: Sequence[Solution], *, bounded: bool = True
    ) -> list[StepScores | Refusal]:
        """The scores of whole solutions, one result each, in order; a `Refusal` for one that the PRM cannot read.

        Args:
            solutions: any number; those of one problem are computed together.
            bounded: refused where the queue is full.

        Raises:
            Refused: there is no room for them in the queue, or the server shuts down.
            BackendError, CheckpointError: the model failed at one of them.
        """
        return cast("list[StepScores | Refusal]", await self._answer(solutions, bounded))

    async def rows(
        self, sequences: Sequence[Sequence[int] | str], *, activation: bool = False, last: bool = False
    ) -> list[Rows | InputError]:
        """The head's rows at the step marks of bare token ids; raises as `score`.

        Args:
            sequences: token ids, or texts that are tokenized as they stand.
            activation: probabilities; else logits.
            last: the row of the last token alone.

        Raises:
            UsageError: the PRM has no rows to give (`Backend.pooling`).
        """
        if not self.backend.pooling:
            raise UsageError(f"{self.backend.prm.name} gives no rows of token ids")
        asks = [
            TokenIds(tokens=item if isinstance(item, str) else tuple(item), activation=activation, last=last)
            for item in sequences
        ]
        return cast("list[Rows | InputError]", await self._answer(asks))

    async def stop(self, *, grace: float) -> None:
        """Take nothing new, finish what waits, and end both threads.

        Args:
            grace: seconds after which what still waits is refused (503). A running batch is always finished.
        """
        self.draining = True
        if self._loop is not None and grace > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        for request in list(self._live):
            self._fail(request, Refused("unavailable", "the server shut down before it came to this request"))
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        await asyncio.to_thread(self._computer.shutdown)
        self._tokenizer.shutdown(wait=False)

    # Requests come in.

    async def _answer(self, asks: Sequence[Ask], bounded: bool = True) -> list[Result]:
        if self.draining:
            raise Refused("unavailable", "the server is shutting down", retry_after=2.0)
        loop = asyncio.get_running_loop()
        request = _Request(
            number=next(self._numbers), answer=loop.create_future(), results=[None] * len(asks)
        )
        for start in range(0, len(asks), _SLICE):
            part = asks[start : start + _SLICE]
            works = await loop.run_in_executor(self._tokenizer, self.backend.prepare, part)
            for index, (ask, work) in enumerate(zip(part, works, strict=True), start):
                if isinstance(work, InputError):
                    request.results[index] = refusal_of(ask, work)
                else:
                    request.waiting.append((index, work))
        if not request.waiting:
            return cast("list[Result]", request.results)
        self._admit(request, bounded)
        try:
            return await request.answer
        finally:
            self._leave(request)

    def _admit(self, request: _Request, bounded: bool) -> None:
        """Put a request into the queue.

        Raises:
            Refused: the queue is full.
        """
        request.waiting = deque(sorted(request.waiting, key=lambda item: item[1].problem))
        request.tokens, request.missing = (
            sum(work.tokens for _, work in request.waiting),
            len(request.waiting),
        )
        waiting = sum(min(each.tokens, self._room // 2) for each in self._live)
        if bounded and waiting and waiting + min(request.tokens, self._room // 2) > self._room:
            raise Refused(
                "busy",
                f"asked were {amount(request.tokens, 'token')}, {waiting} wait, and the queue takes {self._room}; try again later",
                retry_after=(waiting + self._computing) / (self._rate or 1e9),
            )
        if self.draining:  # while it was tokenized
            raise Refused("unavailable", "the server is shutting down", retry_after=2.0)
        request.served = min((each.served for each in self._live), default=0)
        request.since = time.monotonic()
        self._live[request] = None
        self._idle.clear()
        self._work.set()
        self._gauge()

    def _leave(self, request: _Request) -> None:
        """Compute nothing more for a request."""
        self._live.pop(request, None)
        if not request.answer.done():
            request.answer.cancel()
        if not self._live:
            self._idle.set()
        self._gauge()

    def _fail(self, request: _Request, error: Exception) -> None:
        if not request.answer.done():
            request.answer.set_exception(error)
            request.answer.exception()  # its client may be gone; then nobody retrieves the error
        self._leave(request)

    def _gauge(self) -> None:
        self.metrics.queue_requests.set(len(self._live))
        self.metrics.queue_tokens.set(sum(request.tokens for request in self._live))
        self.metrics.computing_tokens.set(self._computing)

    # Requests go out.

    async def _serve(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                while batch := self._batch():
                    await self._compute_for(batch)
            except Exception as error:  # of the queue itself: nobody should wait for what will not come
                for request in list(self._live):
                    self._fail(request, _as_backend_error(error))

    def _batch(self) -> list[tuple[_Request, int, Prepared]]:
        """As much as the budget holds, at least one item if anything waits; only a single item may exceed the budget, alone."""
        batch: list[tuple[_Request, int, Prepared]] = []
        beside: dict[str, Prepared] = {}
        quantum = max(1, self._budget // 2)
        size = read = 0
        order = [(each.served // quantum, each.number, each) for each in self._live if each.waiting]
        heapq.heapify(order)
        while order:
            _, number, request = heapq.heappop(order)
            index, work = request.waiting[0]
            fresh = max(1, self.backend.fresh(work, beside.get(work.problem)))
            if batch and (size + fresh > self._budget or read + work.tokens > _READ * self._budget):
                continue  # its turn comes first next time
            request.waiting.popleft()
            request.tokens -= work.tokens
            request.served += work.tokens
            size, read = size + fresh, read + work.tokens
            batch.append((request, index, work))
            if work.problem:
                beside[work.problem] = work
            if request.waiting:
                heapq.heappush(order, (request.served // quantum, number, request))
        now = time.monotonic()
        for request, _, _ in batch:
            if not request.begun:
                request.begun = True
                self.metrics.queue_seconds.observe(now - request.since)
        return batch

    async def _compute_for(self, batch: Sequence[tuple[_Request, int, Prepared]]) -> None:
        """Compute a batch; if that fails, each request's part alone, so that only the one at fault fails."""
        owners = dict.fromkeys(request for request, _, _ in batch)
        try:
            await self._compute(batch)
        except Exception as error:
            if len(owners) == 1:
                self._fail(batch[0][0], _as_backend_error(error))
                return
            for owner in owners:
                if owner in self._live:
                    await self._compute_for([item for item in batch if item[0] is owner])

    async def _compute(self, batch: Sequence[tuple[_Request, int, Prepared]]) -> None:
        metrics, works = self.metrics, [work for _, _, work in batch]
        self._computing = sum(work.tokens for work in works)
        self._gauge()
        metrics.batches.inc()
        began = time.perf_counter()
        try:
            results = await asyncio.get_running_loop().run_in_executor(
                self._computer, self.backend.compute, works
            )
        except Exception:
            metrics.batches_failed.inc()
            raise
        finally:
            seconds, tokens, self._computing = time.perf_counter() - began, self._computing, 0
            metrics.compute_seconds.inc(seconds)
            metrics.batch_seconds.observe(seconds)
            self._gauge()
        rate = tokens / max(seconds, 1e-9)
        self._rate = rate if self._rate is None else self._rate + _SMOOTHING * (rate - self._rate)
        metrics.items.inc(len(works))
        metrics.tokens_read.inc(tokens)
        for (request, index, _), result in zip(batch, results, strict=True):
            request.results[index] = result
            request.missing -= 1
            if not request.missing and not request.answer.done():
                request.answer.set_result(cast("list[Result]", request.results))


def _as_backend_error(error: Exception) -> Exception:
    """A StepmarkError stays; anything else is the model's failure."""
    if isinstance(error, StepmarkError):
        return error
    failure = BackendError(f"the model failed with {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
