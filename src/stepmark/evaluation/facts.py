"""What the reports of several evaluations say in the same words: who could not be read, and a share with its interval."""

from __future__ import annotations

from stepmark.evaluation.result import Figure
from stepmark.evaluation.scores import Sheet
from stepmark.show.evaluation import Tile


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
