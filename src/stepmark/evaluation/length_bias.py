"""Length bias: whether the score follows the length, and where the lowest step falls.

A product of step scores falls with every step, a maximum rises: the aggregate alone favours short or long solutions,
whatever the PRM knows. So, within each problem (problems differ in length, which would mix in), and on average over
problems: the rank correlation of score and length, beside that of correctness and length, which is what a perfect
score would show; and how long the chosen solution is against all and against the right ones.

A PRM whose lowest step is mostly the last one has drifted into an outcome reward model (Zhang et al. 2025, "The
Lessons of Developing Process Reward Models", arXiv 2501.07301, section 4); the share that chance would give, the mean
of 1 / steps, stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepmark.metrics.intervals import Floats

MEASURES = ("steps", "tokens", "characters")
"""What length is measured in."""

CORRECTNESS = "correct"
"""Stands beside the aggregates in `by`: correctness itself taken as the score."""


def ranks(values: Floats) -> Floats:
    """1-based ranks of finite or infinite values; equal ones share their mean rank."""
    _, group, members = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(members)
    means: Floats = last - (members - 1) / 2.0
    return means[group]


def spearman(x: Floats, y: Floats) -> float | None:
    """Spearman's rank correlation with mean ranks for ties, in [-1, 1].

    None where either is constant, or with fewer than two pairs: there is no order to compare.
    """
    if len(x) < 2:
        return None
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    if spread == 0.0:
        return None
    return min(1.0, max(-1.0, float(a @ b) / spread))


def length_of(
    *,
    steps: Sequence[Sequence[float | None] | None],
    tokens: Sequence[int | None],
    characters: Sequence[int | None],
    correct: Sequence[bool | None],
    scores: Mapping[str, Floats],
    chosen: Mapping[str, Floats],
) -> dict[str, Any]:
    """The lengths of one problem's candidates, JSON-able.

    Args:
        steps: step scores of each candidate, None for one that was not graded.
        tokens: generated tokens of each.
        characters: characters of each.
        correct: correctness of each.
        scores: aggregate -> score of each, NaN where there is none.
        chosen: aggregate -> the probability that each is the best of all.

    Returns:
        For each of `MEASURES`: {`all`, `right`: mean length of the candidates whose length is known, and of the right
        ones among them; `by`: aggregate -> {`spearman`, `chosen`: expected length of the best of all}}, each None
        where it is not defined; and `lowest`: {`solutions` with at least two steps, all scored; `last`: how many have
        their lowest step last (one of k equally low steps counts 1/k); `chance`: the sum of 1 / steps}.
    """
    found: dict[str, Any] = {}
    right = np.array([value is True for value in correct])
    truth = np.array([math.nan if value is None else float(value) for value in correct])
    counts = [None if one is None or len(one) == 0 else len(one) for one in steps]
    for measure, values in zip(MEASURES, (counts, tokens, characters), strict=True):
        length = np.array([math.nan if value is None else float(value) for value in values])
        known = ~np.isnan(length)
        by: dict[str, Any] = {}
        for how, score in {**scores, CORRECTNESS: truth}.items():
            both = known & ~np.isnan(score)
            share = chosen.get(how)
            by[how] = {
                "spearman": spearman(score[both], length[both]),
                "chosen": None if share is None else _expected(share, length),
            }
        found[measure] = {"all": _mean(length[known]), "right": _mean(length[known & right]), "by": by}
    found["lowest"] = _lowest(steps)
    return found


def _expected(share: Floats, length: Floats) -> float | None:
    picked = share > 0
    if not picked.any() or np.isnan(length[picked]).any():
        return None
    return float(share[picked] @ length[picked] / share[picked].sum())


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _lowest(steps: Sequence[Sequence[float | None] | None]) -> dict[str, float]:
    solutions, last, chance = 0, 0.0, 0.0
    for one in steps:
        scores = [score for score in one or () if score is not None]
        if one is None or len(scores) < len(one) or len(scores) < 2:
            continue
        solutions += 1
        low = min(scores)
        last += (scores[-1] == low) / scores.count(low)
        chance += 1.0 / len(scores)
    return {"solutions": solutions, "last": last, "chance": chance}


def length_ratios(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, tuple[list[float], list[float]]]:
    """Figures over problems as numerator and denominator columns.

    Names (MEASURE as in `MEASURES`, HOW an aggregate, `orm`, or `correct`):

    - `length/MEASURE/all`, `length/MEASURE/right`: mean over the problems where it is defined;
    - `length/MEASURE/spearman/HOW`: mean of the problems' rank correlations;
    - `length/MEASURE/chosen/HOW`, and `… chosen less all/HOW`, `… chosen less right/HOW`: the difference within a
      problem, over the problems that have both;
    - `lowest step is last` and `lowest step is last, by chance`: shares of solutions.

    A figure that is defined for no problem is left out.

    Args:
        rows: what `length_of` made, None for a problem that does not count.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}

    def put(name: str, values: list[float | None]) -> None:
        if any(value is not None for value in values):
            found[name] = ([value or 0.0 for value in values], [float(value is not None) for value in values])

    hows = list(dict.fromkeys(how for row in rows if row for how in row[MEASURES[0]]["by"]))
    for measure in MEASURES:
        cells = [None if row is None else row[measure] for row in rows]
        for which in ("all", "right"):
            put(f"length/{measure}/{which}", [None if c is None else c[which] for c in cells])
        for how in hows:
            put(
                f"length/{measure}/spearman/{how}",
                [None if c is None else c["by"][how]["spearman"] for c in cells],
            )
            put(
                f"length/{measure}/chosen/{how}",
                [None if c is None else c["by"][how]["chosen"] for c in cells],
            )
            for which in ("all", "right"):
                put(
                    f"length/{measure}/chosen less {which}/{how}",
                    [None if c is None else _less(c["by"][how]["chosen"], c[which]) for c in cells],
                )
    lowest = [{"solutions": 0, "last": 0.0, "chance": 0.0} if row is None else row["lowest"] for row in rows]
    if any(one["solutions"] for one in lowest):
        solutions = [float(one["solutions"]) for one in lowest]
        found["lowest step is last"] = ([one["last"] for one in lowest], solutions)
        found["lowest step is last, by chance"] = ([one["chance"] for one in lowest], solutions)
    return found


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
