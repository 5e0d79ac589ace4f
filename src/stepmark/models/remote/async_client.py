"""A client of `stepmark serve` for asyncio: `Client`, with `await`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from types import TracebackType
from typing import final

import httpx

from stepmark.batching import Graded
from stepmark.errors import InputError
from stepmark.models.policies.transport import Patience
from stepmark.models.prm import Ledger
from stepmark.models.remote.answers import Ranked, ServedModel
from stepmark.models.remote.calls import Question, Settings, calls_of, prefixes_of, questions_of
from stepmark.models.remote.exchange import PATIENT, Exchange, Result, Wait, closed, headers, request_of
from stepmark.models.remote.growing import Growing
from stepmark.models.remote.portions import batches
from stepmark.records import Refusal, ScoredSolution, Solution, Steps


@final
class AsyncClient:
    """Talks to a score server (`stepmark serve`) from asyncio: `Client` with `await`, in which everything is explained.

    Close it: `async with`, or `await client.close()`. To have several requests on their way, use `asyncio.gather`; the server computes
    them together.

    Args:
        address: `http://host:port`.
        model: the name of one of its PRMs; None where it serves one.
        patience: attempts and waits.
        batch: solutions in a request, at most.
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
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls_of(address, model, patience=patience, batch=batch, rng=rng, clock=clock)
        self._sleep = sleep
        self._headers, self._transport = headers(), transport
        self._http = httpx.AsyncClient(headers=self._headers, transport=transport)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """Of the server."""
        return self._calls.rules.address

    @property
    def ledger(self) -> Ledger:
        """See `Client.ledger`."""
        return self._calls.ledger

    async def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served; see `Client.models`."""
        return (await self.run(self._calls.listing())).prms

    async def model(self) -> ServedModel:
        """The PRM that this client talks to; see `Client.model`."""
        return await self.run(self._calls.served())

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
        [result] = await self.run(self._calls.score([Question.of(problem, steps, split=split)], settings))
        if isinstance(result, Refusal):
            raise result.error
        return result

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
        questions = (Question(solution=solution) for solution in solutions)
        for part in batches(questions, lambda question: question.characters, self._calls.limits):
            for result in await self.run(self._calls.score(part, settings)):
                if isinstance(result, Refusal) and not keep_going:
                    raise result.error
                yield result

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
        """Put candidate solutions of one problem in order; see `Client.rank`."""
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        return await self.run(self._calls.rank(questions_of(problem, candidates, split), settings))

    def session(self, problem: str) -> AsyncSession:
        """A session for prefixes of one problem; to be used in an `async with` block. See `Client.session`."""
        return AsyncSession(self, Growing(self._calls, problem))

    async def close(self) -> None:
        """Close the connections. Leaving an `async with` block does it too."""
        await self._http.aclose()

    @property
    def is_closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._http.is_closed

    def _reached(self) -> httpx.AsyncClient:
        if self.is_closed:
            raise closed(self.address)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections are of the loop that opened them, and end with it.
            if self._loop is not None:
                self._http = httpx.AsyncClient(headers=self._headers, transport=self._transport)
            self._loop = loop
        return self._http

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, exchange: Exchange[Result]) -> Result:
        """Carry an exchange out.

        Raises:
            UsageError: the client is closed.
        """
        heard: httpx.Response | httpx.RequestError | None = None
        with closing(exchange):
            while True:
                try:
                    asked = exchange.send(heard)
                except StopIteration as done:
                    result: Result = done.value
                    return result
                if isinstance(asked, Wait):
                    await self._sleep(asked.seconds)
                    heard = None
                    continue
                try:
                    http = self._reached()
                    heard = await http.send(request_of(http, asked))
                except httpx.RequestError as error:
                    heard = error


@final
class AsyncSession:
    """Prefixes of one problem; made by `AsyncClient.session`. See `Session`. Tasks that share one wait for each other; it may be used in one event
    loop after the other."""

    def __init__(self, client: AsyncClient, growing: Growing) -> None:
        self._client, self._growing = client, growing
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

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
        loop = asyncio.get_running_loop()
        if (
            self._loop is not loop
        ):  # a lock for which some have waited is that loop's for ever, and may never be given back
            self._lock, self._loop = asyncio.Lock(), loop
        return self._lock

    async def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[Graded | InputError]:
        """The score of the last step of each prefix; see `Session.extend`."""
        asked = prefixes_of(prefixes)
        async with self._turn:
            return await self._client.run(self._growing.extend(asked, timeout=timeout))

    async def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Say that prefixes will not be continued; see `Session.release`."""
        gone = prefixes_of(prefixes)
        async with self._turn:
            await self._client.run(self._growing.release(gone))

    async def close(self) -> None:
        """End the session. Leaving an `async with` block does it too; see `Session.close`."""
        async with self._turn:
            if not self._client.is_closed:
                await self._client.run(self._growing.close())

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
