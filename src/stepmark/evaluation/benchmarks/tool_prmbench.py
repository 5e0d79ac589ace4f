"""ToolPRMBench: of two next actions of a tool-using agent, which is right.

Source: Li et al. 2026, arXiv 2601.12294, and the data's README. Rows are `history` (chat turns of role and content), `action_chosen`,
`action_rejected` and `functions`. Accuracy: the share of pairs in which the chosen action has the higher score; by file, and the
unweighted average over the files. The authors show judges both actions at once; a PRM scores each by itself, after the same history.

A tie counts as half, a pair that could not be read as lost. Guessing gives 50.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from stepmark.data.conversations import read_messages
from stepmark.data.reading import Row, Source, read_rows
from stepmark.errors import InputError
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import Benchmark, PublishedTable, rated
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import EvaluationResult, Figure, Item, shown
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.views import unreadable
from stepmark.metrics.intervals import Statistic, ratio_statistic
from stepmark.records import Problem, Solution
from stepmark.settings import settings
from stepmark.words import amount

_SIDES = ("chosen", "rejected")

_PUBLISHED = PublishedTable.read(
    "ToolPRMBench accuracy as published (%)",
    {
        "GTA": "GTA/accuracy",
        "ToolTalk": "tooltalk/accuracy",
        "BFCL": "bfcl/accuracy",
        "ToolSandbox": "ToolSandbox/accuracy",
        "Average": "average/accuracy",
    },
    """
    ToolPRM-GRPO     | 84.7 73.3 86.4 70 78.6   | both actions shown | arXiv 2601.12294, table 2
    Claude-4.5-haiku | 91.5 93 45.9 70 75.1     | both actions shown | arXiv 2601.12294, table 2
    GPT-5            | 87.3 82.5 44.1 83.7 74.4 | both actions shown | arXiv 2601.12294, table 2
    Qwen3-8B         | 66.1 68.6 35.2 45 53.7   | both actions shown | arXiv 2601.12294, table 2
    Llemma-7b-prm    | 41.5 64.1 45 60.8 52.8   | not stated         | arXiv 2601.12294, table 2
    Math-Shepherd    | 59.3 33.6 53 57.7 50.9   | not stated         | arXiv 2601.12294, table 2
    Qwen2.5-Math-7B  | 29.7 69.4 36.9 67 50.8   | not stated         | arXiv 2601.12294, table 2
    WebShepherd-8B   | 52 64 37.5 43.4 49.2     | not stated         | arXiv 2601.12294, table 2
    """,
)


@settings
class ToolPRMBench(Benchmark):
    """Accuracy on the pairs of ToolPRMBench, by file and on average, with intervals.

    The data are its files of pairs (prmbench_GTA.json and so on), or a folder of them.
    """

    name: ClassVar[str] = "tool-prmbench"
    title: ClassVar[str] = "ToolPRMBench"
    question: ClassVar[str] = "which of two next actions of an agent is right?"
    paper: ClassVar[str] = "arXiv 2601.12294"
    overall: ClassVar[Literal["average", "all"]] = "average"
    shown: ClassVar[Mapping[str, str]] = {"Accuracy": "accuracy"}
    published: ClassVar[PublishedTable | None] = _PUBLISHED

    functions: bool = True
    """Show the PRM the specifications of the tools, before the conversation."""

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`: two of each pair."""
        group = Path(file).stem.removeprefix("prmbench_") if isinstance(file, str | Path) else "pairs"
        for number, row in enumerate(read_rows(file, columns=run.columns)):
            for side in _SIDES:
                solution = _solution(row, side, self.functions, f"{group}/{number}/{side}")
                assert solution.id is not None
                before: list[int | None] = [None] * (len(solution.steps) - 1)  # nobody rated the history
                labelled = rated(solution, [*before, 1 if side == "chosen" else -1])
                yield Case(id=solution.id, labelled=labelled, where=row.where, group=group)

    def items(self, sheet: Sheet) -> Sequence[Item]:
        """See `Evaluation.items`."""
        last = {row.case.id: row.scores[-1] for row in sheet.rows}
        items = []
        for row in sheet.rows:
            pair, side = row.case.id.rsplit("/", 1)
            if side == "chosen" and f"{pair}/rejected" in last:
                right, wrong = last[f"{pair}/chosen"], last[f"{pair}/rejected"]
                won = None if right is None or wrong is None else (right > wrong) + 0.5 * (right == wrong)
                items.append({"id": pair, "problem": row.case.problem, "group": row.case.group, "won": won})
        return items

    def of_sheet(self, sheet: Sheet, run: Run) -> EvaluationResult:
        """See `Evaluation.of_sheet`."""
        return self.finished(self.items(sheet), run, sheet.prm, sheet)

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`."""
        return ratio_statistic({"accuracy": ([item["won"] or 0.0 for item in items], [1.0] * len(items))})

    def facts(self, items: Sequence[Item], sheet: Sheet | None) -> list[str]:
        """See `Benchmark.facts`."""
        ties = sum(item["won"] == 0.5 for item in items)
        return [
            f"{amount(len(items), 'pair')} of actions; {amount(ties, 'tie counts', 'ties count')} as half.",
            *(unreadable(sheet, "(their pairs are lost)") if sheet is not None else []),
        ]

    def verdict(self, figures: Mapping[str, Figure], last: str) -> str:
        """See `Benchmark.verdict`."""
        return f"Prefers the right action in {shown(figures[f'{last}/accuracy'])} % of the pairs; guessing gives 50."


def _solution(row: Row, side: str, functions: bool, id: str) -> Solution:
    history, action, tools = (row.data.get(key) for key in ("history", f"action_{side}", "functions"))
    if not isinstance(history, list) or not history or not all(isinstance(item, dict) for item in history):
        raise row.error("expected a list of messages", "history")
    text = action if isinstance(action, str) else json.dumps(action, ensure_ascii=False)
    if action is None or not text.strip():
        raise row.error(f"expected an action, found {action!r:.80}", f"action_{side}")
    opening = (
        [{"role": "system", "content": json.dumps(tools, ensure_ascii=False)}] if functions and tools else []
    )
    messages = [*opening, *map(_message, history), {"role": "assistant", "content": text}]
    try:
        problem, steps = read_messages(messages, where=row.where, how="agent")
    except InputError as error:
        raise error.at(row.where) from None
    return Solution(problem=Problem(text=problem.text), steps=steps.steps, id=id, split="agent")


def _message(message: Mapping[str, object]) -> Mapping[str, object]:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"role": message.get("role"), "content": text if text.strip() else "(nothing)"}
