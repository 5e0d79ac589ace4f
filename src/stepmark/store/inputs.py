"""The input of a run: rows that can be read again, and what a manifest says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stepmark.data.reading import Source, check_readable, read_rows
from stepmark.errors import UsageError
from stepmark.store.writing import encode_row, fingerprint, is_stream

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInput:
    """Rows that a run reads."""

    source: Source
    """What `read_rows` reads."""
    name: str
    """For people: the file's name as given, or "rows"."""
    rows: int | None
    """How many there are, about: lines of a file. None where that is not known before they are read."""
    manifest: dict[str, Any] | None
    """Name, size and hash; None of a pipe, which can be read only once."""


def run_input(source: Source, *, again: bool = False, hashed: bool = True) -> RunInput:
    """The input of a run; an iterator is read into a list.

    `again`: it is read more than once, which a pipe is not. `hashed`: the manifest of the run names the rows by their hash.

    Raises:
        InputError: there is no such file, or no rows.
        UsageError: a pipe, where it is read more than once.
    """
    if isinstance(source, str | Path):
        check_readable(source, folder=True)
        if again and is_stream(source) and not Path(source).is_dir():
            raise UsageError(
                f"{source}: expected a file, found a pipe or a device; it is read more than once, so write it to a file first"
            )
        known = fingerprint(source) if hashed else None
        return RunInput(
            source=source,
            name=str(source),
            rows=None if known is None else known.lines,
            manifest=None
            if known is None
            else {"name": Path(source).name or str(source), "bytes": known.bytes, "sha256": known.sha256},
        )
    rows: Iterable[Any] = list(source) if isinstance(source, Iterator) else source
    digest = hashlib.sha256()
    count = 0
    for row in read_rows(rows) if hashed else ():
        digest.update(encode_row(row.as_read))
        count += 1
    manifest = {"rows": count, "sha256": digest.hexdigest()} if hashed else None
    rows_known = count if hashed else len(rows) if isinstance(rows, list | tuple) else None
    return RunInput(source=rows, name="rows", rows=rows_known, manifest=manifest)


def evenly(rows: Sequence[T], limit: int | None) -> list[T]:
    """At most `limit` rows, evenly spaced over all of them, the first among them; all of them for None."""
    count = len(rows) if limit is None else min(limit, len(rows))
    return [rows[at * len(rows) // count] for at in range(count)]
