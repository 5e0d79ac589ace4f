"""Solutions without labels: `problem` and `steps`, `problem` and `solution`, or chat `messages`; steps are written.

These are the shapes that `stepmark grade` and `stepmark label` read (`solutions.formats`). Written rows have `id`, `answer`,
`source`, `problem_id`, `problem_source` and `meta` {`from`, `outcome`, ...} beside `problem` and `steps`; judgements are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.records import LabelledSolution
from stepmark.solutions.formats import solutions_of
from stepmark.solutions.interchange.rows import (
    HELD,
    LabelledRow,
    Losses,
    Reading,
    Writing,
    origin,
    outcome_told,
    plain_texts,
    problem_fields,
    restored,
    told,
)
from stepmark.store import Row


def _read(row: Row, settings: Reading, format: str) -> Iterator[LabelledRow]:
    for read in solutions_of(row, how=settings.how, marker=settings.marker):
        meta = origin(row, format, read.columns, read.own_meta)
        solution = restored(replace(read.solution, id=read.solution.id or row.place), meta)
        yield LabelledRow(
            labelled=LabelledSolution(solution=solution, judgements=((),) * len(solution.steps)),
            where=read.where,
            outcome=outcome_told(meta),
            meta=meta,
        )


def read_solutions(row: Row, settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """A row of `problem` with `steps`, `solution` or `solutions`, or their common names.

    Raises:
        InputError: with `FILE:LINE`, as `solutions.formats`.
    """
    return _read(row, settings, "solutions")


def read_chat(row: Row, settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """A row of OpenAI chat `messages`: an assistant's turn is a step (`solutions.inputs`).

    Raises:
        InputError: with `FILE:LINE`, as `solutions.inputs`.
    """
    return _read(row, settings, "chat")


def write_solutions(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row of `problem` and `steps`."""
    solution = row.solution
    judged = sum(map(len, row.own.judgements)) + len(row.labelled.root)
    losses.lose("judgements are left out", row.where, judged)
    yield {
        "id": solution.id or row.origin,
        "problem": solution.problem.text,
        "steps": plain_texts(row, losses),
        "answer": solution.problem.answer,
        "source": solution.source,
        **problem_fields(solution),
        "meta": told(row, held=HELD),
    }
