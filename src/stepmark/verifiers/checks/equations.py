r"""Equations in a text: where their sides begin and end, and whether those that calculate are true.

`equations` finds them; what stands beside one and may belong to it is its `edge`. `calculations` judges those without unknowns ("12 * 8 = 96",
"$3 \times 4 = 12$", "<<48/2=24>>24", √18 = 3 √2, 20% of 50 = 10, chains a = b = c): right, wrong, or unknown. One is **wrong** only if no reading makes
it right. In all these cases it **cannot be told**:

- an unknown, a function or an unknown sign stands in it or at its edge, so that it may be part of a larger one;
- it is written with ≈, or the text asks ("?"), denies ("not", "false") or supposes it, or puts a candidate into a condition;
- the sides differ by less than one and the shown result is whole (7/2 = 3: rounded, or a quotient without its remainder);
- the sides differ by under one per cent and decimals, or a whole number and a fraction, are involved;
- numbers with decimals in it may have been rounded: 3.33 * 3 = 10 (multiples of 0.05 are taken to be exact);
- a result runs on into the next calculation: 5 + 3 = 8 * 2 = 16;
- the right side is the first terms of the left: 16 - 18 + 4 = 16 - 18 = -2, and -2 + 4 = 2;
- a scale or another unit follows the result ("= 2 dozen", "= 1 hour 15 minutes"), or the text computes modulo something.

A result shown with d decimals is right if the exact value, rounded or cut off after d decimals, is it: 2/3 = 0.67 and 2/3 = 0.66 are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from stepmark.verifiers.checks.expressions import WORDS_THAT_COMPUTE, Token, tokens, word_set
from stepmark.verifiers.checks.polynomials import LONGEST, Quotient, UnreadableError, plain_number, read
from stepmark.verifiers.units import Unit, conversions, unit_of

Truth = Literal["right", "wrong", "unknown"]

_EQUALS = re.compile(r"[=≈≃]|\\(?:approx|simeq|doteq)")
_MARKED = re.compile(r"<<([^<>=\n]{1,100})=([^<>=\n]{1,60})>>")
# Words before an expression that number a thing: "box 1 + 2" adds no numbers.
_THINGS = """
day days week box step case year month group part person item quiz test number type angle side line round room team class grade bag
row column question problem equation level hour version set train car tank store shop pile per
"""
VERBS = {"is", "are", "was", "were", "equals", "gives"}
_AFTER = WORDS_THAT_COMPUTE - VERBS | {"with"}
_BEFORE = WORDS_THAT_COMPUTE - VERBS | word_set(_THINGS)
_WITH_LETTERS = WORDS_THAT_COMPUTE - VERBS | {"per", "step", "case", "part", "angle"}
_JOINING = {"and", "or", "if", "suppose", "assume", "assuming", "from", "to"}
_PARTS = word_set("number sign power open close percent fraction root word pi binomial factorial")
_DEGREES = re.compile(r"°|\\circ|\\degree|\bdegrees?\b|\bradians?\b")
_DOLLAR = Unit(kind="US money", factor=Fraction(1), name="$")
_MODULAR = re.compile(
    r"\\[pb]?mod\b|\bmod(?:ulo|ular)?\b|\bremainders?\b|\bbase[- ]?(?:\d|two|five|eight|ten)|≡|\\equiv", re.I
)
_DENIED = re.compile(
    r"n't\b|\b(?:not|false|incorrect|wrong|contradict\w*|impossible|instead|mistake|error|cannot|however)\b",
    re.I,
)
_SUPPOSED = re.compile(
    r"\b(?:not|if|suppos\w+|assum\w+|whether|instead|check|try|trying|test)\b[^.;\n]*$", re.I
)
_MONEY = re.compile(r"[$¢]|\b(?:cents?|dollars?|pence|pennies)\b", re.I)
_PUT_IN = re.compile(r"\b(?:plug\w*|substitut\w+|becomes)\b[^.;\n]*$", re.I)


@dataclass(frozen=True, eq=False)
class Equation:
    """Two expressions and an equals sign between them."""

    start: int
    end: int
    """Character offsets."""
    text: str
    tokens: tuple[Sequence[Token], Sequence[Token]]
    edge: str
    """What stands beside it that may belong to it; "" for nothing."""
    chained: bool
    """Whether its left side is the right side of the equation before: a = b = c."""
    about: bool
    """Whether it is written with ≈."""
    units: tuple[Sequence[str], Sequence[str]]
    """Units that were left out of the left side, and around the right one."""
    named: bool
    """Whether a unit stands before the equals sign."""
    following: Sequence[Token]
    """The next three tokens."""

    @cached_property
    def sides(self) -> tuple[Quotient, Quotient] | None:
        """What the two come to, None where they cannot be read."""
        try:
            return read(self.tokens[0]), read(self.tokens[1])
        except UnreadableError:
            return None

    @property
    def letters(self) -> frozenset[str]:
        """The unknowns of both sides."""
        return self.left.letters | self.right.letters

    @property
    def left(self) -> Quotient:
        """The left side of an equation that can be read."""
        assert self.sides is not None
        return self.sides[0]

    @property
    def right(self) -> Quotient:
        """The right side of an equation that can be read."""
        assert self.sides is not None
        return self.sides[1]

    def has(self, *kinds: str) -> bool:
        """Whether tokens of these kinds are in it."""
        return any(token.kind in kinds for side in self.tokens for token in side)

    @property
    def decimal(self) -> bool:
        """Whether a number with decimals is in it."""
        return any(token.kind == "number" and "." in token.text for side in self.tokens for token in side)

    @property
    def computes(self) -> bool:
        """Whether an operation is in it."""
        return any(computes(side) for side in self.tokens)


def equations(text: str) -> list[Equation]:
    """The equations of a text, in order, those too that cannot be read. The time is linear in the length of the text."""
    if not _EQUALS.search(text):
        return []  # most texts
    pieces, units = tokens(text)
    out: list[Equation] = []
    for at, token in enumerate(pieces):
        if token.kind not in ("equal", "about"):
            continue
        left, right = range(at - _side(pieces, at, -1), at), range(at + 1, at + 1 + _side(pieces, at, 1))
        if not left or not right:
            continue
        a, b = pieces[left.start : left.stop], pieces[right.start : right.stop]
        after = pieces[right.stop : right.stop + 3]
        letters = any(t.kind == "word" for t in (*a, *b))
        out.append(
            Equation(
                start=a[0].start,
                end=b[-1].end,
                text=text[a[0].start : b[-1].end],
                tokens=(a, b),
                edge=_edge_before(pieces, left, letters=letters)
                or _edge_after(pieces, right, letters=letters),
                chained=left.start > 0 and pieces[left.start - 1].kind in ("equal", "about"),
                about=token.kind == "about",
                units=(
                    [units[t.start] for t in a if t.start in units],
                    [units[t.start] for t in (token, *b, *after[:1]) if t.start in units]
                    + [t.text for t in after[:1] if t.kind == "word"],
                ),
                named=token.start in units,
                following=after,
            )
        )
    return out


def _is_part(token: Token) -> bool:
    return token.kind in _PARTS and (token.kind != "word" or len(token.text) == 1)


def _side(pieces: Sequence[Token], at: int, step: int) -> int:
    """How many tokens before (step -1) or after (1) the equals sign at `at` make up the expression there."""
    count = depth = 0
    outwards = ("open", "close")[::-step]
    while (
        0 <= (place := at + step * (count + 1)) < len(pieces) and count < LONGEST and _is_part(pieces[place])
    ):
        if pieces[place].kind == outwards[0] and depth == 0:
            break
        depth += (pieces[place].kind == outwards[1]) - (pieces[place].kind == outwards[0])
        count += 1
    return count


def _edge_before(pieces: Sequence[Token], side: range, *, letters: bool) -> str:
    """What stands in the way at the left edge; "" for nothing."""
    first = pieces[side.start]
    before = pieces[side.start - 1] if side.start else None
    if first.kind == "sign" and (before is None or before.kind not in ("equal", "about")):
        listed = before is None or before.kind in ("line", "stop")
        # "- 5 + 3 = 8" at the start of a line is an item of a list.
        gap = any(token.gap for token in pieces[side.start + 1 : side.start + 2])
        if first.text != "-" or (listed and gap) or (before is not None and before.kind == "word"):
            return "begins with a sign"
    if before is None or before.kind in ("line", "equal", "about", "relation", "open"):
        return ""
    if before.kind == "stop":
        # "14, 400 / 80": one number with a space inside.
        thousands = any(token.kind == "number" for token in pieces[side.start - 2 : side.start - 1])
        split = thousands and before.text == "," and len(first.text) == 3
        return "" if (first.gap or before.text in ":;") and not split else "something stands before it"
    if before.kind != "word" or not first.gap:
        return "something stands before it"
    word = before.text
    if word in _JOINING and any(token.kind == "word" for token in pieces[side.start : side.stop]):
        # "gives x = 5 and y = 6", "simplifies to 2x = 4": an unknown begins a formula, a number may go on.
        return ""
    if len(side) == 1 and not letters:
        return f"a number named {word!r}"
    # "25 pupils + his 1 teacher + 1 driver = 27": the sum begins further left.
    words = pieces[max(0, side.start - 4) : side.start]
    if any(
        token.kind == "sign" and token.gap and all(word.kind == "word" for word in words[i + 1 :])
        for i, token in enumerate(words)
    ):
        return "something stands before it: a sign before words"
    part = word in _WITH_LETTERS if letters else {word, word.rstrip("s")} & _BEFORE
    return f"may be part of {word!r}" if part or len(word) < 2 else ""


def _edge_after(pieces: Sequence[Token], side: range, *, letters: bool) -> str:
    """What stands in the way at the right edge; "" for nothing."""
    after = pieces[side.stop] if side.stop < len(pieces) else None
    if after is None or after.kind in ("line", "equal", "about", "relation", "stop", "close"):
        return ""
    if after.kind != "word" or not after.gap:
        return "something stands after it"
    word = after.text
    follows = pieces[side.stop + 1 : side.stop + 2]
    if word in _JOINING and any(_begins_statement(token, letters=letters) for token in follows):
        return ""
    return f"may go on in {word!r}" if word in _AFTER or len(word) < 2 else ""


def _begins_statement(token: Token, *, letters: bool) -> bool:
    """Whether another statement begins behind "and", and not a part of a number: "8 and x = 3", but not "5 and a half"."""
    return token.kind == "stop" or (
        token.kind == "word" and (letters or (len(token.text) == 1 and token.text != "a"))
    )


def computes(side: Sequence[Token]) -> bool:
    """Whether a side holds an operation."""
    return any(
        token.kind in ("power", "fraction", "root", "pi", "binomial", "factorial")
        or (token.kind == "sign" and i > 0)
        or (token.kind == "open" and i > 0 and side[i - 1].kind in ("number", "close"))
        for i, token in enumerate(side)
    )


# --- calculations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """A calculation in a text: two expressions and an equals sign between them."""

    start: int
    end: int
    """Character offsets: `text[start:end]` is the calculation."""
    text: str
    truth: Truth
    why: str
    """What decided: "exact", "rounded", "15 is not 16", or what stood in the way."""


def calculations(text: str, stated: Sequence[Equation] | None = None) -> tuple[Formula, ...]:
    """The calculations of a text, in order, each judged by itself.

    Equations without a calculation ("x = 5", "5 = 5") are left out. The time is linear in the length of the text.

    Args:
        text: the text.
        stated: its `equations`, where they are known.
    """
    formulas = [*_marked(text), *_written(text, equations(text) if stated is None else stated)]
    return tuple(sorted(formulas, key=lambda formula: (formula.start, formula.end)))


def _marked(text: str) -> Iterator[Formula]:
    """GSM8K's `<<48/2=24>>`, which says of itself that it is a calculation."""
    for match in _MARKED.finditer(text):
        truth, why = _judge(tokens(match[1])[0], tokens(match[2])[0])
        yield Formula(start=match.start(), end=match.end(), text=match[0], truth=truth, why=why)


def _written(text: str, stated: Sequence[Equation]) -> Iterator[Formula]:
    modular: bool | None = None
    for equation in stated:
        a, b = equation.tokens
        if not equation.computes or any(len(side) == 1 and side[0].kind == "word" for side in (a, b)):
            continue
        # "In 8 years = 34 + 8", "1/2 inch = 20 miles": a quantity, and what it stands for.
        if equation.named and not any(sign.kind == "sign" and sign.text in "+-*" for sign in a):
            continue
        truth: Truth = "unknown"
        why = equation.edge or ("an unknown" if equation.has("word") else "")
        if not why:
            truth, why = _judge(a, b, about=equation.about)
        adds = any(token.text in ("+", "-") for token in (*a, *b))
        if truth != "unknown" and adds and len(_measured(equation)) > 1:
            truth, why = "unknown", "a sum of two units"
        if truth == "wrong":
            modular = is_modular(text) if modular is None else modular
            doubt = "the text computes modulo something" if modular else _doubt(text, equation, adds=adds)
            truth, why = ("unknown", doubt) if doubt else (truth, why)
        yield Formula(start=equation.start, end=equation.end, text=equation.text, truth=truth, why=why)


def _doubt(text: str, equation: Equation, *, adds: bool) -> str:
    """Why what looks wrong may not be meant as it stands; "" for no reason."""
    a, b = equation.tokens
    if adds and computes(b) and len(set(equation.units[0])) > 1:
        return "a sum of unlike things"  # 5 bananas + 12 apples = 5 * $1 + 12 * $0.50
    doubt = doubted(text, equation.start, equation.end)
    if doubt:
        return doubt
    if (
        len(a) == 1
        and not equation.chained
        and _PUT_IN.search(text[max(0, equation.start - 100) : equation.start])
    ):
        return "a condition that is tried"
    if equation.has("pi") and _DEGREES.search(text):
        return "degrees or radians may be meant"
    measured = _measured(equation)
    if measured and any(token.kind == "number" for token in equation.following[1:]):
        return "two units in the result"
    if _MONEY.search(text, max(0, equation.start - 2), equation.end + 10) and not equation.has(
        "power", "root", "pi"
    ):
        measured |= {"$": _DOLLAR}
    ratio = _ratio(a, b)
    return (
        "another unit may be meant" if any(ratio in conversions(unit) for unit in measured.values()) else ""
    )


def _ratio(a: Sequence[Token], b: Sequence[Token]) -> Fraction | None:
    """The larger side over the smaller; None where a side is zero, irrational or unreadable."""
    try:
        x, y = (read(side, Fraction(1)).rational for side in (a, b))
    except UnreadableError:
        return None
    return max(x / y, y / x) if x and y else None


def doubted(text: str, start: int, end: int) -> str:
    """Why `text[start:end]` is not stated as true: the text asks, denies or supposes it; "" where it states it."""
    rest = re.split(r"\.\s|\n", text[end : end + 80], maxsplit=1)[0]
    if "?" in rest or _DENIED.search(rest):
        return "the text asks or denies it"
    if _SUPPOSED.search(re.split(r"\.\s|\n", text[max(0, start - 60) : start])[-1]):
        return "the text supposes it"
    return ""


def is_modular(text: str) -> bool:
    """Whether a text computes modulo something, or in another base than ten."""
    return _MODULAR.search(text) is not None


def _measured(equation: Equation) -> dict[str, Unit]:
    """The units of measure in a calculation, by their names."""
    by_word = {
        word: unit_of(word) for words in equation.units for word in words if len(word) > 1 and word != "in"
    }
    return {unit.name: unit for unit in by_word.values() if unit is not None}


def _judge(a: Sequence[Token], b: Sequence[Token], *, about: bool = False) -> tuple[Truth, str]:
    """Two sides of an equals sign: the most favourable of all readings."""
    readings: list[tuple[Truth, str]] = []
    try:
        for reading in _readings(a):
            for other in _readings(b):
                readings.append(_compare(reading, other, a, b))
    except UnreadableError as error:
        return "unknown", str(error)
    for favourable in ("right", "unknown"):
        for truth, why in readings:
            if truth == favourable:
                return truth, why
    if about:
        return "unknown", "written as about equal"
    # 50 + 20% = 60; 48 = 100% + 20%
    signs = {t.text for side in (a, b) for i, t in enumerate(side) if t.kind == "sign" and i}
    percents, numbers = (sum(t.kind == kind for t in (*a, *b)) for kind in ("percent", "number"))
    if signs and not signs & {"*", "/"} and 0 < percents < numbers:
        return "unknown", "a percentage in a sum has two meanings"
    return readings[0]


def _readings(side: Sequence[Token]) -> Iterator[Quotient]:
    yield read(side)
    if any(token.kind == "percent" for token in side):
        yield read(side, Fraction(1))


def _compare(x: Quotient, y: Quotient, a: Sequence[Token], b: Sequence[Token]) -> tuple[Truth, str]:
    if not x.difference(y):
        return "right", "exact"
    p, q = x.rational, y.rational
    why = (
        f"it is {_shown(x)}"
        if not computes(b)
        else f"it is {_shown(y)}"
        if not computes(a)
        else f"the left side is {_shown(x)}, the right side is {_shown(y)}"
    )
    if p is None or q is None:
        return _compare_irrational(x, y, a, b), why
    for bare, shown_as, full in ((q, b, p), (p, a, q)):
        if (decimals := _decimals(shown_as)) and _rounds_to(full, bare, decimals):
            return "right", f"rounded to {decimals} decimals"
    for shown_as, full, side in ((b, p, a), (a, q, b)):
        # $4.20 + $9.45 + $1.35 = $14.99: the value needs no more decimals than are shown, so nothing was rounded.
        decimals = _decimals(shown_as)
        if decimals and (full * 10**decimals).denominator == 1 and not any(_slacks(side)):
            return "wrong", why
    gap, size = abs(p - q), max(abs(p), abs(q))
    if gap < 1 and 1 in (p.denominator, q.denominator):
        return "unknown", "rounded to a whole number, or not"
    # What numbers that may have been rounded or cut off can make of it: in a sum one of their last digits each, in a product their share.
    slacks = [*_slacks(a), *_slacks(b)]
    if gap <= max(sum(slack for slack, _ in slacks), sum(slack / n for slack, n in slacks) * size):
        return "unknown", "within what rounded numbers allow"
    fine = any("." in token.text for token in (*a, *b)) or (p.denominator == 1) != (q.denominator == 1)
    if fine and gap * 100 <= size:
        return "unknown", "close, and decimals are involved"
    if computes(b) and b[0].kind == "number" and plain_number(b[0].text) == p:
        return "unknown", "the result runs on into the next calculation"
    if computes(b) and _begins(b, a):
        return "unknown", "the result is of the first terms, and the rest follows"
    return "wrong", why


def _compare_irrational(x: Quotient, y: Quotient, a: Sequence[Token], b: Sequence[Token]) -> Truth:
    """Unequal sides of which one has a root or π in it: where the other is a decimal or whole number, it may be rounded."""
    p, q = x.number(), y.number()
    rounded = any("." in token.text for token in (*a, *b)) or any(
        side.rational is not None and side.rational.denominator == 1 for side in (x, y)
    )
    near = abs(p - q) < 1 or abs(p - q) * 100 <= max(abs(p), abs(q))
    return "unknown" if rounded and near else "wrong"


def _shown(value: Quotient) -> str:
    return f"about {value.number():.6g}" if value.rational is None else shown(value.rational)


def _decimals(side: Sequence[Token]) -> int:
    """Decimals of a number that stands alone; 0 for a calculation."""
    numbers = [token.text for token in side if token.kind == "number"]
    return len(numbers[0].partition(".")[2]) if len(numbers) == 1 and not computes(side) else 0


def _slacks(side: Sequence[Token]) -> list[tuple[Fraction, Fraction]]:
    """Of each number that may have been rounded or cut off, one of its last digits, and the number."""
    # 0.25, 3.5 and 12.05 are what prices and shares are; 3.33 and 0.67 may be what is left of thirds.
    numbers = [(token.text, plain_number(token.text)) for token in side if token.kind == "number"]
    return [(Fraction(1, 10 ** len(text.partition(".")[2])), n) for text, n in numbers if n * 20 % 1]


def _begins(part: Sequence[Token], whole: Sequence[Token]) -> bool:
    """Whether a side is the first terms of the other: 16 - 18 + 4 = 16 - 18."""
    first, terms = (
        [token.text for token in side if token.kind not in ("open", "close")] for side in (part, whole)
    )
    return terms[: len(first)] == first and terms[len(first) : len(first) + 1] in (["+"], ["-"])


def _rounds_to(exact: Fraction, shown: Fraction, decimals: int) -> bool:
    unit = Fraction(1, 10**decimals)
    cut = abs(shown) <= abs(exact) < abs(shown) + unit and exact * shown >= 0
    return cut or 2 * abs(exact - shown) <= unit


def shown(number: Fraction) -> str:
    """A number for a message: whole, decimal where it ends within six places, else a fraction or six digits."""
    if number.denominator == 1:
        return str(number) if abs(number) < 10**30 else "a number of over 30 digits"
    if 10**6 % number.denominator == 0 and abs(number) < 10**9:
        return f"{float(number):.6f}".rstrip("0")
    if number.denominator < 1000:
        return f"{number.numerator}/{number.denominator}"
    try:
        return f"{float(number):.6g}"
    except OverflowError:
        return "a number of over 300 digits"


def differ(x: Fraction, y: Fraction, *, exact: bool) -> bool:
    """Whether a stated result `y` is surely not the value `x`, however it was rounded; `exact`: no number with decimals was used."""
    gap = abs(x - y)
    if gap < 1 and 1 in (x.denominator, y.denominator) and x.denominator != y.denominator:
        return False
    if exact and x.denominator == y.denominator == 1:
        return gap > 0
    return gap * 100 > max(abs(x), abs(y))
