"""Best-of-N against brute force over all subsets, hand-worked numbers, and published runs."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.errors import InputError
from stepmark.evaluation.best_of_n import (
    HALVES,
    CandidateSet,
    Counting,
    SampledCandidate,
    can_vote,
    common_sizes,
    coverage,
    items_of,
    method_names,
    statistic,
    subset_sizes,
)
from stepmark.records import ScoreKind, StepScores

DATA = Path(__file__).parents[2] / "shared" / "data" / "best_of_n"


def candidate(
    correct: bool | None,
    scores: tuple[float | None, ...] | None = None,
    *,
    answer: int | None = None,
    kind: ScoreKind = "probability",
    **more: Any,
) -> SampledCandidate:
    steps = None if scores is None else StepScores(scores=scores, kind=kind)
    return SampledCandidate(correct=correct, answer=answer, steps=steps, **more)


def problem(*candidates: SampledCandidate, id: str = "p") -> CandidateSet:
    return CandidateSet(id=id, candidates=candidates)


def of(*sets: CandidateSet, sizes: tuple[int, ...] | None = None, **more: Any) -> dict[str, float]:
    rows = json.loads(json.dumps(items_of(sets, Counting(sizes=sizes, **more)), allow_nan=False))
    return {name: float(value[0]) for name, value in statistic(rows)(np.ones((1, len(sets)))).items()}


# --- An independent computation: enumerate the subsets, choose, break ties by averaging. -----------------------

AGGREGATE = {
    "product": math.prod,
    "min": min,
    "mean": lambda s: sum(s) / len(s),
    "last": lambda s: s[-1],
    "max": max,
}


def brute(one: CandidateSet, method: str, n: int) -> tuple[float, float]:
    """(right, unknown) in expectation; a subset in which nothing can be chosen is neither."""
    total = [0.0, 0.0]
    pool = [c for c in one.candidates if not c.greedy]
    every = list(itertools.combinations(pool, n))
    for subset in every:
        for outcome, value in enumerate(choice(pool, subset, method)):
            total[outcome] += value / len(every)
    return total[0], total[1]


def choice(
    pool: list[SampledCandidate], subset: tuple[SampledCandidate, ...], method: str
) -> tuple[float, float]:
    if method == "oracle":
        right = any(c.correct is True for c in subset)
        return float(right), float(not right and any(c.correct is None for c in subset))
    if method == "majority" or method.startswith("vote "):
        totals: dict[int, float] = {}
        for c in subset:
            weight = 1.0 if method == "majority" else score(c, method[5:])
            if c.answer is not None and weight is not None:
                totals[c.answer] = totals.get(c.answer, 0.0) + weight
        if not totals:
            return 0.0, 0.0
        top = max(totals.values())
        winners = [g for g, t in totals.items() if t >= top - 1e-12 * abs(top)]
        members = [[c for c in pool if c.answer == g] for g in winners]
        return (
            sum(sum(c.correct is True for c in m) / len(m) for m in members) / len(winners),
            sum(sum(c.correct is None for c in m) / len(m) for m in members) / len(winners),
        )
    scored = [(score(c, method[5:]), c) for c in subset]
    known = [(s, c) for s, c in scored if s is not None]
    if not known:
        return 0.0, 0.0
    best = [c for s, c in known if s == max(s for s, _ in known)]
    return (
        sum(c.correct is True for c in best) / len(best),
        sum(c.correct is None for c in best) / len(best),
    )


def score(c: SampledCandidate, how: str) -> float | None:
    if how == "orm":
        return c.outcome
    if c.steps is None or (None in c.steps.scores and how != "last") or c.steps.scores[-1] is None:
        return None
    return AGGREGATE[how](c.steps.scores)


# Few distinct values, so that ties are common; powers of two, so that sums and products are exact in any order.
SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
CANDIDATES = st.builds(
    candidate,
    st.sampled_from([True, False, False, None]),
    st.none() | st.lists(SCORES | st.just(None), min_size=1, max_size=3).map(tuple),
    answer=st.none() | st.integers(0, 3),
    outcome=st.none() | SCORES,
    tokens=st.integers(1, 99),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CANDIDATES, min_size=1, max_size=6))
def test_every_method_equals_brute_force(candidates: list[SampledCandidate]) -> None:
    one = problem(*candidates)
    sizes = tuple(range(1, len(candidates) + 1))
    row = items_of([one], Counting(sizes=sizes))[0]
    checked = 0
    for method, found in row["methods"].items():
        if method == "single" or method.split()[-1] in {"softmin", "sum-logit"}:
            continue
        for at, n in enumerate(sizes):
            expected = brute(one, method, n)
            chosen = found["right"][at], found["unknown"][at]
            assert chosen == pytest.approx(expected, abs=1e-12), (method, n)
            checked += 1
    assert checked >= len(sizes)


@settings(max_examples=30, deadline=None)
@given(st.lists(CANDIDATES, min_size=2, max_size=7), st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_means_nothing(
    candidates: list[SampledCandidate], rng: random.Random
) -> None:
    shuffled = candidates[:]
    rng.shuffle(shuffled)
    a, b = of(problem(*candidates)), of(problem(*shuffled))
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert b[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


# --- Hand-worked numbers. ---------------------------------------------------------------------------------------


def test_votes_by_hand() -> None:
    # Answers A A B, A wrong, B right with a high score.
    one = problem(
        candidate(False, (0.3,), answer=5),
        candidate(False, (0.3,), answer=5),
        candidate(True, (0.9,), answer=2),
    )
    found = of(one, sizes=(1, 2, 3))
    # N = 2: (A A) wrong; (A B) twice: a tie in the majority, B in the weighted vote. N = 3: A; B as .9 > .6.
    assert [found[f"accuracy/majority/{n}"] for n in (1, 2, 3)] == pytest.approx([1 / 3, 1 / 3, 0])
    assert [found[f"accuracy/vote mean/{n}"] for n in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])


def test_unknown_correctness_is_neither_right_nor_wrong() -> None:
    one = problem(candidate(None, (0.9,), answer=0), candidate(True, (0.5,), answer=1), id="a")
    two = problem(candidate(False, (0.9,), answer=0), candidate(True, (0.5,), answer=1), id="b")
    found = of(one, two, sizes=(1, 2))
    # Best of 2: unknown in a, wrong in b: of the one that is known, none is right.
    assert found["accuracy/best min/2"] == 0.0
    assert found["unknown/best min/2"] == 0.5
    # Singles: right, unknown / right, wrong: 2 of the 3 known.
    assert found["accuracy/single/1"] == pytest.approx(2 / 3)
    assert found["unknown/single/1"] == pytest.approx(1 / 4)
    assert found["accuracy/oracle/2"] == 1.0
    rows = items_of([one, two])
    assert "correctness unknown for 1:" in coverage(rows)


def test_the_lead_over_the_majority() -> None:
    one = problem(
        candidate(False, (0.3,), answer=0),
        candidate(True, (0.3,), answer=0),
        candidate(True, (0.9,), answer=1),
    )
    found = of(one, sizes=(3,))
    assert found["over majority/best min/3"] == pytest.approx(1 - 0.5)  # the group of two is half right


def test_the_lead_over_the_outcome_model() -> None:
    """The PRM prefers the right one of two, the outcome model does not tell them apart: half a point between them."""
    two = [
        candidate(True, (0.9, 0.8), answer=0, outcome=0.7),
        candidate(False, (0.9, 0.2), answer=1, outcome=0.7),
    ]
    found = of(problem(*two), sizes=(1, 2))
    assert found["over orm/best min/2"] == pytest.approx(1 - 0.5)
    assert found["over orm/best min/1"] == pytest.approx(0)
    assert "over orm/best orm/2" not in found
    alone = of(problem(*(replace(one, outcome=None) for one in two)), sizes=(2,))
    assert not any(name.startswith("over orm/") for name in alone)


def test_the_lead_at_equal_tokens_by_hand() -> None:
    """Two right of four; each candidate costs 10 tokens to write and 10 to read, and the problem 5 once."""
    four = [
        candidate(right, answer=group, scores=(score,), tokens=10, prm_tokens=10)
        for right, group, score in ((True, 0, 0.9), (True, 0, 0.8), (False, 1, 0.2), (False, 2, 0.1))
    ]
    figures = of(replace(problem(*four), prm_once=5), sizes=(1, 2, 4))
    # Two candidates and their grading cost 45 tokens: more than a tenth beyond the 40 of the largest vote.
    assert math.isnan(figures["over majority at equal tokens/best min/2"])
    # One candidate costs 25 tokens, between votes of two and of four.
    part = math.log(25 / 20) / math.log(2)
    vote = (1 - part) * figures["accuracy/majority/2"] + part * figures["accuracy/majority/4"]
    assert figures["over majority at equal tokens/best min/1"] == pytest.approx(0.5 - vote)


def test_the_lead_at_equal_tokens_where_nothing_was_counted() -> None:
    four = [
        candidate(right, answer=group, scores=(score,))
        for right, group, score in ((True, 0, 0.9), (True, 0, 0.8), (False, 1, 0.2), (False, 1, 0.1))
    ]
    figures = of(problem(*four), sizes=(1, 2, 4))
    # One graded candidate against a vote of two, two against a vote of four: a tie of the two answers.
    assert figures["over majority at equal tokens/best min/1"] == pytest.approx(0.5 - 0.5)
    assert figures["over majority at equal tokens/best min/2"] == pytest.approx(5 / 6 - 0.5)
    assert "over majority at equal tokens/best min/4" not in figures


def test_the_best_way_is_chosen_on_one_half_and_measured_on_the_other() -> None:
    """On problems 0, 2, 4, … the last step's score finds the right one, on the others the first step's (by the maximum)."""
    sets = []
    for number in range(HALVES):
        good, bad = ((0.5, 0.9), (0.8, 0.4)) if number % 2 == 0 else ((0.9, 0.3), (0.4, 0.5))
        pool = (candidate(True, answer=0, scores=good), candidate(False, answer=1, scores=bad))
        sets.append(problem(*pool, id=str(number)))
    rows = items_of(sets)
    figures = {name: float(value[0]) for name, value in statistic(rows)(np.ones((1, len(rows)))).items()}
    assert figures["accuracy/best last/2"] == 0.5
    assert figures["accuracy/best max/2"] == 1.0
    # Whichever half the maximum was chosen on, it is right on the other; "last" would have been right on one alone.
    assert figures["held out/accuracy/2"] == 1.0
    assert figures["held out/over majority/2"] == 0.5
    assert "held out/accuracy/2" not in statistic(items_of(sets[: HALVES - 1]))(np.ones((1, HALVES - 1)))


def test_a_refuted_candidate_comes_after_all_others_and_has_no_weight() -> None:
    """The highest score is of a refuted wrong one: it is chosen only where it is alone."""
    pool = [
        replace(candidate(False, answer=0, scores=(0.9,)), refuted=True),
        candidate(True, answer=1, scores=(0.4,)),
        candidate(False, answer=2, scores=(0.3,)),
    ]
    figures = of(problem(*pool), sizes=(1, 2, 3))
    assert figures["accuracy/best min/3"] == figures["accuracy/vote min/3"] == 1.0
    assert figures["accuracy/best min/2"] == pytest.approx(2 / 3)  # {0, 1} and {1, 2} right, {0, 2} wrong
    assert figures["accuracy/best min/1"] == pytest.approx(1 / 3)
    assert figures["accuracy/oracle/3"] == 1.0
    free = of(problem(*(replace(one, refuted=False) for one in pool)), sizes=(1, 2, 3))
    assert free["accuracy/best min/3"] == free["accuracy/vote min/3"] == 0.0
    assert free["accuracy/majority/3"] == figures["accuracy/majority/3"]  # the yardstick asks no check


def test_greedy_is_no_sample() -> None:
    greedy = candidate(True, (0.99,), answer=0, greedy=True, tokens=7)
    one = problem(
        candidate(False, (0.2,), answer=1, tokens=5), greedy, candidate(False, (0.4,), answer=1, tokens=9)
    )
    row = items_of([one])[0]
    assert row["candidates"] == 2
    assert row["best"]["min"] == [2]  # the position in the set, the greedy one among them
    found = of(one)
    assert found["accuracy/greedy/1"] == 1.0
    assert found["accuracy/oracle/2"] == 0.0
    assert (found["tokens/greedy/1"], found["tokens/policy/1"], found["tokens/policy/2"]) == (7, 7, 14)


def test_tokens_of_the_policy_and_of_the_prm_stand_apart() -> None:
    one = problem(
        candidate(True, tokens=10, prm_tokens=100), candidate(True, tokens=30, prm_tokens=120), id="a"
    )
    two = problem(
        candidate(True, tokens=20, prm_tokens=None), candidate(True, tokens=20, prm_tokens=90), id="b"
    )
    found = of(one, two)
    assert found["tokens/policy/2"] == 40.0
    assert found["tokens/prm/1"] == 110.0  # problem b does not know, so it is not in the mean
    assert "tokens/outcome/1" not in found


def test_problems_with_too_few_candidates_count_at_no_size() -> None:
    full = [problem(candidate(True), candidate(False), id=f"{i}") for i in range(3)]
    short = problem(candidate(True), id="short")
    rows = items_of([*full, short])
    assert [row["counted"] for row in rows] == [True, True, True, False]
    found = statistic(rows)(np.ones((1, 4)))
    assert found["accuracy/single/1"] == pytest.approx(0.5)
    assert coverage(rows).startswith("3 of 4 problems")


def test_sizes() -> None:
    assert subset_sizes(16) == (1, 2, 4, 8, 16)
    assert subset_sizes(12) == (1, 2, 4, 8, 12)
    assert subset_sizes(1) == (1,)
    long = problem(*[candidate(True)] * 5, id="long")
    assert common_sizes(
        [long, problem(*[candidate(True)] * 3, id="a"), problem(*[candidate(True)] * 3, id="b")]
    ) == (1, 2, 3)


# --- Votes by random subsets. -----------------------------------------------------------------------------------


def test_random_subsets_agree_with_all_of_them_and_are_recorded() -> None:
    rng = random.Random(5)
    sets = [
        problem(
            *(candidate(g == 0, (rng.random(),), answer=g) for g in rng.choices(range(3), k=12)), id=f"{i}"
        )
        for i in range(12)
    ]
    exact = of(*sets, sizes=(6, 12))
    drawn = of(*sets, sizes=(6, 12), limit=100, draws=4000, seed=3)
    again = of(*sets, sizes=(6, 12), limit=100, draws=4000, seed=3)
    for method in ("majority", "vote mean"):
        # 12 problems x 4000 draws: a standard error of at most 0.5 / sqrt(48000) = 0.0023
        assert drawn[f"accuracy/{method}/6"] == pytest.approx(exact[f"accuracy/{method}/6"], abs=0.01)
        assert drawn[f"accuracy/{method}/12"] == pytest.approx(exact[f"accuracy/{method}/12"])
    assert again == drawn
    assert drawn["accuracy/best mean/6"] == exact["accuracy/best mean/6"]  # closed form, no draws
    rows = items_of(sets, Counting(sizes=(6, 12), limit=100, draws=4000))
    assert "votes on random subsets (N = 6: 4000 a problem)" in coverage(rows)


# --- Score kinds and refusals. ----------------------------------------------------------------------------------


def test_other_score_kinds_get_their_own_aggregates_and_no_weighted_vote() -> None:
    one = problem(
        candidate(True, (-3.0, 1.0), kind="unbounded", answer=0),
        candidate(False, (2.0,), kind="unbounded", answer=1),
    )
    assert method_names(items_of([one])) == [
        "single",
        "majority",
        "best min",
        "best last",
        "best max",
        "oracle",
    ]
    assert not can_vote("min", "unbounded")
    assert not can_vote("sum-logit", "probability")
    assert can_vote("product", "probability")


def test_an_outcome_model_that_scores_only_the_last_step_has_no_other_aggregate() -> None:
    one = problem(candidate(True, (None, 0.9), answer=0), candidate(False, (None, 0.4), answer=1))
    assert method_names(items_of([one])) == [
        "single",
        "majority",
        "best last",
        "vote last",
        "oracle",
    ]
    assert of(one, sizes=(1, 2))["accuracy/best last/2"] == 1
    # One solution of a single step has every aggregate: then all stay, and the others count as not scored.
    both = problem(candidate(True, (None, 0.9), answer=0), candidate(False, (0.4,), answer=1))
    assert "best min" in method_names(items_of([both]))


def test_without_any_answers_there_is_no_vote_rather_than_a_vote_that_is_always_wrong() -> None:
    assert method_names(items_of([problem(candidate(True), candidate(False))])) == ["single", "oracle"]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], "no problems"),
        ([problem(id="x")], "no problem has a sampled candidate"),
        (
            [problem(candidate(True, greedy=True), candidate(True, greedy=True), candidate(True), id="x")],
            "x: .*greedy",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name(sets: list[CandidateSet], said: str) -> None:
    with pytest.raises(InputError, match=said):
        items_of(sets)


# --- The bootstrap. ---------------------------------------------------------------------------------------------


def test_a_weight_of_two_is_a_problem_twice() -> None:
    rng = random.Random(1)
    sets = [
        problem(
            *(
                candidate(
                    rng.choice([True, False, None]), (rng.random(), rng.random()), answer=rng.randint(0, 2)
                )
                for _ in range(4)
            ),
            id=f"{i}",
        )
        for i in range(5)
    ]
    weights = [2.0, 0.0, 1.0, 1.0, 3.0]
    weighted = statistic(items_of(sets))(np.array([weights]))
    doubled = [
        replace(one, id=f"{one.id} {copy}")
        for one, weight in zip(sets, weights, strict=True)
        for copy in range(int(weight))
    ]
    for name, value in of(*doubled).items():
        assert float(weighted[name][0]) == pytest.approx(value, nan_ok=True), name


# --- Published runs. --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gsm8k-bestofn", *(f"math500-bestofn-seed{seed}" for seed in range(3))])
def test_published_runs(name: str) -> None:
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no published runs at {path}")
    records = json.loads(gzip.decompress(path.read_bytes()))["records"]
    sets = [
        problem(
            *(candidate(t["correct"], (t["prm_score"],), tokens=t["tokens"]) for t in record["traces"]),
            id=record["problem_id"],
        )
        for record in records
    ]
    found = of(*sets)
    assert len(sets) in {20, 40}
    argmax = single = oracle4 = tokens = best2 = 0.0
    for record in records:
        traces = record["traces"]
        argmax += max(traces, key=lambda t: t["prm_score"])["correct"] / len(records)
        single += sum(t["correct"] for t in traces) / len(traces) / len(records)
        tokens += sum(t["tokens"] for t in traces) / len(records)
        fours = list(itertools.combinations(traces, 4))
        oracle4 += sum(any(t["correct"] for t in four) for four in fours) / len(fours) / len(records)
        pairs = list(itertools.combinations(traces, 2))
        for a, b in pairs:
            share = 0.5 if a["prm_score"] == b["prm_score"] else float(a["prm_score"] > b["prm_score"])
            best2 += (share * a["correct"] + (1 - share) * b["correct"]) / len(pairs) / len(records)
    assert found["accuracy/best min/8"] == pytest.approx(argmax)
    assert found["accuracy/best product/8"] == pytest.approx(
        argmax
    )  # one score: every aggregate is that score
    assert found["accuracy/best mean/2"] == pytest.approx(best2)
    assert found["accuracy/single/1"] == pytest.approx(single)
    assert found["accuracy/oracle/4"] == pytest.approx(oracle4)
    assert found["tokens/policy/8"] == pytest.approx(tokens)
    assert "accuracy/majority/8" not in found  # these runs keep no answers
