"""What a grader does on held-out problems: loss, accuracy, AUC, and first errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepmark.metrics.binary import auc
from stepmark.metrics.first_error import first_errors
from stepmark.training.examples import Example


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Figures on held-out steps; None where they cannot be told."""

    loss: float
    """The objective's own, a label."""
    labels: int
    accuracy: float | None
    """Share of labelled steps on the right side of the threshold, of those whose target is not one half. Not calibrated. For an
    objective that fits outcomes: of solutions, by the score of their last step."""
    auc: float | None
    """Probability that a right step scores above a wrong one, ties half. None where all are right or all wrong. For an objective
    that fits outcomes: of solutions, by the score of their last step."""
    first_error_f1: float | None
    """Of whole solutions at the threshold (`first_errors`), where steps are labelled and scored. None without wrong or without
    right ones."""
    solutions: int
    """How many those are."""

    def words(self) -> list[str]:
        """Loss, accuracy and AUC for people, as far as they are known."""
        named = (("loss", self.loss), ("accuracy", self.accuracy), ("AUC", self.auc))
        return [f"{name} {value:.3f}" for name, value in named if value is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """An example and what the network in training scores at its steps; None for a step that is not read."""

    example: Example
    scores: tuple[float | None, ...]


def measure(
    graded: Sequence[Graded], *, loss: float, labels: float, threshold: float = 0.5, outcomes: bool = False
) -> Measure:
    """Figures of graded held-out examples.

    Args:
        graded: each row by itself; a step that rows share counts for each.
        loss: the sum of losses.
        labels: the sum of weights.
        threshold: under it a step counts as wrong: 0.5 for probabilities, 0 for log-ratios.
        outcomes: accuracy and AUC are of whole solutions instead of steps.
    """
    pairs = _outcomes(graded) if outcomes else _steps(graded)
    sided = [(score, value > 0.5) for score, value in pairs if value != 0.5]
    both = len({right for _, right in sided}) == 2
    rows, truth = solutions_of(graded)
    wrong = sum(at >= 0 for at in truth)
    found = first_errors(rows, truth, threshold) if 0 < wrong < len(truth) else None
    return Measure(
        loss=loss / labels if labels else math.nan,
        labels=round(labels),
        accuracy=sum((score > threshold) == right for score, right in sided) / len(sided) if sided else None,
        auc=auc([score for score, _ in sided], [float(right) for _, right in sided]) if both else None,
        first_error_f1=found.f1 if found is not None else None,
        solutions=len(truth),
    )


def _steps(graded: Sequence[Graded]) -> list[tuple[float, float]]:
    return [
        (score, target.value)
        for one in graded
        for score, target in zip(one.scores, one.example.targets, strict=True)
        if target is not None and score is not None
    ]


def _outcomes(graded: Sequence[Graded]) -> list[tuple[float, float]]:
    return [
        (score, float(one.example.outcome))
        for one in graded
        if one.example.outcome is not None and (score := one.scores[-1]) is not None
    ]


def solutions_of(graded: Sequence[Graded]) -> tuple[list[list[float]], list[int]]:
    """Scores and first errors of those examples that stand for a whole solution.

    A solution counts as wrong where one of its steps is labelled wrong, and is then cut after it. It counts as right where its last
    labelled step is right and no other right one goes on from it: a beginning of a solution has fewer chances to be suspected.
    """
    beginnings = {
        (one.example.solution.problem.text, *one.example.solution.texts[:n])
        for one in graded
        if not any(t is not None and t.value == 0.0 for t in one.example.targets)
        for n in range(1, len(one.example.solution.steps))
    }
    rows, truth = [], []
    for one in graded:
        labelled = [i for i, t in enumerate(one.example.targets) if t is not None]
        if not labelled:
            continue
        wrong = next((i for i in labelled if _value(one.example, i) == 0.0), None)
        last = labelled[-1] if wrong is None else wrong
        if wrong is None and (
            _value(one.example, last) <= 0.5
            or (one.example.solution.problem.text, *one.example.solution.texts) in beginnings
        ):
            continue
        scores = [s for s in one.scores[: last + 1] if s is not None]
        if len(scores) == last + 1:
            rows.append(scores)
            truth.append(-1 if wrong is None else wrong)
    return rows, truth


def _value(example: Example, step: int) -> float:
    target = example.targets[step]
    assert target is not None
    return target.value
