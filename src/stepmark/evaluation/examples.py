"""What several reports share: cases as cards, graded step by step with the truth beside them; who could not be read; a share with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.evaluation.result import Figure
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.aggregate import aggregate, allowed
from stepmark.records import StepScores
from stepmark.scoring.report import step_views
from stepmark.show import colour
from stepmark.show.evaluation import Tile
from stepmark.show.views import CardView, ProblemView

SHOWN = 6
"""Examples of each sort, unless told otherwise."""


def spread(rows: Sequence[CaseScores], count: int = SHOWN) -> list[CaseScores]:
    """At most `count` rows, evenly spaced over all of them, so that no one corner of the data is shown alone."""
    if len(rows) <= count:
        return list(rows)
    return [rows[at * len(rows) // count] for at in range(count)]


def card(
    row: CaseScores,
    *,
    how: str,
    threshold: float | None,
    found: int | None,
    note: str,
    number: int = 1,
) -> CardView:
    """One case as a card.

    Args:
        row: the case and its scores.
        how: the aggregate shown as its score.
        threshold: under it a step is an error.
        found: the 0-based first error that the PRM names; -1 for none; None for not known.
        note: the truth, in words.
        number: its place in the report.
    """
    steps = row.steps or StepScores(scores=row.scores, kind="unbounded")
    read = steps.scores[-1:] if how == "last" else steps.scores
    score = (
        aggregate(steps.scores, how, kind=steps.kind)
        if None not in read and how in allowed(steps.kind)
        else None
    )
    return CardView(
        number=number,
        title=row.case.id,
        note=" · ".join(part for part in (row.case.policy, note) if part),
        kind=steps.kind,
        threshold=threshold,
        score=score,
        aggregate=how,
        place=colour.aggregate_position(score, how, steps.kind, threshold),
        aggregates=(),
        first_error=found,
        steps=step_views(row.case.solution, steps),
    )


def problem(row: CaseScores, view: CardView) -> ProblemView:
    """A problem with that one card."""
    about = row.case.solution.problem
    answer = None if about.answer is None else f"reference answer {about.answer}"
    return ProblemView(
        number=view.number,
        text=about.text,
        note=" · ".join(part for part in (row.case.group, about.id, answer) if part),
        cards=(view,),
    )


def unreadable(sheet: Sheet, so: str = "") -> list[str]:
    """The sentence about the solutions that the PRM could not read, with the reason for the first; none where it read all.

    Args:
        sheet: the scores.
        so: what becomes of such solutions, such as "and are in no figure".
    """
    if not sheet.refused:
        return []
    first = sheet.refused[0]
    what = f"{len(sheet.refused):,} solutions could not be read{so and ' '}{so}"
    return [f"{what}, first {first.case.id}: {first.refused}"]


def percent_tile(label: str, figure: Figure) -> Tile:
    """A share of 1 in per cent, with its interval and the threshold that it rests on."""
    known = figure.low is not None and figure.high is not None
    interval = f"{_percent(figure.low)} to {_percent(figure.high)}; " if known else ""
    return Tile(label=label, value=_percent(figure.value), detail=f"{interval}threshold {figure.policy}")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
