"""What `benchmarks.serve` makes of its turns: figures, a table, and the table's place on a page. Pure functions."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.annotate import quantile

AIMS = {"speedup_over_naive_at_16": 3.0, "tokens_computed_over_distinct": 1.0}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
NAMES = {"ours": "`stepmark serve`", "naive": "naive", "vllm": "vLLM"}
Row = Mapping[str, Any]


def figures_of(rows: Sequence[Row]) -> dict[str, float]:
    """The figures, by name; what was not measured has none."""
    found: dict[str, float] = {}
    by = {(row["server"], row["workload"], row["clients"]): row for row in rows}
    for (server, workload, clients), row in by.items():
        at = f"{'' if workload == 'shared' else '_without_sharing'}_at_{clients}"
        prefix = "" if server == "ours" else f"{server}_"
        found |= {
            f"{prefix}requests_per_second{at}": rate(row, "requests"),
            f"{prefix}solutions_per_second{at}": rate(row, "solutions"),
            f"{prefix}errors{at}": float(sum(row["errors"].values())),
            f"{prefix}processor_ms_a_solution{at}": 1000 * each(row),
        }
        if row["latencies"]:
            found |= {
                f"{prefix}p50_ms{at}": quantile(row["latencies"], 0.5),
                f"{prefix}p99_ms{at}": quantile(row["latencies"], 0.99),
            }
        if server == "ours":
            found |= {
                f"tokens_computed_over_distinct{at}": row["tokens_computed"] / row["tokens_distinct"],
                f"tokens_read_over_distinct{at}": row["tokens_read"] / row["tokens_distinct"],
                f"solutions_a_batch{at}": row["asked_solutions"] / row["batches"],
                f"share_of_time_in_the_model{at}": row["compute_seconds"] / row["wall"],
            }
        elif ours := by.get(("ours", workload, clients)):
            if theirs := rate(row, "solutions"):
                found[f"speedup_over_{server}{at}"] = rate(ours, "solutions") / theirs
            # What a busy machine does not change.
            found[f"speedup_over_{server}_in_processor_time{at}"] = each(row) / each(ours)
    ratios = [value for name, value in found.items() if name.startswith("tokens_computed_over_distinct_at")]
    if ratios:
        found["tokens_computed_over_distinct"] = max(ratios)
    if shares := [row["load_share"] for row in rows]:
        found["clients_share_of_a_core"] = max(shares)
    return found


def rate(row: Row, what: str) -> float:
    """A second."""
    count: int = row[what]
    return count / float(row["seconds"])


def each(row: Row) -> float:
    """Seconds of processor time that the server used for each solution, all of the time and all that was asked in it."""
    return float(row["processor"]) / int(row["asked_solutions"])


def table(rows: Sequence[Row]) -> str:
    """Markdown: a row a turn."""
    head = (
        "| workload | clients | server | requests/s | solutions/s | over naive | p50 | p99 | processor a solution | tokens computed / distinct | errors |\n"
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    naive = {
        (row["workload"], row["clients"]): rate(row, "solutions") for row in rows if row["server"] == "naive"
    }
    lines = [head]
    for row in sorted(rows, key=lambda row: (row["workload"] != "shared", row["clients"])):
        base = naive.get((row["workload"], row["clients"]))
        times = [quantile(row["latencies"], share) for share in (0.5, 0.99)] if row["latencies"] else None
        cells = [
            row["workload"],
            row["clients"],
            NAMES[row["server"]],
            f"{rate(row, 'requests'):.1f}",
            f"{rate(row, 'solutions'):.1f}",
            f"{rate(row, 'solutions') / base:.2f}x" if base else "",
            *([duration(one) for one in times] if times else ["", ""]),
            duration(1000 * each(row)),
            f"{row['tokens_computed'] / row['tokens_distinct']:.3f}" if "tokens_computed" in row else "",
            sum(row["errors"].values()),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def duration(milliseconds: float) -> str:
    """For people."""
    return f"{milliseconds:.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def page(text: str, rows: Sequence[Row], figures: Mapping[str, float]) -> str:
    """A page with the tables in the place of those that it had.

    Raises:
        ValueError: the page has no such place.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the tables: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{said(rows, figures)}\n\n{END}{after}"


def lengths(rows: Sequence[Row]) -> str:
    """How long turns were."""
    usual = min(row["seconds"] for row in rows)
    longer = sorted({(row["clients"], row["seconds"]) for row in rows if row["seconds"] != usual})
    more = "".join(f", {seconds:g} with {clients} clients" for clients, seconds in longer)
    return f"{usual:g} seconds a turn{more}"


def said(rows: Sequence[Row], figures: Mapping[str, float]) -> str:
    """Under which conditions, and the figures that have an aim."""
    one = rows[0]
    sharing = statistics.median(
        row["tokens_read"] / row["tokens_distinct"] for row in rows if row["workload"] == "shared"
    )
    lines = [
        f"{lengths(rows)}, {one['dtype']}, {one['threads']} thread(s) a server, Python {platform.python_version()}. "
        f"In the workload `shared`, {sharing:.1f} tokens are sent for each distinct one.",
        "",
        "| figure | value | aim |",
        "| --- | ---: | ---: |",
    ]
    names = [
        *AIMS,
        "p99_ms_at_16",
        *(name for name in figures if name.startswith(("speedup", "scores_differ")) and name not in AIMS),
    ]
    for name in names:
        if name in figures:
            aim = f"{AIMS[name]:g}" if name in AIMS else ""
            lines.append(f"| `{name}` | {figures[name]:.3g} | {aim} |")
    return "\n".join(lines)
