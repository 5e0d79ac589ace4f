"""TRL's stepwise rows: `prompt`, `completions`, `labels`.

Labels are true or false, or floats, which are shares of rollouts. Written rows have `id`, `answer`, `source`, `problem_id`, `problem_source` and `meta`
too; the reader takes them back. The format has no word for a step that was not judged, so a row is cut before its first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.formats.rows import Counts, Format, LabelledRow, Reading, Writing, each
from stepmark.data.reading import Row
from stepmark.data.solutions import read_solution, step_labels
from stepmark.records import Judgement, LabelledSolution

KEYS = ("prompt", "completions")


def read(row: Row, _settings: Reading, _counts: Counts) -> Iterator[LabelledRow]:
    """One row of TRL; without labels its steps are not judged."""
    read = read_solution(row.data, where=row.where)
    labels = step_labels(row.data) or []
    meta = rows.origin(row, "trl", read.columns)
    shares = any(isinstance(label, float) for label in labels)
    judge, kind = rows.judge_and_kind(meta, "TRL", "value" if shares else "correctness")
    judgements: list[tuple[Judgement, ...]] = []
    for number, label in enumerate(labels):
        if not 0 <= label <= 1:
            raise row.error(f"label {number} (0-based): expected 0 to 1, found {label!r}", "labels")
        if shares:
            judgements.append((Judgement(kind=kind, judge=judge, share=float(label)),))
        else:
            judgements.append((Judgement(kind=kind, judge=judge, rating=1 if label else -1),))
    solution = rows.restored(replace(read.solution, id=read.solution.id or row.place), meta)
    labelled = LabelledSolution(
        solution=solution, judgements=tuple(judgements) or ((),) * len(solution.steps)
    )
    yield LabelledRow(labelled=labelled, where=row.where, outcome=rows.outcome_of(meta), meta=meta)


def write(row: LabelledRow, settings: Writing) -> Iterator[dict[str, Any]]:
    """One row of TRL: floats where a label is a share, else true and false."""
    labels = rows.until_unjudged(rows.soft(row, settings), row, "TRL")
    values: list[bool | float] = [label.rating == 1 for label in labels]
    if any(label.share is not None for label in labels):
        values = [float(label.rating == 1) if label.share is None else label.share for label in labels]
    yield {
        "prompt": row.solution.problem.text,
        "completions": list(row.solution.texts)[: len(labels)],
        "labels": values,
        **rows.solution_fields(row.solution),
        "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=rows.RECORD_FIELDS),
    }


FORMAT = Format(
    name="trl",
    about="TRL: prompt, completions, labels",
    sniff=lambda row: all(key in row for key in KEYS) or step_labels(row) is not None,
    read=read,
    write=each(write),
)
