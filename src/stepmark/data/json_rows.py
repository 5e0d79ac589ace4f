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
_BLANK = re.compile(r"[ \t\r\n]*")
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
        data = _conversation(_strict(text))
    except json.JSONDecodeError as error:
        rest = text[error.pos : error.pos + 20].strip()
        result = f"found {rest!r}" if rest else "where the line ends"
        raise InputError(
            f"not JSON: {error.msg} at column {error.colno}, {result}. {_expected(text, offset)}"
        ) from None
    if not isinstance(data, dict):
        raise InputError(f"expected a JSON object, found {json_type(data)}. " + _expected(text, offset))
    return data


def parse_value(text: str) -> Any:
    """A JSON value, read as strictly as a row.

    Raises:
        InputError: it is none.
    """
    try:
        return _strict(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at column {error.colno}") from None


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
        entries = list(_entries(text))
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected a JSON list of objects, or one object: {error.msg} at column {error.colno}, "
            f"found {text[error.pos : error.pos + 20]!r}",
            where=f":{error.lineno}",
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(NESTED if isinstance(error, RecursionError) else f"not readable: {error}") from None
    if not entries:
        raise InputError("there are no rows: the list is empty")
    for number, entry in enumerate(entries, 1):
        try:
            row = _conversation(_strict(entry))
        except InputError as error:
            yield number, error
            continue
        is_row = isinstance(row, dict)
        yield number, row if is_row else InputError(f"expected an object, found {json_type(row)}")


def _entries(text: str) -> Iterator[str]:
    """The entries of a JSON list, each as its text, or any other document."""
    plain = json.JSONDecoder()
    at = _skip_blanks(text, 0)
    if not text.startswith("[", at):
        plain.decode(text)
        yield text
        return
    at = _skip_blanks(text, at + 1)
    goes_on = not text.startswith("]", at)
    while goes_on:
        _, end = plain.raw_decode(text, at)
        yield text[at:end]
        at = _skip_blanks(text, end)
        goes_on = text.startswith(",", at)
        if not goes_on and not text.startswith("]", at):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _skip_blanks(text, at + 1) if goes_on else at
    if (end := _skip_blanks(text, at + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)


def _skip_blanks(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _strict(text: str) -> Any:
    """JSON without what is refused: an object with a key twice, a number that is none, more than 200 lists and objects in each other, which
    perhaps could not be written again, and half of a surrogate pair.

    Raises:
        JSONDecodeError: it is not JSON.
        InputError: it holds what is refused, or a number of thousands of digits.
    """
    try:
        data = _DECODER.decode(text)
    except (json.JSONDecodeError, InputError):
        raise
    except (RecursionError, ValueError) as error:
        raise InputError(NESTED if isinstance(error, RecursionError) else f"not readable: {error}") from None
    if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(data) > _MAX_DEPTH:
        raise InputError(NESTED)
    try:
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise InputError(
            f"half of a surrogate pair (\\u{half:04x}) in a string: that is no character; the text was cut in "
            "the middle of one"
        ) from None
    return data


def _depth(data: object) -> int:
    depth, level = 0, [data]
    while level := [value for value in level if isinstance(value, list | dict)]:
        depth += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return depth


def _conversation(data: Any) -> Any:
    """A list of chat messages in the place of a row, as a row of `messages`; anything else as it is."""
    if isinstance(data, list) and data and all(isinstance(entry, dict) and "role" in entry for entry in data):
        return {"messages": data}
    return data


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


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError("the key stands twice in one object; expected once", field=twice)
    return data


def _no_constant(word: str) -> None:
    raise InputError(f"found {word}, which is not JSON and no number; write null where there is none")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise InputError(f"the number {digits} is too large for a float")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_no_key_twice, parse_constant=_no_constant, parse_float=_finite)
