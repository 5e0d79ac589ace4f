"""ProcessBench: is the first wrong step found, and are right solutions left alone (Zheng et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import PublishedTable
from stepmark.evaluation.cases import Case
from stepmark.evaluation.first_errors import FirstErrors, known_error
from stepmark.evaluation.sources import read_cases, subset
from stepmark.evaluation.thresholds import check_asked
from stepmark.settings import settings

_PUBLISHED = PublishedTable.read(
    "ProcessBench F1 as published (%)",
    {
        "GSM8K": "gsm8k/f1",
        "MATH": "math/f1",
        "OlympiadBench": "olympiadbench/f1",
        "Omni-MATH": "omnimath/f1",
        "Average": "average/f1",
    },
    """
    o1-mini                    | 93.2 88.9 87.2 82.4 87.9 | critic                | GenPRM, table 1
    GenPRM-32B, majority of 8  | 85.1 86.3 78.9 80.1 82.6 | majority of critiques | GenPRM, table 1
    QwQ-32B                    | 87.1 83.4 78.7 77.1 81.6 | critic                | GenPRM, table 1
    GenPRM-7B, majority of 8   | 81 85.7 78.4 76.8 80.5   | majority of critiques | GenPRM, table 1
    Qwen2.5-Math-PRM-72B       | 87.3 80.6 74.3 71.1 78.3 | 0.5 / argmax          | ActPRM, table 1
    GenPRM-32B, one critique   | 83.1 81.7 72.8 72.8 77.6 | one critique          | GenPRM, table 1
    ActPRM-X                   | 82.7 82 72 67.3 76       | not stated            | ActPRM, table 1
    GenPRM-7B, one critique    | 78.7 80.3 72.2 69.8 75.2 | one critique          | GenPRM, table 1
    ActPRM                     | 81.6 79.8 71.4 67 75     | not stated            | ActPRM, table 1
    Universal-PRM-7B           | 85.8 77.7 67.6 66.4 74.3 | not stated            | its model card
    Qwen2.5-Math-PRM-7B        | 82.4 77.6 67.5 66.3 73.5 | 0.5 / argmax          | ActPRM, table 1
    R-PRM-7B-DPO               | 80.7 76.9 63.8 60.1 70.4 | 0.5 / argmax          | R-PRM, README
    RetrievalPRM-7B            | 74.6 71.1 60.2 57.3 65.8 | not stated            | GenPRM, table 1
    GenPRM-1.5B, majority of 8 | 51.3 74.4 65.3 62.5 63.4 | majority of critiques | GenPRM, table 1
    GPT-4o-0806                | 79.2 63.6 51.4 53.5 61.9 | critic                | GenPRM, table 1
    PURE-PRM-7B                | 69 66.5 48.4 45.9 57.5   | not stated            | ActPRM, table 1
    Qwen2.5-Math-7B-PRM800K    | 68.2 62.6 50.7 44.3 56.5 | 0.5 / argmax          | ActPRM, table 1
    Dyve-14B                   | 68.5 58.3 49 47.2 55.8   | not stated            | GenPRM, table 1
    Skywork-PRM-7B             | 70.8 53.6 22.9 21 42.1   | best on GSM8K, reused | ActPRM, table 1
    Skywork-PRM-1.5B           | 59 48 19.3 19.2 36.4     | best on GSM8K, reused | ActPRM, table 1
    Math-Shepherd-PRM-7B       | 47.9 29.5 24.8 23.8 31.5 | 0.5 / argmax          | ActPRM, table 1
    EurusPRM-Stage2            | 47.3 35.7 21.2 20.9 31.3 | best of each file     | ActPRM, table 1
    EurusPRM-Stage1            | 44.3 35.6 21.7 23.1 31.2 | best of each file     | ActPRM, table 1
    RLHFlow-PRM-Mistral-8B     | 50.4 33.4 13.8 15.8 28.4 | 0.5 / argmax          | ActPRM, table 1
    RLHFlow-PRM-Deepseek-8B    | 38.8 33.8 16.9 16.9 26.6 | 0.5 / argmax          | ActPRM, table 1
    """,
    note="Numbers of different policies are not comparable: an oracle threshold alone is worth tens of points to a weak PRM.",
)


@settings
class ProcessBench(FirstErrors):
    """First-error accuracy and F1 on ProcessBench, per subset and on average, with intervals.

    The data are ProcessBench files (JSON lines or its own .json), a folder of them, or "hub" to download the four; or labelled solutions of
    any other format, of which each file is a subset.
    """

    name: ClassVar[str] = "processbench"
    title: ClassVar[str] = "ProcessBench"
    question: ClassVar[str] = "which step of a solution in mathematics is the first wrong one?"
    paper: ClassVar[str] = "arXiv 2412.06559"
    licence: ClassVar[str] = "Apache-2.0"
    dataset: ClassVar[str | None] = "Qwen/ProcessBench"
    files: ClassVar[tuple[str, ...]] = ("gsm8k.json", "math.json", "olympiadbench.json", "omnimath.json")
    published: ClassVar[PublishedTable | None] = _PUBLISHED

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        cases = [
            case if case.group else replace(case, group=subset(case.id, case.where))
            for case in read_cases(run.data, columns=run.columns)
        ]
        for case in cases:
            known_error(case)
        check_asked(self.threshold, list(dict.fromkeys(case.group for case in cases)))
        return cases
