"""V in the arithmetic world: the probability that its solver reaches the right answer, computed and not estimated.

The solver's chances depend on the class of its state and not on the values (`arithmetic_solver` says how), so V is a
sum over a few hundred classes, each computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from stepmark.problems.arithmetic import ArithmeticProblem
from stepmark.problems.arithmetic_solver import DEFAULT, KINDS, Solver, SolverSettings, State, solver_of
from stepmark.problems.arithmetic_text import reckon


class Value:
    """V of a solver, for any state.

    Args:
        solver: whose chances are meant.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self.problem = solver.problem
        self._memo: dict[tuple[int, bool, bool, bool, int], float] = {}

    def of(self, state: State) -> float:
        """V: the probability that the solver, going on from here, gives the right answer."""
        if state.answer is not None:
            return float(state.answer == self.problem.answer)
        running = state.running != self.problem.before[state.place]
        product = self.solver.wrong_product(state)
        merged = running
        if state.product is not None:
            sign = self.problem.operations[state.place].sign
            merged = reckon(state.running, sign, state.product) != self.problem.values[state.place]
        return self._value(state.place, running, product, merged, state.age)

    def _value(self, place: int, running: bool, product: bool, merged: bool, age: int) -> float:
        """V of a class: are the running quantity, the waiting product, and what both give wrong, and for how long."""
        key = (place, running, product, merged, age)
        if key not in self._memo:
            self._memo[key] = (
                self._value_wrong(place, running, product, merged, age)
                if running or product
                else self._value_right(place)
            )
        return self._memo[key]

    def _value_right(self, place: int) -> float:
        error = self.solver.error_rates[place]
        if place == self.solver.end:
            return 1 - error
        faithful = self._value(place + 1, False, False, False, 0)
        plain = self.solver.is_plain(place)
        if self.problem.operations[place].is_product:
            wrong = self._value(place + 1, False, True, True, 0)
        else:
            wrong = self._value(place + 1, True, False, True, 0)
        dropped = wrong
        if plain and place + 1 == self.solver.end:
            dropped = 0.0
        elif plain and self.solver.is_plain(place + 1):
            dropped = self._value(place + 2, True, False, True, 0)
        drop, repeat = KINDS["drop"], KINDS["repeat"]
        if not (place and self.solver.is_plain(place - 1)):
            repeat = 0.0
        known = (1 - error) * faithful + error * ((1 - drop - repeat) * wrong + drop * dropped)
        # After a repetition the solver stands where it stood, with a wrong quantity; corrected, it is back here. So this value
        # V stands on both sides: V = known + error repeat (fix V + (1 - fix) on).
        fix = self.solver.settings.repair_rate
        on = self._go_on(place, True, False, True, 0) if repeat else 0.0
        return (known + error * repeat * (1 - fix) * on) / (1 - error * repeat * fix)

    def _value_wrong(self, place: int, running: bool, product: bool, merged: bool, age: int) -> float:
        fix = self.solver.settings.repair_rate * self.solver.settings.repair_decay**age
        if product and running:
            fixed = self._value(place, True, False, True, age + 1)
        else:
            fixed = self._value(place, False, False, False, 0)
        return fix * fixed + (1 - fix) * self._go_on(place, running, product, merged, age)

    def _go_on(self, place: int, running: bool, product: bool, merged: bool, age: int) -> float:
        """V of a wrong class when the next line is no correction."""
        error = self.solver.error_rates[place]
        if place == self.solver.end:
            return (1 - error) * (not running)
        if self.problem.operations[place].is_product:
            faithful = self._value(place + 1, running, False, running, age + 1 if running else 0)
            wrong = self._value(place + 1, running, True, True, age + 1)
            return (1 - error) * faithful + error * wrong
        carried = merged if self.problem.operations[place].is_merge else running
        faithful = self._value(place + 1, carried, False, carried, age + 1 if carried else 0)
        return (1 - error) * faithful + error * self._value(place + 1, True, False, True, age + 1)


@lru_cache(maxsize=4096)
def _value_of(problem: ArithmeticProblem, settings: SolverSettings) -> Value:
    return Value(solver_of(problem, settings))


def true_values(
    problem: ArithmeticProblem, steps: Sequence[str], settings: SolverSettings = DEFAULT
) -> tuple[float, ...]:
    """V before the first step and after each: one more than steps, each in [0, 1], exact up to rounding.

    Args:
        problem: whose steps they are.
        steps: whoever wrote them; what states nothing leaves V as it is.
        settings: of the solver whose rollouts are meant.
    """
    value = _value_of(problem, settings)
    return tuple(value.of(value.solver.after(steps[:count])) for count in range(len(steps) + 1))


def true_value(problem: ArithmeticProblem, steps: Sequence[str], settings: SolverSettings = DEFAULT) -> float:
    """V after these steps: the probability that the solver goes on to the right answer; see `true_values`."""
    value = _value_of(problem, settings)
    return value.of(value.solver.after(steps))


def next_steps(
    problem: ArithmeticProblem, steps: Sequence[str], settings: SolverSettings = DEFAULT
) -> dict[str, float]:
    """Every line that the solver may write after these steps, with its probability; empty after the answer."""
    solver = solver_of(problem, settings)
    found: dict[str, float] = {}
    for step in solver.next_steps(solver.after(steps)):
        found[step.text] = found.get(step.text, 0.0) + step.probability
    return found
