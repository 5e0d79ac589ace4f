r"""Calculations and conversions of units that are written in words.

"12 times 8 is 96", "half of 26 is 13", "20% of 50 is 10", "divide 84 by 4 to get 21", "3 hours is 180 minutes". Each is read by a fixed
pattern, rewritten in signs in its place, and judged by `equations`, with what stands around it ("3 plus 12 times 8", "is 20 more than").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from stepmark.verifiers.checks.equations import calculations, shown
from stepmark.verifiers.checks.expressions import tokens
from stepmark.verifiers.checks.polynomials import UnreadableError, read
from stepmark.verifiers.units import Unit, unit_of


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement in a text that is false."""

    start: int
    end: int
    right: str
    """What is right."""


_UP_TO_NINETEEN = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_BY_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL, _TENS = _UP_TO_NINETEEN.split(), _BY_TENS.split()
NUMBER_WORDS = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_WORD = rf"(?:(?:{'|'.join(_TENS)})(?:-(?:{'|'.join(_SMALL[1:10])}))?|{'|'.join(_SMALL[::-1])})\b"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15})(?:\.[0-9]{1,9})?"
_N = rf"(?:[$€£]\s?)?(?:{_DIGITS}(?:/[0-9]{{1,6}})?|{_WORD})%?"
# Up to two words that name what is counted; none of them computes or joins.
_COUNTED = r"""(?:\s(?!(?:and|or|is|are|was|were|be|of|to|from|by|times|plus|minus|multiplied|divided|more|less|fewer|than|over|into|in|on|at|as|if|
per|percent|equals|equal|gives|makes|get|we|you|that|which|with|for|half|twice|hundred|thousand|million|billion|dozen|squared|cubed|each|every|not
|but|so|then|because|since|while|when|would|will|can|should|must|may|leaves|left|a|an|the|he|she|they|it|i|has|have|had|x|mod)\b)[a-z]{2,14}){0,2}""".replace(
    "\n", ""
)
_IS = r"(?:\s?,?\s(?:which|that|it)(?=\s))?\s?(?:=|\s(?:is|are|equals|gives|makes|yields|would\sbe|will\sbe|comes\sto|is\sequal\sto|are\sequal\sto|gives\s(?:us|you))(?=\s))(?:\s(?:exactly|a\stotal\sof))?\s?"
_GET = r"(?:,?\s(?:to|we|you|and\swe|and)\s(?:get|obtain|find)|,?\s(?:and\s)?(?:gives|giving|yields|which\sis|which\sgives|equals|is)(?:\s(?:us|you))?|\s?=)\s"
_RESULT = rf"(?P<r>-?{_N})"


def number(shown_as: str) -> Fraction | None:
    """The number that digits, a fraction or a number word write; None for none."""
    try:
        return read(tokens(_digits(shown_as))[0]).rational
    except UnreadableError:
        return None


def _digits(shown_as: str) -> str:
    """A number in digits."""
    if re.search("[0-9]", shown_as):
        return shown_as
    tens, _, ones = shown_as.lower().strip("$€£ %").partition("-")
    return str(NUMBER_WORDS[tens] + NUMBER_WORDS.get(ones, 0))


_SHARES = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "tenth": 10}
_MULTIPLES = {"twice": "2", "double": "2", "triple": "3"}
_OPERATORS = {
    "times": "({a}) * ({b})", "multiplied by": "({a}) * ({b})", "divided by": "({a}) / ({b})",
    "plus": "({a}) + ({b})", "added to": "({a}) + ({b})", "more than": "({a}) + ({b})",
    "minus": "({a}) - ({b})", "less than": "({b}) - ({a})",
}  # fmt: skip
_SHARE = rf"{'|'.join(_MULTIPLES)}|half|(?:(?P<over>an?|one|two|three)[\s-])(?P<under>{'|'.join(_SHARES)})s?"
_PARTS = {
    "THE ": r"(?:(?:the|those|these|her|his|their)\s)?", "N": rf"(?P<a>{_N})", "PART": rf"(?P<a>{_DIGITS}(?:/[0-9]{{1,6}}|%))",
    "A": rf"(?P<a>{_N}){_COUNTED}", "B": rf"(?P<b>{_N}){_COUNTED}", "OP": rf"(?P<op>{'|'.join(_OPERATORS)})",
    "SHARE": rf"(?P<share>{_SHARE})", " IS": _IS + _RESULT, " GET": _GET + _RESULT, " ": r"\s",
}  # fmt: skip
_PART = re.compile(r"THE | IS| GET|\b(?:OP|SHARE|PART|A|B|N)\b| ")
_PHRASES = (
    ("A OP B IS", "{op}"),
    ("SHARE (?:of )?THE A IS", "({share}) * ({a})"),
    ("PART of THE B IS", "({a}) * ({b})"),
    ("the sum of A and B IS", "({a}) + ({b})"),
    ("the difference (?:between|of) A and B IS", "({high}) - ({low})"),
    ("the product of A and B IS", "({a}) * ({b})"),
    ("add(?:ing)? A (?:and|to) B GET", "({a}) + ({b})"),
    ("subtract(?:ing)? A from THE B GET", "({b}) - ({a})"),
    ("multiply(?:ing)? THE A by THE B GET", "({a}) * ({b})"),
    ("divid(?:e|ing) THE A by THE B GET", "({a}) / ({b})"),
    ("N squared IS", "({a})^2"),
    ("N cubed IS", "({a})^3"),
)
"""What is written in words, and the same calculation in signs."""
_PATTERNS = tuple(
    (re.compile(rf"(?<![\w.,/$])(?:{_PART.sub(lambda m: _PARTS[m[0]], phrase)})", re.I), calculation)
    for phrase, calculation in _PHRASES
)
_DRESS = re.compile(
    r"\\(?:text|mathrm|textrm|mbox)\s?\{([^{}]{0,80})\}|\\[,;:!()\[\]]|\\\$|\$(?![0-9])|\$(?=[0-9.,]{1,15}\$)|\*\*|[~`]"
)


def undressed(text: str) -> str:
    r"""A text of the same length without the markup of LaTeX and Markdown that stands around numbers and words."""

    def spaces(match: re.Match[str]) -> str:
        if match[1] is None:
            return " " * len(match[0])
        return " " * (match.start(1) - match.start()) + match[1] + " " * (match.end() - match.end(1))

    return re.sub(r"[^\S\n]", " ", _DRESS.sub(spaces, text).replace("\\%", " %"))


def word_claims(text: str) -> Iterator[Claim]:
    """The false calculations in words: each is written in signs and judged as one of them."""
    plain, places = _squeezed(undressed(text))
    for pattern, calculation in _PATTERNS:
        for match in pattern.finditer(plain):
            signs = f"{_in_signs(match.groupdict(), calculation)} = {_digits(match['r'])}"
            if why := _refuted(plain, match, signs):
                yield Claim(places[match.start()], places[match.end() - 1] + 1, why)


def _refuted(text: str, match: re.Match[str], signs: str) -> str:
    """Why what matches is false, "" where it is not: judged in signs in its place, as what stands around any calculation is."""
    before = text[max(0, match.start() - 80) : match.start()]
    place = (len(before), len(before) + len(signs))
    formulas = calculations(before + signs + text[match.end() : match.end() + 80])
    return next((f.why for f in formulas if (f.start, f.end) == place and f.truth == "wrong"), "")


def _in_signs(parts: Mapping[str, str | None], calculation: str) -> str:
    a, b = (_digits(parts.get(name) or "0") for name in "ab")
    low, high = sorted((a, b), key=lambda shown_as: number(shown_as) or Fraction(0))
    operator = " ".join((parts.get("op") or "").lower().split())
    share = _MULTIPLES.get((parts.get("share") or "").lower())
    if share is None:
        over = {"two": 2, "three": 3}.get((parts.get("over") or "").lower(), 1)
        share = f"{over}/{_SHARES[(parts.get('under') or 'half').lower()]}"
    return _OPERATORS.get(operator, calculation).format(a=a, b=b, low=low, high=high, share=share)


def _squeezed(text: str) -> tuple[str, list[int]]:
    """The text with single spaces, and where each of its characters was."""
    places = [i for i, character in enumerate(text) if character != " " or text[i - 1 : i] != " "]
    return "".join(text[i] for i in places), places


# --- units --------------------------------------------------------------------------------------------------------------

_UNIT_WORD = r"(?P<{}>(?:square |cubic )?[a-zA-Z]{{1,12}})"
_UNIT_IS = (
    r"(?: ?= ?| (?:is|are|equals|equal|is equal to|are equal to|is the same as|makes|make|converts to) )"
)
_CONVERSIONS = (
    re.compile(
        rf"(?<![\w.,/^*+×-] )(?<![\w.,/^*+×$-])(?P<a>{_DIGITS}|{_WORD}) {_UNIT_WORD.format('u')}{_UNIT_IS}(?:equal to |also |about )?"
        rf"(?P<b>{_DIGITS}|{_WORD}) {_UNIT_WORD.format('v')}(?![\w/^])"
    ),
    re.compile(
        rf"\b[Tt]here are (?P<b>{_DIGITS}|{_WORD}) {_UNIT_WORD.format('v')} in (?P<a>an?|one|each|every|[0-9]{{1,6}}) {_UNIT_WORD.format('u')}(?![\w/^])"
    ),
    re.compile(
        rf"\b(?P<a>[Aa]n?|[Oo]ne|[Ee]ach|[Ee]very|1) {_UNIT_WORD.format('u')} (?:has|contains|consists of) (?P<b>{_DIGITS}|{_WORD}) {_UNIT_WORD.format('v')}(?![\w/^])"
    ),
)
# A day of work has eight hours and a week of work five days; a month of 30 days and a year of 360 are used to reckon.
_WORKING = frozenset((Fraction(86400), Fraction(604800)))
_DRAWN = re.compile(
    r"\b(?:scale|map|represent\w*|model|drawing|blueprint|exchange|rate|dog|planet|mars)\b", re.I
)


def unit_claims(text: str, problem: str) -> Iterator[Claim]:
    """The false conversions of units of length, mass, volume, money and time up to the hour."""
    if _DRAWN.search(problem) or _DRAWN.search(text):
        return
    plain, places = _squeezed(undressed(text))
    for pattern in _CONVERSIONS:
        for match in pattern.finditer(plain):
            first, second = _unit(match["u"]), _unit(match["v"])
            if first is None or second is None or first.kind != second.kind or first.factor == second.factor:
                continue
            if {first.factor, second.factor} & _WORKING and first.kind == "time":
                continue
            if first.kind not in ("length", "mass", "time", "volume", "US money", "calendar time"):
                continue
            a = (
                Fraction(1)
                if match["a"][0].isalpha() and match["a"].lower() not in NUMBER_WORDS
                else number(match["a"])
            )
            b = number(match["b"])
            if a is None or b is None or not b:
                continue
            factor = first.factor / second.factor
            # Inches and metres convert in rounded numbers; two per cent are their custom.
            if abs(a * factor - b) * 50 > max(a * factor, b) and _refuted(
                plain, match, f"({a}) * ({factor}) = {_digits(match['b'])}"
            ):
                why = f"{shown(a)} {match['u']} = {shown(a * factor)} {match['v']}"
                yield Claim(places[match.start()], places[match.end() - 1] + 1, why)


def _unit(name: str) -> Unit | None:
    # One letter may be an unknown, and "in" is a word.
    return unit_of(name) if len(name) > 1 and name not in ("in", "a", "day", "days", "deg") else None
