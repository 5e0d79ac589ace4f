"""Solutions of a run as cards of its page."""

from __future__ import annotations

from collections.abc import Sequence

from stepmark.rl.watched import CELLS, Cell, Kept, Watched
from stepmark.show import colour
from stepmark.show.evaluation import Examples, Item
from stepmark.show.views import CardView, ProblemView, StepView

_TITLES: dict[Cell, str] = {
    "both": "Steps good, answer right",
    "lucky": "A bad step, answer right",
    "slipped": "Steps good, answer wrong",
    "neither": "A bad step, answer wrong",
}
_ORDER: tuple[Cell, ...] = ("slipped", "lucky", "both", "neither")
assert set(_ORDER) == set(CELLS)


def examples(rows: Sequence[Watched]) -> tuple[Item, ...]:
    """Those of the last evaluation, of the one with the first alarm, of the best and of the first one; each once."""
    best = next((row for row in reversed(rows) if row.best), None)
    alarm = next((row for row in rows if row.update == row.alarmed), None)
    chosen: dict[int, tuple[Watched, str]] = {}
    for row, why in (
        (rows[-1], "the last"),
        (alarm, "the alarm"),
        (best, "the best"),
        (rows[0], "the first"),
    ):
        if row is not None:
            chosen.setdefault(row.update, (row, why))
    return tuple(
        _group(row, cell, why) for row, why in chosen.values() for cell in _ORDER if row.examples.get(cell)
    )


def _group(row: Watched, cell: Cell, why: str) -> Examples:
    total = (
        "" if row.quadrants is None else f" {len(row.examples[cell]):,} of {getattr(row.quadrants, cell):,}."
    )
    return Examples(
        title=f"After update {row.update:,} ({why}): {_TITLES[cell].lower()}",
        problems=tuple(_problem(row, kept) for kept in row.examples[cell]),
        text=("Those that the PRM likes best." if cell == "slipped" else "Those that it likes least.")
        + total,
    )


def _problem(row: Watched, kept: Kept) -> ProblemView:
    reference = None if kept.reference is None else f"reference answer {kept.reference}"
    return ProblemView(
        number=1,
        text=kept.problem,
        note=" · ".join(part for part in (kept.id, reference) if part),
        cards=(_card(row, kept),),
    )


def _card(row: Watched, kept: Kept) -> CardView:
    known, kind = kept.scores, row.kind or "unbounded"
    weakest = None if known is None else min(known)
    found: int | None = None
    if known is not None and row.threshold is not None:
        found = next((at for at, score in enumerate(known) if score < row.threshold), -1)
    verdict = "right answer" if kept.right else "wrong answer"
    return CardView(
        number=1,
        title=verdict,
        note="no answer found" if kept.answer is None else f"answer read: {kept.answer}",
        kind=kind,
        threshold=row.threshold,
        score=weakest,
        aggregate="min",
        place=colour.position(weakest, kind, row.threshold),
        aggregates=(),
        first_error=found,
        steps=tuple(
            StepView(text=text, score=None if known is None else known[at])
            for at, text in enumerate(kept.steps)
        ),
    )
