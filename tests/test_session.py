"""Sessions against whole-prefix scoring, in every family: steps, whole solutions, bare tokens; memory, branches, what is counted."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import LOG_RATIOS, STEPWISE, load_family
from stepmark.backends import Release, ScoreRequest, StepScore
from stepmark.errors import (
    BackendError,
    CheckpointError,
    InputError,
    MarkerInTextError,
    TooLongError,
    UsageError,
)
from stepmark.models.engine import KeyValuePool
from stepmark.models.families import FAMILIES
from stepmark.models.generative import GENERATIVE, generative_prm
from stepmark.models.prm import PRM
from stepmark.models.scripted import ScriptedPolicy
from stepmark.models.session import CachedSession, Text
from stepmark.records import Solution, StepScores

torch.set_num_threads(1)

WORDS = [
    "12 * 3 = 36 pens",
    "so x = 6",
    "36 - 6 = 30",
    "Let x be 4.\n\nThen 2x = 8",
    "é is 1",
    "the train needs 4 hours",
]


def step(rng, number):
    return f"{rng.choice(WORDS)} ({number})"


def let_go(session, prefixes):
    """Give prefixes back."""
    session.release([Release(problem=p, prefixes=(steps,)) for p, steps in prefixes], None)


def grow(session, seed, *, rounds=5, width=6, keep=3, problems=2):
    """A search at random: extend, keep some, release the others; every (problem, steps, score) that it received."""
    rng = random.Random(seed)
    beams = {f"How many pens are left of {p}?": [()] for p in range(problems)}
    received = []
    for number in range(rounds):
        asked = [
            Solution.of(problem, (*prefix, step(rng, number if rng.random() < 0.7 else 0)))
            for problem, prefixes in beams.items()
            for prefix in prefixes
            for _ in range(width // len(prefixes))
        ]
        replies = session.score_last(asked)
        received += [
            (one.problem.text, one.texts, reply.score) for one, reply in zip(asked, replies, strict=True)
        ]
        let_go(session, [(problem, prefix) for problem, prefixes in beams.items() for prefix in prefixes])
        for problem in beams:
            mine = list(dict.fromkeys(one.texts for one in asked if one.problem.text == problem))
            rng.shuffle(mine)
            beams[problem] = mine[:keep]
            let_go(session, [(problem, prefix) for prefix in mine[keep:]])
    let_go(session, [(problem, prefix) for problem, prefixes in beams.items() for prefix in prefixes])
    return received


@pytest.mark.parametrize("name", STEPWISE)
def test_a_session_scores_as_whole_prefixes_do(zoo, name):
    prm = load_family(zoo, name)
    session = prm.open_session()
    assert session.reason == ""
    told = grow(session, seed=1)
    assert len(told) == 5 * 2 * 6
    fresh = load_family(zoo, name)
    # Log-ratios are in thousandths here (beta is 0.001), and parity is asked of the ratio itself.
    unit = 0.001 if name in LOG_RATIOS else 1.0
    for problem, steps, score in told:
        assert score / unit == pytest.approx(
            fresh.score(problem, steps=list(steps))[-1] / unit, abs=1e-4, rel=0
        )
    scores = {round(score / unit, 6) for _, _, score in told}
    assert len(scores) > 20  # they differ, so that parity means something
    assert prm.ledger.tokens_computed == prm.ledger.tokens_distinct < prm.ledger.tokens_in / 2


def test_every_family_is_incremental_or_says_why_it_is_not(zoo):
    assert {*STEPWISE, "orm"} == set(FAMILIES)
    for name in GENERATIVE:
        session = generative_prm(name, ScriptedPolicy([])).open_session()
        assert session.reason == "a generative PRM writes about the whole solution each time"
    assert Counting().open_session().reason.startswith("its keys and values are out of reach")
    for outcome in (
        load_family(zoo, "orm"),
        load_family(zoo, "qwen-prm", outcome=True),
    ):
        assert outcome.open_session().reason == "an outcome model gives a whole solution one score"


@pytest.mark.parametrize("name", ["qwen-prm", "math-shepherd"])
def test_nothing_is_computed_twice_and_everything_is_given_back(zoo, name):
    prm = load_family(zoo, name)
    session = prm.open_session()
    told = grow(session, seed=2)
    prefixes = set()
    whole = 0
    for problem, steps, _ in told:
        ids = prm.encoder.encode(_solution(problem, steps)).ids.tolist()
        whole += len(ids)
        prefixes |= {tuple(ids[:n]) for n in range(1, len(ids) + 1)}
    assert prm.ledger.tokens_in == whole
    assert prm.ledger.tokens_again == 0
    assert prm.ledger.tokens_computed == prm.ledger.tokens_distinct
    # A branch may be dropped and asked for again, which costs again; so at least the distinct prefixes, and little more.
    assert len(prefixes) <= prm.ledger.tokens_computed <= 1.1 * len(prefixes)
    assert session.pool.held == 0


def test_a_small_memory_forgets_reads_again_and_counts_it(zoo):
    roomy, tight = load_family(zoo, "qwen-prm"), load_family(zoo, "qwen-prm")
    expected = grow(roomy.open_session(), seed=3, rounds=6, problems=3)
    room = roomy.encoder.encode(_solution(*expected[-1][:2])).ids.size + 40
    session = tight.open_session(memory_tokens=room)
    found = grow(session, seed=3, rounds=6, problems=3)
    assert [f[:2] for f in found] == [e[:2] for e in expected]
    assert [f[2] for f in found] == pytest.approx([e[2] for e in expected], abs=1e-4)
    assert tight.ledger.tokens_again > 0
    assert tight.ledger.tokens_computed == tight.ledger.tokens_distinct + tight.ledger.tokens_again
    assert session.pool.peak <= session.pool.capacity
    assert session.pool.held <= session.pool.capacity


def test_a_step_that_cannot_be_read_costs_the_others_nothing(zoo):
    prm = load_family(zoo, "qwen-prm")
    steps = ["x = 6", "<extra_0>", "  ", "word " * 5000, "x = 7"]
    replies = prm.open_session().score_last([Solution.of("p", (one,)) for one in steps])
    assert [type(reply) for reply in replies] == [
        StepScore,
        MarkerInTextError,
        InputError,
        TooLongError,
        StepScore,
    ]
    assert replies[0].score == pytest.approx(prm.score("p", steps=["x = 6"])[0], abs=1e-5)
    with pytest.raises(UsageError, match="at least one token"):
        CachedSession(prm, memory_tokens=0)
    (small,) = CachedSession(prm, memory_tokens=3).score_last([Solution.of("p", ("x = 6",))])
    assert isinstance(small, TooLongError)
    assert "more memory" in str(small)


@pytest.mark.parametrize("name", ["qwen-prm", "reasoneval", "implicit"])
def test_a_model_that_gives_nan_is_an_error(zoo, name):
    prm = load_family(zoo, name)
    backbone = prm.engines[-1].backbone
    with torch.no_grad():
        backbone.norm.weight.fill_(float("nan"))
    session = prm.open_session()
    with pytest.raises(CheckpointError, match="NaN or an infinity"):
        session.score_last([Solution.of("p", ("x = 6",))])


class Counting(PRM):
    """A PRM that scores a step by its length, or gives too few scores."""

    name, score_kind, default_aggregate, default_threshold = "counting", "unbounded", "min", None

    def __init__(self, short=False):
        self.read, self.short = 0, short

    def score_many(self, solutions, *, keep_going=False):
        for solution in solutions:
            self.read += len(solution.steps)
            scores = tuple(float(len(t)) for t in solution.texts)
            yield StepScores(scores=scores[: -1 if self.short else None], kind="unbounded")


def test_others_read_whole_prefixes_and_say_so():
    prm = Counting()
    asked = [ScoreRequest(problem="p", steps=("abc",)), ScoreRequest(problem="p", steps=("abc", "de"))]
    found = prm.open_session().score(asked, lambda index, reply: None)
    assert [reply.score for reply in found] == [3.0, 2.0]
    assert prm.read == 3
    with pytest.raises(BackendError, match="0 scores"):
        Counting(short=True).open_session().score(asked[:1], lambda index, reply: None)


def _solution(problem, steps):
    return Solution.of(problem, tuple(steps))


# ---- whole solutions and bare tokens -------------------------------------------------------------------------


def solutions(seed, count, *, problems=3, most=4):
    rng = random.Random(seed)
    return [
        Solution.of(
            f"How many pens are left of {rng.randrange(problems)}?",
            [f"{rng.choice(WORDS)} ({i if rng.random() < 0.7 else 0})" for i in range(rng.randint(1, most))],
        )
        for _ in range(count)
    ]


def every(session, prm, asked):
    """Whole solutions from a session."""
    encoded = [prm.encoder.encode(one) for one in asked]
    reads = session.answer([Text.of(one) for one in encoded])
    return [session.scores(one, read) for one, read in zip(encoded, reads, strict=True)]


def same(found, expected, unit=1.0):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, StepScores)
        assert [s is None for s in one.scores] == [s is None for s in other.scores]
        assert [s / unit for s in one.scores if s is not None] == pytest.approx(
            [s / unit for s in other.scores if s is not None], abs=1e-5 if unit == 1.0 else 1e-4, rel=0
        )
        assert (one.kind, one.class_names) == (other.kind, other.class_names)
        assert (one.problem_tokens, one.solution_tokens) == (other.problem_tokens, other.solution_tokens)
        assert (one.classes is None) == (other.classes is None)
        for mine, theirs in zip(one.classes or (), other.classes or (), strict=True):
            assert (mine is None) == (theirs is None)
            assert mine is None or mine == pytest.approx(theirs, abs=1e-5)


def distinct(prm, asked):
    """Prefixes of tokens among all of them, up to the last that is read."""
    texts = [prm.encoder.encode(one).ids.tolist() for one in asked]
    return len({tuple(ids[:n]) for ids in texts for n in range(1, len(ids) + 1)})


@pytest.mark.parametrize("name", STEPWISE)
def test_whole_solutions_score_as_the_prm_does_and_cost_what_is_new(zoo, name):
    prm, fresh = load_family(zoo, name), load_family(zoo, name)
    asked = solutions(1, 24)
    expected = list(fresh.score_many(asked))
    session = CachedSession(prm, memory_tokens=10_000)
    order = list(range(24))
    random.Random(2).shuffle(order)
    found = {}
    for start in range(0, 24, 5):
        part = order[start : start + 5]
        found |= dict(zip(part, every(session, prm, [asked[i] for i in part]), strict=True))
    # Log-ratios are in thousandths here (beta is 0.001), and parity is asked of the ratio itself.
    same([found[i] for i in range(24)], expected, 0.001 if name.startswith("implicit") else 1.0)
    assert (
        len({s for one in expected for s in one.scores}) > 10
    )  # they differ, so that parity means something
    ledger = prm.ledger
    assert ledger.tokens_computed == ledger.tokens_distinct == distinct(prm, asked)
    assert ledger.tokens_in == sum(len(prm.encoder.encode(one).ids) for one in asked)
    assert ledger.tokens_again == 0
    assert (ledger.solutions, ledger.steps) == (24, sum(len(one.steps) for one in asked))
    before = ledger.tokens_computed
    same(every(session, prm, asked), expected, 0.001 if name.startswith("implicit") else 1.0)
    assert ledger.tokens_computed == before  # all of it is still there


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(["reasoneval", "implicit-per-step"]))
def test_steps_solutions_and_releases_in_any_order(loaded, seed, batch, name):
    """Whatever was asked and released before: one tree gives what each would get alone."""
    prm, alone, known = loaded[name]
    rng = random.Random(seed)
    unit = 0.001 if name.startswith("implicit") else 1.0
    session = CachedSession(prm, memory_tokens=rng.choice([150, 10_000]))
    asked_of = solutions(seed % 7, 12)
    for _ in range(4):
        steps, whole = [], []
        for _ in range(batch):
            solution = rng.choice(asked_of)
            if rng.random() < 0.5:
                whole.append(solution)
            else:
                cut = rng.randint(1, len(solution.steps))
                steps.append(Solution.of(solution.problem.text, solution.texts[:cut]))
        for one in (*steps, *whole):
            if one not in known:
                (known[one],) = alone.score_many([one])
        same(every(session, prm, whole), [known[one] for one in whole], unit)
        for one, reply in zip(steps, session.score_last(steps), strict=True):
            assert reply.score / unit == pytest.approx(known[one].scores[-1] / unit, abs=1e-4)
        let_go(session, rng.sample(sorted(session.prefixes), min(2, len(session.prefixes))))
        assert session.pool.held <= session.pool.capacity


@pytest.fixture(scope="module")
def loaded(zoo):
    return {
        name: (load_family(zoo, name), load_family(zoo, name), {})
        for name in ("reasoneval", "implicit-per-step")
    }


def test_a_failure_half_way_leaves_nothing_that_could_be_read(zoo, monkeypatch):
    """Slots that were taken and not filled would give plausible scores of whatever lies there."""
    prm, alone = load_family(zoo, "qwen-prm"), load_family(zoo, "qwen-prm")
    session = CachedSession(prm, memory_tokens=10_000)
    asked = solutions(6, 8)
    first = Solution.of(asked[0].problem.text, asked[0].texts[:1])
    (early,) = session.score_last([first])
    write = KeyValuePool.write
    monkeypatch.setattr(KeyValuePool, "write", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        every(session, prm, asked)
    monkeypatch.setattr(KeyValuePool, "write", write)
    same(every(session, prm, asked), list(alone.score_many(asked)))
    # A prefix from before is read anew.
    longer = Solution.of(first.problem.text, (*first.texts, "so x = 6"))
    (later,) = session.score_last([longer])
    (truth,) = alone.score_many([longer])
    assert [early.score, later.score] == pytest.approx(list(truth.scores), abs=1e-5)
