"""ProcessBench (Zheng et al. 2024) says where the first wrong step is; of the steps after it there is no label. A row is written only where the
judgements tell its first error and it is known whether the final answer is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.data.solutions import PROCESSBENCH_KEYS as KEYS
from stepmark.data.solutions import read_solution
from stepmark.records import LabelledSolution

ABOUT = "ProcessBench: the first wrong step"
sniff = rows.has(*KEYS)


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row of ProcessBench."""
    rows.need(row, KEYS, "ProcessBench")
    read = read_solution(row.data, where=row.where)
    solution, first = read.solution, row.data["label"]
    steps = len(solution.steps)
    judged = steps if first == -1 else first + 1
    judgements = rows.signed((step != first for step in range(judged)), "human", "correctness")
    if solution.source == rows.UNKNOWN:
        solution = replace(solution, source=None)
    yield rows.LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=judgements + ((),) * (steps - judged)),
        where=row.where,
        outcome=row.data["final_answer_correct"],
        meta=rows.origin(row, "processbench", read.columns),
    )


def write(row: rows.LabelledRow, settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """One row of ProcessBench."""
    labels = rows.labels_of(row, settings, neutral=False, shares=False)
    first = _first_error(labels)
    if row.outcome is None:
        raise rows.NotRepresentableError(
            "whether the final answer is right is not known, and ProcessBench needs it (final_answer_correct)"
        )
    yield {
        "id": row.solution.id or row.origin,
        "generator": row.solution.source or rows.UNKNOWN,
        "problem": row.solution.problem.text,
        "steps": list(row.solution.texts),
        "final_answer_correct": row.outcome,
        "label": first,
    }


def _first_error(labels: rows.Labels) -> int:
    for step, label in enumerate(labels):
        if label is None:
            raise rows.NotRepresentableError(
                "the first error is not known: a step before any error was not judged"
            )
        if label.rating == -1:
            return step
    return -1
