"""Hard2Verify (Pandit et al. 2025, arXiv 2510.13744): TPR is the share of right ones that are taken for right, TNR that of wrong ones.
Balanced accuracy is their mean, balanced F1 their harmonic mean: of steps; of whole responses, right when no step is wrong; and of the first
error, where a wrong response counts if its first wrong step is named and a right one if none is. A constant rating has 50 and 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from stepmark.data.reading import Source, read_rows
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import (
    PublishedTable,
    Rated,
    rated,
    steps_of,
    text_of,
)
from stepmark.evaluation.cases import Case
from stepmark.evaluation.first_errors import harmonic
from stepmark.evaluation.result import Item
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic
from stepmark.records import Problem, Solution
from stepmark.settings import settings
from stepmark.words import amount

_PUBLISHED = PublishedTable.read(
    "Hard2Verify balanced F1 as published (%)",
    {"First error": "*/first error/f1"},
    """
    Qwen2.5-Math-PRM-72B | 37.3 | not stated | arXiv 2510.13744, figure 1
    """,
)


@settings
class Hard2Verify(Rated):
    """Balanced accuracy and F1 of steps, responses and first errors on Hard2Verify, with intervals.

    The data are its rows, decrypted with the authors' function: `unique_id`, `question`, `model_response_by_step`, `human_labels`.
    """

    name: ClassVar[str] = "hard2verify"
    title: ClassVar[str] = "Hard2Verify"
    shown: ClassVar[Mapping[str, str]] = {
        f"{title}, {'balanced F1' if what == 'f1' else 'balanced accuracy'}": f"{figure}/{what}"
        for what in ("f1", "accuracy")
        for title, figure in (("Step", "step"), ("Response", "response"), ("First error", "first error"))
    }
    question: ClassVar[str] = "which steps of a proof are wrong?"
    paper: ClassVar[str] = "arXiv 2510.13744"
    published: ClassVar[PublishedTable | None] = _PUBLISHED
    note: ClassVar[str] = "A constant rating has a balanced accuracy of 50 and a balanced F1 of 0."

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        for row in read_rows(file, columns=run.columns):
            texts, labels = row.data.get("model_response_by_step"), row.data.get("human_labels")
            if isinstance(texts, str) and isinstance(row.data.get("canary"), str):
                raise row.error(
                    "the row is encrypted; decrypt it with decrypt_sample of the authors' utils.py",
                    "model_response_by_step",
                )
            steps = steps_of(row, "model_response_by_step")
            if not isinstance(labels, list) or len(labels) != len(steps) or not set(labels) <= {0, 1}:
                raise row.error(
                    f"expected {amount(len(steps), 'label')} of 0 or 1, found {labels!r:.80}", "human_labels"
                )
            id = text_of(row, "unique_id")
            solution = Solution(problem=Problem(text=text_of(row, "question")), steps=steps, id=id)
            labelled = rated(solution, [1 if label else -1 for label in labels])
            yield Case(id=id, labelled=labelled, where=row.where, group="hard2verify")

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`."""
        sides: dict[str, tuple[list[float], list[float]]] = {
            f"{what}/{side}": ([], [])
            for what in ("step", "response", "first error")
            for side in ("tpr", "tnr")
        }
        for item in items:
            steps = list(zip(item["truth"], item["named"], strict=True))
            true, named = first_wrong(item["truth"]), first_wrong(item["named"])
            side = "tpr" if true == -1 else "tnr"
            result = named == -1 if true == -1 else any(rating == -1 for rating in item["named"])
            of: dict[str, tuple[float, float]] = {
                "step/tpr": (steps.count((1, 1)), item["truth"].count(1)),
                "step/tnr": (steps.count((-1, -1)), item["truth"].count(-1)),
                f"response/{side}": (result, 1),
                f"first error/{side}": (named == true, 1),
            }
            for name, (tops, bottoms) in sides.items():
                top, bottom = of.get(name, (0, 0))
                tops.append(top)
                bottoms.append(bottom)
        ratios = ratio_statistic(sides)

        def figures(weights: Floats) -> Mapping[str, Floats]:
            values = ratios(weights)
            made: dict[str, Floats] = {}
            for what in ("step", "response", "first error"):
                a, b = values[f"{what}/tpr"], values[f"{what}/tnr"]
                made |= {f"{what}/f1": harmonic(a, b), f"{what}/accuracy": (a + b) / 2}
            return made

        return figures
