"""The closing line of a test run: how many tests were skipped, for want of what, and the line to type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# What is missing, by the words of a skip's reason; the first that matches counts.
_MISSING: tuple[tuple[str, str, str], ...] = (
    (r"Chromium", "Chromium", "apt-get install chromium"),
    (r"bubblewrap|bwrap|namespaces", "bubblewrap", "apt-get install bubblewrap"),
    (r"PostgreSQL", "PostgreSQL", "apt-get install postgresql"),
    (r"\bnode\b|nodejs", "node", "apt-get install nodejs"),
    (r"needs nginx", "nginx", "apt-get install nginx"),
    (r"needs caddy", "Caddy", "apt-get install caddy"),
    (r"STEPMARK_\w+_PYTHON", "environments of peers", "see benchmarks/peers"),
    (r"no Python on this page", "pages without Python", ""),
    (
        r"STEPMARK_DATA|\bdata is not there|published runs|recorded searches",
        "data",
        "STEPMARK_DATA=FOLDER make test",
    ),
    (r"the extra `(?P<extra>\w+)`", "the extra {extra}", "pip install 'stepmark[{extra}]'"),
    (r"could not import '(?P<name>[\w.]+)'", "{name}", "pip install {name}"),
)
_OTHER = "other reasons"


def closing_line(reasons: Iterable[str]) -> str | None:
    """One line that counts skipped tests by what they lack and names the lines to type; None if nothing was skipped.

    Args:
        reasons: the reason of each skipped test.
    """
    counts: Counter[str] = Counter()
    remedies: dict[str, str] = {}
    for reason in reasons:
        name, remedy = _lack(reason)
        counts[name] += 1
        if remedy:
            remedies[name] = remedy
    if not counts:
        return None
    parts = ", ".join(f"{number} for {name}" for name, number in counts.most_common())
    lines = "; ".join(remedies[name] for name, _ in counts.most_common() if name in remedies)
    return f"skipped {counts.total()}: {parts}" + (f". To run them: {lines}" if lines else "")


def _lack(reason: str) -> tuple[str, str | None]:
    for pattern, name, remedy in _MISSING:
        if match := re.search(pattern, reason):
            return name.format(**match.groupdict()), remedy.format(**match.groupdict())
    return _OTHER, None
