"""Step labels made by rollouts, as cases: ours, openr's trees (nested and flat) and Math-Shepherd's rows.

The shapes are read by `stepmark.solutions.interchange`. Where a share's number of rollouts is not known, of it only
whether any succeeded becomes a label here, as Math-Shepherd's hard labels have it: a rating 1 or -1 of kind "value".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stepmark.evaluation.cases import Case, unique
from stepmark.records import Judgement, LabelledSolution
from stepmark.solutions.interchange import labels, math_shepherd, openr
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading
from stepmark.store import Columns, Row, Source, read_rows

JUDGE = openr.JUDGE
"""Who judged, in the judgements of these cases."""


def read_openr(
    files: Sequence[Source], *, trials: int | None = None, columns: Columns | None = None
) -> list[Case]:
    """Every path of openr's trees as a case (`stepmark.solutions.interchange.openr`). Ids are NAME:LINE/NUMBER.

    Args:
        files: of either layout, as `store.read_rows` takes them.
        trials: rollouts that each share was estimated with, which the files do not say. None: only whether any
            succeeded is taken from a share, and the share stands in the judgement's note.
        columns: as `store.read_rows`.

    Raises:
        InputError: with the place: another format, a share out of [0, 1] or no multiple of 1 / trials.
        UsageError: `trials` is not positive.
    """
    return unique(
        case for file in files for case in openr_cases(read_rows(file, columns=columns), trials=trials)
    )


def openr_cases(rows: Iterable[Row], trials: int | None = None) -> Iterator[Case]:
    """The cases of one file; see `read_openr`."""
    settings, losses = Reading(trials=trials), Losses()
    for raw in rows:
        for row in openr.read(raw, settings, losses):
            yield _case(row, group="openr")


def read_math_shepherd(files: Sequence[Source]) -> list[Case]:
    """Math-Shepherd's rows (`stepmark.solutions.interchange.math_shepherd`). The group is the task.

    Raises:
        InputError: with the place, as that module says.
    """
    return unique(case for file in files for case in math_shepherd_cases(read_rows(file)))


def math_shepherd_cases(rows: Iterable[Row]) -> Iterator[Case]:
    """The cases of one file; see `read_math_shepherd`."""
    settings, losses = Reading(), Losses()
    for raw in rows:
        for row in math_shepherd.read(raw, settings, losses):
            yield _case(row, group=row.solution.problem.source or "", answer=row.meta.get("answer"))


def read_labels(files: Sequence[Source]) -> list[Case]:
    """Rows of `stepmark-labels`, as `stepmark label` and `stepmark convert` write them, with all their judgements.

    Raises:
        InputError: with the place, as `stepmark.solutions.interchange.labels` says.
    """
    return unique(case for file in files for case in labels_cases(read_rows(file)))


def labels_cases(rows: Iterable[Row]) -> Iterator[Case]:
    """The cases of one file; see `read_labels`."""
    for row in map(labels.from_row, rows):
        yield Case(
            id=row.solution.id or row.where,
            labelled=row.labelled,
            where=row.where,
            group=row.solution.problem.source or "",
            outcome=row.outcome,
            policy=row.solution.source,
        )


def _case(row: LabelledRow, *, group: str, answer: str | None = None) -> Case:
    return Case(
        id=row.solution.id or row.origin,
        labelled=_hard(row.labelled),
        where=row.where,
        group=group,
        outcome=row.outcome,
        answer=answer,
    )


def _hard(labelled: LabelledSolution) -> LabelledSolution:
    return replace(labelled, judgements=tuple(_any(step) for step in labelled.judgements))


def _any(step: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
    shares = [judgement.share for judgement in step if judgement.share is not None]
    if not shares:
        return step
    said = " and ".join(f"{share:g}" for share in shares)
    return (
        Judgement(
            kind="value",
            judge=step[0].judge,
            rating=1 if any(shares) else -1,
            note=f"share of rollouts that succeeded: {said}",
        ),
    )
