"""Errors of the disk: which file could not be written or read, why, and what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepmark.errors import StepmarkError, StorageError

_AGAIN = "then give the same command again"
_ADVICE = {
    errno.ENOSPC: f"no space is left on this disk: make room, {_AGAIN}",
    errno.EDQUOT: f"your quota on this disk is used up: make room, {_AGAIN}",
    errno.EFBIG: f"the file is larger than this process may write (see ulimit -f): raise the limit, {_AGAIN}",
    errno.EROFS: "this disk is mounted for reading only: choose another place, or mount it for writing",
    errno.EIO: f"the disk could not be written or read (input/output error): look at its health, {_AGAIN}",
    errno.EACCES: "permission denied",
    errno.EPERM: "the system does not permit it",
    errno.ELOOP: "symbolic links lead back to themselves: name the file itself, or mend the links",
    errno.EMFILE: f"this process has too many files open (see ulimit -n): raise the limit, {_AGAIN}",
}
"""What each error number means, and what to do."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Numbers that any write or read has, and that come without a file's name."""

_OF_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
}

_FULL_UNDER = 1 << 16
"""Bytes left on a disk that count as none: SQLite calls it an input/output error when there is no room for its index."""


@contextmanager
def naming(file: str | Path) -> Iterator[None]:
    """Give errors of the disk the name of the file that is being written or read, where the system's error names none.

    Raises:
        StorageError: the disk is full, broken, or may not be written.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StepmarkError) or (named := storage_error(error, file)) is None:
            raise
        raise named from error


def storage_error(error: BaseException, file: str | Path | None = None) -> StorageError | None:
    """What the system refused (as Python, SQLite or safetensors raised it), with the file's name and what to do; None for other errors."""
    number, name = _read(error)
    if number is None:
        return None
    name = file if name is None else name
    if number == errno.EIO and name is not None and _free(Path(name)) < _FULL_UNDER:
        number = errno.ENOSPC
    why = _ADVICE.get(number) or os.strerror(number).lower()
    return StorageError(why if name is None else f"{name}: {why}")


def link_loop(file: str | Path) -> str | None:
    """What to say of a path whose symbolic links lead back to themselves; None for other paths."""
    try:
        Path(file).stat()
    except OSError as error:
        return _ADVICE[errno.ELOOP] if error.errno == errno.ELOOP else None
    return None


def _read(error: BaseException) -> tuple[int | None, str | Path | None]:
    """An error's number, None where it has none of a disk, and the file that it names itself."""
    if isinstance(error, OSError):
        # Of a copy, the second is the one that was written. What is no text is the number of an open file.
        names = [name for name in (error.filename2, error.filename) if isinstance(name, str | Path)]
        return error.errno if names or error.errno in _OF_THE_DISK else None, names[0] if names else None
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)  # absent from errors of Python's own module
        return None if code is None else _OF_SQLITE.get(code & 0xFF), None
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return _read(error.__context__)  # what torch.save makes of an error of the file that it is given
    if isinstance(error, RuntimeError) and "inline_container.cc" in str(error):
        return errno.EIO, None  # and of one whose name it is given
    if loop := re.match(r"Symlink loop from '(.*)'$", str(error)):  # Path.resolve before Python 3.13
        return errno.ELOOP, loop[1]
    if type(error).__name__ != "SafetensorError":
        return None, None
    # The second form is that of an older safetensors (0.5).
    number = re.search(r"\bos error (\d+)|\bOs \{ code: (\d+)", str(error))
    return None if number is None else int(number[1] or number[2]), None


def _free(file: Path) -> int:
    """Bytes that are free on a file's disk."""
    return shutil.disk_usage(next(place for place in (file, *file.absolute().parents) if place.exists())).free
