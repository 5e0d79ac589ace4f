"""Rows of problems and solutions without labels, in the shapes of `data.solutions`; they are read only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.reading import Row
from stepmark.data.solutions import is_solution, solutions_of

ABOUT = "problems and steps without labels, as grade and label read them"


def sniff(data: Mapping[str, Any]) -> bool:
    """Whether a row is a problem and its solution."""
    return is_solution(data) or any(rows.has("problem", name)(data) for name in ("steps", "solution"))


def reader(format: str) -> rows.Reader:
    """A reader of such rows, or of rows of chat `messages`, that says which format they had."""

    def read(row: Row, settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
        for solution_row in solutions_of(
            row, how=settings.how, marker=settings.marker, reasoning=settings.reasoning
        ):
            meta = {"from": row.place, "format": format, **solution_row.own_meta}
            meta = rows.with_columns(meta, solution_row.columns)
            solution = replace(solution_row.solution, id=solution_row.solution.id or row.place)
            read = rows.labelled(row, solution, [()] * len(solution.steps), meta)
            messages = solution_row.messages if settings.reasoning == "keep" else None
            yield replace(read, where=solution_row.where, messages=messages)

    return read


read = reader("solutions")
