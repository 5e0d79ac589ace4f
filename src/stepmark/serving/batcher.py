"""From requests to batches: one fair queue, one thread that tokenizes, one that computes, and answers that find their request.

Nothing waits on purpose. While a batch is computed, what arrives gathers, and is the next one; so batches are as large as the load makes them. A
request can leave at any time (its client disconnected, its deadline passed): what waits of it leaves the queue, and what is being computed is
finished and dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast, final

from prometheus_client import Histogram

from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.records import Refusal, Solution, StepScores
from stepmark.serving.backend import (
    Ask,
    Backend,
    Grown,
    Growth,
    Prepared,
    Reading,
    Result,
    Rows,
    Whole,
    refused,
)
from stepmark.show.text import amount

Owner = TypeVar("Owner")

_SLICE = 32
"""Asks that are tokenized at a time, so that a large request does not block a small one."""
_READ = 16
"""A batch reads at most this many times its budget, however much of it is in memory."""
_SMOOTHING = 0.2
"""Weight of the last batch in the measured rate."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of histograms, in seconds."""


class BusyError(StepmarkError):
    """The queue is full.

    Args:
        message: what was asked and what there is.
        retry_after: seconds until there should be room; at least 1.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        self.retry_after = max(1.0, retry_after)
        super().__init__(message)


class LateError(StepmarkError):
    """The deadline passed before everything was computed."""


class DrainingError(StepmarkError):
    """The server shuts down: it takes no new request, or did not reach this one in its time of grace."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Taken(Generic[Owner]):
    """One item of a batch."""

    owner: Owner
    index: int
    """Its index in the owner's request."""
    work: Prepared


class _Lane(Generic[Owner]):
    """What waits of one request, by problem."""

    def __init__(self, owner: Owner, number: int, served: int) -> None:
        self.owner, self.number, self.served = owner, number, served
        self.waiting: dict[str, deque[tuple[int, Prepared]]] = {}
        self.tokens = 0

    @property
    def first(self) -> tuple[int, Prepared]:
        return next(iter(self.waiting.values()))[0]

    def pop(self) -> None:
        key, queue = next(iter(self.waiting.items()))
        queue.popleft()
        if not queue:
            del self.waiting[key]


@final
class FairQueue(Generic[Owner]):
    """Fair shares of tokens between requests, solutions of one problem side by side, batches of a budget.

    Requests take turns of `quantum` tokens; within a turn the first come is first served. So ten thousand solutions of one request delay the single
    one of another by at most a turn, and many small requests are finished one after the other instead of all at the end. Of one request, solutions of
    one problem come one after the other, whatever order they came in.

    Args:
        quantum: tokens of a turn; 1: every solution is one.
    """

    def __init__(self, quantum: int = 1) -> None:
        self._quantum = quantum
        self.tokens = 0
        """Of all that waits."""
        self._lanes: dict[Owner, _Lane[Owner]] = {}
        self._numbers = self._floor = 0

    def __len__(self) -> int:
        """Requests of which something waits."""
        return len(self._lanes)

    def put(self, owner: Owner, works: Iterable[tuple[int, Prepared]]) -> None:
        """Add items of one request, each with its index in it."""
        for index, work in works:
            lane = self._lanes.get(owner)
            if lane is None:
                # A new request has no credit for the time before.
                self._floor = min((item.served for item in self._lanes.values()), default=self._floor)
                lane = self._lanes[owner] = _Lane(owner, self._numbers, self._floor)
                self._numbers += 1
            lane.waiting.setdefault(work.ask.key, deque()).append((index, work))
            self.tokens += work.tokens
            lane.tokens += work.tokens

    def tokens_of(self, owner: Owner) -> int:
        """Of what waits of a request."""
        lane = self._lanes.get(owner)
        return 0 if lane is None else lane.tokens

    def drop(self, owner: Owner) -> int:
        """Remove all that waits of a request; its tokens."""
        lane = self._lanes.pop(owner, None)
        gone = 0 if lane is None else lane.tokens
        self.tokens -= gone
        return gone

    def take(self, budget: int, cost: Callable[[Prepared, Prepared | None], int]) -> list[Taken[Owner]]:
        """A batch: as much as its budget holds, at least one item if anything waits.

        Args:
            budget: in tokens that are to be computed. Only a single item may exceed it, alone.
            cost: tokens of an item that are to be computed, given another of the same problem in the batch.
        """
        taken: list[Taken[Owner]] = []
        beside: dict[str, Prepared] = {}
        size = read = 0
        order = [(lane.served // self._quantum, lane.number, lane) for lane in self._lanes.values()]
        heapq.heapify(order)
        while order:
            _, number, lane = heapq.heappop(order)
            index, work = lane.first
            key = work.ask.key
            asked = max(1, cost(work, beside.get(key) if key else None))
            if taken and (size + asked > budget or read + work.tokens > _READ * budget):
                continue  # its turn comes first next time
            lane.pop()
            self.tokens -= work.tokens
            lane.tokens -= work.tokens
            size, read = size + asked, read + work.tokens
            taken.append(Taken(owner=lane.owner, index=index, work=work))
            beside[key] = work
            lane.served += work.tokens
            if lane.waiting:
                heapq.heappush(order, (lane.served // self._quantum, number, lane))
            else:
                self._floor = max(self._floor, lane.served)
                del self._lanes[lane.owner]
        return taken


@final
@dataclass(kw_only=True, slots=True)
class Figures:
    """What a batcher has done; counts only grow. `metrics` says what each is."""

    requests: int = 0
    answered: int = 0
    busy: int = 0
    late: int = 0
    gone: int = 0
    failed: int = 0
    drained: int = 0
    items: int = 0
    refusals: int = 0
    batches: int = 0
    failed_batches: int = 0
    compute_seconds: float = 0.0
    tokens_read: int = 0
    waiting_requests: int = 0
    """Now: accepted and not answered."""
    waiting_tokens: int = 0
    """Now: tokens in the queue, without the running batch; what is not tokenized yet is estimated."""
    computing_tokens: int = 0
    """Now: tokens of the running batch."""
    tokens_per_second: float | None = None
    """Tokens read a second of computing, smoothed; None before the first batch."""
    queue_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "stepmark_queue_seconds",
            "From a request's arrival until its first batch.",
            registry=None,
            buckets=BUCKETS,
        )
    )
    batch_seconds: Histogram = field(
        default_factory=lambda: Histogram(
            "stepmark_batch_seconds", "Duration of a batch.", registry=None, buckets=BUCKETS
        )
    )


@final
@dataclass(eq=False)
class _Request:
    """What is asked together and answered together."""

    asks: Sequence[Ask]
    estimates: list[int]
    arrived: float
    deadline: float | None
    answer: asyncio.Future[list[Result]]
    results: list[Result | None]
    missing: int
    estimated: int
    """Tokens that are not tokenized yet."""
    begun: bool = False
    timer: asyncio.TimerHandle | None = None


@final
class Batcher:
    """Answers the requests of many clients from one PRM. Made and used in one event loop.

    Args:
        backend: what computes.
        token_budget: tokens that a batch computes at most; of a single solution that has more, all.
        queue_tokens: tokens that may wait. A larger request is accepted into an empty queue only, computed a budget at a time as any other, and
            leaves half of the queue to others.
        clock: seconds; deadlines are times on it.

    Raises:
        UsageError: a budget or a queue without room for a token.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        token_budget: int,
        queue_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("token_budget", token_budget), ("queue_tokens", queue_tokens)):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, found {value}")
        self.backend, self.clock = backend, clock
        self._budget, self._room = token_budget, queue_tokens
        self._tokenizer = ThreadPoolExecutor(1, thread_name_prefix="stepmark-tokenize")
        self._computer = ThreadPoolExecutor(1, thread_name_prefix="stepmark-compute")
        self._released: list[Grown] = []
        self._queue: FairQueue[_Request] = FairQueue(max(1, token_budget // 2))
        self._live: set[_Request] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._figures = Figures()
        self._estimated = 0
        self._large: _Request | None = None
        self._work, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._stopping = self._stopped = False
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to compute; earlier requests wait until then."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._serve())

    async def score(
        self, solutions: Sequence[Solution], *, deadline: float | None = None
    ) -> list[StepScores | Refusal]:
        """The scores of whole solutions, one result each, in order; a `Refusal` for one that the PRM cannot read.

        Args:
            solutions: any number; those of one problem are computed together.
            deadline: the time on `clock` after which the answer is worthless.

        Raises:
            BusyError: there is no room for them in the queue.
            LateError: the deadline has passed.
            DrainingError: the server shuts down.
            BackendError, CheckpointError: the model failed at one of them.
        """
        results = await self._answer([Whole(solution=solution) for solution in solutions], deadline)
        return cast("list[StepScores | Refusal]", results)

    async def extend(
        self, asked: Sequence[Growth], *, deadline: float | None = None
    ) -> list[Grown | InputError]:
        """The scores of single steps after prefixes, one result each, in order; raises as `score`.

        Each `Grown` is to be given back with `release`. A call that is cancelled or raises leaves nothing to give back.
        """
        return cast("list[Grown | InputError]", await self._answer(asked, deadline))

    async def rows(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        activation: bool = False,
        deadline: float | None = None,
    ) -> list[Rows | InputError]:
        """The head's rows at the step marks of bare token ids; raises as `score`.

        Args:
            sequences: token ids.
            activation: probabilities; else logits.
            deadline: see `score`.

        Raises:
            UsageError: the PRM has no rows to give (`Backend.pooling`).
        """
        if not self.backend.pooling:
            raise UsageError(f"{self.backend.prm.name} gives no rows of token ids")
        asks = [Reading(tokens=tuple(item), activation=activation) for item in sequences]
        return cast("list[Rows | InputError]", await self._answer(asks, deadline))

    def release(self, grown: Iterable[Grown]) -> None:
        """Free the state of some prefixes, before the next batch."""
        held = [item for item in grown if item.place is not None]
        if held and not self._stopped:
            self._released += held
            self._work.set()

    async def stop(self, *, grace: float) -> None:
        """Take nothing new, finish what waits, and end both threads.

        Args:
            grace: seconds after which what still waits is refused with `DrainingError`. A running batch is always finished.
        """
        self._stopping = True
        if self._loop is not None and self._live and grace > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        for request in list(self._live):
            self._figures.drained += 1
            self._fail(request, DrainingError("the server shut down before it came to this request"))
        self._stopped = True
        self._work.set()
        try:
            if self._loop is not None:
                await self._loop
        finally:
            self._computer.shutdown()
            self._tokenizer.shutdown()

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new."""
        return self._stopping

    @property
    def figures(self) -> Figures:
        """What it has done and has to do, as of now."""
        self._figures.waiting_requests, self._figures.waiting_tokens = len(self._live), self._waiting
        return self._figures

    @property
    def _waiting(self) -> int:
        return self._queue.tokens + self._estimated

    @property
    def _excess(self) -> int:
        """What the one request that is larger than the queue takes beyond half of it."""
        large = self._large
        if large is None:
            return 0
        return max(0, self._queue.tokens_of(large) + large.estimated - self._room // 2)

    # Requests come in.

    async def _answer(self, asks: Sequence[Ask], deadline: float | None) -> list[Result]:
        if self._stopping:
            raise DrainingError("the server is shutting down")
        if deadline is not None and self.clock() >= deadline:
            raise LateError("the deadline had passed when the request came")
        if not asks:
            return []
        request = self._accepted(asks, deadline)
        preparing = asyncio.create_task(self._prepare(request))
        self._tasks.add(preparing)
        preparing.add_done_callback(self._tasks.discard)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._figures.gone += 1
            answer = request.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # Answered and cancelled in the same turn of the loop: nobody received it, so nobody gives it back.
                self.release(item for item in answer.result() if isinstance(item, Grown))
            raise
        finally:
            preparing.cancel()
            self._forget(request)

    def _accepted(self, asks: Sequence[Ask], deadline: float | None) -> _Request:
        estimates = [self.backend.estimate(ask) for ask in asks]
        total, waiting, figures = sum(estimates), self._waiting, self._figures
        if waiting and (total > self._room or waiting - self._excess + total > self._room):
            figures.busy += 1
            raise BusyError(
                f"asked were about {amount(total, 'token')}, {waiting} wait, and the queue takes {self._room}",
                retry_after=(waiting + figures.computing_tokens) / (figures.tokens_per_second or 1e9),
            )
        request = _Request(
            asks=asks,
            estimates=estimates,
            arrived=self.clock(),
            deadline=deadline,
            answer=asyncio.get_running_loop().create_future(),
            results=[None] * len(asks),
            missing=len(asks),
            estimated=total,
        )
        if total > self._room:
            self._large = request
        self._estimated += total
        self._live.add(request)
        self._idle.clear()
        figures.requests += 1
        self._watch(request)
        return request

    def _watch(self, request: _Request) -> None:
        """Fail it at its deadline, whatever is being computed then."""
        if request.deadline is not None and not request.answer.done():
            left = request.deadline - self.clock()
            if left <= 0:
                self._late(request)
            else:
                request.timer = asyncio.get_running_loop().call_later(left, self._watch, request)

    async def _prepare(self, request: _Request) -> None:
        loop = asyncio.get_running_loop()
        try:
            for start in range(0, len(request.asks), _SLICE):
                asks = request.asks[start : start + _SLICE]
                works = await loop.run_in_executor(self._tokenizer, self.backend.prepare, asks)
                if request.answer.done():
                    return
                estimated = sum(request.estimates[start : start + _SLICE])
                request.estimated -= estimated
                self._estimated -= estimated
                for index, (ask, work) in enumerate(zip(asks, works, strict=True), start):
                    if isinstance(work, InputError):
                        self._settle(request, index, refused(ask, work))
                    else:
                        self._queue.put(request, [(index, work)])
                self._work.set()
        except Exception as error:
            self._fail(request, _as_backend_error(error))

    # Requests go out.

    def _settle(self, request: _Request, index: int, result: Result) -> None:
        """One result of a request."""
        if request.answer.done():
            if isinstance(result, Grown):
                self.release([result])
            return
        self._figures.refusals += isinstance(result, Refusal | InputError)
        request.results[index] = result
        request.missing -= 1
        if not request.missing:
            self._figures.answered += 1
            request.answer.set_result([item for item in request.results if item is not None])

    def _fail(self, request: _Request, error: BaseException) -> None:
        if not request.answer.done():
            request.answer.set_exception(error)
            request.answer.exception()  # its client may be gone; then nobody retrieves the error
        self._forget(request)

    def _late(self, request: _Request) -> None:
        if not request.answer.done():
            self._figures.late += 1
            self._fail(request, LateError("the deadline passed before everything was computed"))

    def _forget(self, request: _Request) -> None:
        """Compute nothing more for it, and release what it grew unless that was given out."""
        if request not in self._live:
            return
        self._live.discard(request)
        if self._large is request:
            self._large = None
        self._queue.drop(request)
        self._estimated -= request.estimated
        request.estimated = 0
        if request.timer is not None:
            request.timer.cancel()
        answer = request.answer
        if not answer.done():
            answer.cancel()
        if answer.cancelled() or answer.exception() is not None:
            self.release(item for item in request.results if isinstance(item, Grown))
        if not self._live:
            self._idle.set()

    # Batches.

    async def _serve(self) -> None:
        try:
            while not self._stopped:
                await self._work.wait()
                self._work.clear()
                while not self._stopped and (batch := self._gathered()):
                    await self._batch(batch)
                await self._give_back()
            await self._give_back()
        except BaseException as error:
            # Nothing will be computed any more, and nobody should wait for it.
            self._stopping = self._stopped = True
            failure = f"the server's computing ended: {type(error).__name__}: {error}"
            for request in list(self._live):
                self._figures.failed += 1
                self._fail(request, BackendError(failure))
            raise

    def _gathered(self) -> list[Taken[_Request]]:
        for request in list(self._live):
            if request.deadline is not None and self.clock() >= request.deadline:
                self._late(request)
        batch = self._queue.take(self._budget, self.backend.fresh)
        now = self.clock()
        for item in batch:
            if not item.owner.begun:
                item.owner.begun = True
                self._figures.queue_seconds.observe(now - item.owner.arrived)
        return batch

    async def _batch(self, batch: Sequence[Taken[_Request]]) -> None:
        """Compute a batch; if that fails, each request's part alone, so that only the one at fault fails."""
        self._figures.computing_tokens = sum(item.work.tokens for item in batch)
        owners = list(dict.fromkeys(item.owner for item in batch))
        try:
            if not await self._computed(batch, alone=len(owners) == 1):
                for owner in owners:
                    if not owner.answer.done():
                        await self._computed([item for item in batch if item.owner is owner], alone=True)
        finally:
            self._figures.computing_tokens = 0

    async def _computed(self, batch: Sequence[Taken[_Request]], *, alone: bool) -> bool:
        """Compute and deliver; whether there is nothing left to do. A part of one request that fails, fails it."""
        try:
            results = await self._compute([item.work for item in batch])
        except Exception as error:
            if not alone:
                return False
            request = batch[0].owner
            self._figures.failed += not request.answer.done()
            self._fail(request, _as_backend_error(error))
            return True
        for item, result in zip(batch, results, strict=True):
            self._settle(item.owner, item.index, result)
        return True

    async def _compute(self, works: Sequence[Prepared]) -> list[Result]:
        released, self._released = self._released, []

        def compute() -> list[Result]:
            if released:
                self.backend.release(released)
            results = self.backend.compute(works)
            if len(results) != len(works):
                raise BackendError(
                    f"{len(works)} were to be computed, and {amount(len(results), 'result')} came"
                )
            return results

        figures, started = self._figures, self.clock()
        figures.batches += 1
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._computer, compute)
        except Exception:
            figures.failed_batches += 1
            raise
        finally:
            seconds = self.clock() - started
            figures.compute_seconds += seconds
            figures.batch_seconds.observe(seconds)
        tokens = sum(work.tokens for work in works)
        figures.items += len(works)
        figures.tokens_read += tokens
        if seconds > 0:
            before, rate = figures.tokens_per_second, tokens / seconds
            figures.tokens_per_second = rate if before is None else before + _SMOOTHING * (rate - before)
        return results

    async def _give_back(self) -> None:
        if self._released:
            released, self._released = self._released, []
            await asyncio.get_running_loop().run_in_executor(self._computer, self.backend.release, released)


def _as_backend_error(error: Exception) -> Exception:
    """A StepmarkError stays; anything else is the model's failure."""
    if isinstance(error, StepmarkError):
        return error
    failure = BackendError(f"the model failed with {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
