"""Scores against right and wrong: confusion, AUC, Brier score, calibration error. All take weights for the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats, shares


@dataclass(frozen=True, kw_only=True, slots=True)
class ReliabilityBin:
    """One bin of a reliability diagram."""

    low: float
    high: float
    """Scores in (low, high], as in Guo et al.; the first bin takes 0 too."""
    count: int
    mean_score: float | None
    """None when the bin is empty."""
    share_right: float | None


def check_pairs(scores: Sequence[float], labels: Sequence[float]) -> tuple[Floats, Floats]:
    """Both as arrays.

    Raises:
        UsageError: not as many labels as scores, none at all, a score that is not finite, a label outside [0, 1].
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) == 0:
        raise UsageError(f"expected one label a score and at least one, found {len(x)} and {len(y)}")
    if not bool(np.isfinite(x).all()):
        raise UsageError("expected finite scores")
    if not bool(((y >= 0) & (y <= 1)).all()):
        raise UsageError(
            f"expected labels from 0 (wrong) to 1 (right), found {float(y.min()):g} to {float(y.max()):g}"
        )
    return x, y


def auc(scores: Sequence[float], labels: Sequence[float]) -> float:
    """The probability that a right one scores above a wrong one, ties counted half (Hanley and McNeil 1982).

    Args:
        scores: any real numbers.
        labels: 1 right, 0 wrong; fractions count as both, by their share.

    Raises:
        UsageError: no right or no wrong one.
    """
    x, y = check_pairs(scores, labels)
    value = float(weighted_auc(x, y, np.ones((1, len(x))))[0])
    if np.isnan(value):
        raise UsageError("AUC needs right and wrong ones")
    return value


def weighted_auc(scores: Floats, labels: Floats, weights: Floats) -> Floats:
    """AUC for B weightings (B, n) at once; nan where a weighting has no right or no wrong one."""
    order = np.argsort(scores, kind="stable")
    x, w = scores[order], weights[:, order]
    right, wrong = w * labels[order], w * (1 - labels[order])
    starts = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))  # groups of equal scores
    right_at = np.add.reduceat(right, starts, axis=1)
    wrong_at = np.add.reduceat(wrong, starts, axis=1)
    below = np.cumsum(wrong_at, axis=1) - wrong_at
    wins = (right_at * (below + wrong_at / 2)).sum(axis=1)
    return shares(wins, right_at.sum(axis=1) * wrong_at.sum(axis=1))


def bin_edges(bins: int) -> Floats:
    """The edges of `bins` bins of equal width on [0, 1].

    Raises:
        UsageError: less than one bin.
    """
    if bins < 1:
        raise UsageError(f"expected at least one bin, found {bins}")
    return np.arange(bins + 1) / bins  # not linspace, whose 6th of 10 edges is not the float 0.6


def bin_of(scores: Floats, bins: int) -> npt.NDArray[np.intp]:
    """The 0-based bin of each probability."""
    return np.clip(np.searchsorted(bin_edges(bins), scores, side="left") - 1, 0, bins - 1)


def expected_calibration_error(scores: Floats, labels: Floats, weights: Floats, *, bins: int = 10) -> Floats:
    """ECE for B weightings (B, n): the gap between mean score and share right of each bin, weighted by its size (Naeini et al. 2015;
    Guo et al. 2017, equation 3, bins of equal width). In [0, 1]; lower is better.

    Biased upwards where bins hold few items; its bootstrap interval shares the bias.
    """
    member = np.eye(bins)[bin_of(scores, bins)]
    gap = np.abs(weights @ (member * (scores - labels)[:, None])).sum(axis=1)
    return shares(gap, weights.sum(axis=1))


def reliability(
    scores: Sequence[float], labels: Sequence[float], *, bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """The bins of a reliability diagram, from 0 to 1.

    Raises:
        UsageError: as `check_pairs`; scores outside [0, 1].
    """
    x, y = check_pairs(scores, labels)
    if x.min() < 0 or x.max() > 1:
        raise UsageError(f"expected probabilities, found scores from {x.min():g} to {x.max():g}")
    edges, member = bin_edges(bins), bin_of(x, bins)
    results = []
    for at in range(bins):
        inside = member == at
        count = int(inside.sum())
        results.append(
            ReliabilityBin(
                low=float(edges[at]),
                high=float(edges[at + 1]),
                count=count,
                mean_score=float(x[inside].mean()) if count else None,
                share_right=float(y[inside].mean()) if count else None,
            )
        )
    return tuple(results)
