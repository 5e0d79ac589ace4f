"""What runs over rows have in common beside their part: checks of their outputs, errors that say how to go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from stepmark.data.reading import Source
from stepmark.errors import InputError, UsageError
from stepmark.progress import Progress
from stepmark.store.inputs import RunInput
from stepmark.store.part import PartFile
from stepmark.store.writing import check_outputs, is_stream

Item = TypeVar("Item")


def check_files(outputs: Mapping[str, str | Path | None], source: Source) -> None:
    """Refuse outputs of a run, by setting, that cannot be written: they are files, and replace neither the input nor one another."""
    for name, path in outputs.items():
        if path is not None and is_stream(path):
            raise UsageError(f"`{name}` {path}: expected a file's name")
    check_outputs(outputs, source)


@contextmanager
def working(part: PartFile, progress: Progress, source: RunInput, *, keep_going: bool) -> Iterator[None]:
    """Show the progress; where the work is interrupted or fails, say what is kept and how to go on."""
    try:
        with progress, explained(source, keep_going=keep_going):
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(part.left) from None
    except Exception as error:  # ours, or of a model that the caller made
        if part.kept:
            error.add_note(part.left)
        raise


@contextmanager
def explained(source: RunInput, *, keep_going: bool) -> Iterator[None]:
    """Add to the error of a row what leaves such rows out; the error of the whole input stays as it is."""
    try:
        yield
    except InputError as error:
        if not keep_going and error.where not in (None, source.name):
            error.add_note("with `keep_going`, such rows are left out and listed")
        raise


def nothing_done(part: PartFile, message: str, refused: list[str], source: RunInput) -> InputError:
    """The error of a run that has no result; nothing stays of it."""
    part.discard()
    return InputError(message + (f": {refused[0]}" if refused else ""), where=source.name)


def usable(rows: Iterable[Item | InputError], *, keep_going: bool) -> Iterator[Item | InputError]:
    """Rows, up to the first that cannot be used; with `keep_going` all of them.

    Raises:
        InputError: that row's error.
    """
    for row in rows:
        if isinstance(row, InputError) and not keep_going:
            raise row
        yield row
