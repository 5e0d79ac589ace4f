"""PRMBench: which kinds of wrong step does a PRM see (Song et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stepmark.evaluation.benchmark import PublishedTable
from stepmark.evaluation.prm_score import PRMScore
from stepmark.settings import settings

_PUBLISHED = PublishedTable.read(
    "PRMBench overall PRMScore as published (%)",
    {"Overall": "overall/prmscore"},
    """
    Gemini-2.0-flash-thinking | 68.8 | critic     | PRMBench leaderboard
    o1-mini                   | 68.8 | critic     | PRMBench leaderboard
    Qwen2.5-Math-PRM-72B      | 68.2 | 0.5        | PRMBench leaderboard
    GPT-4o                    | 66.8 | critic     | PRMBench leaderboard
    R-PRM-7B-DPO              | 66.8 | over 0.6   | R-PRM
    ActPRM-X                  | 66.7 | not stated | ActPRM
    Gemini-2.0-flash          | 66   | critic     | PRMBench leaderboard
    Qwen2.5-Math-PRM-7B       | 65.5 | 0.5        | PRMBench leaderboard
    ActPRM                    | 65.5 | not stated | ActPRM
    PURE-PRM-7B               | 65.3 | not stated | PRMBench leaderboard
    """,
    note="The benchmark's own wrapper cut the Qwen models' prompt short, so their entries may be low.",
)


@settings
class PRMBench(PRMScore):
    """PRMScore on PRMBench, per class, per category and overall, as the benchmark defines it, with intervals.

    The data are PRMBench files, a folder of them, or "hub" to download them.
    """

    name: ClassVar[str] = "prmbench"
    title: ClassVar[str] = "PRMBench"
    question: ClassVar[str] = "which kinds of wrong step are seen?"
    paper: ClassVar[str] = "arXiv 2501.03124"
    licence: ClassVar[str] = "Apache-2.0"
    dataset: ClassVar[str | None] = "hitsmy/PRMBench_Preview"
    files: ClassVar[tuple[str, ...]] = ("prmtest_classified.jsonl",)
    published: ClassVar[PublishedTable | None] = _PUBLISHED
    categories: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "simplicity": ("redundency", "circular"),
        "soundness": ("counterfactual", "step_contradiction", "domain_inconsistency", "confidence"),
        "sensitivity": ("missing_condition", "deception", "multi_solutions"),
    }
    by_f1_alone: ClassVar[tuple[str, ...]] = ("multi_solutions",)
    redundant: ClassVar[tuple[str, ...]] = ("redundency", "circular")
    short: ClassVar[Mapping[str, str]] = {
        "redundency": "NR, non-redundancy",
        "circular": "NCL, no circular logic",
        "counterfactual": "ES, empirical soundness",
        "step_contradiction": "SC, step consistency",
        "domain_inconsistency": "DC, domain consistency",
        "confidence": "CI, confidence invariance",
        "missing_condition": "PS, prerequisite sensitivity",
        "deception": "DR, deception resistance",
        "multi_solutions": "MS, multi-solution consistency",
    }
