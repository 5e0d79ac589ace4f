"""A tabular policy for the world of tools, and its training by policy gradient with any credit for turns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.rl_figures import Point
from benchmarks.tool_world import ACTIONS, Episode, PRMNoise, ToolProblem, ToolWorld, View
from stepmark.rl.credit.turns import Turns
from stepmark.rl.hacking import ALARM_ABOVE, rise

Credit = Callable[[Turns], Tensor]
"""Advantages [B, K] of turns."""
Worlds = tuple[list[ToolProblem], list[ToolProblem]]
"""To learn on and to measure on."""


class Table:
    """A softmax over actions for each view. It begins half competent: of each view's logits, all alike at first, the right one is raised by `skill`, then each
    moves by a normal number of deviation `spread`, the same for all runs.
    """

    def __init__(self, skill: float = 3.5, spread: float = 1.2) -> None:
        self._skill, self._spread = skill, spread
        self._logits: dict[View, list[float]] = {}
        self._chances: dict[View, list[float]] = {}

    def __call__(self, view: View) -> list[float]:
        """The probability of each action."""
        if view not in self._chances:
            logits = self._of(view)
            highest = max(logits)
            weights = [math.exp(logit - highest) for logit in logits]
            total = sum(weights)
            self._chances[view] = [weight / total for weight in weights]
        return self._chances[view]

    def _of(self, view: View) -> list[float]:
        if view not in self._logits:
            dice = random.Random(repr(tuple(view)))
            right = "look up" if view.held != "its number" else view.wording
            due = "answer" if view.wording == "end" else right
            self._logits[view] = [
                self._skill * (action == due) + dice.gauss(0, self._spread) for action in ACTIONS
            ]
        return self._logits[view]

    def learn(self, episodes: Sequence[Episode], advantages: Tensor, rate: float) -> None:
        """One step along the mean over episodes of sum_k advantage_k * grad log pi(turn k)."""
        steps: dict[View, list[float]] = {}
        for episode, row in zip(episodes, advantages.tolist(), strict=True):
            for (state, action), advantage in zip(episode.turns, row, strict=False):
                view = episode.problem.view(state)
                step = steps.setdefault(view, [0.0] * len(ACTIONS))
                for place, chance in enumerate(self(view)):
                    step[place] += advantage * ((ACTIONS[place] == action) - chance)
        for view, step in steps.items():
            logits = self._of(view)
            self._logits[view] = [
                logit + rate * part / len(episodes) for logit, part in zip(logits, step, strict=True)
            ]
        self._chances.clear()


def turns_of(
    episodes: Sequence[Episode], groups: Sequence[int], reward: Callable[[Episode, int], float]
) -> Turns:
    """Episodes as credit methods take them; `reward` is of an episode's turn."""
    longest = max(len(episode.turns) for episode in episodes)
    rewards = torch.full((len(episodes), longest), math.nan, dtype=torch.float64)
    for row, episode in enumerate(episodes):
        rewards[row, : len(episode.turns)] = torch.tensor(
            [reward(episode, turn) for turn in range(len(episode.turns))], dtype=torch.float64
        )
    return Turns(
        rewards=rewards,
        present=~rewards.isnan(),
        outcome=torch.tensor([float(episode.success) for episode in episodes], dtype=torch.float64),
        groups=torch.tensor(groups),
    )


def scores(noise: PRMNoise, episode: Episode) -> list[float]:
    """What a PRM of the world scores each turn."""
    ends = range(1, len(episode.turns) + 1)
    return [noise.score(replace(episode, turns=episode.turns[:end])) for end in ends]


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """What is compared: a credit method, and where the rewards of turns come from."""

    credit: Credit
    noise: PRMNoise | None = None
    """Of the PRM whose scores, less 0.5, are the rewards; None: there is none."""
    skill: float = 3.5
    """Of the starting policy, as in `Table`."""

    def table(self) -> Table:
        """The starting policy."""
        return Table(skill=self.skill)

    def reward(self, episode: Episode, turn: int) -> float:
        """Of a turn."""
        if self.noise is None:
            return 0.0
        return self.noise.score(replace(episode, turns=episode.turns[: turn + 1])) - 0.5


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs share."""

    updates: int = 60
    problems: int = 8
    """An update."""
    group: int = 8
    """Attempts at a problem."""
    training: int = 200
    held_out: int = 50
    every: int = 3
    """Updates from one evaluation to the next."""

    @property
    def batch(self) -> int:
        """Rollouts an update."""
        return self.problems * self.group

    def worlds(self) -> Worlds:
        """Problems of seeds 1 and 2."""
        world = ToolWorld()
        return world.problems(self.training, seed=1), world.problems(self.held_out, seed=2)

    def rollouts(
        self, table: Table, problems: Sequence[ToolProblem], dice: random.Random
    ) -> tuple[list[Episode], list[int]]:
        """A batch, and its groups."""
        chosen = dice.sample(list(problems), self.problems)
        groups = [group for group in range(self.problems) for _ in range(self.group)]
        return [chosen[group].play(table, dice) for group in groups], groups


def train(method: Method, setting: Setting, worlds: Worlds, *, rate: float, seed: int) -> list[Point]:
    """How one run went. Accuracy is exact; steps are turns, and the PRM's return is of one episode a held-out problem."""
    training, held_out = worlds
    dice, table, noise = random.Random(f"turns {seed}"), method.table(), method.noise
    history: list[Point] = []
    alarmed: int | None = None
    first: list[bool] | None = None
    for update in range(setting.updates + 1):
        if update % setting.every == 0 or update == setting.updates:
            watched = random.Random(f"held out {seed} {update}")
            episodes = [problem.play(table, watched) for problem in held_out]
            score = None
            if noise is not None:
                graded = [scores(noise, one) for one in episodes]
                slipped = [
                    min(each) >= 0.5 and not one.success for each, one in zip(graded, episodes, strict=True)
                ]
                first = first or slipped
                means = [sum(each) / len(each) for each in graded]
                score, risen = sum(means) / len(means), rise(first, slipped)
                if alarmed is None and risen is not None and risen > ALARM_ABOVE:
                    alarmed = update
            history.append(
                Point(
                    update=update,
                    rollouts=update * setting.batch,
                    accuracy=success(table, held_out),
                    step_return=score,
                    steps=sum(len(one.turns) for one in episodes) / len(episodes),
                    alarmed=alarmed,
                )
            )
        if update < setting.updates:
            batch, groups = setting.rollouts(table, training, dice)
            table.learn(batch, method.credit(turns_of(batch, groups, method.reward)), rate)
    return history


def success(table: Table, problems: Sequence[ToolProblem]) -> float:
    """The exact probability of success, the mean over problems."""
    return sum(one.values(table)[one.turns].get(one.start, 0.0) for one in problems) / len(problems)


def cosine(
    method: Method, setting: Setting, problems: Sequence[ToolProblem], *, seed: int, batches: int = 10
) -> float:
    """Cosine of the advantages of a credit method with the exact ones, over all turns of some batches of the starting policy."""
    dice, table = random.Random(f"cosine {seed}"), method.table()
    values = {id(problem): problem.values(table) for problem in problems}
    inner = own = exact = 0.0
    for _ in range(batches):
        batch, groups = setting.rollouts(table, problems, dice)
        found = method.credit(turns_of(batch, groups, method.reward)).tolist()
        for episode, row in zip(batch, found, strict=True):
            true = episode.problem.advantages(episode, values[id(episode.problem)])
            inner += sum(a * b for a, b in zip(row, true, strict=False))
            own += sum(a * a for a in row)
            exact += sum(b * b for b in true)
    return inner / math.sqrt(own * exact)
