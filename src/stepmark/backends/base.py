"""Async models: what a policy, a PRM and a verifier are asked, one `await` a request, and how a model computes what waits in one batch.

A labeller or a search is a coroutine that reads like its paper. Many of them run at once (`run_tasks`). A model in this process gathers what they
ask: when every task waits, the requests that are there are computed together, in a thread of that model, so that a policy and a PRM overlap. A server
is simply awaited.

Nothing here decides a result. Samples are numbered by the caller, and a request names everything that shapes its reply, so equal inputs give equal
outputs whatever was batched with what.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from stepmark.backends.requests import ChoiceLogprobs, Completion, Completions, ScoreRequest, StepScore
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.records import Verdict
from stepmark.words import amount

Item = TypeVar("Item")
Result = TypeVar("Result")

Ready = Callable[[int, Any], None]
"""`ready(i, reply)`: the reply to request i of a batch is there, before the whole batch is."""

Batch = Callable[[Sequence[Any], Ready], Sequence[Any]]
"""Computes requests together: one reply each, in order, or an `InputError` for a request that cannot be answered. It may report each reply through
`ready` as soon as it is there; then it is safe even if a later one fails."""

_ROUNDS = 8
"""Turns of the event loop without a new request after which every task waits: a task that is woken sends its next request within a few."""
_PATIENCE = 0.05
"""Seconds for which a model waits for quick work (verdicts, records on disk) that may bring it more requests."""
_HALVED = 4
"""Requests that are computed in two halves where another model is idle: fewer gain nothing."""
BATCH_THREAD = "stepmark-batch"
"""Name of the threads that compute batches."""
_STOPPING = 5.0
"""Seconds for which a run that is ended early waits for a batch that reports nothing."""
_AHEAD = 4
"""Times as many items are read ahead as run at once, so that one slow task does not stop the others."""


class Completing(Protocol):
    """What labellers and searches ask of a policy."""

    @property
    def identity(self) -> str:
        """What shapes its texts besides the request."""

    async def complete(self, request: Completions) -> Sequence[Completion]:
        """The samples `first` … `first + n - 1` of a request.

        Raises:
            InputError: this request cannot be answered (too long, a marker in the text).
            BackendError: the model or its server failed.
        """

    async def choose(self, request: ChoiceLogprobs) -> Sequence[float]:
        """The log-probability of each option as the next text, in order; raises as `complete`."""


class StepScoring(Protocol):
    """What searches ask of a PRM."""

    @property
    def identity(self) -> str:
        """What shapes its scores besides the request."""

    async def score_step(self, request: ScoreRequest) -> StepScore:
        """The score of the last step of a prefix.

        Raises:
            InputError: the PRM cannot read it.
            BackendError: the model or its server failed.
        """

    def release(self, problem: str, prefixes: Sequence[tuple[str, ...]]) -> None:
        """These prefixes of a problem will not be continued: what is kept of them may go. It changes no result."""


class Verifying(Protocol):
    """What labellers and searches ask of a verifier."""

    @property
    def identity(self) -> str:
        """What shapes its verdicts besides the answers."""

    async def verify(self, answer: str, gold: str) -> Verdict:
        """Compare an answer, or the answer that a solution names, with the reference."""


class Missing:
    """Stands in for a model that was not given; every request to it raises a `UsageError`.

    Args:
        what: the setting that would give it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.identity = f"no {what}"

    def refuse(self) -> NoReturn:
        """Say what is missing."""
        raise UsageError(f"this method asks a {self._what}, and none is given: set `{self._what}`")

    async def complete(self, request: Completions) -> NoReturn:
        """Refuse."""
        self.refuse()

    async def choose(self, request: ChoiceLogprobs) -> NoReturn:
        """Refuse."""
        self.refuse()

    async def score_step(self, request: ScoreRequest) -> NoReturn:
        """Refuse."""
        self.refuse()

    async def verify(self, answer: str, gold: str) -> NoReturn:
        """Refuse."""
        self.refuse()

    def release(self, problem: str, prefixes: Sequence[tuple[str, ...]]) -> None:
        """Nothing is kept."""


class BatchPolicy(ABC):
    """A policy that computes requests together; subclasses write `complete_many` and `choose_many`."""

    name: str
    """Its name in outputs."""
    identity: str
    """Its name and all else of it that shapes what it writes; part of every recorded reply's key."""
    tokens_written: int
    """Tokens written so far, as far as the machine that wrote them counts them."""

    @abstractmethod
    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> Sequence[Sequence[Completion] | InputError]:
        """The samples `first` … `first + n - 1` of each request.

        Args:
            requests: answered together.
            ready: called with a request's index and reply as soon as it is there.

        Returns:
            One entry a request, in order: its `n` texts, or the `InputError` that says why this request cannot be answered.

        Raises:
            BackendError: the model or its server failed.
        """

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> Sequence[Sequence[float] | InputError]:
        """The log-probability of each option as the next text, in order; else as `complete_many`."""
        raise UsageError(f"the policy {self.name} does not give log-probabilities of texts")

    async def complete(self, request: Completions) -> Sequence[Completion]:
        """See `Completing.complete`; computed with whatever else waits."""
        return cast("Sequence[Completion]", await batched(self.complete_many, request))

    async def choose(self, request: ChoiceLogprobs) -> Sequence[float]:
        """See `Completing.choose`; computed with whatever else waits."""
        return cast("Sequence[float]", await batched(self.choose_many, request))


async def batched(compute: Batch, request: Any, *, quick: bool = False) -> Any:
    """The reply to a request that is computed together with the others that wait for the same `compute`.

    Args:
        compute: computes a batch, in a thread of its own; never two batches at once.
        request: one request.
        quick: the work takes milliseconds, and what it gives may bring requests to others, which wait for it a little.

    Raises:
        InputError: the reply is one.
        Exception: what `compute` raised, in every task whose request was in the batch and had no reply yet.
    """
    return await _Batches.of_loop().asked(compute, request, quick)


def many(requests: Sequence[Any], ask: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """`ask` for each request, awaited together: the reply or the `InputError` of each, in order. For callers that are no coroutine."""
    together = max(len(requests), 1)
    return [
        reply for _, reply in run_tasks(requests, lambda request: replied(ask(request)), in_flight=together)
    ]


async def replied(awaited: Awaitable[Result]) -> Result | InputError:
    """The result, or the `InputError` of a request that cannot be answered."""
    try:
        return await awaited
    except InputError as error:
        return error


async def all_of(awaited: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of several, awaited together, in order. It ends when all have: the first error is raised then."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaited]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, InputError)), errors[0])
    return [task.result() for task in tasks]


@dataclass(eq=False)
class _Queue:
    """The requests that wait for one `compute`."""

    compute: Batch
    quick: bool
    waiting: list[tuple[Any, asyncio.Future[Any]]] = field(default_factory=list)
    since: float | None = None
    """When the batch began that is computed now; None where none is."""

    @property
    def model(self) -> object:
        """Whose method `compute` is: one model is asked by one thread at a time."""
        return getattr(self.compute, "__self__", self.compute)


class StoppedError(BaseException):
    """Raised in a batch, by `ready`, when the run that asked for it has ended."""


class _Batches:
    """The queues of one event loop."""

    _of: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Batches]] = WeakKeyDictionary()

    def __init__(self) -> None:
        # Weak: the loop is the key under which this stands.
        self._running = ref(asyncio.get_running_loop())
        self._queues: dict[Batch, _Queue] = {}
        self._asked = 0
        self._settling = False
        self.stopped = False
        self.background: set[asyncio.Task[Any]] = set()

    @classmethod
    def of_loop(cls) -> _Batches:
        loop = asyncio.get_running_loop()
        if loop not in cls._of:
            cls._of[loop] = cls()
        return cls._of[loop]

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._running()
        assert loop is not None
        return loop

    async def asked(self, compute: Batch, request: Any, quick: bool) -> Any:
        waits = self._queues.setdefault(compute, _Queue(compute, quick))
        future: asyncio.Future[Any] = self._loop.create_future()
        waits.waiting.append((request, future))
        self._asked += 1
        self._settle_soon()
        return await future

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """A task that is finished even if nobody waits for it any more: what it receives was paid for, and is recorded."""
        task = self._loop.create_task(work)
        self.background.add(task)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that a failure nobody waits for is not reported by the loop

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle, self._asked, _ROUNDS)

    def _settle(self, seen: int, rounds: int) -> None:
        """Start what waits, once no task sends further requests."""
        if self._asked != seen or rounds:
            rounds = rounds - 1 if self._asked == seen else _ROUNDS
            self._loop.call_soon(self._settle, self._asked, rounds)
            return
        self._settling = False
        busy = [waits.model for waits in self._queues.values() if waits.since is not None]
        able: list[_Queue] = []
        for waits in self._queues.values():
            if waits.waiting and not any(waits.model is model for model in busy):
                able.append(waits)
                busy.append(waits.model)
        quick = [waits for waits in able if waits.quick]
        began = [waits.since for waits in self._queues.values() if waits.quick and waits.since is not None]
        if able and not quick and began and (left := max(began) + _PATIENCE - time.monotonic()) > 0:
            self._loop.call_later(left, self._settle_soon)
            return
        for waits in quick or able:
            self._start(waits, half=len(able) == 1 and self._another_idle(waits))

    def _another_idle(self, waits: _Queue) -> bool:
        """Whether every task waits for this model while another one, asked before, has nothing to do.

        Half of them are then computed first: from there on one model works for one half while the other works for the other.
        """
        return not waits.quick and any(
            other.model is not waits.model and not other.quick and other.since is None and not other.waiting
            for other in self._queues.values()
        )

    def _start(self, waits: _Queue, *, half: bool) -> None:
        batch = [(request, future) for request, future in waits.waiting if not future.done()]
        if not batch:
            waits.waiting = []
            return
        count = (len(batch) + 1) // 2 if half and len(batch) >= _HALVED else len(batch)
        batch, waits.waiting = batch[:count], batch[count:]
        waits.since = time.monotonic()
        # No daemon: native code whose thread Python ends in the middle aborts the process.
        threading.Thread(target=self._compute, args=(waits, batch), name=BATCH_THREAD).start()

    def _compute(self, waits: _Queue, batch: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        """In the thread of a model."""
        early: deque[tuple[asyncio.Future[Any], Any]] = deque()

        def ready(place: int, reply: Any) -> None:
            if self.stopped or self._loop.is_closed():
                raise StoppedError
            early.append((batch[place][1], reply))
            if len(early) == 1:  # a call to the loop costs more than most scripted replies
                self._loop.call_soon_threadsafe(resolve_early)

        def resolve_early() -> None:
            while early:
                _resolve(*early.popleft())

        outcome: Sequence[Any] | BaseException
        try:
            outcome = waits.compute([request for request, _ in batch], ready)
            if len(outcome) != len(batch):
                outcome = BackendError(
                    f"{amount(len(outcome), 'reply', 'replies')} came to {amount(len(batch), 'request')}"
                )
        except Exception as error:
            outcome = error
        except StoppedError as error:
            outcome = error
        except BaseException as error:  # of those that end an event loop, such as SystemExit
            outcome = BackendError(f"a model raised {type(error).__name__}: {error}")
            outcome.__cause__ = error
        loop = self._running()
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, waits, batch, outcome)

    def _finish(
        self,
        waits: _Queue,
        batch: Sequence[tuple[Any, asyncio.Future[Any]]],
        outcome: Sequence[Any] | BaseException,
    ) -> None:
        waits.since = None
        for place, (_, future) in enumerate(batch):
            _resolve(future, outcome if isinstance(outcome, BaseException) else outcome[place])
        self._settle_soon()

    async def drained(self, *, stop: bool, done: bool = False) -> None:
        """Wait until what is computed now has ended and is recorded; with `stop` it ends as soon as it can, or is left alone."""
        self.stopped = stop
        until = time.monotonic() + _STOPPING if stop else math.inf
        for waits in self._queues.values():
            if not done and not waits.quick:  # what was computed is recorded before the end
                for _, future in waits.waiting:
                    future.cancel()
                waits.waiting = []
        while (
            self.background or any(waits.since for waits in self._queues.values())
        ) and time.monotonic() < until:
            await asyncio.sleep(0.002)


def _resolve(future: asyncio.Future[Any], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, StoppedError):
        future.cancel()
    elif isinstance(reply, BaseException):
        future.set_exception(reply)
    else:
        future.set_result(reply)


def spawn(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """A task of the running loop that is finished and recorded even if nobody waits for it any more."""
    return _Batches.of_loop().spawn(work)


@dataclass(eq=False)
class _Run(Generic[Item, Result]):
    """Tasks in an event loop of their own, in a thread of its own: a caller may itself be in an event loop, as in a notebook."""

    work: Callable[[Item], Awaitable[Result]]
    in_flight: int

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.failed = self.abandoned = self.ending = False
        self.live: set[asyncio.Task[Any]] = set()
        self._gate = asyncio.Semaphore(self.in_flight)
        self._thread = threading.Thread(target=self._loop_forever, name="stepmark-tasks", daemon=True)
        self._thread.start()

    def _loop_forever(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, items: Sequence[Item]) -> list[queue.SimpleQueue[Any]]:
        """Start a task for each item, all in one turn of the loop; the outcome of each comes into its queue."""
        boxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in items]

        def start() -> None:
            for item, box in zip(items, boxes, strict=True):
                task = self.loop.create_task(self._one(item, box))
                self.live.add(task)
                task.add_done_callback(self.live.discard)

        self.loop.call_soon_threadsafe(start)
        return boxes

    async def _one(self, item: Item, box: queue.SimpleQueue[Any]) -> None:
        async with self._gate:
            if self.failed:
                return
            try:
                box.put((await self.work(item), None))
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    if self.ending:
                        raise
                    error = BackendError(
                        "a task was cancelled from within; what it awaited had been cancelled"
                    )
                # Those that have begun go to their end; no other begins.
                self.failed = True
                box.put((None, error))

    def end(self, *, stop: bool, done: bool) -> None:
        """End the tasks, wait for what is computed now (`done`: and for all that was asked, such as to let go of prefixes), close the loop."""
        asyncio.run_coroutine_threadsafe(self._ended(stop, done), self.loop).result()
        self.abandon()
        self._thread.join()
        self.loop.close()

    async def _ended(self, stop: bool, done: bool) -> None:
        self.ending = True
        for task in self.live:
            task.cancel()
        await _Batches.of_loop().drained(stop=stop, done=done)
        await asyncio.gather(*self.live, return_exceptions=True)

    def abandon(self) -> None:
        """End the loop without waiting for anything."""
        self.abandoned = True
        self.loop.call_soon_threadsafe(self.loop.stop)


def run_tasks(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], *, in_flight: int = 64
) -> Generator[tuple[Item, Result], None, None]:
    """Run a coroutine for each item, `in_flight` at once; give each item with its result, in the order of the items.

    Args:
        items: read as needed; may be endless.
        work: what is done for an item. A task that should not cost the others catches its own error and returns it.
        in_flight: tasks that run at once. Four times as many items may be read ahead.

    Raises:
        UsageError: `in_flight` is less than 1.
        Exception: what the first task raises, in the order of the items, after those before it were given. When a task fails, no other begins, and
            what is computed then is waited for, so that what was paid for is recorded.
    """
    if in_flight < 1:
        raise UsageError(f"in_flight must be at least 1, found {in_flight}")
    return _results(iter(items), work, in_flight)


def _results(
    source: Iterator[Item], work: Callable[[Item], Awaitable[Result]], in_flight: int
) -> Generator[tuple[Item, Result], None, None]:
    waiting: deque[tuple[Item, queue.SimpleQueue[Any]]] = deque()
    run, stop, done = _Run(work, in_flight), True, False
    unread: Exception | None = None
    try:
        while True:
            more: list[Item] = []
            try:
                if unread is None:
                    more.extend(islice(source, _AHEAD * in_flight - len(waiting)))
            except Exception as error:  # raised where it stands, after the results before it
                unread = error
            waiting.extend(zip(more, run.submit(more), strict=True))
            if not waiting:
                if unread is not None:
                    raise unread
                stop, done = False, True
                return
            item, box = waiting.popleft()
            result, failure = box.get()
            if failure is not None:
                stop = False
                raise failure
            yield item, result
    except KeyboardInterrupt:
        run.abandon()
        raise
    finally:
        if not run.abandoned:
            run.end(stop=stop, done=done)


class BatchScorer:
    """Steps scored in batches: what a search asks of a session of a PRM.

    Args:
        identity: of the PRM.
        score: the scores of requests, computed together.
        release: what is called with `Release` requests, between batches of scores.
    """

    def __init__(self, identity: str, score: Batch, release: Batch | None = None) -> None:
        self.identity = identity
        self._score, self._release = score, release

    async def score_step(self, request: ScoreRequest) -> StepScore:
        """See `StepScoring.score_step`."""
        return cast("StepScore", await batched(self._together, request))

    def release(self, problem: str, prefixes: Sequence[tuple[str, ...]]) -> None:
        """See `StepScoring.release`."""
        if self._release is not None and prefixes:
            spawn(batched(self._together, Release(problem=problem, prefixes=tuple(prefixes))))

    def _together(self, requests: Sequence[ScoreRequest | Release], ready: Ready) -> Sequence[Any]:
        places = [place for place, request in enumerate(requests) if isinstance(request, ScoreRequest)]
        replies: list[Any] = [None] * len(requests)
        if places:
            scored = self._score([requests[place] for place in places], lambda i, r: ready(places[i], r))
            if len(scored) != len(places):
                raise BackendError(
                    f"{self.identity} gave {amount(len(scored), 'score')} to {amount(len(places), 'prefix', 'prefixes')}"
                )
            for place, reply in zip(places, scored, strict=True):
                replies[place] = reply
        released = [request for request in requests if isinstance(request, Release)]
        if released and self._release is not None:
            self._release(released, lambda place, reply: None)
        return replies


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Prefixes of a problem that will not be continued."""

    problem: str
    """The problem's text."""
    prefixes: tuple[tuple[str, ...], ...]
    """Each one's steps."""
