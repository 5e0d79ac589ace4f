"""Do raters agree beyond chance: Krippendorff's alpha (Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability").

A *unit* is what is rated (here: a step), a *rating* a number, a missing one `None`. Of every unit with m >= 2 ratings all ordered pairs of
ratings go into the coincidence matrix with the weight 1 / (m - 1); a unit with fewer ratings says nothing of agreement and is left out.
With o_ck the matrix, n_c its row sums, n their sum:

    alpha = 1 - D_o / D_e,   D_o = sum o_ck d(c, k) / n,   D_e = sum n_c n_k d(c, k) / (n (n - 1))

- nominal: d = 1 for different ratings;
- ordinal: d = (n_c / 2 + n_{c+1} + … + n_{k-1} + n_k / 2)^2, the ranks between them: +1 against -1 is worse than +1 against 0.

1 is full agreement, 0 what chance gives, below 0 is worse than chance. It is the same for two raters or fifty, with any of them missing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats, Interval, bootstrap, shares

Level = Literal["nominal", "ordinal"]
Undefined = Literal["no pairs", "one category"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Alpha:
    """Krippendorff's alpha of a table of ratings."""

    level: Level
    value: Interval
    """At most 1. Its `value` is None where `why` says so. Its ends are None too where most resamples define no alpha, and where all units are
    of one cluster: nothing can be drawn from one."""
    units: int
    """Units with two ratings or more: those that alpha is of."""
    ratings: int
    """Ratings in them."""
    why: Undefined | None = None
    """Why there is no alpha. "no pairs": no unit has two ratings. "one category": all ratings of those units are the same, so that chance would
    agree as fully as the raters did, and nothing can be told."""


def krippendorff_alpha(
    ratings: Sequence[Sequence[float | None]],
    level: Level = "nominal",
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Alpha:
    """Agreement of raters on units, with a bootstrap interval.

    Args:
        ratings: for each unit its ratings, in any order and number; None is a missing one. (Alpha does not ask who gave which.)
        level: whether ratings are names or have an order.
        clusters: what each unit belongs to (a step to its solution): whole clusters are drawn. None: each unit is its own.
        resamples: of the interval; at least 100.
        seed: of the draws.
        confidence: level of the interval.

    Raises:
        UsageError: not one cluster a unit, an unknown level, a rating that is no finite number, settings that make no interval.
    """
    if level not in ("nominal", "ordinal"):
        raise UsageError(f"expected the level 'nominal' or 'ordinal', found {level!r}")
    if clusters is not None and len(clusters) != len(ratings):
        raise UsageError(f"expected one cluster for each of {len(ratings)} units, found {len(clusters)}")
    rated: list[list[float]] = []
    members: list[Hashable] = []
    for unit, row in enumerate(ratings):
        given = [float(rating) for rating in row if rating is not None]
        if not np.isfinite(given).all():
            raise UsageError(f"unit {unit} (0-based): expected finite ratings, found {given}")
        if len(given) > 1:
            rated.append(given)
            members.append(unit if clusters is None else clusters[unit])
    categories = sorted({rating for row in rated for rating in row})
    count = sum(map(len, rated))
    if len(categories) < 2:
        return Alpha(
            level=level,
            value=Interval(value=None, low=None, high=None, level=confidence),
            units=len(rated),
            ratings=count,
            why="one category" if rated else "no pairs",
        )
    coincidences = _coincidences(rated, categories)

    def statistic(weights: Floats) -> Mapping[str, Floats]:
        return {
            "alpha": alphas((weights @ coincidences).reshape(-1, len(categories), len(categories)), level)
        }

    result = bootstrap(statistic, members, resamples=resamples, seed=seed, level=confidence)["alpha"]
    if len(set(members)) < 2:
        result = replace(result, low=None, high=None)
    return Alpha(level=level, value=result, units=len(rated), ratings=count)


def _coincidences(units: Sequence[Sequence[float]], categories: Sequence[float]) -> Floats:
    """The coincidence matrix of every unit, flat: shape (units, categories squared)."""
    place = {category: number for number, category in enumerate(categories)}
    size = len(categories)
    values = np.zeros((len(units), size, size))
    for unit, row in enumerate(units):
        counts = np.bincount([place[rating] for rating in row], minlength=size).astype(np.float64)
        values[unit] = (np.outer(counts, counts) - np.diag(counts)) / (len(row) - 1)
    return values.reshape(len(units), size * size)


def alphas(matrices: Floats, level: Level) -> Floats:
    """Alpha of each coincidence matrix, shape (B, K, K) to (B,); nan where a resample holds one category."""
    margins = matrices.sum(axis=2)
    total = margins.sum(axis=1)
    if level == "nominal":
        distance = np.broadcast_to(1.0 - np.eye(matrices.shape[1]), matrices.shape)
    else:
        # Half of c, all between, half of k: the difference of the middles of their ranks.
        middle = np.cumsum(margins, axis=1) - margins / 2
        distance = (middle[:, :, None] - middle[:, None, :]) ** 2
    observed = (matrices * distance).sum(axis=(1, 2))
    expected = (margins[:, :, None] * margins[:, None, :] * distance).sum(axis=(1, 2))
    alpha: Floats = 1.0 - (total - 1.0) * shares(observed, expected)
    return alpha
