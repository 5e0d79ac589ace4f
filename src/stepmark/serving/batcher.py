"""From requests to batches: one queue, one thread that computes, one that tokenises, and answers that find their request.

Nothing waits on purpose. While a batch is computed, what comes in gathers, and is the next one; so batches are as large as the
load makes them. A request can leave at any time (its client went away, its deadline passed): what waits of it leaves the queue, and
what is in work is finished and dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import cast, final

from stepmark.errors import BackendError, InputError, UsageError
from stepmark.records import Refusal, Solution, StepScores
from stepmark.serving.backend import Backend
from stepmark.serving.computing import Computer, Request, as_backend_error
from stepmark.serving.jobs import (
    Ask,
    BusyError,
    DrainingError,
    Grown,
    Growth,
    LateError,
    Reading,
    Result,
    Rows,
    Whole,
    refused,
)
from stepmark.serving.queueing import FairQueue, Taken
from stepmark.serving.tallies import Figures

_SLICE = 32
"""Asks that are tokenised at a time, so that a large request does not keep the tokeniser from a small one."""


@final
class Batcher:
    """Answers the requests of many clients from one PRM.

    Made and used in one event loop.

    Args:
        backend: what computes.
        token_budget: tokens that a batch computes at most; of a single solution that has more, all.
        queue_tokens: tokens that may wait. A request that is larger than that by itself is taken into an empty queue only, computed a
            budget at a time as any other, and leaves half of the queue to others.
        clock: seconds; deadlines are told in it.

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
        self._tokeniser = ThreadPoolExecutor(1, thread_name_prefix="stepmark-tokenise")
        self._queue: FairQueue[Request] = FairQueue(max(1, token_budget // 2))
        self._live: set[Request] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._figures = Figures()
        self._computer = Computer(backend, self._figures, clock)
        self._untold = 0
        self._large: Request | None = None
        self._work, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._stopping = self._stopped = False
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to compute. What was asked before waits until then."""
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
        """The scores of single steps after prefixes, one result each, in order.

        Each `Grown` is to be given back with `release`. Of a call that is cancelled or raises, nothing is to be given back.

        Raises:
            BusyError, LateError, DrainingError, BackendError, CheckpointError: see `score`.
        """
        return cast("list[Grown | InputError]", await self._answer(asked, deadline))

    async def rows(
        self,
        sequences: Sequence[Sequence[int] | str],
        *,
        activation: bool = False,
        special: bool = True,
        deadline: float | None = None,
    ) -> list[Rows | InputError]:
        """The head's rows at the step marks of bare token ids (or of texts).

        Args:
            activation: probabilities; else logits.
            special: as `jobs.Reading` says.

        Raises:
            UsageError: the PRM has no rows to give (`Backend.pooling`).
            BusyError, LateError, DrainingError, BackendError, CheckpointError: see `score`.
        """
        if not self.backend.pooling:
            raise UsageError(f"{self.backend.prm.name} gives no rows of token ids")
        tokens = (one if isinstance(one, str) else tuple(one) for one in sequences)
        asks = [Reading(tokens=one, activation=activation, special=special) for one in tokens]
        return cast("list[Rows | InputError]", await self._answer(asks, deadline))

    def release(self, grown: Iterable[Grown]) -> None:
        """Let go of what is kept of some prefixes, before the next batch."""
        kept = [one for one in grown if one.place is not None]
        if kept and not self._stopped:
            self._computer.release(kept)
            self._work.set()

    async def stop(self, *, grace: float) -> None:
        """Take nothing new, finish what waits, and end both threads.

        Args:
            grace: seconds after which what still waits is refused with `DrainingError`. A batch in work is always waited for.
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
            self._tokeniser.shutdown()

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new."""
        return self._stopping

    @property
    def figures(self) -> Figures:
        """What it has done and has to do, as of now; a copy."""
        return self._figures.now(
            self.backend.ledger,
            self.backend.memory,
            waiting_requests=len(self._live),
            waiting_tokens=self._waiting,
        )

    @property
    def _waiting(self) -> int:
        return self._queue.tokens + self._untold

    @property
    def _excess(self) -> int:
        """What a request that is larger than the queue takes beyond half of it; of those there is one at a time."""
        large = self._large
        if large is None:
            return 0
        return max(0, self._queue.tokens_of(large) + large.untold - self._room // 2)

    # Requests come in.

    async def _answer(self, asks: Sequence[Ask], deadline: float | None) -> list[Result]:
        if self._stopping:
            raise DrainingError("the server is shutting down")
        if deadline is not None and self.clock() >= deadline:
            raise LateError("the deadline had passed when the request came")
        if not asks:
            return []
        request = self._taken_in(asks, deadline)
        reading = asyncio.create_task(self._prepare(request))
        self._tasks.add(reading)
        reading.add_done_callback(self._tasks.discard)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._figures.gone += 1
            answer = request.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # Answered and cancelled in the same turn of the loop: nobody has it, so nobody gives it back.
                self.release(one for one in answer.result() if isinstance(one, Grown))
            raise
        finally:
            reading.cancel()
            self._forget(request)

    def _taken_in(self, asks: Sequence[Ask], deadline: float | None) -> Request:
        estimates = [self.backend.estimate(ask) for ask in asks]
        total, waiting = sum(estimates), self._waiting
        if waiting and (total > self._room or waiting - self._excess + total > self._room):
            self._figures.busy += 1
            raise BusyError(
                f"about {total} tokens were asked, {waiting} wait, and the queue takes {self._room}",
                retry_after=(waiting + self._figures.computing_tokens)
                / (self._figures.tokens_per_second or 1e9),
            )
        request = Request(
            asks=asks,
            estimates=estimates,
            arrived=self.clock(),
            deadline=deadline,
            answer=asyncio.get_running_loop().create_future(),
            results=[None] * len(asks),
            missing=len(asks),
            untold=total,
        )
        if total > self._room:
            self._large = request
        self._untold += total
        self._live.add(request)
        self._idle.clear()
        self._figures.requests += 1
        self._watch(request)
        return request

    def _watch(self, request: Request) -> None:
        """Fail it at its deadline, whatever is being computed then."""
        if request.deadline is not None and not request.answer.done():
            left = request.deadline - self.clock()
            if left <= 0:
                self._late(request)
            else:
                request.timer = asyncio.get_running_loop().call_later(left, self._watch, request)

    async def _prepare(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        try:
            for start in range(0, len(request.asks), _SLICE):
                asks = request.asks[start : start + _SLICE]
                found = await loop.run_in_executor(self._tokeniser, self.backend.prepare, asks)
                if request.answer.done():
                    return
                told = sum(request.estimates[start : start + _SLICE])
                request.untold -= told
                self._untold -= told
                for index, (ask, work) in enumerate(zip(asks, found, strict=True), start):
                    if isinstance(work, InputError):
                        self._settle(request, index, refused(ask, work))
                    else:
                        self._queue.put(request, [(index, work)])
                self._work.set()
        except Exception as error:
            self._fail(request, as_backend_error(error))

    # Requests go out.

    def _settle(self, request: Request, index: int, result: Result) -> None:
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
            request.answer.set_result([one for one in request.results if one is not None])

    def _fail(self, request: Request, error: BaseException) -> None:
        if not request.answer.done():
            request.answer.set_exception(error)
            # Its client may have gone; then nobody asks for the error, which is no fault.
            request.answer.exception()
        self._forget(request)

    def _late(self, request: Request) -> None:
        if not request.answer.done():
            self._figures.late += 1
            self._fail(request, LateError("the deadline passed before everything was computed"))

    def _forget(self, request: Request) -> None:
        """Nothing more is computed for it, and what it kept is given back unless it was given out."""
        if request not in self._live:
            return
        self._live.discard(request)
        if self._large is request:
            self._large = None
        self._queue.drop(request)
        self._untold -= request.untold
        request.untold = 0
        if request.timer is not None:
            request.timer.cancel()
        answer = request.answer
        if not answer.done():
            answer.cancel()
        if answer.cancelled() or answer.exception() is not None:
            self.release(one for one in request.results if isinstance(one, Grown))
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
                await self._computer.give_back()
            await self._computer.give_back()
        except BaseException as error:
            # Nobody will compute any more, and nobody should wait for it.
            self._stopping = self._stopped = True
            for request in list(self._live):
                self._figures.failed += 1
                self._fail(
                    request, BackendError(f"the server's computing ended: {type(error).__name__}: {error}")
                )
            raise

    def _gathered(self) -> list[Taken[Request]]:
        for request in list(self._live):
            if request.deadline is not None and self.clock() >= request.deadline:
                self._late(request)
        batch = self._queue.take(self._budget, self.backend.fresh)
        now = self.clock()
        for one in batch:
            if not one.owner.begun:
                one.owner.begun = True
                self._figures.queue_seconds.add(now - one.owner.arrived)
        return batch

    async def _batch(self, batch: Sequence[Taken[Request]]) -> None:
        """Compute a batch; if that fails, each request's part of it alone, so that only the one at fault fails."""
        owners = list(dict.fromkeys(one.owner for one in batch))
        self._figures.computing_tokens = sum(one.work.tokens for one in batch)
        try:
            try:
                results = await self._computer.compute([one.work for one in batch])
            except Exception as error:
                if len(owners) == 1:
                    self._failed(owners[0], error)
                    return
                for owner in owners:
                    part = [one for one in batch if one.owner is owner]
                    if owner.answer.done():
                        continue
                    try:
                        results = await self._computer.compute([one.work for one in part])
                    except Exception as alone:
                        self._failed(owner, alone)
                    else:
                        self._deliver(part, results)
            else:
                self._deliver(batch, results)
        finally:
            self._figures.computing_tokens = 0

    def _deliver(self, batch: Sequence[Taken[Request]], results: Sequence[Result]) -> None:
        for one, result in zip(batch, results, strict=True):
            self._settle(one.owner, one.index, result)

    def _failed(self, request: Request, error: Exception) -> None:
        if not request.answer.done():
            self._figures.failed += 1
        self._fail(request, as_backend_error(error))
