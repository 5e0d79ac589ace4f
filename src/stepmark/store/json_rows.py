"""JSON objects read strictly: one a line, or the entries of one list."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Record

Entries = Iterator[tuple[int, dict[str, Any] | Record | InputError]]
"""What a reader gives: the 1-based number of a row (its line, where the source has lines), and the row or why there is none. The
`where` of an error is the place in the file (":3"), or None for the row's own."""

BOM = b"\xef\xbb\xbf"
_MISTAKEN = (
    (b"\x1f\x8b", "This is a gzip file: give it a name that ends in .gz, or unpack it first"),
    (b"\x28\xb5\x2f\xfd", "This is a zstandard file: unpack it first (zstd -d)"),
    (b"PAR1", "This is a Parquet file: give it a name that ends in .parquet"),
    (b"PK\x03\x04", "This is a zip file: unpack it first; a spreadsheet is saved as CSV (UTF-8)"),
    (b"\xff\xfe", "This is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "This is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)"),
)
_MAX_DEPTH = 200
NESTED = (
    f"not readable: the JSON is nested too deeply, more than {_MAX_DEPTH} lists and objects in each other"
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\r\n]*")


def json_type(value: object) -> str:
    """JSON's word for what a value is, with its article, for error messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    for type_, word in ((str, "a string"), (int | float, "a number"), (list, "a list"), (dict, "an object")):
        if isinstance(value, type_):
            return word
    return f"a {type(value).__name__}"


def mistaken(raw: bytes) -> str | None:
    """What kind of file this is and what to do with it, where its first bytes tell another kind than text."""
    return next((hint for magic, hint in _MISTAKEN if raw.startswith(magic)), None)


def json_lines(lines: Iterable[bytes]) -> Entries:
    """JSON lines: one object a line, blank lines skipped; the number is the line's."""
    offset = 0
    for line, raw in enumerate(lines, 1):
        text = raw.removeprefix(BOM) if line == 1 else raw
        if text.strip():
            try:
                yield line, parse_row(text, offset + len(raw) - len(text))
            except InputError as error:
                yield line, error
        offset += len(raw)


def parse_row(raw: bytes, offset: int = 0) -> dict[str, Any]:
    """One JSON object of one line, read strictly; `offset` is where the line begins in its file.

    Raises:
        InputError: as `read_rows`, without the place.
    """
    try:
        text = raw.decode("utf-8").rstrip("\r\n")  # else an error at the end is in column 1 of line 2
    except UnicodeDecodeError as error:
        hint = mistaken(raw) if offset == 0 else None
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
    _check_characters(data, text)
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


def parse_value(text: str) -> Any:
    """A JSON value, read as strictly as a row.

    Raises:
        InputError: it is none.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InputError(NESTED) from None


def starts_document(line: bytes) -> bool:
    """Whether the first line that is not blank begins one JSON document, not JSON lines: a list, or an object that goes on."""
    start = line.removeprefix(BOM).lstrip()
    if not start.startswith(b"{"):
        return start.startswith(b"[")
    try:
        json.loads(start)
    except RecursionError:
        return False  # the reader of rows reports it
    except ValueError:
        return True
    return False


def json_document(raw: bytes) -> Entries:
    """The entries of a JSON list, or one object as the only row; the number counts rows.

    A list that is cut off gives no row at all.

    Raises:
        InputError: not JSON, with the line in `where` (":3"), so that the caller adds the file's name; an empty list.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = mistaken(raw) or "Write the file as UTF-8"
        raise InputError(
            f"not UTF-8: byte 0x{raw[error.start]:02x} ({error.reason}). {hint}",
            where=f":{raw.count(bytes([10]), 0, error.start) + 1}",
        ) from None
    at = _skip(text, 0)
    if text[at] == "{":
        row, at = _entry(text, at)
        if (at := _skip(text, at)) < len(text):
            raise _not_json(text, at, "the end of the file")
        yield 1, row
        return
    at = _skip(text, at + 1)
    if text[at : at + 1] == "]":
        raise InputError("there are no rows: the list is empty")
    rows: list[dict[str, Any] | InputError] = []
    while True:
        row, at = _entry(text, at)
        rows.append(row)
        at = _skip(text, at)
        if text[at : at + 1] == "]":
            break
        if text[at : at + 1] != ",":
            raise _not_json(text, at, "a comma or the end of the list")
        at = _skip(text, at + 1)
    if (at := _skip(text, at + 1)) < len(text):
        raise _not_json(text, at, "the end of the file")
    yield from enumerate(rows, 1)


def _entry(text: str, at: int) -> tuple[dict[str, Any] | InputError, int]:
    """The object at a place, and where it ends."""
    try:
        data, end = _DECODER.raw_decode(text, at)
    except InputError as error:
        return error, _LENIENT.raw_decode(text, at)[1]
    except json.JSONDecodeError as error:
        raise _not_json(text, error.pos, error.msg) from None
    except RecursionError:
        raise InputError(NESTED, where=f":{text.count(chr(10), 0, at) + 1}") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"not readable: {error}", where=f":{text.count(chr(10), 0, at) + 1}") from None
    if not isinstance(data, dict):
        return InputError(f"expected an object, found {json_type(data)}"), end
    try:
        check_depth(data, text[at:end])
        _check_characters(data, text[at:end])
    except InputError as error:
        return error, end
    return data, end


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _not_json(text: str, at: int, expected: str) -> InputError:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return InputError(
        f"expected a JSON list of objects, or one object: {expected} at column {column}, found {text[at : at + 20]!r}",
        where=f":{line}",
    )


def _expected(text: str, offset: int) -> str:
    start = text.strip()
    if start.startswith("["):
        return (
            "Expected one JSON object a line; a file that holds a JSON list needs a name that ends in .json"
        )
    if start == "{" and offset <= len(BOM):
        return "Expected one JSON object a line; JSON over several lines is rewritten so by: jq -c ."
    return "Expected one JSON object a line"


def _check_characters(data: dict[str, Any], text: str) -> None:
    if not _SURROGATE.search(text):
        return
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise InputError(
            f"half of a surrogate pair (\\u{half:04x}) in a string: that is no character; the text was cut in "
            "the middle of one"
        ) from None


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
_LENIENT = json.JSONDecoder()
