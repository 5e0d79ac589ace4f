"""The arithmetic world as one object: problems with known truth, a policy with known error rates, a PRM that is never wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import (
    LARGEST,
    ArithmeticProblem,
    arithmetic_problems,
    make_problems,
    read_arithmetic,
)
from stepmark.problems.arithmetic_policy import ArithmeticPolicy, wrong_solutions
from stepmark.problems.arithmetic_solver import SolverSettings as _SolverSettings
from stepmark.problems.arithmetic_steps import true_labels
from stepmark.problems.arithmetic_value import next_steps, true_value
from stepmark.records import Problem as _Record


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ArithmeticWorld:
    """A world of arithmetic problems in which everything is known: for trying a method out, and for measuring it against the truth.

    Raises:
        UsageError: an error rate outside [0, 0.5].
    """

    error_rate: float = 0.065
    """Probability, in [0, 0.5], that the policy errs at a calculation of middling difficulty; 0.065 solves about 60 % of the default problems."""

    Problem = ArithmeticProblem
    Policy = ArithmeticPolicy
    SolverSettings = _SolverSettings
    make_problems = staticmethod(make_problems)
    read = staticmethod(read_arithmetic)
    true_labels = staticmethod(true_labels)
    true_value = staticmethod(true_value)
    next_steps = staticmethod(next_steps)
    wrong_solutions = staticmethod(wrong_solutions)

    def __post_init__(self) -> None:
        _ = self._solver

    @property
    def _solver(self) -> _SolverSettings:
        return _SolverSettings(error_rate=self.error_rate)

    def problems(
        self,
        count: int,
        *,
        seed: int = 0,
        steps: tuple[int, int] = (4, 16),
        surface: Literal["formula", "story", "both"] = "both",
        largest: int = LARGEST,
    ) -> list[_Record]:
        """Problems with their answers; number i depends on the settings and on i alone.

        Args:
            count: how many.
            seed: another seed gives other problems.
            steps: least and most steps of the true solution, from 2 to 16.
            surface: bare operations, stories, or either with equal chances.
            largest: no quantity is larger; from 99 to 999.

        Raises:
            UsageError: a setting out of its range.
        """
        made = arithmetic_problems(count, seed=seed, steps=steps, surface=surface, largest=largest)
        return [_Record(text=problem.text, id=problem.id, answer=str(problem.answer)) for problem in made]

    def policy(self) -> ArithmeticPolicy:
        """A policy that solves the problems step by step, and errs at the world's rate; it needs no model."""
        return ArithmeticPolicy(self._solver)

    def prm(self) -> ScriptedPRM:
        """A PRM that is never wrong: the score of a step is the exact probability that the policy gets from there to the right answer."""
        return ScriptedPRM(self._value, name="truth", default_aggregate="last")

    def _value(self, problem: str, steps: Sequence[str]) -> float:
        return true_value(read_arithmetic(problem), steps, self._solver)
