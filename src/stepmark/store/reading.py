"""Reading JSON lines: strict, as a stream, with the place of whatever is wrong."""

from __future__ import annotations

import difflib
import gzip
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from stepmark.errors import InputError
from stepmark.records import Refusal
from stepmark.store.disk import link_loop

STDIO = "-"
"""The name of standard input and of standard output."""

_BOM = b"\xef\xbb\xbf"
_MISTAKEN = (
    (b"\x1f\x8b", "This is a gzip file: give it a name that ends in .gz, or unpack it first"),
    (b"\x28\xb5\x2f\xfd", "This is a zstandard file: unpack it first (zstd -d)"),
    (b"PAR1", "This is a Parquet file: write its rows as JSON lines first"),
    (b"\xff\xfe", "This is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "This is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)"),
)
_MAX_DEPTH = 200
NESTED = (
    f"not readable: the JSON is nested too deeply, more than {_MAX_DEPTH} lists and objects in each other"
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One JSON object of a JSON lines file, and where it stands."""

    data: dict[str, Any]
    """The object, as JSON gives it; no key twice, no NaN, no infinity."""
    file: str
    """The file's name as the caller gave it; "stdin" for standard input."""
    line: int
    """1-based line number."""

    @property
    def where(self) -> str:
        """`FILE:LINE`, as every error about this row says it."""
        return f"{self.file}:{self.line}"


def json_type(value: object) -> str:
    """JSON's word for what a value is, with its article, for error messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    for type_, word in ((str, "a string"), (int | float, "a number"), (list, "a list"), (dict, "an object")):
        if isinstance(value, type_):
            return word
    return f"a {type(value).__name__}"


@overload
def read_rows(path: str | Path, *, keep_going: Literal[False] = False) -> Iterator[Row]: ...
@overload
def read_rows(path: str | Path, *, keep_going: bool) -> Iterator[Row | Refusal]: ...
def read_rows(path: str | Path, *, keep_going: bool = False) -> Iterator[Row | Refusal]:
    """Read a file of JSON lines as a stream: one JSON object a line, UTF-8, blank lines skipped.

    Args:
        path: a file; gzip when its name ends in ".gz"; "-" for standard input.
        keep_going: yield a `Refusal` in the place of a line that cannot be read, instead of raising. A file
            that is missing, empty or a damaged gzip raises all the same.

    Raises:
        InputError: with `FILE:LINE`: a byte that is not UTF-8, not JSON (with the column), not an object, a key
            twice, NaN or an infinity, half of a surrogate pair. With `FILE`: missing (at the call, before
            anything is read), a directory, not readable, no rows at all.
    """
    check_readable(path)
    return _read_rows(path, keep_going)


def check_readable(path: str | Path) -> None:
    """Refuse, before any work is done, a file that cannot be read; "-" always can.

    Raises:
        InputError: it is missing (the message names the nearest file there), a folder, empty, or not readable.
    """
    if path == STDIO:
        return
    if not str(path):
        raise InputError("expected a file's name, found an empty text")
    if str(path).startswith(("http://", "https://")):
        raise InputError(
            "expected a file of this machine, found an address: download it first", where=str(path)
        )
    if (loop := link_loop(path)) is not None:
        raise InputError(loop, where=str(path))
    path = Path(path)
    if path.is_dir():
        raise InputError("expected a file, found a folder", where=str(path))
    if not path.exists():
        names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f". Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
        raise InputError(f"there is no such file{hint}", where=str(path))
    if not os.access(path, os.R_OK):
        raise InputError("the file may not be read (permission denied)", where=str(path))
    if path.is_file() and path.stat().st_size == 0:
        raise InputError("the file is empty: expected one JSON object a line", where=str(path))


def _read_rows(path: str | Path, keep_going: bool) -> Iterator[Row | Refusal]:
    name = "stdin" if path == STDIO else str(path)
    offset, found = 0, False
    for line, raw in enumerate(read_lines(path, name), 1):
        text = raw.removeprefix(_BOM) if line == 1 else raw
        if text.strip():
            found = True
            try:
                yield Row(data=parse_row(text, offset + len(raw) - len(text)), file=name, line=line)
            except InputError as error:
                if not keep_going:
                    raise error.at(f"{name}:{line}") from None
                yield Refusal(solution=None, error=error.at(f"{name}:{line}"))
        offset += len(raw)
    if not found:
        raise InputError("there are no rows: expected one JSON object a line", where=name)


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


def parse_row(raw: bytes, offset: int = 0) -> dict[str, Any]:
    """One JSON object of one line, read strictly; `offset` is where the line begins in its file.

    Raises:
        InputError: as `read_rows`, without the place.
    """
    try:
        text = raw.decode("utf-8").rstrip("\r\n")  # else an error at the end is in column 1 of line 2
    except UnicodeDecodeError as error:
        hint = next((hint for magic, hint in _MISTAKEN if offset == 0 and raw.startswith(magic)), None)
        raise InputError(
            f"not UTF-8: byte 0x{raw[error.start]:02x} at byte offset {offset + error.start} of the text "
            f"({error.reason}). {hint or 'Write the file as UTF-8'}"
        ) from None
    try:
        data = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos : error.pos + 20].strip()
        found = f"found {rest!r}" if rest else "where the line ends"
        raise InputError(
            f"not JSON: {error.msg} at column {error.colno}, {found}. {_expected(text, offset)}"
        ) from None
    except RecursionError:
        raise InputError(NESTED) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not readable: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"expected a JSON object, found {json_type(data)}. " + _expected(text, offset))
    check_depth(data, text)
    if _SURROGATE.search(text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise InputError(
                f"half of a surrogate pair (\\u{half:04x}) in a string: that is no character; the text was cut in "
                "the middle of one"
            ) from None
    return data


def check_depth(data: object, text: str) -> None:
    """Refuse JSON that could be read, and perhaps not written again, where less of Python's recursion limit is left.

    Args:
        data: what was read.
        text: what it was read from.

    Raises:
        InputError: more than 200 lists and objects lie in each other.
    """
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    level: list[object] = [data]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, list | dict)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if any(isinstance(value, list | dict) for value in level):
        raise InputError(NESTED)


def _expected(text: str, offset: int) -> str:
    start = text.strip()
    if start.startswith("["):
        return "Expected one JSON object a line; a JSON list is rewritten so by: jq -c '.[]'"
    if start == "{" and offset <= len(_BOM):
        return "Expected one JSON object a line; JSON over several lines is rewritten so by: jq -c ."
    return "Expected one JSON object a line"


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError("the key stands twice in one object; expected once", field=twice)
    return data


def _no_constant(word: str) -> float:
    raise InputError(f"found {word}, which is not JSON and no number; write null where there is none")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise InputError(f"the number {digits} is too large for a float")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_no_key_twice, parse_constant=_no_constant, parse_float=_finite)
