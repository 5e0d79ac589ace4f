"""Rows of plain texts: solutions without labels, chat messages, and TRL's stepwise rows, in the shapes of `data.solutions`.

Written rows have `id`, `answer`, `source`, `problem_id`, `problem_source` and `meta` too; the readers take them back. TRL's labels are true or
false, or floats, which are shares of rollouts. The format has no word for a step that was not judged, so a row is cut before its first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.formats.rows import LabelledRow, Losses, Reader, Reading, Writing
from stepmark.data.reading import Row
from stepmark.data.solutions import read_solution, solutions_of, step_labels
from stepmark.records import Judgement, LabelledSolution, Solution

TRL_KEYS = ("prompt", "completions")


def _read(row: Row, settings: Reading, format: str) -> Iterator[LabelledRow]:
    for read in solutions_of(row, how=settings.how, marker=settings.marker, reasoning=settings.reasoning):
        meta = rows.origin(row, format, read.columns, read.own_meta)
        solution = rows.restored(replace(read.solution, id=read.solution.id or row.place), meta)
        labelled = LabelledSolution(solution=solution, judgements=((),) * len(solution.steps))
        yield LabelledRow(
            labelled=labelled,
            where=read.where,
            outcome=rows.outcome_of(meta),
            meta=meta,
            messages=read.messages if settings.reasoning == "keep" else None,
        )


def read_solutions(row: Row, settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """A row of `problem` with `steps`, `solution` or `solutions`, or their common names."""
    return _read(row, settings, "solutions")


def chat_reader(format: str) -> Reader:
    """A reader of rows of OpenAI chat `messages` (`data.conversations`), or of what `data.traces` made such rows of."""
    return lambda row, settings, _losses: _read(row, settings, format)


def _fields(solution: Solution) -> dict[str, Any]:
    return {
        "id": solution.id,
        "answer": solution.problem.answer,
        "source": solution.source,
        **rows.problem_fields(solution),
    }


def write_solutions(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row of `problem` and `steps`; judgements are left out, and counted."""
    judged = sum(map(len, row.own.judgements)) + len(row.labelled.root)
    losses.lose("judgements are left out", row.where, judged)
    fields = _fields(row.solution)
    yield {
        "id": fields.pop("id") or row.origin,
        "problem": row.solution.problem.text,
        "steps": rows.plain_texts(row, losses),
        **fields,
        "meta": rows.written_meta(row, held=rows.RECORD_FIELDS),
    }


def read_trl(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
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


def write_trl(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One row of TRL: floats where a label is a share, else true and false."""
    labels = rows.until_unjudged(rows.soft(row, settings, losses), row, losses, "TRL")
    values: list[bool | float] = [label.rating == 1 for label in labels]
    if any(label.share is not None for label in labels):
        values = [float(label.rating == 1) if label.share is None else label.share for label in labels]
    yield {
        "prompt": row.solution.problem.text,
        "completions": rows.plain_texts(row, losses)[: len(labels)],
        "labels": values,
        **_fields(row.solution),
        "meta": rows.written_meta(row, labels[0].judge, labels[0].kind, held=rows.RECORD_FIELDS),
    }
