"""Rows from files and from Python: strict, as a stream, with the place of whatever is wrong."""

from __future__ import annotations

import difflib
import gzip
import os
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal, overload

from stepmark.data.columns import Columns, check_columns, names_of, plain, under_our_names
from stepmark.data.json_rows import BOM, Entries, json_document, json_lines, parse_row, starts_document
from stepmark.data.table_rows import (
    EXPECTED,
    Cells,
    check_source,
    delimited_rows,
    object_rows,
    parquet_length,
    parquet_rows,
)
from stepmark.data.tool_rows import converted
from stepmark.errors import InputError, UsageError
from stepmark.records import Record, Refusal, record_row

STDIO = "-"
"""The name of standard input and of standard output."""

ENDINGS = (
    ".jsonl",
    ".jsonl.gz",
    ".json",
    ".json.gz",
    ".traj",
    ".csv",
    ".csv.gz",
    ".tsv",
    ".tsv.gz",
    ".parquet",
)
"""The ends of the names of files that hold rows, where a folder is read."""

Source = str | Path | Iterable[Any]
"""What rows are read from: the name of a file or a folder, or an iterable of dicts or records, a `datasets.Dataset`, a pandas or polars frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a file or of a Python object, and where it stands."""

    data: dict[str, Any]
    """The row as JSON has it, with its columns under the names that the caller gave them; no key twice, no NaN, no infinity."""
    file: str = ""
    """The file's name as the caller gave it; "stdin" for standard input; "" for Python objects."""
    line: int
    """1-based number of the line where the row begins, or of the row itself where a source has no lines (`by_line`)."""
    by_line: bool = True
    """Whether `line` counts lines: of JSON lines, CSV and TSV. Rows of a JSON list, a Parquet file or a Python object are counted."""
    original: dict[str, Any] | None = None
    """The row under the names that it came with, where the caller gave others; None where they are those of `data`."""
    record: Record | None = None
    """The record that stood in the place of this row."""
    empty: tuple[str, ...] = ()
    """The columns of its empty cells, in a CSV or TSV file."""

    @property
    def where(self) -> str:
        """`FILE:LINE`, "FILE, row 3" or "row 3", as every error about this row says it."""
        if self.by_line:
            return f"{self.file}:{self.line}"
        return f"{self.file}, row {self.line}" if self.file else f"row {self.line}"

    @property
    def place(self) -> str:
        """`NAME:LINE`, without the folder: provenance, and an id, that is the same wherever the file lies."""
        return f"{Path(self.file).name or 'row'}:{self.line}"

    def error(self, message: str, field: str | None = None) -> InputError:
        """An error about this row, with its place."""
        return InputError(message, where=self.where, field=field)

    def about(self, error: InputError, *fields: str) -> InputError:
        """The error; where one of these fields is missing, and a cell of a column of it is empty, an error about that cell."""
        names = {name for field in fields for name in names_of(field)}
        column = next((column for column in self.empty if plain(column) in names), None)
        if error.field is not None or column is None:
            return error
        return InputError("expected a text, found an empty cell", field=column)

    @property
    def as_read(self) -> dict[str, Any]:
        """The row under the names that it came with."""
        return self.data if self.original is None else self.original


@overload
def read_rows(
    source: Source, *, columns: Columns | None = None, keep_going: Literal[False] = False
) -> Iterator[Row]: ...
@overload
def read_rows(
    source: Source, *, columns: Columns | None = None, keep_going: bool
) -> Iterator[Row | Refusal]: ...
def read_rows(
    source: Source, *, columns: Columns | None = None, keep_going: bool = False
) -> Iterator[Row | Refusal]:
    """Read rows as a stream.

    The end of a file's name says what it holds, also before ".gz": ".csv" and ".tsv" a table whose first line names the columns,
    ".parquet" a table, ".json" and ".traj" one JSON list of objects, one object, or JSON lines (a list of chat messages in the place of an object is a row of `messages`), ".eval" a log of inspect_ai, whose samples are the
    rows. Any other file, and standard input, holds JSON lines: one object a line, UTF-8, blank lines skipped. Of a folder the files that hold
    rows are read, in the order of their names (`row_files`).

    Args:
        source: the name of a file or a folder, "-" for standard input; or an iterable of dicts or records, a `datasets.Dataset`, a pandas or polars frame.
        columns: our name to the source's column, where they differ: {"problem": "question"}. Tables are checked by their header, other
            sources by their first row.
        keep_going: yield a `Refusal` in the place of a row that cannot be read, instead of raising. A source that is missing, empty
            or damaged raises all the same.

    Raises:
        InputError: with the place (`Row.where`): a byte that is not UTF-8, not JSON (with the column), not an object, a key
            twice, NaN or an infinity, half of a surrogate pair; a row with other cells than its header, a cell that should hold JSON and
            does not. With the file's name: missing (at the call, before anything is read), a folder, not readable, no rows at all.
            A text that is no file's name, or an object that holds no rows: at the call.
        MissingExtraError: a Parquet file, and pyarrow is not installed.
    """
    if isinstance(source, str | Path):
        check_readable(source, folder=True)
        if source != STDIO and Path(source).is_dir():
            files = row_files(source)
            return chain.from_iterable(
                read_rows(file, columns=columns, keep_going=keep_going) for file in files
            )
        name = "stdin" if source == STDIO else str(source)
        by_line, entries = _of_file(source, name, columns or {})
    else:
        check_source(source)
        name, by_line = "", False
        entries = object_rows(source, columns or {})
    return _rows(name, by_line, entries, columns or {}, keep_going)


def by_file(rows: Iterable[Row]) -> Iterator[tuple[Row, Iterator[Row]]]:
    """The first row of each file, and all rows of it."""
    for _, part in groupby(rows, key=lambda row: row.file):
        own = iter(part)
        first = next(own)
        yield first, chain([first], own)


def row_files(folder: str | Path) -> list[str]:
    """The files of a folder that hold rows, by the ends of their names (`ENDINGS`); manifests are left out."""
    results = sorted(
        str(file)
        for file in Path(folder).iterdir()
        if file.name.endswith(ENDINGS) and not file.name.endswith(".manifest.json") and file.is_file()
    )
    if not results:
        raise UsageError(f"{folder}: no file in this folder ends in {', '.join(ENDINGS)}")
    return results


def check_readable(path: str | Path, *, folder: bool = False) -> None:
    """Refuse, before any work is done, a file that cannot be read; "-" always can. With `folder`, a folder with files of rows can too.

    Raises:
        InputError: it is missing (the message names the nearest file there), a folder, empty, or not readable.
        UsageError: a folder without a file of rows.
    """
    if path == STDIO:
        return
    name, path = str(path), Path(path)
    if not name:
        raise InputError("expected a file's name, found an empty text")
    if name.startswith(("http://", "https://")):
        raise InputError("expected a file of this machine, found an address: download it first", where=name)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        is_prose = any(mark in name for mark in "\n\0{") or (" " in name and not path.suffix[1:].isalpha())
        if is_prose or len(name) > 255:
            raise InputError(
                f"expected {EXPECTED}; found the text {name[:60]!r}, and there is no such file"
            ) from None
        if not isinstance(error, FileNotFoundError):
            raise InputError(f"the file cannot be read: {error}", where=name) from None
        names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f". Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
        raise InputError(f"there is no such file{hint}", where=name) from None
    if path.is_dir():
        if not folder:
            names = [file.name for file in sorted(path.iterdir()) if file.name.endswith(ENDINGS)]
            hint = f": name one of its files, such as {str(path / names[0])!r}" if names else ""
            raise InputError(f"expected a file, found a folder{hint}", where=name)
        row_files(path)
    elif not os.access(path, os.R_OK):
        raise InputError("the file may not be read (permission denied)", where=name)
    elif path.is_file() and path.stat().st_size == 0:
        raise InputError("the file is empty: expected one JSON object a line", where=name)


def count_rows(path: str | Path) -> int | None:
    """How many rows a file has whose rows are not its lines (CSV, TSV, Parquet, a JSON list); None for others, or one that cannot be read."""
    ending = _ending(path)
    if ending == ".parquet":
        return parquet_length(path)
    if ending not in (".csv", ".tsv", ".json", ".traj"):
        return None
    try:
        by_line, entries = _of_file(path, str(path), {})
        return None if by_line and ending in (".json", ".traj") else sum(1 for _ in entries)
    except InputError:
        return None


def _ending(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def _of_file(source: str | Path, name: str, columns: Columns) -> tuple[bool, Entries]:
    """Whether the rows of a file are numbered by lines, and its rows."""
    ending = _ending(name)
    if ending in (".xlsx", ".xls", ".ods"):
        raise InputError("a spreadsheet is not read: save it as CSV UTF-8, and name that file", where=name)
    if ending == ".parquet":
        return False, parquet_rows(source, columns)
    if ending == ".eval":
        return False, _samples(name)
    lines = read_lines(source, name)
    if ending in (".csv", ".tsv"):
        return True, delimited_rows(lines, tab=ending == ".tsv", columns=columns)
    document = False
    if ending in (".json", ".traj") and Path(source).is_file():
        head = _first_line(lines)
        lines = chain(head, lines)
        document = starts_document(b"".join(head))
    entries = json_document(b"".join(lines)) if document else json_lines(lines)
    return not document, _checked(entries, columns, by_line=not document)


def _checked(entries: Entries, columns: Columns, *, by_line: bool) -> Entries:
    """The same, once the first row has all columns that the caller named."""
    unchecked = bool(columns)
    for number, data in entries:
        if unchecked and isinstance(data, dict):
            try:
                check_columns(columns, data)
            except InputError as error:
                raise error.at(f":{number}" if by_line else f", row {number}") from None
            unchecked = False
        yield number, data


def _rows(
    name: str, by_line: bool, entries: Entries, columns: Columns, keep_going: bool
) -> Iterator[Row | Refusal]:
    """Rows under the names that the caller gave, with their places; errors are raised, or become refusals."""
    count = 0
    for number, data in _placed(entries, name):
        count += 1
        record = None
        try:
            if isinstance(data, InputError):
                raise data
            if isinstance(data, dict):
                original = data
            else:
                record, original = data, record_row(data)
            renamed = under_our_names(original, columns) if columns else converted(original)
        except InputError as error:
            place = Row(data={}, file=name, line=number, by_line=by_line).where
            problem = _located(error, name) if error.where else error.at(place)
            if not keep_going:
                raise problem from None
            yield Refusal(solution=None, error=problem)
            continue
        yield Row(
            data=renamed,
            file=name,
            line=number,
            by_line=by_line,
            original=original if columns else None,
            record=record,
            empty=data.empty if isinstance(data, Cells) else (),
        )
    if not count:
        expected = "one JSON object a line, or a table's rows under its header" if name else "at least one"
        raise InputError(f"there are no rows: expected {expected}", where=name or None)


def _placed(entries: Entries, name: str) -> Entries:
    """The same; what ends the reading names the file."""
    try:
        yield from entries
    except InputError as error:
        raise _located(error, name) from None


def _located(error: InputError, name: str) -> InputError:
    """An error with the file's name before the place in it (":3", ", row 3") that its reader gave."""
    where = error.where or ""
    if where and where[0] not in ":,":
        return error
    return type(error)(error.message, where=f"{name}{where}" or None, field=error.field)


def _first_line(lines: Iterator[bytes]) -> list[bytes]:
    head = []
    for line in lines:
        head.append(line)
        if line.removeprefix(BOM).strip():
            break
    return head


def _samples(file: str) -> Entries:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [
                name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json")
            ]
            if not names:
                raise InputError("expected samples/*.json in the log, found none")
            for number, name in enumerate(names, start=1):
                try:
                    yield number, parse_row(archive.read(name))
                except InputError as error:
                    yield number, error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"expected a log of inspect_ai (a zip): {error}") from None
    except NotImplementedError as error:  # a compression that this Python does not know
        raise InputError(
            f"the log is packed in a way that cannot be read here ({error}); write it as JSON: inspect log convert "
            "--to json"
        ) from None


def read_lines(path: str | Path, name: str) -> Iterator[bytes]:
    """The lines of a file as bytes, unpacked if its name ends in ".gz".

    Raises:
        InputError: the gzip file is damaged.
    """
    # By bytes: text lines would also end at U+2028, which JSON allows inside a string.
    try:
        if path == STDIO:
            yield from sys.stdin.buffer
        elif str(path).endswith(".gz"):
            with gzip.open(path, "rb") as packed:
                yield from packed
        else:
            with Path(path).open("rb") as handle:
                yield from handle
    except gzip.BadGzipFile as error:
        raise InputError(
            f"the gzip file is damaged or cut off, or none at all: {error}. A file that is not packed needs a name without .gz",
            where=name,
        ) from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"the gzip file is damaged or cut off: {error}", where=name) from None
