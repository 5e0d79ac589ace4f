"""Labels by rollouts of prefixes: every step (Math-Shepherd), or the first error by binary search (OmegaPRM).

`EveryStep` is the method of Wang et al. 2024, "Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations",
section 3.3: k rollouts from each prefix of 1 … M - 1 steps. The evidence is stored, (successes, trials); the paper's hard label (any success) and
soft label (the share) are views of it. A hard label calls a prefix with an error good with probability 1 - (1 - p)^k, where p is the policy's chance
to correct the error: more rollouts make that worse.

`BinarySearch` is the search of Luo et al. 2024, "Improve Mathematical Reasoning in Language Models by Automated Process Supervision",
section 3.2: a prefix is good until the first error and bad from there on, so k log2 M rollouts do instead of k M. A wrong turn is never noticed.

Deviations from the papers:

* Where the whole solution names an answer, the verdict on that is its value, 1 of 1 or 0 of 1. Where it was cut off, its end is rolled out.
* A rollout without a verdict is neither a success nor a failure. A prefix with too few verdicts gets k more rollouts, `retries` times at most;
  then the labeller abstains if the first error could be there.
* Every step: a success after an unknown prefix settles it. One policy writes continuations; the paper trains one for it.
* Binary search: a solution with a right answer is not searched, and its `first_error` is None, not -1: a right answer does not show that the
  steps are right. The problem is taken to be solvable unless `check_start` rolls it out.

Equal prefixes of several solutions share their rollouts, which are asked for by number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Annotated, ClassVar, final

from pydantic import Field

from stepmark.backends import Completing, Verifying, all_of
from stepmark.errors import InputError, UsageError
from stepmark.labels.labelling import (
    Cost,
    LabellerNeeds,
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

    needs: ClassVar[LabellerNeeds] = LabellerNeeds(policy="required", texts=("rollout", "rollouts"))
    name: str = ""
    """Who judged, in the output."""
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

    def known(self, probed: Probe) -> bool:
        """Whether a probe says anything: a success, or enough verdicts without one."""
        return probed.successes > 0 or probed.trials >= self.least

    async def try_prefix(
        self,
        solution: Solution,
        steps: int,
        policy: Completing,
        verifier: Verifying,
        *,
        stop_at_success: bool = False,
    ) -> Probe:
        """Roll a prefix out k times, and k times more, `retries` times at most, as long as they say nothing.

        With `stop_at_success` rollouts are written one by one, and none after a success.
        """
        probed = Probe(steps=steps)
        for attempt in range(1 + self.retries):
            limit = self.k * (attempt + 1)
            while (written := len(probed.texts)) < limit:
                count = 1 if stop_at_success else limit - written
                probed = probed.joined(
                    await probe(solution, steps, count, self.how, policy, verifier, first=written)
                )
                if stop_at_success and probed.successes:
                    return probed
            if self.known(probed):
                break
        return probed

    def conclude(
        self,
        solution: Solution,
        values: Mapping[int, Probe | Verdict],
        first_bad: int | None,
        *,
        abstained: bool = False,
    ) -> Labelling:
        """The labelling: `values` as `labelled`; steps of the first bad prefix, 0 for none, None for no conclusion."""
        first_error = None if first_bad is None else first_bad - 1
        costs = [value.cost for value in values.values() if isinstance(value, Probe)]
        return Labelling(
            labelled=labelled(solution, values, self.name, first_error),
            method=self.name,
            first_error=first_error,
            abstained=abstained,
            cost=sum(costs, Cost()),
        )


@final
@settings
class EveryStep(RolloutLabeller):
    """Every step, k rollouts each (Math-Shepherd)."""

    name: str = "every-step"
    """Name of the judge in the output; "every-step:MODEL" names the policy."""
    stop_at_success: bool = False
    """Write no more of a prefix after a success: hard labels and first errors stay the same, shares do not."""
    stop_at_error: bool = False
    """Try prefixes one by one up to the first bad one: the first error stays the same, later steps have no evidence."""
    check_start: bool = False
    """Roll out the problem itself first, and abstain if no rollout solves it: then a prefix without a success says
    nothing of its steps."""

    async def label(self, solution: Solution, policy: Completing, verifier: Verifying) -> Labelling:
        """Label one solution.

        Returns:
            `first_error` is -1 where every prefix had a success: by this method's measure, which is no proof. It is None,
            and `abstained` set, where a prefix of which nothing is known could hold the first error.

        Raises:
            InputError: no reference answer, or no steps.
        """
        length = count_steps(solution)
        own = await own_answer(solution, verifier)
        values: dict[int, Probe | Verdict] = {} if own.correct is None else {length: own}

        def try_(steps: int) -> Awaitable[Probe]:
            return self.try_prefix(solution, steps, policy, verifier, stop_at_success=self.stop_at_success)

        if self.check_start:
            values[0] = start = await try_(0)
            if not start.successes:
                return self.conclude(solution, values, None, abstained=True)
        prefixes = [steps for steps in range(1, length + 1) if steps not in values]
        if self.stop_at_error:
            for steps in prefixes:
                values[steps] = probed = await try_(steps)
                if self.known(probed) and not probed.successes:
                    break
        else:
            values.update(zip(prefixes, await all_of(map(try_, prefixes)), strict=True))
        first_bad = self._first_bad(values, length)
        return self.conclude(solution, values, first_bad, abstained=first_bad is None)

    def _first_bad(self, values: Mapping[int, Probe | Verdict], length: int) -> int | None:
        """Steps of the first prefix without a success; 0 if all have one; None if an unknown one could be the first."""
        unknown = False
        for steps in range(1, length + 1):
            value = values[steps]
            good: bool | None = value.correct if isinstance(value, Verdict) else value.successes > 0
            if isinstance(value, Probe) and not self.known(value):
                good = None
            if good is False:
                return None if unknown else steps
            unknown = good is None
        return None if unknown else 0


def labelled(
    solution: Solution, values: Mapping[int, Probe | Verdict], judge: str, first_error: int | None
) -> LabelledSolution:
    """A solution with the evidence at each prefix and, where there is one, the conclusion.

    `values` are rollouts or the verdict on the solution's own answer, by the number of steps; those of prefix 0 stand under `root`. A
    probe without verdicts is no evidence. `first_error` is 0-based; -1 for none; None for no conclusion.
    """
    length = len(solution.steps)
    concluded = [()] * length if first_error is None else judged_until(first_error, length, judge)
    judgements = [list(own) for own in concluded]
    root: tuple[Judgement, ...] = ()
    for steps, value in values.items():
        if isinstance(value, Verdict):
            evidence = Judgement(
                kind="value", judge=judge, successes=int(value.correct is True), trials=1, note=OWN_ANSWER
            )
        elif value.trials:
            evidence = value_judgement(value, judge)
        else:
            continue
        if steps:
            judgements[steps - 1].insert(0, evidence)
        else:
            root = (evidence,)
    return LabelledSolution(solution=solution, judgements=tuple(tuple(own) for own in judgements), root=root)


async def own_answer(solution: Solution, verifier: Verifying) -> Verdict:
    """Whether a solution's own answer is right.

    Raises:
        InputError: the problem has no reference answer.
    """
    return await verifier.verify(prefix_text(solution, len(solution.steps)), gold_of(solution))


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
    """The first error by binary search (OmegaPRM)."""

    name: str = "binary-search"
    """Name of the judge in the output; "binary-search:MODEL" names the policy."""
    stop_at_success: bool = False
    """Write no more of a probe after a success: the first error stays the same, shares do not."""
    check_start: bool = False
    """Roll out the problem itself first, and abstain if no rollout solves it: such a policy says nothing about steps."""

    async def label(self, solution: Solution, policy: Completing, verifier: Verifying) -> Labelling:
        """Find the first error of one solution.

        Returns:
            `first_error` is never -1. It is None without `abstained` where nothing is to be searched: the answer is right, or a
            solution without an answer can be finished rightly.

        Raises:
            InputError: no reference answer, or no steps.
        """
        length = count_steps(solution)
        own = await own_answer(solution, verifier)
        values: dict[int, Probe | Verdict] = {} if own.correct is None else {length: own}

        async def at(steps: int) -> Probe:
            values[steps] = probed = await self.try_prefix(
                solution, steps, policy, verifier, stop_at_success=self.stop_at_success
            )
            return probed

        if own.correct:
            return self.conclude(solution, values, None)
        if self.check_start:
            start = await at(0)
            if not start.successes:
                return self.conclude(solution, values, None, abstained=True)
        if own.correct is None:
            end = await at(length)
            if end.successes or not self.known(end):
                return self.conclude(solution, values, None, abstained=not end.successes)
        first_bad = await first_bad_prefix(0, length, at, self.known)
        return self.conclude(solution, values, first_bad, abstained=first_bad is None)


async def first_bad_prefix(
    low: int, high: int, at: Callable[[int], Awaitable[Probe]], known: Callable[[Probe], bool]
) -> int | None:
    """The length of the shortest bad prefix, in low + 1 … high, by binary search; None where a probe said nothing.

    `low` is the length of a prefix known to be good, `high` of a longer one known to be bad; `at` probes a prefix.
    """
    while high - low > 1:
        middle = (low + high) // 2
        probed = await at(middle)
        if not known(probed):
            return None
        if probed.successes:
            low = middle
        else:
            high = middle
    return high
