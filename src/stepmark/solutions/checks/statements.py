"""Values that a solution names: used otherwise later, copied wrongly from the question, or not what the answer says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stepmark.solutions.checks.algebra import Equation
from stepmark.solutions.checks.equations import differ, doubted
from stepmark.solutions.checks.words import Claim, number, undressed

# --- a value that is named and then used otherwise ----------------------------------------------------------------------

_CONDITION = re.compile(
    r"\b(?:if|when|suppos\w*|assum\w*|let|try|trying|test\w*|check\w*|case|cases|or|for|either|until|unless|where|at|from|both|instead|otherwise|while|say|set|setting|choose|take|guess|consider|possible|could|might|new|old|now|next|previous\w*|initial\w*|wrong|incorrect|mistake|not|contradict\w*)\b|\\pm|±|\?|\\sum|\\prod|\\lim|\\int",
    re.I,
)
_RECALLS = re.compile(
    r"\b(?:since|because|recall(?:ing)?(?:\sthat)?|we\s(?:already\s)?(?:know|found)(?:\sthat)?|knowing\sthat)\s?[$;\\(]{0,3}\s?$",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Named:
    """A letter that a step sets to a number, without a condition."""

    step: int
    value: Fraction
    text: str


def named_values(step: int, text: str, stated: Sequence[Equation]) -> Iterator[tuple[str, Named | None]]:
    """The letters that a step gives a value; None where it is conditional, or one of several."""
    values: dict[str, Named | None] = {}
    for equation in stated:
        side, value = equation.tokens[0], equation.right.rational
        if len(side) != 1 or side[0].kind != "word" or equation.chained or value is None or equation.about:
            continue
        letter = side[0].text
        before = values.get(letter)
        again = letter in values and (before is None or before.value != value)
        conditional = _CONDITION.search(_sentence(text, equation.start, equation.end)) is not None
        named = Named(step, value, " ".join(equation.text.split()))
        values[letter] = None if again or conditional else named
    yield from values.items()


def _sentence(text: str, start: int, end: int) -> str:
    before = re.split(r"[.;]\s|\n", text[max(0, start - 200) : start])[-1]
    return before + re.split(r"[.;]\s|\n", text[end : end + 100], maxsplit=1)[0]


def changed_values(
    text: str, stated: Sequence[Equation], named: Mapping[str, Named | None]
) -> Iterator[Claim]:
    """The values that a step recalls and that are not the values that were found.

    Args:
        text: the step.
        stated: its equations.
        named: the letters that were given one value before, without a condition.
    """
    for equation in stated:
        side, value = equation.tokens[0], equation.right.rational
        if len(side) != 1 or side[0].kind != "word" or value is None or equation.chained or equation.about:
            continue
        before = named.get(side[0].text)
        if before is None or not _RECALLS.search(text[max(0, equation.start - 40) : equation.start]):
            continue
        if not differ(before.value, value, exact=not equation.decimal):
            continue
        sentence = _sentence(text, equation.start, equation.end)
        if _ALTERNATIVE.search(sentence) or doubted(text, equation.start, equation.end):
            continue
        yield Claim(equation.start, equation.end, f"it was {before.text}")


_ALTERNATIVE = re.compile(r"\b(?:or|either|case|not|other|another|second|new|instead|if|when)\b|\\pm|±", re.I)

# --- a final answer that is not the last result -------------------------------------------------------------------------

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
    ratio = max(a / b, b / a)
    return ratio in (2, 4, 7, 10, 12, 16, 24, 30, 36, 52, 60, 100, 365, 1000, 3600)


# --- a number of the question that is copied wrongly --------------------------------------------------------------------

_PIECE = re.compile(rf"(?P<n>{_N})|(?P<w>[A-Za-z]+(?:['’][a-z]+)?)|(?P<s>[^\s])")
_WHOLE = 6


def copied_numbers(text: str, problem: str, before: Sequence[str]) -> Iterator[Claim]:
    """The numbers of a step that stand in a sentence of the question where the question has another number.

    The sentence has six words or more, all the same but one number. That number stands nowhere else before it. (Four same words on each
    side of a number, in another sentence, are too few: both findings of that rule in 8,404 samples with a right answer were false.)

    Args:
        text: the step.
        problem: the question.
        before: the steps before it.
    """
    for start, shown_as, original in _in_sentence(text, problem):
        value, asked = number(shown_as.lstrip("-")), number(original.lstrip("-"))
        if value is None or asked is None or value == asked:
            continue
        if any(number(n.lstrip("-")) == value for n in _ANY_NUMBER.findall(" ".join([problem, *before]))):
            continue
        if not doubted(text, start, start + len(shown_as)):
            yield Claim(start, start + len(shown_as), f"the question says {original}")


_Piece = tuple[str, str, int]


def _in_sentence(text: str, problem: str) -> Iterator[tuple[int, str, str]]:
    asked = [sentence for sentence in _sentences(_pieces(problem)) if len(sentence) >= _WHOLE]
    for sentence in _sentences(_pieces(text)):
        for original in asked if len(sentence) >= _WHOLE else ():
            if len(original) != len(sentence):
                continue
            other = [(a, b) for a, b in zip(sentence, original, strict=True) if _plain(a[1]) != _plain(b[1])]
            if len(other) == 1 and other[0][0][0] == other[0][1][0] == "n":
                yield other[0][0][2], other[0][0][1], other[0][1][1]


def _plain(word: str) -> str:
    return "the" if word in ("a", "an") else word


def _sentences(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    sentence: list[_Piece] = []
    for piece in pieces:
        if piece[0] == "s" and piece[1] in ".!?;":
            yield sentence
            sentence = []
        elif piece[0] != "s":
            sentence.append(piece)
    yield sentence


def _pieces(text: str) -> list[_Piece]:
    return [
        (match.lastgroup or "s", match[0] if match.lastgroup == "n" else match[0].lower(), match.start())
        for match in _PIECE.finditer(undressed(text))
    ]
