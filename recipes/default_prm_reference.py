"""For `default_prm_data`: the first error of a wrong solution, located against worked solutions of the same problem. Needs no model.

The *sound results* of a problem are the numbers that its worked solutions hold and its text does not: people's solutions, or a model's with the right answer.
A solution is read step by step until one is suspect, for one of four reasons:

===============  ==================================================================================================================
`calculation`    a calculation in it is false (`verifiers.checks`)
`result`         a true calculation comes to a number that is no sound result, and no later calculation leads from there to a sound one
`number`         it states a number that stands neither in the problem nor in a worked solution, and that no earlier step computed
`answer`         nothing else is suspect: the step that first comes to the wrong final answer, or the last one
===============  ==================================================================================================================

An error that comes to a sound result by the wrong way is found too late, a right way that no worked solution takes too early; several worked solutions
make both rarer. `docs/default-prm.md` holds how often the located step is the one that people named. Each label keeps its reason as a note,
and as its confidence how often such a label was right there (`Precision`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from stepmark.labels.exact import FORMULA, NUMBER, compute, number_of, numbers, plain
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.settings import settings
from stepmark.verifiers.checks.equations import calculations

Reason = Literal["calculation", "result", "number", "answer"]
"""Why a step is suspect."""

# Numbers that a step may name though the problem does not: small counts, days, minutes, months, per cent.
_COMMON = frozenset(Fraction(n) for n in (0, 1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000))
_STEP_NUMBER = re.compile(r"^\s*(?:(?:step|#)\s*\d+\s*[:.)]?|\d+[.)](?=\s))", re.I)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """The first suspect step of a solution."""

    step: int
    """Its index, from 0."""
    reason: Reason
    note: str
    """The evidence: the calculation, or the number that no worked solution holds."""


@settings
class Precision:
    """How often a label is right, by its reason: the `confidence` of the judgements. The defaults are measured, see `docs/default-prm.md`."""

    calculation: Annotated[float, Field(ge=0, le=1)] = 0.95
    """The first error stands at the located step or before it, for a false calculation."""
    result: Annotated[float, Field(ge=0, le=1)] = 0.78
    """The same, for a result that no worked solution holds."""
    number: Annotated[float, Field(ge=0, le=1)] = 0.82
    """The same, for a number that no worked solution holds."""
    answer: Annotated[float, Field(ge=0, le=1)] = 0.83
    """The same, where nothing but the answer is wrong. Steps before it are not labelled: half of them come after the first error."""
    before: Annotated[float, Field(ge=0, le=1)] = 0.75
    """A step before the located one is right, for the other three reasons."""
    right: Annotated[float, Field(ge=0, le=1)] = 0.97
    """A step of a solution with the right answer is right."""


def locate_error(solution: Solution, references: Iterable[str]) -> Suspect | None:
    """The first suspect step of a solution whose final answer is known to be wrong.

    `references` are worked solutions of the same problem, with calculations marked `<<48/2=24>>` or not. None where they hold no number beside
    the problem's own.
    """
    given = frozenset(numbers(solution.problem.text))
    sound: set[Fraction] = set()
    for reference in references:
        sound |= {result for _, result in _calculations(reference)} | (numbers(plain(reference)) - given)
    if not sound:
        return None
    texts = [_STEP_NUMBER.sub("", plain(text)) for text in solution.texts]
    steps = [_calculations(text) for text in texts]
    derived: set[Fraction] = set()
    for k, text in enumerate(texts):
        later = [made for rest in steps[k:] for made in rest]
        for formula in calculations(text):
            if formula.truth == "wrong":
                return Suspect(step=k, reason="calculation", note=f"{formula.text}: {formula.why}")
        for written, number in steps[k]:
            if not (number in derived or _same(number, sound) or _leads_to(number, later, sound, given)):
                return Suspect(step=k, reason="result", note=f"{written}: no worked solution comes to this")
            derived.add(number)
        for number in sorted(numbers(text) - given - derived - _COMMON):
            if not (_same(number, sound | given) or _leads_to(number, later, sound, given)):
                note = f"{_shown(number)} stands neither in the problem nor in a worked solution"
                return Suspect(step=k, reason="number", note=note)
            derived.add(number)
    shown = NUMBER.findall(texts[-1])
    answer = number_of(shown[-1]) if shown else None
    reached = (k for k, made in enumerate(steps) if any(number == answer for _, number in made))
    return Suspect(step=next(reached, len(texts) - 1), reason="answer", note="only the final answer is wrong")


def label_by_reference(
    solution: Solution, references: Iterable[str], *, correct: bool, precision: Precision | None = None
) -> LabelledSolution | None:
    """Judgements up to the located step, each with its confidence and its reason; of all steps where the final answer is right (`correct`).

    `references` are worked solutions of the same problem. None where no step can be located.
    """
    precision = Precision() if precision is None else precision
    if correct:
        right = _judgement(1, precision.right, "the final answer is right")
        return LabelledSolution(solution=solution, judgements=((right,),) * len(solution.steps))
    suspect = locate_error(solution, references)
    if suspect is None:
        return None
    before: tuple[Judgement, ...] = (
        _judgement(1, precision.before, f"before the located error: {suspect.reason}"),
    )
    if suspect.reason == "answer":
        before = ()
    wrong = _judgement(-1, getattr(precision, suspect.reason), f"{suspect.reason}: {suspect.note}")
    after = len(solution.steps) - suspect.step - 1
    return LabelledSolution(
        solution=solution, judgements=(*(before,) * suspect.step, (wrong,), *((),) * after)
    )


def _judgement(rating: Literal[-1, 1], confidence: float, note: str) -> Judgement:
    return Judgement(kind="correctness", judge="reference", rating=rating, confidence=confidence, note=note)


def _calculations(text: str) -> list[tuple[str, Fraction]]:
    """The true calculations of a text, each as written and its result."""
    made: list[tuple[str, Fraction]] = []
    for formula in calculations(text):
        marked = FORMULA.fullmatch(formula.text)
        result = marked[2] if marked else formula.text.rpartition("=")[2]
        shown = NUMBER.findall(result)
        value = compute(result) if marked else number_of(shown[0]) if len(shown) == 1 else None
        if formula.truth == "right" and value is not None:
            made.append((formula.text, value))
    return made


def _same(number: Fraction, others: set[Fraction] | frozenset[Fraction]) -> bool:
    """Whether a number is among others; dollars and cents, shares and percentages count as the same."""
    return number in others or number * 100 in others or number / 100 in others


def _leads_to(
    number: Fraction, later: Sequence[tuple[str, Fraction]], sound: set[Fraction], given: frozenset[Fraction]
) -> bool:
    """Whether later calculations go from this number to a sound result, and not through a number of the problem."""
    reached = {number} - given
    for written, result in later:
        operands = {number_of(shown) for shown in NUMBER.findall(written.rpartition("=")[0])}
        if operands & reached and result != number:
            if result in sound:
                return True
            reached |= {result} - given
    return False


def _shown(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"{float(number):g}"
