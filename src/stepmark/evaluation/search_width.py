r"""How wide a beam has to be, from how well the PRM's scores part right ways from wrong ones.

*What is measured.* Best-of-N's solutions are drawn without selection. Of each the score of a prefix (the aggregate of its steps so far,
what beams are compared by) is taken, and whether the solution came out right. Within a problem, right ones score higher by a gap Delta on
average, and those of one class differ by a noise sigma (standard deviation); d = Delta / sigma is the *separation*. Differences
between problems are left out of both: beams of different problems never compete.

*What is derived*, for b beams and k steps after each:

1. In a pool of b k prefixes of which R are right, scores of right ones are normal around Delta and those of wrong ones around 0, both with sigma. The
   number of right ones among the b best has a distribution that is computed exactly (`_kept`: an integral over the score of the b-th best).
2. A right beam's k steps are right with probability q each. So the number of right beams is a Markov chain over 0, …, b whose state 0
   cannot be left, and the probability that all right ways are lost after T rounds follows by multiplying (`lost`). The advised
   width is the smallest one for which that is at most the risk, 5 %.
3. Of n wrong finished solutions the best is at most sigma sqrt(2 ln n) above their mean, on average. So up to about
   n = exp(d^2 / 2) of them the right one is expected to score highest; beyond that a wider search is more often taken in by its own noise. That
   the useful width grows as the exponential of (Delta / sigma)^2 is the result of "More Test-Time Compute Can Hurt" (arXiv
   2603.15377, abstract); the constant 1/2 is of this derivation. A wider beam than that should choose by a vote.

*What it supposes*: scores of one class are normal, with one sigma for both classes and fresh noise each round (that of a minimum or a
product carries over); the separation is that of whole solutions in every round (there the truth is
known; a prefix is called wrong because of an error that may come later, so what is measured earlier is too low, and shown beside it); a
wrong way never recovers; steps are right independently with one q, the T-th root of the accuracy of one sample. It is a rule of
thumb with its reasons, not a promise: the curves are the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import aggregate
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.search.searching import Grading

Judged = tuple[bool, tuple[float, ...]]
"""Whether a solution is right, and its step scores."""

POSITIONS = ("first step", "half", "whole")
"""Prefixes whose spread is measured."""

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Widths that may be advised."""

LARGEST_POOL = 128
"""Steps a round, width times k: no wider beam is looked at."""

RISK = 0.05
"""Of losing every right way."""

_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A beam width for one number of steps after each beam."""

    expand: int
    """k."""
    width: int | None
    """b; None where none of `WIDTHS` within `LARGEST_POOL` does."""
    lost: dict[int, float]
    """Width to the probability that all right ways are lost, for the widths up to the advised one."""
    useful: float
    """exp(d^2 / 2): finished solutions among which the right one is expected to score highest."""


def advise(separation: float, step_right: float, steps: int, *, expand: int, risk: float = RISK) -> Advice:
    """The narrowest beam that keeps a right way with probability 1 - risk; see the module.

    Args:
        separation: d, of whole solutions.
        step_right: q, in (0, 1].
        steps: T, 1 or more: rounds.
        expand: k, 1 or more.
        risk: in (0, 1).

    Raises:
        UsageError: an argument out of its range.
    """
    found: dict[int, float] = {}
    width = None
    for candidate in WIDTHS:
        if candidate > 1 and candidate * expand > LARGEST_POOL:
            break
        found[candidate] = lost(candidate, separation, step_right, steps, expand=expand)
        if found[candidate] <= risk:
            width = candidate
            break
    return Advice(
        expand=expand,
        width=width,
        lost=found,
        useful=math.exp(min(700.0, separation**2 / 2)) if separation > 0 else 1.0,
    )


@lru_cache(maxsize=1024)
def lost(width: int, separation: float, step_right: float, steps: int, *, expand: int) -> float:
    """The probability that after all rounds no beam is right; see the module.

    Args:
        width: b, 1 or more.
        separation: d, finite.
        step_right: q, in (0, 1].
        steps: T, 1 or more.
        expand: k, 1 or more.

    Raises:
        UsageError: an argument out of its range.
    """
    if not (width >= 1 and math.isfinite(separation) and 0 < step_right <= 1 and steps >= 1 and expand >= 1):
        raise UsageError(
            "expected width, steps and expand of 1 or more, a finite separation and step_right in (0, 1], found "
            f"{width!r}, {steps!r}, {expand!r}, {separation!r}, {step_right!r}"
        )
    pool = width * expand
    kept = _kept(pool, width, separation)
    # Right beams to right children to right beams.
    step = np.stack([_binomial(right * expand, step_right, pool) for right in range(width + 1)]) @ kept
    chances = _binomial(pool, step_right, pool) @ kept
    for _ in range(steps - 1):
        chances = chances @ step
    return float(min(1.0, max(0.0, chances[0])))


def _kept(pool: int, width: int, separation: float) -> Floats:
    """Shape (pool + 1, width + 1): of a pool with R right prefixes, the chances that 0, 1, … of the best `width` are right.

    The score t of the width-th best is integrated over: it is a right or a wrong one's, and the others above it are binomial.
    """
    edges = np.linspace(min(0.0, separation) - 7, max(0.0, separation) + 7, 321)
    t = (edges[:-1] + edges[1:]) / 2
    above = {  # per class: the chance to lie above t, and the chance to lie at t
        right: (
            np.array([1 - _NORMAL.cdf(x - right * separation) for x in t]),
            np.array([_NORMAL.pdf(x - right * separation) for x in t]) * (edges[1] - edges[0]),
        )
        for right in (True, False)
    }
    logs = np.array([math.lgamma(n + 1) for n in range(pool + 1)])

    def chances(of: int, right: bool, most: int) -> Floats:
        """Shape (t, most + 1): that 0, 1, … of so many lie above t."""
        p = np.clip(above[right][0], 1e-300, 1 - 1e-16)[:, None]
        n = np.arange(most + 1)[None, :]
        rest = np.maximum(of - n, 0)
        log = logs[of] - logs[np.minimum(n, of)] - logs[rest] + n * np.log(p) + rest * np.log1p(-p)
        return np.where(n <= of, np.exp(log), 0.0)

    kept = np.zeros((pool + 1, width + 1))
    for right in range(pool + 1):
        wrong = pool - right
        if right:  # the last one that is kept is right
            a, b = chances(right - 1, True, width - 1), chances(wrong, False, width - 1)
            kept[right, 1:] += right * np.einsum("t,tj,tj->j", above[True][1], a, b[:, ::-1])
        if wrong:
            a, b = chances(right, True, width - 1), chances(wrong - 1, False, width - 1)
            kept[right, :width] += wrong * np.einsum("t,tj,tj->j", above[False][1], a, b[:, ::-1])
    found: Floats = kept / kept.sum(axis=1, keepdims=True)
    return found


def _binomial(count: int, chance: float, most: int) -> Floats:
    """Shape (most + 1,): the chances of 0, 1, … of `count`."""
    values = [
        math.comb(count, n) * chance**n * (1 - chance) ** (count - n) if n <= count else 0.0
        for n in range(most + 1)
    ]
    return np.array(values)


def position_sums(judged: Sequence[Judged], grading: Grading) -> dict[str, Any]:
    """What the spread of one problem is made of, as JSON.

    Args:
        judged: its solutions, drawn without selection.
        grading: the aggregate of their scores; solutions with an infinite one are left out.

    Returns:
        `solutions` and `steps` (sums over all), `right`; and for each of `POSITIONS`: `right` and `wrong` (counts), `gap` (mean of the right
        less mean of the wrong; None where one is missing), `squares` (sum of squared distances from the mean of the class), `mean` (of all;
        None for none), `all squares` (from that mean).
    """
    found: dict[str, Any] = {
        "solutions": len(judged),
        "right": sum(right for right, _ in judged),
        "steps": sum(len(scores) for _, scores in judged),
    }
    for position in POSITIONS:
        groups: dict[bool, list[float]] = {True: [], False: []}
        for right, scores in judged:
            value = _value(scores, position, grading)
            if value is not None:
                groups[right].append(value)
        every = groups[True] + groups[False]
        found[position] = {
            "right": len(groups[True]),
            "wrong": len(groups[False]),
            "gap": _mean(groups[True]) - _mean(groups[False]) if groups[True] and groups[False] else None,
            "squares": _squares(groups[True]) + _squares(groups[False]),
            "mean": _mean(every) if every else None,
            "all squares": _squares(every),
        }
    return found


def spread_statistic(rows: Sequence[Mapping[str, Any]]) -> Statistic:
    """Figures of the spread as a function of the weights of problems.

    Args:
        rows: `position_sums` of each problem.

    Figures: for each of `POSITIONS`, `spread/POSITION/…`: `gap`, `noise`, `separation`, `within` (standard deviation within a problem, both
    classes together), `between` (that of the problems' means); `spread/one sample` (its accuracy, the mean over problems) and `spread/steps`.
    """
    problems = len(rows)

    def column(position: str, key: str) -> Floats:
        values = [row[position][key] for row in rows]
        return np.array([0.0 if value is None else float(value) for value in values]).reshape(problems)

    counted = np.array([float(row["solutions"]) for row in rows])
    has = (counted > 0).astype(float)
    share = shares(np.array([float(row["right"]) for row in rows]), counted)
    length = shares(np.array([float(row["steps"]) for row in rows]), counted)
    parts: dict[str, dict[str, Floats]] = {}
    for position in POSITIONS:
        right, wrong = column(position, "right"), column(position, "wrong")
        both = right + wrong
        parts[position] = {
            # The weight of a difference of two means: what its variance is divided by.
            "weight": np.nan_to_num(shares(right * wrong, both)),
            "gap": column(position, "gap"),
            "squares": column(position, "squares"),
            "free": np.maximum(right - 1, 0) + np.maximum(wrong - 1, 0),
            "mean": column(position, "mean"),
            "has": (both > 0).astype(float),
            "all": column(position, "all squares"),
            "all free": np.maximum(both - 1, 0),
        }

    def compute(weights: Floats) -> dict[str, Floats]:
        out: dict[str, Floats] = {
            "spread/one sample": shares(weights @ np.nan_to_num(share), weights @ has),
            "spread/steps": shares(weights @ np.nan_to_num(length), weights @ has),
        }
        for position, of in parts.items():
            gap = shares(weights @ (of["weight"] * of["gap"]), weights @ of["weight"])
            noise = np.sqrt(shares(weights @ of["squares"], weights @ of["free"]))
            mean = shares(weights @ of["mean"], weights @ of["has"])
            square = shares(weights @ of["mean"] ** 2, weights @ of["has"])
            out |= {
                f"spread/{position}/gap": gap,
                f"spread/{position}/noise": noise,
                f"spread/{position}/separation": shares(gap, noise),
                f"spread/{position}/within": np.sqrt(shares(weights @ of["all"], weights @ of["all free"])),
                f"spread/{position}/between": np.sqrt(np.maximum(square - mean**2, 0)),
            }
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
