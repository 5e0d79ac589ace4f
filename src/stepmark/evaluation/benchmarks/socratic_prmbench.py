"""Socratic-PRMBench: wrong steps under six patterns of reasoning (Li et al. 2025).

Rows are PRMBench's, and so is the metric; a pattern is the mean of its classes. Numbers in front of steps are kept: here they are items of
a plan, part of the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stepmark.evaluation.prm_score import PRMScore
from stepmark.settings import settings


@settings
class SocraticPRMBench(PRMScore):
    """PRMScore on Socratic-PRMBench, per class, per pattern of reasoning and overall, with intervals.

    The data are its files (test_conclusion_invalidity.jsonl and so on), or a folder of them.
    """

    name: ClassVar[str] = "socratic-prmbench"
    title: ClassVar[str] = "Socratic-PRMBench"
    question: ClassVar[str] = "in which patterns of reasoning are wrong steps seen?"
    paper: ClassVar[str] = "arXiv 2505.23474"
    home: ClassVar[str] = "github.com/Xiang-Li-oss/Socratic-PRMBench"
    licence: ClassVar[str] = "none stated"
    numbered: ClassVar[bool] = False
    categories: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "transformation": ("repeat_inconsistency", "repeat_counterfactual"),
        "decomposition": ("decomposition_unsoundness", "decomposition_redundancy", "decomposition_incompleteness"),
        "regather": ("regather_imprecision", "regather_redundancy", "regather_incompleteness"),
        "deduction": (
            "premise_unsoundness", "premise_redundancy", "premise_incompleteness",
            "conclusion_invalidity", "conclusion_inconsistency", "conclusion_counterfactual",
        ),
        "verification": ("detection_error", "correction_error"),
        "integration": (
            "integration_inconsistency", "integration_incompleteness", "integration_redundancy", "integration_unsoundness",
        ),
    }  # fmt: skip
