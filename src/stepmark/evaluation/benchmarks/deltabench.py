"""DeltaBench (He et al. 2025, arXiv 2502.19361, and its evaluation.py): which sections of a long chain of thought are wrong. The truth of a
row is `reason_error_section_numbers` together with `reason_unuseful_section_numbers`, counted from 1; sections after the last of them are
left out, for annotation ends there. Precision, recall and F1 of the wrong sections: the means over rows (macro), and of all sections together
(micro). Rows without a wrong section are in no figure, as in the authors' means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from stepmark.data.reading import Row, Source, read_rows
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import (
    PublishedTable,
    Rated,
    Ratings,
    rated,
    text_of,
)
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import Item
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.records import Problem, Solution, Step
from stepmark.settings import settings

_PUBLISHED = PublishedTable.read(
    "DeltaBench macro F1 as published (%)",
    {"Math": "math/f1", "Code": "code/f1", "PCB": "pcb/f1", "General": "general/f1", "Overall": "*/f1"},
    """
    GPT-4-turbo-128k        | 37.56 43.06 45.54 42.17 40.76 | critic     | DeltaBench, README of OpenStellarTeam/DeltaBench
    GPT-4o-mini             | 33.26 37.95 45.98 46.39 37.82 | critic     | DeltaBench, README of OpenStellarTeam/DeltaBench
    GPT-4o                  | 28.61 28.53 39.25 36.5 30.85  | critic     | DeltaBench, README of OpenStellarTeam/DeltaBench
    Qwen2.5-Math-PRM-7B     | 29.64 23.76 31.09 34.19 29.22 | not stated | DeltaBench, README of OpenStellarTeam/DeltaBench
    DeepSeek-R1             | 24.17 29.28 34.78 35.87 28.43 | critic     | DeltaBench, README of OpenStellarTeam/DeltaBench
    Qwen2.5-Math-PRM-72B    | 24.16 22.02 31.14 35.83 26.38 | not stated | DeltaBench, README of OpenStellarTeam/DeltaBench
    RLHFlow-PRM-Deepseek-8B | 12.28 10.95 16.76 12.59 12.02 | not stated | DeltaBench, README of OpenStellarTeam/DeltaBench
    RLHFlow-PRM-Mistral-8B  | 9.4 10.72 13.43 12.4 9.45     | not stated | DeltaBench, README of OpenStellarTeam/DeltaBench
    Skywork-PRM-1.5B        | 1.3 6.66 5.43 7.87 3.07       | not stated | DeltaBench, README of OpenStellarTeam/DeltaBench
    Skywork-PRM-7B          | 0.78 6.28 6.02 3.11 2.17      | not stated | DeltaBench, README of OpenStellarTeam/DeltaBench
    """,
)


@settings
class DeltaBench(Rated):
    """F1 of the wrong sections of long chains of thought on DeltaBench, by domain, with intervals.

    The data are its rows: `question`, `sections_content`, `reason_error_section_numbers`, `reason_unuseful_section_numbers`, `task_l1`, `id`.
    """

    name: ClassVar[str] = "deltabench"
    title: ClassVar[str] = "DeltaBench"
    shown: ClassVar[Mapping[str, str]] = {
        "F1, macro": "f1", "Precision, macro": "precision", "Recall, macro": "recall", "F1, micro": "micro f1",
        "F1, macro, all sections named": "f1, all named",
    }  # fmt: skip
    question: ClassVar[str] = "which sections of a long thought are wrong?"
    paper: ClassVar[str] = "arXiv 2502.19361"
    home: ClassVar[str] = "github.com/OpenStellarTeam/DeltaBench"
    files: ClassVar[tuple[str, ...]] = ("Deltabench_v1.jsonl",)
    published: ClassVar[PublishedTable | None] = _PUBLISHED

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        for row in read_rows(file, columns=run.columns):
            texts = _sections(row)
            wrong = _numbers(row, "reason_error_section_numbers", len(texts))
            wrong |= _numbers(row, "reason_unuseful_section_numbers", len(texts))
            id = text_of(row, "id")
            solution = Solution(
                problem=Problem(text=text_of(row, "question")),
                steps=tuple(Step(text=text.strip() or "(nothing)") for text in texts),
                id=id,
            )
            ratings = [-1 if at in wrong else 1 for at in range(1, len(texts) + 1)]
            group = str(row.data.get("task_l1") or "")
            yield Case(id=id, labelled=rated(solution, ratings), where=row.where, group=group)

    def predicted(self, row: Row, cases: Mapping[str, Case]) -> tuple[str, Ratings] | None:
        """See `Rated.predicted`: rows of the authors' script, with `error_sections_nums`."""
        case = cases.get(str(row.data.get("id")))
        numbers = row.data.get("error_sections_nums")
        if case is None or not isinstance(numbers, list):
            return None
        return case.id, tuple(-1 if at + 1 in numbers else 1 for at in range(len(case.solution.steps)))

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`."""
        counts = []
        for item in items:
            last = max((at for at, rating in enumerate(item["truth"], 1) if rating == -1), default=0)
            pairs = [
                (true == -1, named == -1)
                for true, named in zip(item["truth"][:last], item["named"][:last], strict=True)
            ]
            counts.append((pairs.count((True, True)), pairs.count((False, True)), pairs.count((True, False))))
        hits, alarms, misses = np.array(counts, dtype=float).reshape(-1, 3).T
        wrong = hits + misses
        known = (wrong > 0).astype(float)
        length = np.array(
            [max((at for at, r in enumerate(i["truth"], 1) if r == -1), default=0) for i in items], float
        )

        def divided(top: Floats, bottom: Floats) -> Floats:
            return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)

        macro = {
            "f1": divided(2 * hits, 2 * hits + alarms + misses),
            "precision": divided(hits, hits + alarms),
            "recall": divided(hits, wrong),
            "f1, all named": divided(2 * wrong, wrong + length),
        }

        def figures(weights: Floats) -> Mapping[str, Floats]:
            values = {name: shares(weights @ (each * known), weights @ known) for name, each in macro.items()}
            return values | {
                "micro f1": shares(2 * (weights @ hits), weights @ (2 * hits + alarms * known + misses))
            }

        return figures


def _sections(row: Row) -> list[str]:
    text = row.data.get("sections_content", row.data.get("section_content"))
    if not isinstance(text, str):
        raise row.error("expected the sections as one text, found none", "sections_content")
    parts = re.split(r"(?mi)^section\s*(\d+)\s*:", text)
    numbers = [int(number) for number in parts[1::2]]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise row.error(f"expected sections numbered from 1, found {numbers[:9]}", "sections_content")
    return parts[2::2]


def _numbers(row: Row, column: str, sections: int) -> set[int]:
    listed = row.data.get(column)
    if not isinstance(listed, list) or any(
        type(number) is not int or not 1 <= number <= sections for number in listed
    ):
        raise row.error(f"expected a list of numbers from 1 to {sections}, found {listed!r:.80}", column)
    return set(listed)
