"""The calls of a score server as exchanges: what a request holds, and answers checked against it.

A number of scores other than the number of steps, a score out of range or a wrong index is an error that names what came.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import httpx
from pydantic import ValidationError

from stepmark.batching import Graded
from stepmark.errors import (
    BackendError,
    InputError,
    MarkerInTextError,
    StepmarkError,
    TooLongError,
    UsageError,
)
from stepmark.models.http import KEY_VARIABLE, DeclinedError, Exchange, Patience, PerProcess, Server
from stepmark.models.prm import Ledger
from stepmark.models.remote.wire import (
    Answer,
    ErrorBody,
    ModelsAnswer,
    PRMFacts,
    RankAnswer,
    Result,
    ScoreAnswer,
    SessionFullError,
    StepsAnswer,
)
from stepmark.records import (
    Problem,
    Refusal,
    ScoredSolution,
    ScoreKind,
    Solution,
    Step,
    Steps,
    StepScores,
    read_findings,
)

Item = TypeVar("Item")
Value = TypeVar("Value")
AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
Scored = tuple[ScoredSolution, int | None]
"""A scored solution, and the tokens that the PRM read; None when it does not count."""

_BOUNDS = {"probability": (0.0, 1.0), "margin": (-1.0, 1.0)}
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A solution to be scored: its steps, or a text that the server splits."""

    solution: Solution
    """Without steps where there is a text."""
    text: str | None = None
    split: str | None = None
    """How the text is split; None leaves it to the server."""

    @classmethod
    def of(cls, problem: str, steps: Steps | str, *, split: str | None = None) -> Question:
        """From plain strings.

        Raises:
            UsageError: a way to split beside steps, or a value that is no text.
        """
        _check_text(problem, "problem")
        if isinstance(steps, str):
            return cls(solution=Solution(problem=Problem(text=problem), steps=()), text=steps, split=split)
        if split is not None:
            raise UsageError(f"split={split!r} says how a text is split; the steps are given")
        for number, step in enumerate(steps):
            if not isinstance(step, Step):
                _check_text(step, f"steps[{number}]")
        return cls(solution=Solution.of(problem, steps))

    @property
    def characters(self) -> int:
        """Characters of its texts."""
        steps = sum(len(step.text) + len(step.observation) for step in self.solution.steps)
        return len(self.text or "") + len(self.solution.problem.text) + steps

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request: steps, each with the observation before it, as `Encoder` joins them; or the text.

        Raises:
            InputError: half of a surrogate pair.
        """
        problem = self.solution.problem.text
        check_characters(problem, "problem")
        if self.text is not None:
            check_characters(self.text, "solution")
            split = {} if self.split is None else {"split": self.split}
            return {"problem": problem, "solution": self.text, **split}
        texts, before = [], ""
        for number, step in enumerate(self.solution.steps):
            texts.append(f"{before}\n\n{step.text.lstrip()}" if before and step.text.strip() else step.text)
            check_characters(texts[-1], f"steps[{number}]")
            before = step.observation.strip()
        return {"problem": problem, "steps": texts}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of all solutions of a call; None: the server's."""

    aggregate: str | None = None
    threshold: float | None = None
    checks: str | None = None
    timeout: float | None = None
    """Seconds for a request with all its attempts; None: no limit but patience."""

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout <= 3600:
            raise UsageError(f"timeout: expected seconds above 0, up to 3600, found {self.timeout!r}")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise UsageError(f"threshold: expected a number, found {self.threshold!r}")

    def body(self, model: str | None) -> dict[str, Any]:
        """The fields of a request that are set."""
        fields = {
            "aggregate": self.aggregate,
            "threshold": self.threshold,
            "checks": self.checks,
            "model": model,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(kw_only=True, slots=True)
class Limits:
    """The size of a request. A server that takes less (413), or is too slow for as much (504), lowers it."""

    number: int = 64
    """Solutions, or steps of a session."""
    characters: int = 120_000
    """Of their texts; a longer single one is sent alone."""


@final
class Calls:
    """The calls of one server, except those of sessions.

    Args:
        address: `http://host:port`, with or without `/v1`.
        model: the name of one of its PRMs; None where it serves one.
        patience: attempts and waits.
        batch: solutions in a request, at most.
        rng: draws the jitter of the waits.
        clock: seconds, from any origin.

    Raises:
        UsageError: no address, or a batch without a solution.
    """

    def __init__(
        self,
        address: str,
        model: str | None = None,
        *,
        patience: Patience,
        batch: int = 64,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch: expected 1 or more solutions, found {batch}")
        root = _checked_address(address).rstrip("/").removesuffix("/v1")
        self.server = Server(root, patience=patience, rng=rng, clock=clock)
        self.model = model
        self.ledger = Ledger()
        self.limits = Limits(number=batch)
        self._counting = PerProcess(threading.Lock)
        self._served: ServedModel | None = None

    def listing(self) -> Exchange[Listing]:
        """The models of the server."""
        try:
            answer = yield from self.ask("/v1/models", None, ModelsAnswer, lambda answer: answer)
        except DeclinedError as declined:
            raise complaint(declined) from None
        facts = [(entry.id, entry.stepmark) for entry in answer.data]
        return Listing(
            prms=tuple(ServedModel(id=name, **dict(fact)) for name, fact in facts if fact is not None),
            others=tuple(name for name, fact in facts if fact is None),
        )

    def served(self) -> Exchange[ServedModel]:
        """The PRM that is used; asked for once.

        Raises:
            UsageError: the server has no PRM of that name, or several and none is named.
        """
        if self._served is None:
            prms = (yield from self.listing()).prms
            named = [prm for prm in prms if self.model in (None, prm.id)]
            if len(named) != 1:
                names = ", ".join(repr(prm.id) for prm in prms) or "none"
                asked = "one has to be named" if self.model is None else f"{self.model!r} was asked for"
                raise UsageError(f"{self.server.address}: {asked}, and the PRMs that it serves are: {names}")
            self._served = named[0]
            self.limits.number = min(self.limits.number, self._served.max_solutions)
            # A character has at most four bytes, or six where it is escaped.
            self.limits.characters = min(self.limits.characters, max(1, self._served.max_body // 8))
        return self._served

    def score(
        self, questions: Sequence[Question], settings: Settings
    ) -> Exchange[list[ScoredSolution | Refusal]]:
        """Score some solutions in as few requests as the server allows; one result each, in order."""
        results: dict[int, Scored | InputError] = {}
        rows: list[tuple[int, dict[str, Any]]] = []
        for i, question in enumerate(questions):
            try:
                observed = [
                    k + 1 for k, step in enumerate(question.solution.steps[:-1]) if step.observation.strip()
                ]
                if observed and not (yield from self.served()).sessions:
                    raise InputError(
                        "an observation is sent as the beginning of the next step, which is the same text only to PRMs that read tokens "
                        "step by step; load this PRM in this process",
                        field=f"steps[{observed[0]}]",
                    )
                rows.append((i, question.fields))
            except InputError as error:
                results[i] = error

        def send(part: Sequence[tuple[int, dict[str, Any]]]) -> Exchange[list[Scored | InputError]]:
            asked = [questions[i].solution for i, _ in part]
            body = {"solutions": [fields for _, fields in part], **settings.body(self.model)}
            return (
                yield from self.ask(
                    "/v1/score",
                    body,
                    ScoreAnswer,
                    lambda answer: _scores(answer, asked),
                    timeout=settings.timeout,
                )
            )

        answered = yield from in_parts(rows, self.limits, "solutions", send)
        results |= {i: result for (i, _), result in zip(rows, answered, strict=True)}
        return [self._counted(question.solution, results[i]) for i, question in enumerate(questions)]

    def rank(
        self, problem: str, candidates: Sequence[Steps | str], split: str | None, settings: Settings
    ) -> Exchange[list[Ranked]]:
        """Rank the candidates of one problem, in one request."""
        if isinstance(candidates, str):
            raise UsageError(f"candidates: expected a list of them, found the single text {candidates!r:.60}")
        questions = [
            Question.of(problem, item, split=split if isinstance(item, str) else None) for item in candidates
        ]
        if not questions:
            return []
        rows = [
            {k: v for k, v in question.fields.items() if k in ("steps", "solution")} for question in questions
        ]
        body: dict[str, Any] = {"problem": problem, "candidates": rows, **settings.body(self.model)}
        if any(question.split is not None for question in questions):
            body["split"] = split
        asked = [question.solution for question in questions]
        try:
            answered = yield from self.ask(
                "/v1/rank", body, RankAnswer, lambda answer: _ranking(answer, asked), timeout=settings.timeout
            )
        except DeclinedError as declined:
            raise complaint(declined) from None
        ranked = []
        for index, result in answered:
            counted = self._counted(asked[index], result)
            ranked.append(
                Ranked(index=index, scored=None, error=counted.error)
                if isinstance(counted, Refusal)
                else Ranked(index=index, scored=counted)
            )
        return ranked

    def ask(
        self,
        path: str,
        body: dict[str, Any] | None,
        model: type[AnyAnswer],
        check: Callable[[AnyAnswer], Value],
        *,
        timeout: float | None = None,
    ) -> Exchange[Value]:
        """POST a body (GET without one), read the answer by its wire model, and check it.

        Raises:
            DeclinedError: the server declines.
            BackendError: no answer, or one that is not what it must be.
        """
        url = self.server.address + path

        def parse(data: Any) -> Value:
            try:
                return check(model.model_validate(data))
            except ValidationError as error:
                raise BackendError(f"{url}: {_first(error)}; no score was made from it") from None
            except _OddError as error:
                raise BackendError(f"{url}: {error}; no score was made from it") from None

        verb, tell = ("GET", False) if body is None else ("POST", path != "/v1/sessions")
        return (yield from self.server.ask(verb, path, body, parse, timeout=timeout, tell=tell))  # type: ignore[arg-type]

    def count(self, **counts: int) -> None:
        """Add to fields of the ledger. Tokens that are computed are distinct but for those that are read again."""
        with self._counting.here:  # several threads may share a client
            for name, value in counts.items():
                setattr(self.ledger, name, getattr(self.ledger, name) + value)
            self.ledger.tokens_distinct = self.ledger.tokens_computed - self.ledger.tokens_again

    def _counted(self, solution: Solution, result: Scored | InputError) -> ScoredSolution | Refusal:
        if isinstance(result, InputError):
            name = f"solution {solution.id!r}" if solution.id is not None else None
            error = type(result)(result.message, where=name, field=result.field)
            return Refusal(solution=solution, error=error)
        scored, tokens = result
        # A server does not say how many of them it had computed before.
        steps = sum(score is not None for score in scored.steps.scores)
        self.count(solutions=1, steps=steps, tokens_in=tokens or 0, tokens_computed=tokens or 0)
        return scored


# Requests.


def batches(items: Iterable[Item], size: Callable[[Item], int], limits: Limits) -> Iterator[list[Item]]:
    """A stream in parts that fit a request; reads no further than the part that it yields."""
    part: list[Item] = []
    total = 0
    for item in items:
        if part and total + size(item) > limits.characters:
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
        if len(part) >= limits.number or total >= limits.characters:
            yield part
            part, total = [], 0
    if part:
        yield part


def in_parts(
    items: Sequence[Item],
    limits: Limits,
    under: str,
    send: Callable[[Sequence[Item]], Exchange[list[Value | InputError]]],
) -> Exchange[list[Value | InputError]]:
    """Send items together; halve a request that is too large or too slow, and leave out items that the server refuses.

    Args:
        items: in order.
        limits: lowered where the server takes less.
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
                limits.number = len(group) // 2
                waiting += [group[limits.number :], group[: limits.number]]
            elif declined.status == 413:
                results[group[0]] = TooLongError(f"too large for the server: {declined.message}")
            else:
                raise complaint(declined) from None
        else:
            results |= dict(zip(group, answered, strict=True))
    return [results[i] for i in range(len(items))]


def complaint(declined: DeclinedError) -> StepmarkError:
    """A declined request as an error for the caller: a wrong setting, or another server than expected."""
    if declined.status in (400, 413) or (declined.status == 404 and declined.field == "model"):
        named = f", field {declined.field!r}" if declined.field else ""
        return UsageError(f"{declined.url}{named}: {declined.message}")
    hint = "; is it a stepmark server?" if declined.status in (404, 405) and declined.type is None else ""
    return BackendError(f"{declined.as_backend_error()}{hint}")


def check_characters(text: str, field: str) -> None:
    """Refuse half of a surrogate pair, which UTF-8 has no character for.

    Raises:
        InputError: there is one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character"
        raise InputError(half, field=field) from None


def _check_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{name}: expected a text, found {value!r:.60}")


def _checked_address(text: str) -> str:
    """The address, if it is a scheme, a host, perhaps a port and a path, and nothing else."""
    scheme, at, rest = text.rpartition("@")
    if at:  # credentials are not repeated
        raise UsageError(
            f"expected a server's address, found {scheme.partition('://')[0] + '://…@' + rest!r}: a key is not part of it, "
            f"{KEY_VARIABLE} holds it"
        )
    try:
        url = httpx.URL(text) if text.startswith(("http://", "https://")) else None
    except httpx.InvalidURL:
        url = None
    plain = not any(character in "?#" or character.isspace() for character in text)
    if url is None or not url.host or not 0 < (url.port or 80) < 2**16 or not plain:
        raise UsageError(f"expected a server's address such as http://127.0.0.1:8000, found {text!r}")
    return text


# Answers.


class _OddError(Exception):
    """An answer that is not what it must be."""

    def __init__(self, place: str, expected: str, actual: object) -> None:
        super().__init__(f"{place}: expected {expected}, found {actual!r:.80}")


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


def _error(body: ErrorBody) -> InputError:
    return _ERRORS.get(body.type, InputError)(body.message, where=body.where, field=_own_field(body.field))


def _check_count(name: str, values: Sequence[object], count: int) -> None:
    if len(values) != count:
        raise _OddError(name, f"{count} entries", f"{len(values)}: {values!r:.60}")


def _check_range(score: float, kind: ScoreKind, place: str) -> None:
    low, high = _BOUNDS.get(kind, (-math.inf, math.inf))
    if not low <= score <= high:
        raise _OddError(place, f"a {kind} in [{low:g}, {high:g}]", score)


def stepped(answer: StepsAnswer, count: int, kind: ScoreKind) -> list[tuple[int, Graded] | InputError]:
    """One node with its score a step, in order."""
    _check_count("results", answer.results, count)
    steps: list[tuple[int, Graded] | InputError] = []
    for i, result in enumerate(answer.results):
        if result.error is not None:
            steps.append(_error(result.error))
            continue
        if result.node is None or result.score is None:
            raise _OddError(f"results[{i}]", "a node and a score", result.model_dump(exclude_unset=True))
        _check_range(result.score, kind, f"results[{i}], score")
        classes = None if result.classes is None else tuple(result.classes)
        graded = Graded(score=result.score, tokens=result.tokens, root=result.root, classes=classes)
        steps.append((result.node, graded))
    return steps


def _scores(answer: ScoreAnswer, asked: Sequence[Solution]) -> list[Scored | InputError]:
    order = [result.index for result in answer.results]
    if order != list(range(len(asked))):
        raise _OddError("results", f"the indices 0 to {len(asked) - 1} in order", order)
    return [_scored(answer, result, item) for result, item in zip(answer.results, asked, strict=True)]


def _ranking(answer: RankAnswer, asked: Sequence[Solution]) -> list[tuple[int, Scored | InputError]]:
    order = [result.index for result in answer.results]
    if sorted(order) != list(range(len(asked))):
        raise _OddError("results", f"each index from 0 to {len(asked) - 1} once", order)
    results = [(result.index, _scored(answer, result, asked[result.index])) for result in answer.results]
    scores = [
        -math.inf if isinstance(item, InputError) or item[0].score is None else item[0].score
        for _, item in results
    ]
    if scores != sorted(scores, reverse=True):
        raise _OddError("results", "the highest score first", scores)
    return results


def _scored(answer: ScoreAnswer | RankAnswer, result: Result, solution: Solution) -> Scored | InputError:
    place = f"results[{result.index}]"
    if result.error is not None:
        return _error(result.error)
    if not solution.steps:
        if not result.steps:
            raise _OddError(place, "the texts of the steps under 'steps'", result.steps)
        steps = tuple(Step(text=text) for text in result.steps)
        solution = Solution(problem=solution.problem, steps=steps, id=solution.id)
    count = len(solution.steps)
    scores = tuple(result.scores or ())
    for name, values in (("scores", scores), ("classes", result.classes), ("critiques", result.critiques)):
        if values is not None:
            _check_count(f"{place}, {name}", values, count)
    for i, score in enumerate(scores):
        if score is not None:
            _check_range(score, answer.score_kind, f"{place}, scores[{i}]")
    if "score" not in result.model_fields_set:
        raise _OddError(place, "a number or null under 'score'", "nothing")
    names = None if answer.class_names is None or result.classes is None else tuple(answer.class_names)
    classes = None
    if result.classes is not None:
        classes = tuple(None if row is None else tuple(row) for row in result.classes)
        for i, row in enumerate(classes):
            if row is not None and len(row) != len(names or row or "?"):
                raise _OddError(f"{place}, classes[{i}]", f"{len(names or ()) or 'some'} numbers", row)
    if result.first_error is not None and result.first_error >= count:
        raise _OddError(f"{place}, first_error", f"-1 to {count - 1} or null", result.first_error)
    findings = None
    if result.findings is not None:
        try:
            findings = read_findings([item.model_dump() for item in result.findings], count)
        except InputError as error:
            raise _OddError(place, "findings of exact checks", str(error)) from None
    scored = ScoredSolution(
        solution=solution,
        steps=StepScores(
            scores=scores,
            kind=answer.score_kind,
            classes=classes,
            class_names=names,
            critiques=None if result.critiques is None else tuple(map(tuple, result.critiques)),
        ),
        score=result.score,
        aggregate=answer.aggregate,
        first_error=result.first_error,
        threshold=answer.threshold,
        prm=answer.model,
        findings=findings,
    )
    return scored, result.tokens
