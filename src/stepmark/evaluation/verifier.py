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
from typing import Any, ClassVar, Literal

import numpy as np

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.evaluation import Evaluation, Run, Views
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.metrics.intervals import Floats, Interval, Statistic, shares, wilson
from stepmark.problems.answers import Verifier, isolation_note, isolation_of, open_verifier
from stepmark.problems.code_sandbox import Isolation
from stepmark.records import Verdict
from stepmark.settings import settings
from stepmark.show.evaluation import Section, Tile
from stepmark.show.tables import Align, Table
from stepmark.store import Columns, Row, Source, json_type, read_rows

_SHOWN = 300
_LEFT: tuple[Align, ...] = ("left",) * 5
_ERRORS = ("false positives", "false negatives", "unparsed")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedPair:
    """A pair and what each verifier says of it."""

    pair: LabelledPair
    verdicts: tuple[Verdict, ...]
    """In the order of the verifiers."""

    @property
    def disputed(self) -> bool:
        """Two verifiers differ, or one is wrong."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        return len(outcomes) > 1 or any(v.correct not in {None, self.pair.equal} for v in self.verdicts)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierErrors:
    """What one verifier did on all pairs. Rates are None where there is nothing to count."""

    verifier: str
    equal: int
    """Pairs of equal answers."""
    different: int
    """Pairs of different answers."""
    false_positives: int
    """Different answers that it matched."""
    false_negatives: int
    """Equal answers that it told apart."""
    unparsed_equal: int
    """Equal answers without a verdict."""
    unparsed_different: int
    """Different answers without a verdict."""
    false_positive_rate: Interval
    """Of the different pairs; Wilson's interval, for pairs that are independent."""
    false_negative_rate: Interval
    """Of the equal pairs."""
    unparsed_rate: Interval
    """Of all pairs."""


def check_pairs(pairs: Iterable[LabelledPair], verifiers: Sequence[Verifier]) -> Iterator[CheckedPair]:
    """Ask every verifier about every pair, as a stream.

    Raises:
        UsageError: no verifier, or two of one name.
    """
    names = [verifier.name for verifier in verifiers]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"expected one or more verifiers of different names, found {', '.join(names) or 'none'}"
        )
    return (
        CheckedPair(pair=pair, verdicts=tuple(v.verify(pair.answer, pair.gold) for v in verifiers))
        for pair in pairs
    )


def errors_of(checked: Sequence[CheckedPair], *, level: float = 0.95) -> tuple[VerifierErrors, ...]:
    """The errors of each verifier, in their order.

    Raises:
        InputError: there are no pairs.
    """
    if not checked:
        raise InputError("there are no pairs to check")
    found = []
    for at, verdict in enumerate(checked[0].verdicts):
        counts = {
            (equal, outcome): 0 for equal in (True, False) for outcome in ("match", "mismatch", "unparsed")
        }
        for one in checked:
            counts[one.pair.equal, one.verdicts[at].outcome] += 1
        equal = sum(n for (truth, _), n in counts.items() if truth)
        different = len(checked) - equal
        unparsed = counts[True, "unparsed"] + counts[False, "unparsed"]
        found.append(
            VerifierErrors(
                verifier=verdict.verifier,
                equal=equal,
                different=different,
                false_positives=counts[False, "match"],
                false_negatives=counts[True, "mismatch"],
                unparsed_equal=counts[True, "unparsed"],
                unparsed_different=counts[False, "unparsed"],
                false_positive_rate=wilson(counts[False, "match"], different, level=level),
                false_negative_rate=wilson(counts[True, "mismatch"], equal, level=level),
                unparsed_rate=wilson(unparsed, len(checked), level=level),
            )
        )
    return tuple(found)


def items_of(checked: Sequence[CheckedPair]) -> list[Item]:
    """One item a pair: the two answers, the truth, and every verdict."""
    return [
        {
            "id": one.pair.id,
            "problem": one.pair.problem,
            "gold": one.pair.gold,
            "answer": next((v.answer for v in one.verdicts if v.answer is not None), None),
            "equal": one.pair.equal,
            "why": one.pair.why,
            "verdicts": {v.verifier: {"outcome": v.outcome, "note": v.note} for v in one.verdicts},
        }
        for one in checked
    ]


def statistic(items: Sequence[Item]) -> Statistic:
    """Per verifier `false positives`, `false negatives` and `unparsed` as shares, as functions of the items' weights."""
    names = list(items[0]["verdicts"]) if items else []
    equal = np.array([item["equal"] for item in items], dtype=bool)

    def figures(weights: Floats) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        for name in names:
            outcome = np.array([item["verdicts"][name]["outcome"] for item in items])
            for what, hit, base in (
                (_ERRORS[0], ~equal & (outcome == "match"), ~equal),
                (_ERRORS[1], equal & (outcome == "mismatch"), equal),
                (_ERRORS[2], outcome == "unparsed", np.ones_like(equal)),
            ):
                found[f"{name}/{what}"] = shares(weights @ hit.astype(float), weights @ base.astype(float))
        return found

    return figures


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
    """Of candidates, check their `answer` or their whole `text` (finding the answer is then tested too)."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Of math and number: "distinct", 10% is 1/10 and not 10; "sign", it is 10 too, as GSM8K's references have it."""
    isolation: Isolation | None = None
    """Of code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: your files are open to them. Default: bubblewrap."""

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        isolation = isolation_of("code" if "code" in self.verifier else None, self.isolation)
        if isolation is not None:
            run.note(isolation_note(isolation))
        pairs = list(read_pairs(run.data, part=self.part, columns=run.columns))
        taken = run.spaced(pairs)
        if len(taken) < len(pairs):
            run.facts.append(
                f"Only {len(taken):,} of {len(pairs):,} pairs were checked (limit {run.limit}), evenly spaced."
            )
        checked = []
        with ExitStack() as stack:
            verifiers = [
                stack.enter_context(
                    open_verifier(
                        name,
                        percent=self.percent if name in ("math", "number") else "distinct",
                        isolation=isolation if name == "code" else None,
                    )
                )
                for name in self.verifier
            ]
            for number, one in enumerate(check_pairs(taken, verifiers), start=1):
                checked.append(one)
                if number % 1000 == 0:
                    run.note(f"checked {number:,} of {len(taken):,} pairs")
        given = {} if isolation is None else {"isolation": isolation}
        return self.of_checked(checked, run, **given)

    def of_checked(self, checked: Sequence[CheckedPair], run: Run, **filled: Any) -> Result:
        """The report on one or more verifiers.

        Intervals are Wilson's where every pair is a problem of its own, else a bootstrap over problems.

        Args:
            checked: what `check_pairs` gives.
            run: the run.
            filled: settings of this class that were filled in.

        Raises:
            InputError: there are no pairs.
        """
        errors = errors_of(checked)
        items = items_of(checked)
        problems = len({item["problem"] for item in items})
        independent = problems == len(items)
        figures = _wilson(errors) if independent else run.figures(items, statistic(items))
        disputed = [one for one in checked if one.disputed]
        views = Views(
            title=f"Verifiers: {', '.join(one.verifier for one in errors)}",
            facts=(
                f"{len(items):,} pairs of answers of {problems:,} problems: {errors[0].equal:,} equal, {errors[0].different:,} "
                "different. A pair without a verdict counts as neither error.",
                "Intervals are Wilson's at 95%."
                if independent
                else "Intervals are a bootstrap over problems at 95%.",
            ),
            tiles=[
                Tile(
                    label=f"{one.verifier}: {what}",
                    value=shown(figures[f"{one.verifier}/{what}"]).split(" ")[0],
                    detail=f"percent; {count:,} of {base:,}",
                )
                for one in errors
                for what, count, base in (
                    (_ERRORS[0], one.false_positives, one.different),
                    (_ERRORS[1], one.false_negatives, one.equal),
                )
            ],
            sections=(
                Section(title="Errors", items=(_table(errors, figures),)),
                Section(title="Where they err or differ", items=(_rows(disputed, errors),)),
            ),
        )
        return run.result(self, views, figures, items, **filled)


def _wilson(errors: Sequence[VerifierErrors]) -> dict[str, Figure]:
    return {
        f"{one.verifier}/{what}": Figure(
            name=f"{one.verifier}/{what}",
            value=rate.value,
            low=rate.low,
            high=rate.high,
            level=rate.level,
            policy="",
        )
        for one in errors
        for what, rate in zip(
            _ERRORS, (one.false_positive_rate, one.false_negative_rate, one.unparsed_rate), strict=True
        )
    }


def _table(errors: Sequence[VerifierErrors], figures: Mapping[str, Figure]) -> Table:
    return Table(
        title="Errors of each verifier",
        columns=("verifier", "false positives, %", "of different", "false negatives, %", "of equal", "unparsed, %",
                 "equal unparsed", "different unparsed"),
        rows=tuple(
            (
                one.verifier,
                shown(figures[f"{one.verifier}/{_ERRORS[0]}"]),
                f"{one.false_positives:,} of {one.different:,}",
                shown(figures[f"{one.verifier}/{_ERRORS[1]}"]),
                f"{one.false_negatives:,} of {one.equal:,}",
                shown(figures[f"{one.verifier}/{_ERRORS[2]}"]),
                f"{one.unparsed_equal:,}",
                f"{one.unparsed_different:,}",
            )
            for one in errors
        ),
    )  # fmt: skip


def _rows(disputed: Sequence[CheckedPair], errors: Sequence[VerifierErrors]) -> Table:
    left_out = len(disputed) - _SHOWN
    return Table(
        title=f"{len(disputed):,} pairs where two verifiers differ or one is wrong",
        columns=("pair", "reference", "answer", "truth", *(one.verifier for one in errors), "why"),
        rows=tuple(
            (
                one.pair.id,
                _short(one.pair.gold),
                _short(next((v.answer for v in one.verdicts if v.answer is not None), None) or "–"),
                "equal" if one.pair.equal else "different",
                *(
                    f"{v.outcome}{'' if v.correct in {None, one.pair.equal} else ' (wrong)'}: {_short(v.note or '')}"
                    for v in one.verdicts
                ),
                one.pair.why or "",
            )
            for one in disputed[:_SHOWN]
        ),
        align=(*_LEFT, *(_LEFT[0] for _ in errors)),
        note=f"The first {_SHOWN:,}; the JSON file holds the other {left_out:,} too." if left_out > 0 else "",
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:79]}…"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPair:
    """Two answers, and whether they are equal."""

    gold: str
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

    Args:
        files: as `store.read_rows` takes them.
        part: for candidates, what is checked: "answer" (their `answer`, and `text` where a candidate has no such key) or
            "text" (always the text, so that finding the answer is checked too).
        columns: as `store.read_rows`.

    Raises:
        InputError: with `FILE:LINE` and the field: a missing or unknown key, a wrong type, an id twice.
        UsageError: another `part`.
    """
    if part not in {"answer", "text"}:
        raise UsageError(f"part: expected 'answer' or 'text', found {part!r}")
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


def _text(data: Mapping[str, Any], key: str, where: str, *, null: bool = False) -> str | None:
    value = data.get(key)
    if (value is None and null and key in data) or (isinstance(value, str) and (value.strip() or null)):
        return value
    found = json_type(value) if key in data else "no such key"
    blank = isinstance(value, str)
    raise InputError(
        f"expected a string{' or null' if null else ''}, found {'a blank one' if blank else found}",
        where=where,
        field=key,
    )


def _truth(data: Mapping[str, Any], key: str, where: str) -> bool:
    value = data.get(key)
    if not isinstance(value, bool):
        found = json_type(value) if key in data else "no such key"
        raise InputError(f"expected true or false, found {found}", where=where, field=key)
    return value


def _pair(row: Row) -> Iterator[LabelledPair]:
    if ("answer" in row.data) == ("text" in row.data):
        raise InputError(
            "expected either `answer` (bare) or `text` (a solution)", where=row.where, field="answer"
        )
    gold = _text(row.data, "gold", row.where)
    assert gold is not None
    id_ = _text(row.data, "id", row.where) if "id" in row.data else row.where
    assert id_ is not None
    yield LabelledPair(
        gold=gold,
        answer=_text(row.data, "answer" if "answer" in row.data else "text", row.where, null=True),
        equal=_truth(row.data, "equal", row.where),
        id=id_,
        problem=id_,
        where=row.where,
        why=_text(row.data, "why", row.where) if "why" in row.data else None,
    )


def _candidates(row: Row, part: str) -> Iterator[LabelledPair]:
    gold = row.data.get("gold")
    if isinstance(gold, bool) or not isinstance(gold, str | int | float) or not str(gold).strip():
        raise InputError(
            f"expected the reference answer, found {json_type(gold)}", where=row.where, field="gold"
        )
    id_ = _text(row.data, "id", row.where)
    listed = row.data["candidates"]
    if not isinstance(listed, list):
        raise InputError(f"expected a list, found {json_type(listed)}", where=row.where, field="candidates")
    for number, candidate in enumerate(listed):
        place = f"{row.where}, candidate {number} (0-based)"
        if not isinstance(candidate, dict):
            raise InputError(f"expected an object, found {json_type(candidate)}", where=place)
        if "correct" in candidate and candidate["correct"] is None:
            continue
        key = "answer" if part == "answer" and "answer" in candidate else "text"
        yield LabelledPair(
            gold=str(gold),
            answer=_text(candidate, key, place, null=True),
            equal=_truth(candidate, "correct", place),
            id=f"{id_}/{number}",
            problem=str(id_),
            where=row.where,
        )
