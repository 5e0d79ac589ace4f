"""The rows that the training benchmark trains on: whole solutions with every step labelled, and PRM800K's branches.

Both as examples of the library, a fixed number for every problem, so that a step of one trainer holds the same rows as a step of the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.labels.exact import with_errors
from stepmark.problems.loading import Worked, read_gsm8k
from stepmark.records import Judgement, LabelledSolution, Solution, Step
from stepmark.training.examples import Example, LabelRules, examples, known_value

_OPENERS = (
    "",
    "So ",
    "Now ",
    "Then ",
    "Here ",
    "We see that ",
    "That means: ",
    "It follows that ",
    "From the problem, ",
    "In this case ",
)


def solutions(worked: Worked, count: int, rng: random.Random) -> Iterator[LabelledRow]:
    """Solutions of one problem with every step labelled, half of them right: the shape of Math-Shepherd's rows.

    Each step is numbered and begins with one of a few words drawn by chance, so that solutions part at their first steps, as sampled ones do;
    without that they would share far more than samples do. Steps after the first error are labelled wrong, as rollouts label them there.
    """
    pools: dict[bool, list[LabelledSolution]] = {True: [], False: []}
    for _ in range(max(1, count // 2)):
        for one in with_errors(worked, rng):
            pools[all(j.rating == 1 for step in one.judgements for j in step)].append(one)
    first = rng.randrange(2)
    for n in range(count):
        pool = pools[(n + first) % 2 == 0]
        if not pool:
            return
        one = pool[rng.randrange(len(pool))]
        steps, judgements, wrong = [], [], False
        for i, (text, judged) in enumerate(zip(one.solution.texts, one.judgements, strict=True), start=1):
            wrong = wrong or any(j.rating == -1 for j in judged)
            steps.append(Step(text=f"Step {i}: {rng.choice(_OPENERS)}{text}"))
            judgements.append((Judgement(kind="correctness", judge="benchmark", rating=-1 if wrong else 1),))
        made = Solution(problem=worked.problem, steps=tuple(steps), id=f"{worked.problem.id}#{n}")
        yield LabelledRow(
            labelled=LabelledSolution(solution=made, judgements=tuple(judgements)), where=str(made.id)
        )


def whole_solutions(file: Path, *, each: int, lines: int = 6, seed: int = 0) -> Iterator[list[Example]]:
    """For each problem of a GSM8K file with at least so many worked lines, `each` examples."""
    rng = random.Random(seed)
    for worked in read_gsm8k(file):
        if len(worked.lines) >= lines:
            made = list(solutions(worked, each, rng))
            found = examples(made, LabelRules(after_error="keep"))
            if len(found) == each and all(t is not None for e in found for t in e.targets):
                yield found


def branches(
    file: Path, *, each: int, most: int | None = None, fits: Callable[[Example], bool] = lambda row: True
) -> Iterator[list[Example]]:
    """For each problem of PRM800K with `each` to `most` rated completions, the first `each` of them that fit, each trained at its last step
    alone. The fewer are left out, the more a group is what the data set has of a problem."""
    for _, lines in groupby(read_labelled(str(file)), key=lambda row: row.solution.problem.text):
        rows = list(lines)
        if len(rows) < each:
            continue
        found = [e for e in examples(rows) if e.targets[-1] is not None and not any(e.targets[:-1])]
        if each <= len(found) and (most is None or len(found) <= most):
            short = list(islice(filter(fits, found), each))
            if len(short) == each:
                yield short


def for_trl(rows: Iterable[Example]) -> list[dict[str, Any]]:
    """The same rows in TRL's stepwise format. Steps without a target have to be trained on by nobody (`train_on_last_step_only`)."""
    return [
        {
            "prompt": row.solution.problem.text,
            "completions": list(row.solution.texts),
            "labels": [t is None or known_value(t) > 0.5 for t in row.targets],
        }
        for row in rows
    ]


def labels(rows: Sequence[Example]) -> int:
    """How many steps are labelled."""
    return sum(t is not None for row in rows for t in row.targets)
