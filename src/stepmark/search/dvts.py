"""Diverse verifier tree search: subtrees that never compete with each other, each of which goes on from its best step alone.

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

from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.batching import Method
from stepmark.records import Problem
from stepmark.search.beam import best_of
from stepmark.search.choosing import choose
from stepmark.search.growing import Tree
from stepmark.search.lookahead import look_ahead
from stepmark.search.meaning import meaning
from stepmark.search.nodes import Node
from stepmark.search.searching import Expanding, Found
from stepmark.settings import settings


@final
@settings
class DiverseTrees(Expanding):
    """Diverse verifier tree search."""

    name: ClassVar[str] = "dvts"
    subtrees: Annotated[int, Field(ge=1)] = 4
    """n: trees, each of which gives one solution."""
    lookahead: Annotated[int, Field(ge=0)] = 0
    """Steps that are written greedily beyond each new one before it is compared."""

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name)
        # Not deduped: these are n draws of k, and each subtree chooses among its own.
        [first] = yield from tree.grow([(tree.root, self.subtrees * self.expand)], 0, dedupe=False)
        if self.lookahead:
            yield from look_ahead(tree, first, self.lookahead, 0)
        tips = self._begin(tree)
        round_ = 1
        while any(tip.running for tip in tips) and not tree.spent:
            tree.release_but(tips)
            running = [tip for tip in tips if tip.running]
            grown = yield from tree.grow([(tip, self.expand) for tip in running], round_)
            if self.lookahead:
                yield from look_ahead(tree, [node for some in grown for node in some], self.lookahead, round_)
            tips = [tip for tip in tips if tip.ended]
            for some in grown:
                tips += best_of(some, 1, "not the best step of its subtree")
            round_ += 1
        return (yield from choose(tree, tree.finished, self.choose))

    def _begin(self, tree: Tree) -> list[Node]:
        """The first step of each subtree, each of another meaning."""
        drawn = [node for node in tree.nodes.all if node.parent is tree.root]
        taken: dict[str, Node] = {}
        for start in range(0, len(drawn), self.expand):
            own = [node for node in drawn[start : start + self.expand] if node.alive]
            fresh = [node for node in own if meaning(node.step) not in taken]
            for node in own:
                if node not in fresh:
                    node.prune(
                        f"another subtree begins with step {taken[meaning(node.step)].number}, which says the same"
                    )
            for node in best_of(fresh, 1, "not the best step of its subtree"):
                taken[meaning(node.step)] = node
        return list(taken.values())
