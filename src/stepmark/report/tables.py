"""Tables of strings: in the terminal, as Markdown, as HTML."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepmark import words as texts
from stepmark.errors import InputError
from stepmark.report.html import template
from stepmark.words import amount, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

Align = Literal["left", "right"]

ABSENT = texts.ABSENT
"""What stands where there is no number."""

_FOLDED = 20
"""In the terminal, a column of words is folded down to this many characters, no further."""

_GAP = 3
"""Characters between two columns in the terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table whose cells are already words and formatted numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """One cell a column."""
    note: str = ""
    """A sentence under the table; "" for none."""
    marked: int | None = None
    """The row that is pointed out, counted from 0: the reader's own among those of others."""
    align: tuple[Align, ...] = ()
    """One a column; empty: the first to the left and the others to the right."""

    def __post_init__(self) -> None:
        for cells in (*self.rows, *([self.align] if self.align else [])):
            if len(cells) != len(self.columns) or not all(isinstance(cell, str) for cell in cells):
                raise InputError(
                    f"expected {amount(len(self.columns), 'string')}, one a column, found {cells!r:.200}",
                    where=f"table {self.title!r}",
                )

    @property
    def alignment(self) -> tuple[Align, ...]:
        """One a column, with the default filled in."""
        right: Align = "right"
        return self.align or ("left", *[right] * (len(self.columns) - 1))

    @property
    def wide(self) -> bool:
        """Whether half a page is too narrow for it: its longest cells and the gaps between them take over 75 characters."""
        return sum(3 + max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)) > 75


def markdown(table: Table) -> str:
    """The table as a GitHub-flavoured pipe table under its title, with its note below; ends with a newline.

    What Markdown would read as its own sign is escaped, so the cells show as they are.
    """
    from rich.cells import cell_len

    rows = [[_escaped(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(3, *(cell_len(cell) for cell in column)) for column in zip(*rows, strict=True)]
    lines = [
        "| "
        + " | ".join(
            " " * (width - cell_len(cell)) + cell
            if side == "right"
            else cell + " " * (width - cell_len(cell))
            for cell, width, side in zip(row, widths, table.alignment, strict=True)
        )
        + " |"
        for row in rows
    ]
    rule = " | ".join(
        "-" * (width - 1) + ":" if side == "right" else "-" * width
        for width, side in zip(widths, table.alignment, strict=True)
    )
    lines.insert(1, f"| {rule} |")
    title = [f"**{_escaped(table.title)}**", ""] if table.title.strip() else []
    note = ["", _escaped(table.note)] if table.note.strip() else []
    return "\n".join([*title, *lines, *note]) + "\n"


def terminal(table: Table) -> RenderableType:
    """The table for `rich.console.Console.print`; it keeps to the console's width.

    Where the columns do not fit side by side, each row stands as lines of "column: cell".
    """

    def lines(options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        def text(content: str, style: str = "") -> Text:
            # A terminal that cannot show a character gets its escape, not an exception.
            shown = one_line(content).encode(options.encoding, "backslashreplace").decode(options.encoding)
            return Text(shown, style=style, overflow="fold")

        if table.title.strip():
            yield text(table.title, "bold")
        columns = [[text(cell) for cell in column] for column in zip(table.columns, *table.rows, strict=True)]
        # A number is not broken: only what stands to the left gives way, down to what can still be read.
        widths = [
            min(width, _FOLDED) if side == "left" else width
            for width, side in zip(
                (max(cell.cell_len for cell in column) for column in columns), table.alignment, strict=True
            )
        ]
        if sum(widths) + _GAP * (len(widths) - 1) > options.max_width:
            for row in table.rows:
                yield text(row[0], "bold")
                for name, cell in zip(table.columns[1:], row[1:], strict=True):
                    yield Text("  ").append_text(text(name, "cyan")).append(": ").append_text(text(cell))
        else:
            grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold cyan")
            for name, side in zip(table.columns, table.alignment, strict=True):
                grid.add_column(text(name), justify=side, no_wrap=side == "right", overflow="fold")
            for at, row in enumerate(table.rows):
                grid.add_row(*map(text, row), style="bold" if at == table.marked else None)
            yield grid
        if table.note.strip():
            yield text(table.note)

    return TerminalLines(lines)


def printed(renderable: RenderableType, width: int = 180) -> str:
    """What rich prints, as plain text of a fixed width: a table that is wrapped to the width of no terminal helps nobody."""
    from io import StringIO

    from rich.console import Console

    file = StringIO()
    Console(width=width, file=file, color_system=None).print(renderable)
    return file.getvalue()


def table_html(table: Table, *, fold: bool = True) -> str:
    """The table as a `<figure>`, folded where it is long, unless a row is marked."""
    return template("macros").table_figure(table, fold)


def interval_text(
    value: float | None, low: float | None, high: float | None, scale: float = 100, digits: int = 1
) -> str:
    """A figure with its interval: "19.6 [15.1, 24.3]", by default in percent.

    >>> interval_text(0.1961, 0.151, 0.243), interval_text(None, None, None), interval_text(0.5, None, None)
    ('19.6 [15.1, 24.3]', '–', '50.0')

    None is not known: an en dash for the figure, whatever the interval.
    """
    shown = [ABSENT if part is None else _fixed(part * scale, digits) for part in (value, low, high)]
    if value is None or (low is None and high is None):
        return shown[0]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


@dataclass(frozen=True, slots=True)
class TerminalLines:
    """What rich prints: lines that depend on the console's width and characters."""

    lines: Callable[[ConsoleOptions], RenderResult]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options)


def _fixed(value: float, digits: int) -> str:
    if not math.isfinite(value):
        raise InputError(f"expected a finite number, found {value!r}; what is not known is None")
    shown = f"{value:.{digits}f}"
    return shown.removeprefix("-") if not shown.strip("-0.") else shown  # no "-0.0"


# A sign is escaped where Markdown could act on it: an underscore inside a word and the brackets of an interval cannot.
_SIGNS = re.compile(r"[\\|`*<$~]|(?<!\w)_|_(?!\w)|(?<=\])[(\[:]|!(?=\[)|&(?=#?\w+;)|:(?=//)|(?<=www)\.|@")


def _escaped(text: str) -> str:
    return _SIGNS.sub(r"\\\g<0>", one_line(text))
