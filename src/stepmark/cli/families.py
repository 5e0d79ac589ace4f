"""`stepmark families`: the PRM families that can be read."""

from __future__ import annotations


def families_command() -> int:
    """List the PRM families that stepmark can read.

    A checkpoint's family is told from its config and its weights; where that cannot be, name it with
    `stepmark grade --family NAME`.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from stepmark.models.families import FAMILIES

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("family", "scores", "aggregate", "what it is"):
        table.add_column(title, no_wrap=title == "family", ratio=1 if title == "what it is" else None)
    for name, spec in FAMILIES.items():
        what = Text(f"{spec.summary}\n").append(spec.source, style="dim")
        table.add_row(name, spec.score_kind, spec.aggregate, what)
    Console().print(table)
    return 0
