"""Whole solutions, and one of them: greedy, best-of-N, majority vote, PRM-weighted vote.

Best-of-N with a process reward model: Lightman et al. 2023, "Let's Verify Step by Step" (arXiv 2305.20050), section 2. Majority and
weighted votes: see `choosing`.

The searches of this module write the same texts: with equal settings (`Steps`, N, budget) and one reply store, the second one is
free. `Majority` and `Greedy` ask no PRM, and are charged for none.

Deviation: under a budget that would not do for N solutions of the longest length, they are asked for a few at a time, as many as the
budget is likely to do for by the longest so far (`tree.Spending.allow`), so N may not be reached.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.backends import Completing, StepScoring, Verifying
from stepmark.records import Problem
from stepmark.searches.base import Choice, Searching, SearchResult, check_choice
from stepmark.searches.choosing import choose
from stepmark.searches.tree import Tree
from stepmark.settings import settings


@final
@settings
class Greedy(Searching):
    """One solution, always the likeliest token; asks no PRM."""

    name: ClassVar[str] = "greedy"
    asks_prm: ClassVar[bool] = False

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name, policy, prm, verifier, scored=False)
        ends = await tree.write_whole(tree.root, 1, 0, temperature=0.0)
        return await choose(tree, ends, "best")


@settings
class SampledSearch(Searching):
    """N solutions, and one of them. Abstract."""

    choice: ClassVar[Choice]
    """How one is chosen."""
    n: Annotated[int, Field(ge=1)] = 16
    """Solutions that are written."""

    async def search(
        self, problem: Problem, policy: Completing, prm: StepScoring, verifier: Verifying
    ) -> SearchResult:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name, policy, prm, verifier, scored=self.asks_prm)
        ends = await tree.write_whole(tree.root, self.n, 0)
        return await choose(tree, ends, self.choice)


@final
@settings
class BestOfN(SampledSearch):
    """N solutions, and the one that the PRM scores highest."""

    name: ClassVar[str] = "best-of-n"
    choice: ClassVar[Choice] = "best"


@final
@settings
class Majority(SampledSearch):
    """N solutions, and the commonest answer; asks no PRM."""

    name: ClassVar[str] = "majority"
    choice: ClassVar[Choice] = "majority"
    asks_prm: ClassVar[bool] = False


@final
@settings
class WeightedVote(SampledSearch):
    """N solutions, and the answer with the highest sum of PRM scores.

    Raises:
        UsageError: the aggregate can be negative, and is no weight.
    """

    name: ClassVar[str] = "weighted-vote"
    choice: ClassVar[Choice] = "vote"

    def __post_init__(self) -> None:
        check_choice("vote", self.grading)
