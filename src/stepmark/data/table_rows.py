"""Tables in files: CSV and TSV, whose cells are texts, and Parquet, whose cells have types.

The first line of a CSV or TSV file names the columns. A cell is a text, but for columns of known names: lists (`steps`, `solutions`,
`labels`, `messages`, ...) and `meta` hold JSON, and `label`, `rating`, `correct` and the like a number or true or false where they read so. An
empty cell is absent. A .csv file whose first line has semicolons (or tabs) and no comma is separated by those, as spreadsheets of many
countries write it.

Rows of Python objects: dicts, records, `datasets.Dataset`, pandas and polars frames.

None of these libraries is imported here: a frame is recognised by the module and the name of its class.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from stepmark.data.columns import Columns, check_columns
from stepmark.data.json_rows import BOM, Entries, decoded, json_type, mistaken, parse_value
from stepmark.errors import InputError, MissingExtraError
from stepmark.records import Record
from stepmark.words import amount

_LISTS = """
steps solutions candidates responses completions labels messages conversations conversation judgements root scores classes class_names
critiques findings modified_process original_process error_steps
"""
_SCALARS = """
label rating correct equal greedy outcome final_answer_correct is_human_response is_solution is_preferred_response score first_error
first_error_step threshold tokens
"""
LISTS, SCALARS = frozenset(_LISTS.split()), frozenset(_SCALARS.split())
"""Columns whose cells hold JSON lists; those whose cells hold a number, true or false, or else a text."""

OBJECTS = frozenset({"meta"})
"""Columns whose cells hold JSON objects."""


class Cells(dict[str, Any]):
    """The cells of a row, without empty ones."""

    empty: tuple[str, ...] = ()
    """The columns of those, under the caller's names."""


_LONGEST_NAME = 100
_LONGEST_CELL = 1 << 30


def delimited_rows(lines: Iterable[bytes], *, tab: bool, columns: Columns) -> Entries:
    """The rows of a CSV or TSV file (`tab`); the number of each is the line on which it begins.

    `columns` are the caller's names, which decide how cells are read.

    Raises:
        InputError: the header is missing, blank, has a name twice, or lacks one of `columns`; `where` is ":LINE".
    """
    # A solution may be longer than the 131,072 characters that Python's reader takes by default.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    texts = _texts(lines)
    first: list[str] = []
    for text in texts:
        first.append(text)
        if text.strip():
            break
    kind, separator = ("TSV", "\t") if tab else ("CSV", _separator(first))
    reader = csv.reader(chain(first, texts), delimiter=separator, strict=True)
    named = {column: name for name, column in columns.items()}
    header: list[str] | None = None
    while True:
        start, problem = reader.line_num + 1, None
        try:
            cells = next(reader)
            if cells and header is not None:
                yield start, _row(header, cells, named, kind)
            elif cells:
                names = _header(cells, kind)
                check_columns(columns, names)
                header = names
        except StopIteration:
            return
        except csv.Error as error:
            problem = InputError(
                f"not {kind}: {error}. A cell that holds the separator, a quote or a line break stands in quotes; a quote inside is "
                'written twice ("")'
            )
        except InputError as error:
            if error.where is not None:  # the line cannot be read, and so nothing after it
                raise
            problem = error
        if problem is not None:
            if header is None:
                raise problem.at(f":{start}") from None
            yield start, problem


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    offset = 0
    for number, raw in enumerate(lines, 1):
        if number == 1 and (hint := mistaken(raw)) is not None:
            raise InputError(hint, where=":1")
        try:
            text = decoded(raw.removeprefix(BOM) if number == 1 else raw, offset)
        except InputError as error:
            raise error.at(f":{number}") from None
        if "\0" in text:
            raise InputError(
                "found a NUL byte, which is no text: is the file UTF-16 or damaged?", where=f":{number}"
            )
        offset += len(raw)
        yield text


def _separator(first: list[str]) -> str:
    head = "".join(first)
    if "," in head:
        return ","
    return next((other for other in (";", "\t") if other in head), ",")


def _header(cells: list[str], kind: str) -> list[str]:
    rule = f"the first line of a {kind} file names its columns"
    names = [cell.strip() for cell in cells]
    if not names[0] and "index" not in names and len(names) > 1:
        names[0] = "index"  # as pandas writes its row numbers
    for number, name in enumerate(names, 1):
        if not name:
            raise InputError(f"column {number} has no name: {rule}")
        if len(name) > _LONGEST_NAME or "\n" in name:
            raise InputError(f"expected the name of a column, found {name[:60]!r}...: {rule}")
        if names.index(name) < number - 1:
            raise InputError("the column stands twice in the header; expected once", field=name)
    return names


def _row(header: list[str], cells: list[str], named: dict[str, str], kind: str) -> Cells:
    if len(cells) != len(header):
        advice = (
            "a cell that holds the separator, a quote or a line break stands in quotes"
            if len(cells) > len(header)
            else "is the file cut off?"
        )
        raise InputError(
            f"expected {amount(len(header), 'cell')}, as the header has, found {len(cells)}: {advice}"
        )
    row = Cells()
    for column, cell in zip(header, cells, strict=True):
        if cell.strip():
            row[column] = _value(cell, column, named.get(column, column))
        else:
            row.empty += (named.get(column, column),)
    return row


def _value(cell: str, column: str, name: str) -> Any:
    if name in LISTS or name in OBJECTS:
        return _json(cell, column, name)
    if name in SCALARS:
        try:
            value = json.loads(cell.lower() if cell in ("True", "False") else cell)
        except ValueError:
            return cell
        return value if isinstance(value, bool | int | float) else cell
    return cell


def _json(cell: str, column: str, name: str) -> Any:
    expected, type_ = ('a JSON list, as ["...", "..."],', list) if name in LISTS else ("a JSON object", dict)
    try:
        value = parse_value(cell)
        if isinstance(value, type_):
            return value
        result = json_type(value)
    except InputError as error:
        result = f"{cell[:60]!r} ({error.message})"
    hint = (
        f"A column of whole texts is named with columns: solution={column}. pandas' to_csv writes lists as Python's: use to_parquet, or "
        'to_json(orient="records", lines=True)'
        if name in LISTS
        else "Write it with json.dumps"
    )
    raise InputError(f"expected {expected} in this cell, found {result}. {hint}", field=column)


def parquet_rows(path: str | Path, columns: Columns) -> Entries:
    """The rows of a Parquet file, numbered from 1; a null is absent.

    Raises:
        MissingExtraError: pyarrow is not installed.
        InputError: the file is damaged or none at all, or lacks one of `columns`.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError(
            f'{path} is a Parquet file, which needs pyarrow: pip install "stepmark[hub]" (or pip install pyarrow)'
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_columns(columns, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    try:
                        yield number, plain_row(row, absent=True)
                    except InputError as error:
                        yield number, error
    except (ArrowException, OSError) as error:
        raise InputError(f"the Parquet file is damaged, or none at all: {error}") from None


def parquet_length(path: str | Path) -> int | None:
    """How many rows a Parquet file has; None where it cannot be read."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        return None
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (ArrowException, OSError):
        return None


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
    if kind in _NOT_ROWS:
        advice = f"a {kind}; {_NOT_ROWS[kind]}"
    elif isinstance(source, Record | Mapping):
        advice = f"one {'record' if isinstance(source, Record) else 'dict'}; put it in a list, an entry for each row"
    elif isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        advice = f"an object of type {type(source).__name__}"
    else:
        return
    raise InputError(f"expected {EXPECTED}; found {advice}")


_NOT_ROWS = {
    "LazyFrame": "collect it first: frame.collect()",
    "DatasetDict": 'choose a split: data["train"]',
    "IterableDatasetDict": 'choose a split: data["train"]',
    "Series": "give the frame",
}
_TABLES = ("DataFrame", "Dataset", "IterableDataset")


def _class_of(source: object) -> str | None:
    """The class of an object of pandas, polars or datasets, or of a subclass of one; None for another."""
    return next(
        (
            class_.__name__
            for class_ in type(source).__mro__
            if class_.__module__.partition(".")[0] in ("pandas", "polars", "datasets")
            and (class_.__name__ in _TABLES or class_.__name__ in _NOT_ROWS)
        ),
        None,
    )


def _items(source: Any, columns: Columns) -> Iterator[tuple[Any, bool]]:
    """What stands in a source, and whether None in it means absence (in a table, whose rows have all columns)."""
    rows: Iterator[Mapping[str, Any]]
    if (kind := _class_of(source)) is None:
        yield from ((row, False) for row in source)
        return
    if kind != "DataFrame":
        names, rows = source.column_names, iter(source)
    elif hasattr(source, "iter_rows"):
        names, rows = list(source.columns), source.iter_rows(named=True)
    else:
        names = list(source.columns)
        rows = (dict(zip(names, row, strict=True)) for row in source.itertuples(index=False, name=None))
    if names is None:  # a stream that does not say them
        first = next(rows, {})
        names, rows = list(first), chain([first] if first else [], rows)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"expected the names of columns to be texts, found {name!r}")
        if names.count(name) > 1:
            raise InputError("the column stands twice in the frame; expected once", field=name)
    check_columns(columns, names)
    yield from ((row, True) for row in rows)


def plain_row(row: Mapping[Any, Any], *, absent: bool) -> dict[str, Any]:
    """A row of Python, numpy, pandas or pyarrow as plain data, as JSON has it; with `absent`, without what is None or NaN.

    Raises:
        InputError: a value that JSON does not have; the field names it.
    """
    data = {key: value for key, value in row.items() if not (absent and _is_missing(value))}
    try:
        result: dict[str, Any] = _as_json(data)
    except InputError:
        for key, value in data.items():  # which of them it is
            try:
                _as_json(value)
            except InputError as error:
                raise InputError(error.message, field=str(key)) from None
        raise
    return result


def _as_json(value: object) -> Any:
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise InputError("expected keys that are texts, found others")
    try:
        return parse_value(json.dumps(value, default=_plain))
    except InputError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"expected data that JSON can hold: {error}") from None


def _is_missing(value: object) -> bool:
    if isinstance(value, float):  # numpy's float64 is one too
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if type(value).__module__.partition(".")[0] == "numpy":
        return value.tolist()
    raise InputError(
        f"expected a text, a number, a list or an object, found an object of type {type(value).__name__}; leave the column out"
    )
