"""AgentProcessBench: is each turn of a tool-using agent right, neutral or wrong.

Source: Fan et al. 2026, "AgentProcessBench", arXiv 2603.14465, and its eval/compare.py. Rows are conversations (`messages`) with
`step_labels`: the index of each assistant message to 1, 0 or -1. StepAcc: the share of turns that are rated as people rate them.
FirstErrAcc: the share of conversations whose first turn of -1 is named exactly, none counting as such. "All" counts every turn, and every
conversation, once. As a baseline the rating, and the first error, that is commonest in the part.

A PRM with a threshold calls no turn neutral; one of three classes does with `threshold` argmax. `labels` takes the predictions of the
authors' repository too.

Deviation from the authors' script: it takes turns without a rating for turns that are not wrong, so that a model that failed has found every
conversation without an error. Here such a conversation counts as missed; `scoring` "script" does as the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from stepmark.data.reading import Row, Source, read_rows
from stepmark.data.solutions import solutions_of
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import PublishedTable, Rated, Ratings, rated
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import Item
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Statistic, ratio_statistic
from stepmark.settings import settings
from stepmark.words import amount

_PARTS = ("hotpotqa", "gaia", "bfcl", "tau2")

_PUBLISHED = PublishedTable.read(
    "AgentProcessBench as published (%): StepAcc and FirstErrAcc",
    {"HotpotQA, step": "hotpotqa/step", "HotpotQA, first": "hotpotqa/first error", "GAIA, step": "gaia/step", "GAIA, first": "gaia/first error", "BFCL, step": "bfcl/step", "BFCL, first": "bfcl/first error", "tau2, step": "tau2/step", "tau2, first": "tau2/first error", "All, step": "all/step", "All, first": "all/first error"},
    """
    Gemini-3-Flash-Preview-Thinking | 75.8 70.4 79.7 65.2 81.8 64 83.4 63.6 81.6 65.8   | critic | README of RUCBM/AgentProcessBench
    Kimi-K2.5-Thinking              | 70.6 68.4 66.6 58 79.8 57.6 78.3 65.6 75.9 62.4   | critic | README of RUCBM/AgentProcessBench
    GPT-5.2-Chat                    | 71.4 70 69.3 58 71.6 58 80.4 58.4 74.8 61.1       | critic | README of RUCBM/AgentProcessBench
    GPT-5.2-Thinking (medium)       | 72.3 73.2 70.9 58.8 64.9 44.4 75.2 53.6 71 57.5   | critic | README of RUCBM/AgentProcessBench
    Gemini-3-Flash-Preview          | 76.7 70 73.8 53.2 77.6 40.8 81.2 56 78.3 55       | critic | README of RUCBM/AgentProcessBench
    Qwen3-30B-A3B-Thinking-2507     | 70 64.8 53.1 46.4 73.2 35.2 71.8 61.6 68.5 52     | critic | README of RUCBM/AgentProcessBench
    Qwen3-8B-Thinking               | 59.7 58 45.9 41.2 70.9 38.8 66.4 46 63.2 46       | critic | README of RUCBM/AgentProcessBench
    Qwen3-8B                        | 60.4 57.2 39.9 32 64.9 30.8 58.5 42.8 57.1 40.7   | critic | README of RUCBM/AgentProcessBench
    LLaMA-3.1-8B-Instruct           | 34.6 53.6 26.8 31.2 61.2 28.8 61.1 47.2 52.3 40.2 | critic | README of RUCBM/AgentProcessBench
    """,
    note="All: every step, and every trajectory, counts once.",
)  # fmt: skip


@settings
class AgentProcessBench(Rated):
    """StepAcc and FirstErrAcc on AgentProcessBench, by source of the tasks and over all, with intervals.

    The data are its files, a folder of them, or JSON lines of the same rows.
    """

    name: ClassVar[str] = "agent-processbench"
    title: ClassVar[str] = "AgentProcessBench"
    shown: ClassVar[Mapping[str, str]] = {
        "StepAcc": "step", "FirstErrAcc": "first error", "StepAcc, the commonest": "step, the commonest",
        "FirstErrAcc, the commonest": "first error, the commonest",
    }  # fmt: skip
    question: ClassVar[str] = "is a turn of an agent right, neutral or wrong?"
    paper: ClassVar[str] = "arXiv 2603.14465"
    home: ClassVar[str] = "github.com/RUCBM/AgentProcessBench"
    published: ClassVar[PublishedTable | None] = _PUBLISHED
    note: ClassVar[str] = "All: every turn, and every conversation, counts once."

    scoring: Literal["exact", "script"] = "exact"
    """Whether a conversation without ratings counts as missed, or as in the authors' script as one without an error."""

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        for row in read_rows(file, columns=run.columns):
            messages = row.data.get("messages")
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise row.error("expected a list of messages", "messages")
            turns = [f"messages[{at}]" for at, item in enumerate(messages) if item.get("role") == "assistant"]
            labels = _labels(row)
            if set(labels) != set(turns):
                raise row.error(
                    f"expected a label of each of {amount(len(turns), 'assistant message')}", "step_labels"
                )
            (read,) = solutions_of(replace(row, data={"messages": _filled(row, messages)}), how="agent")
            solution = replace(read.solution, id=_id(row))
            source = str(row.data.get("data_source") or "")
            yield Case(
                id=_id(row),
                labelled=rated(solution, [labels[turn] for turn in turns], turns),
                where=row.where,
                group=next((part for part in _PARTS if part in source.lower()), source),
            )

    def predicted(self, row: Row, cases: Mapping[str, Case]) -> tuple[str, Ratings] | None:
        """See `Rated.predicted`: rows with `step_labels`, as the authors' repository has them."""
        if not isinstance(row.data.get("step_labels"), dict):
            return None
        case, labels = cases.get(_id(row)), _labels(row, failed=True)
        if case is None:
            return None
        return case.id, tuple(labels.get(str(judgements[0].note)) for judgements in case.labelled.judgements)

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`."""
        rating = Counter(rating for item in items for rating in item["truth"]).most_common(1)[0][0]
        first = Counter(first_wrong(item["truth"]) for item in items).most_common(1)[0][0]
        turns = [len(item["truth"]) for item in items]
        each = [1.0] * len(items)
        right = [sum(map(_same, item["truth"], item["named"])) for item in items]
        return ratio_statistic(
            {
                "step": (right, turns),
                "first error": ([first_wrong(i["truth"]) == self._first(i["named"]) for i in items], each),
                "step, the commonest": ([item["truth"].count(rating) for item in items], turns),
                "first error, the commonest": ([first_wrong(item["truth"]) == first for item in items], each),
            }
        )

    def _first(self, named: Sequence[int | None]) -> int | None:
        return first_wrong(named if self.scoring == "exact" else [rating or 0 for rating in named])


def _same(a: int, b: int | None) -> bool:
    return a == b


def _id(row: Row) -> str:
    parts = [row.data.get(key) for key in ("data_source", "query_index", "sample_index")]
    if any(part is None for part in parts):
        raise row.error("expected data_source, query_index and sample_index", "query_index")
    return ":".join(map(str, parts))


def _labels(row: Row, *, failed: bool = False) -> dict[str, Any]:
    labels, may = row.data.get("step_labels"), {-1, 0, 1, *([None] if failed else [])}
    if not isinstance(labels, dict) or not labels or not set(labels.values()) <= may:
        raise row.error("expected the index of each assistant message to -1, 0 or 1", "step_labels")
    return {f"messages[{index}]": label for index, label in labels.items()}


def _filled(row: Row, messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The messages, every assistant's one with a text or a call, and a task before the first: the labels count them all."""
    asked = row.data.get("question") or row.data.get("task_description")
    opens = messages[0].get("role") == "assistant" and isinstance(asked, str)
    blank = [
        message.get("role") == "assistant"
        and not message.get("tool_calls")
        and not str(message.get("content") or "").strip()
        for message in messages
    ]
    filled = [
        {**item, "content": "(nothing)"} if empty else item
        for item, empty in zip(messages, blank, strict=True)
    ]
    return [{"role": "user", "content": asked}, *filled] if opens else filled
