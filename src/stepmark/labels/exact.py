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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Literal, NamedTuple, get_args

from stepmark.errors import UsageError
from stepmark.problems.sources import Worked
from stepmark.records import Judgement, LabelledSolution, Solution, Step
from stepmark.verifiers.checks.equations import calculations

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
        given = numbers(worked.problem.text) | _CONSTANTS
        return cls(worked, right, "\n".join(right), value, frozenset(given))


class NotSureError(Exception):
    """Whether a number depends on the error cannot be told."""


@dataclass(slots=True)
class Carry:
    """Rewrites what comes after an error."""

    book: Book
    seen: set[Fraction]
    """Numbers that stood in the solution so far, other than as an altered result."""
    changed: dict[Fraction, Fraction] = field(default_factory=dict)
    kept: set[Fraction] = field(default_factory=set)
    """Results that come after the error and do not depend on it."""
    answer: Fraction | None = None
    """What the solution's answer has become; None where no result so far is the answer."""

    def alter(self, old: Fraction, new: Fraction) -> None:
        """From here on a result is another.

        Raises:
            NotSureError: the number stands for something else too.
        """
        fixed = self.seen | self.book.given | self.kept
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
            self.kept.add(old)
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


Kind = Literal["value", "operand", "operation", "unit", "dropped", "repeated", "jump", "early stop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds of errors."""

_TRIES = 4
_FAMILIES = (
    "second minute hour", "day week", "month year", "inch foot yard", "meter kilometer centimeter", "mile kilometer",
    "cent dollar", "ounce pound", "gram kilogram", "quart gallon", "milliliter liter",
)  # fmt: skip
_UNITS = tuple(tuple(family.split()) for family in _FAMILIES)
_PLURALS = {"inch": "inches", "foot": "feet"}


def with_errors(
    worked: Worked, rng: random.Random, *, kinds: Sequence[Kind] = KINDS
) -> Iterator[LabelledSolution]:
    """The worked solution, every step judged right; then for each kind that it has a place for one wrong solution, gone through to the answer.

    Before the wrong solution of a jump comes its right twin. Calculations must be marked and the answer be numeric.

    Raises:
        UsageError: a kind that is none.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"with_errors: expected kinds among {', '.join(KINDS)}, found {kind!r}")
    book = Book.of(worked)
    right = [plain(line) for line in worked.lines]
    yield _labelled(worked, [*right, answer_line(worked.problem.answer or "")])
    if book is None:
        return
    for kind in kinds:
        places = list(range(len(worked.lines)))
        rng.shuffle(places)
        made = _first_made(_MAKERS[kind], book, places, rng)
        if made is not None and made.twin is not None:
            yield _labelled(worked, made.twin)
        if made is not None:
            yield _labelled(worked, made.steps, made.error, made.note)


def _first_made(maker: _Maker, book: Book, places: Sequence[int], rng: random.Random) -> _Made | None:
    for place in places:
        for _ in range(_TRIES):
            with contextlib.suppress(NotSureError):
                made = maker(book, place, rng)
                if made is not None:
                    return made
    return None


@dataclass(frozen=True, slots=True)
class _Made:
    """A wrong solution."""

    steps: list[str]
    error: int
    """0-based place of the wrong step."""
    note: str
    twin: list[str] | None = None


def _alterable(book: Book, place: int) -> list[re.Match[str]]:
    return [formula for formula in FORMULA.finditer(book.worked.lines[place]) if alterable(formula)]


def _slips(kind: Kind, book: Book, place: int, rng: random.Random) -> _Made | None:
    formulas = _alterable(book, place)
    if not formulas:
        return None
    formula = rng.choice(formulas)
    made = slip(formula, kind, rng, book.style)
    value = compute(formula[1])
    assert value is not None
    if made is None or made.kind != kind or made.value == value:
        return None
    carry = carry_from(book, place, formula.start())
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    altered = _altered_line(carry, formula, made.before, value, made.value)
    return _done(book, place, [altered], carry, f"{kind}: {_brief(altered)}")


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
    made = _done(book, place, [altered], carry, f"jump: {_brief(altered)}")
    twin = [*book.right[:place], head + after.lstrip(" $"), *book.right[place + 1 :]]
    answer = answer_line(book.worked.problem.answer or "")
    return None if made is None else replace(made, twin=[*twin, answer])


def _unit(book: Book, place: int, rng: random.Random) -> _Made | None:
    formulas = _alterable(book, place)
    if not formulas:
        return None
    formula = rng.choice(formulas)
    before, after = plain(formula.string[: formula.start()]), plain(formula.string[formula.end() :])
    unit = re.match(rf" ?(?:{NUMBER.pattern}) ([a-z]+)\b", after)
    others = [] if unit is None else _other_units(unit[1])
    if unit is None or not others or compute(formula[1]) in (0, None):
        return None
    altered = before + after[: unit.start(1)] + rng.choice(others) + after[unit.end(1) :]
    answer = answer_line(book.worked.problem.answer or "")
    steps = [*book.right[:place], altered, *book.right[place + 1 :], answer]
    return _Made(steps, place, f"unit: {_brief(altered)}")


def _other_units(unit: str) -> list[str]:
    plurals = {single: _PLURALS.get(single, f"{single}s") for family in _UNITS for single in family}
    single = next((single for single, plural in plurals.items() if unit in (single, plural)), None)
    if single is None:
        return []
    others = dict.fromkeys(
        other for family in _UNITS if single in family for other in family if other != single
    )
    return [plurals[other] if unit != single else other for other in others]


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
    lead, tail = before[: number.start()], before[number.end() :]
    again = lead + replace_number(lead, number[0], first, value, book.style) + tail
    new = compute(as_written(again[shown[0] : len(again) - len(before) + shown[1]]))
    if new is None or new == value or not fits(new, value):
        return None
    carry = carry_from(book, place)
    carry.seen -= {value} - numbers("\n".join(book.right[:place]))
    altered = _altered_line(carry, formula, again, value, new)
    made = _done(book, place, [book.right[place], altered], carry, f"repeated: {_brief(altered)}")
    return None if made is None else replace(made, error=place + 1)


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
    return _Made(steps, place + 1, f"early stop: after step {place + 1}")


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


_Maker = Callable[[Book, int, random.Random], _Made | None]
_MAKERS: Mapping[Kind, _Maker] = {
    "value": partial(_slips, "value"),
    "operand": partial(_slips, "operand"),
    "operation": partial(_slips, "operation"),
    "unit": _unit,
    "dropped": _dropped,
    "repeated": _repeated,
    "jump": _jump,
    "early stop": _early_stop,
}


def _brief(line: str) -> str:
    return line if len(line) <= 60 else line[:59] + "…"


def _labelled(
    worked: Worked, steps: list[str], error: int | None = None, note: str | None = None
) -> LabelledSolution:
    end = len(steps) if error is None else error
    right = (Judgement(kind="correctness", judge="exact", rating=1),)
    wrong = (Judgement(kind="correctness", judge="exact", rating=-1, note=note),)
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
