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


_LEADERBOARD = "DeltaBench, README of OpenStellarTeam/DeltaBench"

DELTABENCH = PublishedTable(
    title="DeltaBench macro F1 as published (%)",
    columns=("Math", "Code", "PCB", "General", "Overall"),
    rows=(
        _row("GPT-4-turbo-128k", (37.56, 43.06, 45.54, 42.17, 40.76), _CRITIC, _LEADERBOARD),
        _row("GPT-4o-mini", (33.26, 37.95, 45.98, 46.39, 37.82), _CRITIC, _LEADERBOARD),
        _row("GPT-4o", (28.61, 28.53, 39.25, 36.50, 30.85), _CRITIC, _LEADERBOARD),
        _row("Qwen2.5-Math-PRM-7B", (29.64, 23.76, 31.09, 34.19, 29.22), _NOT_STATED, _LEADERBOARD),
        _row("DeepSeek-R1", (24.17, 29.28, 34.78, 35.87, 28.43), _CRITIC, _LEADERBOARD),
        _row("Qwen2.5-Math-PRM-72B", (24.16, 22.02, 31.14, 35.83, 26.38), _NOT_STATED, _LEADERBOARD),
        _row("RLHFlow-PRM-Deepseek-8B", (12.28, 10.95, 16.76, 12.59, 12.02), _NOT_STATED, _LEADERBOARD),
        _row("RLHFlow-PRM-Mistral-8B", (9.40, 10.72, 13.43, 12.40, 9.45), _NOT_STATED, _LEADERBOARD),
        _row("Skywork-PRM-1.5B", (1.30, 6.66, 5.43, 7.87, 3.07), _NOT_STATED, _LEADERBOARD),
        _row("Skywork-PRM-7B", (0.78, 6.28, 6.02, 3.11, 2.17), _NOT_STATED, _LEADERBOARD),
    ),
)

HARD2VERIFY = PublishedTable(
    title="Hard2Verify balanced F1 as published (%)",
    columns=("First error",),
    rows=(_row("Qwen2.5-Math-PRM-72B", (37.3,), _NOT_STATED, "arXiv 2510.13744, figure 1"),),
)

_APB = "README of RUCBM/AgentProcessBench"

AGENT_PROCESSBENCH = PublishedTable(
    title="AgentProcessBench as published (%): StepAcc and FirstErrAcc",
    columns=(
        "HotpotQA, step", "first", "GAIA, step", "first", "BFCL, step", "first", "tau2, step", "first", "All, step", "first",
    ),
    rows=(
        _row("Gemini-3-Flash-Preview-Thinking", (75.8, 70.4, 79.7, 65.2, 81.8, 64.0, 83.4, 63.6, 81.6, 65.8), _CRITIC, _APB),
        _row("Kimi-K2.5-Thinking", (70.6, 68.4, 66.6, 58.0, 79.8, 57.6, 78.3, 65.6, 75.9, 62.4), _CRITIC, _APB),
        _row("GPT-5.2-Chat", (71.4, 70.0, 69.3, 58.0, 71.6, 58.0, 80.4, 58.4, 74.8, 61.1), _CRITIC, _APB),
        _row("GPT-5.2-Thinking (medium)", (72.3, 73.2, 70.9, 58.8, 64.9, 44.4, 75.2, 53.6, 71.0, 57.5), _CRITIC, _APB),
        _row("Gemini-3-Flash-Preview", (76.7, 70.0, 73.8, 53.2, 77.6, 40.8, 81.2, 56.0, 78.3, 55.0), _CRITIC, _APB),
        _row("Qwen3-30B-A3B-Thinking-2507", (70.0, 64.8, 53.1, 46.4, 73.2, 35.2, 71.8, 61.6, 68.5, 52.0), _CRITIC, _APB),
        _row("Qwen3-8B-Thinking", (59.7, 58.0, 45.9, 41.2, 70.9, 38.8, 66.4, 46.0, 63.2, 46.0), _CRITIC, _APB),
        _row("Qwen3-8B", (60.4, 57.2, 39.9, 32.0, 64.9, 30.8, 58.5, 42.8, 57.1, 40.7), _CRITIC, _APB),
        _row("LLaMA-3.1-8B-Instruct", (34.6, 53.6, 26.8, 31.2, 61.2, 28.8, 61.1, 47.2, 52.3, 40.2), _CRITIC, _APB),
    ),
    note="All: every step, and every trajectory, counts once.",
)  # fmt: skip

_TOOL = "arXiv 2601.12294, table 2"

TOOL_PRMBENCH = PublishedTable(
    title="ToolPRMBench accuracy as published (%)",
    columns=("GTA", "ToolTalk", "BFCL", "ToolSandbox", "Average"),
    rows=(
        _row("ToolPRM-GRPO", (84.7, 73.3, 86.4, 70.0, 78.6), "both actions shown", _TOOL),
        _row("Claude-4.5-haiku", (91.5, 93.0, 45.9, 70.0, 75.1), "both actions shown", _TOOL),
        _row("GPT-5", (87.3, 82.5, 44.1, 83.7, 74.4), "both actions shown", _TOOL),
        _row("Qwen3-8B", (66.1, 68.6, 35.2, 45.0, 53.7), "both actions shown", _TOOL),
        _row("Llemma-7b-prm", (41.5, 64.1, 45.0, 60.8, 52.8), _NOT_STATED, _TOOL),
        _row("Math-Shepherd", (59.3, 33.6, 53.0, 57.7, 50.9), _NOT_STATED, _TOOL),
        _row("Qwen2.5-Math-7B", (29.7, 69.4, 36.9, 67.0, 50.8), _NOT_STATED, _TOOL),
        _row("WebShepherd-8B", (52.0, 64.0, 37.5, 43.4, 49.2), _NOT_STATED, _TOOL),
    ),
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
