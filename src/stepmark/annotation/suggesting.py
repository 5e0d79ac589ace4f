"""Pre-labels: what machines say of the items' steps, put beside them as `Suggestion`s.

From a PRM (`from_prm`), from a file of `stepmark grade` or of an evaluation's scores (`from_scores`), or from labels by rollout, judge or people in
any format that `stepmark convert` reads (`from_labels`). Rows of a file are joined to items by id, else by the text of the problem and the steps.
A row of an item's id with other steps is refused: its numbers are of another solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepmark.annotation.items import Item
from stepmark.models.prm import PRM


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """Items with suggestions, and those for which there are none."""

    items: tuple[Item, ...]
    """All of them, in their order; `suggestions` replaced, except of those in `without`, which are as they were."""
    without: tuple[tuple[str, str], ...]
    """(item, why): no row in the file, refused by the PRM."""
    threshold: float | None
    """Under which a score is an error; None where there is none (labels)."""


def from_prm(items: Sequence[Item], prm: PRM | str, *, threshold: float | None = None) -> Suggested:
    """Grade all items: each step gets a rating by the PRM's own threshold, and its score where that is a probability.

    Args:
        items: those of one problem are cheapest when they stand together.
        prm: one, or a name for `load_prm`; needs the extra `local`.
        threshold: instead of the PRM's own.

    Raises:
        UsageError, CheckpointError, MissingExtraError, BackendError: as loading and grading do.
        InputError: the PRM could read none of the items.
    """
    raise NotImplementedError


def from_scores(items: Sequence[Item], path: str | Path, *, threshold: float | None = None) -> Suggested:
    """Read a file of `stepmark grade`, or rows `{"id", "scores": […]}` with optional `prm`, `threshold`, `score_kind`, `critiques`.

    Raises:
        InputError: with `FILE:LINE`: a row of an item with other steps or another number of scores, a score out of range, two rows of one
            item that differ, no row of any item.
    """
    raise NotImplementedError


def from_labels(items: Sequence[Item], path: str | Path, *, judge: str | None = None) -> Suggested:
    """Read labels in any format that `stepmark convert` reads.

    Args:
        items: to join to.
        path: the file.
        judge: whose judgements, where a step has several; None: the newest (last) one of each step.

    Raises:
        InputError: as `from_scores`.
    """
    raise NotImplementedError


def suggest(items: Sequence[Item], source: str) -> Suggested:
    """From a file (scores or labels, told by its first row) where `source` is one, else from a PRM of that name."""
    raise NotImplementedError
