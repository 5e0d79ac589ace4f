"""What flags of several commands are made of."""

from typing import Annotated

from cyclopts import Parameter

from stepmark.store import Columns, parse_columns

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""A switch that is off: there is --name, no --no-name, and help shows no default."""

ColumnsFlag = Annotated[str | None, Parameter(name="--columns")]
"""Which column of the input is what, where its names are neither ours nor common ones: problem=question,solution=response."""


def columns_of(flag: str | None) -> Columns | None:
    """What `--columns` says.

    Raises:
        UsageError: as `parse_columns`.
    """
    return None if flag is None else parse_columns(flag)


Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)]
"""A field of a method, as name=value; once for each."""
