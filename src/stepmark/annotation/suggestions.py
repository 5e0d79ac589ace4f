"""Suggestions beside items: a PRM's judgements of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepmark.annotation.items import Item, Suggestions, suggestions_of_scores
from stepmark.errors import InputError
from stepmark.models.prm import PRM
from stepmark.records import GradedSolution


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """Items with suggestions, and those for which there are none."""

    items: tuple[Item, ...]
    """All of them, in their order; `suggestions` replaced, except of those in `without`, which are as they were."""
    without: tuple[tuple[str, str], ...]
    """(item, why): refused by the PRM."""


def suggest(items: Sequence[Item], prm: PRM | str, *, threshold: float | None = None) -> Suggested:
    """Grade all items: each step gets a rating by the PRM's threshold (or `threshold`), and its score where that is a probability.

    Items of one problem are cheapest when they stand together. A PRM by name needs the extra `local`.

    Raises:
        UsageError, CheckpointError, MissingExtraError, BackendError: as loading and grading do.
        InputError: the PRM could read none of the items.
    """
    from stepmark.models.prm import Grade, grade

    if isinstance(prm, str):
        from stepmark.models.load import load_prm

        prm = load_prm(prm)
    suggestions: dict[str, Suggestions] = {}
    refused: dict[str, str] = {}
    settings = Grade(threshold=threshold).of(prm)
    results = grade((item.solution for item in items), prm, settings, keep_going=True)
    for item, result in zip(items, results, strict=True):
        if isinstance(result, GradedSolution):
            suggestions[item.id] = suggestions_of_scores(prm.name, result.step_scores, settings.threshold)
        else:
            refused[item.id] = result.error.message
    if not suggestions:
        why = "".join(f", the first because: {reason}" for reason in [*refused.values()][:1])
        raise InputError(f"{prm.name} can read no item (of {len(items):,}){why}")
    known = (replace(i, suggestions=suggestions[i.id]) if i.id in suggestions else i for i in items)
    return Suggested(items=tuple(known), without=tuple(refused.items()))
