"""Tables of strings: in the terminal, as Markdown, as HTML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepmark.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

Align = Literal["left", "right"]

ABSENT = "–"
"""What stands where there is no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table whose cells are already words and formatted numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """One cell a column."""
    note: str = ""
    """A sentence under the table; "" for none."""
    align: tuple[Align, ...] = ()
    """One a column; empty: the first to the left and the others to the right."""

    def __post_init__(self) -> None:
        where = f"table {self.title!r}"
        if not self.columns:
            raise InputError("expected at least one column, found none", where=where)
        for at, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise InputError(
                    f"expected {len(self.columns)} cells in row {at}, one a column, found {len(row)}",
                    where=where,
                )
            for name, cell in zip(self.columns, row, strict=True):
                if not isinstance(cell, str):
                    raise InputError(
                        f"expected strings, found {cell!r} in row {at}; format numbers first",
                        where=where,
                        field=name,
                    )
        if self.align and len(self.align) != len(self.columns):
            raise InputError(
                f"expected one alignment for each of {len(self.columns)} columns, found {len(self.align)}",
                where=where,
                field="align",
            )

    @property
    def alignment(self) -> tuple[Align, ...]:
        """One a column, with the default filled in."""
        return self.align or ("left", *("right" for _ in self.columns[1:]))


def markdown(table: Table) -> str:
    """The table as a GitHub-flavoured pipe table under its title, with its note below; ends with a newline."""
    raise NotImplementedError


def terminal(table: Table) -> RenderableType:
    """The table for `rich.console.Console.print`; it keeps to the console's width."""
    raise NotImplementedError


def table_html(table: Table) -> str:
    """The table as a `<figure>`, with its Markdown to copy."""
    raise NotImplementedError


def interval_text(
    value: float | None, low: float | None, high: float | None, scale: float = 100, digits: int = 1
) -> str:
    """A figure with its interval: "19.6 [15.1, 24.3]", by default in percent.

    Args:
        value: the figure; None for not known, which is shown as an en dash.
        low: the lower end of its interval; None for not known.
        high: the upper end.
        scale: what all three are multiplied by.
        digits: after the decimal point.

    Raises:
        InputError: a number is not finite.
    """
    raise NotImplementedError
