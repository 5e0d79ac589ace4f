"""Changes and marks as plain data: what the page sends and is sent, and what the log keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stepmark.annotation.marks import Change, Marks, item_first
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
