"""Step-level beam search: k steps after each beam, the best b go on.

Source: Snell et al. 2024, "Scaling LLM Test-Time Compute Optimally can be More Effective than Scaling Model Parameters" (arXiv
2408.03314), beam search against a PRM, and its look-ahead search; as in Hugging Face's search-and-learn, whose N is b * k here.

A round: every running beam is continued by k steps, the PRM scores them, and the b best of the new ones and of those finished earlier
are kept. It ends when all that is kept is finished, or nothing is left.

Deviations:

* The first round writes b * k first steps, so that all rounds write equally many.
* Steps that say the same (`meaning`) after one beam take one place, the others are not scored; `keep_equal` gives
  them several, as search-and-learn does.
* Finished beams stay in the competition with the aggregate that they have, and take a place while they are in it. In search-and-learn
  they leave it and are kept in the order of finishing, however bad.
* Beams are compared by the aggregate of all steps so far, not by the last score alone; `aggregate="last"` gives that.
* Look-ahead goes on from each new step greedily for some steps and compares by the aggregate at the end of that. search-and-learn's beam
  search writes the look-ahead and then scores the text without it. A beam's own aggregate stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.batching import Method
from stepmark.records import Problem
from stepmark.search.choosing import choose
from stepmark.search.growing import Tree
from stepmark.search.lookahead import look_ahead
from stepmark.search.nodes import Node, ranked
from stepmark.search.searching import Expanding, Found
from stepmark.settings import settings


@final
@settings
class BeamSearch(Expanding):
    """Beam search over steps."""

    name: ClassVar[str] = "beam"
    width: Annotated[int, Field(ge=1)] = 4
    """b: beams that are kept."""
    lookahead: Annotated[int, Field(ge=0)] = 0
    """Steps that are written greedily beyond each new one before it is compared; costs as many times the tokens."""
    keep_equal: bool = False
    """Let steps that say the same after one beam take several places."""

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name)
        beams: list[Node] = [tree.root]
        round_ = 0
        while any(not beam.ended for beam in beams) and not tree.spent:
            running = [beam for beam in beams if not beam.ended]
            each = self.expand if round_ else self.width * self.expand
            grown = yield from tree.grow(
                [(beam, each) for beam in running], round_, dedupe=not self.keep_equal
            )
            fresh = [node for some in grown for node in some]
            if self.lookahead:
                yield from look_ahead(tree, fresh, self.lookahead, round_)
            # What was not continued, because the budget ended, is in it as it stands.
            left: list[Node] = unwritten(running, grown) if tree.spent else []
            beams = best_of_round(tree, [*(beam for beam in beams if beam.ended), *left, *fresh], self.width)
            round_ += 1
        return (yield from choose(tree, tree.finished, self.choose))


def best_of_round(tree: Tree, nodes: Sequence[Node], width: int) -> list[Node]:
    """The best of some nodes, best first; the others are given up, and what the PRM keeps of them goes.

    Args:
        tree: whose nodes they are.
        nodes: alive or the root.
        width: how many are kept.
    """
    order = ranked(node for node in nodes if node.alive and node.parent is not None)
    for place, node in enumerate(order[width:], start=width + 1):
        node.prune(f"not among the {width} best of the round: {place} of {len(order)}")
    tree.release_but(order[:width])
    return order[:width]


def unwritten(nodes: Sequence[Node], grown: Sequence[Sequence[Node]]) -> list[Node]:
    """Of some nodes those after which nothing was written."""
    return [node for node, some in zip(nodes, grown, strict=True) if not some]


def best_of(nodes: Sequence[Node], count: int, why: str) -> list[Node]:
    """The best of some nodes, best first; the others are given up for a reason."""
    order = ranked(node for node in nodes if node.alive)
    for node in order[count:]:
        node.prune(why)
    return order[:count]
