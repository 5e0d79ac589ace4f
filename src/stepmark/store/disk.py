"""Errors of the disk with the name of the file that could not be written or read."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepmark.errors import StepmarkError, StorageError

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Numbers that any write or read has, and that come without a file's name."""

_OF_SQLITE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


@contextmanager
def naming(file: str | Path) -> Iterator[None]:
    """Give errors of the disk the name of the file that is being written or read, where the system's error names none."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StepmarkError) or (named := storage_error(error, file)) is None:
            raise
        raise named from error


def storage_error(error: BaseException, file: str | Path | None = None) -> StorageError | None:
    """What the system refused (as Python, SQLite or safetensors raised it), in its words, with the file's name; None for other errors."""
    message, name = _read(error)
    if message is None:
        return None
    name = file if name is None else name
    return StorageError(message if name is None else f"{name}: {message}")


def _read(error: BaseException) -> tuple[str | None, str | Path | None]:
    """The system's message, None where the error is none of a disk, and the file that it names itself."""
    if isinstance(error, OSError):
        # Of a copy, the second is the one that was written. What is no text is the number of an open file.
        names = [name for name in (error.filename2, error.filename) if isinstance(name, str | Path)]
        is_ours = error.errno is not None and (names or error.errno in _OF_THE_DISK)
        return (error.strerror or str(error)) if is_ours else None, names[0] if names else None
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)  # absent from errors of Python's own module
        return str(error) if code is not None and code & 0xFF in _OF_SQLITE else None, None
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return _read(error.__context__)  # what torch.save makes of an error of the file that it is given
    if isinstance(error, RuntimeError) and "inline_container.cc" in str(error):
        return os.strerror(errno.EIO), None  # and of one whose name it is given
    if type(error).__name__ != "SafetensorError":
        return None, None
    # The second form is that of an older safetensors (0.5).
    number = re.search(r"\bos error (\d+)|\bOs \{ code: (\d+)", str(error))
    return None if number is None else os.strerror(int(number[1] or number[2])), None
