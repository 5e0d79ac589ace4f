"""Rows of problems and solutions without labels, in the shapes of `data.solutions`; they are read only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.data.solutions import is_solution, solutions_of


def reader(format: str) -> rows.Reader:
    """A reader of such rows, or of rows of chat `messages`, that says which format they had."""

    def read(row: Row, settings: rows.Reading, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
        for one in solutions_of(row, how=settings.how, marker=settings.marker, reasoning=settings.reasoning):
            meta = rows.origin(row, format, one.columns, one.own_meta)
            solution = replace(one.solution, id=one.solution.id or row.place)
            read = rows.labelled(row, solution, [()] * len(solution.steps), meta)
            messages = one.messages if settings.reasoning == "keep" else None
            yield replace(read, where=one.where, messages=messages)

    return read


FORMAT = rows.Format(
    name="solutions",
    about="problems and steps without labels, as grade and label read them",
    sniff=lambda row: (
        is_solution(row) or rows.has("problem", "steps")(row) or rows.has("problem", "solution")(row)
    ),
    read=reader("solutions"),
)
