"""What a run of `stepmark search` says when it is done, or of one problem that was typed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.search.searching import Found

if TYPE_CHECKING:
    from stepmark.cli.search_machines import Scorer, SearchOptions
    from stepmark.problems.answers import Verifier


@dataclass(kw_only=True, slots=True)
class Tally:
    """What the summary counts."""

    problems: int = 0
    finished: int = 0
    unfinished: int = 0
    none: int = 0
    stopped: dict[str, int] = field(default_factory=dict)
    decoded: int | None = 0
    read: int | None = 0
    refused: list[str] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a line of the work file."""
        if row["refused"] is not None:
            self.refused.append(row["refused"])
            return
        found = row["found"]
        self.problems += 1
        chosen = None if found["chosen"] is None else found["candidates"][found["chosen"]]
        self.none += chosen is None
        self.finished += chosen is not None and chosen["finished"]
        self.unfinished += chosen is not None and not chosen["finished"]
        self.stopped[found["stopped"]] = self.stopped.get(found["stopped"], 0) + 1
        self.decoded = _sum(self.decoded, found["cost"]["decoded"])
        self.read = _sum(self.read, found["cost"]["prm"])


def print_found(found: Found, threshold: float | None) -> None:
    """Print the chosen solution, its steps coloured by their scores, and what it cost.

    Args:
        found: the result.
        threshold: a step under it is an error; None for no such point.
    """
    from rich.console import Console

    from stepmark.show.terminal import solution_lines
    from stepmark.show.text import number

    solution = found.solution
    if solution is not None:
        below = [
            place
            for place, score in enumerate(solution.scores)
            if score is not None and threshold is not None and score < threshold
        ]
        known = threshold is not None and None not in solution.scores
        headline = (
            "not scored"
            if solution.aggregate is None
            else f"{found.trace.aggregate} {number(solution.aggregate)}"
        )
        lines = solution_lines(
            found.problem.text,
            solution.steps,
            list(solution.scores),
            kind=found.trace.kind,
            first_error=below[0] if below else -1 if known else None,
            headline=headline + ("" if solution.finished else ", unfinished"),
            threshold=threshold,
            title=found.method,
        )
        console = Console()
        console.print(lines)
        console.print()
    cost = found.cost
    note = f" ({found.note})" if found.note else ""
    said = "nothing was found; " if solution is None else ""
    print(
        f"{said}stopped: {found.stopped}{note}; {_count(cost.decoded)} tokens written in {cost.samples:,} texts, "
        f"{_count(cost.prm)} read by the PRM",
        file=sys.stderr,
    )


def summary(tally: Tally, options: SearchOptions, saved: str) -> str:
    """What a run came to, for people.

    Args:
        tally: of the whole run.
        options: the flags.
        saved: what the policy has computed of its prompts; "" where that is not known.
    """
    lines = [
        f"{tally.problems:,} problems: {tally.finished:,} with a solution, {tally.unfinished:,} with an unfinished one, "
        f"{tally.none:,} with none; stopped: "
        + ", ".join(f"{count:,} {why}" for why, count in sorted(tally.stopped.items())),
        f"{_count(tally.decoded)} tokens written, {_count(tally.read)} read by the PRM",
    ]
    if saved:
        lines.append(saved)
    if tally.refused:
        lines += [f"left out {len(tally.refused):,} problems:", *(f"  {why}" for why in tally.refused)]
    *most, last = (path for path in (options.out, options.trace, options.report) if path is not None)
    written = f"{', '.join(most)} and {last}" if most else last
    lines.append(f"wrote {written}; replies are kept in {options.out}.replies.sqlite")
    return "\n".join(lines)


def write_page(
    path: str, rows: Iterable[Mapping[str, Any]], name: str, prm: Scorer | None, verifier: Verifier
) -> None:
    """Draw the trees of a run on one HTML page.

    Args:
        path: of the page.
        rows: of the work file: `found` and `trace` of each problem, both None for one that was left out.
        name: what was searched.
        prm: whose scores they are; None where none was asked.
        verifier: says which solutions are right, of problems with a reference answer.
    """
    from stepmark.search.report import row_view
    from stepmark.show.search_page import SearchPage, search_html
    from stepmark.store import atomic_write

    views = tuple(
        row_view(
            row["found"],
            row["trace"],
            threshold=None if prm is None else prm.threshold,
            judge=lambda text, gold: verifier.verify(text or None, gold).correct,
        )
        for row in rows
        if row["found"] is not None
    )
    facts = () if prm is None else (f"Scores by {prm.name}.",)
    page = SearchPage(
        title=f"{views[0].method if views else 'Search'}: {Path(name).name}", searches=views, facts=facts
    )
    with atomic_write(path) as handle:
        handle.writelines(search_html(page))


def _count(tokens: int | None) -> str:
    return "an unknown number of" if tokens is None else f"{tokens:,}"


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
