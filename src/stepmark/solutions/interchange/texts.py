"""Solutions without labels: `problem` and `steps`, `problem` and `solution`, or chat `messages`; steps are written.

These are the shapes that `stepmark grade` and `stepmark label` read (`solutions.formats`). Written rows have `id`, `answer`,
`source` and `meta` {`from`, `outcome`} beside `problem` and `steps`; judgements are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.records import LabelledSolution
from stepmark.solutions.formats import read_solution
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    Reading,
    Writing,
    origin,
    outcome_told,
    place,
    plain_texts,
    told,
)
from stepmark.store import Row


def _read(row: Row, settings: Reading, format: str) -> Iterator[LabelledRow]:
    solution = read_solution(row.data, where=row.where, how=settings.how, marker=settings.marker).solution
    solution = replace(solution, id=solution.id or place(row))
    meta = origin(row, format)
    yield LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=((),) * len(solution.steps)),
        where=row.where,
        outcome=outcome_told(meta),
        meta=meta,
    )


def read_solutions(row: Row, settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """A row of `problem` with `steps` or `solution`.

    Raises:
        InputError: with `FILE:LINE`, as `solutions.formats`.
    """
    return _read(row, settings, "solutions")


def read_chat(row: Row, settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """A row of OpenAI chat `messages`: an assistant's turn is a step (`solutions.traces`).

    Raises:
        InputError: with `FILE:LINE`, as `solutions.traces`.
    """
    return _read(row, settings, "chat")


def write_solutions(row: LabelledRow, _settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """A row of `problem` and `steps`."""
    solution = row.solution
    judged = sum(map(len, row.own.judgements))
    losses.lose("judgements are left out", row.where, judged)
    yield {
        "id": solution.id or row.origin,
        "problem": solution.problem.text,
        "steps": plain_texts(row, losses),
        "answer": solution.problem.answer,
        "source": solution.source,
        "meta": told(row),
    }
