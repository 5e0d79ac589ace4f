"""ProcessBench, read and written, and PRMBench, read.

ProcessBench (Zheng et al. 2024) says where the first wrong step is: the steps before it are right, and of those after it
there is no label. Its rows have exactly `id`, `generator`, `problem`, `steps`, `final_answer_correct` and `label`, and no place
for provenance. A row is written only where the judgements tell its first error and it is known whether the final answer
is right; nothing is assumed.

PRMBench (Song et al. 2025) says of every step whether it is wrong (`error_steps`, 1-based). The numbers of its steps ("3. ")
are layout. An error step past the last says nothing, as in the benchmark's own loader, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.solutions.formats import read_solution
from stepmark.solutions.interchange.math_shepherd import UNKNOWN
from stepmark.solutions.interchange.one_label import StepLabel, two_way
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    Writing,
    lose_rest,
    need,
    origin,
    other_columns,
    plain_texts,
    text_of,
    texts_of,
)
from stepmark.store import Row, json_type

PROCESSBENCH_KEYS = ("id", "generator", "problem", "steps", "final_answer_correct", "label")
PRMBENCH_KEYS = ("idx", "classification", "modified_question", "modified_process", "error_steps")
JUDGE = "human"
"""Who judged ProcessBench."""
_NUMBER_DIGITS = 5


def read_processbench(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row of ProcessBench.

    Raises:
        InputError: with `FILE:LINE`: another format, a label outside -1 … steps - 1, a blank step.
    """
    need(row, PROCESSBENCH_KEYS, "ProcessBench")
    read = read_solution(row.data, where=row.where)
    solution = read.solution
    first: int = row.data["label"]
    source = None if solution.source == UNKNOWN else solution.source
    solution = replace(solution, source=source)
    judged = len(solution.steps) if first == -1 else first + 1
    yield LabelledRow(
        labelled=LabelledSolution(
            solution=solution,
            judgements=tuple(
                (Judgement(kind="correctness", judge=JUDGE, rating=-1 if step == first else 1),)
                if step < judged
                else ()
                for step in range(len(solution.steps))
            ),
        ),
        where=row.where,
        outcome=row.data["final_answer_correct"],
        meta=origin(row, "processbench", read.columns),
    )


def write_processbench(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One row of ProcessBench.

    Raises:
        InputError: as `one_label.two_way`.
        NotRepresentableError: a step before any error was not judged, or nobody says whether the final answer is right.
    """
    labels = two_way(row, settings, losses)
    first = _first_error(labels)
    if row.outcome is None:
        raise NotRepresentableError(
            "nobody says whether the final answer is right, which ProcessBench wants (final_answer_correct)"
        )
    if first != -1:
        later = [label for label in labels[first + 1 :] if label is not None]
        losses.lose("judgements after the first error are left out", row.where, len(later))
    solution = row.solution
    lose_rest(row, losses, "ProcessBench", held=("id", "source", "outcome"))
    yield {
        "id": solution.id or row.origin,
        "generator": solution.source or UNKNOWN,
        "problem": solution.problem.text,
        "steps": plain_texts(row, losses),
        "final_answer_correct": row.outcome,
        "label": first,
    }


def _first_error(labels: Sequence[StepLabel | None]) -> int:
    for step, label in enumerate(labels):
        if label is None:
            raise NotRepresentableError(
                "the first error is not known: a step before any error was not judged"
            )
        if label.rating == -1:
            return step
    return -1


def read_prmbench(row: Row, _settings: Reading, losses: Losses) -> Iterator[LabelledRow]:
    """One row of PRMBench; the id is CLASSIFICATION_IDX.

    Raises:
        InputError: with `FILE:LINE`: another format, an error step under 1, no steps, a blank step.
    """
    need(row, PRMBENCH_KEYS, "PRMBench")
    steps = tuple(unnumbered(text) for text in texts_of(row, "modified_process"))
    labelled = prmbench_labelled(row, steps)
    beyond = [number for number in row.data["error_steps"] if number > len(steps)]
    losses.lose("an error step past the last step says nothing", row.where, len(beyond))
    yield LabelledRow(
        labelled=labelled,
        where=row.where,
        meta=origin(
            row,
            "prmbench",
            other_columns(row, PRMBENCH_KEYS),
            None,
            classification=row.data["classification"],
        ),
    )


def prmbench_labelled(row: Row, steps: tuple[Step, ...]) -> LabelledSolution:
    """What a row of PRMBench says of its steps, every one of which is judged; the id is CLASSIFICATION_IDX.

    Args:
        row: has the keys of PRMBench.
        steps: of `modified_process`.

    Raises:
        InputError: with `FILE:LINE`: an error step under 1, or a text that is none.
    """
    wrong = row.data["error_steps"]
    if not isinstance(wrong, list):
        raise InputError(
            f"expected a list of 1-based step numbers, found {json_type(wrong)}",
            where=row.where,
            field="error_steps",
        )
    for number in wrong:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(
                f"expected 1-based step numbers, found {number!r}", where=row.where, field="error_steps"
            )
    kind, index = text_of(row, "classification"), text_of(row, "idx")
    return LabelledSolution(
        solution=Solution(
            problem=Problem(text=text_of(row, "modified_question"), id=index, source="PRMBench"),
            steps=steps,
            id=f"{kind}_{index}",
        ),
        judgements=tuple(
            (Judgement(kind="correctness", judge="PRMBench", rating=-1 if number in wrong else 1),)
            for number in range(1, len(steps) + 1)
        ),
    )


def unnumbered(step: str) -> Step:
    """A step of PRMBench, its number ("3. ") as layout: up to five characters and a full stop, as in the benchmark's own script."""
    number, dot, rest = step.partition(". ")
    if not dot or not number.strip().isdigit() or len(number.strip()) > _NUMBER_DIGITS or not rest.strip():
        return Step(text=step)
    return Step(text=rest, lead=number + dot)
