"""Whole solutions, and one of them: greedy, best-of-N, majority vote, PRM-weighted vote, adaptive N.

Best-of-N with a process reward model: Lightman et al. 2023, "Let's Verify Step by Step" (arXiv 2305.20050), section 2. Majority and
weighted votes: see `choosing`.

The searches of this module write the same texts: with equal settings (`Steps`, N, budget) and one reply store, the second one is
free. `Majority` and `Greedy` ask no PRM, and are charged for none.

Deviation: under a budget that would not do for N solutions of the longest length, they are asked for a few at a time, as many as the
budget is likely to do for by the longest so far (`tree.Spending.allow`), so N may not be reached.

**Adaptive N**: how many samples a problem is worth, by a calibrated PRM.

Source: "Know What You Don't Know: Uncertainty Calibration of Process Reward Models" (arXiv 2506.09338), instance-adaptive
scaling. Where a sample is right with probability p, N samples hold a right one with probability q at::

    N = ceil(ln(1 - q) / ln(1 - p))

    >>> [samples_needed(p, q=0.99) for p in (0.9, 0.5, 0.1)]
    [2, 7, 44]

p is clipped to [1e-4, 1 - 1e-4], as in the paper's code, and N to [`pilot`, `most`].

Deviations:

* The paper's PRM predicts p from the problem before anything is written, by quantile heads; a PRM that scores steps has no score of that. Here
  p is the mean of the aggregates of `pilot` samples, which count as the first of the N. So the PRM must be calibrated: a probability that
  a solution is right (`stepmark evaluate calibration` says whether it is, and stores a map that makes it so), read by
  an aggregate that is one, such as "last".
* N is bounded. The paper's is not: p = 1e-4 would ask for 46,050 samples.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Annotated, Any, ClassVar, final

from pydantic import Field

from stepmark.batching import Method
from stepmark.errors import UsageError
from stepmark.records import Problem
from stepmark.search.base import Choice, Choosing, Found, Searching, at_least, check_choice
from stepmark.search.choosing import choose
from stepmark.search.tree import Tree
from stepmark.settings import settings


@final
@settings
class Greedy(Searching):
    """One solution, always the likeliest token. The yardstick that costs least."""

    name: ClassVar[str] = "greedy"
    asks_prm: ClassVar[bool] = False

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name, scored=False)
        ends = yield from tree.write_whole(tree.root, 1, 0, temperature=0.0)
        return (yield from choose(tree, ends, "best"))


@settings
class Sampled(Searching):
    """N solutions, and one of them. Abstract."""

    n: Annotated[int, Field(ge=1)] = 16
    """Solutions that are written."""

    def _search(self, problem: Problem, name: str, choice: Choice) -> Generator[Any, Any, Found]:
        tree = Tree(problem, self, name, scored=choice != "majority")
        ends = yield from tree.write_whole(tree.root, self.n, 0)
        return (yield from choose(tree, ends, choice))


@final
@settings
class BestOfN(Sampled):
    """The solution with the highest aggregate of its step scores."""

    name: ClassVar[str] = "best-of-n"

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        return (yield from self._search(problem, self.name, "best"))


@final
@settings
class Majority(Sampled):
    """The commonest answer; no PRM is asked."""

    name: ClassVar[str] = "majority"
    asks_prm: ClassVar[bool] = False

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        return (yield from self._search(problem, self.name, "majority"))


@final
@settings
class WeightedVote(Sampled):
    """The answer with the highest sum of aggregates.

    Raises:
        UsageError: the aggregate can be negative, and is no weight.
    """

    name: ClassVar[str] = "weighted-vote"

    def __post_init__(self) -> None:
        check_choice("vote", self.grading)

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        return (yield from self._search(problem, self.name, "vote"))


_LEAST = 1e-4


def samples_needed(p: float, *, q: float) -> int:
    """N: how many samples hold a right one with probability q, where each is right with probability p; at least 1.

    Args:
        p: in [0, 1]; clipped to [1e-4, 1 - 1e-4].
        q: in (0, 1).
    """
    p = min(max(p, _LEAST), 1 - _LEAST)
    return max(1, math.ceil(math.log1p(-q) / math.log1p(-p) - 1e-9))


@final
@settings
class Adaptive(Choosing):
    """Best-of-N with an N of each problem's own.

    Raises:
        UsageError: a setting out of its range, or scores that are no probabilities.
    """

    name: ClassVar[str] = "adaptive"
    pilot: Annotated[int, Field(ge=1)] = 4
    """Samples that p is estimated from; the least N."""
    most: int = 64
    """The largest N."""
    q: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """The probability, in (0, 1), with which a right solution shall be among the N."""

    def __post_init__(self) -> None:
        Choosing.__post_init__(self)
        at_least("most", self.most, self.pilot)
        if self.grading.kind != "probability" or self.grading.aggregate == "sum-logit":
            raise UsageError(
                f"adaptive N needs a probability that a solution is right; a {self.grading.aggregate} of scores of the kind "
                f"{self.grading.kind!r} is none"
            )

    def search(self, problem: Problem) -> Method[Found]:
        """See `Search.search`."""
        tree = Tree(problem, self, self.name)
        ends = yield from tree.write_whole(tree.root, self.pilot, 0)
        values = [end.aggregate for end in ends if end.aggregate is not None]
        # A sample that came to no end is no right one.
        p = math.fsum(values) / self.pilot
        n = min(self.most, max(self.pilot, samples_needed(p, q=self.q)))
        if n > self.pilot and not tree.spent:
            ends += yield from tree.write_whole(tree.root, n - self.pilot, 1)
        tree.note = tree.note or f"p estimated at {p:.3f}, N = {n}"
        return (yield from choose(tree, ends, self.choose))
