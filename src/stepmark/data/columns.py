"""The names of columns: those that a caller gives (`columns`), and common ones that need no saying.

`columns` says which column of a source holds what: `{"problem": "question"}` reads the column `question` as `problem`. A name that
begins with "meta." puts a column under `meta`: `{"meta.steps": "steps"}`. A column that is not named keeps its name.

The common names of a field are in `ALIASES`; capitals, spaces and dashes do not count ("Ground Truth" is `ground_truth`). A column that
means nothing here rides along (`riding`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from stepmark.data.json_rows import json_type
from stepmark.errors import InputError, UsageError

Columns = Mapping[str, str]
"""Our name: the column of the source."""

META = "meta."
"""Begins the name of a column that rides along under `meta`."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "problem": ("question", "prompt", "query", "instruction"),
    "solution": ("response", "completion", "output", "generation", "model_response", "model_output"),
    "solutions": ("candidates", "responses", "completions"),
    "answer": (
        "ground_truth",
        "reference",
        "gold",
        "target",
        "expected_answer",
        "correct_answer",
        "reference_answer",
    ),
    "id": ("unique_id",),
}
"""Field: the other names that it has in data sets."""

SPARE: Mapping[str, tuple[str, ...]] = {
    "problem": ("input", "question_text", "problem_text"),
    "steps": ("reasoning_steps",),
    "solution": (
        "generated_solution",
        "generated_text",
        "prediction",
        "model_answer",
        "chain_of_thought",
        "cot",
        "rationale",
        "reasoning",
    ),
    "solutions": ("generations", "outputs", "samples", "predictions"),
}
"""Field: names of columns that hold it where a row has no other problem, or no other solution."""

CONTENT = ("steps", "solution", "solutions", "messages")
"""The fields of which a solution has one: its steps, its text, several of them, a conversation."""


def parse_columns(
    text: str, *, setting: str = "columns", example: str = "problem=question,solution=response"
) -> dict[str, str]:
    """Read the columns of a command line: "problem=question,solution=response"."""
    columns: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if not (name and equals and column):
            raise UsageError(f"`{setting}` {text}: expected NAME=VALUE, as in {example}; found {pair!r}")
        if name in columns:
            raise UsageError(f"`{setting}` {text}: {name!r} stands twice; expected once")
        columns[name] = column
    return columns


def check_columns(columns: Columns, names: Iterable[str]) -> None:
    """Refuse a name for a column that is not among those found.

    Raises:
        InputError: it lists the columns that are there.
    """
    names = list(names)
    for name, column in columns.items():
        if column not in names:
            raise InputError(
                f"there is no column {column!r}, which is to be read as {name!r} (`columns`); "
                f"found {quoted(names) or 'none'}",
                field=column,
            )


def under_our_names(row: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """A row with its columns renamed as the caller says. A column that could be taken for the same field, or has its name, moves under `meta`.

    Raises:
        InputError: `meta` is no object, and something is to move there.
    """
    if not columns:
        return row
    named = {column: name for name, column in columns.items()}
    assigned = {
        other
        for name, column in columns.items()
        for other in _rivals(name)
        if other not in CONTENT_NAMES or row.get(column) is not None
    }
    data: dict[str, Any] = {}
    aside: dict[str, Any] = {}
    for column, value in row.items():
        name = named.get(column)
        if name is not None and not name.startswith(META):
            data[name] = value
        elif name is not None:
            aside[name.removeprefix(META)] = value
        elif plain(column) in assigned or column in columns:
            aside[column] = value
        else:
            data[column] = value
    if aside:
        meta = data.get("meta")
        if not isinstance(meta, dict | None):
            raise InputError(f"expected an object, found {json_type(meta)}", field="meta")
        data["meta"] = {**(meta or {}), **aside}
    return data


def _rivals(name: str) -> Collection[str]:
    """The names of columns that could be taken for the same field; a row has one solution, whatever its field."""
    if name in CONTENT_NAMES:
        return CONTENT_NAMES
    return next((names for names in map(names_of, ALIASES) if name in names), ())


def names_of(field: str) -> tuple[str, ...]:
    """The name of a field and its other names."""
    return (field, *ALIASES.get(field, ()))


CONTENT_NAMES = frozenset(name for field in CONTENT for name in names_of(field))


def columns_of(row: Mapping[str, Any], field: str) -> list[str]:
    """The columns of a row (under our names) that may hold a field, those that hold nothing (null) left out; its own name is the first."""
    found = [column for column in _columns(tuple(row), field) if row[column] is not None]
    return found or (_spare(row, field) if field == "problem" else [])


def _spare(row: Mapping[str, Any], field: str) -> list[str]:
    return [column for column in row if plain(column) in SPARE[field] and row[column] is not None]


@lru_cache(maxsize=4096)
def _columns(columns: tuple[str, ...], field: str) -> tuple[str, ...]:
    # A column that is written as the name itself comes before others ("Field").
    return tuple(
        column
        for name in names_of(field)
        for column in sorted(columns, key=lambda column: column != name)
        if plain(column) == name
    )


def content_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields and columns of a row (under our names) that may hold a solution, of which it has one."""
    return [(field, column) for field in CONTENT for column in columns_of(row, field)] or [
        (field, column) for field in CONTENT if field in SPARE for column in _spare(row, field)
    ]


def plain(column: str) -> str:
    """The name of a column without capitals, spaces and dashes."""
    return re.sub(r"[\s-]+", "_", column.strip().lower())


def chosen(row: Mapping[str, Any], field: str) -> str | None:
    """The column that holds a field: that of its own name, or else the only one of its common names.

    Raises:
        InputError: two common names.
    """
    result = columns_of(row, field)
    if len(result) > 1 and plain(result[0]) != field:
        raise InputError(
            f"{result[0]!r} and {result[1]!r} may both be the {field}: say which it is with `columns` ({field}={result[0]})",
            field=result[1],
        )
    return result[0] if result else None


def riding(row: Mapping[str, Any], used: Collection[str]) -> dict[str, Any]:
    """The columns of a row that mean nothing here and ride along: those that were not `used`."""
    return {column: value for column, value in row.items() if column not in used}


def problem_column(row: Mapping[str, Any]) -> str:
    """The column that holds the problem.

    Raises:
        InputError: there is none, or there are two.
    """
    column = chosen(row, "problem")
    if column is None:
        aliases = names_of("problem")
        null = next((name for name in aliases if name in row), None)
        raise InputError(
            f"expected a problem under one of {quoted(aliases)}; found {quoted(row)}. Say which column it is with `columns` (problem=COLUMN)"
            if null is None
            else "expected a text, found null",
            field=null,
        )
    if column == "instruction" and isinstance(row.get("input"), str) and row["input"].strip():
        raise InputError(
            "found both 'instruction' and 'input', which are one problem: write them as one text under 'problem'",
            field="input",
        )
    return column


def quoted(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(map(repr, names))


def reference_answer(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The reference answer of a row and its column; of a worked answer that ends in "#### x" (GSM8K's), x.

    An object under another name than `answer` (`ground_truth` of agents: the calls that are expected) is no answer.

    Raises:
        InputError: neither a text nor a number, or two columns that may be it.
    """
    column = chosen(row, "answer")
    if column is None or (isinstance(row[column], dict) and column != "answer"):
        return None, None
    return written_answer(row[column], column), column


def written_answer(value: Any, column: str) -> str:
    """A reference answer as a text.

    Raises:
        InputError: it is neither a text nor a number.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"expected a text or a number, found {json_type(value)}", field=column)
    text = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
    end = _WORKED.search(text)
    return end.group(1) if end else text


_WORKED = re.compile(r"(?:\A|\n)#### *(\S.*?)\s*\Z")


def identifier(row: Mapping[str, Any], field: str = "id") -> tuple[str | None, str | None]:
    """The id of a row and its column.

    Raises:
        InputError: neither a text nor a whole number.
    """
    column = chosen(row, field)
    if column is None:
        return None, None
    value = row[column]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # as frames write whole numbers beside absent ones
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"expected a string or a whole number, found {json_type(value)}", field=column)
    return str(value), column
