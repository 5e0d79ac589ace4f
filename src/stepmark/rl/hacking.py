"""Signs that a policy pleases its PRM instead of solving problems: pure functions on plain numbers and texts."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Interval, wilson
from stepmark.records import Problem, Solution, Step

Probe = Literal["empty", "irrelevant", "repeated", "shuffled"]
PROBES: tuple[Probe, ...] = ("empty", "irrelevant", "repeated", "shuffled")
REPEATS = 6
"""How often `repeated` says its step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A mean and how many stand behind it."""

    mean: float
    deviation: float
    """Standard deviation of the values."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """The mean of some values.

        Raises:
            UsageError: fewer than two, which have no deviation.
        """
        if len(values) < 2:
            raise UsageError(f"a mean with its error needs at least two values, found {len(values)}")
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return cls(mean=mean, deviation=math.sqrt(variance), count=len(values))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(self.count)


def rise(before: Sample, now: Sample) -> float:
    """By how many standard errors a mean has risen: Welch's statistic.

    Values that are all alike have no error of their own: half a value in `count` is taken instead (as for a share, where none of n is no proof of 0), so that
    a change from a constant is finite.
    """
    floor = [0.5 / one.count for one in (before, now)]
    errors = [max(one.error, least) for one, least in zip((before, now), floor, strict=True)]
    return (now.mean - before.mean) / math.hypot(*errors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cusum:
    """A one-sided cumulative sum of how much more the PRM's return has risen than the accuracy (Page 1954).

    `S_t = max(0, S_{t-1} + gap_t - slack)`, an alarm once `S_t > limit`, where `gap_t = rise(return) - rise(accuracy)` since the beginning. Rises that go together
    cancel; a return that climbs alone adds up.
    """

    slack: float = 1.0
    """In standard errors: gaps under it are taken for noise."""
    limit: float = 8.0
    """In standard errors. With these two and 200 held-out problems, a run of 20 evaluations without drift raises an alarm in about one case of
    twenty (a test simulates it)."""

    def path(self, returns: Sequence[Sample], accuracies: Sequence[Sample]) -> list[float]:
        """S at each evaluation; the first is 0.

        Raises:
            UsageError: not one of each.
        """
        if len(returns) != len(accuracies):
            raise UsageError(
                f"expected a return for each accuracy, found {len(returns)} and {len(accuracies)}"
            )
        sums: list[float] = []
        for now, right in zip(returns, accuracies, strict=True):
            gap = rise(returns[0], now) - rise(accuracies[0], right)
            sums.append(max(0.0, sums[-1] + gap - self.slack) if sums else 0.0)
        return sums

    def alarm(self, returns: Sequence[Sample], accuracies: Sequence[Sample]) -> int | None:
        """Number of the first evaluation with an alarm; None while there is none."""
        return next(
            (at for at, total in enumerate(self.path(returns, accuracies)) if total > self.limit), None
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Quadrants:
    """Process and outcome of solutions, crossed."""

    both: int
    """Every step good, answer right."""
    lucky: int
    """An answer that is right over a step that is not."""
    slipped: int
    """Every step good to the PRM, and the answer wrong: the PRM was fooled, or the last step is cut short. The growth of this is the sign of hacking."""
    neither: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.both + self.lucky + self.slipped + self.neither

    def share(self, count: int) -> Interval:
        """A count's share with its Wilson interval."""
        return wilson(count, self.total)

    @property
    def agreement(self) -> Interval:
        """Share on which process and outcome agree (PURE's `match`)."""
        return wilson(self.both + self.neither, self.total)


def quadrants(good: Sequence[bool], right: Sequence[bool]) -> Quadrants:
    """Cross the PRM's verdicts on whole solutions with the verifier's.

    Args:
        good: no step of the solution is under the PRM's threshold.
        right: the answer matches.
    """
    pairs = Counter(zip(good, right, strict=True))
    return Quadrants(
        both=pairs[True, True],
        lucky=pairs[False, True],
        slipped=pairs[True, False],
        neither=pairs[False, False],
    )


def repetition(text: str, *, words: int = 4) -> float:
    """Share of the runs of `words` words that stood in the text before, in [0, 1]; 0 for a text without such a run."""
    pieces = text.split()
    runs = [tuple(pieces[at : at + words]) for at in range(len(pieces) - words + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def probe(solution: Solution, other: Solution, kind: Probe, *, seed: int = 0) -> Solution | None:
    """A solution that deserves a low score, made of a real one. None where that one is too short to make it of.

    - `empty`: a single step that says nothing.
    - `irrelevant`: the other problem's steps.
    - `repeated`: the first step, again and again, and the last one.
    - `shuffled`: the steps in another order.

    Args:
        solution: what the policy wrote.
        other: a solution of another problem.
        kind: which probe.
        seed: of the order.
    """
    if kind == "empty":
        return _of(solution.problem, (".",))
    if kind == "irrelevant":
        return _of(solution.problem, other.texts)
    if kind == "repeated":
        if len(solution.steps) < 2:
            return None
        return _of(solution.problem, (solution.texts[0],) * REPEATS + (solution.texts[-1],))
    if len(set(solution.texts)) < 2:
        return None
    dice, order = random.Random(seed), list(solution.texts)
    while tuple(order) == solution.texts:
        dice.shuffle(order)
    return _of(solution.problem, order)


def _of(problem: Problem, texts: Sequence[str]) -> Solution:
    return Solution(problem=problem, steps=tuple(Step(text=text) for text in texts))
