"""Every step by rollouts: k continuations of each prefix of a solution, and the share that ends in the right answer.

The method of Math-Shepherd (Wang et al. 2024, "Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations",
section 3.3, "hard" and "soft estimation"). For a solution of M steps it writes k continuations of each of the prefixes of
1 … M - 1 steps, k (M - 1) rollouts in all. A prefix's *hard* label is whether any of them was right, its *soft* label the
share that was. Neither is stored: the evidence is, (successes, trials) of each prefix, and `hard_label` and `soft_label` are
views of it. The first error by hard labels is the step that ends the first prefix without a success.

What hard labels are worth depends on the policy that rolls out: it calls a prefix with an error good with the probability
1 - (1 - p)^k, where p is the policy's chance to correct the error. More rollouts make that worse, not better.

Deviations from the paper:

* The whole solution is not rolled out. If it names an answer, the verdict on that answer is the last step's value, 1 of 1 or 0 of
  1: there is nothing left to write. If it names none (it was cut off), its end is rolled out like any other prefix.
* A rollout without a verdict counts neither as a success nor as a failure; the paper has no third outcome. A prefix
  none of whose rollouts has a verdict is tried `retries` times more; if that does not help, nothing is known of it, and the
  labeller abstains if the first error could be there.
* A success after an unknown prefix settles it: what follows it led to the right answer, so it can be reached from there.
* One policy writes continuations, named by the caller; the paper trains one for it (its "completer").

Savings, each off unless asked for, with what it changes:

=================  ================================  ====================================================================
setting            saves                             changes
=================  ================================  ====================================================================
`stop_at_success`  rollouts after a prefix's first   hard labels and the first error: nothing. Soft labels: a prefix that
                   success                           stopped has 1 success of n trials, a share that overrates it
`stop_at_error`    prefixes after the first bad one  the first error: nothing. Steps after it have no evidence
`only_wrong`       solutions with a right answer     those have no first error (None): a right answer does not show that
                                                     the steps are right. Others: nothing
=================  ================================  ====================================================================

Equal prefixes of several solutions share their rollouts, since these are asked for by number (`labelling.probe`).

The first error by binary search: k rollouts from the middle, then on in the half that must hold it.

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

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, final

from pydantic import Field

from stepmark.batching import Method, Verify, together
from stepmark.errors import InputError, UsageError
from stepmark.labels.labelling import (
    Cost,
    Labelling,
    Probe,
    Rollouts,
    gold_of,
    judged_until,
    prefix_text,
    probe,
    value_judgement,
)
from stepmark.records import Judgement, LabelledSolution, Solution, Verdict
from stepmark.settings import settings

OWN_ANSWER = "the solution's own answer"
"""Note of a value that is no rollout's: the verdict on the answer that the solution itself gives."""


def hard_label(evidence: Judgement) -> bool | None:
    """Whether any rollout from here was right (Math-Shepherd's hard estimation); None without evidence."""
    if evidence.trials:
        return bool(evidence.successes)
    return None if evidence.share is None else evidence.share > 0


def soft_label(evidence: Judgement) -> float | None:
    """The share of rollouts from here that were right, in [0, 1] (Math-Shepherd's soft estimation); None without evidence."""
    return (evidence.successes or 0) / evidence.trials if evidence.trials else evidence.share


@settings
class RolloutLabeller:
    """What labellers that roll out with k fixed have in common; not one itself."""

    k: Annotated[int, Field(ge=1)] = 8
    """Rollouts of each prefix that is tried."""
    how: Rollouts = field(default_factory=Rollouts)
    """How they are sampled."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often a prefix of which too little is known (no success, fewer verdicts than `least`) is given k more rollouts."""
    least: Annotated[int, Field(ge=1)] = 1
    """Verdicts that are needed before "no success" means that a prefix is bad, in 1 … k."""

    def __post_init__(self) -> None:
        if self.least > self.k:
            raise UsageError(f"`least` {self.least}: expected at most `k`, which is {self.k}")

    def known(self, found: Probe) -> bool:
        """Whether a probe says anything: a success, or enough verdicts without one."""
        return found.successes > 0 or found.trials >= self.least

    def try_prefix(
        self, solution: Solution, steps: int, *, stop_at_success: bool = False, at_once: int = 1
    ) -> Method[Probe]:
        """Roll a prefix out k times, and k times more, `retries` times at most, as long as they say nothing.

        Args:
            solution: whose prefix.
            steps: its length.
            stop_at_success: write `at_once` rollouts, look, and write no more after a success.
            at_once: rollouts asked for between two looks.

        Returns:
            All rollouts of the prefix as one probe.
        """
        found: Probe | None = None
        written = 0
        for attempt in range(1 + self.retries):
            limit = self.k * (attempt + 1)
            while written < limit:
                count = min(at_once, limit - written) if stop_at_success else limit - written
                more = yield from probe(solution, steps, count, self.how, first=written)
                written += count
                found = more if found is None else found.joined(more)
                if stop_at_success and found.successes:
                    return found
            if found is not None and self.known(found):
                break
        assert found is not None
        return found


@final
@settings
class EveryStep(RolloutLabeller):
    """Math-Shepherd's labels: k rollouts from every prefix (see the module for what each setting changes)."""

    name: str = "every-step"
    """Who judged, in the output; "every-step:MODEL" says with which policy."""
    stop_at_success: bool = False
    """Write no more of a prefix after a success: hard labels and first errors stay the same, shares do not."""
    at_once: Annotated[int, Field(ge=1)] = 1
    """With `stop_at_success`: rollouts written before looking; more of them make fewer rounds and save less."""
    stop_at_error: bool = False
    """Try prefixes one by one up to the first bad one: the first error stays the same, later steps have no evidence."""
    only_wrong: bool = False
    """Roll out only solutions whose answer is not right."""
    check_start: bool = False
    """Roll out the problem itself first, and abstain if no rollout solves it: then a prefix without a success says
    nothing of its steps."""

    def label(self, solution: Solution) -> Method[Labelling]:
        """Label one solution.

        Returns:
            `first_error` is -1 where every prefix had a success: by this method's measure, which is no proof. It is None,
            and `abstained` set, where a prefix of which nothing is known could hold the first error.

        Raises:
            InputError: no reference answer, or no steps.
        """
        length = count_steps(solution)
        own = yield own_answer(solution)
        cost = Cost()
        values: dict[int, Probe | Verdict] = {} if own.correct is None else {length: own}
        if own.correct and self.only_wrong:
            return self._conclude(solution, values, cost, first_bad=None)
        if self.check_start:
            start = yield from self._try(solution, 0)
            values[0] = start
            cost += start.cost
            if not start.successes:
                return self._conclude(solution, values, cost, first_bad=None, abstained=True)
        prefixes = [steps for steps in range(1, length + 1) if steps not in values]
        if self.stop_at_error:
            for steps in prefixes:
                found = yield from self._try(solution, steps)
                values[steps] = found
                cost += found.cost
                if self.known(found) and not found.successes:
                    break
        else:
            probes = yield from together([self._try(solution, steps) for steps in prefixes])
            values.update(zip(prefixes, probes, strict=True))
            cost = sum((found.cost for found in probes), cost)
        first_bad = self._first_bad(values, length)
        return self._conclude(solution, values, cost, first_bad=first_bad, abstained=first_bad is None)

    def _try(self, solution: Solution, steps: int) -> Method[Probe]:
        return self.try_prefix(solution, steps, stop_at_success=self.stop_at_success, at_once=self.at_once)

    def _first_bad(self, values: Mapping[int, Probe | Verdict], length: int) -> int | None:
        """Steps of the first prefix without a success; 0 if all have one; None if an unknown one could be the first."""
        unknown = False
        for steps in range(1, length + 1):
            value = values[steps]
            good = (
                value.correct
                if isinstance(value, Verdict)
                else (value.successes > 0 if self.known(value) else None)
            )
            if good is None:
                unknown = True
            elif good:
                unknown = False
            else:
                return None if unknown else steps
        return None if unknown else 0

    def _conclude(
        self,
        solution: Solution,
        values: Mapping[int, Probe | Verdict],
        cost: Cost,
        *,
        first_bad: int | None,
        abstained: bool = False,
    ) -> Labelling:
        first_error = None if first_bad is None else first_bad - 1
        return Labelling(
            labelled=labelled(solution, values, self.name, first_error),
            method=self.name,
            first_error=first_error,
            abstained=abstained,
            cost=cost,
        )


def labelled(
    solution: Solution, values: Mapping[int, Probe | Verdict], judge: str, first_error: int | None
) -> LabelledSolution:
    """A solution with the evidence at each prefix and, where there is one, the conclusion.

    Args:
        solution: what is labelled.
        values: by the number of steps: rollouts, or the verdict on the solution's own answer. Prefix 0 is the problem
            alone, whose evidence is the solution's `root`; a probe without verdicts is no evidence.
        judge: the labeller's name.
        first_error: 0-based; -1 for none; None for no conclusion.
    """
    length = len(solution.steps)
    concluded = [()] * length if first_error is None else judged_until(first_error, length, judge)
    judgements = [list(own) for own in concluded]
    root: tuple[Judgement, ...] = ()
    for steps, value in values.items():
        if isinstance(value, Verdict):
            found = Judgement(
                kind="value", judge=judge, successes=int(value.correct is True), trials=1, note=OWN_ANSWER
            )
        elif value.trials:
            found = value_judgement(value, judge)
        else:
            continue
        if steps:
            judgements[steps - 1].insert(0, found)
        else:
            root = (found,)
    return LabelledSolution(solution=solution, judgements=tuple(tuple(own) for own in judgements), root=root)


def own_answer(solution: Solution) -> Verify:
    """The question whether a solution's own answer is right.

    Raises:
        InputError: the problem has no reference answer.
    """
    return Verify(answer=prefix_text(solution, len(solution.steps)), gold=gold_of(solution))


def count_steps(solution: Solution) -> int:
    """How many steps a solution has.

    Raises:
        InputError: none.
    """
    if not solution.steps:
        raise InputError("expected at least one step, found none", where=solution.id, field="steps")
    return len(solution.steps)


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
