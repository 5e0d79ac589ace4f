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


def decoded(raw: bytes, offset: int = 0) -> str:
    """Bytes as text; `offset` is where they begin in their file.

    Raises:
        InputError: they are not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        hint = mistaken(raw) if offset == 0 else None
        raise InputError(
            f"not UTF-8: byte 0x{raw[error.start]:02x} at byte offset {offset + error.start} of the text "
            f"({error.reason}). {hint or 'Write the file as UTF-8 (iconv -f WINDOWS-1252 -t UTF-8)'}"
        ) from None


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
    text = decoded(raw, offset).rstrip("\r\n")  # else an error at the end is in column 1 of line 2
    try:
        data = _decoded(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos : error.pos + 20].strip()
        result = f"found {rest!r}" if rest else "where the line ends"
        raise InputError(
            f"not JSON: {error.msg} at column {error.colno}, {result}. {_expected(text, offset)}"
        ) from None
    data = _conversation(data)
    if not isinstance(data, dict | InputError):
        raise InputError(f"expected a JSON object, found {json_type(data)}. " + _expected(text, offset))
    return _checked(data, *_doubts(text))


def parse_value(text: str) -> Any:
    """A JSON value, read as strictly as a row.

    Raises:
        InputError: it is none.
    """
    try:
        data = _decoded(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at column {error.colno}") from None
    return _checked({"": data}, *_doubts(text))[""]


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

    Raises:
        InputError: not JSON, with the line in `where` (":3"), so that the caller adds the file's name; an empty list.
    """
    text = decoded(raw.removeprefix(BOM))
    try:
        data = _decoded(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected a JSON list of objects, or one object: {error.msg} at column {error.colno}, "
            f"found {text[error.pos : error.pos + 20]!r}",
            where=f":{error.lineno}",
        ) from None
    if data == []:
        raise InputError("there are no rows: the list is empty")
    doubts = _doubts(text)
    for number, entry in enumerate(data if isinstance(data, list) else [data], 1):
        row = _conversation(entry)
        if not isinstance(row, dict | InputError):
            yield number, InputError(f"expected an object, found {json_type(row)}")
            continue
        try:
            yield number, _checked(row, *doubts)
        except InputError as error:
            yield number, error


def _decoded(text: str) -> Any:
    """JSON, with an `InputError` in the place of what is refused: an object with a key twice, a number that is none.

    Raises:
        JSONDecodeError: it is not JSON.
        InputError: it cannot be read: nested too deeply, a number of thousands of digits.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise InputError(NESTED) from None
    except ValueError as error:
        raise InputError(f"not readable: {error}") from None


def _conversation(data: Any) -> Any:
    """A list of chat messages in the place of a row, as a row of `messages`; anything else as it is."""
    if isinstance(data, list) and data and all(isinstance(entry, dict) and "role" in entry for entry in data):
        return {"messages": data}
    return data


def _doubts(text: str) -> tuple[bool, bool]:
    """Whether a text may be nested too deeply, and whether it may hold half of a surrogate pair."""
    return text.count("[") + text.count("{") > _MAX_DEPTH, _SURROGATE.search(text) is not None


def _checked(row: dict[str, Any] | InputError, deep: bool, surrogates: bool) -> dict[str, Any]:
    """A row that was decoded.

    Deep JSON could be read, and perhaps not written again, where less of Python's recursion limit is left.

    Raises:
        InputError: what is refused in it; more than 200 lists and objects in each other; half of a surrogate pair.
    """
    level: list[object] = [row]
    depth = 0
    while level:
        if (refused := next((value for value in level if isinstance(value, InputError)), None)) is not None:
            raise refused
        depth += any(isinstance(value, list | dict) for value in level)
        if deep and depth > _MAX_DEPTH:
            raise InputError(NESTED)
        level = [
            inner
            for value in level
            if isinstance(value, list | dict)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    assert isinstance(row, dict)
    try:
        if surrogates:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise InputError(
            f"half of a surrogate pair (\\u{half:04x}) in a string: that is no character; the text was cut in "
            "the middle of one"
        ) from None
    return row


def _expected(text: str, offset: int) -> str:
    start = text.strip()
    if start.startswith("["):
        return (
            "Expected one JSON object a line; a file that holds a JSON list needs a name that ends in .json"
        )
    if start == "{" and offset <= len(BOM):
        return "Expected one JSON object a line; JSON over several lines is rewritten so by: jq -c ."
    if start and start[0] != "{" and offset <= len(BOM):
        return 'Expected one JSON object a line, such as {"problem": "…", "solution": "…"}; a plain text is no row'
    return "Expected one JSON object a line"


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any] | InputError:
    data = dict(pairs)
    if len(data) == len(pairs):
        return data
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    return InputError("the key stands twice in one object; expected once", field=twice)


def _no_constant(word: str) -> InputError:
    return InputError(f"found {word}, which is not JSON and no number; write null where there is none")


def _finite(digits: str) -> float | InputError:
    value = float(digits)
    return value if math.isfinite(value) else InputError(f"the number {digits} is too large for a float")


# What is refused stands in the place of its value, so that of a list only that row is refused.
_DECODER = json.JSONDecoder(object_pairs_hook=_no_key_twice, parse_constant=_no_constant, parse_float=_finite)
