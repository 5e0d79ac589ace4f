"""What a grader does on held-out problems (loss, AUC, first errors), and its calibration on the scores of the end of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.metrics.binary import auc
from stepmark.metrics.first_error import FirstErrorAccuracy, best_threshold, first_errors
from stepmark.metrics.scaling import logit, platt, sigmoid
from stepmark.models.spec import ScoringSpec, store_calibration
from stepmark.training.examples import Dropped, Example, known_value
from stepmark.training.held_out import HeldOut
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.models.prm import PRM


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Figures on held-out steps; None where they cannot be told."""

    loss: float
    """The objective's own, a label."""
    labels: int
    auc: float | None
    """Probability that a right step scores above a wrong one, ties half. None where all are right or all wrong. For an objective
    that fits outcomes: of solutions, by the score of their last step."""
    first_error_f1: float | None
    """Of whole solutions at the threshold (`first_errors`), where steps are labelled and scored. None without wrong or without
    right ones."""
    solutions: int
    """How many those are."""

    def words(self) -> list[str]:
        """Loss and AUC for people, as far as they are known."""
        named = (("loss", self.loss), ("AUC", self.auc))
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
        threshold: under it a step counts as wrong: 0.5 for probabilities, 0 for log-ratios.
        outcomes: the AUC is of whole solutions instead of steps.
    """
    pairs = _outcomes(graded) if outcomes else pairs_of(graded)
    sided = [(score, value > 0.5) for score, value in pairs if value != 0.5]
    both = len({right for _, right in sided}) == 2
    rows, truth = solutions_of(graded)
    wrong = sum(at >= 0 for at in truth)
    result = first_errors(rows, truth, threshold) if 0 < wrong < len(truth) else None
    return Measure(
        loss=loss / labels if labels else math.nan,
        labels=round(labels),
        auc=auc([score for score, _ in sided], [float(right) for _, right in sided]) if both else None,
        first_error_f1=result.f1 if result is not None else None,
        solutions=len(truth),
    )


def _outcomes(graded: Sequence[Graded]) -> list[tuple[float, float]]:
    return [
        (score, float(item.example.outcome))
        for item in graded
        if item.example.outcome is not None and (score := item.scores[-1]) is not None
    ]


def solutions_of(
    graded: Sequence[Graded], refuted: Sequence[Sequence[int]] = ()
) -> tuple[list[list[float]], list[int]]:
    """Scores and first errors of those examples that stand for a whole solution.

    Args:
        refuted: for each, the steps that an exact check proves wrong: their scores become 0.
    """
    rows, truth = [], []
    for at, (item, whole) in enumerate(zip(graded, whole_solutions(graded), strict=True)):
        if whole is not None:
            steps, first_error = whole
            proven = refuted[at] if refuted else ()
            rows.append(
                [0.0 if n in proven else float(s) for n, s in enumerate(item.scores[:steps]) if s is not None]
            )
            truth.append(first_error)
    return rows, truth


def whole_solutions(graded: Sequence[Graded]) -> list[tuple[int, int] | None]:
    """For each example that stands for a whole solution, how many of its steps are read, and where the first error is (-1: none).

    A solution counts as wrong where one of its steps is labelled wrong, and is then cut after it. It counts as right where its last
    labelled step is right and no other right one goes on from it: a beginning of a solution has fewer chances to be suspected. None for
    other examples, and where a step has no score.
    """
    beginnings = {
        (item.example.solution.problem.text, *item.example.solution.texts[:n])
        for item in graded
        if not any(t is not None and t.value == 0.0 for t in item.example.targets)
        for n in range(1, len(item.example.solution.steps))
    }
    result: list[tuple[int, int] | None] = []
    for item in graded:
        result.append(None)
        labelled = [i for i, t in enumerate(item.example.targets) if t is not None and t.value is not None]
        if not labelled:
            continue
        wrong = next((i for i in labelled if _value(item.example, i) == 0.0), None)
        last = labelled[-1] if wrong is None else wrong
        if wrong is None and (
            _value(item.example, last) <= 0.5
            or (item.example.solution.problem.text, *item.example.solution.texts) in beginnings
        ):
            continue
        if None not in item.scores[: last + 1]:
            result[-1] = last + 1, -1 if wrong is None else wrong
    return result


def _value(example: Example, step: int) -> float:
    target = example.targets[step]
    assert target is not None
    return known_value(target)


def calibrate(
    folder: Path,
    spec: ScoringSpec,
    graded: Sequence[Graded],
    *,
    name: str = "held-out problems",
    tune: bool = False,
    refuted: Sequence[Sequence[int]] = (),
) -> tuple[FirstErrorAccuracy | None, list[Graded]]:
    """Fit Platt scaling on held-out steps, write it into the checkpoint's spec, and measure first errors there.

    Every labelled step counts, shares of rollouts as shares. The best threshold on these problems is noted, and used with `tune` only: it
    moves with the length of steps and of solutions, which differ elsewhere.

    Args:
        spec: what the scores were made with: one that takes a map (`Readout.takes_a_map`).
        refuted: for each, the steps that the checkpoint's exact checks prove wrong.

    Returns:
        The first-error figures on those same solutions, calibrated; None without wrong or without right ones. And what was given, with
        calibrated scores.
    """
    pairs = pairs_of(graded)
    scale, shift = platt(logit([score for score, _ in pairs]).tolist(), [value for _, value in pairs])
    calibrated = [replace(item, scores=_moved(item.scores, scale, shift)) for item in graded]
    moved, truth = solutions_of(calibrated, refuted)
    note: dict[str, object] = {
        "on": name,
        "steps": len(pairs),
        "solutions": len(moved),
        "threshold_tuned": tune,
    }
    result = None
    if len({at >= 0 for at in truth}) == 2:
        threshold = 0.5 if spec.threshold is None else spec.threshold
        best = best_threshold(moved, truth)
        if tune:
            threshold = best.threshold
            spec = replace(spec, threshold=threshold)
        result = first_errors(moved, truth, threshold)
        note |= {"first_errors": asdict(result), "best_threshold": asdict(best)}
    store_calibration(folder, spec, scale=scale, shift=shift, note=note)
    return result, calibrated


def _moved(scores: Sequence[float | None], scale: float, shift: float) -> tuple[float | None, ...]:
    return tuple(None if s is None else float(sigmoid(scale * logit([s]) + shift)[0]) for s in scores)


def pairs_of(graded: Sequence[Graded]) -> list[tuple[float, float]]:
    """(score, target) of every step that was scored and is labelled."""
    return [
        (score, target.value)
        for item in graded
        for score, target in zip(item.scores, item.example.targets, strict=True)
        if score is not None and target is not None and target.value is not None
    ]


def can_calibrate(values: Sequence[float]) -> bool:
    """Whether these targets, each in [0, 1], say something about both sides: not all 0, not all 1. Shares may all be above one half."""
    return any(value < 1 for value in values) and any(value > 0 for value in values)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained:
    """A checkpoint that `stepmark.train` has written, and what was measured."""

    folder: Path
    """The checkpoint; its curves and settings are in `report.html` there."""
    held_out: Measure | None
    """On problems that were not trained on, before calibration; None where none were held out."""
    comparison: HeldOut | None = None
    """The figures on those problems with intervals, calibrated, beside the PRM that training started from and chance."""
    start: str = ""
    """What was trained: the default PRM, another PRM, or a base."""
    examples: int
    """Solutions that were trained on."""
    problems: int
    """Their problems."""
    dropped: Dropped
    """What was left out, and why."""
    first: bool = True
    """Whether this is the process that writes; of one process it is."""
    new: bool = True
    """Whether it was trained now; False where an earlier run with the same settings and rows had finished it."""

    def prm(self, **settings: Any) -> PRM:
        """The PRM, loaded.

        Args:
            settings: as `load_prm` takes them.
        """
        from stepmark.models.load import load_prm

        return load_prm(str(self.folder), **settings)

    @property
    def figures(self) -> Sequence[str]:
        """What was trained on and measured, one line each."""
        start = f", starting from {self.start}" if self.start else ""
        lines = [
            f"{self.folder}: {amount(self.examples, 'example')} of {amount(self.problems, 'problem')}{start}"
        ]
        measured = self.held_out
        if measured is None:
            return [*lines, "nothing was held out: what this PRM is worth is not known"]
        if self.comparison is not None:
            return [*lines, *self.comparison.lines]
        lines.append(f"held out: {amount(measured.labels, 'label')}, " + ", ".join(measured.words()))
        return lines

    def __repr__(self) -> str:
        return f"<PRM in {'; '.join(self.figures)}>"
