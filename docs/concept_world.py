"""What the experiments behind the concept pages share: solutions of the arithmetic world with their truth, and noise that stays.

All chance is seeded, by the problem, the sample's number or the text that is scored: equal code gives equal numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from stepmark.backends import Completions
from stepmark.problems.arithmetic import ArithmeticProblem, arithmetic_problems
from stepmark.problems.arithmetic_world import (
    ArithmeticPolicy,
    KnownSolution,
    SolverSettings,
    true_labels,
    wrong_solutions,
)
from stepmark.report.plots import Plot, Series

QUIET = SolverSettings(verbosity=0.0)
"""The default solver without sentences that say nothing: equal ways are equal texts."""
RECOVERS = SolverSettings(repair_rate=0.35, verbosity=0.0)
"""A policy that often notices its error: 35 times of 100 right after it."""
STRONG, WEAK = SolverSettings(error_rate=0.02), SolverSettings(error_rate=0.15)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one experiment gives."""

    plot: Plot
    numbers: dict[str, str]
    """As they stand in the text."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One solution that the solver wrote, with its truth."""

    problem: ArithmeticProblem
    steps: tuple[str, ...]
    labels: tuple[bool, ...]
    first_error: int
    right: bool
    """Is the answer right?"""


def sampled(
    count: int, n: int, *, seed: int, steps: tuple[int, int], settings: SolverSettings
) -> list[list[Sampled]]:
    """Solutions of the solver, n for each problem."""
    policy = ArithmeticPolicy(settings)
    problems = list(arithmetic_problems(count, seed=seed, steps=steps, surface="formula"))
    replies = policy.complete_many(
        [Completions(prompt=p.text + "\n", n=n, temperature=1.0, seed=seed) for p in problems]
    )
    found = []
    for problem, reply in zip(problems, replies, strict=True):
        if not isinstance(reply, list):
            raise reply
        group = []
        for written in reply:
            lines = tuple(line for line in written.text.split("\n") if line.strip())
            labels, first_error = true_labels(problem, lines)
            group.append(
                Sampled(
                    problem=problem,
                    steps=lines,
                    labels=labels,
                    first_error=first_error,
                    right=lines[-1] == f"The answer is {problem.answer}.",
                )
            )
        found.append(group)
    return found


@cache
def wrong(settings: SolverSettings = QUIET) -> list[KnownSolution]:
    """400 solutions with a wrong answer, whose errors were not corrected."""
    return [
        one for one in wrong_solutions(400, seed=11, steps=(6, 12), settings=settings) if not one.repaired
    ]


def noise(*key: str) -> float:
    """A standard normal number that belongs to a text: asked again, a grader says the same again."""
    digest = hashlib.sha256("\x00".join(key).encode()).digest()
    return NormalDist().inv_cdf((int.from_bytes(digest[:8]) + 0.5) / 2**64)


def squash(x: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-x))


def logit(p: float) -> float:
    """Its inverse, with probabilities kept off 0 and 1."""
    p = min(max(p, 1e-4), 1 - 1e-4)
    return math.log(p / (1 - p))


def percent(share: float, digits: int = 0) -> str:
    """As the text has it."""
    return f"{100 * share:.{digits}f} %"


def line(name: str, x: Iterable[float | str], y: Iterable[float | None]) -> Series:
    """One line of a plot."""
    return Series(name=name, x=tuple(x), y=tuple(y))  # type: ignore[arg-type]
