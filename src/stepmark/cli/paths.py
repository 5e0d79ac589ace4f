"""How commands take files: a name, or "-" for standard input or output."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stepmark.store import check_readable


def _only_a_dash(type_: object, value: str | None) -> None:
    # With leading hyphens allowed, a misspelt option in front of the file would be taken for the file.
    if value is not None and value.startswith("-") and value != "-":
        raise ValueError(f"There is no option {value}; a file of that name is written ./{value}")


FileOrDash = Annotated[str, Parameter(allow_leading_hyphen=True, validator=_only_a_dash)]
"""A file's name, or "-"."""


def checked_input(file: str) -> str:
    """The same name, once there is a file behind it that can be read, so that nothing is loaded for a typo.

    Raises:
        InputError: there is none; the message names the nearest.
    """
    check_readable(file)
    return file
