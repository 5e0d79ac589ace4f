"""How help is shown: defaults as they are typed, and descriptions of several lines as one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cyclopts.help import DefaultFormatter, HelpPanel, InlineText
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

_HINT = 60
"""Characters of a default that are shown."""


def shown_default(value: object) -> str | None:
    """A default as it is typed; None for one that is not shown: nothing, a switch that is off or on, a long text."""
    if isinstance(value, tuple | list):
        return " ".join(shlex.quote(str(item)) for item in value) or None
    if value is None or isinstance(value, bool) or value == "" or len(str(value)) > _HINT:
        return None
    return repr(value) if isinstance(value, str) and not value.strip() else str(value)


class PanelFormatter(DefaultFormatter):
    """Panels whose descriptions, which docstrings hold over several lines, are one line of plain text each."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """See `cyclopts.help.DefaultFormatter`."""
        entries = [entry.copy(description=_one_line(entry.description)) for entry in panel.entries]
        super().__call__(console, options, panel.copy(entries=entries))


def _one_line(description: object) -> object:
    if not isinstance(description, InlineText) or not isinstance(description.primary_renderable, Text):
        return description
    plain = " ".join(description.primary_renderable.plain.replace("`", "").split())
    return InlineText(Text(plain[:1].upper() + plain[1:]))
