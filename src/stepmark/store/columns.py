"""The names of columns: those that a caller gives (`--columns`), and the rows under our names that follow.

`columns` says which column of a source holds what: `{"problem": "question"}` reads the column `question` as `problem`. A name that
begins with "meta." puts a column under `meta`: `{"meta.steps": "steps"}`. A column that is not named keeps its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stepmark.errors import InputError, UsageError
from stepmark.store.json_rows import json_type

Columns = Mapping[str, str]
"""Our name: the column of the source."""

META = "meta."
"""Begins the name of a column that rides along under `meta`."""


def parse_columns(text: str) -> dict[str, str]:
    """Read `--columns`: "problem=question,solution=response".

    Raises:
        UsageError: no pair of names, or a name twice.
    """
    columns: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if not (name and equals and column):
            raise UsageError(
                f"--columns {text}: expected NAME=COLUMN, as in problem=question,solution=response; found {pair!r}"
            )
        if name in columns:
            raise UsageError(f"--columns {text}: {name!r} stands twice; expected once")
        columns[name] = column
    return columns


def check_columns(columns: Columns, found: Iterable[str]) -> None:
    """Refuse a name for a column that is not there.

    Args:
        columns: as the caller gave them.
        found: the columns of the source.

    Raises:
        InputError: it lists the columns that are there.
    """
    found = list(found)
    for name, column in columns.items():
        if column not in found:
            raise InputError(
                f"there is no column {column!r}, which is to be read as {name!r} (columns); "
                f"found {', '.join(map(repr, found)) or 'none'}",
                field=column,
            )


def under_our_names(row: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """A row with its columns renamed as the caller says; a column whose name another one takes moves under `meta`.

    Raises:
        InputError: `meta` is no object, and something is to move there.
    """
    if not columns:
        return row
    named = {column: name for name, column in columns.items()}
    data: dict[str, Any] = {}
    aside: dict[str, Any] = {}
    for column, value in row.items():
        name = named.get(column)
        if name is not None and not name.startswith(META):
            data[name] = value
        elif name is not None:
            aside[name.removeprefix(META)] = value
        elif column in columns:  # its name is another column's now
            aside[column] = value
        else:
            data[column] = value
    if aside:
        meta = data.get("meta")
        if not isinstance(meta, dict | None):
            raise InputError(f"expected an object, found {json_type(meta)}", field="meta")
        data["meta"] = {**(meta or {}), **aside}
    return data
