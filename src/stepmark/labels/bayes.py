"""The first error by Bayesian search.

Rollouts from a sound prefix of a solution often reach the right answer, rollouts from a broken one seldom. How often is
not known, nor where the border lies. So the labeller keeps one joint posterior over the place of the first error and the
success rates before and after it (`labels.posterior`), lets every rollout at every prefix count towards it, spends the next
rollouts where they tell most about the place per expected token, and stops when one place is likely enough.

Sources: noisy binary search with a Bayesian posterior: Burnashev and Zigangirov (1974), Ben-Or and Hassidim (FOCS 2008),
Dereniowski, Lukasiewicz and Uznanski (arXiv 2107.05753); the setting, first errors of model-written solutions by rollout:
OmegaPRM (arXiv 2406.06592). Deviations, and why:

* Those searches know how often a comparison errs and err alike on both sides. Here both rates are unknown and unlike, so they
  are in the posterior; there is no proof of an optimal number of rollouts.
* They ask at the posterior's median. With unlike error rates the median is not the most telling place, and prefixes differ in cost (a
  late one leaves less to write), so we ask by expected information per expected token, one step ahead.
* They ask one question at a time. Requests are answered in rounds, so a few rollouts are chosen together, greedily by what each
  adds to the information of the batch.
* Their answers are independent. Prefixes differ in ways that no curve knows, so rollouts of one prefix are correlated
  (`spread`); without this the confidence is too high.
* OmegaPRM calls a prefix right if any of k rollouts succeeds, and halves; one lucky recovery decides. Here it is evidence
  like any other.
* They always end with an answer. We abstain when the budget ends first; the evidence stays.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Annotated, Literal, final

import numpy as np
from pydantic import Field

from stepmark.batching import Method, together
from stepmark.errors import UsageError
from stepmark.labels.labelling import Cost, Labelling, Probe, Rollouts, judged_until, probe
from stepmark.labels.posterior import LARGEST_BATCH, Floats, Posterior, RatePrior, choose_batch, information
from stepmark.labels.rollout import count_steps, labelled, own_answer
from stepmark.records import LabelledSolution, Solution, Verdict
from stepmark.settings import settings

Root = tuple[int, int]
"""(successes, trials) of whole solutions of a problem."""


@final
@settings
class BayesianSearch:
    """The first error of a wrong-answer solution by Bayesian search; see the module."""

    name: str = "bayes"
    """Who judged, in the output; "bayes:MODEL" says with which policy."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Stop when one place has this much of the posterior."""
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = 2
    """Rollouts a round, 1 to 8. Fewer spend fewer tokens, more need fewer rounds."""
    max_rollouts: Annotated[int, Field(ge=1)] = 64
    """End of the budget; never exceeded."""
    max_tokens_a_solution: Annotated[int, Field(ge=1)] | None = None
    """End of the budget in written tokens: no round starts at or past it, so the last round may pass it."""
    least_bits: Annotated[float, Field(ge=0)] = 0.0
    """Give up when the best rollout promises fewer bits for each solution's length that it writes; 0 never, 0.1 soon."""
    at_budget: Literal["abstain", "guess"] = "abstain"
    """When the budget or the promise ends below `confidence`: name no place, or the likeliest with the confidence that it has."""
    root: Annotated[int, Field(ge=0)] = 0
    """Rollouts of the bare problem in the first round. Solutions of one problem share them, so their price is paid once a problem."""
    sound: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Prior probability that no step is wrong. Default: 0 where the answer is wrong, else one step's share."""
    prior: RatePrior = field(default_factory=RatePrior)
    """What is believed of the success rates."""
    how: Rollouts = field(default_factory=Rollouts)
    """How rollouts are sampled."""

    def __post_init__(self) -> None:
        if self.root > self.max_rollouts:
            raise UsageError(
                f"`root` {self.root}: expected at most `max_rollouts`, which is {self.max_rollouts}"
            )

    def label(self, solution: Solution, *, root: Root | None = None) -> Method[Labelling]:
        """Find the first error.

        A solution that ends in the right answer is not searched: rollouts say nothing about a wrong step that did no harm. Its
        `first_error` is None, and it is no abstention.

        Args:
            solution: whose problem has a reference answer.
            root: (successes, trials) of whole solutions that the same policy wrote for this problem, where known: evidence
                about its rate before any error.

        Returns:
            `first_error`, or an abstention. `confidence` is the posterior probability of the likeliest place either way; that of a
            step called right is the probability that the first error comes later. Evidence is one `value` judgement a
            prefix tried; that of the bare problem stands under `root`, without what was given as `root`.

        Raises:
            InputError: no reference answer, no steps, or the policy cannot read a prefix.
            UsageError: `root` is no count, or `max_tokens_a_solution` is set and the policy does not count tokens.
        """
        steps = count_steps(solution)
        if root is not None and not 0 <= root[0] <= root[1]:
            raise UsageError(f"root must be (successes, trials), found {root!r}")
        verdict: Verdict = yield own_answer(solution)
        found: dict[int, Probe] = {}
        if verdict.correct:
            return self._unsaid(solution, verdict, found, Cost())
        places = self._places(steps, readable=verdict.correct is not None)
        posterior = Posterior(steps, self.prior, places)
        if root is not None:
            posterior.update(0, root[0], root[1] - root[0])
        costs = expected_costs(solution)
        if places[-1] == 0:
            # Nothing can be learnt where all places agree that the prefix is broken.
            costs[-1] = math.inf
        cost = Cost()
        plan = [0] * self.root
        while plan or posterior.places.max() < self.confidence:
            left = self.max_rollouts - cost.rollouts
            spent = left <= 0 or self._tokens_spent(cost)
            if spent or not (plan or self._promising(posterior, costs)):
                if self.at_budget == "guess":
                    break
                return self._unsaid(
                    solution, verdict, found, cost, abstained=True, confidence=float(posterior.places.max())
                )
            if not plan:
                plan = choose_batch(posterior.places, posterior.chances, costs, min(self.batch, left))
            counts = {prefix: plan.count(prefix) for prefix in sorted(set(plan))}
            probes = yield from together(
                [
                    probe(
                        solution,
                        prefix,
                        count,
                        self.how,
                        first=found[prefix].cost.rollouts if prefix in found else 0,
                    )
                    for prefix, count in counts.items()
                ]
            )
            for one in probes:
                posterior.update(one.steps, one.successes, one.trials - one.successes)
                found[one.steps] = found[one.steps].joined(one) if one.steps in found else one
                cost += one.cost
            plan = []
        return self._said(solution, verdict, found, cost, posterior.places)

    def _places(self, steps: int, *, readable: bool) -> Floats:
        none = self.sound if self.sound is not None else 0.0 if readable else 1 / (steps + 1)
        return np.append(np.full(steps, (1 - none) / steps), none)

    def _promising(self, posterior: Posterior, costs: Floats) -> bool:
        if not self.least_bits:
            return True
        return bool((information(posterior.places, posterior.chances) / costs).max() >= self.least_bits)

    def _tokens_spent(self, cost: Cost) -> bool:
        if self.max_tokens_a_solution is None:
            return False
        if cost.tokens is None:
            raise UsageError(
                "`max_tokens_a_solution` needs a policy that counts its tokens; set `max_rollouts` instead"
            )
        return cost.tokens >= self.max_tokens_a_solution

    def _said(
        self, solution: Solution, own: Verdict, found: dict[int, Probe], cost: Cost, places: Floats
    ) -> Labelling:
        steps = len(solution.steps)
        place = int(np.argmax(places))
        first_error = -1 if place == steps else place
        # A step is right if the place is any later one, which is likelier than that it is this very one.
        later = 1 - np.cumsum(places)
        evidence = self._evidence(solution, own, found)
        judgements = tuple(
            known
            + tuple(
                replace(
                    said, confidence=float(places[step] if step == first_error else min(1.0, later[step]))
                )
                for said in conclusion
            )
            for step, (known, conclusion) in enumerate(
                zip(evidence.judgements, judged_until(first_error, steps, self.name), strict=True)
            )
        )
        return Labelling(
            labelled=replace(evidence, judgements=judgements),
            method=self.name,
            first_error=first_error,
            confidence=float(places[place]),
            cost=cost,
        )

    def _unsaid(
        self,
        solution: Solution,
        own: Verdict,
        found: dict[int, Probe],
        cost: Cost,
        *,
        abstained: bool = False,
        confidence: float | None = None,
    ) -> Labelling:
        return Labelling(
            labelled=self._evidence(solution, own, found),
            method=self.name,
            first_error=None,
            confidence=confidence,
            abstained=abstained,
            cost=cost,
        )

    def _evidence(self, solution: Solution, own: Verdict, found: dict[int, Probe]) -> LabelledSolution:
        values: dict[int, Probe | Verdict] = dict(sorted(found.items()))
        if own.correct is not None:
            values[len(solution.steps)] = own
        return labelled(solution, values, self.name, None)


def expected_costs(solution: Solution) -> Floats:
    """How long a continuation from each prefix will be: what is left of this solution, and a step.

    The step stands for what every continuation costs, however late.

    Returns:
        (M + 1,): characters, as shares of the solution's; each above 0.
    """
    lengths = np.array([max(len(step.text), 1) for step in solution.steps], dtype=np.float64)
    left = np.append(np.cumsum(lengths[::-1])[::-1], 0.0)
    costs: Floats = (left + lengths.mean()) / lengths.sum()
    return costs
