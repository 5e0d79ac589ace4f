"""ProcessBench, read and written, and PRMBench, read.

ProcessBench (Zheng et al. 2024) says where the first wrong step is; of the steps after it there is no label. A row is written only where the
judgements tell its first error and it is known whether the final answer is right.

PRMBench (Song et al. 2025) says of every step whether it is wrong (`error_steps`, 1-based). The numbers of its steps ("3. ") are layout. An error
step past the last says nothing, as in the benchmark's own loader, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.formats.math_shepherd import UNKNOWN
from stepmark.data.formats.rows import (
    LabelledRow,
    Losses,
    NotRepresentableError,
    Reading,
    StepLabel,
    Writing,
)
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.data.solutions import PROCESSBENCH_KEYS, read_solution, text_of, texts_of
from stepmark.records import LabelledSolution, Problem, Solution, Step

__all__ = [
    "PRMBENCH_KEYS",
    "PROCESSBENCH_KEYS",
    "prmbench_labelled",
    "read_prmbench",
    "read_processbench",
    "unnumbered",
    "write_processbench",
]

PRMBENCH_KEYS = ("idx", "classification", "modified_question", "modified_process", "error_steps")
_NUMBER_DIGITS = 5


def read_processbench(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row of ProcessBench."""
    rows.need(row, PROCESSBENCH_KEYS, "ProcessBench")
    read = read_solution(row.data, where=row.where)
    solution, first = read.solution, row.data["label"]
    steps = len(solution.steps)
    judged = steps if first == -1 else first + 1
    judgements = rows.signed((step != first for step in range(judged)), "human", "correctness")
    source = None if solution.source == UNKNOWN else solution.source
    yield LabelledRow(
        labelled=LabelledSolution(
            solution=replace(solution, source=source), judgements=judgements + ((),) * (steps - judged)
        ),
        where=row.where,
        outcome=row.data["final_answer_correct"],
        meta=rows.origin(row, "processbench", read.columns),
    )


def write_processbench(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One row of ProcessBench."""
    labels = rows.two_way(row, settings, losses)
    first = _first_error(labels)
    if row.outcome is None:
        raise NotRepresentableError(
            "whether the final answer is right is not known, and ProcessBench needs it (final_answer_correct)"
        )
    if first != -1:
        later = sum(label is not None for label in labels[first + 1 :])
        losses.lose("judgements after the first error are left out", row.where, later)
    rows.lose_fields(row, losses, "ProcessBench", held=("id", "source", "outcome"))
    yield {
        "id": row.solution.id or row.origin,
        "generator": row.solution.source or UNKNOWN,
        "problem": row.solution.problem.text,
        "steps": rows.plain_texts(row, losses),
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
    """One row of PRMBench; the id is CLASSIFICATION_IDX."""
    rows.need(row, PRMBENCH_KEYS, "PRMBench")
    steps = tuple(unnumbered(text) for text in texts_of(row.data, "modified_process", row.where))
    labelled = prmbench_labelled(row, steps)
    beyond = sum(number > len(steps) for number in row.data["error_steps"])
    losses.lose("an error step past the last step says nothing", row.where, beyond)
    columns, known = rows.other_columns(row, PRMBENCH_KEYS), row.data["classification"]
    meta = rows.origin(row, "prmbench", columns, None, classification=known)
    yield LabelledRow(labelled=labelled, where=row.where, meta=meta)


def prmbench_labelled(row: Row, steps: tuple[Step, ...]) -> LabelledSolution:
    """What a row of PRMBench says of its steps (those of `modified_process`), every one of which is judged."""
    wrong = row.data["error_steps"]
    if not isinstance(wrong, list):
        raise row.error(f"expected a list of 1-based step numbers, found {json_type(wrong)}", "error_steps")
    for number in wrong:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise row.error(f"expected 1-based step numbers, found {number!r}", "error_steps")
    kind, index = text_of(row.data, "classification", row.where), text_of(row.data, "idx", row.where)
    problem = Problem(text=text_of(row.data, "modified_question", row.where), id=index, source="PRMBench")
    return LabelledSolution(
        solution=Solution(problem=problem, steps=steps, id=f"{kind}_{index}"),
        judgements=rows.signed((n not in wrong for n in range(1, len(steps) + 1)), "PRMBench", "correctness"),
    )


def unnumbered(step: str) -> Step:
    """A step of PRMBench, its number ("3. ") as layout: up to five digits and a full stop, as in the benchmark's own script."""
    number, dot, rest = step.partition(". ")
    if not dot or not number.strip().isdigit() or len(number.strip()) > _NUMBER_DIGITS or not rest.strip():
        return Step(text=step)
    return Step(text=rest, lead=number + dot)
