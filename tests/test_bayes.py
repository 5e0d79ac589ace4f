"""The Bayesian search for the first error: its mathematics against plain enumeration, its conduct in scripted worlds."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.backends import Completion
from stepmark.errors import UsageError
from stepmark.labels.bayes import (
    BayesianSearch,
    Posterior,
    RatePrior,
    beta_masses,
    choose_batch,
    expected_costs,
    rate_grid,
    rate_nodes,
)
from stepmark.labels.labellers import label
from stepmark.labels.rollout import OWN_ANSWER
from stepmark.models.scripted import ScriptedPolicy
from stepmark.records import Problem, Solution, Step, Verdict

# With two nodes only one pair has b below g, so the search knows its noise: a coin that lies with probability (1 - 1/sqrt 2) / 2.
LIE = (1 - math.sqrt(0.5)) / 2
KNOWN = RatePrior(nodes=2, rises=(0.0,), decays=(1.0,), spread=math.inf)


# The prior


@pytest.mark.parametrize("b", [1.0, 2.0, 14.0])
def test_masses_of_beta_1_b_are_the_closed_form(b):
    _, edges = rate_nodes(12)
    assert beta_masses(1.0, b, 12) == pytest.approx(np.diff(1 - (1 - edges) ** b), abs=1e-5)


def test_rates_by_hand():
    grid = rate_grid(RatePrior(nodes=2, rises=(0.0, 1.0), decays=(1.0, 0.5)), 2)
    low, high = LIE, 1 - LIE
    # Columns: (low, r=0), (low, r=1), (high, r=0), (high, r=1); a whole sound solution at r=1 is all but certain to be right.
    assert grid.sound == pytest.approx(
        np.array([[low, low, high, high], [low, low**0.5, high, high**0.5], [low, 0.999, high, 0.999]])
    )
    # Columns: (low, d=1), (low, d=1/2), (high, d=1), (high, d=1/2); rows: right after the error, one step later.
    assert grid.broken == pytest.approx(np.array([[low, low, high, high], [low, low / 2, high, high / 2]]))
    # Only low is below high.
    assert grid.weight == pytest.approx(np.array([[0, 0, 0, 0]] * 2 + [[0.25, 0.25, 0, 0]] * 2))


# The posterior


def test_one_rollout_by_hand():
    posterior = Posterior(2, KNOWN)
    posterior.update(1, 1, 0)
    assert posterior.places == pytest.approx([LIE, 1 - LIE, 0])
    posterior.update(1, 1, 0)
    odds = ((1 - LIE) / LIE) ** 2
    assert posterior.places == pytest.approx([1 / (1 + odds), odds / (1 + odds), 0])
    posterior.update(1, 0, 2)
    assert posterior.places == pytest.approx([0.5, 0.5, 0])


def _log_urn(rate, won, lost, spread):
    if math.isinf(spread):
        return won * math.log(rate) + lost * math.log(1 - rate)
    a, b = rate * spread, (1 - rate) * spread
    return (
        math.lgamma(a + won)
        - math.lgamma(a)
        + math.lgamma(b + lost)
        - math.lgamma(b)
        + math.lgamma(spread)
        - math.lgamma(spread + won + lost)
    )


def _enumerated(steps, prior, counts):
    """Places and chances by plain loops over every (e, g, r, b), with the closed form of the urn."""
    rates = [math.sin((i + 0.5) * math.pi / 2 / prior.nodes) ** 2 for i in range(prior.nodes)]
    good, bad = (beta_masses(*law, prior.nodes) for law in (prior.sound, prior.broken))
    joint, means = {}, {}
    for e in range(steps):
        for (i, g), (j, b), r, d in itertools.product(
            enumerate(rates), enumerate(rates), prior.rises, prior.decays
        ):
            if b >= g:
                continue
            curve = [
                min(g ** (1 - r * t / steps), 0.999) if t <= e else b * d ** (t - e - 1)
                for t in range(steps + 1)
            ]
            log = sum(_log_urn(curve[t], *counts[t], prior.spread) for t in counts)
            weight = good[i] * bad[j] * math.exp(log)
            joint[e] = joint.get(e, 0.0) + weight
            means.setdefault(e, np.zeros(steps + 1))
            means[e] += weight * np.array(curve)
    total = sum(joint.values())
    chances = []
    for e in range(steps):
        mean = means[e] / joint[e]
        for t, (won, lost) in counts.items():
            if not math.isinf(prior.spread):
                mean[t] = (prior.spread * mean[t] + won) / (prior.spread + won + lost)
        chances.append(mean)
    return np.array([joint[e] / total for e in range(steps)]), np.array(chances)


@given(
    steps=st.integers(1, 5),
    seen=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=5),
    spread=st.sampled_from([1.5, 10.0, math.inf]),
    rises=st.sampled_from([(0.0,), (0.0, 0.5, 1.0), (0.3, 0.9)]),
    decays=st.sampled_from([(1.0,), (1.0, 0.5), (0.7,)]),
)
@settings(max_examples=60, deadline=None)
def test_the_posterior_is_what_enumeration_gives(steps, seen, spread, rises, decays):
    prior = RatePrior(nodes=5, spread=spread, rises=rises, decays=decays, sound=(2.0, 1.5))
    posterior, counts = Posterior(steps, prior), {}
    for prefix, won, lost in seen:
        prefix %= steps  # noqa: PLW2901
        posterior.update(prefix, won, lost)
        before = counts.get(prefix, (0, 0))
        counts[prefix] = (before[0] + won, before[1] + lost)
    places, chances = _enumerated(steps, prior, counts)
    assert posterior.places[:steps] == pytest.approx(places, rel=1e-6, abs=1e-12)
    assert posterior.chances[:steps] == pytest.approx(chances, rel=1e-6, abs=1e-12)


def test_much_evidence_does_not_underflow():
    posterior = Posterior(20, RatePrior(spread=math.inf))
    posterior.update(3, 300, 100)
    posterior.update(4, 0, 400)
    assert int(posterior.places.argmax()) == 3
    assert posterior.places.sum() == pytest.approx(1)
    assert np.isfinite(posterior.chances).all()


# What a rollout tells


def _batch_information(places, chances, batch):
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=len(batch)):
        given_place = [
            math.prod(row[t] if won else 1 - row[t] for t, won in zip(batch, outcome, strict=True))
            for row in chances
        ]
        marginal = sum(p * q for p, q in zip(places, given_place, strict=True))
        total += sum(
            p * q * math.log2(q / marginal) for p, q in zip(places, given_place, strict=True) if p * q > 0
        )
    return total


@given(
    rows=st.lists(st.tuples(*[st.floats(0.02, 0.98)] * 4), min_size=2, max_size=4),
    costs=st.tuples(*[st.floats(0.5, 2)] * 3),
)
@settings(max_examples=40, deadline=None)
def test_a_batch_is_the_greedy_one(rows, costs):
    places = np.array([row[0] for row in rows])
    places /= places.sum()
    chances, prices = np.array([row[1:] for row in rows]), np.array(costs)
    batch = choose_batch(places, chances, prices, 3)
    for length in range(3):
        before = _batch_information(places, chances, batch[:length])
        worth = [
            (_batch_information(places, chances, [*batch[:length], t]) - before) / prices[t] for t in range(3)
        ]
        assert worth[batch[length]] == pytest.approx(max(worth), abs=1e-9)


def test_later_prefixes_cost_less():
    solution = Solution(
        problem=Problem(text="?"), steps=tuple(Step(text=text) for text in ("aaaa", "bb", "cccccc"))
    )
    assert expected_costs(solution) == pytest.approx([16 / 12, 1.0, 10 / 12, 4 / 12])


# The search, in scripted worlds


def _solution(steps, *, answer="0", name="s", gold="1"):
    texts = [f"{name}: step {number}" for number in range(steps - 1)] + [
        f"#### {answer}" if answer else "and so on"
    ]
    return Solution(
        problem=Problem(text=f"problem {name}", answer=gold),
        steps=tuple(Step(text=text) for text in texts),
        id=name,
    )


def _draw(*parts):
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class World:
    """A policy that succeeds from t steps with probability rates(t), by the sample's number, and its verifier."""

    def __init__(self, rates, *, seed=0, unparsed=0.0, tokens=10):
        self.written = []

        def write(request, number):
            steps = request.prefill.count("\n")
            self.written.append((request.prompt, steps, number))
            if _draw(seed, "unparsed", request.prefill, number) < unparsed:
                return Completion(text="dunno", finish="end", tokens=tokens)
            won = _draw(seed, request.prefill, number) < rates(steps)
            return Completion(text=f"#### {int(won)}", finish="end", tokens=tokens)

        self.policy = ScriptedPolicy(write=write)

    def label(self, labeller, *solutions):
        return list(label(solutions, labeller, self.policy, _Last()))


class _Last:
    """The verifier of those worlds: the text after the last "#### "."""

    identity = "last"

    async def verify(self, answer, gold):
        _, found, last = answer.rstrip().rpartition("#### ")
        outcome = "unparsed" if not found else "match" if last == gold else "mismatch"
        return Verdict(outcome=outcome, verifier="last")


def _perfect(error):
    return World(lambda steps: 1.0 if steps <= error else 0.0)


def test_a_clean_world_that_is_known_to_be_clean_takes_about_log2_rollouts():
    # A Beta(200, 1) leaves 1 rollout in 200 to chance: four right answers single out one place of 16.
    prior = RatePrior(sound=(200.0, 1.0), broken=(1.0, 200.0), spread=math.inf)
    labeller = BayesianSearch(batch=1, prior=prior)
    found = [_perfect(error).label(labeller, _solution(16))[0] for error in range(16)]
    assert [one.first_error for one in found] == list(range(16))
    rollouts = [one.cost.rollouts for one in found]
    # Late prefixes are cheaper, so it asks there first: fewer rollouts for late places, more for early ones.
    assert sum(rollouts) / 16 <= 5.5
    assert max(rollouts) <= 8


@pytest.mark.parametrize("error", [0, 1, 7, 14, 15])
def test_a_clean_world_that_is_not_known_to_be_so_takes_a_few_more(error):
    [found] = _perfect(error).label(BayesianSearch(batch=1), _solution(16))
    assert found.first_error == error
    assert found.cost.rollouts <= 24


def test_evidence_and_conclusions_stand_at_their_steps():
    world = _perfect(5)
    [found] = world.label(BayesianSearch(), _solution(10))
    assert found.first_error == 5
    assert not found.abstained
    assert found.method == "bayes"
    assert 0.9 <= found.confidence <= 1
    sure = [one.confidence for step in found.labelled.judgements for one in step if one.kind == "correctness"]
    # That the error comes later than step i grows less likely with i, and is likelier than any one place.
    assert sure[:5] == sorted(sure[:5], reverse=True)
    assert min(sure) == sure[5] == found.confidence
    tried = {}
    for step, judgements in enumerate(found.labelled.judgements):
        for judgement in judgements:
            assert judgement.judge == "bayes"
            if judgement.kind == "value" and judgement.note != OWN_ANSWER:
                tried[step + 1] = (judgement.successes, judgement.trials)
        ratings = [one.rating for one in judgements if one.kind == "correctness"]
        assert ratings == ([1] if step < 5 else [-1] if step == 5 else [])
    asked = [steps for _, steps, _ in world.written]
    assert tried == {
        steps: (asked.count(steps) if steps <= 5 else 0, asked.count(steps)) for steps in set(asked)
    }
    assert found.cost.rollouts == len(asked)
    assert found.cost.tokens == 10 * len(asked)
    assert max(asked) < 10


def test_samples_of_a_prefix_are_numbered_on_and_never_asked_twice():
    world = World(lambda steps: 0.5 if steps <= 3 else 0.1)
    world.label(BayesianSearch(confidence=0.999), _solution(8))
    assert len(set(world.written)) == len(world.written)
    for prefix in {steps for _, steps, _ in world.written}:
        numbers = [number for _, steps, number in world.written if steps == prefix]
        assert numbers == list(range(len(numbers)))


def test_it_abstains_when_the_budget_ends_and_keeps_the_evidence():
    world = World(lambda steps: 0.3)
    [found] = world.label(BayesianSearch(max_rollouts=10), _solution(12))
    assert found.first_error is None
    assert found.abstained
    assert found.confidence < 0.9
    assert found.cost.rollouts == 10
    flat = [one for step in found.labelled.judgements for one in step]
    assert {one.kind for one in flat} == {"value"}
    assert sum(one.trials for one in flat if one.note is None) == 10
    assert [(one.successes, one.trials) for one in flat if one.note == OWN_ANSWER] == [(0, 1)]


@given(rollouts=st.integers(1, 30), batch=st.integers(1, 8), seed=st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_budgets_hold(rollouts, batch, seed):
    world = World(lambda steps: 0.4 if steps <= 6 else 0.2, seed=seed, tokens=7)
    labeller = BayesianSearch(max_rollouts=rollouts, batch=batch, confidence=0.99)
    [found] = world.label(labeller, _solution(12))
    assert found.cost.rollouts == len(world.written) <= rollouts


def test_rollouts_without_a_verdict_are_in_no_count():
    world = World(lambda steps: 1.0 if steps <= 4 else 0.0, unparsed=0.4)
    [found] = world.label(BayesianSearch(), _solution(10))
    assert found.first_error == 4
    values = [one for step in found.labelled.judgements for one in step if one.kind == "value"]
    trials = sum(one.trials for one in values if one.note != OWN_ANSWER)
    assert found.cost.unparsed > 0
    assert trials + found.cost.unparsed == found.cost.rollouts == len(world.written)


def test_a_right_answer_is_not_searched():
    world = _perfect(3)
    [found] = world.label(BayesianSearch(), _solution(6, answer="1"))
    assert not found.abstained
    assert found.first_error is None
    assert found.confidence is None
    assert world.written == []


def test_a_solution_without_an_answer_may_be_sound():
    [sound] = World(lambda steps: 0.9).label(BayesianSearch(), _solution(6, answer=None))
    assert sound.first_error == -1
    assert [
        one.rating for step in sound.labelled.judgements for one in step if one.kind == "correctness"
    ] == [1] * 6
    [wrong] = _perfect(2).label(BayesianSearch(), _solution(6, answer=None))
    assert wrong.first_error == 2
    [never] = World(lambda steps: 0.9).label(BayesianSearch(sound=0.0), _solution(6, answer=None))
    assert never.first_error == 5


def test_rollouts_of_the_bare_problem_are_shared_by_its_solutions():
    world = _perfect(3)
    first = _solution(8)
    second = replace(first, steps=(Step(text="another start"), *first.steps[1:]), id="t")
    results = world.label(BayesianSearch(root=4), first, second)
    assert [found.first_error for found in results] == [3, 3]
    assert [entry for entry in world.written if entry[1] == 0] == [
        (world.written[0][0], 0, n) for n in range(4)
    ]


def test_more_rollouts_of_the_problem_than_of_all():
    with pytest.raises(UsageError, match="`root` 65"):
        BayesianSearch(root=65)


# Is nine in ten nine in ten


@pytest.mark.parametrize(("spread", "seed"), [(math.inf, 1), (10.0, 2)])
def test_the_confidence_is_that_of_the_world_that_it_believes_in(spread, seed):
    """Worlds drawn from the prior: what it says of the places that it names is how often they are right."""
    prior = RatePrior(spread=spread)
    labeller = BayesianSearch(prior=prior, max_rollouts=24, at_budget="guess")
    random = np.random.default_rng(seed)
    said, right = [], []
    for number in range(160):
        steps = int(random.integers(2, 12))
        error = int(random.integers(0, steps))
        broken, sound = 1.0, 0.0
        while broken >= sound:
            sound, broken = random.beta(*prior.sound), random.beta(*prior.broken)
        rise = random.choice(prior.rises)
        rates = np.array(
            [sound ** (1 - rise * t / steps) if t <= error else broken for t in range(steps + 1)]
        )
        if not math.isinf(spread):
            rates = random.beta(np.maximum(rates * spread, 1e-9), np.maximum((1 - rates) * spread, 1e-9))
        world = World(lambda t, rates=rates: rates[t], seed=(seed, number))
        [found] = world.label(labeller, _solution(steps, name=f"s{number}"))
        said.append(found.confidence)
        right.append(found.first_error == error)
    said, right = np.array(said), np.array(right)
    for part in (said >= 0.9, said < 0.9):
        deviation = math.sqrt((said[part] * (1 - said[part])).sum()) / part.sum()
        assert part.sum() > 20
        assert abs(right[part].mean() - said[part].mean()) < 3 * deviation + 1e-9
