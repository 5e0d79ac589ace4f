"""BIG-Bench Mistake: the first logical mistake in chains of thought (Tyen et al. 2023).

Labels are 0-based, null for none. The authors' figure is the accuracy of mistake location: the share of all traces, with a mistake or
without, that are named exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stepmark.evaluation.first_errors import FirstErrors
from stepmark.settings import settings


@settings
class BigBenchMistake(FirstErrors):
    """First-error accuracy and F1 on BIG-Bench Mistake, per task and on average, with intervals.

    The data are its five files of JSON lines, or a folder of them; a file is a task.
    """

    name: ClassVar[str] = "big-bench-mistake"
    title: ClassVar[str] = "BIG-Bench Mistake"
    question: ClassVar[str] = "which step of a chain of thought is the first logical mistake?"
    paper: ClassVar[str] = "arXiv 2311.08516"
    home: ClassVar[str] = "github.com/WHGTyen/BIG-Bench-Mistake"
    licence: ClassVar[str] = "Apache-2.0"
    files: ClassVar[tuple[str, ...]] = (
        "dyck_languages.jsonl", "logical_deduction.jsonl", "multistep_arithmetic.jsonl", "tracking_shuffled_objects.jsonl",
        "word_sorting.jsonl",
    )  # fmt: skip
    columns_of: ClassVar[Mapping[str, str]] = {"problem": "input", "steps": "steps", "label": "mistake_index"}
    shown: ClassVar[Mapping[str, str]] = {**FirstErrors.shown, "Accuracy, all traces": "accuracy"}
    also: ClassVar[tuple[str, ...]] = ("accuracy",)
