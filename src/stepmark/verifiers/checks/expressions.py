r"""The tokens of a text, as expressions are made of them.

`tokens` cuts a text into numbers, signs, letters and words, and leaves out what only names things ("3 eggs * 2 dollars/egg", "4 (from the trip) + 2"),
money signs and markup. Where a formula of LaTeX begins or ends stands a `;`, unless an operation goes on across it ("$3$ + $4$"). The time is linear in
the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal[
    "number", "sign", "power", "open", "close", "percent", "fraction", "root", "pi", "binomial", "factorial",
    "equal", "about", "relation", "word", "stop", "line", "other",
]  # fmt: skip

_TOKEN = re.compile(
    r"""
    (?P<skip>(?:[^\S\n]|~|&|€|£|`|\\[,;:!\ $]|\\q?quad\b|\\displaystyle\b|\\(?:left|right|big|Big)\b(?=\s*[()\[\]])
        |\\(?:boxed|fbox|mathbf|textbf|bm|bold|underline)\b(?=\s*\{)|<<[^<>\n]{0,200}>>|°|\^\s?(?:\{\s?\\circ\s?\}|\\circ\b)|\\degree\b)+)
  | (?P<border>\$\$?|\\[()])
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
  | (?P<pi>\\pi(?![A-Za-z])|π(?![^\W\d_]))
  | (?P<binomial>\\[dt]?binom(?![A-Za-z]))
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<factorial>(?<=[0-9)}\]])!)
  | (?P<glue>(?<=[0-9])[,:.](?=[0-9]))
  | (?P<other>\.\.++|…|\\[A-Za-z]++)
  | (?P<stop>[.,:;?!"“”]|\\{0,1}\|\|)
  | (?P<word>[^\W\d_]++(?:['’][a-z]++)?)
  | (?P<rest>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|textit|mbox)\s?\{([^{}]{0,80})\}")
_LETTERS = re.compile("(?!of$)[a-z]{1,3}")
"""A product of unknowns, inside a formula."""
_SIGNS = {
    "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/",
    "\\times": "*", "\\cdot": "*", "\\ast": "*", "\\div": "/",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text."""

    kind: Kind
    text: str
    """Signs are one of + - * /, a word of several letters is in lower case."""
    start: int
    end: int
    """Character offsets."""
    gap: bool
    """Whether space stands before it."""
    border: bool = False
    """Whether a formula begins or ends before it."""


def tokens(text: str) -> tuple[list[Token], dict[int, str]]:
    """The tokens of a text without units, and the last word of each unit that was left out, by the start of the token that follows it."""
    pieces, units = _without_units(_tokens(text))
    pieces = [
        replace(token, kind="sign", text="*") if _multiplies(*pieces[max(0, i - 1) : i + 2]) else token
        for i, token in enumerate(pieces)
    ]
    result: list[Token] = []
    for i, token in enumerate(pieces):
        if token.border and i and not _goes_on(pieces[max(0, i - 2) : i], pieces[i : i + 2]):
            result.append(Token("stop", ";", token.start, token.start, token.gap))
        result.append(token)
    return result, units


def _tokens(text: str) -> list[Token]:
    # The words of \text{…} stay where they are, and its command becomes space.
    quoted = {at for match in _TEXT.finditer(text) for at in range(match.start(1), match.end(1))}
    plain = _TEXT.sub(lambda m: " " * (m.start(1) - m.start()) + m[1] + " ", text)
    dollars = plain.replace("\\$", "").count("$") % 2 == 0
    pieces: list[Token] = []
    gap, border, formula = True, False, False
    for match in _TOKEN.finditer(plain):
        kind, shown, at = str(match.lastgroup), match[0], match.start()
        if shown[0] == "$" and not formula and not (dollars and _is_formula(text, match.end())):
            kind = "skip"  # money
        if kind == "skip" or (kind == "bold" and not _between_digits(plain, match)):
            gap = gap or any(c in " \t~&\\" for c in shown)
            continue
        if kind == "border" or shown[:2] in ("\\[", "\\]"):
            formula = shown[:2] in ("\\(", "\\[") or (shown[0] == "$" and not formula)
        if kind == "border":
            gap, border = gap or shown[0] == "\\", True
            continue
        if kind in ("equal", "about") and pieces and pieces[-1].kind == "line":
            pieces.pop()  # a line that begins with an equals sign goes on
        if kind == "word" and formula and at not in quoted and _LETTERS.fullmatch(shown):
            pieces += [
                Token("word", c, at + i, at + i + 1, gap and not i, border and not i)
                for i, c in enumerate(shown)
            ]
        elif shown in ("²", "³"):
            pieces += [
                Token("power", "^", at, at, gap, border),
                Token("number", "2" if shown == "²" else "3", at, at + 1, False),
            ]
        else:
            kind = {"rest": "other", "glue": "other", "bold": "power"}.get(kind, kind)
            shown = shown.lower() if kind == "word" and len(shown) > 1 else _SIGNS.get(shown, shown)
            pieces.append(Token(kind, shown, at, match.end(), gap, border))  # type: ignore[arg-type]
        gap, border = kind == "line", False
    return pieces


def _is_formula(text: str, at: int) -> bool:
    """Whether a formula and no sum of money follows a dollar sign: "$5 + 3$", but not "$5 and $3" or "$5 + $3"."""
    inner, end, _ = text[at : at + 400].partition("$")
    bare = inner[:1].isdigit() and not set(inner) & set("\\{}")
    return bool(end) and not (bare and re.search(r"\s[A-Za-z]{2,}|[-+*/=×÷(]\s*$", inner))


def _between_digits(text: str, match: re.Match[str]) -> bool:
    """Whether `**` is a power and not bold type."""
    return text[match.start() - 1 : match.start()].isdigit() and text[match.end() : match.end() + 1].isdigit()


_VALUE_ENDS = ("number", "percent", "close")
_VALUE_BEGINS = ("number", "open", "fraction", "root", "pi", "binomial", "word")


def _multiplies(*around: Token) -> bool:
    """Whether the middle one of three tokens is an "x" or "of" between numbers."""
    if len(around) < 3 or around[1].text not in ("x", "X", "of") or around[0].kind not in _VALUE_ENDS:
        return False
    return around[2].kind in ("number", "fraction") or (around[2].kind == "open" and around[1].text == "of")


def _goes_on(before: Sequence[Token], after: Sequence[Token]) -> bool:
    """Whether an operation goes on across the border of a formula, which would end it else."""
    last, first = before[-1], after[0]
    if last.kind in ("equal", "about", "open", "power") or first.kind in (
        "equal",
        "about",
        "close",
        "power",
        "percent",
    ):
        return last.kind not in ("line", "stop")
    if last.kind == "sign":
        return len(before) > 1 and before[0].kind not in ("line", "stop")
    ends = last.kind in _VALUE_ENDS or (last.kind == "word" and len(last.text) == 1)
    return ends and first.kind == "sign" and len(after) > 1 and after[1].kind in _VALUE_BEGINS


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_WORDS = """
log ln lg exp sin cos tan cot sec csc sqrt root mod modulo remainder gcd lcm max min choose of plus minus times over by than divided
multiplied subtract subtracted add added half twice double triple thrice base to power squared cubed negative and or between from not
if suppose assume assuming whether unless instead dozen dozens hundred hundreds thousand thousands million millions billion billions
trillion pair pairs couple k m b r rem more less fewer larger greater bigger higher smaller lower
longer shorter later earlier older younger taller faster is are was were equals gives percent factorial x third thirds fourth fourths
quarter fifth fifths
"""
WORDS_THAT_COMPUTE = word_set(_WORDS)
"""Words that are no units but part of a calculation: what they stand beside is not read."""
_SENTENCE = """
because since so as then hence thus therefore when where which that it he she they we you i there here this these those has have had
"""
_NO_UNITS = WORDS_THAT_COMPUTE | word_set(_SENTENCE)


def _without_units(pieces: Sequence[Token]) -> tuple[list[Token], dict[int, str]]:
    result: list[Token] = []
    units: dict[int, str] = {}
    i = 0
    while i < len(pieces):
        end = i
        if result and result[-1].kind in _VALUE_ENDS:
            end = _remark_end(pieces, i)
            if end == i:
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
