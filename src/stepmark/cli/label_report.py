"""What the commands of `stepmark label` write beside an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepmark.store import atomic_write, encode_row


def write_beside(out: str, what: str, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Write what is not in an output to OUT.WHAT.jsonl, a row each; without rows there is none, also none of an earlier run.

    Returns:
        Its name.
    """
    beside = Path(f"{out}.{what}.jsonl")
    if not rows:
        beside.unlink(missing_ok=True)
        return None
    with atomic_write(beside) as handle:
        for row in rows:
            handle.write(encode_row(row).decode())
    return str(beside)
