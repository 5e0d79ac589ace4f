"""Figures of a comparison of searches, each a function of the weights of problems, so that a bootstrap is a few matrix products.

For METHOD and BUDGET (as in the items of `search.contest`):

- `accuracy/METHOD/BUDGET`: right / (right + wrong), over problems and seeds; in [0, 1].
- `spent/METHOD/BUDGET`: the mean of what was really spent on a problem, in the unit of the budgets.
- `found/METHOD/BUDGET`: share of searches with a right candidate, chosen or not.
- `over BASELINE/METHOD/BUDGET`: accuracy less that of the baseline with the same budget.
- `over BASELINE at equal spend/METHOD/BUDGET`: accuracy less that of the baseline for as much as the method has really spent: between the
  baseline's points by straight lines over the logarithm of compute. Not defined where the baseline was not measured near it (a tenth
  beyond its ends is near).
- `END/METHOD/BUDGET` for the ends "no answer", "unfinished", "nothing", "no verdict": shares of searches; only where not all are 0.
- `stopped by budget/METHOD/BUDGET`, `dead end/METHOD/BUDGET`: shares of searches; only where not all are 0.
- `sd over seeds/METHOD/BUDGET`: standard deviation of the accuracies of the single seeds, with two and more.
- `spread/…`: `spread_statistic`. Best-of-N's solutions are drawn without selection. Of each the score of a prefix (the aggregate of its steps
  so far, by which beams are compared) is taken, and whether the solution is right. Within a problem, right ones score higher by a *gap* on
  average, and those of one class differ by a *noise* (standard deviation); gap / noise is the *separation*. Differences between problems are in
  neither: beams of different problems never compete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepmark.errors import InputError
from stepmark.evaluation.search_entrants import BASELINES, METHODS
from stepmark.metrics.aggregate import aggregate
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.search.base import Grading

Rows = Sequence[Mapping[str, Any]]

Judged = tuple[bool, tuple[float, ...]]
"""Whether a solution is right, and its step scores."""

POSITIONS = ("first step", "half", "whole")
"""Prefixes whose spread is measured."""

ENDS = ("no answer", "unfinished", "nothing", "no verdict")
"""Ways to end without a right or wrong answer; all but the last count as wrong."""

STOPS = {"stopped by budget": "budget", "dead end": "dead end"}
"""Figure to the reason for stopping."""

_NEAR = 1.1


def cells_of(rows: Rows) -> list[tuple[str, str]]:
    """(method, budget) that the items have, methods in the order of `METHODS` and others after them."""
    names = [name for row in rows for name in row["runs"]]
    order = [*METHODS, *dict.fromkeys(name for name in names if name not in METHODS)]
    budgets = dict.fromkeys(budget for row in rows for cells in row["runs"].values() for budget in cells)
    has = {(name, budget) for row in rows for name, cells in row["runs"].items() for budget in cells}
    return [(name, budget) for name in order for budget in budgets if (name, budget) in has]


def statistic(rows: Rows) -> Statistic:
    """The figures of these items as a function of their weights; see the module."""
    cells = cells_of(rows)
    tops: dict[str, list[float]] = {}
    bottoms: dict[str, list[float]] = {}
    seeds: dict[str, list[tuple[list[float], list[float]]]] = {}
    for name, budget in cells:
        runs = [row["runs"].get(name, {}).get(budget, []) for row in rows]
        counts = [float(len(some)) for some in runs]

        def ratio(
            what: str, key: str, value: Any, *, of: str = f"{name}/{budget}", runs: Any = runs
        ) -> list[float]:
            tops[f"{what}/{of}"] = [float(sum(one[key] == value for one in some)) for some in runs]
            return tops[f"{what}/{of}"]

        right = ratio("accuracy", "right", True)
        wrong = [float(sum(one["right"] is False for one in some)) for some in runs]
        bottoms[f"accuracy/{name}/{budget}"] = [r + w for r, w in zip(right, wrong, strict=True)]
        tops[f"spent/{name}/{budget}"] = [float(sum(one["spent"] for one in some)) for some in runs]
        ratio("found", "found", True)
        for end in ENDS:
            ratio(end, "end", end)
        for what, why in STOPS.items():
            ratio(what, "stopped", why)
        for what in ("spent", "found", *ENDS, *STOPS):
            key = f"{what}/{name}/{budget}"
            if what in (*ENDS, *STOPS) and not any(tops[key]):
                del tops[key]
            else:
                bottoms[key] = counts
        most = max((len(some) for some in runs), default=0)
        if most > 1:
            seeds[f"sd over seeds/{name}/{budget}"] = [
                (
                    [float(len(some) > at and some[at]["right"] is True) for some in runs],
                    [float(len(some) > at and some[at]["right"] is not None) for some in runs],
                )
                for at in range(most)
            ]
    names = list(tops)
    top = np.array([tops[name] for name in names]).T
    bottom = np.array([bottoms[name] for name in names]).T
    spread = spread_statistic([row["spread"] for row in rows])

    def compute(weights: Floats) -> dict[str, Floats]:
        values = shares(weights @ top, weights @ bottom)
        out = {name: values[:, at] for at, name in enumerate(names)}
        out |= _differences(out, cells)
        for name, of in seeds.items():
            each = [shares(weights @ np.array(a), weights @ np.array(b)) for a, b in of]
            out[name] = np.std(np.stack(each), axis=0, ddof=1)
        return out | dict(spread(weights))

    return compute


def _differences(found: Mapping[str, Floats], cells: Sequence[tuple[str, str]]) -> dict[str, Floats]:
    out: dict[str, Floats] = {}
    for baseline in BASELINES:
        points = [budget for name, budget in cells if name == baseline]
        if not points:
            continue
        xs = np.stack([found[f"spent/{baseline}/{budget}"] for budget in points], axis=1)
        ys = np.stack([found[f"accuracy/{baseline}/{budget}"] for budget in points], axis=1)
        for name, budget in cells:
            if name == baseline:
                continue
            accuracy = found[f"accuracy/{name}/{budget}"]
            if budget in points:
                out[f"over {baseline}/{name}/{budget}"] = accuracy - found[f"accuracy/{baseline}/{budget}"]
            there = between(xs, ys, found[f"spent/{name}/{budget}"])
            out[f"over {baseline} at equal spend/{name}/{budget}"] = accuracy - there
    return out


def between(xs: Floats, ys: Floats, at: Floats) -> Floats:
    """Straight lines over log x between points, for many curves at once.

    Args:
        xs: shape (B, points), above 0, in any order; the points of each curve.
        ys: of the same shape.
        at: shape (B,), where each curve is asked.

    Returns:
        Shape (B,); beyond an end by a tenth at most, the value at that end; NaN farther out, and where x is not positive.
    """
    order = np.argsort(xs, axis=1, kind="stable")
    xs, ys = np.take_along_axis(xs, order, axis=1), np.take_along_axis(ys, order, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, asked = np.log(xs), np.log(at)[:, None]
        after = np.clip((logs <= asked).sum(axis=1), 1, max(1, xs.shape[1] - 1))[:, None]
        if xs.shape[1] == 1:
            value = ys[:, 0]
        else:
            x0, x1 = np.take_along_axis(logs, after - 1, axis=1), np.take_along_axis(logs, after, axis=1)
            y0, y1 = np.take_along_axis(ys, after - 1, axis=1), np.take_along_axis(ys, after, axis=1)
            # Two points at one x: the later one.
            part = np.where(x1 > x0, (asked - x0) / np.where(x1 > x0, x1 - x0, 1.0), 1.0)
            value = (y0 + np.clip(part, 0, 1) * (y1 - y0))[:, 0]
        near = (at * _NEAR >= xs[:, 0]) & (at <= xs[:, -1] * _NEAR) & (xs[:, 0] > 0)
    return np.where(near, value, np.nan)


def position_sums(judged: Sequence[Judged], grading: Grading) -> dict[str, Any]:
    """What the spread of one problem is made of, as JSON.

    Args:
        judged: its solutions, drawn without selection.
        grading: the aggregate of their scores; solutions with an infinite one are left out.

    Returns:
        For each of `POSITIONS`: `right` and `wrong` (counts), `gap` (mean of the right
        less mean of the wrong; None where one is missing), `squares` (sum of squared distances from the mean of the class).
    """
    sums: dict[str, Any] = {}
    for position in POSITIONS:
        groups: dict[bool, list[float]] = {True: [], False: []}
        for right, scores in judged:
            value = _value(scores, position, grading)
            if value is not None:
                groups[right].append(value)
        sums[position] = {
            "right": len(groups[True]),
            "wrong": len(groups[False]),
            "gap": _mean(groups[True]) - _mean(groups[False]) if groups[True] and groups[False] else None,
            "squares": _squares(groups[True]) + _squares(groups[False]),
        }
    return sums


def spread_statistic(rows: Sequence[Mapping[str, Any]]) -> Statistic:
    """Figures of the spread as a function of the weights of problems.

    Args:
        rows: `position_sums` of each problem.

    Figures: for each of `POSITIONS`, `spread/POSITION/…`: `gap`, `noise`, `separation`.
    """

    def column(position: str, key: str) -> Floats:
        return np.array([float(row[position][key] or 0.0) for row in rows])

    parts: dict[str, tuple[Floats, Floats, Floats, Floats]] = {}
    for position in POSITIONS:
        right, wrong = column(position, "right"), column(position, "wrong")
        # The weight of a difference of two means: what its variance is divided by.
        weight = np.nan_to_num(shares(right * wrong, right + wrong))
        free = np.maximum(right - 1, 0) + np.maximum(wrong - 1, 0)
        parts[position] = weight, weight * column(position, "gap"), column(position, "squares"), free

    def compute(weights: Floats) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        for position, (weight, gaps, squares, free) in parts.items():
            gap = shares(weights @ gaps, weights @ weight)
            noise = np.sqrt(shares(weights @ squares, weights @ free))
            named = {"gap": gap, "noise": noise, "separation": shares(gap, noise)}
            out |= {f"spread/{position}/{name}": value for name, value in named.items()}
        return out

    return compute


def _value(scores: tuple[float, ...], position: str, grading: Grading) -> float | None:
    count = {"first step": 1, "half": math.ceil(len(scores) / 2), "whole": len(scores)}[position]
    try:
        value = aggregate(scores[:count], grading.aggregate, kind=grading.kind)
    except InputError:  # certain 0 and 1 together have no sum of logits
        return None
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    if not values:
        return 0.0
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)
