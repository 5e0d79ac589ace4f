"""Early rejection: a step is judged by its first tokens, and only the best beginnings are written to their end.

Source: Cheshmi et al. 2025, "Accelerating LLM Reasoning via Early Rejection with Partial Reward Modeling" (arXiv 2508.01969).

A round of beam search with k steps after each of b beams: of each step the first tau tokens are written and scored as they stand; the b best
beginnings go on to the end of the step and are scored anew; they are the next beams.

Deviations:

* A step that is at its end within tau tokens is compared with the beginnings by its own score.
* The b best are taken over all beams, as `beam` does, not among each beam's own k.
* A step's score is that of the whole step once it is there: an error that comes after the first tau tokens still tells.
* What the PRM read of a beginning counts, and reading the whole step counts in full beside it: a budget may be exceeded by the
  beginnings of its last round.

Most PRMs were trained to score whole steps. How far a beginning tells is a property of the PRM: measure it before trusting the savings.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.batching import Method
from stepmark.records import Problem
from stepmark.search.beam import best_of_round
from stepmark.search.choosing import choose
from stepmark.search.growing import Tree
from stepmark.search.nodes import Node, ranked
from stepmark.search.searching import Expanding, Found
from stepmark.settings import settings


@final
@settings
class EarlyRejection(Expanding):
    """Beam search that gives up steps after their first tokens."""

    name: ClassVar[str] = "early-rejection"
    width: Annotated[int, Field(ge=1)] = 4
    """b: beams that are kept."""
    tau: Annotated[int, Field(ge=1)] = 64
    """Tokens after which the beginning of a step is scored."""

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name)
        beams: list[Node] = [tree.root]
        round_ = 0
        while any(not beam.ended for beam in beams) and not tree.spent:
            running = [beam for beam in beams if not beam.ended]
            each = self.expand if round_ else self.width * self.expand
            grown = yield from tree.grow([(beam, each) for beam in running], round_, partial=self.tau)
            begun = ranked(node for some in grown for node in some)
            for place, node in enumerate(begun[self.width :], start=self.width + 1):
                what = "beginning" if node.partial else "step"
                node.prune(f"early rejection: this {what} is {place} of {len(begun)}, and {self.width} go on")
            yield from tree.go_on(begun[: self.width])
            beams = best_of_round(
                tree, [*(beam for beam in beams if beam.ended), *begun[: self.width]], self.width
            )
            round_ += 1
        return (yield from choose(tree, tree.finished, self.choose))
