r"""Calculations in a step's text whose truth can be computed, and numbers written like the ones they replace.

A calculation is `EXPRESSION = NUMBER` of numbers, brackets and + - * / (also ``×``, ``÷``, ``\times``, ``\cdot``,
``\div``, ``\frac{a}{b}`` and money signs) that stands alone: not a part of a longer formula. Only those that are
exactly true are found, so that altering one of their numbers or operators makes a statement that is surely false.
Nothing is executed: `labels.exact.compute` parses and computes in exact fractions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from stepmark.evaluation.perturbations.text import NUMBER
from stepmark.labels.exact import compute

_FRAC = r"\\[dt]?frac\s*\{\s*[0-9.,]+\s*\}\s*\{\s*[0-9.,]+\s*\}"
_OPERATOR = r"[-+*/×÷−]|\\times\b|\\cdot\b|\\div\b|(?<=[0-9)])\s?x\s?(?=[0-9($])"
_PIECE = rf"(?:{_FRAC}|\\?\$(?=\s*[0-9.])|{NUMBER}|{_OPERATOR}|(?<!\\)[()]|[ \t])"
# A look-ahead whose match is taken whole, and not `++`, which CPython before 3.11.5 gets wrong on groups (gh-106052).
_CALCULATION = re.compile(rf"(?=(?P<left>{_PIECE}+))(?P=left)=[ \t]*(?:\\?\$)?(?P<right>-?(?:{NUMBER}))")
# What may not follow: the calculation would go on, or the number have a unit that changes its value.
_GOES_ON = re.compile(
    r"\s*(?:[-+*/×÷−^_(!]\s*[\w\\($]|\\(?:times|cdot|div|frac|dfrac|pi|sqrt)\b|\\?%|[.,]?[0-9]|[a-zA-Z]\b)"
)
_GLUED = re.compile(
    r"(?:[\w)}\]^_\\.,]|[-+*/×÷−^]\s*|\\(?:times|cdot|div|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|sqrt)\s*)\Z"
)
_COMPUTES = re.compile(rf"[0-9)}}]\s*(?:{_OPERATOR})|\\[dt]?frac")
OPERATORS = re.compile(_OPERATOR)
"""The operators that a calculation may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    """A true calculation in a text."""

    start: int
    """Character offset of its first character."""
    end: int
    """Offset after its last character."""
    equals: int
    """Offset of its "="."""


def calculations(text: str) -> Iterator[Calculation]:
    """The calculations of a text that can be computed and are true."""
    at = 0
    while match := _CALCULATION.search(text, at):
        # In "a = 3 + 4 = 7 + 1 = 8" what is one side of an equation begins the next.
        at = match.end("left") + 1
        start, equals = match.span("left")
        left = match["left"].lstrip(" \t")
        while left.startswith("(") and left.count("(") > left.count(")"):
            left = left[1:].lstrip(" \t")  # "(3 + 4 = 7)": the bracket holds the equation
        start = equals - len(left)
        if _GOES_ON.match(text, match.end()) or _GLUED.search(text[:start]):
            continue
        if _COMPUTES.search(left) and holds(text[start : match.end()]):
            at = match.end()
            yield Calculation(start=start, end=match.end(), equals=equals)


def holds(calculation: str) -> bool | None:
    """Whether `EXPRESSION = NUMBER` is exactly true; None if it cannot be computed."""
    left, _, right = calculation.partition("=")
    values = [compute(_in_signs(side)) for side in (left, right)]
    if values[0] is None or values[1] is None:
        return None
    return values[0] == values[1]


def _in_signs(side: str) -> str:
    side = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"(\1)/(\2)", side)
    side = re.sub(r"\\times\b|\\cdot\b|×|x", "*", side)
    side = re.sub(r"\\div\b|÷", "/", side)
    return side.replace("−", "-").replace("\\$", "").replace("$", "").strip()


def other_number(shown: str, rng: random.Random, *, singular: bool = False) -> str:
    """A different number, written as `shown` is: as many decimals, thousands commas, no zero in front.

    The change is one that slips make: the last place off by one, two or ten, a digit replaced, twice the value.

    Args:
        shown: one match of `NUMBER`.
        rng: chooses the change.
        singular: whether 1 would read wrongly there ("1 apples"); then it is not chosen.
    """
    whole, point, decimals = shown.partition(".")
    digits = whole.replace(",", "") + decimals
    value = int(digits)
    options = [value + d for d in (-10, -2, -2, -1, -1, 1, 1, 2, 2, 10)] + [2 * value]
    if value >= 10:
        at = rng.randrange(len(str(value)))
        choices = [d for d in "0123456789" if d != str(value)[at] and not (at == 0 and d == "0")]
        options += [int(str(value)[:at] + rng.choice(choices) + str(value)[at + 1 :])] * 4
    new = rng.choice([o for o in options if o > 0 and o != value and not (singular and o == 1 and not point)])
    if not point:
        return f"{new:,}" if "," in whole else str(new)
    padded = str(new).rjust(len(decimals) + (1 if whole else 0), "0")
    head, tail = padded[: len(padded) - len(decimals)], padded[len(padded) - len(decimals) :]
    if "," in whole:
        head = f"{int(head):,}"
    return f"{head}.{tail}"


def value_of(shown: str) -> Fraction:
    """The value of one match of `NUMBER`."""
    return Fraction(shown.replace(",", ""))


_OPPOSITE = {
    "+": "-",
    "-": "+",
    "−": "+",
    "*": "/",
    "/": "*",
    "×": "÷",
    "÷": "×",
    "x": "/",
    "\\times": "\\div",
    "\\cdot": "\\div",
    "\\div": "\\times",
}


def opposite(operator: str) -> str:
    """The opposite operator in the same notation, its spacing kept: + for -, ÷ for ×."""
    sign = operator.strip()
    return operator.replace(sign, _OPPOSITE[sign])
