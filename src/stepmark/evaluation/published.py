"""Published results, each with its source and threshold policy: what ours may be laid beside, with care."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepmark.evaluation.result import Figure
from stepmark.show.tables import Align, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One model's published numbers."""

    model: str
    numbers: tuple[float | None, ...]
    """In the order of the table's columns; None where none was published."""
    policy: str
    """The threshold policy; "critic" for language models that are asked for the step."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTable:
    """A table of published numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Published, ...]
    note: str = ""


_ARGMAX, _TUNED, _ORACLE, _CRITIC = "0.5 / argmax", "best on GSM8K, reused", "best of each file", "critic"
_NOT_STATED = "not stated"
_G, _A, _R, _P = (
    "GenPRM, table 1",
    "ActPRM, table 1",
    "R-PRM, README",
    "ProcessBench, table 3",
)


def _row(model: str, numbers: tuple[float | None, ...], policy: str, source: str) -> Published:
    return Published(model=model, numbers=numbers, policy=policy, source=source)


PROCESSBENCH = PublishedTable(
    title="ProcessBench F1 as published (%)",
    columns=("GSM8K", "MATH", "OlympiadBench", "Omni-MATH", "Average"),
    rows=(
        _row("o1-mini", (93.2, 88.9, 87.2, 82.4, 87.9), _CRITIC, _G),
        _row("GenPRM-32B, majority of 8", (85.1, 86.3, 78.9, 80.1, 82.6), "majority of critiques", _G),
        _row("QwQ-32B", (87.1, 83.4, 78.7, 77.1, 81.6), _CRITIC, _G),
        _row("GenPRM-7B, majority of 8", (81.0, 85.7, 78.4, 76.8, 80.5), "majority of critiques", _G),
        _row("Qwen2.5-Math-PRM-72B", (87.3, 80.6, 74.3, 71.1, 78.3), _ARGMAX, _A),
        _row("GenPRM-32B, one critique", (83.1, 81.7, 72.8, 72.8, 77.6), "one critique", _G),
        _row("ActPRM-X", (82.7, 82.0, 72.0, 67.3, 76.0), _NOT_STATED, _A),
        _row("GenPRM-7B, one critique", (78.7, 80.3, 72.2, 69.8, 75.2), "one critique", _G),
        _row("ActPRM", (81.6, 79.8, 71.4, 67.0, 75.0), _NOT_STATED, _A),
        _row("Universal-PRM-7B", (85.8, 77.7, 67.6, 66.4, 74.3), _NOT_STATED, "its model card"),
        _row("Qwen2.5-Math-PRM-7B", (82.4, 77.6, 67.5, 66.3, 73.5), _ARGMAX, _A),
        _row("R-PRM-7B-DPO", (80.7, 76.9, 63.8, 60.1, 70.4), _ARGMAX, _R),
        _row("RetrievalPRM-7B", (74.6, 71.1, 60.2, 57.3, 65.8), _NOT_STATED, _G),
        _row("GenPRM-1.5B, majority of 8", (51.3, 74.4, 65.3, 62.5, 63.4), "majority of critiques", _G),
        _row("GPT-4o-0806", (79.2, 63.6, 51.4, 53.5, 61.9), _CRITIC, _G),
        _row("PURE-PRM-7B", (69.0, 66.5, 48.4, 45.9, 57.5), _NOT_STATED, _A),
        _row("Qwen2.5-Math-7B-PRM800K", (68.2, 62.6, 50.7, 44.3, 56.5), _ARGMAX, _A),
        _row("Dyve-14B", (68.5, 58.3, 49.0, 47.2, 55.8), _NOT_STATED, _G),
        _row("Skywork-PRM-7B", (70.8, 53.6, 22.9, 21.0, 42.1), _TUNED, _A),
        _row("Skywork-PRM-1.5B", (59.0, 48.0, 19.3, 19.2, 36.4), _TUNED, _A),
        _row("Math-Shepherd-PRM-7B", (47.9, 29.5, 24.8, 23.8, 31.5), _ARGMAX, _A),
        _row("EurusPRM-Stage2", (47.3, 35.7, 21.2, 20.9, 31.3), _ORACLE, _A),
        _row("EurusPRM-Stage1", (44.3, 35.6, 21.7, 23.1, 31.2), _ORACLE, _A),
        _row("RLHFlow-PRM-Mistral-8B", (50.4, 33.4, 13.8, 15.8, 28.4), _ARGMAX, _A),
        _row("RLHFlow-PRM-Deepseek-8B", (38.8, 33.8, 16.9, 16.9, 26.6), _ARGMAX, _A),
    ),
    note="Numbers of different policies are not comparable: an oracle threshold alone is worth tens of points to a weak PRM.",
)

PRMBENCH = PublishedTable(
    title="PRMBench overall PRMScore as published (%)",
    columns=("Overall",),
    rows=(
        _row("Gemini-2.0-flash-thinking", (68.8,), _CRITIC, "PRMBench leaderboard"),
        _row("o1-mini", (68.8,), _CRITIC, "PRMBench leaderboard"),
        _row("Qwen2.5-Math-PRM-72B", (68.2,), "0.5", "PRMBench leaderboard"),
        _row("GPT-4o", (66.8,), _CRITIC, "PRMBench leaderboard"),
        _row("R-PRM-7B-DPO", (66.8,), "over 0.6", "R-PRM"),
        _row("ActPRM-X", (66.7,), _NOT_STATED, "ActPRM"),
        _row("Gemini-2.0-flash", (66.0,), _CRITIC, "PRMBench leaderboard"),
        _row("Qwen2.5-Math-PRM-7B", (65.5,), "0.5", "PRMBench leaderboard"),
        _row("ActPRM", (65.5,), _NOT_STATED, "ActPRM"),
        _row("PURE-PRM-7B", (65.3,), _NOT_STATED, "PRMBench leaderboard"),
    ),
    note="The benchmark's own wrapper cut the Qwen models' prompt short, so their entries may be low.",
)

WHO_AND_WHEN = PublishedTable(
    title="Who&When as published (%)",
    columns=("Agent", "Step"),
    rows=(_row("the best method, each", (53.5, 14.2), _CRITIC, "arXiv 2505.00212, abstract"),),
    note="The two are of different methods: the whole conversation at once names agents best, step by step names steps best.",
)


def published_table(table: PublishedTable, model: str = "", figures: Sequence[Figure | None] = ()) -> Table:
    """The rows as a table of strings, with that of the model under test in its place, pointed out.

    Args:
        table: what was published, by falling last number.
        model: the name under test; "" for none.
        figures: its shares in the order of the columns; None, and fewer, for what was not measured.
    """
    right: list[Align] = ["right"] * len(table.columns)
    rows, marked = list(table.rows), None
    known = [figure for figure in figures if figure is not None and figure.value is not None]
    if known:
        own = [None if figure is None or figure.value is None else 100 * figure.value for figure in figures]
        own += [None] * (len(table.columns) - len(own))
        # By the last column; by the first that is known where the last is not.
        by = next(at for at in (-1, *range(len(own))) if own[at] is not None)
        marked = sum((row.numbers[by] or 0.0) > (own[by] or 0.0) for row in rows)
        policy = known[0].policy.partition(",")[0] or "–"
        rows.insert(marked, _row(model, tuple(own), policy, "this run"))
    return Table(
        title=table.title,
        columns=("Model", *table.columns, "Threshold", "Source"),
        rows=tuple(
            (row.model, *("–" if n is None else f"{n:.1f}" for n in row.numbers), row.policy, row.source)
            for row in rows
        ),
        marked=marked,
        note=table.note,
        align=("left", *right, "left", "left"),
    )
