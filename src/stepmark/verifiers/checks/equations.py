r"""Calculations written in a text, each judged exactly.

`calculations` finds them ("12 * 8 = 96", "$3 \times 4 = 12$", "<<48/2=24>>24", 20% of 50 = 10, chains a = b = c) and judges each: right, wrong, or
unknown, in exact fractions. One is **wrong** only if no reading makes it right. In all these cases it **cannot be told**:

- one side has a letter, a function, an unknown sign in it or at its edge, so that the expression may be part of a larger one;
- it is written with ≈, or the text asks ("?"), denies ("not", "false") or supposes it;
- the sides differ by less than one and the shown result is whole (7/2 = 3: rounded, or a quotient without its remainder);
- the sides differ by under one per cent and decimals or a division that does not come out are involved;
- numbers with decimals in it may have been rounded: 3.33 * 3 = 10 (multiples of 0.05 are taken to be exact);
- a result runs on into the next calculation: 5 + 3 = 8 * 2 = 16;
- the right side is the first terms of the left: 16 - 18 + 4 = 16 - 18 = -2, and -2 + 4 = 2;
- a scale or another unit follows the result ("= 2 dozen", "= 1 hour 15 minutes"), or the text computes modulo something.

A result shown with d decimals is right if the exact value, rounded or cut off after d decimals, is it: 2/3 = 0.67 and 2/3 = 0.66 are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from stepmark.verifiers.checks.expressions import (
    WORDS_THAT_COMPUTE,
    Token,
    UnreadableError,
    Value,
    is_share_of_parts,
    plain_number,
    side_after,
    side_before,
    tokens,
    value,
    without_units,
    word_set,
)

Truth = Literal["right", "wrong", "unknown"]

_MARKED = re.compile(r"<<([^<>=\n]{1,100})=([^<>=\n]{1,60})>>")
# Words before an expression that number a thing: "box 1 + 2" adds no numbers.
_THINGS = """
day days week box step case year month group part person item quiz test number type angle side line round room team class grade bag
row column question problem equation level hour version set train car tank store shop pile per
"""
_VERBS = {"is", "are", "was", "were", "equals", "gives"}
_AFTER = WORDS_THAT_COMPUTE - _VERBS | {"with"}
_BEFORE = WORDS_THAT_COMPUTE - _VERBS | word_set(_THINGS)
_TIME, _LENGTH, _MASS, _MONEY, _VOLUME = (
    frozenset(Fraction(n) for n in factors)
    for factors in (
        (7, 12, 24, 30, 52, 60, 168, 365, 1440, 3600),
        (3, 10, 12, 36, 100, 1000, 1760, 5280),
        (16, 1000, 2000),
        (4, 5, 10, 20, 25, 100),
        (4, 16, 128, 1000),
    )
)
_CENTS = 100
_FAMILIES = (
    ("second minute min hour hr day week month year decade", _TIME),
    ("foot feet inch inches yard mile meter metre kilometer kilometre km cm mm", _LENGTH),
    ("gram kg kilogram pound ounce ton", _MASS),
    ("cent dollar quarter dime nickel penny pennies", _MONEY),
    ("cup pint quart gallon liter litre ml", _VOLUME),
)
_MEASURES = {word: factors for words, factors in _FAMILIES for word in words.split()}
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


def calculations(text: str) -> tuple[Formula, ...]:
    """The calculations of a text, in order, each judged by itself.

    Equations without a calculation ("x = 5", "5 = 5") are left out. The time is linear in the length of the text.
    """
    formulas = [*_marked(text), *_written(text)]
    return tuple(sorted(formulas, key=lambda formula: (formula.start, formula.end)))


def _marked(text: str) -> Iterator[Formula]:
    """GSM8K's `<<48/2=24>>`, which says of itself that it is a calculation."""
    for match in _MARKED.finditer(text):
        truth, why = _judge(tokens(match[1]), tokens(match[2]))
        yield Formula(start=match.start(), end=match.end(), text=match[0], truth=truth, why=why)


def _written(text: str) -> Iterator[Formula]:
    pieces, units = without_units(tokens(text))
    modular: bool | None = None
    for at, token in enumerate(pieces):
        if token.kind not in ("equal", "about"):
            continue
        left, right = side_before(pieces, at), side_after(pieces, at)
        if not left or not right:
            continue
        a, b = pieces[left.start : left.stop], pieces[right.start : right.stop]
        if not (_computes(a) or _computes(b)):
            continue
        # "In 8 years = 34 + 8", "1/2 inch = 20 miles": a quantity, and what it stands for.
        if token.start in units and not any(sign.kind == "sign" and sign.text in "+-*" for sign in a):
            continue
        edge = _edge_before(pieces, left) or _edge_after(pieces, right)
        truth: Truth = "unknown"
        why = edge
        if not edge:
            truth, why = _judge(a, b, about=token.kind == "about")
        adds = any(token.text in ("+", "-") for token in (*a, *b))
        if (
            truth == "wrong"
            and adds
            and _computes(b)
            and len({units[t.start] for t in a if t.start in units}) > 1
        ):
            truth, why = "unknown", "a sum of unlike things"  # 5 bananas + 12 apples = 5 * $1 + 12 * $0.50
        if truth != "unknown" and adds and len(_measured(pieces, units, left, right)) > 1:
            truth, why = "unknown", "a sum of two units"
        if truth == "wrong":
            modular = is_modular(text) if modular is None else modular
            doubt = (
                "the text computes modulo something" if modular else _doubt(text, pieces, units, left, right)
            )
            truth, why = ("unknown", doubt) if doubt else (truth, why)
        yield Formula(
            start=a[0].start, end=b[-1].end, text=text[a[0].start : b[-1].end], truth=truth, why=why
        )


def _computes(side: Sequence[Token]) -> bool:
    return any(
        token.kind in ("power", "fraction", "root")
        or (token.kind == "sign" and i > 0)
        or (token.kind == "open" and i > 0 and side[i - 1].kind in ("number", "close"))
        for i, token in enumerate(side)
    )


def _edge_before(pieces: Sequence[Token], side: range) -> str:
    """What stands in the way at the left edge; "" for nothing."""
    first = pieces[side.start]
    before = pieces[side.start - 1] if side.start else None
    if first.kind == "sign" and (before is None or before.kind != "equal"):
        follows = pieces[side.start + 1 : side.start + 2]
        listed = before is None or before.kind in ("line", "stop", "open", "relation")
        # "- 5 + 3 = 8" at the start of a line is an item of a list.
        if not listed or first.text != "-" or any(token.gap for token in follows):
            return "begins with a sign"
    if before is None or before.kind in ("line", "equal", "about", "relation", "open"):
        return ""
    if before.kind == "stop":
        # ". 84 + 3" and "14, 400 / 80": one number with a space inside.
        cut = pieces[side.start - 2].kind in ("sign", "number") if side.start > 1 else False
        split = cut and ((before.text == "," and len(first.text) == 3) or (before.text == "." and before.gap))
        return "" if (first.gap or before.text == ":") and not split else "something stands before it"
    if before.kind == "word" and first.gap and first.kind != "open":
        if len(side) == 1:
            return f"a number named {before.text!r}"
        # "25 pupils + his 1 teacher + 1 driver = 27": the sum begins further left.
        words = pieces[max(0, side.start - 4) : side.start]
        if any(
            token.kind == "sign" and all(word.kind == "word" for word in words[i + 1 :])
            for i, token in enumerate(words)
        ):
            return "something stands before it: a sign before words"
        stems = {before.text, before.text.rstrip("s")}
        return f"may be part of {before.text!r}" if stems & _BEFORE or len(before.text) < 2 else ""
    return "something stands before it"


def _edge_after(pieces: Sequence[Token], side: range) -> str:
    """What stands in the way at the right edge; "" for nothing."""
    after = pieces[side.stop] if side.stop < len(pieces) else None
    if after is None or after.kind in ("line", "equal", "about", "relation", "close"):
        return ""
    if after.kind == "stop":
        return "a question" if after.text == "?" else ""
    if after.text == "and" and after.gap and _begins_clause(pieces[side.stop + 1 : side.stop + 6]):
        return ""
    if after.kind == "word" and after.gap:
        return f"may go on in {after.text!r}" if after.text in _AFTER or len(after.text) < 2 else ""
    return "something stands after it"


def _begins_clause(words: Sequence[Token]) -> bool:
    """Whether what follows "and" is another statement, not a part of the number ("5 and a half", "5 and 2 left")."""
    return (
        len(words) > 0
        and words[0].kind == "word"
        and words[0].text not in ("a", "an", "one", "two", "three", "half")
        and not any(word.text in ("remainder", "remainders", "left", "over", "remain") for word in words)
    )


def _doubt(text: str, pieces: Sequence[Token], units: Mapping[int, str], left: range, right: range) -> str:
    """Why what looks wrong may not be meant as it stands; "" for no reason."""
    a, b = pieces[left.start : left.stop], pieces[right.start : right.stop]
    doubt = doubted(text, a[0].start, b[-1].end)
    if doubt:
        return doubt
    if any(text[token.start : token.end].lower() == "of" for token in b):
        return "what the result is a share of may be told with it"
    measures = _measured(pieces, units, left, right)
    if measures and any(token.kind == "number" for token in pieces[right.stop + 1 : right.stop + 3]):
        return "two units in the result"
    try:
        x, y = (value(side, percent=Fraction(1)).exact for side in (a, b))
    except UnreadableError:
        return ""
    if x and y and max(x / y, y / x) == _CENTS and is_money(text[max(0, a[0].start - 2) : b[-1].end + 10]):
        return "cents or dollars may be meant"
    if x and y and any(x / y in factors or y / x in factors for factors in measures.values()):
        return "another unit may be meant"
    return ""


def doubted(text: str, start: int, end: int) -> str:
    """Why `text[start:end]` is not stated as true: the text asks, denies or supposes it; "" where it states it."""
    rest = re.split(r"\.\s|\n", text[end : end + 80], maxsplit=1)[0]
    if "?" in rest or _DENIED.search(rest):
        return "the text asks or denies it"
    if _SUPPOSED.search(re.split(r"\.\s|\n", text[max(0, start - 60) : start])[-1]):
        return "the text supposes it"
    return ""


def is_money(text: str) -> bool:
    """Whether a text counts dollars or cents."""
    return "$" in text or re.search(r"\b(?:cents?|dollars?|pence|pennies)\b|¢", text, re.I) is not None


def is_modular(text: str) -> bool:
    """Whether a text computes modulo something, or in another base than ten."""
    return _MODULAR.search(text) is not None


def _measured(
    pieces: Sequence[Token], units: Mapping[int, str], left: range, right: range
) -> Mapping[str, frozenset[Fraction]]:
    """The units of measure in a calculation, each with the factors to others of its family."""
    after = pieces[right.stop : right.stop + 1]
    words = [units[token.start] for token in pieces[left.start : right.stop + 1] if token.start in units]
    words += [token.text for token in after if token.kind == "word"]
    return {stem: _MEASURES[stem] for word in words for stem in (word, word.rstrip("s")) if stem in _MEASURES}


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
    if is_share_of_parts(a) or is_share_of_parts(b):
        return "unknown", "a percentage in a sum has two meanings"
    adds = not any(token.kind == "sign" and token.text in "*/" for token in (*a, *b))
    if adds and _is_percent(a) != _is_percent(b):
        return "unknown", "a number may stand for what it is a share of: 48 = 100% + 20%"
    return readings[0]


def _is_percent(side: Sequence[Token]) -> bool:
    return any(token.kind == "percent" for token in side)


def _readings(side: Sequence[Token]) -> Iterator[Value]:
    yield value(side, percent=Fraction(1, 100))
    if any(token.kind == "percent" for token in side):
        yield value(side, percent=Fraction(1))


def _compare(x: Value, y: Value, a: Sequence[Token], b: Sequence[Token]) -> tuple[Truth, str]:
    if x.exact == y.exact:
        return "right", "exact"
    for bare, full in ((y, x), (x, y)):
        if bare.bare and bare.decimals and _rounds_to(full.exact, bare.exact, bare.decimals):
            return "right", f"rounded to {bare.decimals} decimals"
    for bare, full in ((y, x), (x, y)):
        # $4.20 + $9.45 + $1.35 = $14.99: the value needs no more decimals than are shown, so nothing was rounded.
        shifted = full.exact * 10**bare.decimals
        if bare.bare and bare.decimals and shifted.denominator == 1 and full.low == full.high:
            return "wrong", f"it is {shown(full.exact)}"
    gap = abs(x.exact - y.exact)
    if gap < 1 and 1 in (x.exact.denominator, y.exact.denominator):
        return "unknown", "rounded to a whole number, or not"
    if x.low <= y.high and y.low <= x.high:
        return "unknown", "within what rounded numbers allow"
    fine = (
        any("." in token.text for token in (*a, *b)) or x.exact.denominator != 1 or y.exact.denominator != 1
    )
    if fine and gap * 100 <= max(abs(x.exact), abs(y.exact)):
        return "unknown", "close, and decimals are involved"
    if _computes(b) and b[0].kind == "number" and plain_number(b[0].text) == x.exact:
        return "unknown", "the result runs on into the next calculation"
    if _computes(b) and _begins(b, a):
        return "unknown", "the result is of the first terms, and the rest follows"
    if x.bare != y.bare:
        return "wrong", f"it is {shown((y if x.bare else x).exact)}"
    return "wrong", f"the left side is {shown(x.exact)}, the right side is {shown(y.exact)}"


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
