"""The accuracy of search methods against what they spend, as a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stepmark.errors import InputError, UsageError
from stepmark.show.plots import Lines, Series

Point = tuple[float, float, float | None, float | None]
"""Tokens a problem, the policy's and the PRM's; accuracy in [0, 1]; the ends of its interval, both None for none."""


def compute_plot(
    methods: Mapping[str, Sequence[Point]],
    *,
    majority: str = "majority",
    best_of_n: str = "best-of-n",
    title: str = "Accuracy against compute",
    x_label: str = "Tokens a problem: policy and PRM",
    note: str = "",
) -> Lines:
    """A line for each method over a logarithmic axis of compute, in percent and with its intervals.

    A search says nothing alone: with the same tokens one may sample solutions and vote, or take the best of them. So these
    two are always among the lines, and first.

    Args:
        methods: name to measured points, in any order.
        majority: the name of the majority vote.
        best_of_n: the name of best-of-N by the same PRM.
        title: of the plot.
        x_label: what the points' first number is, with its unit: tokens as a rule, FLOPs where they are known.
        note: a sentence under the plot.

    Raises:
        UsageError: the majority vote or best-of-N is not among the methods, or has no point.
        InputError: a method without points, compute that is not positive, an accuracy out of [0, 1] or out of its interval.
    """
    for name, what in ((majority, "the majority vote"), (best_of_n, "best-of-N")):
        if not methods.get(name):
            raise UsageError(
                f"expected points of {what}, called {name!r}, found {', '.join(methods) or 'no method'}: searches are "
                "compared with what sampling alone reaches for the same compute; measure it too"
            )
    order = [majority, best_of_n, *(name for name in methods if name not in (majority, best_of_n))]
    return Lines(
        title=title,
        x_label=x_label,
        y_label="Accuracy, %",
        series=tuple(_series(name, methods[name]) for name in order),
        log_x=True,
        note=note,
    )


def _series(name: str, points: Sequence[Point]) -> Series:
    where = f"method {name!r}"
    if not points:
        raise InputError("expected at least one point, found none", where=where)
    for compute, accuracy, low, high in points:
        if not (math.isfinite(compute) and compute > 0):
            raise InputError(f"expected positive, finite compute, found {compute!r}", where=where)
        if not 0 <= accuracy <= 1:
            raise InputError(f"expected an accuracy in [0, 1], found {accuracy!r}", where=where)
        if (low is None) != (high is None):
            raise InputError("expected both ends of an interval or neither, found one", where=where)
        if low is not None and high is not None and not 0 <= low <= accuracy <= high <= 1:
            raise InputError(
                f"expected an interval in [0, 1] around {accuracy!r}, found [{low!r}, {high!r}]", where=where
            )
    ordered = sorted(points, key=lambda point: point[0])
    with_intervals = any(point[2] is not None for point in ordered)
    return Series(
        name=name,
        x=tuple(point[0] for point in ordered),
        y=tuple(100 * point[1] for point in ordered),
        low=tuple(_percent(point[2]) for point in ordered) if with_intervals else None,
        high=tuple(_percent(point[3]) for point in ordered) if with_intervals else None,
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
