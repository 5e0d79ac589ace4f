"""A world of several turns in which everything is known: an agent solves problems of the arithmetic world by calling tools.

The agent reads the problem without its numbers. In each turn it looks up a number, computes the next quantity, or answers; the tools answer
from the arithmetic world. An episode ends with the answer, or when its turns are used up; it succeeds where the answer is stated and every
quantity before it is right by `ArithmeticWorld.true_labels`. So an answer that is right by luck is no success.

A turn is **right** where it does what is due on what the turns before state: look the stage's number up, compute with it by the operation that the
problem names, answer at the end. A wrong look-up costs a turn and can be made good; a wrong computation cannot. Tools are deterministic and
states recur: all attempts at a problem begin in one state, and those that did the same meet again.

The **value** of a state, the probability that a policy succeeds from there, is computed and not estimated (`ToolProblem.values`): where a
quantity is wrong it is 0, and the states where all is right are a few dozen.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, final, get_args

from stepmark.errors import InputError, UsageError
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import ArithmeticProblem, Number, calculate, write_number
from stepmark.problems.arithmetic_world import ArithmeticWorld
from stepmark.records import Problem

Action = Literal["look up", "look up another", "+", "-", "*", "/", "answer"]
ACTIONS: tuple[Action, ...] = get_args(Action)
_KINDS = 6
"""Kinds of story."""
Held = Literal["no number", "its number", "another number"]


class ToolState(NamedTuple):
    """Where an episode stands."""

    stage: int
    """The operation that comes next; their number where all are done."""
    quantity: Number
    """The running quantity, as computed."""
    number: Number | None = None
    """The number that was looked up and is not used yet."""
    right: bool = True
    """Whether every quantity so far is right. The agent does not see it."""
    answered: bool = False


class View(NamedTuple):
    """What decides the agent's turn: how the problem words the stage, and what the agent holds."""

    domain: str
    """Of the problem's story."""
    wording: str
    """The operation that the stage's sentence stands for, or "end"."""
    held: Held


Policy = Callable[[View], Sequence[float]]
"""The probability of each of `ACTIONS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """What an agent did."""

    problem: ToolProblem
    turns: tuple[tuple[ToolState, Action], ...]
    """The state before each turn, and the turn."""
    end: ToolState

    @property
    def success(self) -> bool:
        """Whether it answered, and all was right."""
        return self.end.answered and self.end.right

    @property
    def texts(self) -> tuple[str, ...]:
        """The turns as the agent writes them."""
        return tuple(self.problem.text_of(state, action) for state, action in self.turns)


@dataclass(frozen=True, kw_only=True)
class ToolProblem:
    """A problem of the arithmetic world, to be solved with tools. Made by `ToolWorld.problems`."""

    arithmetic: ArithmeticProblem
    """With its numbers, which the agent does not see."""
    turns: int
    """Of an episode, at most."""
    id: str = field(compare=False)

    @cached_property
    def problem(self) -> Problem:
        """The record, as the agent reads it."""
        hidden = re.sub(r"\d+", "?", self.arithmetic.text)
        return Problem(text=f"{self.id}. {hidden}", id=self.id, answer=str(self.arithmetic.answer))

    @property
    def start(self) -> ToolState:
        """Before the first turn."""
        return ToolState(0, self.arithmetic.start)

    def _number(self, stage: int) -> Number:
        operations = self.arithmetic.operations
        number = operations[stage % len(operations)].right
        assert number is not None  # `ToolWorld` makes problems without products
        return number

    def view(self, state: ToolState) -> View:
        """What decides the next turn."""
        operations = self.arithmetic.operations
        if state.stage == len(operations):
            held: Held = "no number" if state.number is None else "another number"
            return View(self.arithmetic.domain, "end", held)
        if state.number is None:
            held = "no number"
        else:
            held = "its number" if state.number == self._number(state.stage) else "another number"
        return View(self.arithmetic.domain, operations[state.stage].sign, held)

    def due(self, state: ToolState) -> Action:
        """The right turn (see the module)."""
        view = self.view(state)
        if view.wording == "end":
            return "answer"
        sign: Action = self.arithmetic.operations[state.stage].sign
        return sign if view.held == "its number" else "look up"

    def act(self, state: ToolState, action: Action) -> ToolState:
        """The state after a turn.

        Raises:
            UsageError: the episode is over.
        """
        if state.answered:
            raise UsageError(f"{self.id}: expected a turn of an open episode, found one after the answer")
        last = len(self.arithmetic.operations)
        if action == "answer":
            return state._replace(answered=True, right=state.right and state.stage == last)
        if action in ("look up", "look up another"):
            return state._replace(number=self._number(state.stage + (action != "look up")))
        if state.number is None:
            return state
        result = calculate(state.quantity, action, state.number)
        assert result is not None  # no number is 0
        right = state.right and action == self.due(state)
        return ToolState(min(state.stage + 1, last), result, None, right)

    def text_of(self, state: ToolState, action: Action) -> str:
        """A turn as the agent writes it."""
        operations = self.arithmetic.operations
        if action == "answer":
            return f"answer({write_number(state.quantity)})"
        if action in ("look up", "look up another"):
            place = (state.stage + (action != "look up")) % len(operations)
            return f'look_up("{operations[place].stage}")'
        name = operations[min(state.stage, len(operations) - 1)].name
        number = "?" if state.number is None else write_number(state.number)
        return f'compute("{name}", {write_number(state.quantity)} {action} {number})'

    def observation(self, state: ToolState, action: Action) -> str:
        """What the tool gives back."""
        after = self.act(state, action)
        if action == "answer":
            return "Thank you."
        if action in ("look up", "look up another"):
            assert after.number is not None
            return write_number(after.number)
        if state.number is None:
            return "Error: look a number up first."
        operation = self.arithmetic.operations[min(state.stage, len(self.arithmetic.operations) - 1)]
        return operation.line(state.quantity, action, state.number, after.quantity)

    def read(self, state: ToolState, text: str) -> Action:
        """The turn that a text is.

        Raises:
            InputError: none of those that can be written in this state.
        """
        known = {self.text_of(state, action): action for action in ACTIONS}
        if text not in known:
            raise InputError(f"expected one of {', '.join(known)}, found {text!r:.80}", where=self.id)
        return known[text]

    def replay(self, texts: Sequence[str]) -> Episode:
        """The episode of some turns' texts.

        Raises:
            InputError: a text is not among the turns of its state.
        """
        state, turns = self.start, list[tuple[ToolState, Action]]()
        for text in texts:
            turns.append((state, self.read(state, text)))
            state = self.act(*turns[-1])
        return Episode(problem=self, turns=tuple(turns), end=state)

    def play(self, policy: Policy, dice: random.Random) -> Episode:
        """An episode of a policy."""
        state, turns = self.start, list[tuple[ToolState, Action]]()
        while not state.answered and len(turns) < self.turns:
            [action] = dice.choices(ACTIONS, policy(self.view(state)))
            turns.append((state, action))
            state = self.act(state, action)
        return Episode(problem=self, turns=tuple(turns), end=state)

    @cached_property
    def _graph(self) -> dict[ToolState, tuple[ToolState, ...]]:
        """The open states where all is right, and the state after each action."""
        graph: dict[ToolState, tuple[ToolState, ...]] = {}
        waiting = [self.start]
        while waiting:
            state = waiting.pop()
            if state not in graph and state.right and not state.answered:
                graph[state] = tuple(self.act(state, action) for action in ACTIONS)
                waiting += graph[state]
        return graph

    def values(self, policy: Policy) -> list[dict[ToolState, float]]:
        """V by the turns that are left, from 0 to `turns`, and by state; a state that is not listed has V 0. Exact up to rounding."""
        chances = {state: policy(self.view(state)) for state in self._graph}
        done = {
            after: 1.0 for ends in self._graph.values() for after in ends if after.answered and after.right
        }
        values = [dict(done)]
        for _ in range(self.turns):
            before = values[-1]
            now = {
                state: sum(p * before.get(after, 0.0) for p, after in zip(chances[state], ends, strict=True))
                for state, ends in self._graph.items()
            }
            values.append(now | done)
        return values

    def advantages(self, episode: Episode, values: Sequence[Mapping[ToolState, float]]) -> list[float]:
        """Q less V of each turn: as tools are deterministic, the value after the turn less the one before."""
        states = [*(state for state, _ in episode.turns), episode.end]
        along = [values[self.turns - turn].get(state, 0.0) for turn, state in enumerate(states)]
        return [after - before for before, after in pairwise(along)]


@dataclass(frozen=True, kw_only=True, slots=True)
class PRMNoise:
    """How a PRM of this world errs. A right turn is scored 0.9 and a wrong one 0.1, before noise."""

    deviation: float = 0.0
    """Of a normal number that is added to each score, which is then cut to [0, 1]. It depends on the turns so far, so that the same
    attempt has the same score."""
    likes: Action | None = None
    """A turn that it scores as right wherever it stands: the surface feature of a PRM that can be hacked."""
    seed: int = 0

    def score(self, episode: Episode) -> float:
        """Of the last turn, in [0, 1]."""
        state, action = episode.turns[-1]
        right = action in (episode.problem.due(state), self.likes)
        score = 0.9 if right else 0.1
        if self.deviation:
            done = [action for _, action in episode.turns]
            score += random.Random(f"{self.seed}/{episode.problem.id}/{done}").gauss(0, self.deviation)
        return min(1.0, max(0.0, score))


EXACT = PRMNoise()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ToolWorld:
    """A small world of agents whose every turn is known to be right or wrong.

    Raises:
        UsageError: fewer than two stages.
    """

    stages: tuple[int, int] = (4, 6)
    """Of a problem, from and to; each takes two right turns, and the answer one."""
    spare: int = 4
    """Turns that an episode may waste."""

    Noise = PRMNoise

    def __post_init__(self) -> None:
        if not 2 <= self.stages[0] <= self.stages[1]:
            raise UsageError(f"`stages`: expected two numbers, 2 or more, in order, found {self.stages}")

    def problems(self, count: int, *, seed: int = 0) -> list[ToolProblem]:
        """Stories of the arithmetic world in which every operation is on the running quantity, about as many of each kind of story.

        Raises:
            UsageError: stages of which too few problems are found.
        """
        made: list[ToolProblem] = []
        kinds: Counter[str] = Counter()
        steps = (self.stages[0] + 1, self.stages[1] + 1)  # the answer is a step
        for part in range(100):
            drawn = ArithmeticWorld().problems(500, seed=100 * seed + part, steps=steps, surface="story")
            for item in drawn:
                arithmetic = ArithmeticWorld.read(item.text)
                plain = all(each.left is None and each.right is not None for each in arithmetic.operations)
                if plain and kinds[arithmetic.domain] <= count // _KINDS:
                    kinds[arithmetic.domain] += 1
                    turns = 2 * len(arithmetic.operations) + 1 + self.spare
                    made.append(
                        ToolProblem(arithmetic=arithmetic, turns=turns, id=f"Task {seed}-{len(made)}")
                    )
                if len(made) == count:
                    return made
        raise UsageError(f"`stages`: found {len(made)} of {count} problems of {self.stages} stages")

    def prm(self, problems: Iterable[ToolProblem], noise: PRMNoise = EXACT) -> ScriptedPRM:
        """A PRM that knows these problems and scores each turn by `noise`; its threshold is 0.5.

        Raises:
            InputError: when it scores: another problem, or a turn that is none of this world.
        """
        known = {item.problem.text: item for item in problems}

        def score(problem: str, steps: tuple[str, ...]) -> float:
            if problem not in known:
                raise InputError(f"expected a problem of this world, found {problem!r:.80}")
            return noise.score(known[problem].replay(steps))

        return ScriptedPRM(score, name=f"tool world, {noise}", default_aggregate="mean")
