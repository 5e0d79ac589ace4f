"""ToolPRMBench: of two next actions of a tool-using agent, which is right.

Source: Li et al. 2026, arXiv 2601.12294, and the data's README. Rows are `history` (chat turns of role and content), `action_chosen`,
`action_rejected` and `functions`. Accuracy: the share of pairs in which the chosen action has the higher score; by file, and the
unweighted average over the files. The authors show judges both actions at once; a PRM scores each by itself, after the same history.

A tie counts as half, a pair that could not be read as lost. Guessing gives 50.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from stepmark.data.conversations import read_messages
from stepmark.data.reading import Row, read_rows
from stepmark.errors import InputError
from stepmark.evaluation.cases import Case, unique
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.published import TOOL_PRMBENCH, published_table
from stepmark.evaluation.result import Figure, Item, shown
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.step_labels import rated
from stepmark.evaluation.views import cell, table_of, tile, unreadable
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.records import Problem, Solution
from stepmark.settings import settings
from stepmark.show.evaluation import Section
from stepmark.show.text import amount

_SIDES = ("chosen", "rejected")
_PARTS = ("GTA", "tooltalk", "bfcl", "ToolSandbox", "average")


@settings
class ToolPRMBench(Evaluation):
    """Accuracy on the pairs of ToolPRMBench, by file and on average, with intervals.

    The data are its files of pairs (prmbench_GTA.json and so on), or a folder of them.
    """

    name: ClassVar[str] = "tool-prmbench"
    functions: bool = True
    """Show the PRM the specifications of the tools, before the conversation."""

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        cases = []
        for file in run.data:
            group = Path(file).stem.removeprefix("prmbench_") if isinstance(file, str | Path) else "pairs"
            for number, row in enumerate(read_rows(file, columns=run.columns)):
                for side in _SIDES:
                    solution = _solution(row, side, self.functions, f"{group}/{number}/{side}")
                    assert solution.id is not None
                    before: list[int | None] = [None] * (len(solution.steps) - 1)  # nobody rated the history
                    ratings = [*before, 1 if side == "chosen" else -1]
                    labelled = rated(solution, ratings)
                    cases.append(Case(id=solution.id, labelled=labelled, where=row.where, group=group))
        return unique(cases)

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

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `Evaluation.statistic`."""
        won = np.array([item["won"] or 0.0 for item in items])
        groups = list(dict.fromkeys(item["group"] for item in items))
        member = {group: np.array([float(item["group"] == group) for item in items]) for group in groups}

        def figures(weights: Floats) -> Mapping[str, Floats]:
            values = {
                f"{group}/accuracy": shares(weights @ (of * won), weights @ of)
                for group, of in member.items()
            }
            if len(groups) > 1:
                values["average/accuracy"] = np.mean(list(values.values()), axis=0)
            return values

        return figures

    def views(self, figures: Mapping[str, Figure], items: Sequence[Item], sheet: Sheet) -> Views:
        """See `Evaluation.views`."""
        names = [name.split("/")[0] for name in figures]
        ties = sum(item["won"] == 0.5 for item in items)
        return Views(
            title=f"ToolPRMBench: {sheet.prm}",
            verdict=f"Prefers the right action in {shown(figures[f'{names[-1]}/accuracy'])} % of the pairs; guessing gives 50.",
            facts=(
                f"{amount(len(items), 'pair')} of actions; {amount(ties, 'tie counts', 'ties count')} as half.",
                *unreadable(sheet, "(their pairs are lost)"),
            ),
            remarks=(INTERVALS,),
            tiles=[tile(f"Accuracy, {name}", figures[f"{name}/accuracy"]) for name in names],
            sections=(
                Section(
                    title="Figures",
                    items=(
                        table_of(
                            "ToolPRMBench (%)", "Part", names, {"Accuracy": cell(figures, "{}/accuracy")},
                            note="Average: unweighted over the parts.",
                        ),
                    ),
                ),
                Section(title="Published results", items=(published_table(TOOL_PRMBENCH, sheet.prm, [figures.get(f"{part}/accuracy") for part in _PARTS]),)),
            ),
        )  # fmt: skip


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
