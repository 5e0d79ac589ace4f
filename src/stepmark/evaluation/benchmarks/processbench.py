"""ProcessBench: is the first wrong step found, and are right solutions left alone (Zheng et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from stepmark.evaluation.benchmark import Published, PublishedTable
from stepmark.evaluation.cases import Case
from stepmark.evaluation.evaluation import Run
from stepmark.evaluation.first_errors import FirstErrors, known_error
from stepmark.evaluation.sources import read_cases, subset
from stepmark.evaluation.thresholds import check_asked
from stepmark.settings import settings

_ARGMAX = "0.5 / argmax"
_TUNED = "best on GSM8K, reused"
_ORACLE = "best of each file"
_CRITIC = "critic"
_NOT_STATED = "not stated"
_G = "GenPRM, table 1"
_A = "ActPRM, table 1"
_R = "R-PRM, README"

_PUBLISHED = PublishedTable(
    title="ProcessBench F1 as published (%)",
    columns=("GSM8K", "MATH", "OlympiadBench", "Omni-MATH", "Average"),
    figures=("gsm8k/f1", "math/f1", "olympiadbench/f1", "omnimath/f1", "average/f1"),
    rows=(
        Published("o1-mini", (93.2, 88.9, 87.2, 82.4, 87.9), _CRITIC, _G),
        Published("GenPRM-32B, majority of 8", (85.1, 86.3, 78.9, 80.1, 82.6), "majority of critiques", _G),
        Published("QwQ-32B", (87.1, 83.4, 78.7, 77.1, 81.6), _CRITIC, _G),
        Published("GenPRM-7B, majority of 8", (81.0, 85.7, 78.4, 76.8, 80.5), "majority of critiques", _G),
        Published("Qwen2.5-Math-PRM-72B", (87.3, 80.6, 74.3, 71.1, 78.3), _ARGMAX, _A),
        Published("GenPRM-32B, one critique", (83.1, 81.7, 72.8, 72.8, 77.6), "one critique", _G),
        Published("ActPRM-X", (82.7, 82.0, 72.0, 67.3, 76.0), _NOT_STATED, _A),
        Published("GenPRM-7B, one critique", (78.7, 80.3, 72.2, 69.8, 75.2), "one critique", _G),
        Published("ActPRM", (81.6, 79.8, 71.4, 67.0, 75.0), _NOT_STATED, _A),
        Published("Universal-PRM-7B", (85.8, 77.7, 67.6, 66.4, 74.3), _NOT_STATED, "its model card"),
        Published("Qwen2.5-Math-PRM-7B", (82.4, 77.6, 67.5, 66.3, 73.5), _ARGMAX, _A),
        Published("R-PRM-7B-DPO", (80.7, 76.9, 63.8, 60.1, 70.4), _ARGMAX, _R),
        Published("RetrievalPRM-7B", (74.6, 71.1, 60.2, 57.3, 65.8), _NOT_STATED, _G),
        Published("GenPRM-1.5B, majority of 8", (51.3, 74.4, 65.3, 62.5, 63.4), "majority of critiques", _G),
        Published("GPT-4o-0806", (79.2, 63.6, 51.4, 53.5, 61.9), _CRITIC, _G),
        Published("PURE-PRM-7B", (69.0, 66.5, 48.4, 45.9, 57.5), _NOT_STATED, _A),
        Published("Qwen2.5-Math-7B-PRM800K", (68.2, 62.6, 50.7, 44.3, 56.5), _ARGMAX, _A),
        Published("Dyve-14B", (68.5, 58.3, 49.0, 47.2, 55.8), _NOT_STATED, _G),
        Published("Skywork-PRM-7B", (70.8, 53.6, 22.9, 21.0, 42.1), _TUNED, _A),
        Published("Skywork-PRM-1.5B", (59.0, 48.0, 19.3, 19.2, 36.4), _TUNED, _A),
        Published("Math-Shepherd-PRM-7B", (47.9, 29.5, 24.8, 23.8, 31.5), _ARGMAX, _A),
        Published("EurusPRM-Stage2", (47.3, 35.7, 21.2, 20.9, 31.3), _ORACLE, _A),
        Published("EurusPRM-Stage1", (44.3, 35.6, 21.7, 23.1, 31.2), _ORACLE, _A),
        Published("RLHFlow-PRM-Mistral-8B", (50.4, 33.4, 13.8, 15.8, 28.4), _ARGMAX, _A),
        Published("RLHFlow-PRM-Deepseek-8B", (38.8, 33.8, 16.9, 16.9, 26.6), _ARGMAX, _A),
    ),
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
