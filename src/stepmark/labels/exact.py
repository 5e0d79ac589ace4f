"""Exact labels: errors put on purpose into worked solutions whose calculations are marked.

A line such as "She sold 48/2 = <<48/2=24>>24 clips" says what is computed, so an altered copy is wrong for a known reason. Nothing is
executed: calculations are read by a parser for + - * / and computed in exact fractions (`slips`).

Two ways to make labelled solutions:

- `exact_labels`: branches. Each ends at its first error: a wrong value, a wrong operand or a wrong operation.
- `with_errors` (`carried`): whole solutions, with the error carried through all that depends on it, in eight kinds.

The `note` of a wrong step's judgement names the kind of error.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from stepmark.labels.carried import KINDS, with_errors
from stepmark.labels.slips import FORMULA, NUMBER, alterable, another, compute, plain, replace_number, slip
from stepmark.problems.gsm8k import Worked
from stepmark.records import Judgement, LabelledSolution, Solution, Step

__all__ = ["KINDS", "compute", "exact_labels", "plain", "with_errors", "wrong_copy"]


def exact_labels(worked: Worked, rng: random.Random) -> Iterator[LabelledSolution]:
    """The worked solution with every step right, and for each step one copy in which that step is wrong.

    Args:
        worked: the solution; a line whose marked calculation does not come out, or that has none, gets no
            wrong copy.
        rng: chooses the errors.

    Yields:
        For each step k, first the solution up to k with k judged right, then, where one can be made, with k
        altered and judged wrong. The last step is the answer, "The answer is …".
    """
    right = [plain(line) for line in worked.lines]
    style = "\n".join(right)
    answer = worked.problem.answer
    assert answer is not None
    for k, line in enumerate(worked.lines):
        yield _labelled(worked, right[:k], right[k], None)
        wrong = _wrong(line, rng, style)
        if wrong is not None:
            yield _labelled(worked, right[:k], *wrong)
    yield _labelled(worked, right, f"The answer is {answer}.", None)
    value = compute(answer)
    if value is not None and NUMBER.fullmatch(answer.removeprefix("-")):
        altered = replace_number("", answer, value, another(value, rng), style)
        yield _labelled(worked, right, f"The answer is {altered}.", "value")


def _labelled(worked: Worked, before: list[str], last: str, error: str | None) -> LabelledSolution:
    judgement = Judgement(kind="correctness", judge="exact", rating=1 if error is None else -1, note=error)
    return LabelledSolution(
        solution=Solution(
            problem=worked.problem, steps=tuple(Step(text=t) for t in (*before, last)), id=worked.problem.id
        ),
        judgements=(*((),) * len(before), (judgement,)),
    )


def wrong_copy(line: str, rng: random.Random, *, style: str | None = None) -> str | None:
    """A worked line made wrong in one of its calculations; None if none of them can be altered surely.

    A calculation can be altered if its result follows it as the next number. The altered result is never the right one, and it
    replaces every mention of the right one after the calculation in that line, as a solver's slip would. It is written as the right
    one was, and a whole one stays whole: neither decimals nor commas tell the copy from the original.

    Args:
        line: with its calculations still marked.
        rng: chooses the error.
        style: text that shows whether commas part thousands and which sign stands for times; None for the line.
    """
    wrong = _wrong(line, rng, plain(line) if style is None else style)
    return None if wrong is None else wrong[0]


def _wrong(line: str, rng: random.Random, style: str) -> tuple[str, str] | None:
    """The wrong copy and the kind of its error."""
    found = [formula for formula in FORMULA.finditer(line) if alterable(formula)]
    if not found:
        return None
    formula = rng.choice(found)
    made = slip(formula, rng.choice(("value", "value", "operand", "operation")), rng, style)
    if made is None:
        return None
    value = compute(formula[1])
    assert value is not None
    after = plain(line[formula.end() :])
    if made.value != value:
        after = replace_number(made.before, after, value, made.value, style)
    return made.before + after, made.kind
