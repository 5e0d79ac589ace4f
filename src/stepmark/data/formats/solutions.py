"""Rows of problems and solutions without labels, in the shapes of `data.solutions`; they are read only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepmark.data.formats import rows
from stepmark.data.formats.rows import Counts, Format, LabelledRow, Reader, Reading, has
from stepmark.data.reading import Row
from stepmark.data.solutions import is_solution, solutions_of
from stepmark.records import LabelledSolution


def reader(format: str) -> Reader:
    """A reader of such rows, or of rows of chat `messages`, that says which format they had."""

    def read(row: Row, settings: Reading, _counts: Counts) -> Iterator[LabelledRow]:
        for one in solutions_of(row, how=settings.how, marker=settings.marker, reasoning=settings.reasoning):
            meta = rows.origin(row, format, one.columns, one.own_meta)
            solution = rows.restored(replace(one.solution, id=one.solution.id or row.place), meta)
            labelled = LabelledSolution(solution=solution, judgements=((),) * len(solution.steps))
            yield LabelledRow(
                labelled=labelled,
                where=one.where,
                outcome=rows.outcome_of(meta),
                meta=meta,
                messages=one.messages if settings.reasoning == "keep" else None,
            )

    return read


FORMAT = Format(
    name="solutions",
    about="problems and steps without labels, as grade and label read them",
    sniff=lambda row: is_solution(row) or has("problem", "steps")(row) or has("problem", "solution")(row),
    read=reader("solutions"),
)
