"""A final answer that is not the last result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from stepmark.verifiers.checks.claims import Claim, number, undressed
from stepmark.verifiers.checks.equations import differ

_N = r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15})(?:\.[0-9]{1,9})?"
_FINAL = re.compile(
    rf"(?:^|(?<=[.!\n;:]))\s*(?:(?:so|therefore|thus|hence|finally|then)\s?,?\s)?(?:####|(?:(?:the|my|our)\s)?(?:final\s)?answer(?:\s(?:is|equals|must\sbe)|\s?[:=]))\s?:?\s?(?:boxed\s)?[$€£]?\s?"
    rf"(?P<n>{_N})\s?[}})\]*$]{{0,4}}(?:\s?[a-z%]{{1,15}}){{0,2}}\s?[.!]?\s*$",
    re.I,
)
_END = 600
_ANY_NUMBER = re.compile(rf"(?<![0-9.,]){_N}")
_NUMBER = re.compile(rf"(?<![\w.,/^]){_N}(?![\w/^]|[.,][0-9])")


def final_answer(steps: Sequence[str], problem: str) -> Iterator[Claim]:
    """The final answer, where it is a number that is not the result that was reached.

    Only an answer by itself ("The answer is 24.") is read, and only where the sentence before it states a result or ends in a
    calculation. The number of the answer must stand in no text before it, and no number before it must lead from the result to the
    answer in one step, which may have been left out.
    """
    # Only the end: a pattern that may begin at every line of a long text takes quadratic time.
    cut = max(0, len(steps[-1]) - _END)
    last = re.sub(r"\\boxed\s?\{", lambda m: "boxed".ljust(len(m[0])), undressed(steps[-1])[cut:])
    match = _FINAL.search(last)
    if match is None:
        return
    answer = number(match["n"].lstrip("-"))
    own = last[: match.start()]
    reached = _last_result(own if _NUMBER.search(own) else undressed(steps[-2]) if len(steps) > 1 else "")
    if answer is None or reached is None:
        return
    result, text = reached
    if not differ(result, answer, exact=True) or _converted(result, answer):
        return
    before = undressed(" ".join([problem, *steps[:-1], steps[-1][: cut + match.start()]]))
    seen = {number(n.lstrip("-")) for n in _ANY_NUMBER.findall(before)} - {None}
    if answer in seen or any(_one_step(result, n, answer) for n in seen if n is not None):
        return
    yield Claim(
        cut + match.start() + len(match[0]) - len(match[0].lstrip()),
        len(steps[-1]),
        f"the last result is {text}",
    )


def _one_step(result: Fraction, n: Fraction, answer: Fraction) -> bool:
    return answer in (result + n, abs(result - n), result * n) or (n != 0 and answer == result / n)


_RESULT_AT_END = re.compile(
    rf"(?:=|\b(?P<verb>is|are|equals|has|have|of|get|gets|left|was|were|be))\s?(?:about\s)?[$€£]?\s?(?P<n>{_N})\s?[}})\]*$]{{0,4}}\s?(?:[a-z]{{1,14}}\s?){{0,3}}[.!]?\s*$",
    re.I,
)
_CONCLUDES = re.compile(
    r"\b(?:so|therefore|thus|hence|total|altogether|in\sall|result|remain\w*|left|answer|finally)\b", re.I
)


_TESTS = re.compile(
    r"\b(?:check\w*|verif\w*|indeed|satisf\w*|correct\w*|confirm\w*|values?|solutions?|if|question)\b", re.I
)


def _last_result(text: str) -> tuple[Fraction, str] | None:
    """The number that a text ends with, if it is a result, and as it is written."""
    sentence = re.split(r"[.!;]\s+(?=\S)|\n(?=\s*\S)", text[-300:].rstrip())[-1]
    if _TESTS.search(text[-300:]):
        return None
    match = _RESULT_AT_END.search(sentence)
    if match is None:
        # "So 7 seats are free.", "8 - 6 = 2, so 2 are left."
        clause = re.split(r",\s(?=so|thus|therefore|hence)", sentence)[-1]
        numbers = _ANY_NUMBER.findall(clause)
        value = number(numbers[0]) if len(numbers) == 1 and _CONCLUDES.search(clause) else None
        return None if value is None or value < 0 else (value, numbers[0])
    if match["n"].startswith("-"):
        return None
    concludes = _CONCLUDES.search(sentence) is not None
    computes = match["verb"] is None and re.search(
        r"[0-9)}]\s?(?:[-+*/×÷]|\\times|\\cdot|\\div)\s?[0-9({\\$]", sentence
    )
    value = number(match["n"])
    return None if value is None or not (concludes or computes) else (value, match["n"])


def _converted(a: Fraction, b: Fraction) -> bool:
    """Whether one number may be the other in another unit, or per person, day or dozen."""
    if not a or not b:
        return True
    return max(a / b, b / a) in (2, 4, 7, 10, 12, 16, 24, 30, 36, 52, 60, 100, 365, 1000, 3600)
