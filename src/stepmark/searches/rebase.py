"""REBASE: the next round's steps are shared out among all that stand, in proportion to the softmax of their scores.

Source: Wu et al. 2024, "Inference Scaling Laws" (arXiv 2408.00724), "reward balanced search".

In each round W steps are written; a node with score s gets W * exp(s / T) / sum of exp(s / T) of them. A weak node gets few or none, and is
not cut off by a rank. A finished solution takes one from W for good, so that W solutions are finished in the end. One of them is
chosen, by weighted vote in the paper.

    >>> allocation([0.9, 0.5, 0.1], width=8, temperature=0.2)
    [7, 1, 0]

Deviations:

* Rounding: nodes are taken best first, each gets the ceiling of its share of what is left, and width and weights are lessened by that. So the
  numbers sum to W; rounding each by itself, as the paper writes, does not.
* The score of a node is the aggregate of its steps so far; the paper takes the last score, which is `aggregate="last"`.
* Steps that say the same after one node are written once; the places that they took are not given to others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.backends import Completing, StepScoring, Verifying
from stepmark.errors import UsageError
from stepmark.records import Problem
from stepmark.searches.base import Choice, Choosing, SearchResult
from stepmark.searches.choosing import choose
from stepmark.searches.tree import Node, Tree, ranked
from stepmark.settings import settings
from stepmark.words import amount


def allocation(scores: Sequence[float], *, width: int, temperature: float) -> list[int]:
    """How many steps are written after each node; they sum to `width`.

    Args:
        scores: of the nodes, finite; at least one.
        width: W.
        temperature: T, in units of the scores; above 0.
    """
    top = max(scores)
    weights = [math.exp((score - top) / temperature) for score in scores]
    counts = [0] * len(scores)
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    for rank, place in enumerate(order):
        if width == 0:
            break
        # Summed anew: what is subtracted again and again ends in rounding errors, and a ceiling makes a step of them.
        rest = math.fsum(weights[other] for other in order[rank:])
        counts[place] = min(width, math.ceil(width * weights[place] / rest - 1e-9))
        width -= counts[place]
    return counts


@final
@settings
class Rebase(Choosing):
    """Each round's steps shared out by the softmax of the scores (REBASE).

    Raises:
        UsageError: a setting out of its range; an aggregate that can be infinite.
    """

    name: ClassVar[str] = "rebase"
    sized_by: ClassVar[str | None] = "width"
    width: Annotated[int, Field(ge=1)] = 16
    """Steps written a round, and solutions finished in the end (W)."""
    balance: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """Temperature T: low gives all steps to the best node, high shares them equally."""
    choose: Choice = "vote"
    """How one of the finished solutions is chosen."""

    def __post_init__(self) -> None:
        Choosing.__post_init__(self)
        if self.grading.aggregate == "sum-logit":
            raise UsageError(
                "REBASE shares out by exp(score): a sum of logits can be infinite; take another aggregate"
            )

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name, policy, prm, verifier)
        asks: list[tuple[Node, int]] = [(tree.root, self.width)]
        round_ = 0
        while asks and not tree.spent:
            children = await tree.grow(asks, round_)
            fresh = [node for siblings in children for node in siblings]
            places = self.width - len(tree.finished)
            running = ranked(node for node in fresh if node.running)
            asks = []
            if running and places > 0:
                counts = allocation(
                    [_finite(node.rank) for node in running], width=places, temperature=self.balance
                )
                asks = [(node, count) for node, count in zip(running, counts, strict=True) if count]
                for node, count in zip(running, counts, strict=True):
                    if not count:
                        node.prune(f"its share of {amount(places, 'step')} is none")
            tree.release_but(node for node, _ in asks)
            round_ += 1
        return await choose(tree, tree.finished, self.choose)


def _finite(rank: float | None) -> float:
    assert rank is not None, "a node that is alive was scored"
    return rank
