"""What an expression comes to, in exact fractions.

A parser by recursive descent that computes as it reads; nothing is executed. Beside the exact value it keeps bounds: between what
the result lies if numbers with decimals have been rounded or cut off. Sizes are limited, so hostile text costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt

from stepmark.solutions.checks.formula_text import LONGEST, Token

_DEEPEST = 25
_DIGITS = 40
_BITS = 4096


class UnreadableError(Exception):
    """An expression that is none, has two meanings, or is too large; its text says which."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression comes to."""

    exact: Fraction
    """With every number as it is shown."""
    low: Fraction
    high: Fraction
    """Between these, where the numbers with decimals may have been rounded or cut off."""
    bare: bool
    """A number alone, no calculation."""
    decimals: int
    """Decimals of a bare number."""


def value(pieces: Sequence[Token], *, percent: Fraction) -> Value:
    """Compute an expression.

    Args:
        pieces: its tokens.
        percent: what a percent sign multiplies by: 1/100, or 1 to read it as a unit.

    Raises:
        UnreadableError: see there.
    """
    if len(pieces) >= LONGEST:
        raise UnreadableError("too long")
    return _Reader(pieces, percent).whole()


_Bounds = tuple[Fraction, Fraction, Fraction]


class _Reader:
    """A parser by recursive descent that computes as it reads; bounds travel with every value."""

    def __init__(self, pieces: Sequence[Token], percent: Fraction) -> None:
        self._pieces = pieces
        self._percent = percent
        self._at = 0
        self._depth = 0

    def whole(self) -> Value:
        exact, low, high = self._sum()
        if self._at < len(self._pieces):
            raise UnreadableError("two expressions side by side")
        numbers = [token for token in self._pieces if token.kind == "number"]
        busy = any(token.kind in ("power", "fraction", "root") for token in self._pieces) or any(
            token.kind == "sign" and i > 0 and self._pieces[i - 1].kind in ("number", "close", "percent")
            for i, token in enumerate(self._pieces)
        )
        bare = len(numbers) == 1 and not busy
        return Value(exact, low, high, bare, _decimals(numbers[0].text) if bare else 0)

    def _kind(self) -> str:
        return self._pieces[self._at].kind if self._at < len(self._pieces) else "end"

    def _take(self) -> Token:
        if self._at >= len(self._pieces):
            raise UnreadableError("ends too early")
        self._at += 1
        return self._pieces[self._at - 1]

    def _sum(self) -> _Bounds:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError("too many brackets")
        total = self._product()
        while self._kind() == "sign" and self._pieces[self._at].text in "+-":
            sign = self._take().text
            other = self._product()
            total = _small(_add(total, other if sign == "+" else _negative(other)))
        self._depth -= 1
        return total

    def _product(self) -> _Bounds:
        total = self._signed()
        divided = False
        while True:
            if self._kind() == "sign" and self._pieces[self._at].text in "*/":
                sign = self._take().text
                if divided and sign == "/":
                    raise UnreadableError("two quotients in a row: 6 / 1/2 has two meanings")
                divided = divided or sign == "/"
                if self._kind() == "sign" and self._pieces[self._at].text == "+":
                    raise UnreadableError("two signs in a row")
                other = self._signed()
            elif self._kind() == "open" and not self._pieces[self._at].gap:
                if divided:
                    raise UnreadableError("a quotient before a bracket: 1/2(3) has two meanings")
                sign, other = "*", self._power()
            else:
                return total
            total = _small(_times(total, other if sign == "*" else _over_one(other)))

    def _signed(self) -> _Bounds:
        if self._kind() == "sign" and self._pieces[self._at].text in "+-":
            sign = self._take().text
            if self._kind() == "number" and [t.kind for t in self._pieces[self._at + 1 : self._at + 2]] == [
                "power"
            ]:
                raise UnreadableError("-2^2 has two meanings")
            if self._kind() == "sign":
                raise UnreadableError("two signs in a row")
            inner = self._power()
            return inner if sign == "+" else _negative(inner)
        return self._power()

    def _power(self) -> _Bounds:
        base = self._atom()
        if self._kind() == "power":
            self._take()
            base = _small(_raise(base, self._exponent()))
            if self._kind() == "power":
                raise UnreadableError("a tower of powers")
        if self._kind() == "percent":
            self._take()
            base = _times(base, (self._percent,) * 3)
        return base

    def _exponent(self) -> int:
        token = self._take()
        wrapped = token.kind == "open"
        if wrapped:
            token = self._take()
        negative = token.kind == "sign" and token.text == "-"
        if negative:
            token = self._take()
        if token.kind != "number" or not token.text.isdecimal() or len(token.text) > 3:
            raise UnreadableError("a power that is no small whole number")
        if wrapped and self._take().kind != "close":
            raise UnreadableError("a power that is no small whole number")
        return -int(token.text) if negative else int(token.text)

    def _atom(self) -> _Bounds:
        token = self._take()
        if token.kind == "number":
            if self._kind() == "fraction":
                raise UnreadableError("a number before a fraction has two meanings")
            return _number(token.text)
        if token.kind == "open":
            inner = self._sum()
            if self._take().kind != "close":
                raise UnreadableError("brackets that do not match")
            return inner
        if token.kind == "fraction":
            over = self._argument()
            return _small(_times(over, _over_one(self._argument())))
        if token.kind == "root":
            return _root(self._argument())
        raise UnreadableError(f"no number where one is due: {token.text!r}")

    def _argument(self) -> _Bounds:
        """The group that a LaTeX command stands before; its short form, a digit without braces, is not read."""
        if self._kind() != "open":
            raise UnreadableError("no group after a command")
        return self._atom()


def _decimals(shown: str) -> int:
    return len(shown.partition(".")[2])


def plain_number(shown: str) -> Fraction:
    """A number as it stands in a text.

    Raises:
        UnreadableError: too many digits.
    """
    if len(shown) > _DIGITS:
        raise UnreadableError("too many digits")
    return Fraction(re.sub(r"[^0-9.]", "", shown))


def _number(shown: str) -> _Bounds:
    if re.match("0[0-9]", shown):
        raise UnreadableError("a time or a code: it begins with 0")
    exact = plain_number(shown)
    places = _decimals(shown)
    # 0.25, 3.5 and 12.05 are what prices and shares are; 3.33 and 0.67 may be what is left of thirds.
    slack = Fraction(0) if not places or exact * 20 % 1 == 0 else Fraction(1, 10**places)
    return exact, exact - slack, exact + slack


def _small(bounds: _Bounds) -> _Bounds:
    if any(part.numerator.bit_length() + part.denominator.bit_length() > _BITS for part in bounds):
        raise UnreadableError("too large")
    return bounds


def _add(a: _Bounds, b: _Bounds) -> _Bounds:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _negative(a: _Bounds) -> _Bounds:
    return -a[0], -a[2], -a[1]


def _times(a: _Bounds, b: _Bounds) -> _Bounds:
    corners = [x * y for x in a[1:] for y in b[1:]]
    return a[0] * b[0], min(corners), max(corners)


def _over_one(a: _Bounds) -> _Bounds:
    if a[1] <= 0 <= a[2]:
        raise UnreadableError("a division by what may be zero")
    return 1 / a[0], 1 / a[2], 1 / a[1]


def _raise(a: _Bounds, power: int) -> _Bounds:
    if power <= 0 and a[1] <= 0 <= a[2]:
        raise UnreadableError("a power of zero")
    bits = max(part.numerator.bit_length() + part.denominator.bit_length() for part in a)
    if bits * abs(power) > _BITS:
        raise UnreadableError("too large")
    if a[1] < 0 and a[1] != a[2]:
        raise UnreadableError("a power of a negative number that may be rounded")
    low, high = sorted((a[1] ** power, a[2] ** power))
    return a[0] ** power, low, high


def _root(a: _Bounds) -> _Bounds:
    if a[0] < 0 or a[1] != a[2]:
        raise UnreadableError("a root of what may be rounded, or negative")
    over, under = isqrt(a[0].numerator), isqrt(a[0].denominator)
    if over * over != a[0].numerator or under * under != a[0].denominator:
        raise UnreadableError("a root that is no fraction")
    return (Fraction(over, under),) * 3


def is_share_of_parts(pieces: Sequence[Token]) -> bool:
    """Whether percent signs stand in a sum whose terms are not all percentages ("50 + 20%")."""
    if all(token.kind != "percent" for token in pieces):
        return False
    adds = any(
        sign.kind == "sign" and sign.text in "+-" and before.kind in ("number", "close", "percent")
        for before, sign in pairwise(pieces)
    )
    return adds and sum(t.kind == "percent" for t in pieces) < sum(t.kind == "number" for t in pieces)
