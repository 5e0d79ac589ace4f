"""What annotators and adjudicators have said, as plain records: what exports, agreement and progress are made from."""

from __future__ import annotations

from dataclasses import dataclass

from stepmark.annotation.marks import Marks


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One annotator's marks on one item."""

    item: str
    account: str
    """The annotator's name."""
    marks: Marks
    first_pass: Marks | None = None
    """The marks at the first `submit`, before suggestions were shown; None when there was none yet or nothing changed since."""
    seconds: float = 0.0
    """Time on the item with the page in view, as the page reports it; capped by the clock between changes."""
    at: float | None = None
    """Unix time of the last change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What an adjudicator decided about an item that annotators disagree on."""

    item: str
    account: str
    """The adjudicator's name."""
    marks: Marks
    chosen: str | None = None
    """The annotator whose marks were taken over; None when they are the adjudicator's own."""
    reason: str = ""
    over: tuple[str, ...] = ()
    """The annotators whose answers were on the table."""
    at: float | None = None
    """Unix time."""
