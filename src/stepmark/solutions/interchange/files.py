"""Rows of any file that is read here: JSON lines, a JSON list or one JSON document, inspect_ai's zips; all strictly."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepmark.errors import InputError
from stepmark.store import STDIO, Row, check_readable, json_type, parse_row, read_rows
from stepmark.store.reading import NESTED, check_depth

_BOM = b"\xef\xbb\xbf"


def rows_of(file: str) -> Iterator[Row]:
    """The rows of a file.

    JSON lines come as a stream. A file whose name ends in ".json" may hold one list (its entries count as lines) or one
    object over several lines (a single row) instead; it is read whole. Of one whose name ends in ".eval" (a zip) each
    sample is a row.

    Raises:
        InputError: as `store.read_rows`; a list without rows, a damaged zip, a zip without samples.
    """
    if file.endswith(".eval") and file != STDIO:
        yield from _samples(file)
        return
    text = Path(file).read_bytes() if file.endswith(".json") and Path(file).is_file() else b""
    start = text.removeprefix(_BOM).lstrip()
    if not start.startswith(b"[") and not (start.startswith(b"{") and _goes_on(start)):
        yield from read_rows(file)  # JSON lines by another name, or an error that says what is wrong
        return
    data = _document(text, file)
    if isinstance(data, dict):
        yield Row(data=data, file=file, line=1)
        return
    if not data:
        raise InputError("there are no rows: the list is empty", where=file)
    for number, row in enumerate(data, start=1):
        if not isinstance(row, dict):
            raise InputError(f"expected an object, found {json_type(row)}", where=f"{file}:{number}")
        yield Row(data=row, file=file, line=number)


def _goes_on(text: bytes) -> bool:
    """Whether the first object does not end with its line."""
    first, _, rest = text.partition(b"\n")
    if not rest.strip():
        return False
    try:
        json.loads(first)
    except ValueError:
        return True
    except RecursionError:
        return False  # which is said of it where rows are read
    return False


def _document(text: bytes, file: str) -> Any:
    try:
        decoded = text.decode("utf-8-sig")
        data = json.loads(decoded, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
        check_depth(data, decoded)
        return data
    except RecursionError:
        raise InputError(NESTED, where=file) from None
    except InputError as error:
        raise error.at(file) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected a JSON list of objects, or one object: {error.msg} at column {error.colno}",
            where=f"{file}:{error.lineno}",
        ) from None
    except ValueError as error:  # not UTF-8, a number of thousands of digits
        raise InputError(f"expected a JSON list of objects, or one object: {error}", where=file) from None


def _samples(file: str) -> Iterator[Row]:
    check_readable(file)
    try:
        with zipfile.ZipFile(file) as archive:
            names = [
                name for name in archive.namelist() if name.startswith("samples/") and name.endswith(".json")
            ]
            if not names:
                raise InputError("expected samples/*.json in the log, found none", where=file)
            for number, name in enumerate(names, start=1):
                try:
                    data = parse_row(archive.read(name))
                except InputError as error:
                    raise error.at(f"{file}:{number}") from None
                yield Row(data=data, file=file, line=number)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"expected a log of inspect_ai (a zip): {error}", where=file) from None
    except NotImplementedError as error:  # a compression that this Python does not know
        raise InputError(
            f"the log is packed in a way that cannot be read here ({error}); write it as JSON: inspect log convert "
            "--to json",
            where=file,
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
