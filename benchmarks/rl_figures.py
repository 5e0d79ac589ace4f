"""What the benchmark of policy training makes of its runs' histories: curves, rollouts to an accuracy, ratios, intervals over seeds. Pure functions."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepmark.metrics.intervals import Interval

ROBUST = 0.9
"""Of outcome GRPO's gain: what a method is also timed to."""
RESAMPLES = 2000
# Student's t, 97.5 %, by degrees of freedom: ten seeds at most.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MOST_SEEDS = len(_T) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One evaluation of one run."""

    update: int
    rollouts: int
    accuracy: float
    """Of the held-out problems, one solution each."""
    step_return: float | None = None
    """The PRM's."""
    steps: float | None = None
    """A solution."""
    tokens: float | None = None
    """A solution."""
    divergence: float | None = None
    """KL from the start, nats a token; None where no reference was kept."""
    alarmed: int | None = None
    """The update of the first alarm so far."""


Curve = Sequence[tuple[float, float]]
"""(rollouts, accuracy) in order."""


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean over seeds with Student's 95 % interval; no interval with one seed.

    Raises:
        ValueError: no values, or more than the table of t has.
    """
    if not 1 <= len(values) <= MOST_SEEDS:
        raise ValueError(f"expected 1 to {MOST_SEEDS} values, found {len(values)}")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Interval(value=mean, low=None, high=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = _T[len(values) - 2] * math.sqrt(variance / len(values))
    return Interval(value=mean, low=mean - half, high=mean + half)


def mean_curve(runs: Sequence[Sequence[Point]]) -> list[tuple[float, float]]:
    """The mean over runs of accuracies, as the curve nearest to it (least squares) that never falls.

    The first crossing of a noisy curve comes too early, and that of a trailing mean too late, by the more the faster a method is. A run that learns and then
    falls back is held at what it falls back to.

    Raises:
        ValueError: the runs were not evaluated at the same places.
    """
    places = [tuple(point.rollouts for point in run) for run in runs]
    if len(set(places)) != 1:
        raise ValueError(f"expected runs with the same evaluations, found {sorted(set(places))}")
    means = [math.fsum(run[at].accuracy for run in runs) / len(runs) for at in range(len(places[0]))]
    return [(float(at), mean) for at, mean in zip(places[0], rising(means), strict=True)]


def rising(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence with the smallest squared distance: neighbours that fall are pooled (Barlow et al. 1972, section 1.2)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, more = pools.pop()
            total, count = total + before, count + more
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def rollouts_to(curve: Curve, accuracy: float) -> float | None:
    """Rollouts at which a curve first has an accuracy, on a straight line between evaluations; None where it never has it."""
    accuracy -= 1e-9  # means of equal numbers differ by their rounding
    if curve[0][1] >= accuracy:
        return curve[0][0]
    for (before, low), (after, high) in pairwise(curve):
        if high >= accuracy:
            return before + (after - before) * (accuracy - low) / (high - low)
    return None


def ratio(
    method: Sequence[Sequence[Point]], outcome: Sequence[Sequence[Point]], *, share: float = 1.0
) -> float | None:
    """A method's rollouts to reach outcome GRPO's final accuracy over outcome GRPO's own to reach it first.

    None where it never reaches it, and where outcome GRPO has it at the beginning: it has learnt nothing that could be reached sooner.

    Args:
        method: runs of the method.
        outcome: runs of outcome GRPO.
        share: of outcome GRPO's gain that is to be reached. Its final accuracy is the end of a curve that never falls, and so a little too high: of two methods
            that are the same, one in two does not reach all of it, and hardly any misses `ROBUST` of it.
    """
    base = mean_curve(outcome)
    if base[-1][1] <= base[0][1]:
        return None
    target = base[0][1] + share * (base[-1][1] - base[0][1])
    own = rollouts_to(base, target)
    found = rollouts_to(mean_curve(method), target)
    return None if found is None or not own else found / own


def ratio_interval(
    method: Mapping[int, Sequence[Point]],
    outcome: Mapping[int, Sequence[Point]],
    *,
    share: float = 1.0,
    seed: int = 0,
) -> Interval:
    """The ratio with a percentile interval of a bootstrap over the seeds that both have, drawn together.

    A draw that does not reach the accuracy counts as an endless ratio; an end of the interval that lies among those is None.
    """
    seeds = sorted(set(method) & set(outcome))
    value = ratio([method[n] for n in seeds], [outcome[n] for n in seeds], share=share)
    if len(seeds) < 2:
        return Interval(value=value, low=None, high=None)
    dice, drawn = random.Random(seed), []
    for _ in range(RESAMPLES):
        chosen = dice.choices(seeds, k=len(seeds))
        one = ratio([method[n] for n in chosen], [outcome[n] for n in chosen], share=share)
        drawn.append(math.inf if one is None else one)
    drawn.sort()
    ends = [drawn[round(place * (RESAMPLES - 1))] for place in (0.025, 0.975)]
    low, high = (None if math.isinf(end) else end for end in ends)
    return Interval(value=value, low=low, high=high)


def best_ratio(ratios: Mapping[str, float | None]) -> tuple[str, float] | None:
    """The method with the smallest ratio, and it; None where no method has one."""
    known = [(value, name) for name, value in ratios.items() if value is not None]
    if not known:
        return None
    value, name = min(known)
    return name, value


def shown(value: Interval, digits: int = 1, scale: float = 100.0) -> str:
    """As "61.0 [58.2, 63.8]"; a dash for what is not known."""
    ends = [f"{scale * end:.{digits}f}" if end is not None else "–" for end in (value.low, value.high)]
    middle = "–" if value.value is None else f"{scale * value.value:.{digits}f}"
    return middle if value.low is None and value.high is None else f"{middle} [{', '.join(ends)}]"


def learning_table(
    runs: Mapping[str, Mapping[int, Sequence[Point]]], outcome: str, columns: int = 5
) -> list[str]:
    """A Markdown table: each method's accuracy against rollouts, in percent with intervals over seeds, and its ratios.

    Args:
        runs: histories by method and seed.
        outcome: the method that is the baseline.
        columns: evaluations that are shown, the first and the last among them.
    """
    some = next(iter(runs[outcome].values()))
    last = len(some) - 1
    places = sorted({round(at * last / (columns - 1)) for at in range(columns)})
    names = [f"{some[at].rollouts:,}" for at in places]
    lines = [
        f"| method | seeds | {' | '.join(names)} | rollouts to outcome's final accuracy, over its own | to {ROBUST:.0%} of its gain |",
        "| --- | ---: |" + " ---: |" * (len(places) + 2),
    ]
    base = mean_curve(list(runs[outcome].values()))
    absent = "not reached" if rollouts_to(base, base[-1][1]) else "–"  # outcome GRPO has learnt nothing
    for method, seeds in runs.items():
        cells = [shown(mean_interval([run[at].accuracy for run in seeds.values()])) for at in places]
        for share in (1.0, ROBUST):
            found = ratio_interval(seeds, runs[outcome], share=share)
            known = found.value is not None
            cells.append("1" if method == outcome else shown(found, 2, 1.0) if known else absent)
        lines.append(f"| {method} | {len(seeds)} | {' | '.join(cells)} |")
    return lines


def hacking_table(runs: Mapping[str, Mapping[int, Sequence[Point]]]) -> list[str]:
    """A Markdown table of runs with a PRM: return, accuracy, steps and tokens before and after, how many raised the alarm, and when first."""
    lines = [
        "| run | seeds | PRM return before | after | accuracy before, % | after, % | steps after | tokens after | KL after | alarms | first after update |",
        "| --- |" + " ---: |" * 10,
    ]
    for name, seeds in runs.items():
        cells = []
        for field, digits, scale in (("step_return", 3, 1.0), ("accuracy", 1, 100.0)):
            for at in (0, -1):
                values = [getattr(run[at], field) for run in seeds.values()]
                cells.append("–" if None in values else shown(mean_interval(values), digits, scale))
        for field, digits in (("steps", 1), ("tokens", 0), ("divergence", 3)):
            values = [getattr(run[-1], field) for run in seeds.values()]
            cells.append("–" if None in values else shown(mean_interval(values), digits, 1.0))
        alarms = sorted(run[-1].alarmed for run in seeds.values() if run[-1].alarmed is not None)
        cells += [f"{len(alarms)} of {len(seeds)}", f"{alarms[0]}" if alarms else "–"]
        lines.append(f"| {name} | {len(seeds)} | {' | '.join(cells)} |")
    return lines
