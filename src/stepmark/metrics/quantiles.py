"""Quantiles of weighted items, for many weightings at once; the bootstrap calls them with resampled weights."""

from __future__ import annotations

import numpy as np

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Floats

_TIE = 1e-9
"""Relative: 0.1 * 30 is not 3 in floats, and the quantile would jump to the next value."""


def weighted_quantiles(values: Floats, weights: Floats, levels: tuple[float, ...]) -> Floats:
    """Quantiles for B weightings (B, n) of n values: the inverse of the distribution function, averaged where it is flat
    (Hyndman and Fan 1996, definition 2; the median of an even number is the mean of the middle two).

    A weight of 2 counts as the value twice, so weights by how often an item was drawn give the quantiles of the draw.

    Args:
        values: (n,), finite.
        weights: (B, n), not negative.
        levels: each in [0, 1].

    Returns:
        (levels, B); nan where the weights of a row add up to 0.

    Raises:
        UsageError: a level outside [0, 1], or not one weight a value.
    """
    if any(not 0 <= level <= 1 for level in levels):
        raise UsageError(f"expected levels from 0 to 1, found {levels}")
    if weights.ndim != 2 or values.ndim != 1 or weights.shape[1] != len(values):
        raise UsageError(f"expected weights (B, {len(values)}), found {weights.shape}")
    quantiles = np.full((len(levels), len(weights)), np.nan)
    if not len(values):
        return quantiles
    order = np.argsort(values, kind="stable")
    x = values[order]
    heights = np.cumsum(weights[:, order], axis=1)
    total = heights[:, -1]
    positive = total > 0
    for at, level in enumerate(levels):
        target, slack = level * total[:, None], _TIE * total[:, None]
        # First value at which the height is reached; first at which it is passed. They differ where it is met exactly.
        reached = (heights >= np.maximum(target - slack, slack)).argmax(axis=1)
        passed = (heights > np.minimum(target + slack, (1 - 2 * _TIE) * total[:, None])).argmax(axis=1)
        quantiles[at, positive] = ((x[reached] + x[passed]) / 2)[positive]
    return quantiles
