"""The arithmetic world under one name: its problems, its truth about any steps, its policy."""

from __future__ import annotations

from typing import final

from stepmark.problems.arithmetic import ArithmeticProblem as _Problem
from stepmark.problems.arithmetic import make_problems as _make_problems
from stepmark.problems.arithmetic import read_arithmetic as _read
from stepmark.problems.arithmetic_policy import ArithmeticPolicy as _Policy
from stepmark.problems.arithmetic_policy import wrong_solutions as _wrong_solutions
from stepmark.problems.arithmetic_solver import SolverSettings as _SolverSettings
from stepmark.problems.arithmetic_steps import true_labels as _true_labels
from stepmark.problems.arithmetic_value import next_steps as _next_steps
from stepmark.problems.arithmetic_value import true_value as _true_value


@final
class ArithmeticWorld:
    """Problems of many steps of which everything is known: true steps, true labels, the exact chance that the policy solves them."""

    Problem = _Problem
    make_problems = staticmethod(_make_problems)
    read = staticmethod(_read)
    true_labels = staticmethod(_true_labels)
    Policy = _Policy
    SolverSettings = _SolverSettings
    true_value = staticmethod(_true_value)
    next_steps = staticmethod(_next_steps)
    wrong_solutions = staticmethod(_wrong_solutions)
