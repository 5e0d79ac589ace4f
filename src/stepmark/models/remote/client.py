"""The clients of `stepmark serve`: `Client`, and `AsyncClient`, which runs it in threads.

Results are read as rows of `stepmark grade`: a wrong number of scores, a score out of range or a wrong index is a `BackendError`.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ParamSpec, Self, TypedDict, TypeVar, Unpack, final

import httpx

from stepmark.backends import StepScore
from stepmark.data.conversations import (
    ProblemLike,
    SolutionLike,
    check_one_problem,
    each_solution,
    solution_of,
)
from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import rank_key
from stepmark.models.http import Closing, DeclinedError, Patience
from stepmark.models.prm import Ledger, from_row
from stepmark.models.remote.calls import Calls, ServedModel, complaint, nonsense, read_error, utf8
from stepmark.models.remote.session import Session
from stepmark.models.remote.wire import RankAnswer, Result, ScoreAnswer
from stepmark.records import GradedSolution, Refusal, Solution, Steps

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

PATIENT = Patience()
"""The default of clients."""


class Scoring(TypedDict, total=False):
    """Settings of a call that scores; without them the server's own hold."""

    aggregate: str | None
    """How step scores make one number."""
    threshold: float | None
    """A step whose score is under it is an error."""
    checks: str | None
    """Exact checks beside the PRM: "all", "none", "auto", or names with commas between them."""
    timeout: float | None
    """Seconds for a request with all attempts and waits; the server drops what it cannot compute in time. None: no limit but patience."""


@final
class Client(Closing):
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
        self._calls = Calls(address, model, patience, batch, transport, sleep, rng, clock)

    @property
    def address(self) -> str:
        """Of the server."""
        return self._calls.server.address

    @property
    def ledger(self) -> Ledger:
        """What was scored for this client. `tokens_computed` are those that the server was given to read: it does not say which of them it had read
        before. `tokens_again` are those of sessions that it had lost."""
        return self._calls.ledger

    def listing(self) -> tuple[tuple[ServedModel, ...], tuple[str, ...]]:
        """The PRMs that are served, and the names of other models; raises as `models`."""
        return self._calls.listing()

    def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served.

        Raises:
            BackendError: no answer, or not a stepmark server's.
        """
        return self._calls.listing()[0]

    def model(self) -> ServedModel:
        """The PRM that this client talks to; asked for once.

        Raises:
            UsageError: none of that name, or several and none is named.
            BackendError: as `models`.
        """
        return self._calls.model()

    def grade(
        self,
        problem: ProblemLike | None,
        solution: SolutionLike | None = None,
        *,
        steps: Steps | None = None,
        split: str = "auto",
        marker: str | None = None,
        **settings: Unpack[Scoring],
    ) -> GradedSolution:
        """Grade one solution.

        Args:
            problem: its text or record; None where the solution says it.
            solution: a text, a `Segmentation`, a record of a solution, or a list of chat messages.
            steps: the texts of its steps, instead of `solution`.
            split: how a text is split into steps (`stepmark.split`).
            marker: the text that ends each step, for `split` "marker".
            settings: `aggregate`, `threshold`, `checks`, `timeout`; see `Scoring`.

        Raises:
            InputError: the PRM cannot read it.
            UsageError: a setting that the server declines.
            BackendError: the server failed, gave no answer in time, or answered nonsense.
        """
        record = solution_of(problem, solution, steps=steps, split_by=split, marker=marker)
        [result] = self._part([record], settings)
        return _unrefused(result)

    def grade_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False, **settings: Unpack[Scoring]
    ) -> Iterator[GradedSolution | Refusal]:
        """Grade a stream of solutions in requests of bounded size: one result each, in order, as they come.

        Consecutive solutions of one problem share the computation of what they have in common. What was yielded before an error stays valid.

        Args:
            solutions: read as needed; may be endless.
            keep_going: yield a `Refusal` for one that cannot be scored instead of raising.
            settings: as for `grade`; `timeout` of each request.
        """
        for part in self._calls.parts(solutions):
            for result in self._part(part, settings):
                yield result if keep_going else _unrefused(result)

    def rank(
        self,
        problem: ProblemLike | None,
        solutions: Iterable[SolutionLike | Steps],
        *,
        split: str = "auto",
        marker: str | None = None,
        keep_going: bool = False,
        **settings: Unpack[Scoring],
    ) -> list[GradedSolution]:
        """Grade candidate solutions of one problem, in one request, and sort them, the best first, as `PRM.rank` does.

        Args:
            problem: as for `grade`.
            solutions: each as for `grade`, or a list of the texts of its steps.
            split: as for `grade`.
            marker: as for `grade`.
            keep_going: leave out solutions that the PRM cannot read instead of raising.
            settings: as for `grade`.

        Raises:
            InputError: no solutions, or one that cannot be scored; the message says which.
            UsageError: a setting that the server declines.
            BackendError: as for `grade`.
        """
        asked = each_solution(problem, solutions, split_by=split, marker=marker)
        check_one_problem(asked)
        rows = [_fields(item) for item in asked]
        rows = [{key: value for key, value in row.items() if key != "problem"} for row in rows]
        body = {"problem": asked[0].problem.text, "solutions": rows, **self._body(settings)}

        def read(answer: RankAnswer) -> list[tuple[int, GradedSolution | InputError]]:
            order = [result.index for result in answer.results]
            if sorted(order) != list(range(len(asked))):
                raise nonsense("results", f"each index from 0 to {len(asked) - 1} once", order)
            results = self._read(answer, [asked[i] for i in order])
            ranked = [one for one in results if isinstance(one, GradedSolution)]
            keys = [rank_key(one.score, refuted=one.refuted) for one in ranked]
            if keys != sorted(keys):
                raise nonsense("results", "the best first", [one.score for one in ranked])
            return list(zip(order, results, strict=True))

        try:
            timeout = settings.get("timeout")
            results = self._calls.ask("/v1/rank", body, RankAnswer, read, timeout=timeout)
        except DeclinedError as declined:
            raise complaint(declined) from None
        ranked = []
        for index, result in results:
            if isinstance(result, GradedSolution):
                ranked.append(replace(result, index=index))
            elif not keep_going:
                raise result.at(f"solution {index} (0-based)")
        return ranked

    def session(self, problem: str) -> Session:
        """A session for prefixes of one problem that grow step by step; to be used in a `with` block."""
        return Session(self._calls, problem)

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self._calls.server.close()

    def _part(self, solutions: Sequence[Solution], settings: Scoring) -> list[GradedSolution | Refusal]:
        """Score solutions in as few requests as the server allows; one result each, in order."""
        results: dict[int, GradedSolution | InputError] = {}
        rows: list[tuple[int, dict[str, Any]]] = []
        for i, solution in enumerate(solutions):
            try:
                rows.append((i, _fields(solution)))
            except InputError as error:
                results[i] = error

        def send(
            part: Sequence[tuple[int, dict[str, Any]]],
        ) -> list[GradedSolution | InputError]:
            def read(answer: ScoreAnswer) -> list[GradedSolution | InputError]:
                order = [result.index for result in answer.results]
                if order != list(range(len(part))):
                    raise nonsense("results", f"the indices 0 to {len(part) - 1} in order", order)
                return self._read(answer, [solutions[i] for i, _ in part])

            body = {"solutions": [fields for _, fields in part], **self._body(settings)}
            timeout = settings.get("timeout")
            return self._calls.ask("/v1/score", body, ScoreAnswer, read, timeout=timeout)

        answered = self._calls.send_in_parts(rows, "solutions", send)
        results |= {i: result for (i, _), result in zip(rows, answered, strict=True)}
        return [_named(solution, results[i]) for i, solution in enumerate(solutions)]

    def _body(self, settings: Scoring) -> dict[str, Any]:
        fields = {**settings, "model": self._calls.name}
        if not math.isfinite(settings.get("threshold") or 0.0):
            raise UsageError(f"threshold: expected a number, found {settings.get('threshold')!r}")
        if unknown := fields.keys() - Scoring.__annotations__.keys() - {"model"}:
            raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
        return {key: value for key, value in fields.items() if key != "timeout" and value is not None}

    def _read(
        self, answer: ScoreAnswer | RankAnswer, asked: Sequence[Solution]
    ) -> list[GradedSolution | InputError]:
        """The results of an answer, of these solutions; all are read before any is counted."""
        pairs = list(zip(answer.results, asked, strict=True))
        results = [_scored(answer, result, solution) for result, solution in pairs]
        for (row, _), result in zip(pairs, results, strict=True):
            if isinstance(result, GradedSolution):
                # A server does not say how many of them it had computed before.
                steps = sum(score is not None for score in result.scores)
                self._calls.count(
                    solutions=1, steps=steps, tokens_in=row.tokens or 0, tokens_computed=row.tokens or 0
                )
        return results


def _scored(
    answer: ScoreAnswer | RankAnswer, result: Result, solution: Solution
) -> GradedSolution | InputError:
    place = f"results[{result.index}]"
    if result.error is not None:
        return read_error(result.error)
    above = {key: getattr(answer, key) for key in ("aggregate", "threshold", "score_kind", "class_names")}
    row = {**result.model_dump(exclude_unset=True), **above, "prm": answer.model}
    try:
        return from_row(solution, {**row, "scores": result.scores or []})
    except InputError as error:
        raise error.at(place) from None


def _named(solution: Solution, result: GradedSolution | InputError) -> GradedSolution | Refusal:
    if isinstance(result, GradedSolution):
        return result
    name = f"solution {solution.id!r}" if solution.id is not None else None
    return Refusal(solution=solution, error=type(result)(result.message, where=name, field=result.field))


def _fields(solution: Solution) -> dict[str, Any]:
    """The fields of a request.

    Raises:
        InputError: half of a surrogate pair.
    """
    fields = {
        "problem": utf8(solution.problem.text, "problem"),
        "steps": [utf8(step.text, f"steps[{number}]") for number, step in enumerate(solution.steps)],
    }
    if any(step.observation for step in solution.steps):
        fields["observations"] = [
            utf8(step.observation, f"steps[{number}]") for number, step in enumerate(solution.steps)
        ]
    return fields


def _unrefused(result: GradedSolution | Refusal) -> GradedSolution:
    """The solution; raises the error of a refusal."""
    if isinstance(result, Refusal):
        raise result.error
    return result


@final
class AsyncClient:
    """Talks to a score server (`stepmark serve`) from asyncio: `Client` with `await`, whose documentation holds here.

    Each call runs in a thread. A call whose task is cancelled is carried out to its end, and its answer is dropped. Close it: `async with`, or
    `await client.close()`. `asyncio.gather` sends several requests at once; the server computes them together.

    Args:
        concurrency: calls that run at once.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        patience: Patience = PATIENT,
        batch: int = 64,
        concurrency: int = 32,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = Client(
            address, model=model, patience=patience, batch=batch, transport=transport, sleep=sleep
        )
        self._threads = ThreadPoolExecutor(concurrency)
        self.address, self.ledger = self._client.address, self._client.ledger

    async def _run(
        self, function: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def models(self) -> tuple[ServedModel, ...]:
        """The PRMs that are served."""
        return await self._run(self._client.models)

    async def model(self) -> ServedModel:
        """The PRM that this client talks to."""
        return await self._run(self._client.model)

    async def grade(
        self,
        problem: ProblemLike | None,
        solution: SolutionLike | None = None,
        *,
        steps: Steps | None = None,
        split: str = "auto",
        marker: str | None = None,
        **settings: Unpack[Scoring],
    ) -> GradedSolution:
        """Grade one solution; see `Client.grade`."""
        return await self._run(
            self._client.grade, problem, solution, steps=steps, split=split, marker=marker, **settings
        )

    async def grade_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False, **settings: Unpack[Scoring]
    ) -> AsyncIterator[GradedSolution | Refusal]:
        """Grade a stream of solutions, in order; see `Client.grade_many`."""
        results = self._client.grade_many(solutions, keep_going=keep_going, **settings)
        while (result := await self._run(next, results, None)) is not None:
            yield result

    async def rank(
        self,
        problem: ProblemLike | None,
        solutions: Iterable[SolutionLike | Steps],
        *,
        split: str = "auto",
        marker: str | None = None,
        keep_going: bool = False,
        **settings: Unpack[Scoring],
    ) -> list[GradedSolution]:
        """Rank candidate solutions of one problem; see `Client.rank`."""
        return await self._run(
            self._client.rank,
            problem,
            solutions,
            split=split,
            marker=marker,
            keep_going=keep_going,
            **settings,
        )

    def session(self, problem: str) -> AsyncSession:
        """A session for prefixes of one problem; to be used in an `async with` block. See `Client.session`."""
        return AsyncSession(self._client.session(problem), self._run)

    async def close(self) -> None:
        """Close the connections. Leaving an `async with` block does it too."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@final
class AsyncSession:
    """Prefixes of one problem; made by `AsyncClient.session`. See `Session`."""

    def __init__(self, session: Session, run: Callable[..., Any]) -> None:
        self._session, self._run = session, run
        self.problem = session.problem

    @property
    def held(self) -> int:
        """Prefixes that were asked for and not released."""
        return self._session.held

    async def extend(
        self, prefixes: Sequence[Sequence[str]], *, timeout: float | None = None
    ) -> list[StepScore | InputError]:
        """The score of the last step of each prefix; see `Session.extend`."""
        replies: list[StepScore | InputError] = await self._run(
            self._session.extend, prefixes, timeout=timeout
        )
        return replies

    async def release(self, prefixes: Sequence[Sequence[str]]) -> None:
        """Release prefixes; see `Session.release`."""
        await self._run(self._session.release, prefixes)

    async def close(self) -> None:
        """End the session; see `Session.close`."""
        await self._run(self._session.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
