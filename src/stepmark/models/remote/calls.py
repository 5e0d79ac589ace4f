"""The calls of a score server as exchanges: what is sent in one request, what becomes of refused items, and answers checked against what was asked.

A score too few or too many, a number out of range or a wrong index is an error that says what came.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

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
from stepmark.models.policies.transport import Patience
from stepmark.models.prm import Ledger
from stepmark.models.remote.exchange import DeclinedError, Exchange, PerProcess, Rules
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
    step_number,
)

Item = TypeVar("Item")
Found = TypeVar("Found")
AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
Scored = tuple[ScoredSolution, int | None]
"""A scored solution, and the tokens that the PRM read; None when it does not count."""

_BOUNDS = {"probability": (0.0, 1.0), "margin": (-1.0, 1.0)}
_ERRORS = {"too_long": TooLongError, "marker_in_text": MarkerInTextError, "session_full": SessionFullError}
_TOO_MUCH = frozenset({413, 504})
"""Too large, or not computed in time."""


@final
class ServedModel(PRMFacts):
    """A PRM that a server serves, as `/v1/models` lists it."""

    id: str
    """Its name in requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a server serves."""

    prms: tuple[ServedModel, ...]
    others: tuple[str, ...]
    """Names of models that are no PRM of a stepmark server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """One of several candidates of a problem, in its place."""

    index: int
    """Which one it was, from 0."""
    scored: ScoredSolution | None
    """None for one that cannot be scored."""
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
            UsageError: a way to split, and steps that are split already; or what is no text.
        """
        _check_type(problem, "problem")
        if isinstance(steps, str):
            return cls(solution=Solution(problem=Problem(text=problem), steps=()), text=steps, split=split)
        if split is not None:
            raise UsageError(f"split={split!r} says how a text is split; the steps are given")
        for number, step in enumerate(steps):
            if not isinstance(step, Step):
                _check_type(step, f"steps[{number}]")
        return cls(solution=Solution.of(problem, steps))

    @property
    def characters(self) -> int:
        """Of its texts."""
        steps = sum(len(step.text) + len(step.observation) for step in self.solution.steps)
        return len(self.text or "") + len(self.solution.problem.text) + steps

    @property
    def step_texts(self) -> list[str]:
        """The texts of the steps, each with the observation before it, as `Encoder` joins them."""
        texts, before = [], ""
        for step in self.solution.steps:
            texts.append(f"{before}\n\n{step.text.lstrip()}" if before and step.text.strip() else step.text)
            before = step.observation.strip()
        return texts

    @property
    def fields(self) -> dict[str, Any]:
        """As a request has it.

        Raises:
            InputError: half of a surrogate pair, which UTF-8 has no character for.
        """
        problem, texts = self.solution.problem.text, self.step_texts
        check_characters(problem, "problem")
        check_characters(self.text or "", "solution")
        for number, text in enumerate(texts):
            check_characters(text, f"steps[{number}]")
        split = {} if self.split is None else {"split": self.split}
        return {
            "problem": problem,
            **({"steps": texts} if self.text is None else {"solution": self.text, **split}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is asked of all solutions of a call; None: the server's."""

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


@dataclass(kw_only=True, slots=True)
class Limits:
    """What is sent in one request. A server that takes less (413), or is too slow for as much (504), lowers it."""

    number: int = 64
    """Solutions, or steps of a session."""
    characters: int = 120_000
    """Of their texts; a longer single one is sent alone."""


@final
class Calls:
    """Every call of one server but those of sessions.

    Args:
        address: the server's.
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
        self.rules = Rules(address, patience=patience, rng=rng, clock=clock)
        self.model = model
        self.ledger = Ledger()
        self.limits = Limits(number=batch)
        self._counting = PerProcess(threading.Lock)
        self._served: ServedModel | None = None

    def listing(self) -> Exchange[Listing]:
        """What is served."""
        url = f"{self.rules.address}/v1/models"
        try:
            answer = yield from self.rules.ask(
                "GET", "/v1/models", None, lambda data: read(ModelsAnswer, data, url)
            )
        except DeclinedError as declined:
            raise complaint(declined) from None
        return Listing(
            prms=tuple(
                ServedModel(id=entry.id, **dict(entry.stepmark))
                for entry in answer.data
                if entry.stepmark is not None
            ),
            others=tuple(entry.id for entry in answer.data if entry.stepmark is None),
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
                raise UsageError(f"{self.rules.address}: {asked}, and the PRMs that it serves are: {names}")
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
        rows: list[tuple[int, Question, dict[str, Any]]] = []
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
                rows.append((i, question, question.fields))
            except InputError as error:
                results[i] = error

        def send(part: Sequence[tuple[int, Question, dict[str, Any]]]) -> Exchange[list[Scored | InputError]]:
            asked, url = [question.solution for _, question, _ in part], f"{self.rules.address}/v1/score"
            return (
                yield from self.rules.ask(
                    "POST",
                    "/v1/score",
                    self._body({"solutions": [fields for _, _, fields in part]}, settings),
                    lambda data: _scores(read(ScoreAnswer, data, url), asked, url),
                    timeout=settings.timeout,
                    tell=True,
                )
            )

        answered = yield from in_parts(rows, self.limits, "solutions", send)
        results |= {i: result for (i, _, _), result in zip(rows, answered, strict=True)}
        return [self._counted(question.solution, results[i]) for i, question in enumerate(questions)]

    def _counted(self, solution: Solution, result: Scored | InputError) -> ScoredSolution | Refusal:
        if isinstance(result, InputError):
            name = f"solution {solution.id!r}" if solution.id is not None else None
            return Refusal(
                solution=solution, error=type(result)(result.message, where=name, field=result.field)
            )
        scored, tokens = result
        # How many of them it had computed before, a server does not say.
        steps = sum(score is not None for score in scored.steps.scores)
        self.count(solutions=1, steps=steps, tokens_in=tokens or 0, tokens_computed=tokens or 0)
        return scored

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
        body: dict[str, Any] = {"problem": problem, "candidates": rows}
        if any(question.split is not None for question in questions):
            body["split"] = split
        asked, url = [question.solution for question in questions], f"{self.rules.address}/v1/rank"
        try:
            answered = yield from self.rules.ask(
                "POST",
                "/v1/rank",
                self._body(body, settings),
                lambda data: _ranking(read(RankAnswer, data, url), asked, url),
                timeout=settings.timeout,
                tell=True,
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

    def _body(self, body: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        more = {
            "aggregate": settings.aggregate,
            "threshold": settings.threshold,
            "checks": settings.checks,
            "model": self.model,
        }
        return {**body, **{key: value for key, value in more.items() if value is not None}}

    def count(
        self,
        *,
        solutions: int = 0,
        steps: int = 0,
        tokens_in: int = 0,
        tokens_computed: int = 0,
        tokens_again: int = 0,
    ) -> None:
        """Add to the ledger. Of the tokens computed, all but those read again are distinct."""
        with self._counting.here:  # several threads may share a client
            ledger = self.ledger
            ledger.solutions += solutions
            ledger.steps += steps
            ledger.tokens_in += tokens_in
            ledger.tokens_distinct += tokens_computed - tokens_again
            ledger.tokens_computed += tokens_computed
            ledger.tokens_again += tokens_again


# Requests.


def batches(items: Iterable[Item], size: Callable[[Item], int], limits: Limits) -> Iterator[list[Item]]:
    """A stream in parts that fit a request; reads no further than the part that it gives."""
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
    send: Callable[[Sequence[Item]], Exchange[list[Found | InputError]]],
) -> Exchange[list[Found | InputError]]:
    """Send items together; halve what is too much, and leave out what the server refuses.

    Args:
        items: in order.
        limits: lowered where the server takes less.
        under: the field of the request that holds them.
        send: asks for some of them.

    Raises:
        UsageError: the server declines the request for a reason that is in no single item.
        BackendError: the server failed, or answered nonsense.
    """
    results: dict[int, Found | InputError] = {}
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
            elif declined.status in _TOO_MUCH and len(group) > 1:
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
    """Refuse half of a surrogate pair.

    Raises:
        InputError: there is one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character"
        raise InputError(half, field=field) from None


def _check_type(given: object, what: str) -> None:
    if not isinstance(given, str):
        raise UsageError(f"{what}: expected a text, found {given!r:.60}")


# Answers.


def read(model: type[AnyAnswer], data: Any, url: str) -> AnyAnswer:
    """An answer.

    Raises:
        BackendError: it is none; the message says what came.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(
            "."
        )
        if first["type"] == "missing":
            raise odd(f"{url}: {place}", "a value", "nothing") from None
        expected = first["msg"].removeprefix("Input should be ")
        raise odd(f"{url}: {place}", expected, first["input"]) from None


def odd(place: str, expected: str, actual: object) -> BackendError:
    """An answer that is not what it must be."""
    return BackendError(f"{place}: expected {expected}, found {actual!r:.80}; no score was made from it")


def error_of(body: ErrorBody) -> InputError:
    """The error of a single solution or step; its field begins at the solution, as it would in this process."""
    return _ERRORS.get(body.type, InputError)(body.message, where=body.where, field=_own_field(body.field))


def step_of(
    answer: StepsAnswer, count: int, kind: ScoreKind, url: str
) -> list[tuple[int, Graded] | InputError]:
    """One node with its score a step, in order."""
    _check_count(answer.results, count, url)
    steps: list[tuple[int, Graded] | InputError] = []
    for i, result in enumerate(answer.results):
        place = f"{url}: results[{i}]"
        if result.error is not None:
            steps.append(error_of(result.error))
            continue
        if result.node is None or result.score is None:
            raise odd(place, "a node and a score", result.model_dump(exclude_unset=True))
        _check_range(result.score, kind, f"{place}, score")
        classes = None if result.classes is None else tuple(result.classes)
        graded = Graded(score=result.score, tokens=result.tokens, root=result.root, classes=classes)
        steps.append((result.node, graded))
    return steps


def _own_field(field: str | None) -> str | None:
    """`steps[1]` for `solutions.3.steps.1`: from the solution on, and as errors in this process say it."""
    own = re.sub(r"^(solutions|candidates|steps)\.\d+(\.|$)(?=\D|$)", "", field or "")
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", own) or None


def _check_count(results: Sequence[object], count: int, url: str) -> None:
    if len(results) != count:
        raise BackendError(f"{url}: {count} asked for, {len(results)} answered; no score was made from it")


def _check_range(score: float, kind: ScoreKind, place: str) -> None:
    low, high = _BOUNDS.get(kind, (-math.inf, math.inf))
    if not low <= score <= high:
        raise odd(place, f"a {kind} in [{low:g}, {high:g}]", score)


def _scores(answer: ScoreAnswer, asked: Sequence[Solution], url: str) -> list[Scored | InputError]:
    _check_count(answer.results, len(asked), url)
    for i, result in enumerate(answer.results):
        if result.index != i:
            raise odd(f"{url}: results[{i}]", f"the index {i}", result.index)
    return [_scored(answer, result, item, url) for result, item in zip(answer.results, asked, strict=True)]


def _ranking(
    answer: RankAnswer, asked: Sequence[Solution], url: str
) -> list[tuple[int, Scored | InputError]]:
    _check_count(answer.results, len(asked), url)
    order = [result.index for result in answer.results]
    if sorted(order) != list(range(len(asked))):
        raise odd(f"{url}: results", f"each index from 0 to {len(asked) - 1} once", order)
    results = [(result.index, _scored(answer, result, asked[result.index], url)) for result in answer.results]
    scores = [
        -math.inf if isinstance(item, InputError) or item[0].score is None else item[0].score
        for _, item in results
    ]
    if scores != sorted(scores, reverse=True):
        raise odd(f"{url}: results", "the highest score first", scores)
    return results


def _scored(
    answer: ScoreAnswer | RankAnswer, result: Result, solution: Solution, url: str
) -> Scored | InputError:
    place = f"{url}: results[{result.index}]"
    if result.error is not None:
        return error_of(result.error)
    if not solution.steps:
        if not result.steps:
            raise odd(place, "the texts of the steps under 'steps'", result.steps)
        steps = tuple(Step(text=text) for text in result.steps)
        solution = Solution(problem=solution.problem, steps=steps, id=solution.id)
    count = len(solution.steps)
    for name, values in (
        ("scores", result.scores or []),
        ("classes", result.classes),
        ("critiques", result.critiques),
    ):
        if values is not None and len(values) != count:
            message = f"expected {count} {name}, one a step, found {len(values)}: {values!r:.80}"
            raise BackendError(f"{place}: {message}; no score was made from it")
    scores = tuple(result.scores or ())
    for i, score in enumerate(scores):
        if score is not None:
            _check_range(score, answer.score_kind, f"{place}, scores[{i}]")
    if "score" not in result.model_fields_set:
        raise odd(place, "a number or null under 'score'", "nothing")
    names = None if answer.class_names is None else tuple(answer.class_names)
    classes = None
    if result.classes is not None:
        classes = tuple(None if row is None else tuple(row) for row in result.classes)
        for i, row in enumerate(classes):
            if row is not None and (not row or len(row) != len(names or row)):
                raise odd(f"{place}, classes[{i}]", f"{len(names or ()) or 'some'} numbers", row)
    first, number = result.first_error, result.first_error_step
    if first is not None and first >= count:
        raise odd(place, f"a step from 0 to {count - 1}, -1 or null under 'first_error'", first)
    # Servers before 0.2 do not send first_error_step.
    if "first_error_step" in result.model_fields_set and number != step_number(first):
        raise odd(
            place, f"{step_number(first)}, one more than 'first_error', under 'first_error_step'", number
        )
    findings = None
    if result.findings is not None:
        try:
            findings = read_findings([item.model_dump() for item in result.findings], count)
        except InputError as error:
            raise odd(place, "findings of exact checks", str(error)) from None
    scored = ScoredSolution(
        solution=solution,
        steps=StepScores(
            scores=scores,
            kind=answer.score_kind,
            classes=classes,
            class_names=None if classes is None else names,
            critiques=None if result.critiques is None else tuple(map(tuple, result.critiques)),
        ),
        score=result.score,
        aggregate=answer.aggregate,
        first_error=first,
        threshold=answer.threshold,
        prm=answer.model,
        findings=findings,
    )
    return scored, result.tokens
