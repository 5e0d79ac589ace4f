"""A PRM behind `stepmark serve`, as any other PRM. A prefix that grows is sent whole; the server computes what is new of it."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, final

import httpx
from pydantic import ValidationError

from stepmark.backends import Ready, StepScore
from stepmark.errors import (
    BackendError,
    InputError,
    MarkerInTextError,
    StepmarkError,
    TooLongError,
    UsageError,
)
from stepmark.metrics.aggregate import check_score
from stepmark.models.http import Closing, DeclinedError, Patience, Server, key_variable, root_of
from stepmark.models.prm import (
    PRM,
    Ledger,
    Session,
    last_step,
)
from stepmark.models.remote.wire import (
    MOST_SECONDS,
    ModelsResponse,
    PRMFacts,
    Response,
    ScoredSolution,
    ScoreResponse,
)
from stepmark.records import Refusal, Solution, StepScores
from stepmark.words import amount

Read = TypeVar("Read", bound=Response)
PATIENT = Patience()
"""The default of clients."""
_ERRORS = {"too_long": TooLongError, "marker_in_text": MarkerInTextError}


@final
class ServedModel(PRMFacts):
    """A PRM that a server serves, as `/v1/models` lists it."""

    id: str
    """Its name in requests."""


def served_models(server: Server) -> tuple[list[ServedModel], list[str]]:
    """The PRMs that are served, and the names of other models.

    Raises:
        BackendError: no answer, or not a stepmark server's.
    """
    try:
        answer = server.ask(
            "/v1/models", None, lambda data: _read(server, "/v1/models", data, ModelsResponse)
        )
    except DeclinedError as declined:
        raise _complaint(declined) from None
    prms = [ServedModel(id=item.id, **dict(item.stepmark)) for item in answer.data if item.stepmark]
    return prms, [item.id for item in answer.data if item.stepmark is None]


@final
class RemotePRM(PRM, Closing):
    """Scores on a server. Made by `load_prm` from an address.

    Its name, kind of scores, aggregate, threshold and checks are the server's; so is how the checkpoint is read. The key in the environment variable
    `STEPMARK_API_KEY` is sent, if there is one. Failures are retried after growing pauses; a server that is busy, loading or restarting is waited for as
    it asks (`Retry-After`). Safe for several threads.

    Args:
        address: `http://host:port`.
        model: the name of one of its PRMs; None where it serves one.
        patience: attempts and waits.
        batch: solutions in a request, at most; a server that takes fewer is given fewer.
        transport: what sends requests; None for the network.
        sleep: waits some seconds; None for `time.sleep`.
        rng: draws the jitter of the waits.
        clock: seconds, from any origin.

    Raises:
        UsageError: no such address, a batch without a solution, or the server has no PRM of that name, or several and none is named.
        BackendError: the server gives no answer, or is no stepmark server.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        patience: Patience = PATIENT,
        batch: int = 64,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch: expected 1 or more solutions, found {batch}")
        self._server = Server(
            root_of(address),
            patience=patience,
            key=key_variable(),
            transport=transport,
            sleep=sleep,
            rng=rng,
            clock=clock,
        )
        prms, _ = served_models(self._server)
        named = [prm for prm in prms if model in (None, prm.id)]
        if len(named) != 1:
            names = ", ".join(repr(prm.id) for prm in prms) or "none"
            asked = "one has to be named" if model is None else f"{model!r} was asked for"
            raise UsageError(f"{self.address}: {asked}, and the PRMs that it serves are: {names}")
        self.served = named[0]
        self.name, self.score_kind = self.served.id, self.served.score_kind
        self.default_aggregate, self.default_threshold = (
            self.served.default_aggregate,
            self.served.default_threshold,
        )
        self.ledger = Ledger()
        """What was scored for this client. `tokens_computed` are those that the server was given to read: it does not say which of them it had read
        before."""
        self._counting = threading.Lock()
        self.batch = min(batch, self.served.max_solutions)
        """Solutions in a request. A server that takes less (413), or is too slow for as much (504), lowers it."""

    def __repr__(self) -> str:
        return self.describe(place={"address": self.address})

    @property
    def address(self) -> str:
        """Of the server."""
        return self._server.address

    @property
    def identity(self) -> str:
        """The name with what the server tells of settings and weights; with the address where it tells nothing."""
        identity = self.served.identity
        return identity if identity != self.served.id else f"{identity}@{self.address}"

    @property
    def default_checks(self) -> str:
        """The exact checks that run beside it, as its server says."""
        return self.served.default_checks

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`: the server's prefix cache computes what is new of a prefix."""
        del memory_tokens
        if self.served.prefix_cache:
            return _RemoteSession(self, "")
        return Session(self, "the PRM on the server keeps no state, and says so")

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions, some dozens in a request; see `PRM.score_many`.

        Raises:
            UsageError: a setting that the server declines.
            BackendError: the server failed. What was given before stays good.
        """
        rest = iter(solutions)
        while part := list(islice(rest, self.batch)):
            for solution, result in zip(part, self._scored(part), strict=True):
                if isinstance(result, StepScores):
                    yield result
                    continue
                name = f"solution {solution.id!r}" if solution.id is not None else None
                error = type(result)(result.message, where=name, field=result.field)
                if not keep_going:
                    raise error
                yield Refusal(solution=solution, error=error)

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self._server.close()

    def _scored(self, solutions: Sequence[Solution]) -> list[StepScores | InputError]:
        """Score solutions in as few requests as the server allows: halve one that is too large or too slow, and leave out solutions that it refuses."""
        results: dict[int, StepScores | InputError] = {}
        rows: dict[int, dict[str, Any]] = {}
        for index, solution in enumerate(solutions):
            try:
                rows[index] = _fields(solution)
            except InputError as error:
                results[index] = error
        waiting = [list(rows)] if rows else []
        while waiting:
            group = waiting.pop()
            try:
                answered = self._asked([rows[i] for i in group], [solutions[i] for i in group])
            except DeclinedError as declined:
                match = re.match(r"solutions\.(\d+)(\.|$)", declined.field or "")
                number = int(match[1]) if match and declined.status in (400, 413) else len(group)
                if number < len(group):
                    kind = TooLongError if declined.status == 413 else InputError
                    results[group.pop(number)] = kind(declined.message, field=_own_field(declined.field))
                    waiting += [group] if group else []
                elif declined.status in (413, 504) and len(group) > 1:
                    self.batch = len(group) // 2
                    waiting += [group[self.batch :], group[: self.batch]]
                elif declined.status == 413:
                    results[group[0]] = TooLongError(f"too large for the server: {declined.message}")
                else:
                    raise _complaint(declined) from None
            else:
                results |= dict(zip(group, answered, strict=True))
        return [results[index] for index in range(len(solutions))]

    def _asked(
        self, rows: Sequence[Mapping[str, Any]], solutions: Sequence[Solution]
    ) -> list[StepScores | InputError]:
        """One request."""
        path = "/v1/score"

        def read(data: Any) -> list[StepScores | InputError]:
            answer = _read(self._server, path, data, ScoreResponse)
            try:
                order = [result.index for result in answer.results]
                if order != list(range(len(rows))):
                    raise InputError(f"expected the indices 0 to {len(rows) - 1} in order, found {order}")
                return [
                    _scores(answer, result, solution)
                    for result, solution in zip(answer.results, solutions, strict=True)
                ]
            except InputError as error:
                raise BackendError(f"{self.address}{path}: {error}; no score was made from it") from None

        # Only the scores of the steps are asked for. The least of them exists for every kind, and is never infinite. Checks, where they are wanted,
        # run here.
        body = {"solutions": list(rows), "model": self.served.id, "aggregate": "min", "checks": "none"}
        # A little less than is waited for, so that the server's own word comes before we hang up.
        timeout = min(0.95 * self._server.patience.timeout, MOST_SECONDS)
        results = self._server.ask(path, {**body, "timeout": timeout}, read)
        scored = [result for result in results if isinstance(result, StepScores)]
        tokens = sum((result.problem_tokens or 0) + (result.solution_tokens or 0) for result in scored)
        with self._counting:
            self.ledger.solutions += len(scored)
            self.ledger.steps += sum(score is not None for result in scored for score in result.scores)
            self.ledger.tokens_in += tokens
            self.ledger.tokens_computed += tokens
            self.ledger.tokens_distinct += tokens
        return results


class _RemoteSession(Session):
    """A session of which the server keeps the prefixes: a step costs its own tokens."""

    def score_last(
        self, solutions: Sequence[Solution], ready: Ready | None = None
    ) -> list[StepScore | InputError]:
        results = self.prm.score_many(solutions, keep_going=True)
        return [last_step(result, cached=True) for result in results]


def _scores(answer: ScoreResponse, result: ScoredSolution, solution: Solution) -> StepScores | InputError:
    """One result of an answer.

    Raises:
        InputError: it is not what it must be.
    """
    if (error := result.error) is not None:
        kind = _ERRORS.get(error.type, InputError)
        return kind(error.message, where=error.where, field=_own_field(error.field))
    count, place = len(solution.steps), f"results[{result.index}]"
    lists = {"scores": result.scores or [], "classes": result.classes, "critiques": result.critiques}
    for name, entries in lists.items():
        if entries is not None and len(entries) != count:
            raise InputError(
                f"expected {amount(count, 'entry', 'entries')}, one a step, found {len(entries)}",
                field=f"{place}.{name}",
            )
    for step, score in enumerate(result.scores or ()):
        if score is not None:
            check_score(score, answer.score_kind, step=step)
    tokens, root = result.tokens, result.problem_tokens
    return StepScores(
        scores=tuple(result.scores or ()),
        kind=answer.score_kind,
        classes=None
        if result.classes is None
        else tuple(None if shares is None else tuple(shares) for shares in result.classes),
        class_names=None if answer.class_names is None else tuple(answer.class_names),
        critiques=None if result.critiques is None else tuple(tuple(written) for written in result.critiques),
        problem_tokens=root,
        solution_tokens=None if tokens is None or root is None else tokens - root,
        step_tokens=None if result.step_tokens is None else tuple(result.step_tokens),
    )


def _read(server: Server, path: str, data: Any, model: type[Read]) -> Read:
    """An answer by its wire model; a `BackendError` for one that is none."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    expected, found = first["msg"].removeprefix("Input should be "), f"{first['input']!r:.80}"
    if first["type"] == "missing":
        expected, found = "a value", "nothing"
    raise BackendError(
        f"{server.address}{path}: {place}: expected {expected}, found {found}; no score was made from it"
    )


def _complaint(declined: DeclinedError) -> StepmarkError:
    """A declined request as an error for the caller: a wrong setting, or another server than expected."""
    if declined.status in (400, 413) or (declined.status == 404 and declined.field == "model"):
        named = f", field {declined.field!r}" if declined.field else ""
        return UsageError(f"{declined.url}{named}: {declined.message}")
    hint = "; is it a stepmark server?" if declined.status in (404, 405) and declined.type is None else ""
    return BackendError(f"{declined.as_backend_error()}{hint}")


def _fields(solution: Solution) -> dict[str, Any]:
    """The fields of a request; an `InputError` for half of a surrogate pair, which UTF-8 does not have."""
    texts = {"problem": solution.problem.text}
    texts |= {f"steps[{i}]": step.text + step.observation for i, step in enumerate(solution.steps)}
    for field, text in texts.items():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character"
            raise InputError(half, field=field) from None
    fields: dict[str, Any] = {"problem": solution.problem.text, "steps": list(solution.texts)}
    if any(step.observation for step in solution.steps):
        fields["observations"] = [step.observation for step in solution.steps]
    return fields


def _own_field(field: str | None) -> str | None:
    """`steps[1]` for `solutions.3.steps.1`: from the solution on, as errors in this process name it."""
    own = re.sub(r"^solutions\.\d+(\.|$)", "", field or "")
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", own) or None
