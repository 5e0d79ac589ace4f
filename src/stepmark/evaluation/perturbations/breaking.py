r"""Changes that break the meaning: what was a good solution is one no longer, so the score should fall.

Each is a pure function of a solution, a random generator and, for three of them, a donor: the solution of another
problem. None says that it does not apply.

Calculations in a step's text whose truth can be computed, and numbers written like the ones they replace.

A calculation is `EXPRESSION = NUMBER` of numbers, brackets and + - * / (also ``×``, ``÷``, ``\times``, ``\cdot``,
``\div``, ``\frac{a}{b}`` and money signs) that stands alone: not a part of a longer formula. Only those that are
exactly true are found, so that altering one of their numbers or operators makes a statement that is surely false.
Nothing is executed: `labels.exact.compute` parses and computes in exact fractions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from stepmark.evaluation.perturbations.text import (
    NUMBER,
    Perturbed,
    bare,
    changed,
    final_answer,
    inside,
    numbers,
    says_answer,
)
from stepmark.labels.exact import compute
from stepmark.records import Solution, Step
from stepmark.solutions.borders import protected_spans

_FRAC = r"\\[dt]?frac\s*\{\s*[0-9.,]+\s*\}\s*\{\s*[0-9.,]+\s*\}"
_OPERATOR = r"[-+*/×÷−]|\\times\b|\\cdot\b|\\div\b|(?<=[0-9)])\s?x\s?(?=[0-9($])"
_PIECE = rf"(?:{_FRAC}|\\?\$(?=\s*[0-9.])|{NUMBER}|{_OPERATOR}|(?<!\\)[()]|[ \t])"
# A look-ahead whose match is taken whole, and not `++`, which CPython before 3.11.5 gets wrong on groups (gh-106052).
_CALCULATION = re.compile(rf"(?=(?P<left>{_PIECE}+))(?P=left)=[ \t]*(?:\\?\$)?(?P<right>-?(?:{NUMBER}))")
# What may not follow: the calculation would go on, or the number have a unit that changes its value.
_GOES_ON = re.compile(
    r"\s*(?:[-+*/×÷−^_(!]\s*[\w\\($]|\\(?:times|cdot|div|frac|dfrac|pi|sqrt)\b|\\?%|[.,]?[0-9]|[a-zA-Z]\b)"
)
_GLUED = re.compile(
    r"(?:[\w)}\]^_\\.,]|[-+*/×÷−^]\s*|\\(?:times|cdot|div|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|sqrt)\s*)\Z"
)
_COMPUTES = re.compile(rf"[0-9)}}]\s*(?:{_OPERATOR})|\\[dt]?frac")
OPERATORS = re.compile(_OPERATOR)
"""The operators that a calculation may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    """A true calculation in a text."""

    start: int
    """Character offset of its first character."""
    end: int
    """Offset after its last character."""
    equals: int
    """Offset of its "="."""


def calculations(text: str) -> Iterator[Calculation]:
    """The calculations of a text that can be computed and are true."""
    at = 0
    while match := _CALCULATION.search(text, at):
        # In "a = 3 + 4 = 7 + 1 = 8" what is one side of an equation begins the next.
        at = match.end("left") + 1
        start, equals = match.span("left")
        left = match["left"].lstrip(" \t")
        while left.startswith("(") and left.count("(") > left.count(")"):
            left = left[1:].lstrip(" \t")  # "(3 + 4 = 7)": the bracket holds the equation
        start = equals - len(left)
        if _GOES_ON.match(text, match.end()) or _GLUED.search(text[:start]):
            continue
        if _COMPUTES.search(left) and holds(text[start : match.end()]):
            at = match.end()
            yield Calculation(start=start, end=match.end(), equals=equals)


def holds(calculation: str) -> bool | None:
    """Whether `EXPRESSION = NUMBER` is exactly true; None if it cannot be computed."""
    left, _, right = calculation.partition("=")
    values = [compute(_in_signs(side)) for side in (left, right)]
    if values[0] is None or values[1] is None:
        return None
    return values[0] == values[1]


def _in_signs(side: str) -> str:
    side = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"(\1)/(\2)", side)
    side = re.sub(r"\\times\b|\\cdot\b|×|x", "*", side)
    side = re.sub(r"\\div\b|÷", "/", side)
    return side.replace("−", "-").replace("\\$", "").replace("$", "").strip()


def other_number(shown: str, rng: random.Random, *, singular: bool = False) -> str:
    """A different number, written as `shown` is: as many decimals, thousands commas, no zero in front.

    The change is one that slips make: the last place off by one, two or ten, a digit replaced, twice the value.

    Args:
        shown: one match of `NUMBER`.
        rng: chooses the change.
        singular: whether 1 would read wrongly there ("1 apples"); then it is not chosen.
    """
    whole, point, decimals = shown.partition(".")
    digits = whole.replace(",", "") + decimals
    value = int(digits)
    options = [value + d for d in (-10, -2, -2, -1, -1, 1, 1, 2, 2, 10)] + [2 * value]
    if value >= 10:
        at = rng.randrange(len(str(value)))
        choices = [d for d in "0123456789" if d != str(value)[at] and not (at == 0 and d == "0")]
        options += [int(str(value)[:at] + rng.choice(choices) + str(value)[at + 1 :])] * 4
    new = rng.choice([o for o in options if o > 0 and o != value and not (singular and o == 1 and not point)])
    if not point:
        return f"{new:,}" if "," in whole else str(new)
    padded = str(new).rjust(len(decimals) + (1 if whole else 0), "0")
    head, tail = padded[: len(padded) - len(decimals)], padded[len(padded) - len(decimals) :]
    if "," in whole:
        head = f"{int(head):,}"
    return f"{head}.{tail}"


def value_of(shown: str) -> Fraction:
    """The value of one match of `NUMBER`."""
    return Fraction(shown.replace(",", ""))


_OPPOSITE = {
    "+": "-",
    "-": "+",
    "−": "+",
    "*": "/",
    "/": "*",
    "×": "÷",
    "÷": "×",
    "x": "/",
    "\\times": "\\div",
    "\\cdot": "\\div",
    "\\div": "\\times",
}


def opposite(operator: str) -> str:
    """The opposite operator in the same notation, its spacing kept: + for -, ÷ for ×."""
    sign = operator.strip()
    return operator.replace(sign, _OPPOSITE[sign])


NO_QUESTION = "(The question is not shown.)"
"""What stands in the place of a question that was removed: an empty one is refused by every PRM."""

_TALK = (
    "Let me think about this problem carefully.",
    "Thought process:",
    "I will work through this step by step.",
    "Let me consider what is asked and what is given.",
    "This is an interesting problem, so let us look at it closely.",
    "We are making good progress.",
    "Having thought about it thoroughly, I am confident in the solution.",
)
_TRIES = 20


def question_removed(solution: Solution, rng: random.Random) -> Perturbed | None:
    """The question is replaced by `NO_QUESTION`."""
    return changed(solution, "the question removed", question=NO_QUESTION)


def question_shuffled(solution: Solution, rng: random.Random) -> Perturbed | None:
    """The words of the question in a random order. For questions of four different words or more."""
    words = solution.problem.text.split()
    if len(set(words)) < 4:
        return None
    shuffled = _shuffled(words, rng)
    return changed(solution, "the words of the question shuffled", question=" ".join(shuffled))


def _shuffled(words: list[str], rng: random.Random) -> list[str]:
    shuffled = list(words)
    for _ in range(_TRIES):
        rng.shuffle(shuffled)
        if shuffled != words:
            break
    return shuffled


def question_swapped(solution: Solution, rng: random.Random, donor: Solution) -> Perturbed | None:
    """The question is replaced by the donor's; the steps stay."""
    return changed(solution, "the question of another problem", question=donor.problem.text)


def irrelevant_solution(solution: Solution, rng: random.Random, donor: Solution) -> Perturbed | None:
    """The steps are replaced by the donor's; the question stays."""
    return changed(solution, "the steps of another problem's solution", steps=donor.steps)


def steps_shuffled(solution: Solution, rng: random.Random) -> Perturbed | None:
    """The steps in a random order in which the last one, which holds the answer, comes earlier."""
    texts = solution.texts
    if len(set(texts)) < 2:
        return None
    order = list(range(len(texts)))
    for _ in range(_TRIES):
        rng.shuffle(order)
        if texts[order[-1]] != texts[-1]:
            break
    else:
        return None
    steps = [solution.steps[i] for i in order]
    return changed(solution, f"steps in the order {', '.join(str(i + 1) for i in order)}", steps=steps)


def numbers_altered(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One number of one step has another value, written alike; what follows is not repaired.

    Calculations that can be computed and are true go first: then the step is proven to be wrong. Without any, any
    number that is an amount is altered, and nothing is proven.
    """
    places = _calculations(solution)
    if places:
        at, found = rng.choice(places)
        text = solution.texts[at]
        inner = [m.span() for m in re.finditer(NUMBER, text[found.start : found.end])]
        for _ in range(_TRIES):
            start, end = rng.choice(inner)
            start, end = start + found.start, end + found.start
            new = other_number(text[start:end], rng, singular=_counted(text, end))
            altered = text[:start] + new + text[end:]
            if holds(altered[found.start : found.end + len(new) - (end - start)]) is False:
                note = f"{text[start:end]} became {new} in a calculation of step {at + 1}"
                return _with(solution, at, altered, note, proven=True)
    amounts = [
        (at, match.span("number"))
        for at, text in enumerate(solution.texts)
        for match in numbers(text)
        if not (match["number"] == "1" and _counted(text, match.end("number")))
    ]
    if not amounts:
        return None
    # A step first, then a number of it: else long steps would be chosen more often.
    at = rng.choice(sorted({step for step, _ in amounts}))
    start, end = rng.choice([span for step, span in amounts if step == at])
    text = solution.texts[at]
    new = other_number(text[start:end], rng, singular=_counted(text, end))
    assert value_of(new) != value_of(text[start:end])
    return _with(
        solution, at, text[:start] + new + text[end:], f"{text[start:end]} became {new} in step {at + 1}"
    )


def _counted(text: str, end: int) -> bool:
    """Whether a noun follows a number, so that "1" and "2" call for different words."""
    return re.match(r"\s+[a-z]{2,}", text[end:]) is not None


def _calculations(solution: Solution) -> list[tuple[int, Calculation]]:
    return [(at, found) for at, text in enumerate(solution.texts) for found in calculations(text)]


def _with(
    solution: Solution, at: int, text: str, note: str, *, proven: bool = False, broken: bool = True
) -> Perturbed | None:
    steps = list(solution.steps)
    steps[at] = bare(steps[at], text)
    return changed(solution, note, steps=steps, broken_step=at if broken else None, proven=proven)


_OPERAND_BEFORE = r"(?:(?<=[0-9)}])|(?<=[^A-Za-z\\][a-z])|(?<=\s[a-z]))"
_LOOSE = re.compile(
    rf"{_OPERAND_BEFORE}[ ]?(?P<sign>[-+*×÷−]|\\times\b|\\cdot\b|\\div\b)[ ]?"
    r"(?=(?![01](?![0-9.]))(?:[0-9(]|\\(?:sqrt|frac|left)|[a-z](?![A-Za-z])))"
)


def operator_flipped(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One operator of one step is turned into its opposite: + into -, × into ÷; what follows is not repaired.

    Calculations that can be computed and are true go first, as in `numbers_altered`; else an operator of a formula.
    """
    flips: list[tuple[int, str, str]] = []
    for at, found in _calculations(solution):
        text = solution.texts[at]
        for match in OPERATORS.finditer(text, found.start, found.equals):
            flipped = text[: match.start()] + opposite(match[0]) + text[match.end() :]
            grown = len(flipped) - len(text)
            if holds(flipped[found.start : found.end + grown]) is False:
                flips.append((at, flipped, match[0].strip()))
    proven = bool(flips)
    if not flips:
        for at, text in enumerate(solution.texts):
            spans = protected_spans(text)
            for match in _LOOSE.finditer(text):
                start, end = match.span("sign")
                if inside(start, spans) and text[start - 1 : start] != "^":
                    flipped = text[:start] + opposite(text[start:end]) + text[end:]
                    flips.append((at, flipped, match["sign"]))
    if not flips:
        return None
    at = rng.choice(sorted({step for step, _, _ in flips}))
    _, text, sign = rng.choice([flip for flip in flips if flip[0] == at])
    return _with(solution, at, text, f"{sign} became {opposite(sign)} in step {at + 1}", proven=proven)


def truncated(solution: Solution, rng: random.Random) -> Perturbed | None:
    r"""The last steps are gone, so many that no answer is reached.

    What stays neither states an answer in words or marks nor has the final answer after an "=" or as its last
    number. Not for solutions in which only an empty beginning would stay.
    """
    answer = final_answer(solution.texts[-1])
    kept = 0
    while kept < len(solution.steps) - 1 and not _reaches(solution.texts[kept], answer):
        kept += 1
    if kept == 0:
        return None
    kept = rng.randint(1, kept)
    gone = len(solution.steps) - kept
    return changed(solution, f"the last {gone} steps removed", steps=solution.steps[:kept])


def _reaches(text: str, answer: str | None) -> bool:
    if says_answer(text):
        return True
    if answer is None:
        return False
    value = answer.strip("$ ").replace("\\$", "")
    if re.search(rf"=\s*(?:\\?\$)?\s*{re.escape(value)}(?![0-9.]*[0-9])", text):
        return True
    amounts = list(numbers(text))
    return bool(amounts) and amounts[-1]["number"] == value


def repeated_answer(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step is replaced by the last one; the number of steps stays."""
    last = Step(text=solution.texts[-1])
    return changed(solution, "every step replaced by the last", steps=[last] * len(solution.steps))


def answer_only(solution: Solution, rng: random.Random) -> Perturbed | None:
    """One step: "The answer is X.", with the answer that the last step states and no reasoning."""
    answer = final_answer(solution.texts[-1])
    if answer is None:
        return None
    text = f"The answer is {answer}."
    if not re.fullmatch(rf"{NUMBER}|[^\\]*", answer):
        text = f"The answer is \\({answer.strip('$')}\\)."
    return changed(solution, "only the answer left", steps=[Step(text=text)])


def empty_talk(solution: Solution, rng: random.Random) -> Perturbed | None:
    """Every step is replaced by talk without content; the number of steps stays."""
    talk: list[str] = []
    while len(talk) < len(solution.steps):
        talk += rng.sample(_TALK, len(_TALK))
    steps = [Step(text=text) for text in talk[: len(solution.steps)]]
    return changed(solution, "every step replaced by talk without content", steps=steps)
