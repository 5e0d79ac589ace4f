"""A stochastic solver of the arithmetic world.

The solver goes on from what the steps so far *state*: a wrong quantity is carried on. Before each line it may notice that
a quantity is wrong and correct it; else it may err (a slip in the result, a wrong operation, a wrong number, a step left out,
the step before done again); else it does what is due.

Its chances depend on the problem and on the *class* of its state alone, never on the values: how far it has come, whether the
running quantity is wrong, whether the product on its side is wrong, for how many lines. And it never errs by luck: an
error is drawn only among those after which going on rightly misses the answer. Both together make the
classes a Markov chain of a few hundred states, so that the probability of the right answer can be computed
(`arithmetic_value`).

Steps of the arithmetic world read, and the truth about each: `true_labels`.

A step is right **in itself** when it does what is due: the operation that its name stands for, with the numbers that
the problem gives, on the quantity as the steps before state it (or as it truly is, so that a correction counts as
right), computed rightly, in the right unit, with no step left out before it. So a step that goes on faithfully from a
wrong quantity is right, and the first step that is not right is the first error. If every step is right, so is the answer.

V in the arithmetic world: the probability that its solver reaches the right answer, computed and not estimated.

The solver's chances depend on the class of its state and not on the values (`arithmetic_solver` says how), so V is a
sum over a few hundred classes, each computed once.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from stepmark.errors import InputError, UsageError
from stepmark.problems.arithmetic import (
    ArithmeticProblem,
    Line,
    Number,
    Operation,
    answer_line,
    read_line,
    reckon,
    step_line,
)


class Account:
    """What the steps so far state: the quantities named, and how far they have come.

    Args:
        problem: whose steps they are.
    """

    def __init__(self, problem: ArithmeticProblem) -> None:
        self.problem = problem
        self.stated: dict[int, Number] = {}
        """The latest statement of each quantity, by the number of its operation."""
        self.due = 0
        """The operation that comes next: the one after the furthest that was stated."""
        self.answer: Number | None = None
        """The answer, once stated; a later calculation takes it back."""

    def running(self, place: int) -> Number:
        """The running quantity before an operation, as the steps state it."""
        for earlier in range(place - 1, -1, -1):
            if earlier in self.stated and not self.problem.operations[earlier].is_product:
                return self.stated[earlier]
        return self.problem.start

    def read(self, text: str) -> Line | None:
        """Take in a step; None, and nothing changes, where it states no quantity of the problem and no answer."""
        line = read_line(text)
        if line is None:
            return None
        if line.name is None:
            self.answer = line.result
            return line
        place = self.problem.places.get(line.name)
        if place is None:
            return None
        self.stated[place] = line.result
        self.due = max(self.due, place + 1)
        self.answer = None
        return line


def true_labels(problem: ArithmeticProblem, steps: Sequence[str]) -> tuple[tuple[bool, ...], int]:
    """Whether each step is right in itself (see the module), and the first error.

    Args:
        problem: whose steps they are.
        steps: any number of them, from the first, by any writer.

    Returns:
        One truth value a step, and the 0-based place of the first False, -1 when there is none.

    Raises:
        InputError: a step that is not of this world: it states no quantity of the problem and no answer, or more than
            one calculation of two numbers. Whether it is right cannot be told.
    """
    account = Account(problem)
    labels: list[bool] = []
    for number, text in enumerate(steps):
        line = read_line(text)
        known = line is not None and (line.name is None or line.name in problem.places)
        if line is None or not known or not line.readable:
            raise InputError(
                f"step {number}: expected 'NAME: A + B = C' with a name from this problem, or 'The answer is C.', "
                f"found {text!r}",
                where=problem.id,
            )
        labels.append(_right(account, line))
        account.read(text)
    return tuple(labels), labels.index(False) if False in labels else -1


def _right(account: Account, line: Line) -> bool:
    problem = account.problem
    if line.name is None:
        # The answer may be the stated quantity or the true one: an answer that corrects is right.
        return account.due == len(problem.operations) and line.result in {
            account.running(account.due),
            problem.answer,
        }
    place = problem.places[line.name]
    operation = problem.operations[place]
    if place > account.due or line.unit not in {"", operation.unit}:
        return False
    lefts, rights = _inputs(account, place)
    if line.calculation is None:
        return line.result in {reckon(a, operation.sign, b) for a in lefts for b in rights}
    left, sign, right = line.calculation
    fits = (left in lefts and right in rights) or (
        operation.sign in "+*" and left in rights and right in lefts
    )
    return fits and sign == operation.sign and reckon(left, sign, right) == line.result


def _inputs(account: Account, place: int) -> tuple[set[Number], set[Number]]:
    """The numbers that an operation may take on its two sides: as stated, or as they truly are."""
    problem = account.problem
    operation = problem.operations[place]
    left, _, right = problem.calculation(place)
    lefts: set[Number] = {left}
    rights: set[Number] = {right}
    if operation.left is None:
        lefts.add(account.running(place))
    if operation.is_merge and place - 1 in account.stated:
        rights.add(account.stated[place - 1])
    return lefts, rights


KINDS = {"slip": 0.4, "operation": 0.2, "operand": 0.2, "drop": 0.1, "repeat": 0.1}
"""Kinds of error and their shares where all can be made; what cannot be made where the solver stands adds to the slips. Steps
are dropped or repeated only while nothing is wrong."""
_HARDNESS = {"+": 0.6, "-": 0.9, "*": 1.2, "/": 1.3}
_ANSWER_HARDNESS = 0.2
_MOST = 0.5
_CAP = 9999


@dataclass(frozen=True, kw_only=True, slots=True)
class SolverSettings:
    """How well the solver works. At the defaults it solves about 60 % of the default problems.

    Raises:
        UsageError: a setting out of its range.
    """

    error_rate: float = 0.065
    """Probability of an error at a calculation of middling difficulty, in [0, 0.5]. Harder operations and larger numbers have
    more: the factor runs from about 0.5 to 1.8."""
    repair_rate: float = 0.04
    """Probability, in [0, 1], that the line right after an error corrects it."""
    repair_decay: float = 0.7
    """By this factor, in [0, 1], the probability falls with every further line."""
    noise: float = 0.4
    """Problems differ: each has a factor on its error rate, log-normal with this standard deviation, at least 0. It is drawn
    from the text of the problem."""
    verbosity: float = 0.2
    """Probability, in [0, 1], that a line begins with a sentence that says nothing."""

    def __post_init__(self) -> None:
        for name, most in (
            ("error_rate", 0.5),
            ("repair_rate", 1.0),
            ("repair_decay", 1.0),
            ("noise", math.inf),
            ("verbosity", 1.0),
        ):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise UsageError(f"SolverSettings: {name} must be in [0, {most:g}], found {value!r}")


DEFAULT = SolverSettings()
"""About 60 % of the default problems are solved."""


class State(NamedTuple):
    """Where the solver stands."""

    place: int
    """The operation that comes next; their number for the answer."""
    running: Number
    """The running quantity, as stated."""
    product: Number | None = None
    """The product on its side, as stated, where one waits to be brought in."""
    age: int = 0
    """Lines written since a quantity became wrong, that line not among them; 0 when nothing is."""
    answer: Number | None = None
    """The answer, once given: nothing follows."""


class NextStep(NamedTuple):
    """A line that the solver may write next."""

    text: str
    probability: float
    state: State


_Moves = Sequence[tuple[str, State]]


class Solver:
    """The solver at one problem.

    Args:
        problem: to solve.
        settings: how well.
    """

    def __init__(self, problem: ArithmeticProblem, settings: SolverSettings) -> None:
        self.problem = problem
        self.settings = settings
        self.end = len(problem.operations)
        self._before = problem.before
        self._values = problem.values
        digest = hashlib.sha256(problem.text.encode()).digest()
        factor = math.exp(settings.noise * random.Random(int.from_bytes(digest[:8], "big")).gauss(0, 1))
        rates = [self._hardness(place) for place in range(self.end)] + [_ANSWER_HARDNESS]
        self.error_rates = tuple(min(_MOST, settings.error_rate * factor * rate) for rate in rates)
        """Probability of an error at each operation, and at the answer."""
        given = {
            number
            for operation in problem.operations
            for number in (operation.left, operation.right)
            if number is not None
        }
        self._numbers = tuple(sorted({*given, problem.start, *problem.distractors}))
        self._prefaces = [f"Next is the {operation.stage}. " for operation in problem.operations] + [
            "That was the last step. "
        ]

    def _hardness(self, place: int) -> float:
        # From the true numbers and not from the stated ones: the chances must not depend on the values.
        left, sign, right = self.problem.calculation(place)
        digits = len(str(left)) + len(str(right))
        return _HARDNESS[sign] * (0.6 + 0.12 * digits)

    def start(self) -> State:
        """Before the first step."""
        return State(0, self.problem.start)

    def after(self, steps: Sequence[str]) -> State:
        """Where the solver stands after these steps, by any writer; what states nothing is passed over."""
        account = Account(self.problem)
        state = self.start()
        for text in steps:
            if account.read(text) is None:
                continue
            if account.answer is not None:
                state = state._replace(answer=account.answer)
                continue
            place = account.due
            waits = place < self.end and self.problem.operations[place].is_merge
            product = account.stated[place - 1] if waits else None
            state = self._aged(state, State(place, account.running(place), product))
        return state

    def wrong(self, state: State) -> bool:
        """Whether a quantity that is still needed is wrong."""
        return state.running != self._before[state.place] or self.wrong_product(state)

    def wrong_product(self, state: State) -> bool:
        """Whether a product waits to be brought in and is wrong."""
        return state.product is not None and state.product != self._values[state.place - 1]

    def _aged(self, old: State, new: State) -> State:
        return new._replace(age=old.age + 1) if self.wrong(old) and self.wrong(new) else new

    # -- what it may write

    def next_steps(self, state: State) -> Iterator[NextStep]:
        """Every line that may come next, with its probability; the same line may come more than once. None after the answer."""
        if state.answer is not None:
            return
        rest = 1.0
        repair = self.repair_probability(state)
        if repair:
            text, new = self.repair(state)
            yield NextStep(text, repair, new)
            rest -= repair
        error = self.error_rates[state.place]
        moves = [(self.faithful(state), rest * (1 - error))]
        for share, errors in self.errors(state):
            moves += [(move, rest * error * share / len(errors)) for move in errors]
        talk = self.settings.verbosity
        for (text, new), probability in moves:
            if probability:
                yield NextStep(text, probability * (1 - talk), new)
                if talk:
                    yield NextStep(self._prefaces[state.place] + text, probability * talk, new)

    def draw(self, state: State, dice: random.Random) -> tuple[str, State, float]:
        """One line, the state after it, and the natural logarithm of its probability."""
        logprob = 0.0
        repair = self.repair_probability(state)
        if repair:
            if dice.random() < repair:
                return *self.repair(state), math.log(repair)
            logprob = math.log1p(-repair)
        error = self.error_rates[state.place]
        if dice.random() < error:
            shares = self.errors(state)
            share, moves = dice.choices(shares, [share for share, _ in shares])[0]
            text, new = moves[dice.randrange(len(moves))]
            logprob += math.log(error * share / len(moves))
        else:
            text, new = self.faithful(state)
            logprob += math.log1p(-error)
        talk = self.settings.verbosity
        if not talk:
            return text, new, logprob
        if dice.random() < talk:
            return self._prefaces[state.place] + text, new, logprob + math.log(talk)
        return text, new, logprob + math.log1p(-talk)

    def likeliest(self, state: State) -> tuple[str, State, float]:
        """The likeliest line, as `draw` gives it: what is due, done rightly, unless correction is likelier."""
        repair = self.repair_probability(state)
        if repair > 0.5:
            return *self.repair(state), math.log(repair)
        text, new = self.faithful(state)
        talk = self.settings.verbosity
        if talk > 0.5:
            text = self._prefaces[state.place] + text
        chances = (repair, self.error_rates[state.place], min(talk, 1 - talk))
        return text, new, sum(math.log1p(-chance) for chance in chances)

    def faithful(self, state: State) -> tuple[str, State]:
        """What is due, done rightly on what is stated."""
        if state.place == self.end:
            return answer_line(state.running), state._replace(answer=state.running)
        return self.line(state, state.place)

    def repair_probability(self, state: State) -> float:
        """Probability that the next line corrects a quantity."""
        if not self.wrong(state):
            return 0.0
        return self.settings.repair_rate * self.settings.repair_decay**state.age

    def repair(self, state: State) -> tuple[str, State]:
        """Correct the latest quantity that is wrong: the waiting product, else the running quantity."""
        product = self.wrong_product(state)
        place = state.place - 1
        while not product and self.problem.operations[place].is_product:
            place -= 1
        value = self._values[place]
        line = step_line(self.problem.operations[place], *self.problem.calculation(place), value)
        fixed = state._replace(age=0, **({"product": value} if product else {"running": value}))
        return f"Correction, {line}", self._aged(state, fixed)

    def errors(self, state: State) -> list[tuple[float, _Moves]]:
        """The errors that can be made here: shares, which sum to 1, and the lines that make one of each kind."""
        found: dict[str, _Moves] = {"slip": self._slips(state)}
        if state.place < self.end:
            found["operation"] = self._wrong_operations(state)
            found["operand"] = self._wrong_operands(state)
            if not self.wrong(state):
                found["drop"] = self._drops(state)
                found["repeat"] = self._repeats(state)
        shares = {kind: share for kind, share in KINDS.items() if found.get(kind)}
        shares["slip"] += 1 - math.fsum(shares.values())
        return [(share, found[kind]) for kind, share in shares.items()]

    def line(
        self,
        state: State,
        place: int,
        *,
        sign: str | None = None,
        right: Number | None = None,
        result: Number | None = None,
    ) -> tuple[str, State]:
        """The line of an operation and the state after it, with what is given here in place of what is due."""
        operation = self.problem.operations[place]
        left, due_sign, due_right = self.due(state, operation)
        sign, right = sign or due_sign, due_right if right is None else right
        value = reckon(left, sign, right) if result is None else result
        assert value is not None, "no operation of this world divides by zero"
        following = max(state.place, place + 1)
        new = State(following, state.running, value) if operation.is_product else State(following, value)
        return step_line(operation, left, sign, right, value), self._aged(state, new)

    @staticmethod
    def due(state: State, operation: Operation) -> tuple[Number, str, Number]:
        """The two numbers that an operation takes, as stated, and the sign between them."""
        left = state.running if operation.left is None else operation.left
        right = state.product if operation.right is None else operation.right
        assert right is not None, "a product is stated before it is brought in"
        return left, operation.sign, right

    def _results(self, state: State) -> tuple[Number, str, Number, Number, Callable[[Number | None], bool]]:
        """What is due, its result, and whether another result is an error that luck does not undo."""
        operation = self.problem.operations[state.place]
        left, sign, right = self.due(state, operation)
        due = reckon(left, sign, right)
        assert due is not None
        low, high = min(-_CAP, 2 * due, -2 * due), max(_CAP, 2 * due, -2 * due)
        truth: Number = self._values[state.place]
        merge = self.problem.operations[state.place + 1] if operation.is_product else None

        def misses(result: Number | None) -> bool:
            if result is None or result in {due, truth} or not low <= result <= high:
                return False
            if result < 0 <= due:
                return False
            # A wrong product could make up for a wrong running quantity.
            return merge is None or reckon(state.running, merge.sign, result) != self._values[state.place + 1]

        return left, sign, right, due, misses

    def _slips(self, state: State) -> _Moves:
        if state.place == self.end:
            near = (state.running + off for off in (1, -1, 2, -2, 10, -10))
            wrong = [n for n in near if n != self._values[-1] and not n < 0 <= state.running]
            return [(answer_line(n), state._replace(answer=n)) for n in wrong]
        _, sign, right, due, misses = self._results(state)
        offs: tuple[Number, ...] = (1, -1, 2, -2, 10, -10)
        if sign == "*":
            offs = tuple(dict.fromkeys((*offs, right, -right)))
        return [self.line(state, state.place, result=due + off) for off in offs if misses(due + off)]

    def _wrong_operations(self, state: State) -> _Moves:
        left, sign, right, _, misses = self._results(state)
        return [
            self.line(state, state.place, sign=other)
            for other in "+-*"
            if other != sign and misses(reckon(left, other, right))
        ]

    def _wrong_operands(self, state: State) -> _Moves:
        left, sign, right, _, misses = self._results(state)
        # Only decimals that end.
        numbers = (2, 4, 5, 10) if sign == "/" else self._numbers
        return [
            self.line(state, state.place, right=number)
            for number in numbers
            if number != right and misses(reckon(left, sign, number))
        ]

    def is_plain(self, place: int) -> bool:
        """Whether an operation takes a given number alone to the running quantity."""
        operation = self.problem.operations[place]
        return not operation.is_product and not operation.is_merge

    def _drops(self, state: State) -> _Moves:
        if not self.is_plain(state.place):
            return ()
        if state.place + 1 == self.end:
            return ((answer_line(state.running), state._replace(answer=state.running)),)
        return (self.line(state, state.place + 1),) if self.is_plain(state.place + 1) else ()

    def _repeats(self, state: State) -> _Moves:
        again = state.place - 1
        return (self.line(state, again),) if again >= 0 and self.is_plain(again) else ()


@lru_cache(maxsize=4096)
def solver_of(problem: ArithmeticProblem, settings: SolverSettings) -> Solver:
    """The solver of a problem, kept for the next time."""
    return Solver(problem, settings)


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
        steps: by any writer; what states nothing leaves V as it is.
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
