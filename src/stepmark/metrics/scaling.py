"""Making scores into probabilities: Platt scaling of logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats

_EDGE = 1e-12


def logit(probabilities: Sequence[float]) -> Floats:
    """log(p / (1 - p)); a probability of exactly 0 or 1, which has no finite logit, is taken for 1e-12 from it."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), _EDGE, 1 - _EDGE)
    return np.log(p) - np.log1p(-p)


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * logits))


def platt(logits: Sequence[float], labels: Sequence[float]) -> tuple[float, float]:
    """The scale and shift that make sigmoid(scale * logit + shift) most likely (Platt 1999, section 2.2).

    The targets are Platt's, (right + 1) / (right + 2) and 1 / (wrong + 2) for 1 and 0: without them no scale is the
    best one where the logits part right from wrong without fault.

    Args:
        logits: raw logits.
        labels: 0 or 1, or fractions; as many.

    Raises:
        UsageError: no labels, or only one class; logits that are all the same or not finite.
    """
    x, y = _checked(logits, labels)
    right, wrong = float(y.sum()), float(len(y) - y.sum())
    targets = y * (right + 1) / (right + 2) + (1 - y) / (wrong + 2)
    # On standardised logits, or Newton's matrix is as badly scaled as they are.
    centre, spread = float(x.mean()), float(x.std())
    z = (x - centre) / spread
    scale, shift = _newton(np.stack([z, np.ones_like(z)], axis=1), targets)
    return scale / spread, shift - scale * centre / spread


def _checked(logits: Sequence[float], labels: Sequence[float]) -> tuple[Floats, Floats]:
    x, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.shape != y.shape:
        raise UsageError(f"expected one label a logit, found {len(y)} for {len(x)}")
    if len(y) == 0 or not 0 < float(y.mean()) < 1:
        raise UsageError("calibration needs right and wrong held-out steps")
    if not bool(np.isfinite(x).all()) or float(x.min()) == float(x.max()):
        raise UsageError(
            f"calibration needs finite logits that differ, found {float(x.min()):g} to {float(x.max()):g}; the model did "
            "not learn to tell steps apart"
        )
    return x, y


def _newton(columns: Floats, targets: Floats) -> list[float]:
    """The weights of a logistic regression: Newton's method with step halving (Lin et al. 2007)."""
    weights = np.zeros(columns.shape[1])
    loss = _loss(columns @ weights, targets)
    for _ in range(200):
        p = sigmoid(columns @ weights)
        gradient = columns.T @ (p - targets)
        if float(np.abs(gradient).max()) < 1e-12 * len(targets):
            break
        curvature = columns.T @ (columns * (p * (1 - p))[:, None]) + 1e-12 * np.eye(len(weights))
        direction = np.linalg.solve(curvature, gradient)
        step = 1.0
        while step > 1e-12 and (new := _loss(columns @ (weights - step * direction), targets)) > loss:
            step /= 2
        if step <= 1e-12:
            break
        weights, loss = weights - step * direction, new
        if float(np.abs(weights).max()) > 1e6:
            break
    return [float(weight) for weight in weights]


def _loss(logits: Floats, targets: Floats) -> float:
    return float((np.logaddexp(0, logits) - targets * logits).sum())
