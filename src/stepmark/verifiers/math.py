"""The verifier `math`: math-verify decides, in a process of its own; the rules here mend what it gets wrong.

- Numbers are exact, of any size: 0.333333 is not 1/3, and 2^{-98} is not 2^{-99} (`quantities`, and `math_worker` for expressions).
- Units: 12 cm is 0.12 m and not 12 m; a unit on one side only is left out. Degrees within sines, and against parts of pi, are radians.
- A percent sign on one side only: 25% matches 25 and 0.25, and the note says so.
- Mixed numbers, scale words, powers of ten, repeating decimals, other bases and ordinals are numbers.
- A column vector is the tuple of its entries; a row is not a column.
- Words are compared as words, not as products of variables. What is not understood has no verdict.
"""

from __future__ import annotations

import re
import threading
from fractions import Fraction

from stepmark.verifiers.base import VerifierBase
from stepmark.verifiers.math_process import AnswerProcess, Outcome
from stepmark.verifiers.quantities import (
    Quantity,
    clean,
    key,
    plain,
    read_quantity,
    same_quantity,
    same_time,
    without_letter,
)
from stepmark.verifiers.text import same_words
from stepmark.verifiers.units import unit_of

_REMEMBERED = 50_000


class MathVerifier(VerifierBase):
    """Mathematical answers: numbers, expressions, equations, tuples, sets, intervals, matrices, words.

    Safe for several threads: the worker is asked by one at a time. Verdicts are remembered.

    Args:
        cpu_seconds: as `AnswerProcess`.
        wall_seconds: as there.

    Numbers, words and equal texts are compared without math-verify; anything else raises a `MissingExtraError` where it is not installed.
    """

    def __init__(
        self,
        *,
        cpu_seconds: float = 5.0,
        wall_seconds: float = 30.0,
    ) -> None:
        self.name = "math"
        self._worker = AnswerProcess(cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, str], Outcome] = {}

    def compare(self, gold: str, answer: str) -> Outcome:
        """See `Verifier.verify`; both are bare."""
        gold, answer = clean(gold), clean(answer)
        if key(gold) == key(answer):
            return "match", "the same text"
        times = same_time(gold, answer)
        if times is not None:
            return "match" if times[0] else "mismatch", times[1]
        gold, answer = without_letter(gold), without_letter(answer)
        left, right = read_quantity(gold), read_quantity(answer)
        if left is not None and right is not None:
            same, rule = same_quantity(left, right)
            return "match" if same else "mismatch", rule
        if len(gold) == len(answer) == 1:
            return "mismatch", "one sign against another"  # math-verify takes C for c
        if _is_words(gold) or _is_words(answer):
            return self._words(gold, answer)
        open_ = _open_comma(left, answer) or _open_comma(right, gold)
        if open_ is not None:
            return open_
        gold, answer = _in_radians(gold, answer)
        rewritten = _without_units(*_as_tuples(gold, answer))
        if isinstance(rewritten, str):
            return "mismatch", rewritten
        for what, text in zip(("reference", "answer"), rewritten, strict=True):
            if _has_words(text):
                return "unparsed", f"the {what} has words in it"  # math-verify would multiply their letters
        outcome, note = self._ask(*rewritten)
        if outcome == "unparsed" and "=" in rewritten[1] and "=" not in rewritten[0]:
            outcome, note = self._ask(rewritten[0], rewritten[1].rpartition("=")[2].strip())
        if outcome == "mismatch" and gold.endswith("%") != answer.endswith("%"):
            bare = _without_units(gold.rstrip("% "), answer.rstrip("% "))
            if not isinstance(bare, str) and self._ask(*bare)[0] == "match":
                return "match", "the percent sign left out"
        return outcome, note

    def close(self) -> None:
        """End the worker process, if one runs."""
        with self._lock:
            self._worker.close()

    def _words(self, gold: str, answer: str) -> Outcome:
        if same_words(gold, answer):
            return "match", "the same words"
        if _is_words(gold) and _is_words(answer):
            return "mismatch", "words"
        return "unparsed", f"the {'reference' if _is_words(gold) else 'answer'} is in words"

    def _ask(self, gold: str, answer: str) -> Outcome:
        pair = (_for_worker(gold), _for_worker(answer))
        with self._lock:
            if pair not in self._verdicts:
                if len(self._verdicts) >= _REMEMBERED:
                    self._verdicts.clear()
                self._verdicts[pair] = self._worker.ask(*pair)
            return self._verdicts[pair]


_MATHS_WORD = re.compile(
    r"\\[A-Za-z]+|\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|mod|det|lim|max|min|gcd|lcm|arcsin|arccos|arctan|sinh|cosh|"
    r"tanh|infty|infinity|and|or)\b|\{|\}"
)
_NAMES = re.compile(r"\\(?:begin|end|operatorname)\s?\{[A-Za-z*]*\}")
_LONG_WORD = re.compile(
    r"[^\W\d_]{4,}|(?<![A-Za-z\d])[a-z]{2,3}\s(?:.*\s)?[a-z]{2,3}(?![A-Za-z\d])|[a-z]'[a-z]{1,2}\b"
)


def _has_words(text: str) -> bool:
    return _LONG_WORD.search(_MATHS_WORD.sub(" ", _NAMES.sub(" ", plain(text)))) is not None


_WORD = re.compile(
    r"[^\W\d_]{4,}|[^\W\d_]{2,}(?=\s+[^\W\d_]{2,})|(?<=\\text\{)\s?[^\W\d_]{2,}|\b(?:yes|no|odd)\b", re.I
)


def _is_words(text: str) -> bool:
    r"""Whether an answer is words and not mathematics: "no solution", \text{Evelyn}, "even"."""
    opened = plain(text)
    rest = _MATHS_WORD.sub(" ", opened)
    if re.search(r"[\d=<>^+*/\\]", opened) or not rest.strip():
        return False
    return _WORD.search(rest) is not None or (text != opened and re.search(r"[^\W\d_]{2,}", rest) is not None)


_COMMA = re.compile(r"(-?\d+,\d+)\s?[$€£%]?")


def _open_comma(number: Quantity | None, other: str) -> Outcome | None:
    """A verdict on "1000,99" against one number: a decimal comma or two numbers? Where these differ there is none."""
    comma = None if number is None else _COMMA.fullmatch(other)
    if number is None or comma is None:
        return None
    if Fraction(comma[1].replace(",", ".")) == number.value:
        return "unparsed", "whether the comma is a decimal one is open"
    return "mismatch", "neither the pair nor the decimal"


_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s?\^\\circ ?")
_TURNS = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


def _in_radians(gold: str, answer: str) -> tuple[str, str]:
    """Degrees as radians, within functions of angles and where the other side is in parts of pi."""
    texts = [gold, answer]
    for place, text in enumerate(texts):
        other = texts[1 - place]
        if "\\circ" in text and (_TURNS.search(text) or ("\\pi" in other and "\\circ" not in other)):
            texts[place] = _DEGREES.sub(r"(\1 \\cdot \\frac{\\pi}{180})", text)
    return texts[0], texts[1]


_VECTOR = re.compile(r"\\begin\{([pb]?matrix)\}([^&]*?)\\end\{\1\}", re.S)


def _as_tuples(gold: str, answer: str) -> tuple[str, str]:
    """A column vector as a tuple, where the other side is none."""
    if "matrix}" in gold and "matrix}" in answer:
        return gold, answer
    return _as_tuple(gold), _as_tuple(answer)


def _as_tuple(vector: str) -> str:
    r"""A column vector as the tuple of its entries."""
    match = _VECTOR.fullmatch(vector)
    rows = (
        [] if match is None else [row.strip() for row in match[2].strip().removesuffix("\\\\").split("\\\\")]
    )
    return f"({', '.join(rows)})" if len(rows) > 1 and all(rows) else vector


_UNIT = re.compile(
    r"\s?(?:\\text|\\mathrm|\\textrm|\\mbox|\\rm)\s?\{\s?([A-Za-z][^{}]*)\}((?:\s?\^\s?\{?[23]\}?)?)$|(?<=[\d})\s])\s([A-Za-z]{2,}(?:\s[A-Za-z]+)?(?:\^\{?[23]\}?)?)$|\s?(\^\\circ)$"
)


def _without_units(gold: str, answer: str) -> tuple[str, str] | str:
    """Both without the unit or percent sign at their end; a note where these cannot be equal."""
    texts, units, percents = [gold, answer], [], []
    for place in range(2):
        text = texts[place]
        percent = text.endswith("%")
        if percent:
            text = text[:-1].rstrip()
        match = _UNIT.search(text)
        unit = None
        if match is not None and match.start() > 0:
            name = (match.group(1) or match.group(3) or match.group(4)).strip() + (match.group(2) or "")
            unit = unit_of(name)
            if unit is not None or (
                match.group(1) is not None
                and not re.search(r"[\d=]", name)
                and re.search(r"\d|\\", text[: match.start()])
            ):
                text = text[: match.start()].strip()
        texts[place] = text
        units.append(unit)
        percents.append(percent)
    if units[0] and units[1]:
        if units[0].kind != units[1].kind:
            return f"units of different kinds: {units[1].name} ({units[1].kind}), {units[0].name} ({units[0].kind})"
        if units[0].factor != units[1].factor:
            factor = units[1].factor / units[0].factor
            texts[1] = rf"\frac{{{factor.numerator}}}{{{factor.denominator}}} \cdot \left({texts[1]}\right)"
    if percents[0] != percents[1]:
        place = percents.index(True)
        texts[place] = rf"\frac{{{texts[place]}}}{{100}}"
    return texts[0], texts[1]


_LISTED = re.compile(
    r"\s*,?\s*(?:\\text\s?\{\s?(?:and|or)\s?\}|(?<![A-Za-z])(?:and|or)(?![A-Za-z]))\s*|,\s*,\s*"
)
_POWER = re.compile(r"\^\s?\(")


def _for_worker(text: str) -> str:
    """The text as math-verify should see it: `^(…)` with braces, no dollar signs, one line."""
    text = _LISTED.sub(", ", re.sub(r"(?<!\\)\\[()\[\]]", " ", text))
    text = text.replace("$", "").replace("\n", " ").replace("\\lvert", "|").replace("\\rvert", "|")
    text = re.sub(r"\\langle(.*)\\rangle", r"(\1)", text)
    start = 0
    while (power := _POWER.search(text, start)) is not None:
        depth, place = 1, power.end()
        while place < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            place += 1
        if depth:
            break
        text = f"{text[: power.start()]}^{{{text[power.end() : place - 1]}}}{text[place:]}"
        start = power.start() + 1
    return text
