r"""What an expression comes to: an exact quotient of polynomials in its letters, in roots and in π.

`read` is a parser by recursive descent over `expressions.tokens` that computes as it reads: numbers with thousands commas and decimals, mixed
numbers, `+ - * / ^ % !`, brackets, letters, π, and LaTeX's `\frac \sqrt \binom`. A square root of a whole number is written in roots of primes
(√18 = 3 √2) and π is a letter, so two expressions are equal if and only if their quotients are: roots of different primes are
independent over the rationals, and π is transcendental. Sizes are limited: hostile text ends in `UnreadableError`.

Not sympy: a finding must not depend on what else is installed, and sympy is no core dependency; `expand` after each operation, which the limits on sizes
need, takes two to six times as long as all of this, its import a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile

from stepmark.verifiers.checks.expressions import Token

Monomial = tuple[tuple[str, int], ...]
"""Letters with their powers, sorted: (("x", 2), ("y", 1)) is x² y."""
Polynomial = Mapping[Monomial, Fraction]

PI = "π"
LONGEST = 120
"""Tokens of the longest expression that is read."""
_TERMS = 80
_BITS = 4096
_DIGITS = 40
_POWER = 12
_LARGEST_POWER = 999
_DEEPEST = 25
_LARGEST_ROOT = 10**6
_LARGEST_FACTORIAL = 30
_SMALL_DENOMINATOR = 100
# Before a bracket these letters name functions, sets or points: f(x), P(A).
_FUNCTIONS = frozenset("fghpqABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ONE: Polynomial = {(): Fraction(1)}


class UnreadableError(Exception):
    """An expression that is none, has two meanings, or is too large; its text says which."""


@dataclass(frozen=True, slots=True)
class Quotient:
    """A polynomial over a polynomial that is not zero."""

    above: Polynomial
    below: Polynomial

    @property
    def letters(self) -> frozenset[str]:
        """The unknowns in it; π and roots are numbers."""
        return frozenset(
            letter
            for polynomial in (self.above, self.below)
            for monomial in polynomial
            for letter, _ in monomial
            if letter != PI and not letter.startswith("√")
        )

    @property
    def rational(self) -> Fraction | None:
        """Its value, where it is a rational number."""
        if set(self.above) <= {()} and set(self.below) <= {()}:
            return self.above.get((), Fraction(0)) / self.below[()]
        return None

    def number(self) -> float:
        """Its value in floating point; `UnreadableError` where a letter is in it, or it is too large or not defined."""
        try:
            return _number(self.above) / _number(self.below)
        except (ValueError, OverflowError, ZeroDivisionError):
            raise UnreadableError("no value") from None

    def difference(self, other: Quotient) -> Polynomial:
        """The numerator of the difference: empty if and only if the two are equal."""
        return (self - other).above

    def __add__(self, other: Quotient) -> Quotient:
        if self.below == other.below:
            return Quotient(_sum(self.above, other.above), self.below)
        above = _sum(multiply(self.above, other.below), multiply(other.above, self.below))
        return Quotient(above, multiply(self.below, other.below))

    def __neg__(self) -> Quotient:
        return Quotient({monomial: -x for monomial, x in self.above.items()}, self.below)

    def __sub__(self, other: Quotient) -> Quotient:
        return self + -other

    def __mul__(self, other: Quotient) -> Quotient:
        return Quotient(multiply(self.above, other.above), multiply(self.below, other.below))

    def __truediv__(self, other: Quotient) -> Quotient:
        if not other.above:
            raise UnreadableError("a division by zero")
        if other.rational:
            return self * number(1 / other.rational)
        return self * Quotient(other.below, other.above)

    def __pow__(self, power: int) -> Quotient:
        value = self.rational
        if value is not None:
            if power <= 0 and not value:
                raise UnreadableError("a power of zero")
            if _bits(value) * abs(power) > _BITS:
                raise UnreadableError("too large")
            return number(value**power)
        if abs(power) > _POWER:
            raise UnreadableError("a power that is too large")
        total = number(Fraction(1))
        for _ in range(abs(power)):
            total *= self
        return number(Fraction(1)) / total if power < 0 else total


def number(value: Fraction) -> Quotient:
    """A rational number."""
    return Quotient({(): value} if value else {}, _ONE)


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """The product; `UnreadableError` where it is too large."""
    if len(a) * len(b) > _TERMS * 8:
        raise UnreadableError("too large")
    total: dict[Monomial, Fraction] = {}
    for first, x in a.items():
        for other, y in b.items():
            monomial, factor = _product(first, other)
            total[monomial] = total.get(monomial, Fraction(0)) + x * y * factor
    return _small(total)


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return _small({m: a.get(m, Fraction(0)) + b.get(m, Fraction(0)) for m in {**a, **b}})


def _bits(a: Fraction) -> int:
    return a.numerator.bit_length() + a.denominator.bit_length()


def _small(polynomial: Mapping[Monomial, Fraction]) -> Polynomial:
    small = {monomial: x for monomial, x in polynomial.items() if x}
    if len(small) > _TERMS or any(_bits(x) > _BITS for x in small.values()):
        raise UnreadableError("too large")
    return small


def _product(a: Monomial, b: Monomial) -> tuple[Monomial, int]:
    """The product of two monomials; a squared root leaves a factor."""
    powers = dict(a)
    factor = 1
    for letter, power in b:
        powers[letter] = powers.get(letter, 0) + power
    for letter, power in powers.items():
        if letter.startswith("√") and power > 1:
            factor *= int(letter[1:]) ** (power // 2)
            powers[letter] = power % 2
    if any(power > 2 * _POWER for power in powers.values()):
        raise UnreadableError("too large")
    return tuple(sorted((letter, power) for letter, power in powers.items() if power)), factor


def _number(polynomial: Polynomial) -> float:
    total = 0.0
    for monomial, x in polynomial.items():
        part = float(x)
        for letter, power in monomial:
            # A letter that is neither π nor a root is no number: ValueError.
            part *= (math.pi if letter == PI else math.sqrt(int(letter[1:]))) ** power
        total += part
    return total


def _root(a: Quotient) -> Quotient:
    value = a.rational
    if value is None or value < 0:
        raise UnreadableError("a root of what is no small number")
    # √(a/b) = √(a b) / b
    inside = value.numerator * value.denominator
    whole = math.isqrt(inside)
    if whole * whole == inside:
        return number(Fraction(whole, value.denominator))
    if inside > _LARGEST_ROOT:
        raise UnreadableError("a root of what is no small number")
    outside, divisor = 1, 2
    roots: list[tuple[str, int]] = []
    while inside > 1:
        times = 0
        while inside % divisor == 0:
            inside //= divisor
            times += 1
        outside *= divisor ** (times // 2)
        if times % 2:
            roots.append((f"√{divisor}", 1))
        divisor = divisor + 1 if divisor * divisor <= inside else max(inside, 2)
    return Quotient({tuple(sorted(roots)): Fraction(outside, value.denominator)}, _ONE)


def plain_number(shown: str) -> Fraction:
    """A number as it stands in a text; `UnreadableError` for too many digits, or a time or a code."""
    if len(shown) > _DIGITS:
        raise UnreadableError("too many digits")
    if re.match("0[0-9]", shown):
        raise UnreadableError("a time or a code: it begins with 0")
    return Fraction(re.sub(r"[^0-9.]", "", shown))


def read(side: Sequence[Token], percent: Fraction = Fraction(1, 100)) -> Quotient:
    """One side of an equation; `UnreadableError` where it is no expression, has two meanings, or is too large.

    Args:
        side: its tokens.
        percent: what a percent sign multiplies by; 1 to read it as a unit.
    """
    return _Reader(side, percent).whole()


class _Reader:
    def __init__(self, pieces: Sequence[Token], percent: Fraction) -> None:
        if len(pieces) >= LONGEST:
            raise UnreadableError("too long")
        self._pieces = pieces
        self._percent = number(percent)
        self._at = self._depth = 0

    def whole(self) -> Quotient:
        total = self._sum()
        if self._at < len(self._pieces):
            raise UnreadableError("two expressions side by side")
        return total

    def _kind(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._pieces[at].kind if at < len(self._pieces) else "end"

    def _sign(self, signs: str) -> bool:
        return self._kind() == "sign" and self._pieces[self._at].text in signs

    def _take(self) -> Token:
        if self._at >= len(self._pieces):
            raise UnreadableError("ends too early")
        self._at += 1
        return self._pieces[self._at - 1]

    def _sum(self) -> Quotient:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError("too many brackets")
        total = self._term()
        while self._sign("+-"):
            total = total + self._term() if self._take().text == "+" else total - self._term()
        self._depth -= 1
        return total

    def _term(self) -> Quotient:
        total = self._signed()
        divided = False
        while True:
            if self._sign("*/"):
                slash = self._take().text == "/"
                if slash and divided:
                    raise UnreadableError("two quotients in a row: 6 / 1/2 has two meanings")
                divided = divided or slash
                other = self._signed()
                total = total / other if slash else total * other
            elif self._follows():
                if divided:
                    raise UnreadableError("a product after a quotient: 1/2x has two meanings")
                total *= self._power()
            else:
                return total

    def _follows(self) -> bool:
        """Whether a factor follows without a sign: 3x, x(x + 1), (a)(b), 2√3. "x 5", ")5" and "2 3" are no products that people write."""
        if self._kind() == "end":
            return False
        before, token = self._pieces[self._at - 1 : self._at + 1]
        if token.kind == "fraction" and before.kind == "number":
            raise UnreadableError("a number before a fraction has two meanings")
        if token.kind == "word" and token.gap and before.kind == "number" and token.text in ("a", "i"):
            return False
        return token.kind in ("word", "open", "fraction", "root", "pi", "binomial")

    def _signed(self) -> Quotient:
        if not self._sign("+-"):
            return self._power()
        negative = self._take().text == "-"
        if self._kind() == "number" and self._kind(1) == "power" and negative:
            raise UnreadableError("-2^2 has two meanings")
        if self._kind() == "sign":
            raise UnreadableError("two signs in a row")
        return -self._power() if negative else self._power()

    def _power(self) -> Quotient:
        base = self._base()
        if self._kind() == "factorial":
            self._take()
            base = number(Fraction(math.factorial(_small_whole(base))))
        if self._kind() == "power":
            self._take()
            base = base ** self._exponent()
            if self._kind() == "power":
                raise UnreadableError("a tower of powers")
        if self._kind() == "percent":
            self._take()
            base *= self._percent
        return base

    def _exponent(self) -> int:
        """A small whole number, alone or in brackets."""
        negative = self._sign("-") and self._take().text == "-"
        value = self._base().rational
        if value is None or value.denominator != 1 or abs(value) > _LARGEST_POWER:
            raise UnreadableError("a power that is no small whole number")
        return -int(value) if negative else int(value)

    def _base(self) -> Quotient:
        token = self._take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "pi":
            return Quotient({((PI, 1),): Fraction(1)}, _ONE)
        if token.kind == "word":
            return self._letter(token)
        if token.kind == "open":
            inner = self._sum()
            if self._take().kind != "close":
                raise UnreadableError("brackets that do not match")
            return inner
        if token.kind == "fraction":
            above = self._argument()
            return above / self._argument()
        if token.kind == "root":
            return _root(self._argument())
        if token.kind == "binomial":
            n, k = _small_whole(self._argument()), _small_whole(self._argument())
            return number(Fraction(math.comb(n, k)))
        raise UnreadableError(f"no number where one is due: {token.text!r}")

    def _letter(self, token: Token) -> Quotient:
        if not token.text.isascii():
            raise UnreadableError("a word")
        if self._kind() == "open" and not self._opens_sum(token.text):
            raise UnreadableError("a function")
        ahead = (self._kind(), self._kind(1), self._kind(2))
        if token.text in _FUNCTIONS and ahead == ("power", "open", "sign"):
            raise UnreadableError("an inverse function")
        return Quotient({((token.text, 1),): Fraction(1)}, _ONE)

    def _number(self, token: Token) -> Quotient:
        value = plain_number(token.text)
        # 2 1/2, a mixed number: a proper fraction after a space.
        ahead = self._pieces[self._at : self._at + 3]
        if [t.kind for t in ahead] == ["number", "sign", "number"] and ahead[1].text == "/" and ahead[0].gap:
            over, under = plain_number(ahead[0].text), plain_number(ahead[2].text)
            if value.denominator == 1 and 0 < over < under <= _SMALL_DENOMINATOR:
                self._at += 3
                return number(value + over / under)
        return number(value)

    def _opens_sum(self, letter: str) -> bool:
        """Whether a bracket after a letter holds a sum, so that it is a product: x(x + 1), not f(x) or a(2)."""
        inner = takewhile(lambda token: token.kind != "close", self._pieces[self._at :])
        return letter not in _FUNCTIONS and any(t.kind == "sign" and t.text in "+-" for t in inner)

    def _argument(self) -> Quotient:
        r"""What a LaTeX command applies to: a group, or one digit or letter (`\frac12`, `\sqrt3`)."""
        if self._kind() not in ("open", "number", "pi", "word"):
            raise UnreadableError("no group after a command")
        token = self._pieces[self._at]
        if token.text == "[":
            raise UnreadableError("a root that is not square")
        if token.kind != "number" or not token.text.isdecimal():
            return self._base()
        # The digits of one number are the arguments one by one.
        self._at += 1
        if len(token.text) > 1:
            rest = Token("number", token.text[1:], token.start + 1, token.end, False)
            self._pieces = [*self._pieces[: self._at], rest, *self._pieces[self._at :]]
        return number(Fraction(int(token.text[0])))


def _small_whole(value: Quotient) -> int:
    rational = value.rational
    if rational is None or rational.denominator != 1 or not 0 <= rational <= _LARGEST_FACTORIAL:
        raise UnreadableError("a factorial of what is no small whole number")
    return int(rational)


def coefficients(polynomial: Polynomial, letter: str) -> list[Fraction] | None:
    """The coefficients in one letter, the constant first; None where another letter or a root is in it."""
    if any(name != letter for monomial in polynomial for name, _ in monomial):
        return None
    degree = max((power for monomial in polynomial for _, power in monomial), default=0)
    return [polynomial.get(((letter, d),) if d else (), Fraction(0)) for d in range(degree + 1)]


def common_roots(a: Sequence[Fraction], b: Sequence[Fraction]) -> Sequence[Fraction]:
    """The greatest common divisor of two polynomials in one letter (Euclid), the constant first."""
    x, y = _trimmed(a), _trimmed(b)
    while y:
        rest = list(x)
        while len(rest) >= len(y):
            factor, shift = rest[-1] / y[-1], len(rest) - len(y)
            for i, c in enumerate(y):
                rest[i + shift] -= factor * c
            rest.pop()
        x, y = y, _trimmed(rest)
        if any(_bits(c) > _BITS for c in y):
            raise UnreadableError("too large")
    return x


def _trimmed(a: Sequence[Fraction]) -> list[Fraction]:
    out = list(a)
    while out and not out[-1]:
        out.pop()
    return out
