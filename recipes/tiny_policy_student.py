"""A student of the arithmetic world: solutions with systematic errors, which the tiny policy learns to write.

The solver (`arithmetic_world`) errs at random, so its wrong answers to one problem are all different and a majority vote
finds the right one. A student also has *misconceptions*: procedures that are wrong in the same way each time, so that one
wrong answer can be the commonest. Two are the best-known bugs of Brown and Burton 1978, "Diagnostic models for procedural
bugs in basic mathematical skills", Cognitive Science 2: in a column where it should borrow, take the smaller digit from the
larger (62 - 38 = 36); in an addition, forget the carry (47 + 38 = 75). The third misreads "keeps 1 of every 4" as "loses 4".

Deviation: a bug strikes with a probability, not always, as bugs of real students come and go (VanLehn 1982, "Bugs are not
enough"), and it strikes in the units only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from stepmark.errors import UsageError
from stepmark.problems.arithmetic import LARGEST, ArithmeticProblem, arithmetic_problems
from stepmark.problems.arithmetic_world import Solver, SolverSettings, WorldState


@dataclass(frozen=True, kw_only=True, slots=True)
class StudentSettings:
    """How often a student errs. Rates are probabilities where the misconception applies.

    Raises:
        UsageError: a rate outside [0, 1].
    """

    divide_as_subtract: float = 0.65
    """Takes the number of a division away."""
    smaller_from_larger: float = 0.25
    """In the units of a subtraction that needs a borrow."""
    forgotten_carry: float = 0.1
    """The units of an addition make ten or more."""
    solver: SolverSettings = field(
        default_factory=lambda: SolverSettings(
            error_rate=0.01, noise=0.0, verbosity=0.0, repair_rate=0.15, repair_decay=0.7
        )
    )
    """Random errors, and how often an error is noticed and corrected."""

    def __post_init__(self) -> None:
        for name in ("divide_as_subtract", "smaller_from_larger", "forgotten_carry"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UsageError(f"StudentSettings: {name} must be in [0, 1], found {value!r}")


STUDENT = StudentSettings()
"""The student that the tiny policy learnt from."""


def misconception(
    solver: Solver, state: WorldState, settings: StudentSettings = STUDENT
) -> tuple[float, str, WorldState] | None:
    """The line that a misconception would write here: its probability, its text, the state after it; None where none applies."""
    if state.place == solver.end:
        return None
    left, sign, right = solver.due(state, solver.problem.operations[state.place])
    if not isinstance(left, int) or not isinstance(right, int) or left < 2 or right < 1:
        return None
    if sign == "/" and left > right:
        return settings.divide_as_subtract, *solver.line(state, state.place, sign="-")
    if sign == "-" and left > right and left % 10 < right % 10:
        result = 10 * (left // 10 - right // 10) + right % 10 - left % 10
        return settings.smaller_from_larger, *solver.line(state, state.place, result=result)
    if sign == "+" and left % 10 + right % 10 >= 10:
        return settings.forgotten_carry, *solver.line(state, state.place, result=left + right - 10)
    return None


def student_solution(
    problem: ArithmeticProblem, dice: random.Random, settings: StudentSettings = STUDENT
) -> tuple[str, ...]:
    """The lines of one solution, to the answer, drawn from `dice`."""
    solver = Solver(problem, settings.solver)
    state, lines = solver.start(), list[str]()
    while state.answer is None:
        bug = misconception(solver, state, settings)
        if bug is not None and dice.random() < bug[0]:
            _, text, state = bug
        else:
            text, state, _ = solver.draw(state, dice)
        lines.append(text)
    return tuple(lines)


def student_solutions(
    count: int,
    *,
    seed: int = 0,
    steps: tuple[int, int] = (3, 8),
    largest: int = LARGEST,
    surface: Literal["formula", "story", "both"] = "both",
    settings: StudentSettings = STUDENT,
) -> Iterator[tuple[ArithmeticProblem, tuple[str, ...]]]:
    """Problems (those of `arithmetic_problems`) with one solution of the student each; row i depends on the settings and on i alone.

    Raises:
        UsageError: as `arithmetic_problems`.
    """
    for number, problem in enumerate(
        arithmetic_problems(count, seed=seed, steps=steps, surface=surface, largest=largest)
    ):
        yield problem, student_solution(problem, random.Random(f"student 1/{seed}/{number}"), settings)
