"""A client of `stepmark serve` that waits for its answers."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import final

import httpx

from stepmark.batching import Graded
from stepmark.errors import InputError
from stepmark.models.policies.transport import Patience
from stepmark.models.prm import Ledger
from stepmark.models.remote.answers import Listing, Ranked, ServedModel
from stepmark.models.remote.calls import Question, Settings, calls_of, prefixes_of, questions_of
from stepmark.models.remote.exchange import PATIENT, Exchange, Result, Wait, closed, headers, request_of
from stepmark.models.remote.growing import Growing
from stepmark.models.remote.portions import batches
from stepmark.models.remote.processes import PerProcess
from stepmark.records import Refusal, ScoredSolution, Solution, Steps


@final
class Client:
    """Talks to a score server (`stepmark serve`).

    The key in the environment variable `STEPMARK_API_KEY` is sent, if there is one. What fails is tried again, after growing pauses;
    a server that is busy, loading or restarting is waited for as it asks (`Retry-After`). May be used from several threads, and goes on
    in a process that is forked, over connections of its own.

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
        self._calls = calls_of(address, model, patience=patience, batch=batch, rng=rng, clock=clock)
        self._sleep = sleep
        self._connections = _Connections(headers(), transport)
        # For those who drop it without closing it: a command line, a notebook.
        self._finalizer = weakref.finalize(self, self._connections.close)

    @property
    def address(self) -> str:
        """Of the server."""
        return self._calls.rules.address

    @property
    def ledger(self) -> Ledger:
        """What was scored for this client so far. `tokens_computed` are those that the server was given to read: it does not say which of
        them it had read before. `tokens_again` are those of sessions that it had forgotten."""
        return self._calls.ledger

    def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served.

        Raises:
            BackendError: no answer, or no stepmark server's.
        """
        return self.run(self._calls.listing()).prms

    def listing(self) -> Listing:
        """The PRMs that are served, and the names of other models."""
        return self.run(self._calls.listing())

    def model(self) -> ServedModel:
        """The PRM that this client talks to; asked for once.

        Raises:
            UsageError: none of that name, or several and none is named.
            BackendError: as `models`.
        """
        return self.run(self._calls.served())

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
            steps: a text each; or the whole solution as one text, which the server cuts.
            split: how it is cut ("line", …); None leaves it to the server.
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
        [result] = self.run(self._calls.score([Question.of(problem, steps, split=split)], settings))
        if isinstance(result, Refusal):
            raise result.error
        return result

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

        Solutions of one problem that stand together share the computation of what they have in common.

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
            BackendError: as `score`. What was given before stays good.
        """
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        questions = (Question(solution=solution) for solution in solutions)
        for part in batches(questions, lambda question: question.characters, self._calls.limits):
            for result in self.run(self._calls.score(part, settings)):
                if isinstance(result, Refusal) and not keep_going:
                    raise result.error
                yield result

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
        """Put candidate solutions of one problem in order, the best first; those that cannot be scored come last.

        Args:
            problem: its text.
            candidates: each one's steps, or its text, which the server cuts.
            split: how texts are cut.
            aggregate: as for `score`.
            threshold: as for `score`.
            checks: as for `score`.
            timeout: as for `score`.

        Raises:
            InputError: a text that cannot travel: half of a surrogate pair in it.
            UsageError: as `score`; also for more candidates than one request takes.
            BackendError: as `score`.
        """
        settings = Settings(aggregate=aggregate, threshold=threshold, checks=checks, timeout=timeout)
        return self.run(self._calls.rank(questions_of(problem, candidates, split), settings))

    def session(self, problem: str) -> Session:
        """A session for prefixes of one problem that grow step by step; to be used in a `with` block."""
        return Session(self, problem, lambda: Growing(self._calls, problem))

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too, and so does the end of the last reference."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._connections.closed

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, exchange: Exchange[Result]) -> Result:
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
                    self._sleep(asked.seconds)
                    heard = None
                    continue
                if self.is_closed:
                    raise closed(self.address)
                http = self._connections.here
                try:
                    heard = http.send(request_of(http, asked))
                except httpx.RequestError as error:
                    heard = error


@final
class _Connections:
    """Of one client, in each process its own: of a connection that a fork has shared, each process would read the other's answers."""

    def __init__(self, headers: Mapping[str, str], transport: httpx.BaseTransport | None) -> None:
        self._pools = PerProcess(lambda: httpx.Client(headers=headers, transport=transport))
        self.closed = False

    @property
    def here(self) -> httpx.Client:
        return self._pools.here

    def close(self) -> None:
        """Close this process's. Another one's stay as they are: to close them here could end them there too."""
        self.closed = True
        if (pool := self._pools.made) is not None:
            pool.close()


@final
class Session:
    """Prefixes of one problem on a server that keeps what it has read of them. Made by `Client.session`.

    A prefix is named by its steps. Of each, only the last step is sent; the server reads that step and nothing twice. A session
    that the server has forgotten (it was idle for too long, the server was restarted) is opened anew, what is needed of it is read
    once more, and `Client.ledger.tokens_again` counts that. Threads that share a session wait for each other. In a process that is forked
    it begins anew, and the other one keeps its own.
    """

    def __init__(self, client: Client, problem: str, grow: Callable[[], Growing]) -> None:
        self._client, self._problem = client, problem
        self._own = PerProcess(lambda: (threading.Lock(), grow()))

    @property
    def problem(self) -> str:
        """Its text."""
        return self._problem

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return self._own.here[1].held

    def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[Graded | InputError]:
        """The score of the last step of each prefix, all together; one result each, in order.

        Args:
            prefixes: each one's steps, at least one; nothing of a rest that was asked before is sent again.
            timeout: as for `Client.score`, of each request.

        Returns:
            A `Graded`, or the `InputError` that says why the PRM cannot read that prefix.

        Raises:
            UsageError: a prefix without steps.
            BackendError: as `Client.score`.
        """
        asked = prefixes_of(prefixes)
        turn, growing = self._own.here
        with turn:
            return self._client.run(growing.extend(asked, timeout=timeout))

    def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Say that prefixes will not be continued: what only they keep may go. Those that are not held are passed over."""
        gone = prefixes_of(prefixes)
        turn, growing = self._own.here
        with turn:
            self._client.run(growing.release(gone))

    def close(self) -> None:
        """End the session. Leaving a `with` block does it too. That of a client that is closed ends by itself (`--session-idle`)."""
        turn, growing = self._own.here
        with turn:
            if not self._client.is_closed:
                self._client.run(growing.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
