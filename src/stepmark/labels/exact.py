"""Exact labels: errors put on purpose into worked solutions whose calculations are marked.

A line such as "She sold 48/2 = <<48/2=24>>24 clips" says what is computed, so an altered copy is wrong for a known reason. Nothing is executed:
calculations are read by a parser for + - * / and computed in exact fractions. `with_errors` makes whole solutions, with the error carried
through all that depends on it. The `note` of a wrong step's judgement names the kind. In each of the eight the step judged wrong is false:

=============  ==========================================================================================================
`value`        a right calculation with a wrong result
`operand`      a wrong number in a calculation, which is then carried out rightly
`operation`    a wrong sign, likewise
`unit`         the right number in a wrong unit: hours for minutes
`dropped`      a step is left out, and its result replaced by the number it started from. Wrong is the first step that uses it
`repeated`     a step is done twice, the second time on its own result. Wrong is the second
`jump`         a wrong result is asserted without its calculation
`early stop`   the solution ends too early, with the result of a step on the way as its answer. Wrong is the answer
=============  ==========================================================================================================

Every later calculation that uses an altered result is computed again, and so is the answer. Where this is not sure (the same number
stands for something else too, stands in words, or a later result would be negative, or a fraction where it was whole), that place is not
used, and every line is checked once more by `verifiers.checks`. Steps before the error are judged right, the step with the error wrong, the
steps after it not: they go on faithfully from what is false. Numbers are written as the right ones were, but `dropped` and `early stop`
shorten a solution and `repeated` lengthens it: train on kinds together. A jump has a right twin, the same line with the right result.
"""

from __future__ import annotations

import ast
import contextlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from stepmark.data.columns import content_of
from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.data.reading import Row, Source, read_rows
from stepmark.data.solutions import SolutionRow, read_solutions
from stepmark.errors import InputError, SettingError, UsageError
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.loading import Worked, worked_row
from stepmark.records import Judgement, LabelledSolution, Refusal, Solution, Step
from stepmark.settings import checked, settings
from stepmark.store import (
    Results,
    RunInput,
    atomic_rows,
    check_outputs,
    is_stream,
    run_input,
    write_beside,
    write_manifest,
)
from stepmark.verifiers.checks.equations import calculations
from stepmark.verifiers.finder import find_answer
from stepmark.words import amount

Kind = Literal["value", "operand", "operation", "unit", "dropped", "repeated", "jump", "early stop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds of errors."""
_REPEATS = 3
"""Errors of a kind that are there already, after which no more of it are sought."""


@checked
def plant_errors(
    solutions: Source | None = None,
    *,
    out: str | Path | None = None,
    arithmetic: Annotated[int, Field(ge=1)] | None = None,
    wrong: int = 4,
    kinds: Sequence[Kind] = KINDS,
    seed: int = 0,
    split: str = "auto",
    columns: Mapping[str, str] | None = None,
    keep_going: bool = False,
) -> Results[LabelledRow]:
    """Put errors into right solutions and carry them through the later steps: true labels, without any model.

    Right solutions are GSM8K's rows, {"question": "…", "answer": "… <<48/2=24>>24 … #### 24"}, or {"problem": "…", "steps": […],
    "answer": "…"} (or a text under "solution") whose steps write their calculations out (48 / 2 = 24). Solutions that are not right, or have
    no place for an error, are left out and counted.

    Args:
        solutions: a file, dicts, records, a data set or a data frame. None with `arithmetic`.
        out: write the labelled solutions to this file (format stepmark-labels), gzipped if its name ends in .gz; "-" for standard output.
            What is left out is listed in OUT.refused.jsonl.
        arithmetic: in the place of solutions: right solutions of this many problems of the arithmetic world, made from `seed`.
        wrong: wrong variants of each solution, at most: of every kind in turn, as far as there are places for them.
        kinds: kinds of errors to put in: value, operand, operation, unit, dropped, repeated, jump, "early stop".
        seed: seed of the places and the errors.
        split: how a text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole.
        columns: names of columns, where they differ: problem=question,solution=response.
        keep_going: leave out rows that are no solutions too.

    Returns:
        For each solution: the right one, its wrong variants, and a right twin of each jump, as `LabelledRow`s: `labelled` holds the
        judgements, `outcome` whether the final answer is right, `meta` the `kind` of error and `first_error` (0-based, -1 for none).

    Raises:
        InputError: a row that is no solution (unless `keep_going`), or no error could be put into any.
        UsageError: a setting that cannot work, or an output that is an input.
    """
    if (solutions is None) == (arithmetic is None):
        raise UsageError(
            "expected either right solutions or `arithmetic`, a number of problems, and not both"
        )
    check_outputs({"out": out}, solutions)
    errors = ExactErrors(wrong=wrong, kinds=tuple(kinds), seed=seed)
    run = None if solutions is None else run_input(solutions, again=True)
    manifest = {
        "command": "label exact",
        "input": {"arithmetic": arithmetic} if run is None else run.manifest,
        "method": {"name": "exact", **asdict(errors)},
        "settings": {"split": split, "columns": columns, "keep_going": keep_going},
    }
    made: Counter[str] = Counter()
    refused: list[dict[str, Any]] = []
    records: list[LabelledRow] = []
    worked_solutions = (
        _of_the_world(arithmetic or 0, seed) if run is None else _worked(run, columns, split, keep_going)
    )
    with atomic_rows(out) as write:
        for where, source in worked_solutions:
            try:
                if isinstance(source, InputError):
                    raise source
                rows = errors.make(source, where)
            except InputError as error:
                refused.append({"where": where, "why": error.message})
                continue
            for row in rows:
                right = "right" if "kind" not in row.meta else "twin"
                made[right if row.meta["first_error"] == -1 else row.meta["kind"]] += 1
                write(to_row(row.labelled, outcome=row.outcome, meta=row.meta))
                if out is None:
                    records.append(row)
        if not made:
            why = f": {refused[0]['where']}: {refused[0]['why']}" if refused else ""
            name = None if run is None else run.name
            raise InputError(f"no error could be put into any solution{why}", where=name)
    counts = {"made": made, "refused": Counter(entry["why"] for entry in refused)}
    facts = {name: dict(numbers.most_common()) for name, numbers in counts.items()}
    write_manifest(out, {**manifest, **facts})
    written = Path(out) if out is not None and not is_stream(out) else None
    beside = None if written is None else write_beside(written, "refused", refused)
    wrote = [] if written is None else [f"wrote {out}"]
    return Results(
        (lambda: iter(records)) if written is None else lambda: read_labelled(written),
        sum(made.values()),
        out=written,
        refused=[f"{entry['where']}: {entry['why']}" for entry in refused],
        manifest={**manifest, **facts},
        summary="\n".join([*_summary(made, refused, beside), *wrote]),
    )


def _of_the_world(count: int, seed: int) -> Iterator[tuple[str, Worked]]:
    for number, problem in enumerate(arithmetic_problems(count, seed=seed)):
        yield problem.id or f"arithmetic:{number}", problem.worked


def _worked(
    run: RunInput, columns: Mapping[str, str] | None, split: str, keep_going: bool
) -> Iterator[tuple[str, Worked | InputError]]:
    """Right solutions, each with its name, NAME:LINE; an error in the place of one that cannot be used.

    Raises:
        InputError: a row that is no solution, unless `keep_going`.
    """
    first = next(read_rows(run.source, columns=columns, keep_going=True))
    is_gsm8k = (
        isinstance(first, Row) and {"question", "answer"} <= set(first.data) and not content_of(first.data)
    )
    rows: Iterable[Row | SolutionRow | Refusal] = (
        read_rows(run.source, columns=columns, keep_going=True)
        if is_gsm8k
        else read_solutions(run.source, columns=columns, how=split, keep_going=True)
    )
    for row in rows:
        where = (row.error.where or run.name) if isinstance(row, Refusal) else row.where
        name = Path(where).name  # without the folder: equal inputs give equal files wherever they lie
        try:
            if isinstance(row, Refusal):
                raise row.error
            worked = worked_row(row) if isinstance(row, Row) else worked_of(row.solution)
        except InputError as error:
            # A solution that is not right is no broken row: it is left out and counted.
            if not keep_going and not isinstance(row, SolutionRow):
                error.add_note("with `keep_going`, rows that are no solutions are left out and listed")
                raise
            yield name, error
        else:
            own = worked.problem.id not in (None, where)
            yield name, worked if own else replace(worked, problem=replace(worked.problem, id=name))


def _summary(counts: Counter[str], refused: Sequence[Mapping[str, Any]], beside: str | None) -> list[str]:
    kinds = {kind: count for kind, count in counts.most_common() if kind in KINDS}
    lines = [
        f"{amount(counts['right'], 'right solution')}, {amount(counts['twin'], 'right twin')} of jumps, {amount(sum(kinds.values()), 'wrong one')}: "
        + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    ]
    if refused:
        listed = f", listed in {beside}" if beside else ""
        lines.append(f"left out {amount(len(refused), 'solution')}{listed}:")
        # "a calculation is false: step 3: …" is of one row; the count is of the kind of reason.
        reasons = Counter(entry["why"].partition(":")[0] for entry in refused)
        lines += [f"  {count:,} x {why}" for why, count in reasons.most_common()]
    return lines


@settings
class ExactErrors:
    """How many errors are put in, and which; see `exact`."""

    wrong: Annotated[int, Field(ge=1)] = 4
    kinds: tuple[Kind, ...] = KINDS
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise SettingError("kinds", list(self.kinds), "one or more different kinds")

    def make(self, worked: Worked, where: str) -> list[LabelledRow]:
        """The right solution, its wrong variants, no two alike, and the right twins of its jumps.

        Equal solutions, settings and seeds give equal variants, wherever in a file they stand. `where` names a solution without an id.

        Raises:
            InputError: a marked or written calculation is false, there is none that is read, the answer is no number, or no error
                of these kinds has a place.
        """
        _check_right(worked)
        rng = random.Random("\n".join((str(self.seed), worked.problem.text, *worked.lines)))
        (right,) = with_errors(worked, rng, kinds=())
        wrong: dict[tuple[str, ...], tuple[LabelledSolution, Kind]] = {}
        twins: dict[tuple[str, ...], LabelledSolution] = {}
        tries = dict.fromkeys(self.kinds, _REPEATS)
        while tries and len(wrong) < self.wrong:
            for kind in rng.sample(list(tries), len(tries)):
                if len(wrong) == self.wrong:
                    break
                (_, *variants) = with_errors(worked, rng, kinds=(kind,))
                if variants and variants[-1].solution.texts not in wrong:
                    wrong[variants[-1].solution.texts] = variants[-1], kind
                    twins |= {twin.solution.texts: twin for twin in variants[:-1]}
                    continue
                tries[kind] -= 1 if variants else tries[kind]
                if not tries[kind]:
                    del tries[kind]
        if not wrong:
            raise InputError("no place for any of these kinds of errors")
        twins.pop(right.solution.texts, None)

        def row(labelled: LabelledSolution, name: str, kind: Kind | None) -> LabelledRow:
            place = next(
                (i for i, step in enumerate(labelled.judgements) if step and step[0].rating == -1), -1
            )
            named = replace(labelled.solution, id=f"{worked.problem.id or where}/{name}")
            return LabelledRow(
                labelled=replace(labelled, solution=named),
                where=where,
                # A wrong unit leaves the answer's number as it is.
                outcome=place == -1 or kind == "unit",
                meta={"method": "exact", "from": where, "first_error": place}
                | ({"kind": kind} if kind else {}),
            )

        return [
            row(right, "right", None),
            *(row(variant, f"wrong-{n}", kind) for n, (variant, kind) in enumerate(wrong.values(), start=1)),
            *(row(twin, f"twin-{n}", "jump") for n, twin in enumerate(twins.values(), start=1)),
        ]


def _check_right(worked: Worked) -> None:
    answer = worked.problem.answer or ""
    if compute(answer) is None or not NUMBER.fullmatch(answer.removeprefix("-")):
        raise InputError(f"the answer is no number: {answer}" if answer else "there is no reference answer")
    _check_calculations(worked.lines)
    if not any(FORMULA.search(line) for line in worked.lines):
        raise InputError("no step writes down a calculation that is read (48 / 2 = 24)")


def _check_calculations(lines: Sequence[str]) -> None:
    for number, line in enumerate(lines, start=1):
        false = next((formula for formula in calculations(line) if formula.truth == "wrong"), None)
        if false is not None:
            raise InputError(f"a calculation is false: step {number}: {false.text}: {false.why}")


def worked_of(solution: Solution) -> Worked:
    """A right solution with its calculations marked, as `with_errors` reads it; a last step that only says the answer is left out.

    A solution with a calculation that cannot be marked is refused, for what depends on an error could not all be computed again.

    Raises:
        InputError: it names another answer than the reference, or none and there is no reference; a calculation that is false or
            cannot be marked.
    """
    texts = list(solution.texts)
    stated = find_answer("\n".join(texts), "marked")
    own = None if stated is None else compute(_bare(stated.text))
    answer = solution.problem.answer
    if answer is None:
        if stated is None:
            raise InputError("there is no reference answer, and the solution names none")
        answer = _bare(stated.text)
    elif own is not None and own != compute(_bare(answer)):
        raise InputError(
            f"it is no right solution: its answer is {stated.text if stated else None}, the reference {answer}"
        )
    if len(texts) > 1 and find_answer(texts[-1], "marked") is not None and not any(calculations(texts[-1])):
        texts.pop()
    _check_calculations(texts)
    return Worked(
        problem=replace(solution.problem, answer=_bare(answer)), lines=tuple(marked(text) for text in texts)
    )


def _bare(answer: str) -> str:
    return answer.strip().strip("$").rstrip(".").strip()


def marked(text: str) -> str:
    """A step with its calculations marked; marks that it has stay.

    >>> marked("So she sold 48 / 2 = 24 clips.")
    'So she sold 48 / 2 = <<48/2=24>>24 clips.'

    Raises:
        InputError: a calculation is not plain enough to be computed again, or not surely read: an error before it could not be
            carried through it.
    """
    if FORMULA.search(text):
        return text
    pieces, at = [], 0
    for formula in calculations(text):
        expression, _, result = formula.text.rpartition("=")
        number = NUMBER.search(result)
        calculation = as_written(expression)
        if (
            formula.truth != "right"
            or formula.start < at
            or number is None
            or result.strip(" $") != number[0]
            or compute(calculation) is None
            or compute(calculation) != compute(number[0])
        ):
            raise InputError(f"a calculation cannot be marked: {formula.text}: {formula.why}")
        start = formula.start + len(expression) + 1 + number.start()
        pieces += [text[at:start], f"<<{calculation}={number[0].replace(',', '')}>>"]
        at = start
    return "".join(pieces) + text[at:]


# Numbers that stand for themselves: per cent, minutes, months, a dozen.
_CONSTANTS = frozenset(Fraction(n) for n in (1, 2, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000))
_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty
"""
_NUMBER_WORDS = {word: Fraction(n) for n, word in enumerate(_WORDS.split())} | {
    "thirty": Fraction(30), "forty": Fraction(40), "fifty": Fraction(50), "sixty": Fraction(60), "seventy": Fraction(70),
    "eighty": Fraction(80), "ninety": Fraction(90), "hundred": Fraction(100), "dozen": Fraction(12),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Book:
    """A worked solution and what is known of its numbers."""

    worked: Worked
    right: list[str]
    style: str
    answer: Fraction
    given: frozenset[Fraction]
    """Numbers of the problem, and those that stand for themselves."""

    @classmethod
    def of(cls, worked: Worked) -> Book | None:
        """None where nothing can be carried: no numeric answer."""
        answer = worked.problem.answer or ""
        value = compute(answer)
        if value is None or not NUMBER.fullmatch(answer.removeprefix("-")):
            return None
        right = [plain(line) for line in worked.lines]
        stated = numbers(worked.problem.text) | _CONSTANTS
        return cls(worked, right, "\n".join(right), value, frozenset(stated))


class NotSureError(Exception):
    """Whether a number depends on the error cannot be told."""


@dataclass(slots=True)
class Carry:
    """Rewrites what comes after an error."""

    book: Book
    seen: set[Fraction]
    """Numbers that stood in the solution so far, other than as an altered result."""
    changed: dict[Fraction, Fraction] = field(default_factory=dict)
    independent: set[Fraction] = field(default_factory=set)
    """Results that come after the error and do not depend on it."""
    answer: Fraction | None = None
    """What the solution's answer has become; None where no result so far is the answer."""

    def alter(self, old: Fraction, new: Fraction) -> None:
        """From here on a result is another.

        Raises:
            NotSureError: the number stands for something else too.
        """
        fixed = self.seen | self.book.given | self.independent
        if old in fixed or self.changed.get(old, new) != new:
            raise NotSureError
        self.changed[old] = new

    def line(self, line: str, start: int = 0, before: str = "", first: Fraction | None = None) -> str:
        """A line with all that depends on the error computed again, carried from `start` on.

        What is before `start` stands already in `before`; `first` is the result that follows right at `start`, where there is one.
        """
        text, at, due = before, start, first
        for formula in FORMULA.finditer(line, start):
            text += self._text(text, line[at : formula.start()], due)
            at, due = formula.end(), self._result(formula)
            if due in self.changed and due in numbers(plain(line[start : formula.start()])):
                raise NotSureError  # "He has 15 because 3 * 5 = 15": the first was written before it was known
        return text + self._text(text, line[at:], due)

    def _result(self, formula: re.Match[str]) -> Fraction:
        old, stated = compute(formula[1]), compute(formula[2])
        parts = [number_of(number) for number in NUMBER.findall(formula[1])]
        if old is None or old != stated:
            if any(part in self.changed for part in parts) or stated in self.changed:
                raise NotSureError
            return Fraction(0)
        new = compute(self._swap("", formula[1]))
        if new is None or (new != old and not fits(new, old)):
            raise NotSureError
        if new != old:
            self.alter(old, new)
        elif old in self.changed:
            raise NotSureError
        else:
            self.independent.add(old)
        if old == self.book.answer:
            self.answer = new
        return old

    def _text(self, before: str, text: str, due: Fraction | None) -> str:
        """Plain text with every altered number replaced."""
        for word in re.findall(r"[a-z]+", text.lower()):
            if _NUMBER_WORDS.get(word) in self.changed:
                raise NotSureError
        for number in NUMBER.finditer(text):
            after = text[number.end() : number.end() + 1]
            if number_of(number[0]) in self.changed and (after == "%" or after.isalpha()):
                raise NotSureError
        if due in self.changed and due not in {number_of(n) for n in NUMBER.findall(text)[:1]}:
            raise NotSureError
        return self._swap(before, text)

    def _swap(self, before: str, text: str) -> str:
        """All altered numbers at once: a new one may equal another's old one."""
        pieces, at = [], 0
        for number in NUMBER.finditer(text):
            value = number_of(number[0])
            pieces.append(text[at : number.start()])
            lead = before + text[: number.start()]
            new = self.changed.get(value)
            pieces.append(
                number[0] if new is None else replace_number(lead, number[0], value, new, self.book.style)
            )
            at = number.end()
        return "".join(pieces) + text[at:]

    def rest(self, lines: Sequence[str]) -> list[str]:
        """The lines after the error, and the answer."""
        steps = [self.line(line) for line in lines]
        answer = self.book.worked.problem.answer or ""
        value = self.book.answer
        new = self.answer
        if new is None:
            new = self.changed.get(value, value)
        elif new == value and value in self.changed:
            raise NotSureError
        if new != value:
            answer = replace_number("", answer, value, new, self.book.style)
        return [*steps, answer_line(answer)]


def carry_from(book: Book, place: int, upto: int | None = None) -> Carry:
    """What is known before an error in line `place`, of which the first `upto` characters are right."""
    head = "\n".join(book.right[:place])
    line = book.worked.lines[place]
    own = plain(line[: len(line) if upto is None else upto])
    carry = Carry(book, seen=numbers(head) | numbers(own))
    for formula in FORMULA.finditer("\n".join(book.worked.lines[:place])):
        if compute(formula[1]) == book.answer:
            carry.answer = book.answer
    return carry


def numbers(text: str) -> set[Fraction]:
    """Every number in a text, in digits or in words."""
    words = {_NUMBER_WORDS[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _NUMBER_WORDS}
    return words | {number_of(number) for number in NUMBER.findall(text)}


def answer_line(answer: str) -> str:
    """The last step."""
    return f"The answer is {answer}."


_TRIES = 4
_FAMILIES = (
    "second minute hour", "day week", "month year", "inch foot yard", "meter kilometer centimeter", "mile kilometer",
    "cent dollar", "ounce pound", "gram kilogram", "quart gallon", "milliliter liter",
)  # fmt: skip
_PLURALS = {"inch": "inches", "foot": "feet"}


def _other_units() -> dict[str, list[str]]:
    """The other units of each unit's families, singular for singular."""
    others: dict[str, list[str]] = {}
    for family in map(str.split, _FAMILIES):
        for forms in (family, [_PLURALS.get(unit, f"{unit}s") for unit in family]):
            for unit in forms:
                unit_forms = others.setdefault(unit, [])
                unit_forms += [other for other in forms if other not in (unit, *unit_forms)]
    return others


_UNITS = _other_units()


def with_errors(
    worked: Worked, rng: random.Random, *, kinds: Sequence[Kind] = KINDS
) -> Iterator[LabelledSolution]:
    """The worked solution, every step judged right; then for each kind that it has a place for one wrong solution, gone through to the answer.

    Before the wrong solution of a jump comes its right twin. Calculations must be marked and the answer be numeric.
    """
    book = Book.of(worked)
    yield _labelled(worked, [*map(plain, worked.lines), answer_line(worked.problem.answer or "")])
    if book is None:
        return
    for kind in kinds:
        places = list(range(len(worked.lines)))
        rng.shuffle(places)
        variant = _first_made(kind, book, places, rng)
        if variant is not None and variant.twin is not None:
            yield _labelled(worked, variant.twin)
        if variant is not None:
            yield _labelled(worked, variant.steps, variant.error, kind)


def _first_made(kind: Kind, book: Book, places: Sequence[int], rng: random.Random) -> _Made | None:
    for place in places:
        for _ in range(_TRIES):
            with contextlib.suppress(NotSureError):
                variant = _MAKERS[kind](book, place, rng)
                if variant is not None and _comes_out(book, variant, kind):
                    return variant
    return None


def _comes_out(book: Book, variant: _Made, kind: Kind) -> bool:
    """Whether no calculation is false that is not meant to be."""
    right_lines = set(book.right)
    return not any(
        formula.truth == "wrong"
        for i, step in enumerate(variant.steps)
        if step not in right_lines and not (i == variant.error and kind in ("value", "jump", "unit"))
        for formula in calculations(step)
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A wrong solution."""

    steps: list[str]
    error: int
    """0-based place of the wrong step."""
    twin: list[str] | None = None


def _alterable(book: Book, place: int) -> list[re.Match[str]]:
    return [formula for formula in FORMULA.finditer(book.worked.lines[place]) if alterable(formula)]


def _slips(kind: Kind, book: Book, place: int, rng: random.Random) -> _Made | None:
    formulas = _alterable(book, place)
    if not formulas:
        return None
    formula = rng.choice(formulas)
    slipped = slip(formula, kind, rng, book.style)
    value = compute(formula[1])
    assert value is not None
    if slipped is None or slipped.kind != kind or slipped.value == value:
        return None
    carry = carry_from(book, place, formula.start())
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    altered = _altered_line(carry, formula, slipped.before, value, slipped.value)
    return _done(book, place, [altered], carry)


def _altered_line(carry: Carry, formula: re.Match[str], before: str, old: Fraction, new: Fraction) -> str:
    carry.alter(old, new)
    if old == carry.book.answer:
        carry.answer = new
    return carry.line(formula.string, formula.end(), before, old)


def _jump(book: Book, place: int, rng: random.Random) -> _Made | None:
    start = _start_of(book, place)
    if start is None:
        return None
    value, _, formula = start
    before, after = plain(formula.string[: formula.start()]), plain(formula.string[formula.end() :])
    shown = shown_at(formula[1], before)
    if shown is None or not re.fullmatch(r"\s*=\s*\$?", before[shown[1] :]):
        return None
    head = before[: shown[0]].rstrip(" $")
    if not re.search(r"[a-z]{2}:?$", head):
        return None
    head += " $" if before.endswith("$") else " "
    carry = carry_from(book, place, formula.start())
    altered = _altered_line(carry, formula, head, value, another(value, rng))
    variant = _done(book, place, [altered], carry)
    twin = [*book.right[:place], head + after.lstrip(" $"), *book.right[place + 1 :]]
    answer = answer_line(book.worked.problem.answer or "")
    return replace(variant, twin=[*twin, answer])


def _unit(book: Book, place: int, rng: random.Random) -> _Made | None:
    formulas = _alterable(book, place)
    if not formulas:
        return None
    formula = rng.choice(formulas)
    before, after = plain(formula.string[: formula.start()]), plain(formula.string[formula.end() :])
    unit = re.match(rf" ?(?:{NUMBER.pattern}) ([a-z]+)\b", after)
    others = [] if unit is None else _UNITS.get(unit[1], [])
    if unit is None or not others or compute(formula[1]) in (0, None):
        return None
    altered = before + after[: unit.start(1)] + rng.choice(others) + after[unit.end(1) :]
    answer = answer_line(book.worked.problem.answer or "")
    steps = [*book.right[:place], altered, *book.right[place + 1 :], answer]
    return _Made(steps, place)


def _dropped(book: Book, place: int, rng: random.Random) -> _Made | None:
    start = _start_of(book, place)
    if start is None or place == len(book.worked.lines) - 1:
        return None
    value, first, _ = start
    if value == first or not fits(first, value):
        return None
    carry = carry_from(book, place)
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    carry.alter(value, first)
    steps = [*book.right[:place], *carry.rest(book.worked.lines[place + 1 :])]
    original = [*book.right[:place], *book.right[place + 1 :]]
    error = next((i for i, (a, b) in enumerate(zip(steps, original, strict=False)) if a != b), None)
    return None if error is None else _Made(steps, error)


def _repeated(book: Book, place: int, rng: random.Random) -> _Made | None:
    start = _start_of(book, place)
    if start is None:
        return None
    value, first, formula = start
    before = plain(formula.string[: formula.start()])
    shown = shown_at(formula[1], before)
    if shown is None:
        return None
    number = NUMBER.search(before, shown[0])
    if number is None or number.end() > shown[1] or number_of(number[0]) != first:
        return None
    lead, tail = before[: number.start()], before[number.end() :]
    again = lead + replace_number(lead, number[0], first, value, book.style) + tail
    new = compute(as_written(again[shown[0] : len(again) - len(before) + shown[1]]))
    if new is None or new == value or not fits(new, value):
        return None
    carry = carry_from(book, place)
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    altered = _altered_line(carry, formula, again, value, new)
    variant = _done(book, place, [book.right[place], altered], carry)
    return replace(variant, error=place + 1)


def _start_of(book: Book, place: int) -> tuple[Fraction, Fraction, re.Match[str]] | None:
    """The result, the first number and the mark of a line with one calculation."""
    marks = list(FORMULA.finditer(book.worked.lines[place]))
    if len(marks) != 1 or not alterable(marks[0]):
        return None
    first = NUMBER.search(marks[0][1])
    value = compute(marks[0][1])
    return None if first is None or value is None else (value, number_of(first[0]), marks[0])


def _early_stop(book: Book, place: int, rng: random.Random) -> _Made | None:
    formulas = _alterable(book, place)
    if not formulas or place == len(book.worked.lines) - 1:
        return None
    value = compute(formulas[-1][1])
    if value is None or value == book.answer or not fits(value, book.answer):
        return None
    written = replace_number("", book.worked.problem.answer or "", book.answer, value, book.style)
    steps = [*book.right[: place + 1], answer_line(written)]
    return _Made(steps, place + 1)


def _done(book: Book, place: int, lines: list[str], carry: Carry) -> _Made:
    return _Made([*book.right[:place], *lines, *carry.rest(book.worked.lines[place + 1 :])], place)


_MAKERS: Mapping[Kind, Callable[[Book, int, random.Random], _Made | None]] = {
    "value": partial(_slips, "value"),
    "operand": partial(_slips, "operand"),
    "operation": partial(_slips, "operation"),
    "unit": _unit,
    "dropped": _dropped,
    "repeated": _repeated,
    "jump": _jump,
    "early stop": _early_stop,
}


def _labelled(
    worked: Worked, steps: list[str], error: int | None = None, kind: Kind | None = None
) -> LabelledSolution:
    end = len(steps) if error is None else error
    right = (Judgement(kind="correctness", judge="exact", rating=1),)
    wrong = (Judgement(kind="correctness", judge="exact", rating=-1, note=kind),)
    return LabelledSolution(
        solution=Solution(
            problem=worked.problem, steps=tuple(Step(text=text) for text in steps), id=worked.problem.id
        ),
        judgements=tuple(right if i < end else wrong if i == end else () for i in range(len(steps))),
    )


FORMULA = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
"""A marked calculation: the expression, its result."""
_CALCULATION = re.compile(r"[0-9.+\-*/()\s]+")
_THOUSANDS = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])"
NUMBER = re.compile(rf"(?:{_THOUSANDS}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
"""A number as people write it."""
_SIGN = re.compile(r"(?<=[0-9)\s])[-+*/x×÷]")
_TIMES = re.compile(r"[0-9)]\s*([*x×])\s*[$(]*[0-9.]")
_SLIP_TRIES = 8
_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


# The same few calculations are asked for again and again while an error is carried.
@lru_cache(maxsize=1 << 14)
def compute(expression: str) -> Fraction | None:
    """The value of an expression of numbers, + - * / and brackets; None if it is anything else.

    Numbers may be written with thousands commas, not with exponents. Division by zero gives None, and so do more
    than 200 characters.
    """
    if len(expression) > 200:
        return None
    source = re.sub(rf"(?<![0-9.,]){_THOUSANDS}", lambda m: m[0].replace(",", ""), expression).strip()
    # Python knows more numbers than people write: 1e999999999 would be computed, exactly, for ever.
    if not _CALCULATION.fullmatch(source):
        return None
    try:
        return _value(ast.parse(source, mode="eval").body, source)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        # From the text and not from the float, which has rounded 0.1 already.
        return Fraction(ast.get_source_segment(source, node) or "")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, source)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, source), _value(node.right, source)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        return left * right if isinstance(node.op, ast.Mult) else left / right
    raise ValueError("not a calculation")


def plain(line: str) -> str:
    """A worked line as people write it: without its `<<…>>`."""
    return re.sub(r"<<.*?>>", "", line)


class Slip(NamedTuple):
    """An altered calculation."""

    kind: Literal["value", "operand", "operation"]
    before: str
    """The line up to the result, in plain text."""
    value: Fraction
    """The result that is now due."""


def slip(formula: re.Match[str], kind: str, rng: random.Random, style: str) -> Slip | None:
    """Alter one calculation (a `FORMULA` for which `alterable` holds); None where it cannot be done surely.

    `kind` is "value", "operand" or "operation"; where no operand or sign can be altered it becomes "value". `style` is text that shows
    whether commas part thousands and which sign stands for times.
    """
    line = formula.string
    value = compute(formula[1])
    assert value is not None
    before, after = plain(line[: formula.start()]), plain(line[formula.end() :])
    # "1 mile" cannot become "2 mile": there the calculation is altered and the result stays.
    singular = value == 1 and re.match(r"[ $]*1 [a-z]", after) is not None
    if singular or not operates(formula[1]):
        kind = "operand" if singular else "value"
    shown = None if kind == "value" else shown_at(formula[1], before)
    if shown is not None:
        start, end = shown
        for _ in range(_SLIP_TRIES):
            altered = _alter(before[:start], before[start:end], kind, rng, style)
            new = compute(as_written(altered)) if altered is not None else None
            if altered is None or new is None or new == value:
                continue
            if singular or fits(new, value):
                head = before[:start] + altered + before[end:]
                return Slip("operand" if kind == "operand" else "operation", head, value if singular else new)
    if singular:
        return None
    return Slip("value", before, another(value, rng))


def alterable(formula: re.Match[str]) -> bool:
    """Whether a marked calculation comes out, is one, and has its result as the next number."""
    value = compute(formula[1])
    after = NUMBER.search(plain(formula.string[formula.end() :]))
    return (
        value is not None
        and value == compute(formula[2])
        and (operates(formula[1]) or _solved(plain(formula.string[: formula.start()])))
        and after is not None
        and not after.string[: after.start()].strip(" $-")
        and number_of(after[0]) == abs(value)
    )


def operates(expression: str) -> bool:
    """Whether there is an operation in it."""
    return re.search(r"[0-9)]\s*[-+*/]", expression) is not None


def _solved(before: str) -> bool:
    """Whether a bare number after this text is a result ("so x =") and not a choice ("let x =") or a given."""
    return before.rstrip(" $").endswith("=") and not re.search(r"\b(?:let|assum|suppos|say|if)", before, re.I)


def shown_at(expression: str, before: str) -> tuple[int, int] | None:
    """Where the calculation stands in the text before it: signs for money and spaces may come between."""
    tokens = re.findall(rf"{NUMBER.pattern}|[-+*/()]", expression)
    pattern = r"[\s$]*".join("[*x×]" if t == "*" else "[/÷]" if t == "/" else re.escape(t) for t in tokens)
    # Whole numbers only: 2*3 does not stand in 12*35.
    places = list(re.finditer(rf"(?<![0-9.])(?<![0-9],){pattern}(?![0-9]|[.,][0-9])", before))
    return places[-1].span() if places else None


def _alter(before: str, shown: str, kind: str, rng: random.Random, style: str) -> str | None:
    """A calculation as it stands in the text with one number or one sign changed, its spacing kept."""
    places = list((NUMBER if kind == "operand" else _SIGN).finditer(shown))
    if not places:
        return None
    place = rng.choice(places)
    head, tail = shown[: place.start()], shown[place.end() :]
    if kind == "operand":
        old = number_of(place[0])
        return head + replace_number(before + head, place[0], old, another(old, rng), style) + tail
    new = rng.choice([s for s in "+-*/" if s != as_written(place[0])])
    times = _TIMES.search(style)
    return head + (times[1] if new == "*" and times is not None else new) + tail


def as_written(shown: str) -> str:
    """A calculation in the signs that `compute` reads."""
    return re.sub(r"[$\s]", "", shown).replace("x", "*").replace("×", "*").replace("÷", "/")


@lru_cache(maxsize=1 << 14)
def number_of(text: str) -> Fraction:
    """The value of a number as `NUMBER` finds it."""
    return Fraction(text.replace(",", ""))


def another(value: Fraction, rng: random.Random) -> Fraction:
    """A different number of the kind that slips make: off by a little, a digit changed, a factor of ten."""
    if value < 0:
        return -another(-value, rng)
    whole = int(value)
    options = [value + d for d in (-10, -2, -2, -1, -1, 1, 2, 10)]
    options += [value * 10, value * 2, value / 10, value / 2]
    digits = str(whole)
    if len(digits) > 1:
        at = rng.randrange(len(digits))
        digit = rng.choice([d for d in "0123456789" if d != digits[at] and not (at == 0 and d == "0")])
        options += [Fraction(digits[:at] + digit + digits[at + 1 :]) + value - whole] * 4
        options.append(Fraction(digits[:-2] + digits[-1] + digits[-2]) + value - whole)
    return rng.choice([o for o in options if o != value and fits(o, value)] or [value + 1])


def fits(new: Fraction, old: Fraction) -> bool:
    """Whether a number may stand for another unnoticed: its sign, about its size, whole for whole."""
    places = _places(old)
    return (
        new * (1 if old >= 0 else -1) > 0
        and abs(new) != 1  # "1 apples" would tell
        and (old == 0 or abs(old) <= 10 * abs(new) <= 100 * abs(old))
        and _places(new) <= (0 if places == 0 else max(2, min(places, 8)))
    )


def _places(value: Fraction) -> int:
    """Decimals that a number needs; 9 if they are more than 8 or never end."""
    return next((places for places in range(9) if 10**places % value.denominator == 0), 9)


def replace_number(before: str, text: str, old: Fraction, new: Fraction, style: str) -> str:
    """Text with every mention of a number replaced by another, each written as the mention was; signs stay."""

    def write(mention: re.Match[str]) -> str:
        if number_of(mention[0]) != abs(old):
            return mention[0]
        money = (before + text[: mention.start()]).rstrip().endswith("$")
        commas = "," in mention[0] or (
            abs(old) < 1000 and re.search(rf"(?<![0-9]){_THOUSANDS}", style) is not None
        )
        return _write(abs(new), mention[0], money=money, commas=commas)

    return NUMBER.sub(write, text)


def _write(value: Fraction, like: str, *, money: bool, commas: bool) -> str:
    """A number in digits, with the final zeros of `like`, or of money, and without a zero before the point as there."""
    digits = Decimal(value.numerator) / Decimal(value.denominator)
    text = f"{digits:,f}" if commas else f"{digits:f}"
    have, want = len(text.partition(".")[2]), len(like.partition(".")[2])
    cents = money and have == 1 and want != 1
    want = 2 if cents else want
    if have < want and (like.endswith("0") or cents):
        text += ("" if have else ".") + "0" * (want - have)
    return text.removeprefix("0") if like.startswith(".") and have else text
