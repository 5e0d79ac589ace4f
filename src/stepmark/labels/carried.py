"""Whole solutions with one error put in on purpose and carried through all that depends on it.

Eight kinds. In each the step judged wrong is false, not only odd: it states a number, or a unit, that is not so.

=============  ==========================================================================================================
`value`        a right calculation with a wrong result
`operand`      a wrong number in a calculation, which is then carried out rightly
`operation`    a wrong sign, likewise
`unit`         the right number in a wrong unit: hours for minutes
`dropped`      a step is left out and forgotten: where its result is due stands the number it started from. Wrong is the first step that uses it
`repeated`     a step is done twice, the second time on its own result. Wrong is the second
`jump`         a wrong result is asserted without its calculation
`early stop`   the solution ends too early, with the result of a step on the way as its answer. Wrong is the answer
=============  ==========================================================================================================

Carried: every later calculation that uses an altered result is computed again, and so is the answer. Where this is not sure (the same
number stands for something else too, stands in words, or a later result would be negative, or a fraction where it was whole), that place is not
used. Every line that comes out is checked once more by `formulas.check`: no second false calculation slips in.

Labels: steps before the error are right, the step with the error is wrong, the steps after it are not judged: they go on faithfully from
what is false.

What cannot be told from a wrong solution's looks: numbers are written as the right ones were (`slips`). A solution with a step more or less than the right
one is wrong, though, so train on kinds together: `dropped` and `early stop` shorten, `repeated` lengthens. A jump has a right twin,
the same line with the right result: an assertion is not wrong for want of its calculation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from stepmark.errors import UsageError
from stepmark.labels.carrying import Book, Carry, NotSureError, answer_line, carry_from, numbers
from stepmark.labels.slips import (
    FORMULA,
    NUMBER,
    alterable,
    another,
    as_written,
    compute,
    fits,
    number_of,
    plain,
    replace_number,
    shown_at,
    slip,
)
from stepmark.problems.gsm8k import Worked
from stepmark.records import Judgement, LabelledSolution, Solution, Step
from stepmark.solutions.checks.equations import calculations

Kind = Literal["value", "operand", "operation", "unit", "dropped", "repeated", "jump", "early stop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds of errors."""

_TRIES = 4
_UNITS = (
    ("second", "minute", "hour"),
    ("day", "week"),
    ("month", "year"),
    ("inch", "foot", "yard"),
    ("meter", "kilometer", "centimeter"),
    ("mile", "kilometer"),
    ("cent", "dollar"),
    ("ounce", "pound"),
    ("gram", "kilogram"),
    ("quart", "gallon"),
    ("milliliter", "liter"),
)
_PLURALS = {"inch": "inches", "foot": "feet"}


def with_errors(
    worked: Worked, rng: random.Random, *, kinds: Sequence[Kind] = KINDS
) -> Iterator[LabelledSolution]:
    """The worked solution, and one wrong solution of each kind, all gone through to the answer.

    Args:
        worked: a known-good solution whose calculations are marked, and whose problem has a numeric answer.
        rng: chooses places and errors.
        kinds: the kinds of errors, in the order in which they are wanted.

    Yields:
        First the right solution, every step judged right. Then, for each kind that this solution has a place for, one wrong solution; before
        that of a jump, its right twin.

    Raises:
        UsageError: a kind that is none.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"with_errors: expected kinds among {', '.join(KINDS)}, found {kind!r}")
    book = Book.of(worked)
    right = [plain(line) for line in worked.lines]
    yield _right(worked, [*right, answer_line(worked.problem.answer or "")])
    if book is None:
        return
    for kind in kinds:
        places = list(range(len(worked.lines)))
        rng.shuffle(places)
        made = next((one for place in places for one in _tries(_MAKERS[kind], book, place, rng)), None)
        if made is None:
            continue
        if made.twin is not None:
            yield _right(worked, made.twin)
        yield _wrong(worked, made, kind)


@dataclass(frozen=True, slots=True)
class _Made:
    """A wrong solution."""

    steps: list[str]
    error: int
    """0-based place of the wrong step."""
    note: str
    twin: list[str] | None = None


def _slips(kind: Kind, book: Book, place: int, rng: random.Random) -> _Made | None:
    line = book.worked.lines[place]
    found = [formula for formula in FORMULA.finditer(line) if alterable(formula)]
    if not found:
        return None
    formula = rng.choice(found)
    made = slip(formula, kind, rng, book.style)
    value = compute(formula[1])
    assert value is not None
    if made is None or made.kind != kind or made.value == value:
        return None
    carry = carry_from(book, place, formula.start())
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    altered = _altered_line(carry, line, formula, made.before, value, made.value)
    return _done(book, place, [altered], carry, f"{kind}: {_brief(altered)}")


def _altered_line(
    carry: Carry, line: str, formula: re.Match[str], before: str, old: Fraction, new: Fraction
) -> str:
    carry.alter(old, new)
    if old == carry.book.answer:
        carry.answer = new
    return carry.line(line, formula.end(), before, old)


def _jump(book: Book, place: int, rng: random.Random) -> _Made | None:
    line = book.worked.lines[place]
    found = list(FORMULA.finditer(line))
    if len(found) != 1 or not alterable(found[0]):
        return None
    (formula,) = found
    before, after = plain(line[: formula.start()]), plain(line[formula.end() :])
    shown = shown_at(formula[1], before)
    value = compute(formula[1])
    assert value is not None
    if shown is None or not re.fullmatch(r"\s*=\s*\$?", before[shown[1] :]):
        return None
    head = before[: shown[0]].rstrip(" $")
    if not re.search(r"[a-z]{2}:?$", head):
        return None
    head += " $" if before.endswith("$") else " "
    carry = carry_from(book, place, formula.start())
    new = another(value, rng)
    altered = _altered_line(carry, line, formula, head, value, new)
    made = _done(book, place, [altered], carry, f"jump: {_brief(altered)}")
    twin = [
        *book.right[:place],
        head.rstrip(" $") + " " + ("$" if before.endswith("$") else "") + after.lstrip(" $"),
    ]
    rest = [*book.right[place + 1 :], answer_line(book.worked.problem.answer or "")]
    return None if made is None else replace(made, twin=[*twin, *rest])


def _unit(book: Book, place: int, rng: random.Random) -> _Made | None:
    text = book.right[place]
    line = book.worked.lines[place]
    found = [formula for formula in FORMULA.finditer(line) if alterable(formula)]
    if not found:
        return None
    formula = rng.choice(found)
    before, after = plain(line[: formula.start()]), plain(line[formula.end() :])
    unit = re.match(rf" ?(?:{NUMBER.pattern}) ([a-z]+)\b", after)
    value = compute(formula[1])
    others = [] if unit is None else _other_units(unit[1])
    if unit is None or not others or value in (0, None):
        return None
    altered = before + after[: unit.start(1)] + rng.choice(others) + after[unit.end(1) :]
    assert altered != text
    steps = [
        *book.right[:place],
        altered,
        *book.right[place + 1 :],
        answer_line(book.worked.problem.answer or ""),
    ]
    return _Made(steps, place, f"unit: {_brief(altered)}")


def _other_units(unit: str) -> list[str]:
    plurals = {one: _PLURALS.get(one, f"{one}s") for family in _UNITS for one in family}
    one = next((single for single, plural in plurals.items() if unit in (single, plural)), None)
    if one is None:
        return []
    others = dict.fromkeys(other for family in _UNITS if one in family for other in family if other != one)
    return [plurals[other] if unit != one else other for other in others]


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
    if error is None:
        return None
    return _checked(book, _Made(steps, error, f"dropped: {_brief(book.right[place])}"))


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
    again = (
        before[: number.start()]
        + replace_number(before[: number.start()], number[0], first, value, book.style)
        + before[number.end() :]
    )
    new = compute(as_written(again[shown[0] : len(again) - len(before) + shown[1]]))
    if new is None or new == value or not fits(new, value):
        return None
    carry = carry_from(book, place)
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    altered = _altered_line(carry, formula.string, formula, again, value, new)
    made = _done(book, place, [book.right[place], altered], carry, f"repeated: {_brief(altered)}")
    return None if made is None else replace(made, error=place + 1)


def _start_of(book: Book, place: int) -> tuple[Fraction, Fraction, re.Match[str]] | None:
    """The result, the first number and the mark of a line with one calculation."""
    found = list(FORMULA.finditer(book.worked.lines[place]))
    if len(found) != 1 or not alterable(found[0]):
        return None
    first = NUMBER.search(found[0][1])
    value = compute(found[0][1])
    return None if first is None or value is None else (value, number_of(first[0]), found[0])


def _early_stop(book: Book, place: int, rng: random.Random) -> _Made | None:
    found = [formula for formula in FORMULA.finditer(book.worked.lines[place]) if alterable(formula)]
    if not found or place == len(book.worked.lines) - 1:
        return None
    value = compute(found[-1][1])
    result = NUMBER.search(plain(found[-1].string[found[-1].end() :]))
    if value is None or result is None or value == book.answer or not fits(value, book.answer):
        return None
    written = replace_number("", book.worked.problem.answer or "", book.answer, value, book.style)
    return _Made(
        [*book.right[: place + 1], answer_line(written)], place + 1, f"early stop: after step {place + 1}"
    )


def _done(book: Book, place: int, lines: list[str], carry: Carry, note: str) -> _Made | None:
    steps = [*book.right[:place], *lines, *carry.rest(book.worked.lines[place + 1 :])]
    return _checked(book, _Made(steps, place, note))


def _checked(book: Book, made: _Made) -> _Made | None:
    """The same, if no calculation is false that is not meant to be."""
    false_on_purpose = made.note.startswith(("value", "jump"))
    known = set(book.right)
    for i, step in enumerate(made.steps):
        if step in known or (i == made.error and false_on_purpose):
            continue
        if any(formula.truth == "wrong" for formula in calculations(step)):
            return None
    return made


_Maker = Callable[[Book, int, random.Random], "_Made | None"]


def _slip_maker(kind: Kind) -> _Maker:
    return lambda book, place, rng: _slips(kind, book, place, rng)


_MAKERS: Mapping[Kind, _Maker] = {
    "value": _slip_maker("value"),
    "operand": _slip_maker("operand"),
    "operation": _slip_maker("operation"),
    "unit": _unit,
    "dropped": _dropped,
    "repeated": _repeated,
    "jump": _jump,
    "early stop": _early_stop,
}


def _tries(maker: _Maker, book: Book, place: int, rng: random.Random) -> Iterator[_Made]:
    for _ in range(_TRIES):
        try:
            made = maker(book, place, rng)
        except NotSureError:
            continue
        if made is not None:
            yield made


def _brief(line: str) -> str:
    return line if len(line) <= 60 else line[:59] + "…"


def _right(worked: Worked, steps: list[str]) -> LabelledSolution:
    return _labelled(worked, steps, len(steps), None)


def _wrong(worked: Worked, made: _Made, kind: Kind) -> LabelledSolution:
    return _labelled(worked, made.steps, made.error, made.note)


def _labelled(worked: Worked, steps: list[str], error: int, note: str | None) -> LabelledSolution:
    right = (Judgement(kind="correctness", judge="exact", rating=1),)
    wrong = (Judgement(kind="correctness", judge="exact", rating=-1, note=note),)
    return LabelledSolution(
        solution=Solution(
            problem=worked.problem, steps=tuple(Step(text=t) for t in steps), id=worked.problem.id
        ),
        judgements=tuple(right if i < error else wrong if i == error else () for i in range(len(steps))),
    )
