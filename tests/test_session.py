"""Scoring sessions against whole-prefix scoring, in every family with a head; memory, branches, what is counted."""

from __future__ import annotations

import random

import pytest
import torch

from stepmark import load_prm
from stepmark.batching import Score
from stepmark.errors import (
    BackendError,
    CheckpointError,
    InputError,
    MarkerInTextError,
    TooLongError,
    UsageError,
)
from stepmark.models.engine import KeyValuePool
from stepmark.models.grading import Grader
from stepmark.models.session import CachedSession, Extended, root_of
from stepmark.records import Problem, Step, StepScores

torch.set_num_threads(1)

HEADS = {
    "qwen-prm": None,
    "skywork": None,
    "math-shepherd": "math-shepherd",
    "rlhflow": "rlhflow",
    "token-classification": None,
    "token-classification-bos": None,
    "versaprm": "versaprm",
    "reasoneval": None,
    "reasoneval-34b": "reasoneval-34b",
    "actprm": None,
    "three-class": "three-class",
    "reasonflux-prm": "reasonflux-prm",
    "pure": "pure",
}
SAME_CHECKPOINT = {"reasonflux-prm": "qwen-prm", "pure": "token-classification"}
LOG_RATIOS = ("implicit", "implicit-per-step")
WORDS = [
    "12 * 3 = 36 pens",
    "so x = 6",
    "36 - 6 = 30",
    "Let x be 4.\n\nThen 2x = 8",
    "é is 1",
    "the train needs 4 hours",
]


def load(zoo, name):
    if name in LOG_RATIOS:
        built = zoo["implicit"]
        return load_prm(
            str(built.folder),
            family=name,
            reference=str(built.reference.folder),
            dtype="float32",
            device="cpu",
        )
    return load_prm(
        str(zoo[SAME_CHECKPOINT.get(name, name)].folder),
        family=HEADS.get(name),
        dtype="float32",
        device="cpu",
    )


def step(rng, number):
    return Step(text=f"{rng.choice(WORDS)} ({number})")


def grow(session, seed, *, rounds=5, width=6, keep=3, problems=2):
    """A search at random: extend, keep some, drop the others; every (problem, steps, score) that it was told."""
    rng = random.Random(seed)
    beams = [[root_of(Problem(text=f"How many pens are left of {p}?"))] for p in range(problems)]
    told = []
    for number in range(rounds):
        asked = [
            (place, step(rng, number if rng.random() < 0.7 else 0))
            for places in beams
            for place in places
            for _ in range(width // len(places))
        ]
        found = session.extend(asked)
        assert len(found) == len(asked)
        for (place, added), result in zip(asked, found, strict=True):
            assert isinstance(result, Extended)
            assert result.place.solution.steps == (*place.solution.steps, added)
            told.append((result.place.solution.problem.text, result.place.solution.texts, result.score))
        session.drop(place for places in beams for place in places)
        beams = []
        for p in range(problems):
            mine = [r.place for r in found if r.place.solution.problem.text.endswith(f" {p}?")]
            rng.shuffle(mine)
            beams.append(mine[:keep])
            session.drop(mine[keep:])
    session.drop(place for places in beams for place in places)
    return told


@pytest.mark.parametrize("name", [*HEADS, *LOG_RATIOS])
def test_a_session_scores_as_whole_prefixes_do(zoo, name):
    prm = load(zoo, name)
    session = prm.open_session()
    assert session.reason == ""
    told = grow(session, seed=1)
    assert len(told) == 5 * 2 * 6
    fresh = load(zoo, name)
    # Log-ratios are in thousandths here (beta is 0.001), and parity is asked of the ratio itself.
    unit = 0.001 if name in LOG_RATIOS else 1.0
    for problem, steps, score in told:
        assert score / unit == pytest.approx(fresh.score(problem, list(steps))[-1] / unit, abs=1e-4, rel=0)
    scores = {round(score / unit, 6) for _, _, score in told}
    assert len(scores) > 20  # they differ, so that parity means something
    assert prm.ledger.tokens_computed == prm.ledger.tokens_distinct < prm.ledger.tokens_in / 2


def test_every_family_is_incremental_or_says_why_it_is_not(zoo):
    from stepmark.models.families import FAMILIES
    from stepmark.models.generative import GENERATIVE, generative_prm
    from stepmark.models.policies.scripted import ScriptedPolicy

    tested = {load(zoo, name).spec.family for name in [*HEADS, *LOG_RATIOS]}
    assert tested == set(FAMILIES) - {"orm"}
    for name in GENERATIVE:
        session = generative_prm(name, ScriptedPolicy([])).open_session()
        assert session.reason == "a generative PRM writes about the whole solution each time"
    assert Counting().open_session().reason.startswith("its keys and values are out of reach")
    for outcome in (
        load_prm(str(zoo["orm"].folder), dtype="float32", device="cpu"),
        load_prm(str(zoo["qwen-prm"].folder), outcome=True, dtype="float32", device="cpu"),
    ):
        assert outcome.open_session().reason == "an outcome model gives a whole solution one score"


@pytest.mark.parametrize("name", LOG_RATIOS)
def test_a_small_memory_changes_no_log_ratio(zoo, name):
    roomy, tight = load(zoo, name), load(zoo, name)
    expected = grow(roomy.open_session(), seed=3, rounds=4)
    session = tight.open_session(memory_tokens=max(len(_ids(roomy, *told[:2])) for told in expected) + 10)
    tight.policy[0].token_budget = 7
    found = grow(session, seed=3, rounds=4)
    assert tight.ledger.tokens_again > 0
    assert [f[2] / 0.001 for f in found] == pytest.approx([e[2] / 0.001 for e in expected], abs=1e-4)


@pytest.mark.parametrize("name", ["qwen-prm", "math-shepherd"])
def test_nothing_is_computed_twice_and_everything_is_given_back(zoo, name):
    prm = load(zoo, name)
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
    assert session.cache._child == {}


def test_a_small_memory_forgets_reads_again_and_counts_it(zoo):
    roomy, tight = load(zoo, "qwen-prm"), load(zoo, "qwen-prm")
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


def test_a_text_that_was_forgotten_and_is_read_again_from_its_parent_counts_as_again(zoo):
    """What is asked for is a step after a place that never had it; that the session had read it is known all the same."""
    prm = load(zoo, "qwen-prm")
    root = Problem(text="p"), Problem(text="How many are left of the pens that were bought in the morning?")
    steps = [Step(text="x = 6"), Step(text="the train needs 4 hours (2)")]
    lengths = [len(_ids(prm, problem.text, (step.text,))) for problem, step in zip(root, steps, strict=True)]
    session = prm.open_session(memory_tokens=max(lengths) + 1)
    for _ in range(3):  # each forgets the other
        for problem, step in zip(root, steps, strict=True):
            (found,) = session.extend([(root_of(problem), step)])
            assert isinstance(found, Extended)
    both = {tuple(_ids(prm, p.text, (s.text,))[:n]) for p, s, count in zip(root, steps, lengths, strict=True) for n in range(1, count + 1)}  # fmt: skip
    ledger = prm.ledger
    assert ledger.tokens_distinct == len(both)
    assert ledger.tokens_again == ledger.tokens_computed - len(both) > 0
    assert session.cache.evicted > 0


def test_what_was_forgotten_is_itself_forgotten_in_the_end(zoo, monkeypatch):
    monkeypatch.setattr("stepmark.models.engine._FEWEST_GHOSTS", 0)
    prm = load(zoo, "qwen-prm")
    asked = [(f"{i} pens are in box {i}. How many are there?", f"There are {i} pens.") for i in range(10, 30)]
    room = max(len(_ids(prm, problem, (step,))) for problem, step in asked)
    session = prm.open_session(memory_tokens=room)
    counts = []
    for problem, step in asked:
        (found,) = session.extend([(root_of(Problem(text=problem)), Step(text=step))])
        assert isinstance(found, Extended)
        counts.append(len(session.cache._ghosts))
    assert session.cache.evicted > 4 * room
    assert max(counts) == 4 * room


def test_a_text_that_is_the_beginning_of_another_is_read_there(zoo):
    """No token is computed for it, and nothing that hangs on it is forgotten."""
    from stepmark.models.engine import Known, PrefixCache

    prm = load(zoo, "qwen-prm")
    cache = PrefixCache([prm.engine], capacity=100, states=True)
    ids = _ids(prm, "p", ("x = 6", "so x = 6"))
    whole = cache.hold([Known(ids=ids)])
    assert (whole.computed, whole.again) == (len(ids), 0)
    short = cache.hold([Known(ids=ids[:-4])])
    assert short.computed == 0
    assert short.slots[0].tolist() == whole.slots[0][:-4].tolist()
    alone = PrefixCache([prm.engine], capacity=100, states=True)
    [slots] = alone.hold([Known(ids=ids[:-4])]).slots
    torch.testing.assert_close(cache.states(short.slots[0][-1:]), alone.states(slots[-1:]))


def test_chunks_of_the_engine_change_nothing(zoo):
    whole, cut = load(zoo, "qwen-prm"), load(zoo, "qwen-prm")
    cut.engine.token_budget = 7
    expected, found = (grow(prm.open_session(), seed=4) for prm in (whole, cut))
    assert [f[2] for f in found] == pytest.approx([e[2] for e in expected], abs=1e-5)
    assert cut.ledger.tokens_computed == whole.ledger.tokens_computed


def test_the_same_step_twice_is_computed_once_and_dropped_twice(zoo):
    prm = load(zoo, "qwen-prm")
    session = prm.open_session()
    root = root_of(Problem(text="p"))
    one, other = session.extend([(root, Step(text="x = 6")), (root, Step(text="x = 6"))])
    assert one.score == other.score
    computed = prm.ledger.tokens_computed
    (third,) = session.extend([(root, Step(text="x = 6"))])
    assert third.score == pytest.approx(one.score, abs=1e-6)
    assert prm.ledger.tokens_computed == computed
    session.drop([one.place, other.place])
    assert session.pool.held > 0
    (longer,) = session.extend([(third.place, Step(text="so 2x = 12"))])
    assert isinstance(longer, Extended)
    session.drop([third.place])
    assert session.pool.held > 0
    session.drop([longer.place])
    assert session.pool.held == 0


def test_a_step_that_cannot_be_read_costs_the_others_nothing(zoo):
    prm = load(zoo, "qwen-prm")
    session = prm.open_session()
    root = root_of(Problem(text="p"))
    found = session.extend(
        [
            (root, Step(text="x = 6")),
            (root, Step(text="<extra_0>")),
            (root, Step(text="  ")),
            (root, Step(text="word " * 5000)),
            (root, Step(text="x = 7")),
        ]
    )
    assert [type(f) for f in found] == [Extended, MarkerInTextError, InputError, TooLongError, Extended]
    assert found[0].score == pytest.approx(prm.score("p", ["x = 6"])[0], abs=1e-5)
    with pytest.raises(UsageError, match="at least one token"):
        CachedSession(prm, memory_tokens=0)
    (small,) = CachedSession(prm, memory_tokens=3).extend([(root, Step(text="x = 6"))])
    assert isinstance(small, TooLongError)
    assert "give it more memory" in str(small)


def test_what_a_tool_answered_is_read_before_the_next_step(zoo):
    prm = load(zoo, "qwen-prm")
    session = prm.open_session()
    (first,) = session.extend([(root_of(Problem(text="p")), Step(text="look", observation="it is 5"))])
    (second,) = session.extend([(first.place, Step(text="so 5"))])
    (whole,) = load(zoo, "qwen-prm").score_many([second.place.solution])
    assert [first.score, second.score] == pytest.approx(list(whole.scores), abs=1e-4)


def test_three_classes_come_along(zoo):
    prm = load(zoo, "reasoneval")
    session = prm.open_session()
    (found,) = session.extend([(root_of(Problem(text="p")), Step(text="x = 6"))])
    (whole,) = load(zoo, "reasoneval").score_many([found.place.solution])
    assert found.classes == pytest.approx(whole.classes[0], abs=1e-5)


@pytest.mark.parametrize("name", ["qwen-prm", "reasoneval", "implicit"])
def test_a_model_that_gives_nan_is_an_error(zoo, name):
    prm = load(zoo, name)
    backbone = prm.engine.backbone if name not in LOG_RATIOS else prm.reference[0].backbone
    with torch.no_grad():
        backbone.norm.weight.fill_(float("nan"))
    session = prm.open_session()
    with pytest.raises(CheckpointError, match="NaN or an infinity"):
        session.extend([(root_of(Problem(text="p")), Step(text="x = 6"))])


class Counting(Grader):
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
    asked = [Score(problem="p", steps=("abc",)), Score(problem="p", steps=("abc", "de"))]
    found = prm.open_session().score(asked, lambda index, reply: None)
    assert [reply.score for reply in found] == [3.0, 2.0]
    assert prm.read == 3
    with pytest.raises(BackendError, match="0 scores for 1 steps"):
        Counting(short=True).open_session().score(asked[:1], lambda index, reply: None)


def test_the_pool_keeps_what_is_written_while_it_grows():
    pool = KeyValuePool(5000)
    held = {}
    rng = random.Random(0)
    for round_ in range(200):
        if held and rng.random() < 0.4:
            slot = rng.choice(list(held))
            pool.give([slot])
            del held[slot]
            continue
        slots = pool.take(rng.randint(1, 60))
        assert not set(slots.tolist()) & set(held)
        values = (
            torch.full((1, 2, len(slots), 3), float(round_))
            + torch.arange(len(slots))[None, None, :, None] / 100
        )
        pool.write(slots, {0: (values, -values)})
        held |= {int(s): float(values[0, 0, i, 0]) for i, s in enumerate(slots)}
        assert pool.held == len(held)
    import numpy as np

    slots = np.asarray(sorted(held))
    key, value = pool.read(slots)[0]
    assert key.shape == (1, 2, len(slots), 3)
    torch.testing.assert_close(key[0, 1, :, 2], torch.tensor([held[s] for s in slots.tolist()]))
    torch.testing.assert_close(value, -key)
    with pytest.raises(ValueError, match="has room for"):
        pool.take(5001)


def _ids(prm, problem, steps):
    """The tokens of a prefix up to where its last step is read."""
    encoded = prm.encoder.encode(_solution(problem, steps))
    return encoded.ids[: encoded.reads[-1] + 1]


def _solution(problem, steps):
    from stepmark.records import Solution

    return Solution.of(problem, tuple(steps))
