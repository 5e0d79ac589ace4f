r"""Answers that are one number, read exactly: no floating point, no evaluation, only a fixed grammar.

A `Quantity` is a rational number with what stood around it: a percent sign, a unit. A decimal is the number that it
writes, so 0.333333 is not 1/3. What this grammar does not cover (roots, variables, tuples) is not a quantity and is
left to a verifier that reads mathematics.

    >>> read_quantity(r"7\frac{1}{2} \text{ hours}").value
    Fraction(15, 2)
    >>> same_quantity(read_quantity("12 cm"), read_quantity("12 m"))
    (False, 'units converted: m, cm')
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from stepmark.verifiers.checks.claims import NUMBER_WORDS
from stepmark.verifiers.units import Unit, unit_of

LONGEST = 2000
"""An answer of more characters is not read: nothing that long is a final answer."""

_DIGITS = 400  # of one number and of an exponent's power of ten: keeps arithmetic on hostile answers instant

_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "﹣": "-", "－": "-", "＋": "+", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "÷": "/",
        "⁄": "/", "％": "%", "°": "^\\circ ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≈": "\\approx ",
        "²": "^2", "³": "^3", "½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "\u00a0": " ",
        "\u2009": " ", "\u202f": " ", "\u200b": "", "“": '"', "”": '"', "’": "'", "‘": "'", "，": ",", "（": "(", "）": ")",
        "∪": "\\cup ", "∈": "\\in ", "±": "\\pm ",
    }
)  # fmt: skip
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\(?:left|right|displaystyle|textstyle|limits|big|Big|bigl|bigr)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:leqslant|leq)(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\(?:geqslant|geq)(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\(?:thinspace|enspace|quad|qquad)(?![A-Za-z])"), " "),
    (re.compile(r"(?<=\d)(?:\\[,;:!]|\{,\}\\!|\{,\}|,\\!)\s?(?=\d{3}(?!\d))"), ","),
    (
        re.compile(r"(?<![\d.,/])(\d{1,3})((?: \d{3})+)(?![\d/,]|\.\d)"),
        lambda part: part[1] + part[2].replace(" ", ""),
    ),
    (re.compile(r"\\[!]"), ""),
    (re.compile(r"\\[,;: ]|(?<!\\)~"), " "),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])|∅"), r"\\emptyset "),
    (re.compile(r"\\sqrt\s?(\d+)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])sqrt\s?\{"), r"\\sqrt{"),
    (re.compile(r"(?<![A-Za-z\\])sqrt\s?\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![A-Za-z\\])(?:infinity|infty|inf|oo)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|log|ln)(?=\s?[(\d\\]|\s[a-z](?![a-z]))"), r"\\\1 "),
    (re.compile(r"\^\{?\\(?:circ|degree)(?![A-Za-z])\s?\}?|\\degree(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\\$|\\textdollar(?![A-Za-z])"), "$"),
    (re.compile(r"\\frac\s?(\d)\s?(\d)(?!\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\*\*(?=\s*[-\w({])"), "^"),
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|rm)\s?\{([^{}]*)\}")
_WRAPPERS = (
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("**", "**"),
    ("`", "`"),
    ('"', '"'),
    ("{", "}"),
)
_INNER_DOLLARS = re.compile(r"(?<!\\)\$\s?([^$]+?)\s?\$(?!\d)")
_PRICES = re.compile(r"(?<!\\)\$\d[^$]*[A-Za-z]{2}[^$]*\$|\$\s*\Z(?<!\S\$)")
_SPACES = re.compile(r"\s+")
_LOOSE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_BOX = re.compile(r"\\(?:boxed|fbox)\s?(?=\{)")


@lru_cache(maxsize=8192)  # candidates of one problem repeat each other
def clean(answer: str) -> str:
    r"""An answer without its markup: mathematics signs, `\left`, thin spaces, `\dfrac`, the final full stop.

    Words in `\text{}` stay marked as words. The meaning is unchanged; two answers that clean to the same text are equal.
    """
    text = _unboxed(_SPACES.sub(" ", answer.translate(_SIGNS)).strip())
    for _ in range(8):
        before = text
        text = text.rstrip(" .,;:") if not text.endswith("...") else text
        if text.count("$") % 2 == 0 and not _PRICES.search(text):
            text = _INNER_DOLLARS.sub(r"\1", text)
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and not inner.endswith("\\")
                and (closing not in inner if opening != "{" else _balanced(inner))
            ):
                text = inner.strip()
        if text == before:
            break
    # "\\\\" separates rows: none of its backslashes belongs to what follows.
    rows = text.split("\\\\")
    for pattern, replacement in _REWRITES:
        rows = [pattern.sub(replacement, row) for row in rows]
    text = "\\\\".join(row.strip() for row in rows)
    return _SPACES.sub(" ", text).strip().removeprefix("= ").strip()


def _unboxed(text: str) -> str:
    """The text with the contents of its boxes in their place."""
    box = _BOX.search(text)
    while box is not None:
        depth, place = 1, box.end() + 1
        while place < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[place], 0) if text[place - 1] != "\\" else 0
            place += 1
        if depth:
            break
        between = ", " if _BOX.match(text[place:].lstrip()) else ""
        text = text[: box.start()] + text[box.end() + 1 : place - 1] + between + text[place:]
        box = _BOX.search(text, box.start())
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for sign in text.replace("\\{", "").replace("\\}", ""):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth < 0:
            return False
    return depth == 0


def plain(cleaned: str) -> str:
    r"""A cleaned answer with `\text{word}` opened to plain words."""
    return _SPACES.sub(" ", _TEXT.sub(r" \1 ", cleaned)).strip()


def key(answer: str) -> str:
    """One string for all answers that differ only in markup and spacing. Equal keys are equal answers."""
    return _LOOSE.sub("", plain(clean(answer)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One number and what stood with it."""

    value: Fraction
    """The number as written, without the percent sign: 10 for "10%"."""
    percent: bool = False
    """A percent sign or word stood behind it."""
    unit: Unit | None = None
    """The unit, where it is a known one."""
    words: str | None = None
    """Words behind the number that are no known unit; they are not compared."""
    forms: tuple[str, ...] = ()
    """The unusual ways of writing that were read: "mixed number", "scale word", "powers of ten", …"""
    variable: str | None = None
    """The variable that it is the value of: x for "x = 3"."""


_INT = r"[1-9]\d{0,2}(?:,\d{3})+|\d+"
_DECIMAL = rf"(?:(?:{_INT})(?:\.\d*)?|\.\d+)"
_NUMBER_FORMS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("base", r"(?P<digits>[0-9A-Z]{1,60})_\{?(?P<base>\d{1,2})\}?(?![\d.])"),
        ("repeating decimal", r"(?P<whole>\d*)\.(?P<fixed>\d*)\\overline\s?\{?(?P<period>\d{1,60})\}?"),
        ("powers of ten", rf"(?P<mantissa>{_DECIMAL})(?:[eE](?P<e>[-+]?\d+)(?![\d.A-Za-z])|\s?(?:\\times|\\cdot|\*|x)\s?10\s?\^\s?(?:\{{\s?(?P<b>[-+]?\d+)\s?\}}|(?P<p>-?\d+)))"),
        ("power of ten", r"10\s?\^\s?(?:\{\s?(?P<b>[-+]?\d+)\s?\}|(?P<p>-?\d+))"),
        ("mixed number", rf"(?P<whole>{_INT})(?:\s?\\frac\s?\{{\s?(?P<a>\d+)\s?\}}\s?\{{\s?(?P<b>\d+)\s?\}}|(?:\s|-|\sand\s)(?P<c>\d+)\s?/\s?(?P<d>\d+)(?![\d.,/]))"),
        ("fraction", rf"\\frac\s?\{{\s?(?P<as>[-+]?)\s?(?P<a>{_DECIMAL})\s?\}}\s?\{{\s?(?P<bs>[-+]?)\s?(?P<b>{_DECIMAL})\s?\}}"),
        ("fraction", rf"(?P<a>{_DECIMAL})\s?/\s?(?P<b>{_DECIMAL})(?![\d/])"),
        ("decimal", rf"(?P<n>{_DECIMAL})(?![\d]|,\d)"),
    )
)  # fmt: skip
NUMBER = r"(?:\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+(?:[.,]\d+)*|\.\d+)(?:[.,]\d+)?"
"""A number in digits, with whatever separators."""
_DEFINED = re.compile(
    r"(?P<variable>[A-Za-z])(?:_\{?\w+\}?|')?\s?="
    # A calculation or words: no variable stands in it, that is no letter alone but the x of "4 x 15".
    r"|(?:(?<![A-Za-z\d\\])[A-Za-z]{2,}|\\(?:times|cdot|div|frac)|(?<=\d)\s?x\s?(?=\d)|[^A-Za-z=<>!\\])+=(?:(?:(?<![A-Za-z\d\\])[A-Za-z]{2,}|\\(?:times|cdot|div|frac)|[^A-Za-z=<>!\\])+=){0,20}"
)
"""What may stand before a number: a variable, a calculation, words."""
_ABOUT = re.compile(r"(?:about|approximately|approx\.?|roughly|exactly|only|a total of|\\approx|~)\s?", re.I)
_MONEY = re.compile(r"US\s?\$|[$€£¥₹]|(?:USD|EUR|GBP|INR|JPY|Rs\.?)(?=[\s\d])")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"[\s-]?({'|'.join(_SCALES)}|dozen)s?(?![a-z])", re.I)
_PERCENT = re.compile(r"\s?(?:%|percent(?:age)?(?![a-z])|per\s?cent(?![a-z])|pct(?![a-z]))", re.I)
_ORDINAL = re.compile(r"\^?\s?\{?\s?(?:st|nd|rd|th)(?![A-Za-z])\s?\}?")
_WORDS = re.compile(r"(?:[^\W\d_](?:[^\W\d_]|['’-])*\.?(?:\s|/|,\s|$)){1,8}")
_MONEY_BEHIND = re.compile(r"\s?([$€£¥₹])(?=\W|$)")
_CJK = re.compile(r"\s?[\u3040-\u9fff\uac00-\ud7af]+")
# After a number these words are arithmetic, logic or a second answer, not a unit.
_NO_UNIT = re.compile(
    r"\b(?:and|or|more|less|than|least|most|not|if|when|mod|modulo|remainder|plus|minus|times|over|squared|cubed|factorial|"
    r"to|base|sin|cos|tan|log|ln|exp|sqrt|pi|half|third|quarter|hundred|thousand|million|billion|trillion|dozen)s?\b",
    re.I,
)
_NUMBER_WORD = re.compile(
    rf"({'|'.join(sorted(NUMBER_WORDS, key=len, reverse=True))})(?:-({'|'.join(list(NUMBER_WORDS)[1:10])}))?(?![a-z])",
    re.I,
)
_WHOLE_NUMBER_WORD = re.compile(rf"(?<![\w-]){_NUMBER_WORD.pattern}(?![\w-])", re.I)


def number_words(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where numbers stand in words, but for "one", which is mostly none."""
    return [
        word.span()
        for word in _WHOLE_NUMBER_WORD.finditer(text, start, end)
        if word.group().lower() not in {"one", "zero"}
    ]


def _decimal(text: str) -> Fraction | None:
    text = text.replace(",", "")
    return Fraction(text if text[-1] != "." else text[:-1]) if len(text) <= _DIGITS else None


def _ratio(top: Fraction | None, bottom: Fraction | None) -> Fraction | None:
    return None if top is None or not bottom else top / bottom


def _number(name: str, match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    if name == "decimal":
        return _decimal(part["n"])
    if name == "fraction":
        signs = (part.get("as") == "-") != (part.get("bs") == "-")
        value = _ratio(_decimal(part["a"]), _decimal(part["b"]))
        return value if value is None or not signs else -value
    if name == "mixed number":
        whole, share = (
            _decimal(part["whole"]),
            _ratio(_decimal(part["a"] or part["c"]), _decimal(part["b"] or part["d"])),
        )
        return None if whole is None or share is None or share >= 1 else whole + share
    if name in {"powers of ten", "power of ten"}:
        power = part.get("e") or part["b"] or part["p"]
        mantissa = _decimal(part["mantissa"]) if "mantissa" in part else Fraction(1)
        if mantissa is None or len(power) > 5 or abs(int(power)) > _DIGITS:
            return None
        return mantissa * Fraction(10) ** int(power)
    if name == "repeating decimal":
        fixed, period = part["fixed"], part["period"]
        if len(part["whole"]) + len(fixed) > _DIGITS:
            return None
        scale = 10 ** len(fixed)
        return (
            Fraction(int(part["whole"] or 0))
            + Fraction(int(fixed or 0), scale)
            + Fraction(int(period), scale * (10 ** len(period) - 1))
        )
    base = int(part["base"])
    try:
        return Fraction(int(part["digits"], base)) if base > 1 else None
    except ValueError:  # a digit that the base does not have
        return None


@lru_cache(maxsize=8192)
def read_quantity(answer: str) -> Quantity | None:
    """The one number that an answer is, or None when it is something else (or nothing this grammar covers)."""
    if len(answer) > LONGEST:
        return None
    text = plain(clean(answer))
    defined = _DEFINED.match(text)
    if defined is None:
        return _read_quantity(text)
    quantity = _read_quantity(text[defined.end() :].lstrip())
    if quantity is None:
        return None
    return replace(quantity, variable=defined["variable"], forms=("right-hand side", *quantity.forms))


def _read_quantity(text: str) -> Quantity | None:
    while text.startswith("(") and text.endswith(")") and "," not in text and "(" not in text[1:]:
        text = text[1:-1].strip()
    about = _ABOUT.match(text)
    if about is not None:
        text = text[about.end() :]
    negative, unit = False, None
    for _ in range(2):
        if text[:1] in {"-", "+"}:
            negative ^= text[0] == "-"
            text = text[1:].lstrip()
        money = _MONEY.match(text) if unit is None else None
        if money is not None:
            unit = unit_of(money.group().rstrip(".").replace(" ", ""))
            text = text[money.end() :].lstrip()
    for name, pattern in _NUMBER_FORMS:
        match = pattern.match(text)
        if match is not None:
            value = _number(name, match)
            if value is None:
                return None
            forms = (name,) if name not in {"decimal", "fraction"} else ()
            return _with_rest(-value if negative else value, text[match.end() :], unit, forms)
    word = _NUMBER_WORD.match(text)
    if word is None:
        return None
    value = Fraction(NUMBER_WORDS[word.group(1).lower()] + NUMBER_WORDS.get((word.group(2) or "").lower(), 0))
    return _with_rest(-value if negative else value, text[word.end() :], unit, ("number word",))


def _with_rest(value: Fraction, rest: str, unit: Unit | None, forms: tuple[str, ...]) -> Quantity | None:
    for _ in range(2):
        scale = _SCALE.match(rest)
        if scale is not None:
            word = scale.group(1).lower()
            value *= 12 if word == "dozen" else 10 ** _SCALES[word]
            rest, forms = rest[scale.end() :], (*forms, "dozen" if word == "dozen" else "scale word")
    ordinal = _ORDINAL.match(rest)
    if ordinal is not None:
        rest, forms = rest[ordinal.end() :], (*forms, "ordinal")
    percent = _PERCENT.match(rest)
    if percent is not None:
        rest = rest[percent.end() :]
    money = _MONEY_BEHIND.match(rest) if unit is None else None
    if money is not None:
        unit, rest = unit_of(money[1]), rest[money.end() :]
    if _CJK.fullmatch(rest) is not None:
        return Quantity(value=value, percent=percent is not None, unit=unit, words=rest.strip(), forms=forms)
    spaced = rest[:1].isspace()
    rest = rest.strip().rstrip(".")
    if not rest:
        return Quantity(value=value, percent=percent is not None, unit=unit, forms=forms)
    own_unit = unit_of(rest)
    # "5m" may be 5 times m; "5 m" and 5\text{m}, which `plain` spaces, are five metres.
    if own_unit is not None and (spaced or len(rest) > 1):
        if unit is not None and own_unit.kind != unit.kind:
            return None
        return Quantity(value=value, percent=percent is not None, unit=own_unit, forms=forms)
    rate = unit is not None and rest.startswith("/")  # "$50/year"
    if (
        not (spaced or rate)
        or _WORDS.fullmatch(rest.removeprefix("/")) is None
        or _NO_UNIT.search(rest) is not None
        or len(rest) < 3
    ):
        return None
    return Quantity(value=value, percent=percent is not None, unit=unit, words=rest, forms=forms)


_CLOCK = re.compile(r"(?:at\s)?(?P<h>\d{1,2})(?::(?P<m>[0-5]\d))?(?:\s?(?P<half>[ap])\.?\s?m\.?)?", re.I)
_LETTER = re.compile(r"\(?[A-J](?:[.:]|\)[.:]?)\s+(?=.*\d)")


def without_letter(answer: str) -> str:
    """The answer of a multiple-choice question without its letter: "B) 12" is 12."""
    return _LETTER.sub("", plain(clean(answer)), count=1) if _LETTER.match(plain(clean(answer))) else answer


def same_time(gold: str, answer: str) -> tuple[bool, str] | None:
    """Whether two times of day are the same ("2:30 pm"); None unless both are times and one says which half of the day."""
    times = [_CLOCK.fullmatch(plain(clean(text))) for text in (gold, answer)]
    if times[0] is None or times[1] is None:
        return None
    halves = [time["half"] for time in times if time is not None]
    if not any(halves) or not all(time is not None and (time["m"] or time["half"]) for time in times):
        return None
    minutes = [
        (int(time["h"]) % 12 + 12 * (time["half"].lower() == "p") if time["half"] else int(time["h"])) * 60
        + int(time["m"] or 0)
        for time in times
        if time is not None
    ]
    if all(halves) or max(minutes) >= 13 * 60 > min(minutes) + 12 * 60 + 60:
        return minutes[0] == minutes[1], "times of day"
    return minutes[0] % 720 == minutes[1] % 720, "times of day (am or pm on one side only)"


def same_quantity(gold: Quantity, answer: Quantity) -> tuple[bool, str]:
    """Whether two quantities are the same, exactly, and by which rule (for `Verdict.note`).

    A percent sign on one side only: 25% is 25, as references often leave the sign out, and it is 0.25.
    """
    if answer.variable and gold.variable and answer.variable != gold.variable:
        return False, f"values of different variables: {answer.variable}, {gold.variable}"
    if answer.unit and gold.unit and answer.unit.kind != gold.unit.kind:
        kinds = sorted((answer.unit.kind, gold.unit.kind), key=len)
        if not kinds[1].startswith(
            f"{kinds[0]} per "
        ):  # "$16" is read as "16 dollars a day" where the day is understood
            unlike = f"{answer.unit.name} ({answer.unit.kind}), {gold.unit.name} ({gold.unit.kind})"
            return False, f"units of different kinds: {unlike}"
        return answer.value == gold.value, "exact numbers (unit in part on one side only)"
    left, right = answer.value, gold.value
    if answer.unit and gold.unit and answer.unit.factor != gold.unit.factor:
        same = left * answer.unit.factor == right * gold.unit.factor
        return same, f"units converted: {answer.unit.name}, {gold.unit.name}"
    if answer.percent != gold.percent:
        if left == right:
            return True, "the percent sign left out"
        left, right = (left / 100 if answer.percent else left), (right / 100 if gold.percent else right)
        return left == right, "a percent is a hundredth"
    forms = [*dict.fromkeys((*answer.forms, *gold.forms))]
    if ("dozen" in answer.forms) != ("dozen" in gold.forms) and 12 * min(left, right) == max(left, right):
        return True, "exact numbers (dozens, on one side only)"
    if (answer.unit is None) != (gold.unit is None):
        forms.append("unit on one side only")
    return left == right, "exact numbers" + (f" ({', '.join(forms)})" if forms else "")
