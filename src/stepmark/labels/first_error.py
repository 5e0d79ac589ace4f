"""The first error by binary search: k rollouts from the middle, then on in the half that must hold it.

The divide-and-conquer search of OmegaPRM (Luo et al. 2024, "Improve Mathematical Reasoning in Language Models by Automated
Process Supervision", section 3.2). It assumes that a prefix is good until the first error and bad from there on (monotone):
a success from the first t steps puts the error after them, no success of k among them. Two ends close in on it: `low`, the
longest prefix known to be good, at first the problem itself, and `high`, the shortest known to be bad, at first the
whole solution, whose answer is wrong. Each probe is at (low + high) // 2, and the search ends when high = low + 1: step `high` is
the first error. That takes floor(log2 M) or ceil(log2 M) probes for M steps (log2 M where that is whole), k log2 M rollouts
instead of k M.

    >>> probes_needed(8), probes_needed(9)
    ((3, 3), (3, 4))

A wrong turn is never noticed: one bad prefix that the policy rescues, or one good prefix that it fails k times, moves the error.

Deviations from the paper:

* The whole solution's end is known from its own answer and is not probed. Where it names no answer (it was cut off), its end is
  probed first; if a rollout from there is right, there is no known bad end and nothing to search.
* A solution with a right answer is not searched, as in the paper; its `first_error` is None and not -1, for no prefix was tried,
  and a right answer does not show that the steps are right (ProcessBench, Zheng et al. 2024, finds wrong steps in up to half of
  such solutions of hard problems).
* The problem itself is taken to be solvable, as in the paper, which filters problems beforehand. `check_start` rolls it out, and
  abstains if no rollout solves it.
* A rollout without a verdict counts neither as a success nor as a failure. A probe of which too little is known gets k more
  rollouts, `retries` times at most; then the search abstains.

Savings: `stop_at_success` ends a probe at its first success. Places, probes and labels are the same; the share at a probe
that stopped (1 of n) overrates its prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, final

from pydantic import Field

from stepmark.batching import Method
from stepmark.labels.labelling import Cost, Labelling, Probe
from stepmark.labels.rollout import RolloutLabeller, count_steps, labelled, own_answer
from stepmark.records import Solution, Verdict
from stepmark.settings import settings


@final
@settings
class BinarySearch(RolloutLabeller):
    """OmegaPRM's search for the first error: k rollouts at about log2 M prefixes."""

    name: str = "binary-search"
    """Who judged, in the output; "binary-search:MODEL" says with which policy."""
    stop_at_success: bool = False
    """Write no more of a probe after a success: the first error stays the same, shares do not."""
    at_once: Annotated[int, Field(ge=1)] = 1
    """With `stop_at_success`: rollouts written before looking; more of them make fewer rounds and save less."""
    check_start: bool = False
    """Roll out the problem itself first, and abstain if no rollout solves it: such a policy says nothing about steps."""

    def label(self, solution: Solution) -> Method[Labelling]:
        """Find the first error of one solution.

        Returns:
            `first_error` is never -1. It is None without `abstained` where nothing is to be searched: the answer is right, or a
            solution without an answer can be finished rightly.

        Raises:
            InputError: no reference answer, or no steps.
        """
        length = count_steps(solution)
        own = yield own_answer(solution)
        values: dict[int, Probe | Verdict] = {}

        def at(steps: int) -> Method[Probe]:
            found = yield from self.try_prefix(
                solution, steps, stop_at_success=self.stop_at_success, at_once=self.at_once
            )
            values[steps] = found
            return found

        def conclude(first_bad: int | None, *, abstained: bool = False) -> Labelling:
            first_error = None if first_bad is None else first_bad - 1
            costs = [value.cost for value in values.values() if isinstance(value, Probe)]
            return Labelling(
                labelled=labelled(solution, values, self.name, first_error),
                method=self.name,
                first_error=first_error,
                abstained=abstained,
                cost=sum(costs, Cost()),
            )

        if own.correct is not None:
            values[length] = own
        if own.correct:
            return conclude(None)
        if self.check_start:
            start = yield from at(0)
            if not start.successes:
                return conclude(None, abstained=True)
        if own.correct is None:
            end = yield from at(length)
            if end.successes or not self.known(end):
                return conclude(None, abstained=not end.successes)
        first_bad = yield from first_bad_prefix(0, length, at, self.known)
        return conclude(first_bad, abstained=first_bad is None)


def first_bad_prefix(
    low: int, high: int, at: Callable[[int], Method[Probe]], known: Callable[[Probe], bool]
) -> Method[int | None]:
    """The length of the shortest bad prefix, by binary search.

    Args:
        low: length of a prefix known to be good.
        high: length of a longer one known to be bad.
        at: probes a prefix.
        known: whether a probe says anything.

    Returns:
        The length, in low + 1 … high; None where a probe said nothing.
    """
    while high - low > 1:
        middle = (low + high) // 2
        found = yield from at(middle)
        if not known(found):
            return None
        if found.successes:
            low = middle
        else:
            high = middle
    return high


def probes_needed(steps: int) -> tuple[int, int]:
    """The fewest and the most probes that a search among so many steps takes, both ends known."""
    return steps.bit_length() - 1, (steps - 1).bit_length()
