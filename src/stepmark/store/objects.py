"""Rows of Python objects: dicts, records, `datasets.Dataset`, pandas and polars frames.

None of these libraries is imported here: a frame is recognised by the module and the name of its class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

from stepmark.errors import InputError
from stepmark.records import Record
from stepmark.store.columns import Columns, check_columns
from stepmark.store.json_rows import Entries, json_type

EXPECTED = (
    "a file's name, a list of dicts or of stepmark records, a datasets.Dataset, or a pandas or polars frame"
)
"""What rows are read from."""


def object_rows(source: object, columns: Columns) -> Entries:
    """The rows of a Python object, numbered from 1.

    Raises:
        InputError: the object lacks one of `columns`.
    """
    for number, (row, absent) in enumerate(_items(source, columns), 1):
        if isinstance(row, Record):
            yield number, row
        elif isinstance(row, Mapping):
            if number == 1 and not absent:  # the columns of a table are checked before
                check_columns(columns, row)
            try:
                yield number, plain_row(row, absent=absent)
            except InputError as error:
                yield number, error
        else:
            yield number, InputError(f"expected a dict or a stepmark record, found {json_type(row)}")


def check_source(source: object) -> None:
    """Refuse an object that holds no rows.

    Raises:
        InputError: it says what was expected and what to do.
    """
    kind = _class_of(source)
    advice = None
    if kind in _REFUSED:
        advice = _REFUSED[kind]
    elif isinstance(source, Record):
        advice = "one record; put it in a list"
    elif isinstance(source, Mapping):
        columns = any(isinstance(value, list | tuple) for key, value in source.items() if key != "steps")
        advice = (
            "one dict; put it in a list" if not columns else "a dict; give a list of dicts, one for each row"
        )
    elif isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        advice = f"an object of type {type(source).__name__}"
    if advice is not None:
        raise InputError(f"expected {EXPECTED}; found {advice}")


def _items(source: Any, columns: Columns) -> Iterator[tuple[Any, bool]]:
    """What stands in a source, and whether None in it means absence (in a table, whose rows have all columns)."""
    read = _TABLES.get(_class_of(source))
    if read is None:
        for row in source:
            yield row, False
        return
    names, rows = read(source)
    if names is None:
        first = next(rows, None)
        if first is None:
            return
        names, rows = list(first), chain([first], rows)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"expected the names of columns to be texts, found {name!r}")
    check_columns(columns, names)
    for row in rows:
        yield row, True


_Table = tuple[list[Any] | None, Iterator[Mapping[str, Any]]]
"""The names of the columns (None: as in the first row), and the rows."""


def _pandas(frame: Any) -> _Table:
    names = list(frame.columns)
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError("the column stands twice in the frame; expected once", field=str(twice))
    rows = frame.itertuples(index=False, name=None)
    return names, (dict(zip(names, row, strict=True)) for row in rows)


def _polars(frame: Any) -> _Table:
    return list(frame.columns), frame.iter_rows(named=True)


def _dataset(dataset: Any) -> _Table:
    return dataset.column_names, iter(dataset)


_TABLES: Mapping[tuple[str, str] | None, Callable[[Any], _Table]] = {
    ("pandas", "DataFrame"): _pandas,
    ("polars", "DataFrame"): _polars,
    ("datasets", "Dataset"): _dataset,
    ("datasets", "IterableDataset"): _dataset,
}
_REFUSED: Mapping[tuple[str, str] | None, str] = {
    ("polars", "LazyFrame"): "a LazyFrame; collect it first: frame.collect()",
    ("datasets", "DatasetDict"): 'a DatasetDict; choose a split: data["train"]',
    ("datasets", "IterableDatasetDict"): 'an IterableDatasetDict; choose a split: data["train"]',
    ("pandas", "Series"): "a Series; give the frame",
    ("polars", "Series"): "a Series; give the frame",
}


def _class_of(source: object) -> tuple[str, str] | None:
    """(library, class) of an object of one of the libraries above, or of a subclass."""
    for class_ in type(source).__mro__:
        key = (class_.__module__.partition(".")[0], class_.__name__)
        if key in _TABLES or key in _REFUSED:
            return key
    return None


def plain_row(row: Mapping[Any, Any], *, absent: bool) -> dict[str, Any]:
    """A row as plain data, as JSON has it.

    Args:
        row: whose values may be of numpy, pandas or pyarrow.
        absent: leave out what is None or NaN.

    Raises:
        InputError: a value that JSON does not have; the field names it.
    """
    data: dict[str, Any] = {}
    for key, value in row.items():
        if not isinstance(key, str):
            raise InputError(f"expected keys that are texts, found {key!r}")
        if absent and _is_missing(value):
            continue
        try:
            data[key] = _plain(value)
        except InputError as error:
            raise InputError(error.message, field=key) from None
    return data


def _is_missing(value: object) -> bool:
    if isinstance(value, float):  # numpy's float64 is one too
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError("half of a surrogate pair in a string: that is no character") from None
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"found {value}, which JSON does not have; write None where there is no number")
        return float(value)
    if isinstance(value, Mapping):
        return plain_row(value, absent=False)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if type(value).__module__.partition(".")[0] == "numpy":
        return _plain(value.tolist())
    raise InputError(
        f"expected a text, a number, a list or an object, found an object of type {type(value).__name__}; leave the column out"
    )
