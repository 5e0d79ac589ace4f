"""Files of labelled solutions, read and written in any format, as streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Refusal
from stepmark.solutions.interchange.formats import detect, format_named
from stepmark.solutions.interchange.rows import Item, LabelledRow, Losses, Reading, Writing
from stepmark.store import Columns, Row, Source, read_rows

_READING = Reading()
_WRITING = Writing()


def first_row(file: Source, columns: Columns | None = None) -> tuple[Row, Iterator[Row]]:
    """The first row of a source, and all of them.

    Raises:
        InputError: as `store.read_rows`.
    """
    rows = read_rows(file, columns=columns)
    first = next(rows)
    return first, chain([first], rows)


def read_labelled(
    file: Source,
    *,
    columns: Columns | None = None,
    format: str | None = None,
    settings: Reading = _READING,
    losses: Losses | None = None,
) -> Iterator[LabelledRow]:
    """Read labelled solutions of any format as a stream.

    Args:
        file: as `store.read_rows`.
        columns: as there.
        format: a key of `FORMATS`; None: told by the first row.
        settings: how to read.
        losses: takes note of what is left out.

    Raises:
        InputError: with `FILE:LINE`: a row that is not of the format, a format that cannot be told.
        UnknownNameError: no such format.
    """
    for item in items_of(file, columns=columns, format=format, settings=settings, losses=losses):
        if isinstance(item, Refusal):
            raise item.error
        yield item


def items_of(
    file: Source,
    *,
    columns: Columns | None = None,
    format: str | None = None,
    settings: Reading = _READING,
    losses: Losses | None = None,
    keep_going: bool = False,
) -> Iterator[Item]:
    """As `read_labelled`; with `keep_going`, a refusal in the place of a row that is not of the format.

    A line that is no JSON object ends the reading all the same.
    """
    first, rows = first_row(file, columns)
    return items_of_rows(rows, format or detect(first), settings, losses or Losses(), keep_going=keep_going)


def items_of_rows(
    rows: Iterable[Row], format: str, settings: Reading, losses: Losses, *, keep_going: bool = False
) -> Iterator[Item]:
    """The labelled solutions of rows of one format."""
    read = format_named(format).read
    for row in rows:
        try:
            for one in read(row, settings, losses):
                losses.read += 1
                yield one
        except InputError as error:
            if not keep_going:
                raise error.at(row.where) from None
            losses.drop("the row is not what its format says (--keep-going)", row.where)
            yield Refusal(solution=None, error=error.at(row.where))


def convert(
    items: Iterable[Item], to: str, settings: Writing = _WRITING, losses: Losses | None = None
) -> Iterator[dict[str, Any] | InputError]:
    """Rows of a format, and an error in the place of each that is left out.

    Raises:
        InputError: with `FILE:LINE`: a row that needs a setting (`Writing`) which is not given.
        UsageError: the format is unknown, or only read.
    """
    write = format_named(to, to_write=True).write
    assert write is not None
    counted = losses or Losses()
    for row in write(items, settings, counted):
        if not isinstance(row, InputError):
            counted.written += 1
        yield row
