"""Whole solutions and bare tokens from a session's tree, against `PRM.score_many`; what is computed, what is kept."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark import load_prm
from stepmark.errors import CheckpointError, InputError, MarkerInTextError, TooLongError, UsageError
from stepmark.models.encoding import mark_token, marked
from stepmark.models.engine import KeyValuePool
from stepmark.models.session import CachedSession, Extended, NextStep, TokenRows, WholeSolution, root_of
from stepmark.records import Problem, Solution, Step, StepScores

torch.set_num_threads(1)

FAMILIES = {
    "qwen-prm": None,
    "skywork": None,
    "math-shepherd": "math-shepherd",
    "rlhflow": "rlhflow",
    "token-classification-bos": None,
    "reasoneval": None,
    "actprm": None,
    "three-class": "three-class",
    "implicit": "implicit",
    "implicit-per-step": "implicit-per-step",
}
WORDS = ["12 * 3 = 36 pens", "so x = 6", "36 - 6 = 30", "Let x be 4.\n\nThen 2x = 8", "é is 1"]


def load(zoo, name, **more):
    if name.startswith("implicit"):
        built = zoo["implicit"]
        more["reference"] = str(built.reference.folder)
    else:
        built = zoo[name]
    return load_prm(str(built.folder), family=FAMILIES[name], dtype="float32", device="cpu", **more)


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
    """Whole solutions from a session; refusals in their places."""
    requests = []
    for one in asked:
        try:
            encoded = prm.encoder.encode(one) if isinstance(one, Solution) else one
            requests.append(WholeSolution(encoded=encoded))
        except InputError as error:
            requests.append(error)
    return session.answer(requests)


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


@pytest.mark.parametrize("name", FAMILIES)
def test_whole_solutions_score_as_the_prm_does_and_cost_what_is_new(zoo, name):
    prm, fresh = load(zoo, name), load(zoo, name)
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
    assert ledger.tokens_computed == before  # nothing was pinned, and all of it is still there


@pytest.mark.parametrize("name", ["qwen-prm", "three-class", "implicit", "implicit-per-step"])
def test_steps_past_the_limit_have_no_score(zoo, name):
    prm, fresh = (load(zoo, name, truncate=True) for _ in range(2))
    limit = len(prm.encoder.encode(Solution.of("p", ["so x = 6"])).ids) + 40
    prm.encoder.max_tokens = fresh.encoder.max_tokens = limit
    asked = [
        Solution.of("p", ["so x = 6", *["36 - 6 = 30"] * 12]),
        Solution.of("p", ["so x = 6"]),
        Solution.of("p", ["x = 6 " * 60, "so x = 6"]),
    ]
    expected = list(fresh.score_many(asked))
    assert [sum(s is None for s in one.scores) for one in expected][1:] == [0, 2]
    assert 0 < sum(s is None for s in expected[0].scores) < 13
    session = CachedSession(prm, memory_tokens=1000)
    found = every(session, prm, asked)
    same(found[:2], expected[:2], 0.001 if name.startswith("implicit") else 1.0)
    assert found[2].scores == (None, None)
    (step,) = session.extend([(root_of(Problem(text="p")), Step(text="x = 6 " * 60))])
    assert isinstance(step, TooLongError)
    assert session.pool.peak <= 2 * limit


def test_small_memory_forgets_and_changes_nothing(zoo):
    prm, fresh = load(zoo, "qwen-prm"), load(zoo, "qwen-prm")
    asked = solutions(3, 30)
    longest = max(len(prm.encoder.encode(one).ids) for one in asked)
    session = CachedSession(prm, memory_tokens=longest + 20)
    same(every(session, prm, asked), list(fresh.score_many(asked)))
    assert session.pool.peak <= session.pool.capacity == longest + 20
    assert prm.ledger.tokens_again > 0
    (small,) = every(CachedSession(prm, memory_tokens=3), prm, asked[:1])
    assert isinstance(small, TooLongError)
    assert "the session keeps 3" in str(small)


def test_what_cannot_be_read_costs_the_others_nothing(zoo):
    prm = load(zoo, "qwen-prm")
    session = CachedSession(prm, memory_tokens=1000)
    good = Solution.of("p", ["so x = 6"])
    bad = [Solution.of("p", ["<extra_0>"]), Solution.of(" ", ["x"]), Solution.of("p", ["word " * 5000])]
    found = every(session, prm, [bad[0], good, *bad[1:], prm.encoder.encode(good)])
    assert [type(f) for f in found] == [
        MarkerInTextError,
        StepScores,
        InputError,
        TooLongError,
        StepScores,
    ]
    assert found[1] == found[4]
    assert prm.ledger.solutions == 2
    assert every(session, prm, []) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from(["reasoneval", "implicit-per-step"]))
def test_steps_solutions_and_drops_in_any_order(loaded, seed, batch, name):
    """Whatever is asked together, and whatever was dropped between: one tree gives what each would get alone."""
    prm, alone, known = loaded[name]
    rng = random.Random(seed)
    unit = 0.001 if name.startswith("implicit") else 1.0
    session = CachedSession(prm, memory_tokens=rng.choice([150, 10_000]))
    places = []
    asked_of = solutions(seed % 7, 12)
    for _ in range(4):
        asked, truth = [], []
        for _ in range(batch):
            solution = rng.choice(asked_of)
            if rng.random() < 0.5:
                asked.append(WholeSolution(encoded=prm.encoder.encode(solution)))
            else:
                cut = rng.randint(1, len(solution.steps))
                solution = Solution.of(solution.problem.text, solution.texts[:cut])
                before = [p for p in places if p.solution.texts == solution.texts[:-1]]
                before = [p for p in before if p.solution.problem == solution.problem]
                start = before[0] if before and rng.random() < 0.7 else root_of(solution.problem)
                from dataclasses import replace

                asked.append(
                    NextStep(place=replace(start, solution=solution), encoded=prm.encoder.encode(solution))
                )
            key = (solution.problem.text, solution.texts)
            if key not in known:
                (known[key],) = alone.score_many([solution])
            truth.append(known[key])
        for one, other in zip(session.answer(asked), truth, strict=True):
            if isinstance(one, Extended):
                assert one.score / unit == pytest.approx(other.scores[-1] / unit, abs=1e-4)
                places.append(one.place)
            else:
                same([one], [other], unit)
        rng.shuffle(places)
        gone, places = places[:2], places[2:]
        session.drop(gone)
        assert session.pool.held <= session.pool.capacity
    session.drop(places)


@pytest.fixture(scope="module")
def loaded(zoo):
    return {name: (load(zoo, name), load(zoo, name), {}) for name in ("reasoneval", "implicit-per-step")}


@pytest.mark.parametrize("name", ["qwen-prm", "three-class", "actprm", "skywork"])
def test_rows_are_the_heads_logits(zoo, name):
    prm = load(zoo, name)
    session = CachedSession(prm, memory_tokens=1000)
    (solution,) = solutions(5, 1)
    encoded = prm.encoder.encode(solution)
    reads = np.asarray(encoded.reads)
    places = np.arange(len(encoded.ids))
    at_steps, at_all, none = session.answer(
        [
            TokenRows(ids=encoded.ids, positions=reads),
            TokenRows(ids=encoded.ids, positions=places),
            TokenRows(ids=encoded.ids, positions=places[:0]),
        ]
    )
    states = prm.engine.backbone(
        input_ids=torch.from_numpy(encoded.ids)[None],
        position_ids=torch.from_numpy(places)[None],
        use_cache=False,
        stepmark_plan=plan_of(len(places)),
    ).last_hidden_state[0]
    expected = prm.head(states.detach().float())
    torch.testing.assert_close(at_all, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(at_steps, expected[torch.from_numpy(reads)], atol=1e-5, rtol=1e-4)
    assert len(none) == 0
    assert prm.ledger.tokens_computed == len(encoded.ids)


def plan_of(count):
    from stepmark.models.attention import Plan

    return Plan.of_cached(np.arange(count), np.full(count, count), 0, "cpu")


def test_rows_of_what_is_no_token_or_has_no_head(zoo):
    prm = load(zoo, "qwen-prm")
    session = CachedSession(prm, memory_tokens=1000)
    one = np.zeros(1, dtype=np.int64)
    found = session.answer([TokenRows(ids=np.asarray([token]), positions=one) for token in (-1, 10**7, 5)])
    assert [type(f) for f in found] == [InputError, InputError, torch.Tensor]
    assert "10000000 is none of the model's" in str(found[1])
    with pytest.raises(UsageError, match="it has no head"):
        CachedSession(load(zoo, "implicit"), memory_tokens=9).answer([TokenRows(ids=one, positions=one)])


def test_a_failure_holds_nothing(zoo):
    prm = load(zoo, "qwen-prm")
    root, steps = root_of(Problem(text="p")), [Step(text="so x = 6"), Step(text="36 - 6 = 30")]
    room = max(len(prm.encoder.encode(Solution(problem=Problem(text="p"), steps=(s,))).ids) for s in steps)
    session = CachedSession(prm, memory_tokens=room)
    head = prm.head
    calls = []

    def failing(rows):
        calls.append(len(rows))
        return head(rows) * (float("nan") if len(calls) == 2 else 1.0)

    prm.head = failing
    with pytest.raises(CheckpointError, match="NaN or an infinity"):
        session.extend([(root, step) for step in steps])
    assert len(calls) == 2  # the first group was done, and its place was held
    (again,) = session.extend([(root, Step(text="so x = 6"))])
    session.drop([again.place])
    assert session.pool.held == 0


def test_a_tokenizer_of_another_checkpoint(zoo):
    prm = load(zoo, "qwen-prm")
    session = CachedSession(prm, memory_tokens=100)
    session._vocabulary = 3
    with pytest.raises(CheckpointError, match="not of one checkpoint"):
        every(session, prm, [Solution.of("p", ["x"])])


def test_marks_are_found_where_steps_are_read_or_not_at_all(zoo):
    """Over every family: the mark's positions are the encoder's reads, or there is no mark and every token has a row."""
    told = {}
    for name in FAMILIES:
        prm = load(zoo, name)
        mark = mark_token(prm.encoder)
        told[name] = mark is not None
        for solution in solutions(8, 4):
            encoded = prm.encoder.encode(solution)
            found = marked(encoded.ids, mark).tolist()
            assert found == (list(encoded.reads) if mark is not None else list(range(len(encoded.ids))))
    assert told["qwen-prm"]
    assert not told["reasoneval"]
    assert not told["skywork"]


def test_a_failure_half_way_leaves_nothing_that_could_be_read(zoo, monkeypatch):
    """Slots that were taken and not filled would give plausible scores of whatever lies there."""
    prm, alone = load(zoo, "qwen-prm"), load(zoo, "qwen-prm")
    session = CachedSession(prm, memory_tokens=10_000)
    asked = solutions(6, 8)
    (early,) = session.extend([(root_of(asked[0].problem), asked[0].steps[0])])
    write = KeyValuePool.write
    monkeypatch.setattr(KeyValuePool, "write", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        every(session, prm, asked)
    monkeypatch.setattr(KeyValuePool, "write", write)
    same(every(session, prm, asked), list(alone.score_many(asked)))
    # A place from before is read anew, and giving it back takes nothing from others.
    held = session.pool.held
    (later,) = session.extend([(early.place, Step(text="so x = 6"))])
    (truth,) = alone.score_many([later.place.solution])
    assert [early.score, later.score] == pytest.approx(list(truth.scores), abs=1e-5)
    session.drop([early.place])
    assert session.pool.held >= held
