"""Calibration of a new checkpoint on held-out problems, from the scores that the network gave them at the end of training.

That the written checkpoint scores as the network did is checked in `recipe.train`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from stepmark.metrics.first_error import FirstErrors, best_threshold, first_errors
from stepmark.metrics.scaling import logit, platt, sigmoid
from stepmark.models.spec import Readout, ScoringSpec, store_calibration
from stepmark.training.measure import Graded, solutions_of


def calibrate(
    folder: Path,
    spec: ScoringSpec,
    graded: Sequence[Graded],
    *,
    name: str = "held-out problems",
    tune: bool = False,
) -> FirstErrors | None:
    """Fit Platt scaling on held-out steps, write it into the checkpoint's spec, and measure first errors there.

    Every labelled step counts, shares of rollouts as shares. The threshold stays the spec's (0.5: more likely wrong than right) unless
    `tune` takes the best one on these problems. Else that is measured and noted, not used: it moves with the length of steps and of
    solutions, which differ elsewhere.

    Args:
        folder: the checkpoint, as it was written.
        spec: what the scores were made with: the sigmoid of one logit or the softmax of two (`takes_a_map`).
        graded: held-out examples with the network's scores.
        name: what they are, for the note.
        tune: take the threshold with the best first-error F1 here, where there are right and wrong solutions.

    Returns:
        The first-error figures on those same solutions at the spec's threshold, calibrated; None without wrong or without right ones.

    Raises:
        UsageError: the checkpoint's scores take no map, or all labelled steps are right or all are wrong.
    """
    pairs = pairs_of(graded)
    scale, shift = platt(logit([score for score, _ in pairs]).tolist(), [value for _, value in pairs])
    rows, truth = solutions_of(graded)
    moved = [sigmoid(scale * logit(row) + shift).tolist() for row in rows]
    note: dict[str, object] = {
        "on": name,
        "steps": len(pairs),
        "solutions": len(rows),
        "threshold_tuned": tune,
    }
    found = None
    if len({at >= 0 for at in truth}) == 2:
        threshold = 0.5 if spec.threshold is None else spec.threshold
        best = best_threshold(moved, truth)
        if tune:
            threshold = best.threshold
            spec = replace(spec, threshold=threshold)
        found = first_errors(moved, truth, threshold)
        note |= {"first_errors": asdict(found), "best_threshold": asdict(best)}
    store_calibration(folder, spec, scale=scale, shift=shift, note=note)
    return found


def pairs_of(graded: Sequence[Graded]) -> list[tuple[float, float]]:
    """(score, target) of every step that was scored and is labelled."""
    return [
        (score, target.value)
        for one in graded
        for score, target in zip(one.scores, one.example.targets, strict=True)
        if score is not None and target is not None
    ]


def can_calibrate(values: Sequence[float]) -> bool:
    """Whether these targets, each in [0, 1], say something about both sides: not all 0, not all 1. Shares may all be above one half."""
    return any(value < 1 for value in values) and any(value > 0 for value in values)


def takes_a_map(readout: Readout) -> bool:
    """Whether `calibrate` is for scores of this readout: the sigmoid of one logit or the softmax of two."""
    return readout.activation in ("sigmoid", "softmax") and readout.neutral is None
