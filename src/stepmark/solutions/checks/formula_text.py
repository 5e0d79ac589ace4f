r"""Where calculations stand in a text.

`tokens` cuts a text into numbers, signs and words; `without_units` leaves out what only names things; `side_before` and `side_after` find the
expressions around an equals sign. What is read: numbers with thousands commas and decimals, `+ - * / × · ÷ x ^ %`,
brackets, "of" after a share, money and degree signs, and LaTeX's `\times \cdot \div \frac \sqrt \boxed`. The rest is not
read, and what touches it is not read either: "x^2 = 4" holds no "2 = 4".

The time is linear in the length of the text: every piece is looked at a fixed number of times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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


_WORDS = """
log ln lg exp sin cos tan cot sec csc sqrt root mod modulo remainder gcd lcm max min choose of plus minus times over by than divided
multiplied subtract subtracted add added half twice double triple thrice base to power squared cubed negative and or between from not
if suppose assume assuming whether unless instead dozen dozens hundred hundreds thousand thousands million millions billion billions
trillion pair pairs couple k m b r rem more less fewer is are was were equals gives percent factorial x third thirds fourth fourths
quarter fifth fifths
"""
WORDS_THAT_COMPUTE = frozenset(_WORDS.split())
"""Words that are no units but part of a calculation: what they stand beside is not read."""
_SENTENCE = """
because since so as then hence thus therefore when where which that it he she they we you i there here this these those has have had
"""
_NO_UNITS = WORDS_THAT_COMPUTE | set(_SENTENCE.split())
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


def side_before(pieces: Sequence[Token], equal: int) -> range:
    """The tokens of the expression that ends before the equals sign at `equal`; empty for none."""
    start, depth = equal, 0
    while start > 0 and equal - start < LONGEST and pieces[start - 1].kind in _EXPRESSION:
        kind = pieces[start - 1].kind
        if kind == "open" and depth == 0:
            break
        depth += (kind == "close") - (kind == "open")
        start -= 1
    return range(start, equal)


def side_after(pieces: Sequence[Token], equal: int) -> range:
    """The tokens of the expression that begins after the equals sign at `equal`; empty for none."""
    end, depth = equal + 1, 0
    while end < len(pieces) and end - equal <= LONGEST and pieces[end].kind in _EXPRESSION:
        kind = pieces[end].kind
        if kind == "close" and depth == 0:
            break
        depth += (kind == "open") - (kind == "close")
        end += 1
    return range(equal + 1, end)
