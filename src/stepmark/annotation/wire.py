"""Changes and marks as plain data: what the page sends and is sent, and what the log keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from stepmark.annotation.marks import Change, Marks, item_first, marks_of_first_error
from stepmark.errors import InputError
from stepmark.records import read_record


def read_change(data: Mapping[str, Any], *, where: str | None = None) -> Change:
    """A change from plain data, as a page sends it and `change_data` writes it: strictly, unknown keys refused.

    Raises:
        InputError: a field is missing, unknown or of a wrong type; the error names it.
    """
    # A literal type compares with ==, so that JSON's `true` and `1.0` would pass as 1.
    rating = data.get("rating")
    if rating is not None and type(rating) is not int:
        raise InputError(f"Change: expected -1, 0, 1 or null, found {rating!r}", where=where, field="rating")
    return read_record(Change, data, where=where)


def change_data(change: Change) -> dict[str, Any]:
    """A change as plain data, without the fields that say nothing."""
    return {
        field.name: value for field in fields(change) if (value := getattr(change, field.name)) is not None
    }


def marks_data(marks: Marks) -> dict[str, Any]:
    """Marks as plain data for JSON: sets as sorted lists (the item's own first), all fields present."""
    return {
        "mode": marks.mode,
        "steps": marks.steps,
        "first_error": marks.first_error,
        "ratings": list(marks.ratings),
        "unsure": sorted(marks.unsure, key=item_first),
        "notes": [list(note) for note in marks.notes],
        "error_types": [list(entry) for entry in marks.error_types],
        "verified": sorted(marks.verified),
        "submitted": marks.submitted,
    }


def read_marks(data: Mapping[str, Any], *, where: str | None = None) -> Marks:
    """Marks from what `marks_data` wrote, or from a part of it: `mode` and `steps` are needed, and in mode `first_error` the ratings follow
    from `first_error`.

    Raises:
        InputError: another shape, a step that is not there, ratings of another number of steps; the error names the field.
    """
    marks = read_record(Marks, data, where=where)
    for rating in data.get("ratings", ()):
        if rating is not None and type(rating) is not int:
            raise InputError(
                f"Marks: expected -1, 0, 1 or null, found {rating!r}", where=where, field="ratings"
            )
    if marks.steps < 1:
        raise InputError(
            f"Marks: expected at least one step, found {marks.steps}", where=where, field="steps"
        )
    steps = range(marks.steps)
    if marks.mode == "first_error":
        made = marks_of_first_error(marks.first_error, marks.steps)
        if marks.ratings not in ((), made.ratings):
            raise InputError("Marks: the ratings are not those of first_error", where=where, field="ratings")
        marks = replace(marks, ratings=made.ratings)
    elif marks.first_error is not None or len(marks.ratings) != marks.steps:
        raise InputError(
            f"Marks: expected {marks.steps} ratings and no first_error in mode per_step, found "
            f"{len(marks.ratings)} and {marks.first_error}",
            where=where,
            field="ratings" if marks.first_error is None else "first_error",
        )
    for name, found in (
        ("unsure", marks.unsure - {None}),
        ("notes", {step for step, _ in marks.notes} - {None}),
        ("error_types", {step for step, _ in marks.error_types}),
        ("verified", marks.verified),
    ):
        beyond = [step for step in found if step not in steps]
        if beyond:
            raise InputError(
                f"Marks: expected steps from 0 to {marks.steps - 1}, found {beyond[0]}",
                where=where,
                field=name,
            )
    return marks
