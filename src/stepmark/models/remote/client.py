"""The clients of `stepmark serve`: `Client` waits for its answers, `AsyncClient` awaits them. Both carry out the exchanges of `calls` and `_Growing`."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack, final

import httpx

from stepmark.batching import Graded
from stepmark.errors import BackendError, InputError, StepmarkError, UsageError
from stepmark.metrics.aggregate import check_score
from stepmark.models.http import (
    AsyncConnection,
    Connection,
    DeclinedError,
    Exchange,
    Patience,
    Verb,
    key_variable,
)
from stepmark.models.prm import Ledger
from stepmark.models.remote.calls import (
    Calls,
    Listing,
    Question,
    Ranked,
    Scoring,
    ServedModel,
    complaint,
    nonsense,
    read_error,
    unrefused,
    utf8,
)
from stepmark.models.remote.wire import SessionAnswer, SessionFullError, StepsAnswer
from stepmark.records import Refusal, ScoredSolution, ScoreKind, Solution, Steps

Value = TypeVar("Value")
Prefix = tuple[str, ...]
Node = tuple[int, Graded]
"""A node of a session and its score."""

PATIENT = Patience()
"""The default of clients."""
_REOPENED = 3
"""Times that a session may be lost without progress before the server is given up."""

# Sessions.


class _LostError(Exception):
    """The session, or a node of it, is gone; or it has no room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """A prefix that the session has."""

    number: int
    graded: Graded
    length: int
    """Tokens of the prefix, as far as the server counts them."""


class _Growing:
    """The exchanges of one session, and the nodes that it has.

    A prefix is sent once: its last step, after the node of the rest. A prefix whose rest has no node (released, or never sent) is built up from
    the longest beginning that has one. A session that the server has lost, or that is full of what was released, is opened anew, and what is
    needed of it is read once more; `Ledger.tokens_again` counts that.
    """

    def __init__(self, calls: Calls, problem: str) -> None:
        self._calls, self.problem = calls, problem
        self._id: str | None = None
        self._nodes: dict[Prefix, _Held] = {}
        self._read_before: set[Prefix] = set()
        """Prefixes that were read in a session that is gone; () is the problem."""
        self.held: set[Prefix] = set()
        """Prefixes that were asked for and not released."""

    def extend(
        self, prefixes: Sequence[Prefix], timeout: float | None
    ) -> Exchange[list[Graded | InputError]]:
        model = yield from self._calls.model()
        done: dict[Prefix, Graded | InputError] = {}
        losses, narrow = 0, False
        while missing := [prefix for prefix in prefixes if prefix not in done]:
            before = len(done)
            try:
                # After a loss one prefix at a time, so that a small session has room for it.
                yield from self._round(missing[:1] if narrow else missing, done, model, timeout)
            except _LostError:
                losses, narrow = losses + 1 if len(done) == before else 0, True
                if losses > _REOPENED:
                    raise BackendError(
                        f"{self._calls.server.address}: the session was lost or full {losses} times within one call; does the server forget "
                        "sessions sooner (`session_idle`) than it answers, or hold fewer steps than these prefixes have (`session_nodes`, "
                        "`session_memory_mb`)?"
                    ) from None
                yield from self._end()
        self.held.update(prefix for prefix in prefixes if isinstance(done[prefix], Graded))
        return [done[prefix] for prefix in prefixes]

    def release(self, prefixes: Sequence[Prefix]) -> Exchange[None]:
        self.held.difference_update(prefixes)
        nodes = [self._nodes.pop(prefix).number for prefix in prefixes if prefix in self._nodes]
        if not self.held:
            yield from self.close()
        elif nodes and self._id is not None:
            yield from self._quietly("POST", "/release", {"nodes": nodes})

    def close(self) -> Exchange[None]:
        self.held.clear()
        yield from self._end()

    def _end(self) -> Exchange[None]:
        if self._id is not None:
            yield from self._quietly("DELETE", "", None)
        if self._nodes:
            self._read_before.update(self._nodes, [()])
        self._nodes.clear()
        self._id = None

    def _quietly(self, verb: Verb, path: str, body: dict[str, Any] | None) -> Exchange[None]:
        with suppress(DeclinedError, StepmarkError):  # the server forgets it by itself
            address = f"/v1/sessions/{self._id}{path}"
            yield from self._calls.server.ask(verb, address, body, lambda data: None, once=True)

    def _round(
        self,
        prefixes: Sequence[Prefix],
        done: dict[Prefix, Graded | InputError],
        model: ServedModel,
        timeout: float | None,
    ) -> Exchange[None]:
        """Send the first step that is missing of each prefix."""
        missing: dict[Prefix, None] = {}
        for prefix in prefixes:
            if prefix in self._nodes:
                done[prefix] = self._nodes[prefix].graded
                continue
            known = next((end for end in range(len(prefix) - 1, 0, -1) if prefix[:end] in self._nodes), 0)
            part = prefix[: known + 1]
            try:
                if isinstance(before := done.get(part), InputError):
                    raise before  # what begins unreadably is unreadable
                utf8(part[-1], f"steps[{known}]")
            except InputError as error:
                done[part] = done[prefix] = error
            else:
                missing[part] = None
        if missing and self._id is None:
            try:
                self._id = yield from self._open()
            except InputError as error:  # about the problem, and so about all
                done.update(dict.fromkeys(prefixes, error))
                return
        for part_of in self._calls.parts(missing):
            results = yield from self._send(part_of, model, timeout)
            for prefix, result in zip(part_of, results, strict=True):
                if isinstance(result, SessionFullError):
                    continue
                if isinstance(result, InputError):
                    # As in this process: the field is the step's in its prefix, and not in what was sent.
                    done[prefix] = type(result)(result.message, field=f"steps[{len(prefix) - 1}]")
                    continue
                self._enter(prefix, result, incremental=model.sessions)
                if prefix in prefixes:
                    done[prefix] = result[1]
            if any(isinstance(result, SessionFullError) for result in results):
                raise _LostError

    def _open(self) -> Exchange[str]:
        model = {} if self._calls.name is None else {"model": self._calls.name}
        body = {"problem": utf8(self.problem, "problem"), **model}
        try:
            return (yield from self._calls.ask("/v1/sessions", body, SessionAnswer, lambda answer: answer.id))
        except DeclinedError as declined:
            if declined.status == 400 and declined.field == "problem":
                raise InputError(declined.message, field="problem") from None
            raise complaint(declined) from None

    def _send(
        self, prefixes: Sequence[Prefix], model: ServedModel, timeout: float | None
    ) -> Exchange[list[Node | InputError]]:
        path = f"/v1/sessions/{self._id}/steps"

        def send(part: Sequence[Prefix]) -> Exchange[list[Node | InputError]]:
            after = [self._nodes[prefix[:-1]].number if len(prefix) > 1 else None for prefix in part]
            steps = [{"after": node, "text": p[-1]} for node, p in zip(after, part, strict=True)]

            def read(answer: StepsAnswer) -> list[Node | InputError]:
                return _stepped(answer, len(part), model.score_kind)

            try:
                body = {"steps": steps}
                results = yield from self._calls.ask(path, body, StepsAnswer, read, timeout=timeout)
            except DeclinedError as declined:
                if declined.status == 404:
                    raise _LostError from None
                raise
            # Only nodes of its own are named; if one is not there, the session has been somewhere else.
            if any(isinstance(item, InputError) and (item.field or "").endswith("after") for item in results):
                raise _LostError
            return results

        return (yield from self._calls.send_in_parts(prefixes, "steps", send))

    def _enter(self, prefix: Prefix, node: Node, *, incremental: bool) -> None:
        number, graded = node
        tokens, root = graded.tokens or 0, graded.root or 0
        above = self._nodes[prefix[:-1]].length if len(prefix) > 1 else root
        length = above + tokens if incremental else tokens
        again = tokens if prefix in self._read_before else 0
        if incremental and not self._nodes:  # the problem is read with the first step
            tokens += root
            again += root if () in self._read_before else 0
        self._nodes[prefix] = _Held(number=number, graded=graded, length=length)
        new = int(prefix not in self._read_before)
        self._calls.count(steps=new, tokens_in=length, tokens_computed=tokens, tokens_again=again)
        self._read_before.discard(prefix)


def _stepped(answer: StepsAnswer, count: int, kind: ScoreKind) -> list[Node | InputError]:
    """One node with its score a step, in order."""
    if len(answer.results) != count:
        raise nonsense("results", f"{count} entries", f"{len(answer.results)} entries")
    nodes: list[Node | InputError] = []
    for i, result in enumerate(answer.results):
        if result.error is not None:
            nodes.append(read_error(result.error))
            continue
        if result.node is None or result.score is None:
            raise nonsense(f"results[{i}]", "a node and a score", result.model_dump(exclude_unset=True))
        check_score(result.score, kind, step=i)
        classes = None if result.classes is None else tuple(result.classes)
        graded = Graded(score=result.score, tokens=result.tokens, root=result.root, classes=classes)
        nodes.append((result.node, graded))
    return nodes


def _prefixes(prefixes: Sequence[Sequence[str]]) -> list[Prefix]:
    for prefix in prefixes:
        if isinstance(prefix, str) or not prefix:
            raise UsageError(f"a prefix: expected its steps, at least one, found {prefix!r:.80}")
    return [tuple(prefix) for prefix in prefixes]


# The clients.


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
        for part in self._calls.parts(solutions):
            yield [Question(solution=solution) for solution in part]


@final
class Client(_Client):
    """Talks to a score server (`stepmark serve`).

    The key in the environment variable `STEPMARK_API_KEY` is sent, if there is one. Failures are retried after growing pauses; a server that is busy,
    loading or restarting is waited for as it asks (`Retry-After`). Safe for several threads.

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
        super().__init__(Calls(address, model, patience, batch, rng, clock))
        self._connection = Connection(key_variable(), transport=transport, sleep=sleep)
        self._run = self._connection.run

    def listing(self) -> Listing:
        """The PRMs that are served, and the names of other models.

        Raises:
            BackendError: no answer, or not a stepmark server's.
        """
        return self._run(self._calls.listing())

    def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served; raises as `listing`."""
        return self.listing().prms

    def model(self) -> ServedModel:
        """The PRM that this client talks to; asked for once.

        Raises:
            UsageError: none of that name, or several and none is named.
            BackendError: as `listing`.
        """
        return self._run(self._calls.model())

    def score(
        self, problem: str, steps: Steps | str, *, split: str | None = None, **settings: Unpack[Scoring]
    ) -> ScoredSolution:
        """Score one solution.

        Args:
            problem: its text.
            steps: a text each; or the whole solution as one text, which the server splits.
            split: how a text is split ("line", …); None leaves it to the server.
            settings: `aggregate`, `threshold`, `checks`, `timeout`; see `Scoring`.

        Raises:
            InputError: the PRM cannot read it.
            UsageError: a setting that the server declines.
            BackendError: the server failed, gave no answer in time, or answered nonsense.
        """
        return self._run(self._calls.score(Question.of(problem, steps, split), settings))

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False, **settings: Unpack[Scoring]
    ) -> Iterator[ScoredSolution | Refusal]:
        """Score a stream of solutions in requests of bounded size: one result each, in order, as they come.

        Consecutive solutions of one problem share the computation of what they have in common. What was yielded before an error stays valid.

        Args:
            solutions: read as needed; may be endless.
            keep_going: yield a `Refusal` for one that cannot be scored instead of raising.
            settings: as for `score`; `timeout` of each request.
        """
        for part in self._parts(solutions):
            for result in self._run(self._calls.score_part(part, settings)):
                yield result if keep_going else unrefused(result)

    def rank(
        self,
        problem: str,
        candidates: Sequence[Steps | str],
        *,
        split: str | None = None,
        **settings: Unpack[Scoring],
    ) -> list[Ranked]:
        """Rank candidate solutions of one problem, in one request, the best first; those that cannot be scored come last.

        Args:
            problem: its text.
            candidates: each one's steps, or its text, which the server splits.
            split: how texts are split.
            settings: as for `score`.
        """
        return self._run(self._calls.rank(problem, candidates, split, settings))

    def session(self, problem: str) -> Session:
        """A session for prefixes of one problem that grow step by step; to be used in a `with` block."""
        return Session(self._connection, problem, self._calls)

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Session:
    """Prefixes of one problem on a server that holds their state. Made by `Client.session`.

    A prefix is named by its steps. Of each, only the last step is sent; the server reads nothing twice. A session that the server has lost (it was
    idle for too long, the server was restarted) is opened anew, and what is needed of it is read once more; `Client.ledger.tokens_again` counts that.
    Threads that share a session wait for each other.
    """

    def __init__(self, connection: Connection, problem: str, calls: Calls) -> None:
        self._connection, self.problem = connection, problem
        self._lock, self._growing = threading.Lock(), _Growing(calls, problem)

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return len(self._growing.held)

    def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[Graded | InputError]:
        """The score of the last step of each prefix, all together; one result each, in order.

        Args:
            prefixes: each one's steps, at least one; what was asked before is not sent again.
            timeout: seconds for each request.

        Returns:
            A `Graded`, or the `InputError` that says why the PRM cannot read that prefix.

        Raises:
            UsageError: a prefix without steps.
            BackendError: as `Client.score`; or the server has no room for these prefixes.
        """
        asked = _prefixes(prefixes)
        with self._lock:
            return self._connection.run(self._growing.extend(asked, timeout))

    def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Release prefixes that will not be continued; with the last one the session ends. Unknown ones are ignored."""
        gone = _prefixes(prefixes)
        with self._lock:
            self._connection.run(self._growing.release(gone))

    def close(self) -> None:
        """End the session. Leaving a `with` block does it too. That of a closed client ends by itself (`session_idle`)."""
        with self._lock:
            if not self._connection.closed:
                self._connection.run(self._growing.close())

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
        super().__init__(Calls(address, model, patience, batch, rng, clock))
        self._connection = AsyncConnection(key_variable(), transport=transport, sleep=sleep)
        self._run = self._connection.run

    async def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served."""
        return (await self._run(self._calls.listing())).prms

    async def model(self) -> ServedModel:
        """The PRM that this client talks to."""
        return await self._run(self._calls.model())

    async def score(
        self, problem: str, steps: Steps | str, *, split: str | None = None, **settings: Unpack[Scoring]
    ) -> ScoredSolution:
        """Score one solution; see `Client.score`."""
        return await self._run(self._calls.score(Question.of(problem, steps, split), settings))

    async def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False, **settings: Unpack[Scoring]
    ) -> AsyncIterator[ScoredSolution | Refusal]:
        """Score a stream of solutions, in order; see `Client.score_many`."""
        for part in self._parts(solutions):
            for result in await self._run(self._calls.score_part(part, settings)):
                yield result if keep_going else unrefused(result)

    async def rank(
        self,
        problem: str,
        candidates: Sequence[Steps | str],
        *,
        split: str | None = None,
        **settings: Unpack[Scoring],
    ) -> list[Ranked]:
        """Rank candidate solutions of one problem; see `Client.rank`."""
        return await self._run(self._calls.rank(problem, candidates, split, settings))

    def session(self, problem: str) -> AsyncSession:
        """A session for prefixes of one problem; to be used in an `async with` block. See `Client.session`."""
        return AsyncSession(self._connection, _Growing(self._calls, problem))

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

    def __init__(self, connection: AsyncConnection, growing: _Growing) -> None:
        self._connection, self._growing = connection, growing
        self._lock = asyncio.Lock()

    @property
    def problem(self) -> str:
        """Its text."""
        return self._growing.problem

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return len(self._growing.held)

    async def _run(self, exchange: Exchange[Value]) -> Value:
        async with self._lock:
            return await self._connection.run(exchange)

    async def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[Graded | InputError]:
        """The score of the last step of each prefix; see `Session.extend`."""
        return await self._run(self._growing.extend(_prefixes(prefixes), timeout))

    async def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Release prefixes; see `Session.release`."""
        await self._run(self._growing.release(_prefixes(prefixes)))

    async def close(self) -> None:
        """End the session; see `Session.close`."""
        if not self._connection.closed:
            await self._run(self._growing.close())

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
