"""Rows of labelled data: JSON lines, and the lists in which some data sets come from the hub; both read strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepmark.errors import InputError
from stepmark.store import Row, json_type, read_rows

_BOM = b"\xef\xbb\xbf"


def rows_of(file: str) -> Iterator[Row]:
    """The rows of a JSON lines file, or of a JSON file that holds one list (its rows count as lines).

    Raises:
        InputError: as `store.read_rows`; a list without rows.
    """
    text = Path(file).read_bytes() if file.endswith(".json") and Path(file).is_file() else b""
    if not text.removeprefix(_BOM).lstrip().startswith(b"["):
        yield from read_rows(file)  # JSON lines by another name, or an error that says what is wrong
        return
    try:
        rows = json.loads(
            text.decode("utf-8-sig"), object_pairs_hook=_no_key_twice, parse_constant=_no_constant
        )
    except InputError as error:
        raise error.at(file) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"expected a JSON list of objects: {error.msg} at column {error.colno}",
            where=f"{file}:{error.lineno}",
        ) from None
    except ValueError as error:  # not UTF-8, a number of thousands of digits
        raise InputError(f"expected a JSON list of objects: {error}", where=file) from None
    if not rows:
        raise InputError("there are no rows: the list is empty", where=file)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"expected an object, found {json_type(row)}", where=f"{file}:{number}")
        yield Row(data=row, file=file, line=number)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError("the key stands twice in one object; expected once", field=twice)
    return data


def _no_constant(word: str) -> float:
    raise InputError(f"found {word}, which is not JSON and no number; write null where there is none")
