"""How sure a figure is: bootstrap over clusters, paired differences, Wilson's interval for a share.

A statistic is given as a function of *weights*: how often each item was drawn. It computes its figures for many
weightings at once, which makes a thousand resamples of ten thousand items a few matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from stepmark.errors import UsageError

Floats = npt.NDArray[np.float64]

Statistic = Callable[[Floats], Mapping[str, Floats]]
"""Weights of shape (B, items) to named figures of shape (B,); nan where a figure is not defined."""

_AT_ONCE = 4_000_000
"""Weights held at once: bounds the memory of a bootstrap, not its result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A figure and the range in which it may as well lie."""

    value: float | None
    """On all items; None where it is not defined (a share of nothing)."""
    low: float | None
    """Lower end; None where too few resamples define the figure."""
    high: float | None
    """Upper end."""
    level: float = 0.95
    """Confidence level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A figure of B minus that of A, on the same items."""

    a: float | None
    b: float | None
    value: float | None
    """b - a."""
    low: float | None
    high: float | None
    p: float | None
    """Two-sided bootstrap p-value of no difference: twice the smaller share of resamples on one side of zero, ties
    counted on both, one added to counts and resamples (Davison and Hinkley 1997, section 4.4)."""
    level: float = 0.95


def shares(numerator: Floats, denominator: Floats) -> Floats:
    """Elementwise quotient; nan where the denominator is 0 (a share of nothing is not a number)."""
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0)


def ratio_statistic(
    columns: Mapping[str, tuple[Sequence[float] | Floats, Sequence[float] | Floats]],
) -> Statistic:
    """Quotients of weighted sums, nan for a share of nothing.

    Args:
        columns: figure to the numerator and the denominator of each item.
    """
    if not columns:
        return lambda weights: {}
    tops, bottoms = (np.array([pair[at] for pair in columns.values()], dtype=float).T for at in (0, 1))

    def figures(weights: Floats) -> dict[str, Floats]:
        values = shares(weights @ tops, weights @ bottoms)
        return {name: values[:, at] for at, name in enumerate(columns)}

    return figures


def of_parts(parts: Mapping[str, tuple[Sequence[int], Statistic]]) -> Statistic:
    """The figures of parts of the items as PART/FIGURE.

    Args:
        parts: name to the places of its items, and the statistic of those alone.
    """

    def figures(weights: Floats) -> dict[str, Floats]:
        return {
            f"{name}/{what}": value
            for name, (at, of) in parts.items()
            for what, value in of(weights[:, at]).items()
        }

    return figures


def bootstrap(
    statistic: Statistic,
    clusters: Sequence[Hashable],
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile bootstrap of all figures of a statistic (Efron and Tibshirani 1993, chapter 13).

    Whole clusters are drawn: solutions of one problem are not independent of each other, and an interval that takes
    them for so is too narrow. Draws that are all the same (of a single cluster, or where every
    item is right) give no interval.

    Args:
        statistic: figures of B weightings of the items.
        clusters: what each item belongs to, in the order of the items; each its own for independent items.
        resamples: how many; at least 100.
        seed: of the draws. Equal seeds and clusters draw equally, whatever the statistic.
        level: of the interval.

    Raises:
        UsageError: no items, or settings that make no interval.
    """
    _check(clusters, resamples, seed, level)
    value = statistic(np.ones((1, len(clusters))))
    samples: dict[str, list[Floats]] = {name: [] for name in value}
    for weights in _weightings(clusters, resamples, seed):
        for name, figures in statistic(weights).items():
            samples[name].append(figures)
    return {
        name: _interval(float(value[name][0]), np.concatenate(parts), level, clusters)
        for name, parts in samples.items()
    }


def paired_bootstrap(
    a: Statistic,
    b: Statistic,
    clusters: Sequence[Hashable],
    *,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Difference]:
    """The difference of two statistics on the same items, drawn together (Berg-Kirkpatrick et al. 2012, section 2).

    Only figures that both statistics have are compared.

    Args:
        a: figures of the first system.
        b: figures of the second, on the same items in the same order.
        clusters: what each item belongs to.
        resamples: how many.
        seed: of the draws.
        level: of the interval.

    Raises:
        UsageError: no items, or settings that make no interval.
    """
    _check(clusters, resamples, seed, level)
    ones = np.ones((1, len(clusters)))
    one_a, one_b = a(ones), b(ones)
    names = [name for name in one_a if name in one_b]
    samples: dict[str, list[Floats]] = {name: [] for name in names}
    for weights in _weightings(clusters, resamples, seed):
        figures_a, figures_b = a(weights), b(weights)
        for name in names:
            samples[name].append(figures_b[name] - figures_a[name])
    result = {}
    for name in names:
        left, right = float(one_a[name][0]), float(one_b[name][0])
        differences = np.concatenate(samples[name])
        interval = _interval(right - left, differences, level, clusters, paired=True)
        valid = differences[np.isfinite(differences)]
        p = None
        if interval.low is not None:
            tail = min(int((valid <= 0).sum()), int((valid >= 0).sum()))
            p = min(1.0, 2 * (tail + 1) / (len(valid) + 1))
        result[name] = Difference(
            a=_number(left),
            b=_number(right),
            value=interval.value,
            low=interval.low,
            high=interval.high,
            p=p,
            level=level,
        )
    return result


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share (Wilson 1927); None for a share of nothing.

    Raises:
        UsageError: not 0 <= successes <= trials.
    """
    if not 0 <= successes <= trials:
        raise UsageError(f"expected 0 <= successes <= trials, found {successes} of {trials}")
    if trials == 0:
        return Interval(value=None, low=None, high=None, level=level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (share * (1 - share) / trials + spread / (4 * trials)) ** 0.5
    # At the edges centre - half is 0 (or 1) but for rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return Interval(value=share, low=low, high=high, level=level)


def _check(clusters: Sequence[Hashable], resamples: int, seed: int, level: float) -> None:
    if not clusters:
        raise UsageError("there is nothing to resample: no items")
    if resamples < 100:
        raise UsageError(f"expected at least 100 resamples, found {resamples}")
    if seed < 0:
        raise UsageError(f"expected a seed of 0 or more, found {seed}")
    if not 0 < level < 1:
        raise UsageError(f"expected a confidence level between 0 and 1, found {level!r}")


def _weightings(clusters: Sequence[Hashable], resamples: int, seed: int) -> Iterator[Floats]:
    """Weights of shape (B, items), B in blocks, `resamples` in all."""
    numbers: dict[Hashable, int] = {}
    member = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    count = len(numbers)
    random = np.random.default_rng(seed)
    block = max(1, _AT_ONCE // len(clusters))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        # Row by row: the draws must not depend on the block's size.
        samples = np.stack(
            [np.bincount(random.integers(0, count, count), minlength=count) for _ in range(size)]
        )
        yield samples[:, member].astype(np.float64)


def _interval(
    value: float, samples: Floats, level: float, clusters: Sequence[Hashable], *, paired: bool = False
) -> Interval:
    valid = samples[np.isfinite(samples)]
    # Of a single cluster, or where all items are right, every draw is the same: an interval of no width would claim certainty.
    same = len(set(clusters)) == 1 or (not paired and len(valid) > 0 and valid.min() == valid.max())
    # Where a figure is undefined in most resamples, the rest tells of another population than the one asked about.
    if same or not np.isfinite(value) or len(valid) < 0.5 * len(samples):
        return Interval(value=_number(value), low=None, high=None, level=level)
    low, high = np.quantile(valid, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value=value, low=float(low), high=float(high), level=level)


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


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
    """
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
