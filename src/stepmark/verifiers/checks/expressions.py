r"""What an expression comes to, in exact fractions, and where expressions stand in a text.

`tokens` cuts a text into numbers, signs and words; `without_units` leaves out what only names things; `side_before` and `side_after` find the expressions
around an equals sign. `value` computes as it reads and keeps bounds: between what the result lies if numbers with decimals have been rounded or cut off.
Read are numbers with thousands commas and decimals, `+ - * / × · ÷ x ^ %`, brackets, "of" after a share, money and degree signs, and LaTeX's
`\times \cdot \div \frac \sqrt \boxed`. What touches anything else is not read either: "x^2 = 4" holds no "2 = 4". Sizes are limited and the time is
linear in the length of the text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Kind = Literal[
    "number", "sign", "power", "open", "close", "percent", "fraction", "root",
    "equal", "about", "relation", "word", "stop", "line", "other",
    "pi", "binomial", "factorial",
]  # fmt: skip

_EXPRESSION: frozenset[str] = frozenset(
    ("number", "sign", "power", "open", "close", "percent", "fraction", "root")
)
LONGEST = 120
"""Tokens of the longest expression that is read."""

_TOKEN = re.compile(
    r"""
    (?P<skip>(?:[^\S\n]|~|&|\$|€|£|`|\\[,;:!\ ()$]|\\q?quad\b|\\displaystyle\b|\\(?:left|right|big|Big)\b(?=\s*[()\[\]])
        |\\(?:boxed|fbox|mathbf|textbf|bm|bold|underline)\b(?=\s*\{)|<<[^<>\n]{0,200}>>|°|\^\s?(?:\{\s?\\circ\s?\}|\\circ\b)|\\degree\b)+)
  | (?P<line>(?:\n|\\\\|\\\[|\\\])\s*+)
  | (?P<number>(?:[0-9]{1,3}(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|(?<![0-9])\.[0-9]++)
  | (?P<relation>==++|=>|<=|>=|=<|!=|:=|[<>≠≤≥≡∼]|\\(?:neq?|leq?|geq?|lt|gt|equiv|cong|sim|not\s*=|implies|Rightarrow|to|rightarrow)(?![A-Za-z]))
  | (?P<about>≈|≃|~=|\\(?:approx|simeq|doteq)(?![A-Za-z]))
  | (?P<equal>=)
  | (?P<bold>\*\*)
  | (?P<sign>[-+*/−×·⋅÷]|(?<=\s)–(?=\s)|\\(?:times|cdot|div|ast)(?![A-Za-z]))
  | (?P<power>\^|[²³])
  | (?P<percent>\\?%)
  | (?P<fraction>\\[dtc]?frac(?![A-Za-z]))
  | (?P<root>\\sqrt(?![A-Za-z]))
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<glue>(?<=[0-9])[,:.](?=[0-9])|(?<=[0-9)}\]])!)
  | (?P<other>\.\.++|…|\\[A-Za-z]++)
  | (?P<stop>[.,:;?!"“”]|\\{0,1}\|\|)
  | (?P<word>[^\W\d_]++(?:['’][a-z]++)?)
  | (?P<rest>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|textit|mbox)\s?\{([^{}]{0,80})\}")
_SIGNS = {
    "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/",
    "\\times": "*", "\\cdot": "*", "\\ast": "*", "\\div": "/",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text."""

    kind: Kind
    text: str
    """In the signs that `expressions.value` reads; a word in lower case."""
    start: int
    end: int
    """Character offsets."""
    gap: bool
    """Whether space stands before it."""


def tokens(text: str) -> list[Token]:
    """The pieces of a text, in order. Space, money signs and the like are dropped."""
    # The words of \text{…} stay where they are, and its command becomes space.
    text = _TEXT.sub(lambda m: " " * (m.start(1) - m.start()) + m[1] + " ", text)
    pieces: list[Token] = []
    gap = True
    for match in _TOKEN.finditer(text):
        kind, shown = str(match.lastgroup), match[0]
        if kind == "skip" or (kind == "bold" and not _between_digits(text, match)):
            gap = gap or any(c in " \t~&\\" for c in shown)
            continue
        if kind in ("rest", "glue"):
            kind = "other"
        elif kind == "bold":
            kind, shown = "power", "^"
        elif kind == "sign":
            shown = _SIGNS.get(shown, shown)
        elif kind == "word":
            shown = shown.lower()
        if shown in ("²", "³"):
            pieces.append(Token("power", "^", match.start(), match.start(), gap))
            kind, shown = "number", "2" if shown == "²" else "3"
        pieces.append(Token(kind, shown, match.start(), match.end(), gap))  # type: ignore[arg-type]
        gap = kind == "line"
    return _joined(pieces)


def _between_digits(text: str, match: re.Match[str]) -> bool:
    """Whether `**` is a power and not bold type."""
    return text[match.start() - 1 : match.start()].isdigit() and text[match.end() : match.end() + 1].isdigit()


def _joined(pieces: list[Token]) -> list[Token]:
    """A line that begins with an equals sign goes on; "x" and "of" between numbers multiply."""
    result: list[Token] = []
    last = len(pieces) - 1
    for i, token in enumerate(pieces):
        after = pieces[i + 1] if i < last else None
        if token.kind == "line" and after is not None and after.kind in ("equal", "about"):
            continue
        if token.kind == "word" and token.text in ("x", "of") and result and after is not None:
            before = result[-1].kind
            into = after.kind in ("number", "fraction") or (after.kind == "open" and token.text == "of")
            if before in ("number", "percent", "close") and into:
                token = Token("sign", "*", token.start, token.end, token.gap)  # noqa: PLW2901
        result.append(token)
    return result


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_WORDS = """
log ln lg exp sin cos tan cot sec csc sqrt root mod modulo remainder gcd lcm max min choose of plus minus times over by than divided
multiplied subtract subtracted add added half twice double triple thrice base to power squared cubed negative and or between from not
if suppose assume assuming whether unless instead dozen dozens hundred hundreds thousand thousands million millions billion billions
trillion pair pairs couple k m b r rem more less fewer is are was were equals gives percent factorial x third thirds fourth fourths
quarter fifth fifths
"""
WORDS_THAT_COMPUTE = word_set(_WORDS)
"""Words that are no units but part of a calculation: what they stand beside is not read."""
_SENTENCE = """
because since so as then hence thus therefore when where which that it he she they we you i there here this these those has have had
"""
_NO_UNITS = WORDS_THAT_COMPUTE | word_set(_SENTENCE)
_NUMBER_OR_END = ("number", "close", "percent")


def without_units(pieces: Sequence[Token]) -> tuple[list[Token], dict[int, str]]:
    """Leave out units inside calculations: "3 eggs * 2 dollars/egg = 6", "4 (from the trip) + 2 = 6".

    Returns:
        What is left, and the last word of each unit that was left out, by the start of the token that follows it.
    """
    result: list[Token] = []
    units: dict[int, str] = {}
    i = 0
    while i < len(pieces):
        end = _remark_end(pieces, i) if result and result[-1].kind in _NUMBER_OR_END else i
        if end == i and result and result[-1].kind in _NUMBER_OR_END:
            end = _unit_end(pieces, i)
            if end > i:
                units[pieces[end].start] = pieces[end - 1].text
        if end == i:
            result.append(pieces[i])
            end = i + 1
        i = end
    return result, units


def _remark_end(pieces: Sequence[Token], at: int) -> int:
    """The end of a remark in brackets, of words alone, that begins at `at`; `at` if none does."""
    if pieces[at].kind != "open" or not pieces[at].gap:
        return at
    end = at + 1
    while end < len(pieces) and end - at < 12 and (pieces[end].kind == "word" or pieces[end].text in ",-'"):
        end += 1
    closed = end < len(pieces) and pieces[end].kind == "close" and end > at + 1
    lone = end == at + 2 and len(pieces[at + 1].text) < 2
    return end + 1 if closed and not lone else at


def _unit_end(pieces: Sequence[Token], at: int) -> int:
    """The end of a unit of up to four words that begins at `at`, if a sign or an equals sign follows; else `at`."""
    end = at
    while end < len(pieces) and end - at < 6:
        token = pieces[end]
        slash = token.kind == "sign" and token.text == "/" and end + 1 < len(pieces)
        if slash and pieces[end + 1].kind == "word" and len(pieces[end + 1].text) > 1:
            end += 1
            token = pieces[end]
        # Two letters may be a product of unknowns, and what has no space before it too: 3ab.
        if token.kind != "word" or len(token.text) < 3 or token.text in _NO_UNITS:
            break
        if not token.gap and pieces[end - 1].kind != "sign":
            break
        end += 1
    after = pieces[end] if end < len(pieces) else None
    if end == at or after is None or after.kind not in ("sign", "equal", "about"):
        return at
    # "2 apples-and-pears": a sign that joins words is a hyphen.
    return at if after.kind == "sign" and not after.gap and after.text != "/" else end


def is_part(token: Token) -> bool:
    """Whether a token belongs to an expression of numbers."""
    return token.kind in _EXPRESSION


def side_before(pieces: Sequence[Token], equal: int, part: Callable[[Token], bool] = is_part) -> range:
    """The tokens of the expression that ends before the equals sign at `equal`; empty for none."""
    start, depth = equal, 0
    while start > 0 and equal - start < LONGEST and part(pieces[start - 1]):
        kind = pieces[start - 1].kind
        if kind == "open" and depth == 0:
            break
        depth += (kind == "close") - (kind == "open")
        start -= 1
    return range(start, equal)


def side_after(pieces: Sequence[Token], equal: int, part: Callable[[Token], bool] = is_part) -> range:
    """The tokens of the expression that begins after the equals sign at `equal`; empty for none."""
    end, depth = equal + 1, 0
    while end < len(pieces) and end - equal <= LONGEST and part(pieces[end]):
        kind = pieces[end].kind
        if kind == "close" and depth == 0:
            break
        depth += (kind == "open") - (kind == "close")
        end += 1
    return range(equal + 1, end)


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
    """Compute an expression; `percent` is what a percent sign multiplies by: 1/100, or 1 to read it as a unit.

    Raises:
        UnreadableError: see there.
    """
    return _Reader(pieces, percent).value()


class Parser(ABC, Generic[T]):
    """A parser by recursive descent that computes as it reads; what the values are is the subclass's affair."""

    def __init__(self, pieces: Sequence[Token], deepest: int) -> None:
        if len(pieces) >= LONGEST:
            raise UnreadableError("too long")
        self._pieces = pieces
        self._deepest = deepest
        self._at = self._depth = 0

    def whole(self) -> T:
        """The value of all tokens, else `UnreadableError`."""
        total = self._sum()
        if self._at < len(self._pieces):
            raise UnreadableError("two expressions side by side")
        return total

    @abstractmethod
    def _term(self) -> T:
        """A product."""

    def _first_term(self) -> T:
        return self._term()

    @abstractmethod
    def _add(self, a: T, b: T, sign: int) -> T:
        """The sum, or the difference."""

    def _sum(self) -> T:
        self._depth += 1
        if self._depth > self._deepest:
            raise UnreadableError("too many brackets")
        total = self._first_term()
        while self._sign("+-"):
            sign = 1 if self._take().text == "+" else -1
            total = self._add(total, self._term(), sign)
        self._depth -= 1
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

    def _group(self) -> T:
        """What stands in a bracket, which was taken."""
        inner = self._sum()
        if self._take().kind != "close":
            raise UnreadableError("brackets that do not match")
        return inner

    def _exponent(self, *, digits: int, in_brackets: int) -> int:
        """A whole number of at most so many digits, alone or in brackets."""
        token = self._take()
        wrapped = token.kind == "open"
        if wrapped:
            token = self._take()
        negative = token.kind == "sign" and token.text == "-"
        if negative:
            token = self._take()
        most = in_brackets if wrapped else digits
        small = token.kind == "number" and token.text.isdecimal() and len(token.text) <= most
        if not small or (wrapped and self._take().kind != "close"):
            raise UnreadableError("a power that is no small whole number")
        return -int(token.text) if negative else int(token.text)

    def _no_tower(self) -> None:
        if self._kind() == "power":
            raise UnreadableError("a tower of powers")


_Bounds = tuple[Fraction, Fraction, Fraction]


class _Reader(Parser[_Bounds]):
    """Numbers alone; bounds travel with every value."""

    def __init__(self, pieces: Sequence[Token], percent: Fraction) -> None:
        super().__init__(pieces, _DEEPEST)
        self._percent = percent

    def value(self) -> Value:
        exact, low, high = self.whole()
        numbers = [token for token in self._pieces if token.kind == "number"]
        busy = any(token.kind in ("power", "fraction", "root") for token in self._pieces) or any(
            token.kind == "sign" and before.kind in ("number", "close", "percent")
            for before, token in pairwise(self._pieces)
        )
        bare = len(numbers) == 1 and not busy
        return Value(exact, low, high, bare, _decimals(numbers[0].text) if bare else 0)

    def _add(self, a: _Bounds, b: _Bounds, sign: int) -> _Bounds:
        if sign < 0:
            b = _negative(b)
        return _small((a[0] + b[0], a[1] + b[1], a[2] + b[2]))

    def _term(self) -> _Bounds:
        total = self._signed()
        divided = False
        while True:
            if self._sign("*/"):
                sign = self._take().text
                if divided and sign == "/":
                    raise UnreadableError("two quotients in a row: 6 / 1/2 has two meanings")
                divided = divided or sign == "/"
                if self._sign("+"):
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
        if not self._sign("+-"):
            return self._power()
        sign = self._take().text
        if self._kind() == "number" and self._kind(1) == "power":
            raise UnreadableError("-2^2 has two meanings")
        if self._kind() == "sign":
            raise UnreadableError("two signs in a row")
        inner = self._power()
        return inner if sign == "+" else _negative(inner)

    def _power(self) -> _Bounds:
        base = self._atom()
        if self._kind() == "power":
            self._take()
            base = _small(_raise(base, self._exponent(digits=3, in_brackets=3)))
            self._no_tower()
        if self._kind() == "percent":
            self._take()
            base = _times(base, (self._percent,) * 3)
        return base

    def _atom(self) -> _Bounds:
        token = self._take()
        if token.kind == "number":
            if self._kind() == "fraction":
                raise UnreadableError("a number before a fraction has two meanings")
            return _number(token.text)
        if token.kind == "open":
            return self._group()
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
    """A number as it stands in a text; `UnreadableError` for too many digits."""
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
