r"""Expressions with letters, roots and π, read into exact quotients of polynomials.

`read` is a parser by recursive descent over the tokens of `formula_text`. A square root of a whole number is written in roots of primes
(√18 = 3 √2) and π is a letter, so two expressions are equal if and only if their quotients are: roots of different primes are
independent over the rationals, and π is transcendental. Sizes are limited: hostile text ends in `UnreadableError`.

Not sympy: `expand` after each operation, which the limits on sizes need, takes two to six times as long as all of this, its import a second, and it is no core dependency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stepmark.verifiers.checks.expressions import Parser, Token, UnreadableError, plain_number

Monomial = tuple[tuple[str, int], ...]
"""Letters with their powers, sorted: (("x", 2), ("y", 1)) is x² y."""
Polynomial = Mapping[Monomial, Fraction]

PI = "π"
_TERMS = 80
_BITS = 512
_POWER = 12
_DEEPEST = 20
_LARGEST_ROOT = 10**6
_LARGEST_FACTORIAL = 30
_SMALL_DENOMINATOR = 100
# Before a bracket these letters name functions, sets or points: f(x), P(A).
_FUNCTIONS = frozenset("fghpqABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ONE: Polynomial = {(): Fraction(1)}


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
        return _add(multiply(self.above, other.below), multiply(other.above, self.below), -1)


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
            monomial, factor = _joined(first, other)
            total[monomial] = total.get(monomial, Fraction(0)) + x * y * factor
    return _small(total)


def _add(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    total = dict(a)
    for monomial, x in b.items():
        total[monomial] = total.get(monomial, Fraction(0)) + sign * x
    return _small(total)


def _small(polynomial: Mapping[Monomial, Fraction]) -> Polynomial:
    small = {monomial: x for monomial, x in polynomial.items() if x}
    if len(small) > _TERMS or any(
        x.numerator.bit_length() + x.denominator.bit_length() > _BITS for x in small.values()
    ):
        raise UnreadableError("too large")
    return small


def _joined(a: Monomial, b: Monomial) -> tuple[Monomial, int]:
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


def _sum(a: Quotient, b: Quotient, sign: int = 1) -> Quotient:
    if a.below == b.below:
        return Quotient(_add(a.above, b.above, sign), a.below)
    return Quotient(
        _add(multiply(a.above, b.below), multiply(b.above, a.below), sign), multiply(a.below, b.below)
    )


def _product(a: Quotient, b: Quotient) -> Quotient:
    return Quotient(multiply(a.above, b.above), multiply(a.below, b.below))


def _over_one(a: Quotient) -> Quotient:
    if not a.above:
        raise UnreadableError("a division by zero")
    return Quotient(a.below, a.above)


def _raised(a: Quotient, power: int) -> Quotient:
    if abs(power) > _POWER and (a.rational is None or abs(power) > 64):
        raise UnreadableError("a power that is too large")
    if power < 0:
        a, power = _over_one(a), -power
    total = Quotient(_ONE, _ONE)
    for _ in range(power):
        total = _product(total, a)
    return total


def _root(a: Quotient) -> Quotient:
    value = a.rational
    if value is None or value < 0 or max(value.numerator, value.denominator) > _LARGEST_ROOT:
        raise UnreadableError("a root of what is no small number")
    # √(a/b) = √(a b) / b
    outside, inside = 1, Fraction(value).numerator * value.denominator
    if inside > _LARGEST_ROOT:
        raise UnreadableError("a root of what is no small number")
    roots: list[tuple[str, int]] = []
    divisor = 2
    while divisor * divisor <= inside:
        times = 0
        while inside % divisor == 0:
            inside //= divisor
            times += 1
        outside *= divisor ** (times // 2)
        if times % 2:
            roots.append((f"√{divisor}", 1))
        divisor += 1
    if inside > 1:
        roots.append((f"√{inside}", 1))
    return (
        number(Fraction(0))
        if not value
        else Quotient({tuple(sorted(roots)): Fraction(outside, value.denominator)}, _ONE)
    )


def read(side: Sequence[Token]) -> Quotient:
    """One side of an equation; `UnreadableError` where it is no expression, has two meanings, or is too large."""
    return _Reader(side, _DEEPEST).whole()


class _Reader(Parser[Quotient]):
    """Numbers, letters, roots and π."""

    def _add(self, a: Quotient, b: Quotient, sign: int) -> Quotient:
        return _sum(a, b, sign)

    def _first_term(self) -> Quotient:
        negative = self._sign("+-") and self._take().text == "-"
        total = self._term()
        return _product(number(Fraction(-1)), total) if negative else total

    def _term(self) -> Quotient:
        total = self._factor()
        divided = False
        while True:
            if self._sign("*/"):
                slash = self._take().text == "/"
                if slash and divided:
                    raise UnreadableError("two quotients in a row: 6 / 1/2 has two meanings")
                divided = divided or slash
                other = self._factor()
                total = _product(total, _over_one(other) if slash else other)
            elif self._follows():
                if divided:
                    raise UnreadableError("a product after a quotient: 1/2x has two meanings")
                total = _product(total, self._factor())
            else:
                return total

    def _follows(self) -> bool:
        """Whether a factor follows without a sign: 3x, x(x + 1), (a)(b), 2√3."""
        if self._kind() == "end":
            return False
        before, token = self._pieces[self._at - 1 : self._at + 1]
        if token.kind == "number":
            return False  # "x 5", ")5", "2 3": no product that people write
        if token.kind == "fraction" and before.kind == "number":
            raise UnreadableError("a number before a fraction has two meanings")
        if token.kind == "word" and token.gap and before.kind == "number" and token.text in ("a", "i"):
            return False
        return token.kind in ("word", "open", "fraction", "root", "pi", "binomial")

    def _factor(self) -> Quotient:
        if self._sign("-"):
            # 3 * -2; a sign after a sign that adds is refused by the caller's shape.
            self._take()
            return _product(number(Fraction(-1)), self._factor())
        base = self._base()
        if self._kind() == "factorial":
            self._take()
            base = _factorial(base)
        if self._kind() == "power":
            self._take()
            base = _raised(base, self._exponent(digits=1, in_brackets=2))
            self._no_tower()
        if self._kind() == "percent":
            raise UnreadableError("a percent sign")
        return base

    def _base(self) -> Quotient:
        token = self._take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "pi":
            return Quotient({((PI, 1),): Fraction(1)}, _ONE)
        if token.kind == "word":
            if len(token.text) != 1 or not token.text.isascii():
                raise UnreadableError("a word")
            if self._kind() == "open" and not self._opens_sum(token.text):
                raise UnreadableError("a function")
            ahead = (self._kind(), self._kind(1), self._kind(2))
            if token.text in _FUNCTIONS and ahead == ("power", "open", "sign"):
                raise UnreadableError("an inverse function")
            return Quotient({((token.text, 1),): Fraction(1)}, _ONE)
        if token.kind == "open":
            if token.text == "[":
                raise UnreadableError("square brackets")
            return self._group()
        if token.kind == "fraction":
            above = self._argument()
            return _product(above, _over_one(self._argument()))
        if token.kind == "root":
            return _root(self._argument())
        if token.kind == "binomial":
            return _binomial(self._argument(), self._argument())
        raise UnreadableError(f"no number where one is due: {token.text!r}")

    def _number(self, token: Token) -> Quotient:
        if len(token.text) > 1 and token.text[0] == "0" and token.text[1].isdigit():
            raise UnreadableError("a code: it begins with 0")
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
        if letter in _FUNCTIONS:
            return False
        depth = 0
        for token in self._pieces[self._at :]:
            depth += (token.kind == "open") - (token.kind == "close")
            if depth == 1 and token.kind == "sign" and token.text in "+-":
                return True
            if depth == 0:
                return False
        return False

    def _argument(self) -> Quotient:
        r"""What a LaTeX command applies to: a group, or one digit or letter (`\frac12`, `\sqrt3`)."""
        if self._kind() == "end":
            return self._base()
        token = self._pieces[self._at]
        if token.kind == "open" and token.text == "[":
            raise UnreadableError("a root that is not square")
        if token.kind == "number" and token.text.isdecimal():
            # The digits of one number are the arguments one by one.
            self._at += 1
            if len(token.text) > 1:
                rest = Token("number", token.text[1:], token.start + 1, token.end, False)
                self._pieces = [*self._pieces[: self._at], rest, *self._pieces[self._at :]]
            return number(Fraction(int(token.text[0])))
        if token.kind in ("open", "pi", "word"):
            return self._base()
        raise UnreadableError("no group after a command")


def _small_whole(value: Quotient) -> int:
    rational = value.rational
    if rational is None or rational.denominator != 1 or not 0 <= rational <= _LARGEST_FACTORIAL:
        raise UnreadableError("a factorial of what is no small whole number")
    return int(rational)


def _factorial(value: Quotient) -> Quotient:
    return number(Fraction(math.factorial(_small_whole(value))))


def _binomial(n: Quotient, k: Quotient) -> Quotient:
    return number(Fraction(math.comb(_small_whole(n), _small_whole(k))))


def coefficients(polynomial: Polynomial, letter: str) -> list[Fraction] | None:
    """The coefficients in one letter, the constant first; None where another letter or a root is in it."""
    degree = 0
    for monomial in polynomial:
        if any(name != letter for name, _ in monomial):
            return None
        degree = max([degree, *(power for _, power in monomial)])
    return [polynomial.get(((letter, d),) if d else (), Fraction(0)) for d in range(degree + 1)]


def common_roots(a: Sequence[Fraction], b: Sequence[Fraction]) -> Sequence[Fraction]:
    """The greatest common divisor of two polynomials in one letter (Euclid), the constant first."""
    x, y = _trimmed(a), _trimmed(b)
    while y:
        x, y = y, _remainder(x, y)
        if any(c.numerator.bit_length() + c.denominator.bit_length() > 8 * _BITS for c in y):
            raise UnreadableError("too large")
    return x


def _trimmed(a: Sequence[Fraction]) -> list[Fraction]:
    out = list(a)
    while out and not out[-1]:
        out.pop()
    return out


def _remainder(a: Sequence[Fraction], b: Sequence[Fraction]) -> list[Fraction]:
    rest = list(a)
    while len(rest) >= len(b):
        factor, shift = rest[-1] / b[-1], len(rest) - len(b)
        for i, c in enumerate(b):
            rest[i + shift] -= factor * c
        rest.pop()
    return _trimmed(rest)
