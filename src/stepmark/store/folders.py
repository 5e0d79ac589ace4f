"""Folders that one run at a time writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stepmark.errors import UsageError
from stepmark.store.writing import try_lock

LOCK_FILE = ".stepmark.lock"
"""In a folder that a run writes to, while it does; one that a killed run left is taken by the next run."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for this run until the block ends or the process dies, however it dies.

    The folder and its parents are made where they are absent; those that are empty at the end are removed again. Unlike `hold`, it locks a file in the
    folder: file systems that several machines of a run share lock no folders.

    Raises:
        UsageError: another run holds it, or it cannot be made.
    """
    absent = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        try:
            handle = _locked(folder)
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
        with handle:
            try:
                yield
            finally:
                with suppress(OSError):
                    (folder / LOCK_FILE).unlink()
    finally:
        for one in absent:
            with suppress(OSError):
                one.rmdir()


def _locked(folder: Path) -> BinaryIO:
    """The folder's lock file, open and locked."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a run that ends removes the file, and perhaps the folder
            handle = (folder / LOCK_FILE).open("a+b")
            try:
                if not try_lock(handle):
                    raise UsageError(f"another run is writing {folder}; wait for it, or choose another `out`")
                if os.path.samestat(os.fstat(handle.fileno()), (folder / LOCK_FILE).stat()):
                    return handle
            except BaseException:
                handle.close()
                raise
            handle.close()
