"""Branches of worked solutions that end at their first error: the default PRM's exact labels.

The errors are those of `stepmark.labels.exact`; here they are not carried any further.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from stepmark.labels.exact import (
    FORMULA,
    NUMBER,
    alterable,
    another,
    compute,
    plain,
    replace_number,
    slip,
)
from stepmark.problems.loading import Worked
from stepmark.records import Judgement, LabelledSolution, Solution, Step


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
        wrong = wrong_line(line, rng, style)
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


def wrong_line(line: str, rng: random.Random, style: str) -> tuple[str, str] | None:
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
