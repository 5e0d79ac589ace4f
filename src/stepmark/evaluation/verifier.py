"""How often a verifier is wrong: its verdicts against labelled pairs of answers.

Two errors are counted apart, because they harm apart. A false positive (a match of two different answers) rewards a wrong
solution; a false negative (a mismatch of two equal ones) punishes a right one, and does so for every solution of that problem
alike, so that more rollouts do not average it out. A pair without a verdict is neither.

Formats, one JSON object a line:

- labelled pairs: `gold`, `equal` (true or false), `answer` (bare; null for none) or `text` (a whole solution), and
  optionally `id` and `why`;
- candidates: `id`, `gold` and `candidates`, each with `correct` and `answer` or `text`. Candidates whose
  `correct` is null are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stepmark.data.columns import Columns, identifier, reference_answer
from stepmark.data.reading import Row, Source, read_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import Evaluation, Run, counted
from stepmark.evaluation.result import EvaluationResult, Figure, Item, shown
from stepmark.evaluation.views import Cell, Column, table_of, tile, written
from stepmark.metrics.intervals import Statistic, ratio_statistic, wilson
from stepmark.records import read_record
from stepmark.report.evaluation import Report, Section
from stepmark.report.tables import ABSENT, Table
from stepmark.settings import settings
from stepmark.verifiers.base import Verifier, isolation_note, isolation_of, open_verifier
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.words import amount

_SHOWN = 300
FALSE_POSITIVES, FALSE_NEGATIVES, UNPARSED = ERRORS = ("false positives", "false negatives", "unparsed")


def check_pairs(pairs: Iterable[LabelledPair], verifiers: Sequence[Verifier]) -> Iterator[Item]:
    """Ask every verifier about every pair, as a stream: one item a pair with the two answers, the truth, and every verdict."""
    for pair in pairs:
        verdicts = [verifier.verify(pair.answer, pair.gold) for verifier in verifiers]
        yield {
            "id": pair.id,
            "problem": pair.problem,
            "gold": pair.gold,
            "answer": next((v.answer for v in verdicts if v.answer is not None), None),
            "equal": pair.equal,
            "why": pair.why,
            "verdicts": {v.verifier: {"outcome": v.outcome, "note": v.note} for v in verdicts},
        }


def errors_of(items: Sequence[Item]) -> dict[str, tuple[list[bool], list[bool]]]:
    """Per VERIFIER/ERROR which items are errors, and in which the verifier could have made that error."""
    errors = {}
    for name in items[0]["verdicts"] if items else ():
        outcomes = [(item["equal"], item["verdicts"][name]["outcome"]) for item in items]
        equal = [truth for truth, _ in outcomes]
        errors[f"{name}/{FALSE_POSITIVES}"] = (
            [outcome == (False, "match") for outcome in outcomes],
            [not entry for entry in equal],
        )
        errors[f"{name}/{FALSE_NEGATIVES}"] = ([outcome == (True, "mismatch") for outcome in outcomes], equal)
        errors[f"{name}/{UNPARSED}"] = (
            [outcome[1] == "unparsed" for outcome in outcomes],
            [True] * len(items),
        )
    return errors


@settings
class VerifierAccuracy(Evaluation):
    """False positives and negatives of answer verifiers on labelled pairs, and the rows where they differ or err.

    The data are JSON lines of labelled pairs ({"gold", "answer" or "text", "equal", optional "id", "why"}), or of candidates with `gold` and
    `correct`.
    """

    name: ClassVar[str] = "verifier"
    models: ClassVar[tuple[str, ...]] = ()
    verifier: Sequence[str] = ("math", "number", "text")
    """Which to test: math, number, choice, text, code, or "package.module:Class"."""
    part: Literal["answer", "text"] = "answer"
    """What to check of candidates: their `answer` or their whole `text` (finding the answer is then tested too)."""
    answers: Literal["stated", "marked"] = "stated"
    """Which answers of a text count: stated, also its concluding statement; marked, only a box, ####, "the answer is"."""
    isolation: Isolation | None = None
    """For code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if not self.verifier or len(set(self.verifier)) < len(self.verifier):
            raise UsageError(
                f"`verifier`: expected one or more different names, found {', '.join(self.verifier) or 'none'}"
            )

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """Per verifier `false positives`, `false negatives` and `unparsed` as shares, as functions of the items' weights."""
        return ratio_statistic(errors_of(items))

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        isolation = isolation_of("code" if "code" in self.verifier else None, self.isolation)
        if isolation is not None:
            run.note(isolation_note(isolation))
        pairs = list(read_pairs(run.data, part=self.part, columns=run.columns))
        taken = run.spaced(pairs)
        if len(taken) < len(pairs):
            run.facts.append(
                f"Only {len(taken):,} of {amount(len(pairs), 'pair')} were checked (limit {run.limit}), evenly spaced."
            )
        items = []
        with ExitStack() as stack:
            verifiers = [
                stack.enter_context(
                    open_verifier(
                        name,
                        answers=self.answers,
                        isolation=isolation if name == "code" else None,
                    )
                )
                for name in self.verifier
            ]
            for number, item in enumerate(check_pairs(taken, verifiers), start=1):
                items.append(item)
                if number % 1000 == 0:
                    run.note(f"checked {number:,} of {amount(len(taken), 'pair')}")
        given = {} if isolation is None else {"isolation": isolation}
        return self.of_items(items, run, **given)

    def of_items(self, items: Sequence[Item], run: Run, **filled: Any) -> EvaluationResult:
        """The report on one or more verifiers.

        Intervals are Wilson's where every pair is a problem of its own, else a bootstrap over problems.
        """
        if not items:
            raise InputError("there are no pairs to check")
        errors = errors_of(items)
        names = list(items[0]["verdicts"])
        problems = len({item["problem"] for item in items})
        independent = problems == len(items)
        figures = _wilson(errors) if independent else run.figures(items, ratio_statistic(errors))
        equal = sum(item["equal"] for item in items)

        def count(error: str) -> Cell:
            return lambda name: " of ".join(f"{sum(of):,}" for of in errors[f"{name}/{error}"])

        columns: dict[str, Column] = {}
        for error in ERRORS:
            columns |= {f"{error}, %": f"{{}}/{error}", f"{error}, count": count(error)}
        intervals = "Wilson's" if independent else "a bootstrap over problems"
        report = Report(
            title=f"Verifiers: {', '.join(names)}",
            verdict=_verdict(figures, names),
            facts=(
                f"{counted(items, 'pair')}: {equal:,} equal, {len(items) - equal:,} different. A pair without a verdict counts as neither error.",
                f"Intervals are {intervals} at 95%.",
            ),
            tiles=[
                tile(f"{name}: {error} (%)", figures[f"{name}/{error}"], detail=written(count(error)(name)))
                for name in names
                for error in ERRORS[:2]
            ],
            sections=(
                Section(
                    title="Errors",
                    items=(table_of("Errors of each verifier", "verifier", names, columns, figures),),
                ),
                Section(title="Where they err or differ", items=(_disputed(items, names),)),
            ),
        )
        return run.result(self, report, figures, items, **filled)


def _verdict(figures: Mapping[str, Figure], names: Sequence[str]) -> str:
    parts = [
        f"{name} takes {shown(figures[f'{name}/{FALSE_POSITIVES}'])} % of different answers for equal and "
        f"{shown(figures[f'{name}/{FALSE_NEGATIVES}'])} % of equal ones for different"
        for name in names
    ]
    return f"{'; '.join(parts)}."


def _wilson(errors: Mapping[str, tuple[Sequence[bool], Sequence[bool]]]) -> dict[str, Figure]:
    figures = {}
    for name, (hits, of) in errors.items():
        rate = wilson(sum(hits), sum(of))
        figures[name] = Figure(
            name=name, value=rate.value, low=rate.low, high=rate.high, level=rate.level, policy=""
        )
    return figures


def _disputed(items: Sequence[Item], names: Sequence[str]) -> Table:
    """The pairs on which two verifiers differ, or one is wrong."""

    def outcomes(item: Item) -> list[str]:
        return [item["verdicts"][name]["outcome"] for name in names]

    by_id = {
        item["id"]: item
        for item in items
        if len(set(outcomes(item))) > 1 or ("mismatch" if item["equal"] else "match") in outcomes(item)
    }

    def verdict(of: str) -> Column:
        def text(id_: str) -> str:
            item = by_id[id_]
            said = item["verdicts"][of]
            wrong = " (wrong)" if said["outcome"] == ("mismatch" if item["equal"] else "match") else ""
            return f"{said['outcome']}{wrong}: {_short(said['note'] or '')}"

        return "text", text

    more = len(by_id) - _SHOWN
    return table_of(
        f"{amount(len(by_id), 'pair')} where two verifiers differ or one is wrong",
        "pair",
        list(by_id)[:_SHOWN],
        {
            "reference": ("text", lambda id_: _short(by_id[id_]["gold"])),
            "answer": ("text", lambda id_: _short(by_id[id_]["answer"] or ABSENT)),
            "truth": ("text", lambda id_: "equal" if by_id[id_]["equal"] else "different"),
            **{name: verdict(name) for name in names},
            "why": ("text", lambda id_: by_id[id_]["why"] or ""),
        },
        {},
        note=f"The first {_SHOWN:,}; the JSON file holds the other {more:,} too." if more > 0 else "",
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:79]}…"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPair:
    """Two answers, and whether they are equal."""

    gold: Annotated[str, Field(pattern=r"\S")]
    """The reference."""
    answer: str | None
    """A bare answer or a whole solution; None when the solution named none."""
    equal: bool
    """The truth."""
    id: str
    """Its name; FILE:LINE when the file gives none."""
    problem: str
    """What it belongs to: pairs of one problem are not independent. Its own id for labelled pairs."""
    where: str
    """FILE:LINE."""
    why: str | None = None
    """Why they are equal or not, where the file says so."""


def read_pairs(
    files: Sequence[Source], *, part: str = "answer", columns: Columns | None = None
) -> Iterator[LabelledPair]:
    """Read labelled pairs or candidates; the two may not be mixed within a row.

    Of candidates `part` says what is checked: "answer" (their `answer`, and `text` where a candidate has no such key) or "text" (always the text,
    so that finding the answer is checked too).
    """
    seen: dict[str, str] = {}
    for file in files:
        for row in read_rows(file, columns=columns):
            for pair in _candidates(row, part) if "candidates" in row.data else _pair(row):
                if pair.id in seen:
                    raise InputError(
                        f"the id {pair.id!r} stands at {seen[pair.id]} too", where=row.where, field="id"
                    )
                seen[pair.id] = row.where
                yield pair


def _pair(row: Row) -> Iterator[LabelledPair]:
    if ("answer" in row.data) == ("text" in row.data):
        raise InputError(
            "expected either `answer` (bare) or `text` (a solution)", where=row.where, field="answer"
        )
    given: dict[str, Any] = {key: row.data[key] for key in ("gold", "equal", "why") if key in row.data}
    answer, id_ = row.data.get("answer", row.data.get("text")), row.data.get("id", row.where)
    whole = {**given, "answer": answer, "id": id_, "problem": id_, "where": row.where}
    yield read_record(LabelledPair, whole, where=row.where)


def _candidates(row: Row, part: str) -> Iterator[LabelledPair]:
    listed = row.data["candidates"]
    try:
        (gold, _), (id_, _) = reference_answer(row.data), identifier(row.data)
    except InputError as error:
        raise error.at(row.where) from None
    if gold is None:
        raise InputError("expected the reference answer, found none", where=row.where, field="answer")
    if not isinstance(listed, list) or not all(isinstance(candidate, dict) for candidate in listed):
        raise InputError("expected a list of objects", where=row.where, field="candidates")
    id_ = id_ or row.place
    for number, candidate in enumerate(listed):
        place = f"{row.where}, candidate {number} (0-based)"
        if not isinstance(candidate.get("correct", ""), bool | None):
            raise InputError("expected true, false or null", where=place, field="correct")
        if candidate["correct"] is not None:
            answer = candidate.get("text")
            if part == "answer" and "answer" in candidate:
                answer = candidate["answer"]
            own: dict[str, Any] = {"gold": gold, "answer": answer, "equal": candidate["correct"]}
            own |= {"id": f"{id_}/{number}", "problem": id_, "where": row.where}
            yield read_record(LabelledPair, own, where=place)
