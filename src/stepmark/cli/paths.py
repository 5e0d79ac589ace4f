"""How commands take files: a name, or "-" for standard input or output; what they refuse to read, and to write over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stepmark.errors import InputError, UsageError
from stepmark.store import STDIO, check_readable, check_writable, is_stream


def _only_a_dash(type_: object, value: str | None) -> None:
    # With leading hyphens allowed, a misspelt option in front of the file would be taken for the file.
    if value is not None and value.startswith("-") and value != "-":
        raise ValueError(f"There is no option {value}; a file of that name is written ./{value}")


FileOrDash = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_only_a_dash)]
"""A file's name, or "-"."""


def checked_input(file: str, *, again: bool = False) -> str:
    """The same name, once there is a file behind it that can be read, so that nothing is loaded for a typo.

    Args:
        file: as given.
        again: it is read more than once, which a pipe is not.

    Raises:
        InputError: there is none; the message names the nearest.
        UsageError: a pipe, where it is read more than once.
    """
    check_readable(file)
    if again and is_stream(file):
        raise UsageError(
            f"{file}: expected a file, found a pipe or a device; it is read more than once, so write it to a file first"
        )
    return file


def check_out(out: str, *inputs: str | None, streams: bool = False) -> None:
    """Refuse an output that cannot be written, or that is an input.

    Args:
        out: the output.
        inputs: what is read.
        streams: whether it may be a pipe or a device.

    Raises:
        UsageError: it says which.
    """
    if streams and is_stream(out):
        return
    if is_stream(out):
        raise UsageError(f"--out {out}: expected a file's name")
    check_writable(out)
    if any(one not in (None, STDIO) and Path(one or "").resolve() == Path(out).resolve() for one in inputs):
        raise UsageError(f"--out {out} is an input: it would be replaced; choose another")


def is_row(where: str | None) -> bool:
    """Whether the place of an error is that of one row: FILE:LINE, or row 3, and perhaps more in brackets."""
    return re.search(r"(:|\brow )\d+( \(.*\))?$", where or "") is not None


def with_hint(error: InputError, *, keep_going: bool) -> InputError:
    """An error of one row, with what leaves such rows out, where that was not asked for; other errors as they are.

    Args:
        error: as it was caught.
        keep_going: whether the flag was given.
    """
    if not keep_going and is_row(error.where):
        error.add_note("with --keep-going, such rows are left out and listed")
    return error
