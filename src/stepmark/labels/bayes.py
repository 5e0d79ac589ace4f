"""The first error by Bayesian search.

Rollouts from a sound prefix often reach the right answer, rollouts from a broken one seldom. Neither rate is known. The labeller keeps one joint
posterior over the place of the first error and both rates, spends the next rollouts where they tell most about the place per expected token,
and stops when one place is likely enough.

Sources: noisy binary search with a Bayesian posterior: Burnashev and Zigangirov (1974), Ben-Or and Hassidim (FOCS 2008), Dereniowski,
Lukasiewicz and Uznanski (arXiv 2107.05753); first errors of model-written solutions by rollout: OmegaPRM (arXiv 2406.06592). Deviations:

* Those searches know how often a comparison errs, alike on both sides. Here both rates are in the posterior; no number of rollouts is proven optimal.
* They ask at the posterior's median. Here a batch is chosen greedily by expected information per expected token, one step ahead.
* Their answers are independent. Rollouts of one prefix are correlated (`spread`); without this the confidence is too high.
* OmegaPRM calls a prefix right if any of k rollouts succeeds. Here that is evidence like any other.
* They always end with an answer. Here the labeller abstains when the budget ends first; the evidence stays.

The model. A solution of M steps has its first wrong step at place e in 0..M-1; e = M stands for no wrong step. A prefix of t steps is
*sound* when t <= e, else *broken*. Its rollouts succeed at the rate

* sound: g ** (1 - r * t / M). g is the rate of the bare problem; r is how much of the way to certainty the prefix brings, in 0..1.
* broken: b * d ** (t - e - 1). b is the rate of recovery right after the error, d what is left of it after each further step.

The posterior is kept on a grid of (e, g, r, b, d). A prefix's own rate is Beta-distributed around the curve with `spread` pseudo-rollouts, so its
rollouts are a Polya urn whose next draw succeeds with probability (spread * rate + successes) / (spread + trials).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from stepmark.backends import Completing, Verifying, all_of
from stepmark.errors import UsageError
from stepmark.labels.labelling import Cost, LabellerNeeds, Labelling, Probe, Rollouts, judged_until, probe
from stepmark.labels.rollout import count_steps, labelled, own_answer
from stepmark.records import Solution, Verdict
from stepmark.settings import settings
from stepmark.words import amount

Floats: TypeAlias = NDArray[np.float64]

_FINE = 200
# At r = 1 a whole sound solution would be right for certain, and one failure would then exclude it.
_SUREST = 0.999
LARGEST_BATCH = 8
"""A batch of n is chosen over its 2**n outcomes."""

_Positive = Annotated[float, Field(gt=0)]


@settings
class RatePrior:
    """What is believed of the success rates before any rollout."""

    sound: tuple[_Positive, _Positive] = (1.0, 1.0)
    """Beta(a, b) of g, the rate of the bare problem."""
    broken: tuple[_Positive, _Positive] = (1.0, 9.0)
    """Beta(a, b) of b, the rate right after an error; only rates below g count."""
    rises: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] = (0.0, 0.5, 1.0)
    """Values of r, equally likely."""
    decays: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0, 0.6)
    """Values of d, equally likely."""
    spread: _Positive = 10.0
    """Pseudo-rollouts that hold a prefix's own rate to the curve; `inf` for exactly on it."""
    nodes: Annotated[int, Field(ge=2)] = 20
    """Grid points for g and for b each."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RateGrid:
    """A prior on its grid, for solutions of M steps."""

    sound: Floats
    """(M + 1, K): rate of a sound prefix of t steps at each of the K pairs (g, r)."""
    broken: Floats
    """(M, J): rate of a broken prefix that goes on for 0..M-1 steps after the error, at each of the J pairs (b, d)."""
    weight: Floats
    """(K, J): prior probability of each pair, 0 where b is not below g; sums to 1."""


def rate_nodes(nodes: int) -> tuple[Floats, Floats]:
    """(nodes,) grid points in (0, 1) and the (nodes + 1,) edges of their cells, equally far apart in arcsin(sqrt(p)).

    In that scale a rollout tells equally much everywhere (Jeffreys), so rates near 0, where recovery lives, are fine enough.
    """
    angle = np.linspace(0.0, np.pi / 2, nodes + 1)
    return np.sin((angle[1:] + angle[:-1]) / 2) ** 2, np.sin(angle) ** 2


def beta_masses(a: float, b: float, nodes: int) -> Floats:
    """The share of Beta(a, b) in each cell of `rate_nodes(nodes)`; (nodes,), sums to 1."""
    # In the angle x, p = sin(x)^2, the density is sin^(2a-1) cos^(2b-1): finite enough for midpoints down to a = .5.
    x = (np.arange(nodes * _FINE) + 0.5) * (np.pi / 2 / (nodes * _FINE))
    log = (2 * a - 1) * np.log(np.sin(x)) + (2 * b - 1) * np.log(np.cos(x))
    mass: Floats = np.exp(log - log.max()).reshape(nodes, _FINE).sum(axis=1)
    shares: Floats = mass / mass.sum()
    return shares


@lru_cache(maxsize=256)
def rate_grid(prior: RatePrior, steps: int) -> RateGrid:
    """The prior on its grid; made once for each length and shared."""
    rate, _ = rate_nodes(prior.nodes)
    power = 1 - np.outer(np.arange(steps + 1) / steps, prior.rises)
    sound = np.minimum(rate[None, :, None] ** power[:, None, :], _SUREST)
    weight = np.outer(beta_masses(*prior.sound, prior.nodes), beta_masses(*prior.broken, prior.nodes))
    weight = np.where(rate[None, :] < rate[:, None], weight, 0.0)
    pairs = len(prior.rises) * len(prior.decays)
    weight = np.repeat(weight / weight.sum() / pairs, len(prior.rises), axis=0)
    remains = np.power.outer(np.array(prior.decays), np.arange(steps)).T
    broken = rate[None, :, None] * remains[:, None, :]
    return RateGrid(
        sound=sound.reshape(steps + 1, -1),
        broken=broken.reshape(steps, -1),
        weight=np.repeat(weight, len(prior.decays), axis=1),
    )


@final
class Posterior:
    """The joint posterior over place and rates, brought up to date by counts.

    `places` is the prior probability of each place, (M + 1,), the last that of no error; None: an error, all places alike.

    Raises:
        UsageError: no steps, or `places` is no distribution over M + 1 places.
    """

    def __init__(self, steps: int, prior: RatePrior, places: Floats | None = None) -> None:
        if steps < 1:
            raise UsageError(f"a posterior needs at least 1 step, found {steps}")
        if places is None:
            places = np.append(np.full(steps, 1 / steps), 0.0)
        if places.shape != (steps + 1,) or (places < 0).any() or not np.isclose(places.sum(), 1):
            raise UsageError(
                f"places must be {amount(steps + 1, 'probability', 'probabilities')} that sum to 1, found {places}"
            )
        self.steps = steps
        self.successes = np.zeros(steps + 1)
        self.trials = np.zeros(steps + 1)
        self._grid = rate_grid(prior, steps)
        self._spread = prior.spread
        with np.errstate(divide="ignore"):
            self._places = np.log(places)
        # Log-likelihood of all counts at sound prefixes, and of those at broken ones, were each place the place.
        self._sound = np.zeros((steps + 1, self._grid.sound.shape[1]))
        self._broken = np.zeros((steps + 1, self._grid.broken.shape[1]))

    def update(self, prefix: int, successes: int, failures: int) -> None:
        """Enter rollouts from the prefix of so many steps, 0..M; the order of updates does not matter."""
        # Sound if the place is no earlier than the prefix is long; else broken for the longer, the earlier the place.
        sound, broken = self._grid.sound[prefix], self._grid.broken[:prefix][::-1]
        self._sound[prefix:] += self._urn_log(sound, prefix, successes, failures)
        self._broken[:prefix] += self._urn_log(broken, prefix, successes, failures)
        self.successes[prefix] += successes
        self.trials[prefix] += successes + failures
        for name in ("_beliefs", "places", "chances"):
            self.__dict__.pop(name, None)

    @cached_property
    def places(self) -> Floats:
        """(M + 1,): the probability that the first wrong step is step e; the last is that of none."""
        return self._beliefs[0]

    @cached_property
    def chances(self) -> Floats:
        """(M + 1, M + 1): row e, column t: the probability that the next rollout from t steps succeeds if e is the place."""
        _, sound, broken = self._beliefs
        place, prefix = np.ogrid[: self.steps + 1, : self.steps + 1]
        after = broken @ self._grid.broken.T
        rate = np.where(
            prefix <= place, sound @ self._grid.sound.T, after[place, np.maximum(prefix - place - 1, 0)]
        )
        return self._urn(rate, self.successes, self.trials)

    @cached_property
    def _beliefs(self) -> tuple[Floats, Floats, Floats]:
        """Probability of each place; of (g, r) given the place (M + 1, K); of (b, d) given the place (M + 1, J)."""
        top_sound, top_broken = self._sound.max(axis=1), self._broken.max(axis=1)
        sound = np.exp(self._sound - top_sound[:, None])
        broken = np.exp(self._broken - top_broken[:, None])
        broken_joint = (sound @ self._grid.weight) * broken
        sound_joint = (broken @ self._grid.weight.T) * sound
        evidence = broken_joint.sum(axis=1)
        with np.errstate(divide="ignore"):
            log = np.log(evidence) + top_sound + top_broken + self._places
        places = np.exp(log - log.max())
        # A place under which the counts are impossible to double precision has no rates to speak of, nor any weight.
        whole = np.where(evidence > 0, evidence, 1.0)[:, None]
        return places / places.sum(), sound_joint / whole, broken_joint / whole

    def _urn_log(self, rate: Floats, prefix: int, successes: int, failures: int) -> Floats:
        """Log-probability of further rollouts from a prefix, in any one order."""
        won, tried = self.successes[prefix], self.trials[prefix]
        log = np.zeros_like(rate)
        for success in [True] * successes + [False] * failures:
            chance = self._urn(rate, won, tried)
            log += np.log(chance if success else 1 - chance)
            won, tried = won + success, tried + 1
        return log

    def _urn(self, rate: Floats, won: Floats | float, tried: Floats | float) -> Floats:
        if np.isinf(self._spread):
            return rate
        drawn: Floats = (self._spread * rate + won) / (self._spread + tried)
        return drawn


def entropy_bits(probability: Floats) -> Floats:
    """Entropy of a coin, in bits, elementwise; 0 at 0 and 1."""
    p = np.clip(probability, 1e-300, 1.0)
    q = np.clip(1 - probability, 1e-300, 1.0)
    bits: Floats = -(p * np.log2(p) + q * np.log2(q))
    return bits


def choose_batch(places: Floats, chances: Floats, costs: Floats, count: int) -> list[int]:
    """Prefixes to roll out together, in the order of choosing; one may come several times.

    Each is the one that adds most to the batch's information per cost, over all outcomes, taken as independent given the place. (They
    share unknown rates too, which this leaves out.) `places` is (E,), `chances` (E, T), the probability of a success given the place, `costs` (T,),
    above 0, `inf` for a prefix not to be tried; `count` is 1 to `LARGEST_BATCH`.
    """
    if not 1 <= count <= LARGEST_BATCH:
        raise UsageError(f"a batch has 1 to {LARGEST_BATCH} rollouts, found {count}")
    live = places > 0
    weight, chance = places[live], chances[live]
    single = weight @ entropy_bits(chance)
    outcomes = weight[:, None]
    picked: list[int] = []
    for _ in range(count):
        # Probability of each outcome so far followed by a success, by a failure: (T, outcomes).
        all_of_it = outcomes.sum(axis=0)
        success = chance.T @ outcomes
        failure = all_of_it - success
        gains = _plogp(all_of_it).sum() - _plogp(success).sum(axis=1) - _plogp(failure).sum(axis=1) - single
        best = int(np.argmax(gains / costs))
        picked.append(best)
        with_it = outcomes * chance[:, best, None]
        outcomes = np.concatenate([with_it, outcomes - with_it], axis=1)
    return picked


def _plogp(p: Floats) -> Floats:
    safe = np.maximum(p, 1e-300)
    return safe * np.log2(safe)


@final
@settings
class BayesianSearch:
    """The first error by Bayesian search; fewest tokens."""

    needs: ClassVar[LabellerNeeds] = LabellerNeeds(policy="required", texts=("rollout", "rollouts"))

    name: str = "bayes"
    """Name of the judge in the output; "bayes:MODEL" names the policy."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Stop when one place has this much of the posterior."""
    batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = 2
    """Rollouts a round, 1 to 8. Fewer spend fewer tokens, more need fewer rounds."""
    max_rollouts: Annotated[int, Field(ge=1)] = 64
    """End of the budget; never exceeded."""
    at_budget: Literal["abstain", "guess"] = "abstain"
    """When the budget ends below `confidence`: name no place, or the likeliest with the confidence that it has."""
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

    async def label(self, solution: Solution, policy: Completing, verifier: Verifying) -> Labelling:
        """Find the first error; a solution that ends in the right answer is not searched: its `first_error` is None, and it is no abstention.

        `confidence` is the posterior probability of the likeliest place; that of a step called right is the probability that the first error
        comes later.

        Raises:
            InputError: no reference answer, no steps, or the policy cannot read a prefix.
        """
        steps = count_steps(solution)
        verdict = await own_answer(solution, verifier)
        probes: dict[int, Probe] = {}
        cost = Cost()

        if verdict.correct:
            return self._conclude(solution, verdict, probes, cost, None)
        places = self._places(steps, readable=verdict.correct is not None)
        posterior = Posterior(steps, self.prior, places)
        costs = expected_costs(solution)
        if places[-1] == 0:
            # Nothing can be learnt where all places agree that the prefix is broken.
            costs[-1] = math.inf
        plan = [0] * self.root
        while plan or posterior.places.max() < self.confidence:
            budget = self.max_rollouts - cost.rollouts
            if budget <= 0:
                if self.at_budget == "guess":
                    break
                evidence = self._conclude(solution, verdict, probes, cost, None)
                return replace(evidence, abstained=True, confidence=float(posterior.places.max()))
            if not plan:
                plan = choose_batch(posterior.places, posterior.chances, costs, min(self.batch, budget))
            counts = {prefix: plan.count(prefix) for prefix in sorted(set(plan))}
            written = {prefix: len(probes[prefix].texts) if prefix in probes else 0 for prefix in counts}
            round_ = await all_of(
                probe(solution, prefix, count, self.how, policy, verifier, first=written[prefix])
                for prefix, count in counts.items()
            )
            for probed in round_:
                posterior.update(probed.steps, probed.successes, probed.trials - probed.successes)
                probes[probed.steps] = (
                    probes[probed.steps].joined(probed) if probed.steps in probes else probed
                )
                cost += probed.cost
            plan = []
        return self._conclude(solution, verdict, probes, cost, posterior.places)

    def _places(self, steps: int, *, readable: bool) -> Floats:
        none = self.sound if self.sound is not None else 0.0 if readable else 1 / (steps + 1)
        return np.append(np.full(steps, (1 - none) / steps), none)

    def _conclude(
        self,
        solution: Solution,
        own: Verdict,
        probes: dict[int, Probe],
        cost: Cost,
        places: Floats | None,
    ) -> Labelling:
        """The labelling by the posterior over the places; without one, the evidence alone."""
        steps = len(solution.steps)
        values: dict[int, Probe | Verdict] = dict(sorted(probes.items()))
        if own.correct is not None:
            values[steps] = own
        evidence = labelled(solution, values, self.name, None)
        first_error: int | None = None
        sure: float | None = None
        if places is not None:
            place = int(np.argmax(places))
            first_error, sure = (-1 if place == steps else place), float(places[place])
            # A step is right if the place is any later one, which is likelier than that it is this very one.
            later = 1 - np.cumsum(places)
            judgements = []
            for step, conclusion in enumerate(judged_until(first_error, steps, self.name)):
                share = float(places[step] if step == first_error else min(1.0, later[step]))
                concluded = (replace(judgement, confidence=share) for judgement in conclusion)
                judgements.append((*evidence.judgements[step], *concluded))
            evidence = replace(evidence, judgements=tuple(judgements))
        return Labelling(
            labelled=evidence,
            method=self.name,
            first_error=first_error,
            confidence=sure,
            cost=cost,
        )


def expected_costs(solution: Solution) -> Floats:
    """How long a continuation from each prefix will be: (M + 1,) characters, as shares of the solution's; each above 0.

    What is left of this solution, and a step, which stands for what every continuation costs, however late.
    """
    lengths = np.array([max(len(step.text), 1) for step in solution.steps], dtype=np.float64)
    remaining = np.append(np.cumsum(lengths[::-1])[::-1], 0.0)
    costs: Floats = (remaining + lengths.mean()) / lengths.sum()
    return costs
