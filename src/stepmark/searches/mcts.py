"""Monte Carlo tree search guided by a PRM, with PUCT.

Sources: PUCT as in Silver et al. 2017 ("Mastering the game of Go without human knowledge", Nature 550, Methods), with a PRM's value in the
place of the value network's, as in Zhang et al. 2024 ("ReST-MCTS*", arXiv 2406.03816) and OpenR.

One simulation:

1. *Select*: from the problem, go to the child with the largest Q + U until a node without children or an end::

       U(child) = c_puct * P(child) * sqrt(N(node)) / (1 + N(child))

   Q is what was backed up to the child; of a child that was never visited, its PRM value. P is 1 / (number of children), or the softmax of
   their PRM values.
2. *Expand*: write k steps after it, have them scored, and go to the best of them.
3. *Evaluate* that: its PRM value, the aggregate of its steps so far. With rollouts, the mean over solutions written from there: of what the
   verifier says of them (1 or 0), where one is asked (`verify`), else of their PRM aggregates.
4. *Back up* to the problem: N grows by one; Q is the mean of what was backed up, or its maximum.

Deviations:

* Expansion goes to the best child at once, so that every simulation ends at a new step; in AlphaZero it ends at the node that is expanded.
* Dead ends (steps of no use, prefixes that cannot be read) are taken out of the tree; a node whose children all are is one itself. A simulation
  that ends so backs nothing up.
* An end that is selected again is backed up again with its value and costs nothing.
* Rollouts that the policy ended are finished solutions, and candidates. They stand in the trace and not in the tree.
* Where nothing is finished after the last simulation, the best leaf is written greedily to its end.
* `verify` uses the reference answer during the search: for making training data and for ceilings, never for an accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, final

from pydantic import Field

from stepmark.backends import Completing, StepScoring, Verifying, all_of
from stepmark.errors import InputError, UsageError
from stepmark.records import Problem
from stepmark.searches.base import Choice, Choosing, Expanding, SearchResult
from stepmark.searches.choosing import choose
from stepmark.searches.tree import Node, Tree, value_of
from stepmark.settings import settings


@dataclass(kw_only=True, eq=False)
class _Place:
    """A node of the tree with its statistics."""

    node: Node
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    highest: float = -math.inf
    dead: bool = False
    judged: float | None = None
    """The verifier's word, of an end."""
    children: list[_Place] = field(default_factory=list)


@final
@settings
class MCTS(Expanding):
    """Monte Carlo tree search with PUCT and the PRM's value.

    Raises:
        UsageError: a setting out of its range; values that cannot be averaged.
    """

    name: ClassVar[str] = "mcts"
    sized_by: ClassVar[str | None] = "simulations"
    simulations: Annotated[int, Field(ge=1)] = 32
    """Simulations a problem."""
    c_puct: Annotated[float, Field(ge=0)] = 1.0
    """Weight of exploration in PUCT, in units of the value."""
    prior: Literal["uniform", "score"] = "uniform"
    """Prior P of the children: uniform, or the softmax of their PRM values."""
    prior_temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """Temperature of that softmax, in units of the value."""
    backup: Literal["mean", "max"] = "mean"
    """Value Q of a node: the mean of what was backed up, or the maximum."""
    rollouts: Annotated[int, Field(ge=0)] = 0
    """Solutions that are written from each new leaf to evaluate it; 0 for the PRM's value alone."""
    verify: bool = False
    """Judge ends and rollouts by the problem's reference answer."""
    choose: Choice = "best"
    """How one of the finished solutions is chosen; with `verify`, "best" is a right one before all others."""

    def __post_init__(self) -> None:
        Choosing.__post_init__(self)
        if self.grading.kind == "unbounded" or self.grading.aggregate == "sum-logit":
            raise UsageError(
                f"MCTS averages values, and a {self.grading.aggregate} of scores of the kind {self.grading.kind!r} is "
                "none: only its order means something, or it can be infinite"
            )

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """See `Search.search`."""
        if self.verify and not (problem.answer or "").strip():
            raise InputError(
                "`verify` judges by the problem's reference answer, and it has none; add it under 'answer'",
                where=problem.id,
                field="answer",
            )
        tree = Tree(problem, self, self.name, policy, prm, verifier)
        root = _Place(node=tree.root)
        judged: dict[int, float] = {}
        for round_ in range(self.simulations):
            if root.dead or tree.spent:
                break
            path = self._select(root)
            value = await self._evaluated(tree, path, round_, judged)
            if value is None:
                if not tree.spent:
                    _bury(path)
                continue
            for place in path:
                place.visits += 1
                place.total += value
                place.highest = max(place.highest, value)
        _note(root, self.backup)
        if not tree.finished and not tree.spent:
            leaf = tree.unfinished()
            if leaf is not None:
                await tree.write_whole(leaf, 1, self.simulations, temperature=0.0)
        ends = tree.finished
        if self.verify and self.choose == "best":
            right = [node for node in ends if judged.get(node.number) == 1.0]
            # A candidate is chosen by its aggregate; only among the right ones, where there are any.
            ends = right or ends
        return await choose(tree, ends, self.choose)

    def _select(self, root: _Place) -> list[_Place]:
        """From the problem to a leaf that is not dead."""
        path = [root]
        while path[-1].children:
            place = path[-1]
            path.append(
                max((child for child in place.children if not child.dead), key=lambda c: self._puct(place, c))
            )
        return path

    def _puct(self, place: _Place, child: _Place) -> float:
        explore = self.c_puct * child.prior * math.sqrt(place.visits) / (1 + child.visits)
        return self._quality(child) + explore

    def _quality(self, place: _Place) -> float:
        if not place.visits:
            return _finite(place.node)
        return place.total / place.visits if self.backup == "mean" else place.highest

    async def _evaluated(
        self, tree: Tree, path: list[_Place], round_: int, judged: dict[int, float]
    ) -> float | None:
        """The value of a simulation, whose path is made longer by what it expands; None where it came to a dead end."""
        leaf = path[-1]
        if not leaf.node.ended:
            [grown] = await tree.grow([(leaf.node, self.expand)], round_)
            if not grown:
                return None
            priors = self._priors([_finite(node) for node in grown])
            leaf.children = [
                _Place(node=node, prior=prior) for node, prior in zip(grown, priors, strict=True)
            ]
            leaf = max(leaf.children, key=lambda child: _finite(child.node))
            path.append(leaf)
        if leaf.node.ended:
            if not self.verify:
                return _finite(leaf.node)
            return (await self._verdicts(tree, [leaf.node], judged))[0]
        if not self.rollouts:
            return _finite(leaf.node)
        ends = await tree.write_whole(leaf.node, self.rollouts, round_)
        if not ends:  # none came to an end: the PRM's word on the leaf is all there is
            return _finite(leaf.node)
        values = (await self._verdicts(tree, ends, judged)) if self.verify else [_finite(end) for end in ends]
        return math.fsum(values) / len(values)

    async def _verdicts(self, tree: Tree, ends: Sequence[Node], judged: dict[int, float]) -> list[float]:
        """1 for each right solution, 0 for a wrong one and for one that names no answer."""
        fresh = [end for end in ends if end.number not in judged]
        gold = tree.problem.answer or ""
        if fresh:
            verdicts = await all_of(tree.verifier.verify(end.text or " ", gold) for end in fresh)
            for end, verdict in zip(fresh, verdicts, strict=True):
                judged[end.number] = float(verdict.correct is True)
        return [judged[end.number] for end in ends]

    def _priors(self, values: Sequence[float]) -> list[float]:
        if self.prior == "uniform":
            return [1 / len(values)] * len(values)
        top = max(values)
        weights = [math.exp((value - top) / self.prior_temperature) for value in values]
        return [weight / math.fsum(weights) for weight in weights]


def _bury(path: Sequence[_Place]) -> None:
    """A leaf is a dead end, and so is every node above it that has no other way."""
    for place in reversed(path):
        place.dead = all(child.dead for child in place.children)
        if not place.dead:
            return
        if place.node.parent is not None:
            place.node.prune(place.node.why or "every step after it was given up")


def _note(root: _Place, backup: str) -> None:
    """Write visits and values into the nodes, for the trace."""
    places = [root]
    for place in places:
        places += place.children
        place.node.visits = place.visits
        if place.visits:
            place.node.value = place.total / place.visits if backup == "mean" else place.highest


def _finite(node: Node) -> float:
    value = value_of(node.aggregate)
    assert math.isfinite(value), "a node that is alive was scored"
    return value
