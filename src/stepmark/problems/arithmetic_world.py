"""The solver of the arithmetic world, the truth about any steps (which are right, and V after each), and the world as one object.

The solver goes on from what the steps so far *state*. Before each line it may notice that a quantity is wrong and correct it; else it may err (a slip in
the result, a wrong operation, a wrong number, a step left out, the step before done again); else it does what is due. Its samples depend on the request
and the sample's number alone (`backends.sample_seed`). Its chances depend on the problem and on the *class* of its state, never on the values: how far
it has come, whether the running quantity and the waiting product are wrong, for how many lines. It never errs by luck: an error is drawn only among
those after which going on rightly misses the answer. So the classes are a Markov chain of a few hundred states, and V, the probability that the solver
reaches the right answer, is computed and not estimated.

A step is right **in itself** when it does what is due: the operation that its name stands for, with the numbers that the problem gives, on the quantity
as the steps before state it (or as it truly is), calculated rightly, in the right unit, with no step left out before it. The first step that is not
right is the first error. If every step is right, so is the answer.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple, final

from pydantic import Field

from stepmark.backends import (
    BatchPolicy,
    ChoiceLogprobs,
    Completion,
    Completions,
    Prompt,
    Ready,
    cut_at_stop,
    sample_seed,
)
from stepmark.errors import InputError, UsageError
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import (
    LARGEST,
    ArithmeticProblem,
    Line,
    Number,
    Operation,
    Surface,
    answer_line,
    arithmetic_problems,
    calculate,
    find_problem,
    make_problems,
    read_arithmetic,
    read_line,
)
from stepmark.records import Problem as Record
from stepmark.records import Solution
from stepmark.settings import settings


class Account:
    """What the steps so far state: the quantities named, and how far they have come."""

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

    def add(self, line: Line | None) -> bool:
        """Take in a step; False, and nothing changes, where it states no quantity of the problem and no answer."""
        if line is None or (line.name is not None and line.name not in self.problem.places):
            return False
        if line.name is None:
            self.answer = line.result
            return True
        place = self.problem.places[line.name]
        self.stated[place] = line.result
        self.due = max(self.due, place + 1)
        self.answer = None
        return True

    def is_right(self, line: Line) -> bool:
        """Whether the next step is right in itself (see the module)."""
        problem = self.problem
        if line.name is None:
            # The answer may be the stated quantity or the true one: an answer that corrects is right.
            return self.due == len(problem.operations) and line.result in {
                self.running(self.due),
                problem.answer,
            }
        place = problem.places[line.name]
        operation = problem.operations[place]
        if place > self.due or line.unit not in {"", operation.unit}:
            return False
        left, sign, right = problem.calculation(place)
        lefts: set[Number] = {left}
        rights: set[Number] = {right}
        if operation.left is None:
            lefts.add(self.running(place))
        if operation.is_merge and place - 1 in self.stated:
            rights.add(self.stated[place - 1])
        if line.calculation is None:
            return line.result in {calculate(a, sign, b) for a in lefts for b in rights}
        a, by, b = line.calculation
        fits = (a in lefts and b in rights) or (sign in "+*" and a in rights and b in lefts)
        return fits and by == sign and calculate(a, sign, b) == line.result


def true_labels(problem: ArithmeticProblem, steps: Sequence[str]) -> tuple[tuple[bool, ...], int]:
    """Whether each step is right in itself (see the module), and the 0-based first error, -1 for none.

    Raises:
        InputError: a step that states no quantity of the problem and no answer, or more than one calculation of two numbers.
    """
    account = Account(problem)
    labels: list[bool] = []
    for number, text in enumerate(steps):
        line = read_line(text)
        fits = line is not None and (line.name is None or line.name in problem.places)
        if line is None or not fits or not line.readable:
            raise InputError(
                f"step {number}: expected 'NAME: A + B = C' with a name from this problem, or 'The answer is C.', "
                f"found {text!r}",
                where=problem.id,
            )
        labels.append(account.is_right(line))
        account.add(line)
    return tuple(labels), labels.index(False) if False in labels else -1


KINDS = {"slip": 0.4, "operation": 0.2, "operand": 0.2, "drop": 0.1, "repeat": 0.1}
"""Kinds of error and their shares where all can be made; what cannot be made where the solver stands adds to the slips. Steps
are dropped or repeated only while nothing is wrong."""
_HARDNESS = {"+": 0.6, "-": 0.9, "*": 1.2, "/": 1.3}
_ANSWER_HARDNESS = 0.2


@settings
class SolverSettings:
    """How well the solver works. At the defaults it solves about 60 % of the default problems."""

    error_rate: Annotated[float, Field(ge=0, le=0.5)] = 0.065
    """Probability of an error at a calculation of middling difficulty. Harder operations and larger numbers have more: the factor runs from
    about 0.5 to 1.8."""
    repair_rate: Annotated[float, Field(ge=0, le=1)] = 0.04
    """Probability that the line right after an error corrects it."""
    repair_decay: Annotated[float, Field(ge=0, le=1)] = 0.7
    """By this factor the probability falls with every further line."""
    noise: Annotated[float, Field(ge=0)] = 0.4
    """Problems differ: each has a factor on its error rate, log-normal with this standard deviation, drawn from the text of the problem."""
    verbosity: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Probability that a line begins with a sentence that says nothing."""


DEFAULT = SolverSettings()


class WorldState(NamedTuple):
    """Where the solver stands."""

    place: int
    """The operation that comes next; their number for the answer."""
    running: Number
    """The running quantity, as stated."""
    product: Number | None = None
    """The product beside it, as stated, where it waits to be brought in."""
    age: int = 0
    """Lines written since a quantity became wrong, that line not among them; 0 when nothing is."""
    answer: Number | None = None
    """The answer, once given: nothing follows."""


class WorldStep(NamedTuple):
    """A line that the solver may write next."""

    text: str
    probability: float
    state: WorldState


_Move = tuple[str, WorldState]


class Solver:
    """The solver at one problem."""

    def __init__(self, problem: ArithmeticProblem, settings: SolverSettings) -> None:
        self.problem = problem
        self.settings = settings
        self.end = len(problem.operations)
        digest = hashlib.sha256(problem.text.encode()).digest()
        factor = math.exp(settings.noise * random.Random(int.from_bytes(digest[:8], "big")).gauss(0, 1))
        rates = [self._hardness(place) for place in range(self.end)] + [_ANSWER_HARDNESS]
        self.error_rates = tuple(min(0.5, settings.error_rate * factor * rate) for rate in rates)
        """Probability of an error at each operation, and at the answer."""
        numbers = {problem.start, *problem.distractors}
        for operation in problem.operations:
            numbers |= {number for number in (operation.left, operation.right) if number is not None}
        self._numbers = tuple(sorted(numbers))
        self._prefaces = [f"Next is the {operation.stage}. " for operation in problem.operations]
        self._prefaces.append("That was the last step. ")
        self._values: dict[tuple[int, bool, bool, bool, int], float] = {}

    def _hardness(self, place: int) -> float:
        # From the true numbers and not from the stated ones: the chances must not depend on the values.
        left, sign, right = self.problem.calculation(place)
        return _HARDNESS[sign] * (0.6 + 0.12 * (len(str(left)) + len(str(right))))

    def start(self) -> WorldState:
        """Before the first step."""
        return WorldState(0, self.problem.start)

    def after(self, steps: Sequence[str]) -> WorldState:
        """Where the solver stands after these steps, by any writer; what states nothing is passed over."""
        account = Account(self.problem)
        state = self.start()
        for text in steps:
            if not account.add(read_line(text)):
                continue
            if account.answer is not None:
                state = state._replace(answer=account.answer)
                continue
            place = account.due
            waits = place < self.end and self.problem.operations[place].is_merge
            product = account.stated[place - 1] if waits else None
            state = self._aged(state, WorldState(place, account.running(place), product))
        return state

    def wrong(self, state: WorldState) -> bool:
        """Whether a quantity that is still needed is wrong."""
        return state.running != self.problem.before[state.place] or self.wrong_product(state)

    def wrong_product(self, state: WorldState) -> bool:
        """Whether a product waits to be brought in and is wrong."""
        return state.product is not None and state.product != self.problem.values[state.place - 1]

    def _aged(self, old: WorldState, new: WorldState) -> WorldState:
        return new._replace(age=old.age + 1) if self.wrong(old) and self.wrong(new) else new

    # -- what it may write

    def next_steps(self, state: WorldState) -> Iterator[WorldStep]:
        """Every line that may come next, with its probability; the same line may come more than once. None after the answer."""
        if state.answer is not None:
            return
        repair = self.repair_probability(state)
        if repair:
            text, new = self.repair(state)
            yield WorldStep(text, repair, new)
        error = self.error_rates[state.place]
        moves = [(self.faithful(state), 1 - error)]
        for share, errors in self.errors(state):
            moves += [(move, error * share / len(errors)) for move in errors]
        talk = self.settings.verbosity
        for (text, new), probability in moves:
            for preface, chance in (("", 1 - talk), (self._prefaces[state.place], talk)):
                if probability * chance:
                    yield WorldStep(preface + text, (1 - repair) * probability * chance, new)

    def draw(self, state: WorldState, dice: random.Random) -> tuple[str, WorldState, float]:
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

    def likeliest(self, state: WorldState) -> tuple[str, WorldState, float]:
        """The likeliest line, as `draw` gives it."""
        best = max(self.next_steps(state), key=lambda step: step.probability)
        return best.text, best.state, math.log(best.probability)

    def faithful(self, state: WorldState) -> _Move:
        """What is due, done rightly on what is stated."""
        at_end = state.place == self.end
        return self._answer(state, state.running) if at_end else self.line(state, state.place)

    @staticmethod
    def _answer(state: WorldState, answer: Number) -> _Move:
        return answer_line(answer), state._replace(answer=answer)

    def repair_probability(self, state: WorldState) -> float:
        """Probability that the next line corrects a quantity."""
        return self._fix(state.age) if self.wrong(state) else 0.0

    def _fix(self, age: int) -> float:
        return self.settings.repair_rate * self.settings.repair_decay**age

    def repair(self, state: WorldState) -> _Move:
        """Correct the latest quantity that is wrong: the waiting product, else the running quantity."""
        product = self.wrong_product(state)
        place = state.place - 1
        while not product and self.problem.operations[place].is_product:
            place -= 1
        value = self.problem.values[place]
        line = self.problem.operations[place].line(*self.problem.calculation(place), value)
        new = state._replace(age=0, **({"product": value} if product else {"running": value}))
        return f"Correction, {line}", self._aged(state, new)

    def line(
        self,
        state: WorldState,
        place: int,
        *,
        sign: str | None = None,
        right: Number | None = None,
        result: Number | None = None,
    ) -> _Move:
        """The line of an operation and the state after it, with what is given here in place of what is due."""
        operation = self.problem.operations[place]
        left, due_sign, due_right = self.due(state, operation)
        sign, right = sign or due_sign, due_right if right is None else right
        value = calculate(left, sign, right) if result is None else result
        assert value is not None, "no operation of this world divides by zero"
        following = max(state.place, place + 1)
        new = (
            WorldState(following, state.running, value)
            if operation.is_product
            else WorldState(following, value)
        )
        return operation.line(left, sign, right, value), self._aged(state, new)

    @staticmethod
    def due(state: WorldState, operation: Operation) -> tuple[Number, str, Number]:
        """The two numbers that an operation takes, as stated, and the sign between them."""
        left = state.running if operation.left is None else operation.left
        right = state.product if operation.right is None else operation.right
        assert right is not None, "a product is stated before it is brought in"
        return left, operation.sign, right

    def errors(self, state: WorldState) -> list[tuple[float, list[_Move]]]:
        """The errors that can be made here: shares, which sum to 1, and the lines that make one of each kind."""
        place = state.place
        if place == self.end:
            near = (state.running + off for off in (1, -1, 2, -2, 10, -10))
            slips = [n for n in near if n != self.problem.answer and not n < 0 <= state.running]
            return [(1.0, [self._answer(state, n) for n in slips])]
        left, sign, right = self.due(state, self.problem.operations[place])
        due = calculate(left, sign, right)
        assert due is not None
        offs: dict[Number, None] = dict.fromkeys((1, -1, 2, -2, 10, -10))
        if sign == "*":
            offs |= dict.fromkeys((right, -right))
        numbers = (2, 4, 5, 10) if sign == "/" else self._numbers  # only decimals that end

        def misses(result: Number | None) -> bool:
            return result is not None and self._misses(state, due, result)

        signs = [other for other in "+-*" if other != sign and misses(calculate(left, other, right))]
        operands = [n for n in numbers if n != right and misses(calculate(left, sign, n))]
        moves: dict[str, list[_Move]] = {
            "slip": [self.line(state, place, result=due + off) for off in offs if misses(due + off)],
            "operation": [self.line(state, place, sign=other) for other in signs],
            "operand": [self.line(state, place, right=number) for number in operands],
        }
        if not self.wrong(state):
            if self.is_plain(place):
                if place + 1 == self.end:
                    moves["drop"] = [self._answer(state, state.running)]
                elif self.is_plain(place + 1):
                    moves["drop"] = [self.line(state, place + 1)]
            if place and self.is_plain(place - 1):
                moves["repeat"] = [self.line(state, place - 1)]
        shares = {kind: share for kind, share in KINDS.items() if moves.get(kind)}
        shares["slip"] += 1 - math.fsum(shares.values())
        return [(share, moves[kind]) for kind, share in shares.items()]

    def _misses(self, state: WorldState, due: Number, result: Number) -> bool:
        """Whether a result in place of the due one is an error that luck does not undo."""
        values, operations, place = self.problem.values, self.problem.operations, state.place
        high = max(9999, 2 * due, -2 * due)
        if result in {due, values[place]} or not -high <= result <= high or result < 0 <= due:
            return False
        if not operations[place].is_product:
            return True
        # A wrong product could make up for a wrong running quantity.
        return calculate(state.running, operations[place + 1].sign, result) != values[place + 1]

    def is_plain(self, place: int) -> bool:
        """Whether an operation takes a given number alone to the running quantity."""
        operation = self.problem.operations[place]
        return not operation.is_product and not operation.is_merge

    # -- V

    def value(self, state: WorldState) -> float:
        """V: the probability that the solver, going on from here, gives the right answer."""
        if state.answer is not None:
            return float(state.answer == self.problem.answer)
        running = state.running != self.problem.before[state.place]
        merged = running
        if state.product is not None:
            sign = self.problem.operations[state.place].sign
            merged = calculate(state.running, sign, state.product) != self.problem.values[state.place]
        return self._value(state.place, running, self.wrong_product(state), merged, state.age)

    def _value(self, place: int, running: bool, product: bool, merged: bool, age: int) -> float:
        """V of a class: are the running quantity, the waiting product, and what both give wrong, and for how long."""
        key = (place, running, product, merged, age)
        if key not in self._values:
            if running or product:
                fixed = self._wrong(place, age + 1) if product and running else self._right(place)
                fix = self._fix(age)
                self._values[key] = fix * fixed + (1 - fix) * self._go_on(*key)
            else:
                self._values[key] = self._value_right(place)
        return self._values[key]

    def _right(self, place: int) -> float:
        return self._value(place, False, False, False, 0)

    def _wrong(self, place: int, age: int) -> float:
        """V where only the running quantity is wrong."""
        return self._value(place, True, False, True, age)

    def _value_right(self, place: int) -> float:
        error = self.error_rates[place]
        if place == self.end:
            return 1 - error
        product = self.problem.operations[place].is_product
        wrong = self._value(place + 1, False, True, True, 0) if product else self._wrong(place + 1, 0)
        dropped = wrong
        if self.is_plain(place) and place + 1 == self.end:
            dropped = 0.0
        elif self.is_plain(place) and self.is_plain(place + 1):
            dropped = self._wrong(place + 2, 0)
        drop = KINDS["drop"]
        repeat = KINDS["repeat"] if place and self.is_plain(place - 1) else 0.0
        repaired = (1 - error) * self._right(place + 1) + error * (
            (1 - drop - repeat) * wrong + drop * dropped
        )
        # After a repetition the solver stands where it stood, with a wrong quantity; corrected, it is back here. So this V
        # stands on both sides: V = known + error repeat (fix V + (1 - fix) on).
        fix = self._fix(0)
        on = self._go_on(place, True, False, True, 0) if repeat else 0.0
        return (repaired + error * repeat * (1 - fix) * on) / (1 - error * repeat * fix)

    def _go_on(self, place: int, running: bool, product: bool, merged: bool, age: int) -> float:
        """V of a wrong class when the next line is no correction."""
        error = self.error_rates[place]
        if place == self.end:
            return (1 - error) * (not running)
        operation = self.problem.operations[place]
        if operation.is_product:
            wrong = self._value(place + 1, running, True, True, age + 1)
            carried = running
        else:
            wrong = self._wrong(place + 1, age + 1)
            carried = merged if operation.is_merge else running
        faithful = self._wrong(place + 1, age + 1) if carried else self._right(place + 1)
        return (1 - error) * faithful + error * wrong


@lru_cache(maxsize=4096)
def solver_of(problem: ArithmeticProblem, settings: SolverSettings) -> Solver:
    """The solver of a problem, cached with its computed values."""
    return Solver(problem, settings)


def true_values(
    problem: ArithmeticProblem, steps: Sequence[str], settings: SolverSettings = DEFAULT
) -> tuple[float, ...]:
    """V before the first step and after each: one more than steps, each in [0, 1], exact up to rounding.

    Steps may be by any writer; what states nothing leaves V as it is.
    """
    return tuple(true_value(problem, steps[:count], settings) for count in range(len(steps) + 1))


def true_value(problem: ArithmeticProblem, steps: Sequence[str], settings: SolverSettings = DEFAULT) -> float:
    """V after these steps: the probability that the solver goes on to the right answer; see `true_values`."""
    solver = solver_of(problem, settings)
    return solver.value(solver.after(steps))


def next_steps(
    problem: ArithmeticProblem, steps: Sequence[str], settings: SolverSettings = DEFAULT
) -> dict[str, float]:
    """Every line that the solver may write after these steps, with its probability; empty after the answer."""
    solver = solver_of(problem, settings)
    lines: defaultdict[str, float] = defaultdict(float)
    for step in solver.next_steps(solver.after(steps)):
        lines[step.text] += step.probability
    return dict(lines)


_WORLD = 1
"""Changes whenever equal requests get other texts, for replies are recorded under it."""
_TOKEN = re.compile(r"[0-9]|[A-Za-z]+|\n|[^\sA-Za-z0-9]")
_problem_in = lru_cache(maxsize=4096)(find_problem)


def count_tokens(text: str) -> int:
    """Tokens of a text: words, digits, line ends and other signs count one each; spaces none."""
    return len(_TOKEN.findall(text))


@final
class ArithmeticPolicy(BatchPolicy):
    """A policy (`models.policies.Policy`) that solves problems of the arithmetic world, with known error rates.

    It takes the last problem in the prompt, reads the steps in what follows it, and goes on from what they state. A prefill that does not end at the end of
    a line is continued on a new one. Temperature 0 writes the likeliest lines, which are the faithful ones; any other samples the solver as it is:
    temperature, `top_p` and `top_k` do not change its chances, so that it has one V. Tokens are those of `count_tokens`, and one for the end.

    Args:
        settings: how well it solves.
    """

    def __init__(self, settings: SolverSettings = DEFAULT) -> None:
        self.settings = settings
        self.name = "arithmetic"
        digest = hashlib.sha256(json.dumps([_WORLD, asdict(settings)], sort_keys=True).encode())
        self.identity = f"arithmetic#{digest.hexdigest()[:12]}"
        self.tokens_written = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(error_rate={self.settings.error_rate})"

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        """Solutions, from where each request stands; an `InputError` where the prompt holds no problem of this world."""
        replies: list[list[Completion] | InputError] = []
        for index, request in enumerate(requests):
            try:
                samples = self._samples(request)
                self.tokens_written += sum(written.tokens or 0 for written in samples)
                replies.append(samples)
            except InputError as error:
                replies.append(error)
            if ready is not None:
                ready(index, replies[-1])
        return replies

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        """An `InputError` for each request: this policy writes solutions and answers no questions."""
        replies: list[list[float] | InputError] = []
        for index, _ in enumerate(requests):
            replies.append(InputError(f"{self.name}: expected a problem to solve, found a choice of options"))
            if ready is not None:
                ready(index, replies[-1])
        return replies

    def _samples(self, request: Completions) -> list[Completion]:
        prompt, prefill = _text(request.prompt), request.prefill
        problem, rest = _problem_in(prompt)
        begun = prefill if not isinstance(request.prompt, str) else rest + prefill
        lead = "\n" if begun and not begun.endswith("\n") else ""
        if isinstance(request.prompt, str) and not begun:
            lead = "\n"  # the text would go on right after the question
        solver = solver_of(problem, self.settings)
        state = solver.after(f"{rest}\n{prefill}".split("\n") if begun == prefill else begun.split("\n"))
        prompt_tokens = count_tokens(prompt) + count_tokens(prefill)
        first = request.first
        return [
            _write(solver, state, lead, request, number, prompt_tokens)
            for number in range(first, first + request.n)
        ]


def _text(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(turn.content for turn in prompt)


def _write(
    solver: Solver, state: WorldState, lead: str, request: Completions, number: int, prompt_tokens: int
) -> Completion:
    dice = random.Random(sample_seed(request, number)) if request.temperature else None
    text, logprob, tokens = lead, 0.0, count_tokens(lead)
    stopped = False
    while state.answer is None and not stopped and tokens < request.max_tokens:
        line, state, chance = solver.likeliest(state) if dice is None else solver.draw(state, dice)
        line += "\n" if state.answer is None else ""
        text, logprob, tokens = text + line, logprob + chance, tokens + count_tokens(line)
        stopped = any(mark in text for mark in request.stop)
    if stopped:
        text, _ = cut_at_stop(text, request.stop)
        tokens = count_tokens(text)
    # One more token ends the text.
    if tokens >= request.max_tokens:
        cut = list(_TOKEN.finditer(text))[request.max_tokens - 1].end()
        return Completion(
            text=text[:cut], finish="length", tokens=request.max_tokens, prompt_tokens=prompt_tokens
        )
    return Completion(
        text=text,
        finish="stop" if stopped else "end",
        tokens=tokens + 1,
        logprob=None if stopped else logprob,
        prompt_tokens=prompt_tokens,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownSolution:
    """A solution that the solver wrote, with its truth."""

    problem: ArithmeticProblem
    solution: Solution
    labels: tuple[bool, ...]
    """Whether each step is right in itself; see `true_labels`."""
    first_error: int
    """0-based; -1 for none."""
    values: tuple[float, ...]
    """V before the first step and after each, one more than steps; see `true_values`."""
    repaired: bool
    """Whether a correction undid its first error: then V has risen again, and the answer is wrong by a later error."""


def wrong_solutions(
    count: int, *, seed: int = 0, steps: tuple[int, int] = (4, 16), settings: SolverSettings = DEFAULT
) -> Iterator[KnownSolution]:
    """Solutions with a wrong answer, as the solver writes them: one of each problem that it fails.

    Problems are those of `arithmetic_problems(seed=seed, steps=steps)`, tried in order; `steps` bounds the written solution too. Solution i depends on the
    settings and on i alone.
    """
    made = 0
    tries = 100 * count + 1000
    for number, problem in enumerate(arithmetic_problems(tries, seed=seed, steps=steps)):
        if made == count:
            return
        solver = solver_of(problem, settings)
        dice = random.Random(f"wrong solutions {_WORLD}/{seed}/{number}")
        state, lines = solver.start(), list[str]()
        while state.answer is None:
            line, state, _ = solver.draw(state, dice)
            lines.append(line)
        if state.answer == problem.answer or not steps[0] <= len(lines) <= steps[1]:
            continue
        made += 1
        labels, first_error = true_labels(problem, lines)
        ends = range(first_error + 1, len(lines))
        yield KnownSolution(
            problem=problem,
            solution=problem.solution(lines, id=f"{problem.id}-wrong"),
            labels=labels,
            first_error=first_error,
            values=true_values(problem, lines, settings),
            repaired=any(not solver.wrong(solver.after(lines[:end])) for end in ends),
        )
    if made < count:
        raise UsageError(
            f"wrong_solutions: found {made} of {count} in {tries} problems; raise error_rate or widen steps"
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ArithmeticWorld:
    """A world of arithmetic problems in which everything is known: for trying a method out, and for measuring it against the truth."""

    error_rate: float = 0.065
    """Probability, in [0, 0.5], that the policy errs at a calculation of middling difficulty; 0.065 solves about 60 % of the default problems."""

    Problem = ArithmeticProblem
    Policy = ArithmeticPolicy
    SolverSettings = SolverSettings
    make_problems = staticmethod(make_problems)
    read = staticmethod(read_arithmetic)
    true_labels = staticmethod(true_labels)
    true_value = staticmethod(true_value)
    next_steps = staticmethod(next_steps)
    wrong_solutions = staticmethod(wrong_solutions)

    def __post_init__(self) -> None:
        self.policy()

    def problems(
        self,
        count: int,
        *,
        seed: int = 0,
        steps: tuple[int, int] = (4, 16),
        surface: Surface = "both",
        largest: int = LARGEST,
    ) -> list[Record]:
        """Problems with their answers; the settings are those of `make_problems`."""
        made = arithmetic_problems(count, seed=seed, steps=steps, surface=surface, largest=largest)
        return [Record(text=problem.text, id=problem.id, answer=str(problem.answer)) for problem in made]

    def policy(self) -> ArithmeticPolicy:
        """A policy that solves the problems step by step, and errs at the world's rate; it needs no model."""
        return ArithmeticPolicy(SolverSettings(error_rate=self.error_rate))

    def prm(self) -> ScriptedPRM:
        """A PRM that is never wrong: the score of a step is the exact probability that the policy gets from there to the right answer."""
        return ScriptedPRM(self._value, name="truth", default_aggregate="last")

    def _value(self, problem: str, steps: Sequence[str]) -> float:
        return true_value(read_arithmetic(problem), steps, SolverSettings(error_rate=self.error_rate))
