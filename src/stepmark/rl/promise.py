"""What a PRM's scores promise: the accuracy that they stand for at the first evaluation, and by how much a later one falls short of it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats
from stepmark.metrics.scaling import logit, sigmoid
from stepmark.records import ScoreKind

EDGE = 1e-3
"""A probability nearer to 0 or 1 is taken for this far from it: a product of many steps would else outweigh all others."""
_ALIKE = 1e-12
"""Scores that differ by less of themselves are one."""
FARTHEST = 7.0
"""Spreads from the centre that another score counts for at most, as far as `EDGE` is from an even chance: where the first scores are nearly alike, a small drift would
else be certainty."""
SHIFT, SCALE = 5.0, 0.5
"""Standard deviations of the priors of the shift, around 0, and of the scale, around 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The evaluation that later ones are compared with.

    The promise of a solution's score is `sigmoid(scale * x + shift)`, where `x` is the score's logit for probabilities, and else the score less `centre`, over
    `spread`, `FARTHEST` at most. The two are fitted to the outcomes of this evaluation (Platt 1999) with a normal prior: `scale` near 1 and `shift` near 0, the PRM's own word for
    probabilities. Some tens of solutions outweigh it; it decides where all are right, or all wrong. A PRM whose scores go down where answers are right promises
    the same for every score (`scale` 0).
    """

    shift: float
    scale: float
    """At least 0."""
    centre: float | None = None
    """Of the scores; None for probabilities."""
    spread: float | None = None
    residuals: tuple[float | None, ...]
    """Of each held-out problem's solution: what its score promises less 1 for a right answer; None where it has no score."""

    @classmethod
    def of(cls, scores: Sequence[float | None], right: Sequence[bool], *, kind: ScoreKind) -> Baseline | None:
        """Fit the promise to an evaluation. None with fewer than two scores.

        Args:
            scores: of the solutions, None for one that has none.
            right: whether the answer of each is.
            kind: of the scores.

        Raises:
            UsageError: not one outcome a score, or a score that is not finite.
        """
        known, labels = _known(scores, right)
        if len(known) < 2:
            return None
        centre = spread = None
        if kind != "probability":
            centre, spread = float(known.mean()), float(known.std())
            # The mean of equal numbers is not always that number.
            if spread <= _ALIKE * float(np.abs(known).max()):
                spread = 1.0
        shift, scale = _fit(_read(known, centre, spread), labels)
        bare = cls(shift=shift, scale=scale, centre=centre, spread=spread, residuals=())
        return cls(
            shift=shift, scale=scale, centre=centre, spread=spread, residuals=bare.residuals_of(scores, right)
        )

    def promises(self, scores: Sequence[float | None]) -> list[float | None]:
        """The accuracies that scores promise, each in [0, 1]; None for None."""
        known = np.array([0.0 if score is None else score for score in scores])
        found = sigmoid(self.scale * _read(known, self.centre, self.spread) + self.shift)
        return [None if score is None else float(value) for score, value in zip(scores, found, strict=True)]

    def residuals_of(self, scores: Sequence[float | None], right: Sequence[bool]) -> tuple[float | None, ...]:
        """Promise less outcome, a solution."""
        return tuple(
            None if promise is None else promise - ok
            for promise, ok in zip(self.promises(scores), right, strict=True)
        )

    def gap(self, scores: Sequence[float | None], right: Sequence[bool]) -> float | None:
        """By how many standard errors residuals have risen since this evaluation, problem by problem. None where fewer than two have a score both times.

        Differences that are all alike have no error of their own: half a solution in all of them is taken instead, so that the gap is finite.

        Raises:
            UsageError: not as many solutions as there were.
        """
        if len(scores) != len(self.residuals):
            raise UsageError(
                f"expected the {len(self.residuals):,} held-out problems of the first evaluation, found {len(scores):,}"
            )
        pairs = zip(self.residuals_of(scores, right), self.residuals, strict=True)
        risen = np.array([now - then for now, then in pairs if now is not None and then is not None])
        if len(risen) < 2:
            return None
        error = max(float(risen.std(ddof=1)) / math.sqrt(len(risen)), 0.5 / len(risen))
        return float(risen.mean()) / error


def _known(scores: Sequence[float | None], right: Sequence[bool]) -> tuple[Floats, Floats]:
    if len(scores) != len(right):
        raise UsageError(f"expected an outcome for each score, found {len(right)} and {len(scores)}")
    pairs = [(score, float(ok)) for score, ok in zip(scores, right, strict=True) if score is not None]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if not np.isfinite(table).all():
        raise UsageError("expected finite scores, found one that is not")
    return table[:, 0], table[:, 1]


def _read(scores: Floats, centre: float | None, spread: float | None) -> Floats:
    if centre is None or spread is None:
        return logit(np.clip(scores, EDGE, 1 - EDGE).tolist())
    return np.clip((scores - centre) / spread, -FARTHEST, FARTHEST)


def _fit(x: Floats, right: Floats) -> tuple[float, float]:
    """Shift and scale: the likeliest after the data, the scale at least 0."""
    columns = np.stack([np.ones_like(x), x], axis=1)
    mean, precision = np.array([0.0, 1.0]), np.array([SHIFT, SCALE]) ** -2
    found = _newton(columns, right, mean, precision)
    if found[1] < 0:
        return _newton(columns[:, :1], right, mean[:1], precision[:1])[0], 0.0
    return found[0], found[1]


def _newton(columns: Floats, right: Floats, mean: Floats, precision: Floats) -> list[float]:
    """Newton's method with step halving: what is minimised is strictly convex."""

    def loss(weights: Floats) -> float:
        logits = columns @ weights
        return float((np.logaddexp(0, logits) - right * logits).sum() + precision @ (weights - mean) ** 2 / 2)

    weights = mean.copy()
    for _ in range(100):
        p = sigmoid(columns @ weights)
        gradient = columns.T @ (p - right) + precision * (weights - mean)
        curvature = columns.T @ (columns * (p * (1 - p))[:, None]) + np.diag(precision)
        direction, step = np.linalg.solve(curvature, gradient), 1.0
        while step > 1e-6 and loss(weights - step * direction) > loss(weights):
            step /= 2
        if step <= 1e-6 or float(np.abs(step * direction).max()) < 1e-12:
            break
        weights = weights - step * direction
    return [float(weight) for weight in weights]
