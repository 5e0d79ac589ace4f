"""One slip in one line of a worked solution: what can be altered, by what, and how the altered line is written.

Nothing is executed: calculations are read by a parser for + - * / and computed in exact fractions.
"""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal

FORMULA = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
"""A marked calculation: the expression, its result."""
_CALCULATION = re.compile(r"[0-9.+\-*/()\s]+")
_THOUSANDS = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])"
NUMBER = re.compile(rf"(?:{_THOUSANDS}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+")
"""A number as people write it."""
_SIGN = re.compile(r"(?<=[0-9)\s])[-+*/x×÷]")
_TIMES = re.compile(r"[0-9)]\s*([*x×])\s*[$(]*[0-9.]")
_TRIES = 8
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


@dataclass(frozen=True, slots=True)
class Slip:
    """An altered calculation."""

    kind: Literal["value", "operand", "operation"]
    """A wrong result of a right calculation, or a wrong number or sign in one that is then carried out rightly."""
    before: str
    """The line up to the result, in plain text."""
    value: Fraction
    """The result that is now due."""


def slip(formula: re.Match[str], kind: str, rng: random.Random, style: str) -> Slip | None:
    """Alter one calculation of a line; None where it cannot be done surely.

    Args:
        formula: its mark (`FORMULA`), for which `alterable` holds.
        kind: "value", "operand" or "operation"; where no operand or sign can be altered it becomes "value".
        rng: chooses the error.
        style: text that shows whether commas part thousands and which sign stands for times.
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
        for _ in range(_TRIES):
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
    options = [value + d for d in (-10, -2, -2, -1, -1, 1, 2, 10)] + [
        value * 10,
        value * 2,
        value / 10,
        value / 2,
    ]
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
