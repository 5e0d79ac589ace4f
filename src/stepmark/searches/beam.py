"""Searches step by step that keep the best: beam search and diverse trees.

**Beam search.** Step-level beam search: k steps after each beam, the best b go on.

Source: Snell et al. 2024, "Scaling LLM Test-Time Compute Optimally can be More Effective than Scaling Model Parameters" (arXiv
2408.03314), beam search against a PRM, and its look-ahead search; as in Hugging Face's search-and-learn, whose N is b * k here.

A round: every running beam is continued by k steps, the PRM scores them, and the b best of the new ones and of those finished earlier
are kept. It ends when all that is kept is finished, or nothing is left.

Deviations:

* The first round writes b * k first steps, so that all rounds write equally many.
* With `merge_equal`, steps that say the same (`meaning`) after one beam take one place, and the others are not scored.
* Finished beams stay in the competition with the aggregate that they have, and take a place while they are in it. In search-and-learn
  they leave it and are kept in the order of finishing, however bad.
* Beams are compared by the aggregate of all steps so far, not by the last score alone; `aggregate="last"` gives that.
* Look-ahead goes on from each new step greedily for some steps and compares by the aggregate at the end of that. search-and-learn's beam
  search writes the look-ahead and then scores the text without it. A beam's own aggregate stays what it is.

**Diverse trees.** Diverse verifier tree search: subtrees that never compete with each other, each of which goes on from its best step alone.

Source: Beeching, Tunstall and Rush 2024, "Scaling test-time compute with open models" (Hugging Face), and its code, search-and-learn
(`dvts.py`), whose N is `subtrees` * `expand` here and M is `expand`.

1. Each of n subtrees writes k first steps and keeps the best.
2. Each writes k steps after what it keeps, and keeps the best, until that is finished.
3. One of the finished solutions, one a subtree, is chosen.

Deviations:

* A subtree does not begin with a step that says the same as another's first one: it takes the next best of its own k, and is not opened where
  it has none. Without that, a peaked policy gives n times the same tree.
* Steps are compared by the aggregate of all steps so far; in search-and-learn too. With look-ahead, by that at its end (`lookahead`).
* All subtrees of all problems are written and scored together, one step a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.backends import Completing, StepScoring, Verifying
from stepmark.records import Problem
from stepmark.searches.base import Expanding, SearchResult
from stepmark.searches.choosing import choose
from stepmark.searches.meaning import meaning
from stepmark.searches.tree import Node, Tree, ranked
from stepmark.settings import settings


@final
@settings
class BeamSearch(Expanding):
    """Step by step: k steps after each beam, the best b are continued."""

    name: ClassVar[str] = "beam"
    sized_by: ClassVar[str | None] = "width"
    width: Annotated[int, Field(ge=1)] = 4
    """Beams that are kept (b)."""
    lookahead: Annotated[int, Field(ge=0)] = 0
    """Steps that are written greedily beyond each new one before it is compared; costs as many times the tokens."""
    merge_equal: bool = False
    """Let steps that say the same after one beam take one place. In the paper they take several, so that a likely step is tried from several beams."""

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name, policy, prm, verifier)
        beams: list[Node] = [tree.root]
        round_ = 0
        while any(not beam.ended for beam in beams) and not tree.spent:
            running = [beam for beam in beams if not beam.ended]
            each = self.expand if round_ else self.width * self.expand
            children = await tree.grow([(beam, each) for beam in running], round_, dedupe=self.merge_equal)
            fresh = [node for siblings in children for node in siblings]
            if self.lookahead:
                await look_ahead(tree, fresh, self.lookahead, round_)
            # What was not continued, because the budget ended, is in it as it stands.
            unfinished: list[Node] = unwritten(running, children) if tree.spent else []
            beams = best_of_round(
                tree, [*(beam for beam in beams if beam.ended), *unfinished, *fresh], self.width
            )
            round_ += 1
        return await choose(tree, tree.finished, self.choose)


def best_of_round(tree: Tree, nodes: Sequence[Node], width: int) -> list[Node]:
    """The best `width` of some nodes, best first; the others are given up, and what the PRM keeps of them goes."""
    order = ranked(node for node in nodes if node.alive and node.parent is not None)
    for place, node in enumerate(order[width:], start=width + 1):
        node.prune(f"not among the {width} best of the round: {place} of {len(order)}")
    tree.release_but(order[:width])
    return order[:width]


def unwritten(nodes: Sequence[Node], children: Sequence[Sequence[Node]]) -> list[Node]:
    """Of some nodes those after which nothing was written."""
    return [node for node, siblings in zip(nodes, children, strict=True) if not siblings]


def best_of(nodes: Sequence[Node], count: int, why: str) -> list[Node]:
    """The best of some nodes, best first; the others are given up for a reason."""
    order = ranked(node for node in nodes if node.alive)
    for node in order[count:]:
        node.prune(why)
    return order[:count]


@final
@settings
class DiverseTrees(Expanding):
    """Diverse trees: subtrees that do not compete, each continued from its best step."""

    name: ClassVar[str] = "dvts"
    sized_by: ClassVar[str | None] = "subtrees"
    subtrees: Annotated[int, Field(ge=1)] = 4
    """n: trees, each of which gives one solution."""
    lookahead: Annotated[int, Field(ge=0)] = 0
    """Steps that are written greedily beyond each new one before it is compared."""

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name, policy, prm, verifier)
        # Not deduped: these are n draws of k, and each subtree chooses among its own.
        [first] = await tree.grow([(tree.root, self.subtrees * self.expand)], 0, dedupe=False)
        if self.lookahead:
            await look_ahead(tree, first, self.lookahead, 0)
        tips = self._begin(tree)
        round_ = 1
        while any(tip.running for tip in tips) and not tree.spent:
            tree.release_but(tips)
            running = [tip for tip in tips if tip.running]
            children = await tree.grow([(tip, self.expand) for tip in running], round_)
            if self.lookahead:
                await look_ahead(
                    tree, [node for siblings in children for node in siblings], self.lookahead, round_
                )
            tips = [tip for tip in tips if tip.ended]
            for siblings in children:
                tips += best_of(siblings, 1, "not the best step of its subtree")
            round_ += 1
        return await choose(tree, tree.finished, self.choose)

    def _begin(self, tree: Tree) -> list[Node]:
        """The first step of each subtree, each of another meaning."""
        first_steps = [node for node in tree.nodes.all if node.parent is tree.root]
        by_meaning: dict[str, Node] = {}
        for start in range(0, len(first_steps), self.expand):
            own = [node for node in first_steps[start : start + self.expand] if node.alive]
            fresh = [node for node in own if meaning(node.step) not in by_meaning]
            for node in own:
                if node not in fresh:
                    node.prune(
                        f"another subtree begins with step {by_meaning[meaning(node.step)].number}, which says the same"
                    )
            for node in best_of(fresh, 1, "not the best step of its subtree"):
                by_meaning[meaning(node.step)] = node
        return list(by_meaning.values())


async def look_ahead(tree: Tree, nodes: Sequence[Node], steps: int, round_: int) -> None:
    """Go on greedily from nodes that are alive and scored, and set the `rank` of each to the aggregate of where that leads.

    What is written is scored; it stands in the trace as given up, and its tokens are counted. A way that comes to an end, or to a step
    that is of no use, is judged by as far as it came.
    """
    ends = {node: node for node in nodes}
    going = [node for node in nodes if node.running]
    for _ in range(steps):
        if not going or tree.spent:
            break
        children = await tree.grow([(ends[node], 1) for node in going], round_, ahead=True)
        for node, siblings in zip(going, children, strict=True):
            if siblings:
                ends[node] = siblings[0]
        going = [
            node for node, siblings in zip(going, children, strict=True) if siblings and siblings[0].running
        ]
    for node, end in ends.items():
        node.rank = end.aggregate
        for step in end.below(node):
            step.prune("written to look ahead")
