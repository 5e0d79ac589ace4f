"""Marks, changes and folded logs in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepmark.annotation.marks import Change, Folding, Marks, Mode, Rating, ratings_of
from stepmark.records import read_record


def marks_of_first_error(first_error: int | None, steps: int, *, submitted: bool = True) -> Marks:
    """Marks in mode `first_error`."""
    return Marks(
        mode="first_error",
        steps=steps,
        first_error=first_error,
        ratings=ratings_of(first_error, steps),
        submitted=submitted,
    )


def marks_of_ratings(ratings: Sequence[Rating | None], *, submitted: bool = True) -> Marks:
    """Marks in mode `per_step`."""
    return Marks(mode="per_step", steps=len(ratings), ratings=tuple(ratings), submitted=submitted)


def fold(mode: Mode, steps: int, changes: Iterable[Change], *, allow_neutral: bool = False) -> Marks:
    """Play a log from the start.

    Raises:
        InputError: a change that breaks the rules; the error names its place.
    """
    folding = Folding(mode, steps, allow_neutral=allow_neutral)
    for change in changes:
        folding.take(change)
    return folding.marks()


def read_change(data: Mapping[str, Any], *, where: str | None = None) -> Change:
    """A change from plain data, as a page sends it and `change_data` writes it: strictly, unknown keys refused.

    Raises:
        InputError: a field is missing, unknown or of a wrong type; the error names it.
    """
    return read_record(Change, data, where=where)
