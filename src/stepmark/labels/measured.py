"""V of a policy, measured: how often it reaches the right answer from a prefix, with an interval.

For a policy whose V cannot be computed (any network), many rollouts from one prefix give it to any precision: the interval's
half width is about 1 / sqrt(rollouts) where V is near a half, and less elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepmark.batching import ReplyStore, run
from stepmark.errors import InputError, UsageError
from stepmark.labels.labelling import Rollouts, probe
from stepmark.metrics.intervals import Interval, wilson
from stepmark.models.policies import Policy, answerers
from stepmark.problems.answers import Verifier
from stepmark.problems.answers import answerers as verdicts
from stepmark.records import Solution

ROLLOUTS = Rollouts()
"""How prefixes are continued by default: as `stepmark label` does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredValue:
    """V after some steps of a solution."""

    steps: int
    """Length of the prefix in steps."""
    successes: int
    trials: int
    """Rollouts with a verdict."""
    unparsed: int
    """Rollouts without: neither successes nor failures."""
    value: Interval
    """successes / trials with Wilson's interval; its figures are None where there is no trial."""


def measured_values(
    solution: Solution,
    policy: Policy,
    verifier: Verifier,
    *,
    rollouts: int = 1000,
    how: Rollouts = ROLLOUTS,
    steps: Sequence[int] | None = None,
    level: float = 0.95,
    store: ReplyStore | None = None,
) -> tuple[MeasuredValue, ...]:
    """Measure V of a policy before the first step of a solution and after each.

    Args:
        solution: its problem has a reference answer.
        policy: whose V is meant; V belongs to its sampling settings (`how`) too.
        verifier: compares final answers.
        rollouts: a prefix; at least 1.
        how: how prefixes are continued. At temperature 0 there is nothing to measure.
        steps: lengths of the prefixes, from 0 to the number of steps; None for all of them.
        level: of the intervals.
        store: keeps every reply before it is used.

    Returns:
        One value a prefix, in the order of `steps`.

    Raises:
        UsageError: settings out of range.
        InputError: no reference answer, or the policy cannot read a prefix.
    """
    lengths = range(len(solution.steps) + 1) if steps is None else steps
    if rollouts < 1 or how.temperature == 0:
        raise UsageError(
            f"expected at least 1 rollout and a temperature above 0, found {rollouts} and {how.temperature}"
        )
    for length in lengths:
        if not 0 <= length <= len(solution.steps):
            raise InputError(
                f"expected lengths of prefixes within 0 to {len(solution.steps)}, found {length}",
                where=solution.id,
            )
    methods = (probe(solution, length, rollouts, how) for length in lengths)
    found = []
    for _, one in run(methods, answerers(policy) | verdicts(verifier), store=store):
        found.append(
            MeasuredValue(
                steps=one.steps,
                successes=one.successes,
                trials=one.trials,
                unparsed=one.cost.unparsed,
                value=wilson(one.successes, one.trials, level=level),
            )
        )
    return tuple(found)
