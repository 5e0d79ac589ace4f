"""The calls of a score server as exchanges (`models.http`): what a request holds, and answers read by the wire models that the server declares.

Results are read as rows of `stepmark grade`: a wrong number of scores, a score out of range or a wrong index is a `BackendError`.
"""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypedDict, TypeVar, final

import httpx
from pydantic import ValidationError

from stepmark.errors import (
    BackendError,
    InputError,
    MarkerInTextError,
    StepmarkError,
    TooLongError,
    UsageError,
)
from stepmark.models.http import KEY_VARIABLE, DeclinedError, Exchange, Patience, Server, Verb
from stepmark.models.prm import Ledger, from_row
from stepmark.models.remote.wire import (
    Answer,
    ErrorBody,
    ModelsAnswer,
    PRMFacts,
    RankAnswer,
    Result,
    ScoreAnswer,
    SessionFullError,
)
from stepmark.records import Problem, Refusal, ScoredSolution, Solution, Step, Steps

Item = TypeVar("Item")
Value = TypeVar("Value")
AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
_ERRORS = {"too_long": TooLongError, "marker_in_text": MarkerInTextError, "session_full": SessionFullError}


@final
class ServedModel(PRMFacts):
    """A PRM that a server serves, as `/v1/models` lists it."""

    id: str
    """Its name in requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The models of a server."""

    prms: tuple[ServedModel, ...]
    others: tuple[str, ...]
    """Names of models that are no PRM of a stepmark server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """One of several candidates of a problem, in its place."""

    index: int
    """Its position in the request, from 0."""
    scored: ScoredSolution | None
    """None for a candidate that cannot be scored."""
    error: InputError | None = None
    """Why it cannot."""

    @property
    def score(self) -> float | None:
        """The aggregate of its step scores; None where there is none."""
        return None if self.scored is None else self.scored.score


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A solution to be scored: its steps, or a text that the server splits."""

    solution: Solution
    """Without steps where there is a text."""
    text: str | None = None
    split: str | None = None

    @classmethod
    def of(cls, problem: str, steps: Steps | str, split: str | None) -> Question:
        """From plain strings."""
        if isinstance(steps, str):
            solution = Solution(problem=Problem(text=problem), steps=())
            return cls(solution=solution, text=steps, split=split)
        return cls(solution=Solution.of(problem, steps), split=split)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request. An observation is sent as the beginning of the next step, as `Encoder` joins them.

        Raises:
            InputError: half of a surrogate pair.
        """
        problem = utf8(self.solution.problem.text, "problem")
        split = {} if self.split is None else {"split": self.split}
        if self.text is not None:
            return {"problem": problem, "solution": utf8(self.text, "solution"), **split}
        texts, before = [], ""
        for number, step in enumerate(self.solution.steps):
            text = f"{before}\n\n{step.text.lstrip()}" if before and step.text.strip() else step.text
            texts.append(utf8(text, f"steps[{number}]"))
            before = step.observation.strip()
        return {"problem": problem, "steps": texts, **split}


class Calls:
    """The exchanges of one server; see `Client` for the arguments."""

    def __init__(
        self,
        address: str,
        model: str | None,
        patience: Patience,
        batch: int,
        rng: random.Random | None,
        clock: Callable[[], float],
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch: expected 1 or more solutions, found {batch}")
        self.server = Server(_root(address), patience=patience, rng=rng, clock=clock)
        self.name, self.ledger = model, Ledger()
        self.batch = batch
        """Solutions, or steps of a session, in a request. A server that takes less (413), or is too slow for as much (504), lowers it."""
        self._counting = threading.Lock()
        self._model: ServedModel | None = None

    def listing(self) -> Exchange[Listing]:
        """See `Client.listing`."""

        def read(answer: ModelsAnswer) -> Listing:
            prms = [ServedModel(id=item.id, **dict(item.stepmark)) for item in answer.data if item.stepmark]
            others = tuple(item.id for item in answer.data if item.stepmark is None)
            return Listing(prms=tuple(prms), others=others)

        try:
            return (yield from self.ask("/v1/models", None, ModelsAnswer, read))
        except DeclinedError as declined:
            raise complaint(declined) from None

    def model(self) -> Exchange[ServedModel]:
        """See `Client.model`."""
        if self._model is None:
            prms = (yield from self.listing()).prms
            named = [prm for prm in prms if self.name in (None, prm.id)]
            if len(named) != 1:
                names = ", ".join(repr(prm.id) for prm in prms) or "none"
                asked = "one has to be named" if self.name is None else f"{self.name!r} was asked for"
                raise UsageError(f"{self.server.address}: {asked}, and the PRMs that it serves are: {names}")
            self._model = named[0]
            self.batch = min(self.batch, self._model.max_solutions)
        return self._model

    def score(self, question: Question, settings: Scoring) -> Exchange[ScoredSolution]:
        """See `Client.score`."""
        [result] = yield from self.score_part([question], settings)
        return unrefused(result)

    def score_part(
        self, questions: Sequence[Question], settings: Scoring
    ) -> Exchange[list[ScoredSolution | Refusal]]:
        """Score solutions in as few requests as the server allows; one result each, in order."""
        results: dict[int, ScoredSolution | InputError] = {}
        rows: list[tuple[int, dict[str, Any]]] = []
        for i, question in enumerate(questions):
            try:
                steps = question.solution.steps[:-1]
                observed = next((k + 1 for k, step in enumerate(steps) if step.observation.strip()), None)
                if observed is not None and not (yield from self.model()).sessions:
                    raise InputError(
                        "an observation is sent as the beginning of the next step, which is the same text only to PRMs that read tokens "
                        "step by step; load this PRM in this process",
                        field=f"steps[{observed}]",
                    )
                rows.append((i, question.fields))
            except InputError as error:
                results[i] = error

        def send(
            part: Sequence[tuple[int, dict[str, Any]]],
        ) -> Exchange[list[ScoredSolution | InputError]]:
            def read(answer: ScoreAnswer) -> list[ScoredSolution | InputError]:
                order = [result.index for result in answer.results]
                if order != list(range(len(part))):
                    raise nonsense("results", f"the indices 0 to {len(part) - 1} in order", order)
                asked = [questions[i].solution for i, _ in part]
                return self._read(answer, asked)

            body = {"solutions": [fields for _, fields in part], **self._body(settings)}
            timeout = settings.get("timeout")
            return (yield from self.ask("/v1/score", body, ScoreAnswer, read, timeout=timeout))

        answered = yield from self.send_in_parts(rows, "solutions", send)
        results |= {i: result for (i, _), result in zip(rows, answered, strict=True)}
        return [_named(question.solution, results[i]) for i, question in enumerate(questions)]

    def rank(
        self, problem: str, candidates: Sequence[Steps | str], split: str | None, settings: Scoring
    ) -> Exchange[list[Ranked]]:
        """See `Client.rank`."""
        if isinstance(candidates, str):
            raise UsageError(f"candidates: expected a list of them, found the single text {candidates!r:.60}")
        questions = [Question.of(problem, item, None) for item in candidates]
        if not questions:
            return []
        rows = [{k: v for k, v in question.fields.items() if k != "problem"} for question in questions]
        how = {} if split is None else {"split": split}
        body = {"problem": problem, "candidates": rows, **how, **self._body(settings)}

        def read(answer: RankAnswer) -> list[Ranked]:
            order = [result.index for result in answer.results]
            if sorted(order) != list(range(len(questions))):
                raise nonsense("results", f"each index from 0 to {len(questions) - 1} once", order)
            read = self._read(answer, [questions[i].solution for i in order])
            ranked = [
                Ranked(index=i, scored=None, error=result)
                if isinstance(result, InputError)
                else Ranked(index=i, scored=result)
                for i, result in zip(order, read, strict=True)
            ]
            scores = [-math.inf if item.score is None else item.score for item in ranked]
            if scores != sorted(scores, reverse=True):
                raise nonsense("results", "the highest score first", scores)
            return ranked

        try:
            timeout = settings.get("timeout")
            return (yield from self.ask("/v1/rank", body, RankAnswer, read, timeout=timeout))
        except DeclinedError as declined:
            raise complaint(declined) from None

    def ask(
        self,
        path: str,
        body: dict[str, Any] | None,
        model: type[AnyAnswer],
        read: Callable[[AnyAnswer], Value],
        *,
        timeout: float | None = None,
    ) -> Exchange[Value]:
        """POST a body (GET without one) and read the answer by its wire model.

        Raises:
            DeclinedError: the server declines.
            BackendError: no answer, or one that is not what it must be.
        """

        def parse(data: Any) -> Value:
            try:
                return read(model.model_validate(data))
            except ValidationError as error:
                why = _first(error)
            except InputError as error:
                why = str(error)
            raise BackendError(f"{self.server.address}{path}: {why}; no score was made from it")

        verb: Verb = "GET" if body is None else "POST"
        tell = body is not None and path != "/v1/sessions"
        return (yield from self.server.ask(verb, path, body, parse, timeout=timeout, tell=tell))

    def send_in_parts(
        self,
        items: Sequence[Item],
        under: str,
        send: Callable[[Sequence[Item]], Exchange[list[Value | InputError]]],
    ) -> Exchange[list[Value | InputError]]:
        """Send items together; halve a request that is too large or too slow, and leave out items that the server refuses.

        Args:
            items: in order.
            under: the field of the request that holds them.
            send: asks for some of them.

        Raises:
            UsageError: the server declines the request for a reason that is in no single item.
            BackendError: the server failed, or answered nonsense.
        """
        results: dict[int, Value | InputError] = {}
        waiting = [list(range(len(items)))] if items else []
        while waiting:
            group = waiting.pop()
            try:
                answered = yield from send([items[i] for i in group])
            except DeclinedError as declined:
                match = re.match(rf"{under}\.(\d+)(\.|$)(?!split$|marker$)", declined.field or "")
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
                    raise complaint(declined) from None
            else:
                results |= dict(zip(group, answered, strict=True))
        return [results[i] for i in range(len(items))]

    def parts(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """A stream in parts of a request; reads no further than the part that it yields."""
        rest = iter(items)
        while part := list(islice(rest, self.batch)):
            yield part

    def count(self, **counts: int) -> None:
        """Add to fields of the ledger. Tokens that are computed are distinct but for those that are read again."""
        with self._counting:  # several threads may share a client
            for name, value in counts.items():
                setattr(self.ledger, name, getattr(self.ledger, name) + value)
            self.ledger.tokens_distinct = self.ledger.tokens_computed - self.ledger.tokens_again

    def _body(self, settings: Scoring) -> dict[str, Any]:
        fields = {**settings, "model": self.name}
        if not math.isfinite(settings.get("threshold") or 0.0):
            raise UsageError(f"threshold: expected a number, found {settings.get('threshold')!r}")
        if unknown := fields.keys() - Scoring.__annotations__.keys() - {"model"}:
            raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
        return {key: value for key, value in fields.items() if key != "timeout" and value is not None}

    def _read(
        self, answer: ScoreAnswer | RankAnswer, asked: Sequence[Solution]
    ) -> list[ScoredSolution | InputError]:
        """The results of an answer, of these solutions; all are read before any is counted."""
        pairs = list(zip(answer.results, asked, strict=True))
        results = [_scored(answer, result, solution) for result, solution in pairs]
        for (row, _), result in zip(pairs, results, strict=True):
            if isinstance(result, ScoredSolution):
                # A server does not say how many of them it had computed before.
                steps = sum(score is not None for score in result.steps.scores)
                self.count(
                    solutions=1, steps=steps, tokens_in=row.tokens or 0, tokens_computed=row.tokens or 0
                )
        return results


def _scored(
    answer: ScoreAnswer | RankAnswer, result: Result, solution: Solution
) -> ScoredSolution | InputError:
    place = f"results[{result.index}]"
    if result.error is not None:
        return read_error(result.error)
    if not solution.steps:
        if not result.steps:
            raise nonsense(place, "the texts of the steps under 'steps'", result.steps)
        solution = replace(solution, steps=tuple(Step(text=text) for text in result.steps))
    above = {key: getattr(answer, key) for key in ("aggregate", "threshold", "score_kind", "class_names")}
    row = {**result.model_dump(exclude_unset=True), **above, "prm": answer.model}
    try:
        return from_row(solution, {**row, "scores": result.scores or []})
    except InputError as error:
        raise error.at(place) from None


def _named(solution: Solution, result: ScoredSolution | InputError) -> ScoredSolution | Refusal:
    if isinstance(result, ScoredSolution):
        return result
    name = f"solution {solution.id!r}" if solution.id is not None else None
    return Refusal(solution=solution, error=type(result)(result.message, where=name, field=result.field))


def unrefused(result: ScoredSolution | Refusal) -> ScoredSolution:
    """The solution; raises the error of a refusal."""
    if isinstance(result, Refusal):
        raise result.error
    return result


def complaint(declined: DeclinedError) -> StepmarkError:
    """A declined request as an error for the caller: a wrong setting, or another server than expected."""
    if declined.status in (400, 413) or (declined.status == 404 and declined.field == "model"):
        named = f", field {declined.field!r}" if declined.field else ""
        return UsageError(f"{declined.url}{named}: {declined.message}")
    hint = "; is it a stepmark server?" if declined.status in (404, 405) and declined.type is None else ""
    return BackendError(f"{declined.as_backend_error()}{hint}")


def utf8(text: str, field: str) -> str:
    """The text, if it is one in UTF-8.

    Raises:
        InputError: half of a surrogate pair.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character"
        raise InputError(half, field=field) from None
    return text


def _root(address: str) -> str:
    """The address without /v1, if it holds no credentials, which would be logged.

    Raises:
        UsageError: it is no address, or holds some.
    """
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.userinfo:
        raise UsageError(
            f"expected a server's address, found {f'{url.scheme}://…@{url.netloc.decode()}'!r}: a key is not part of it, {KEY_VARIABLE} holds it"
        )
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise UsageError(f"expected a server's address such as http://127.0.0.1:8000, found {address!r}")
    return address.rstrip("/").removesuffix("/v1")


def nonsense(place: str, expected: str, actual: object) -> InputError:
    """An answer that is not what it must be."""
    return InputError(f"expected {expected}, found {actual!r:.80}", field=place)


def _first(error: ValidationError) -> str:
    """The first error of an answer."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] == "missing":
        return f"{place}: expected a value, found nothing"
    return f"{place}: expected {first['msg'].removeprefix('Input should be ')}, found {first['input']!r:.80}"


def _own_field(field: str | None) -> str | None:
    """`steps[1]` for `solutions.3.steps.1`: from the solution on, as errors in this process name it."""
    own = re.sub(r"^(solutions|candidates|steps)\.\d+(\.|$)(?=\D|$)", "", field or "")
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", own) or None


def read_error(body: ErrorBody) -> InputError:
    """The error of a single result, as a PRM in this process raises it."""
    return _ERRORS.get(body.type, InputError)(body.message, where=body.where, field=_own_field(body.field))
