"""TRL's stepwise rows: `prompt`, `completions`, `labels`; soft labels stay floats.

Labels of a row are true or false (or 1 and 0), or floats, which are shares of rollouts. TRL's own collator makes an integer of
each label, so 0.9 trains as 0 there: write hard labels (`hard`) for it. A row whose labels were shares has floats
throughout, and one whose labels were ratings true and false, so that reading tells them apart.

Written rows have `id`, `answer`, `source`, `problem_id`, `problem_source` and `meta` {`from`, `judge`, `kind`, `outcome`, ...} too; the
reader takes them back. Rows of `problem`, `steps` and `labels` are read the same. The format has no word for a step that was not judged, so a row is cut before its first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution
from stepmark.solutions.formats import read_solution, step_labels
from stepmark.solutions.interchange.math_shepherd import judge_and_kind
from stepmark.solutions.interchange.one_label import soft, until_unjudged
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

JUDGE = "TRL"
"""Who judged, where the row does not say."""
KEYS = ("prompt", "completions")


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """One row; without labels its steps are not judged.

    Raises:
        InputError: with `FILE:LINE`: as `solutions.formats` says, a label outside [0, 1].
    """
    read_row = read_solution(row.data, where=row.where)
    labels = step_labels(row.data) or []
    meta = origin(row, "trl", read_row.columns)
    soft_labels = any(isinstance(label, float) for label in labels)
    judge, kind = judge_and_kind(meta, JUDGE, "value" if soft_labels else "correctness")
    judgements: list[tuple[Judgement, ...]] = []
    for number, label in enumerate(labels):
        if not 0 <= label <= 1:
            raise InputError(
                f"label {number} (0-based): expected 0 to 1, found {label!r}", where=row.where, field="labels"
            )
        judgements.append(
            (
                Judgement(kind=kind, judge=judge, share=float(label))
                if soft_labels
                else Judgement(kind=kind, judge=judge, rating=1 if label else -1),
            )
        )
    solution = replace(read_row.solution, id=read_row.solution.id or row.place)
    solution = restored(solution, meta)
    yield LabelledRow(
        labelled=LabelledSolution(
            solution=solution, judgements=tuple(judgements) or ((),) * len(solution.steps)
        ),
        where=row.where,
        outcome=outcome_told(meta),
        meta=meta,
    )


def write(row: LabelledRow, settings: Writing, losses: Losses) -> Iterator[dict[str, Any]]:
    """One row.

    Raises:
        InputError: as `one_label.soft`.
        NotRepresentableError: the first step was not judged.
    """
    labels = until_unjudged(soft(row, settings, losses), row, losses, "TRL")
    values: list[bool | float]
    if any(label.share is not None for label in labels):
        values = [float(label.rating == 1) if label.share is None else label.share for label in labels]
    else:
        values = [label.rating == 1 for label in labels]
    solution = row.solution
    yield {
        "prompt": solution.problem.text,
        "completions": plain_texts(row, losses)[: len(labels)],
        "labels": values,
        "id": solution.id,
        "answer": solution.problem.answer,
        "source": solution.source,
        **problem_fields(solution),
        "meta": told(row, labels[0].judge, labels[0].kind, held=HELD),
    }
