"""The clients of `stepmark serve`: `Client` waits for its answers, `AsyncClient` awaits them. Both carry out the exchanges of `calls` and `growing`."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import final

import httpx

from stepmark.batching import Graded
from stepmark.errors import InputError
from stepmark.models.http import AsyncConnection, Connection, EventLoop, Patience, PerProcess, key_variable
from stepmark.models.prm import Ledger
from stepmark.models.remote.calls import Calls, Listing, Question, Ranked, ServedModel, Settings, batches
from stepmark.models.remote.growing import Growing, prefixes_of
from stepmark.records import Refusal, ScoredSolution, Solution, Steps

PATIENT = Patience()
"""The default of clients."""


class _Client:
    """What both clients have."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @property
    def address(self) -> str:
        """Of the server."""
        return self._calls.server.address

    @property
    def ledger(self) -> Ledger:
        """What was scored for this client. `tokens_computed` are those that the server was given to read: it does not say which of them it had read
        before. `tokens_again` are those of sessions that it had lost."""
        return self._calls.ledger

    def _parts(self, solutions: Iterable[Solution]) -> Iterator[list[Question]]:
        questions = (Question(solution=solution) for solution in solutions)
        return batches(questions, lambda question: question.characters, self._calls.limits)


@final
class Client(_Client):
    """Talks to a score server (`stepmark serve`).

    The key in the environment variable `STEPMARK_API_KEY` is sent, if there is one. Failures are retried after growing pauses; a server that is busy,
    loading or restarting is waited for as it asks (`Retry-After`). Safe for several threads, and for forked processes, which open connections of
    their own.

    Args:
        address: `http://host:port`.
        model: the name of one of its PRMs; None where it serves one.
        patience: attempts and waits.
        batch: solutions in a request, at most; a server that takes fewer is given fewer.
        transport: what sends requests; None for the network.
        sleep: waits some seconds.
        rng: draws the jitter of the waits.
        clock: seconds, from any origin.

    Raises:
        UsageError: no such address, or a batch without a solution.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        patience: Patience = PATIENT,
        batch: int = 64,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Calls(address, model, patience=patience, batch=batch, rng=rng, clock=clock))
        self._connection = Connection(key_variable(), transport=transport, sleep=sleep)
        self._run = self._connection.run

    def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served.

        Raises:
            BackendError: no answer, or not a stepmark server's.
        """
        return self.listing().prms

    def listing(self) -> Listing:
        """The PRMs that are served, and the names of other models."""
        return self._run(self._calls.listing())

    def model(self) -> ServedModel:
        """The PRM that this client talks to; asked for once.

        Raises:
            UsageError: none of that name, or several and none is named.
            BackendError: as `models`.
        """
        return self._run(self._calls.served())

    def score(
        self,
        problem: str,
        steps: Steps | str,
        *,
        split: str | None = None,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str | None = None,
        timeout: float | None = None,
    ) -> ScoredSolution:
        """Score one solution.

        Args:
            problem: its text.
            steps: a text each; or the whole solution as one text, which the server splits.
            split: how it is split ("line", …); None leaves it to the server.
            aggregate: how step scores make one number; None for the PRM's own.
            threshold: a step under it is an error; None for the PRM's own.
            checks: exact checks beside the PRM: "all", "none", "auto", or names with commas between them; None for the server's.
            timeout: seconds, all attempts and waits together; the server drops what it cannot compute in time. None: no limit but
                patience.

        Raises:
            InputError: the PRM cannot read it.
            UsageError: a setting that the server declines.
            BackendError: the server failed, gave no answer in time, or answered nonsense.
        """
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        return _unrefused(*self._run(self._calls.score([Question.of(problem, steps, split=split)], settings)))

    def score_many(
        self,
        solutions: Iterable[Solution],
        *,
        keep_going: bool = False,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[ScoredSolution | Refusal]:
        """Score a stream of solutions in requests of bounded size: one result each, in order, as they come.

        Consecutive solutions of one problem share the computation of what they have in common.

        Args:
            solutions: read as needed; may be endless.
            keep_going: yield a `Refusal` for one that cannot be scored instead of raising.
            aggregate: as for `score`.
            threshold: as for `score`.
            checks: as for `score`.
            timeout: as for `score`, of each request.

        Raises:
            InputError: as `score`, unless `keep_going`.
            UsageError: as `score`.
            BackendError: as `score`. What was yielded before stays valid.
        """
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        for part in self._parts(solutions):
            for result in self._run(self._calls.score(part, settings)):
                yield result if keep_going else _unrefused(result)

    def rank(
        self,
        problem: str,
        candidates: Sequence[Steps | str],
        *,
        split: str | None = None,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str | None = None,
        timeout: float | None = None,
    ) -> list[Ranked]:
        """Rank candidate solutions of one problem, the best first; those that cannot be scored come last.

        Args:
            problem: its text.
            candidates: each one's steps, or its text, which the server splits.
            split: how texts are split.
            aggregate: as for `score`.
            threshold: as for `score`.
            checks: as for `score`.
            timeout: as for `score`.

        Raises:
            InputError: a text with half of a surrogate pair.
            UsageError: as `score`; also for more candidates than one request takes.
            BackendError: as `score`.
        """
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        return self._run(self._calls.rank(problem, candidates, split, settings))

    def session(self, problem: str) -> Session:
        """A session for prefixes of one problem that grow step by step; to be used in a `with` block."""
        return Session(self._connection, problem, self._calls)

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too, and so does the end of the last reference."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unrefused(result: ScoredSolution | Refusal) -> ScoredSolution:
    if isinstance(result, Refusal):
        raise result.error
    return result


@final
class Session:
    """Prefixes of one problem on a server that holds their state. Made by `Client.session`.

    A prefix is named by its steps. Of each, only the last step is sent; the server reads nothing twice. A session that the server has lost (it was
    idle for too long, the server was restarted) is opened anew, and what is needed of it is read once more; `Client.ledger.tokens_again` counts that.
    Threads that share a session wait for each other; a forked process begins one of its own.
    """

    def __init__(self, connection: Connection, problem: str, calls: Calls) -> None:
        self._connection, self.problem = connection, problem
        self._own = PerProcess(lambda: (threading.Lock(), Growing(calls, problem)))

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return self._own.here[1].held

    def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[Graded | InputError]:
        """The score of the last step of each prefix, all together; one result each, in order.

        Args:
            prefixes: each one's steps, at least one; what was asked before is not sent again.
            timeout: as for `Client.score`, of each request.

        Returns:
            A `Graded`, or the `InputError` that says why the PRM cannot read that prefix.

        Raises:
            UsageError: a prefix without steps.
            BackendError: as `Client.score`; or the server has no room for these prefixes.
        """
        asked = prefixes_of(prefixes)
        lock, growing = self._own.here
        with lock:
            return self._connection.run(growing.extend(asked, timeout=timeout))

    def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Release prefixes that will not be continued. Unknown ones are ignored."""
        gone = prefixes_of(prefixes)
        lock, growing = self._own.here
        with lock:
            self._connection.run(growing.release(gone))

    def close(self) -> None:
        """End the session. Leaving a `with` block does it too. That of a closed client ends by itself (`--session-idle`)."""
        lock, growing = self._own.here
        with lock:
            if not self._connection.closed:
                self._connection.run(growing.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class AsyncClient(_Client):
    """Talks to a score server (`stepmark serve`) from asyncio: `Client` with `await`, whose documentation holds here.

    Close it: `async with`, or `await client.close()`. `asyncio.gather` sends several requests at once; the server computes them together.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        patience: Patience = PATIENT,
        batch: int = 64,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Calls(address, model, patience=patience, batch=batch, rng=rng, clock=clock))
        self._connection = AsyncConnection(key_variable(), transport=transport, sleep=sleep)
        self._run = self._connection.run

    async def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served."""
        return (await self._run(self._calls.listing())).prms

    async def model(self) -> ServedModel:
        """The PRM that this client talks to."""
        return await self._run(self._calls.served())

    async def score(
        self,
        problem: str,
        steps: Steps | str,
        *,
        split: str | None = None,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str | None = None,
        timeout: float | None = None,
    ) -> ScoredSolution:
        """Score one solution; see `Client.score`."""
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        return _unrefused(
            *await self._run(self._calls.score([Question.of(problem, steps, split=split)], settings))
        )

    async def score_many(
        self,
        solutions: Iterable[Solution],
        *,
        keep_going: bool = False,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[ScoredSolution | Refusal]:
        """Score a stream of solutions, in order; see `Client.score_many`."""
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        for part in self._parts(solutions):
            for result in await self._run(self._calls.score(part, settings)):
                yield result if keep_going else _unrefused(result)

    async def rank(
        self,
        problem: str,
        candidates: Sequence[Steps | str],
        *,
        split: str | None = None,
        aggregate: str | None = None,
        threshold: float | None = None,
        checks: str | None = None,
        timeout: float | None = None,
    ) -> list[Ranked]:
        """Rank candidate solutions of one problem; see `Client.rank`."""
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        return await self._run(self._calls.rank(problem, candidates, split, settings))

    def session(self, problem: str) -> AsyncSession:
        """A session for prefixes of one problem; to be used in an `async with` block. See `Client.session`."""
        return AsyncSession(self._connection, Growing(self._calls, problem))

    async def close(self) -> None:
        """Close the connections. Leaving an `async with` block does it too."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@final
class AsyncSession:
    """Prefixes of one problem; made by `AsyncClient.session`. See `Session`. Tasks that share one wait for each other."""

    def __init__(self, connection: AsyncConnection, growing: Growing) -> None:
        self._connection, self._growing = connection, growing
        self._lock, self._loop = asyncio.Lock(), EventLoop()

    @property
    def problem(self) -> str:
        """Its text."""
        return self._growing.problem

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return self._growing.held

    @property
    def _turn(self) -> asyncio.Lock:
        if self._loop.changed():  # a lock belongs to the loop in which tasks waited for it
            self._lock = asyncio.Lock()
        return self._lock

    async def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[Graded | InputError]:
        """The score of the last step of each prefix; see `Session.extend`."""
        asked = prefixes_of(prefixes)
        async with self._turn:
            return await self._connection.run(self._growing.extend(asked, timeout=timeout))

    async def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Release prefixes; see `Session.release`."""
        gone = prefixes_of(prefixes)
        async with self._turn:
            await self._connection.run(self._growing.release(gone))

    async def close(self) -> None:
        """End the session; see `Session.close`."""
        async with self._turn:
            if not self._connection.closed:
                await self._connection.run(self._growing.close())

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
