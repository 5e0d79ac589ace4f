"""Searches in worlds where the best way is known, against hand-worked runs and brute force."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_worlds import PROBLEM, World, full_tree, state_of
from stepmark.backends import Completion
from stepmark.errors import ScoreKindError, UsageError
from stepmark.metrics.aggregate import aggregate
from stepmark.models.scripted import ScriptedPolicy
from stepmark.records import Problem
from stepmark.searches.base import Budget, Grading, Steps
from stepmark.searches.beam import BeamSearch, DiverseTrees
from stepmark.searches.mcts import MCTS
from stepmark.searches.meaning import meaning
from stepmark.searches.rebase import Rebase, allocation
from stepmark.searches.result_rows import found_row, row_view, trace_row
from stepmark.searches.sampled import BestOfN, Greedy, Majority, WeightedVote

LAST = Grading(aggregate="last")


def random_scores(seed):
    """A score for every prefix, the same for the same prefix."""
    return lambda steps: round(random.Random(f"{seed}{steps}").uniform(0.01, 0.99), 6)


def best_leaf(leaves, scores, how):
    """By brute force: the highest aggregate over all ways, and the ways that have it."""
    values = {leaf: aggregate([scores(leaf[: n + 1]) for n in range(len(leaf))], how) for leaf in leaves}
    top = max(values.values())
    return top, {leaf for leaf, value in values.items() if value == top}


@pytest.mark.parametrize("how", ["min", "product", "last", "mean", "softmin"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_beam_that_keeps_everything_finds_the_best_of_all(how, seed):
    tree, leaves = full_tree(3, 3)
    scores = random_scores(seed)
    top, best = best_leaf(leaves, scores, how)
    found = World(tree, scores).find(
        BeamSearch(width=27, expand=3, merge_equal=True, grading=Grading(aggregate=how))
    )
    assert found.solution.steps in best
    assert found.solution.aggregate == top
    assert len(found.candidates) == 27
    assert found.stopped == "done"


@pytest.mark.parametrize("search", [BestOfN(n=27), MCTS(simulations=400, expand=3, c_puct=5.0)])
def test_so_do_all_solutions_and_a_long_tree_search(search):
    tree, leaves = full_tree(3, 3)
    scores = random_scores(4)
    _, best = best_leaf(leaves, scores, "min")
    found = World(tree, scores).find(search)
    assert found.solution.steps in best
    assert {candidate.steps for candidate in found.candidates} == set(leaves)


# A trap: "a" looks best and leads nowhere good.
TRAP = {
    (): ["a", "b"],
    ("a",): ["a one", "a two"],
    ("b",): ["b one", "b two"],
    ("a", "a one"): ["the answer is 1"],
    ("a", "a two"): ["the answer is 2"],
    ("b", "b one"): ["the answer is 3"],
    ("b", "b two"): ["the answer is 4"],
}
TRAP_SCORES = {
    ("a",): 0.8, ("b",): 0.6, ("a", "a one"): 0.3, ("a", "a two"): 0.2, ("b", "b one"): 0.5, ("b", "b two"): 0.4,
    ("a", "a one", "the answer is 1"): 0.9, ("a", "a two", "the answer is 2"): 0.9,
    ("b", "b one", "the answer is 3"): 0.9, ("b", "b two", "the answer is 4"): 0.9,
}  # fmt: skip


def test_a_narrow_beam_falls_into_the_trap_and_a_wider_one_does_not():
    narrow = World(TRAP, TRAP_SCORES).find(BeamSearch(width=1, expand=2))
    wide = World(TRAP, TRAP_SCORES).find(BeamSearch(width=2, expand=2, merge_equal=True))
    assert narrow.solution.steps == ("a", "a one", "the answer is 1")
    assert narrow.solution.aggregate == 0.3
    # Of a, b, a, b the two that say a are kept, and the trap shuts.
    assert (
        World(TRAP, TRAP_SCORES).find(BeamSearch(width=2, expand=2)).solution.steps == narrow.solution.steps
    )
    # Round 0: a 0.8, b 0.6. Round 1: b one 0.5, b two 0.4, a one 0.3, a two 0.2; two are kept, both of b.
    assert wide.solution.steps == ("b", "b one", "the answer is 3")
    assert [candidate.aggregate for candidate in wide.candidates] == [0.5, 0.4]
    states = state_of(wide)
    assert states["a one"] == states["a two"] == "pruned"
    assert states["b two"] == "kept"
    assert states["the answer is 4"] == "finished"
    assert states["b"] == states["b one"] == states["the answer is 3"] == "chosen"
    # Four at the first round, two of which say the same; then two after each beam.
    assert len(wide.trace.nodes) == 4 + 4 + 4


def test_looking_ahead_sees_the_trap_and_counts_what_it_wrote():
    world = World(TRAP, TRAP_SCORES)
    found = world.find(BeamSearch(width=1, expand=2, lookahead=1))
    # a is judged by min(0.8, 0.3), b by min(0.6, 0.5).
    assert found.solution.steps == ("b", "b one", "the answer is 3")
    ahead = [node for node in found.trace.nodes if node.why == "written to look ahead"]
    assert [node.step for node in ahead][:2] == ["a one", "b one"]
    assert all(node.score is not None for node in ahead)
    assert found.cost.decoded == sum(node.policy_tokens for node in found.trace.nodes)
    assert found.solution.aggregate == 0.5  # of its own steps


def test_a_finished_beam_competes_and_loses_to_better_running_ones():
    tree = {
        (): ["the answer is 1", "go on", "go far"],
        ("go on",): ["the answer is 2"],
        ("go far",): ["the answer is 3"],
    }
    scores = {
        ("the answer is 1",): 0.5, ("go on",): 0.9, ("go far",): 0.8,
        ("go on", "the answer is 2"): 0.9, ("go far", "the answer is 3"): 0.7,
    }  # fmt: skip
    found = World(tree, scores).find(BeamSearch(width=2, expand=3, merge_equal=True))
    assert [candidate.steps[-1] for candidate in found.candidates] == ["the answer is 2", "the answer is 3"]
    assert state_of(found)["the answer is 1"] == "pruned"
    # And with a place for it, it stays, waits for the others and does not win.
    found = World(tree, scores).find(BeamSearch(width=3, expand=3, merge_equal=True))
    assert {candidate.aggregate for candidate in found.candidates} == {0.5, 0.9, 0.7}
    assert found.solution.aggregate == 0.9


def test_a_finished_beam_that_stays_the_best_wins():
    tree = {(): ["the answer is 1", "go on"], ("go on",): ["the answer is 2"]}
    scores = {("the answer is 1",): 0.8, ("go on",): 0.9, ("go on", "the answer is 2"): 0.1}
    found = World(tree, scores).find(BeamSearch(width=2, expand=2, merge_equal=True))
    assert found.solution.steps == ("the answer is 1",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("So $3 \\times 1{,}000 = 3000$.", "So 1000 * 3 = 3000"),
        ("3 + 4 = 7", "4 + 3 = 7"),
        ("\\[2 \\cdot 3\\]", "\\[ 2 \\cdot 3 \\]"),
        ("The  Total is 5 − 2 = 3 .", "the total is 5 - 2 = 3"),
        ("**Step 1:** add", "Step 1: add"),
    ],
)
def test_equal_meanings(one, other):
    assert meaning(one) == meaning(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5 - 3 = 2", "3 - 5 = 2"),
        ("8 / 2 = 4", "2 / 8 = 4"),
        ("x = 4", "X = 4"),
        ("2 * 3 + 4 = 10", "2 * 4 + 3 = 10"),
        ("f(2+3) = 5", "f(3+2) = 6"),
        ("1,000 pens", "1,001 pens"),
        ("(3, 4)", "(4, 3)"),
        ("3 + 4 = 7 pens", "3 + 4 = 8 pens"),
        ("1.5 is it", "15 is it"),
    ],
)
def test_unequal_meanings(one, other):
    assert meaning(one) != meaning(other)


def test_steps_of_one_meaning_take_one_place_and_are_scored_once():
    tree = {
        (): ["3 + 4 = 7", "4 + 3 = 7.", "3 + 4 = 8"],
        **{(s,): ["the answer is 7"] for s in ["3 + 4 = 7", "4 + 3 = 7.", "3 + 4 = 8"]},
    }
    world = World(tree, lambda steps: 0.1 if "8" in steps[0] else 0.9)
    found = world.find(BeamSearch(width=3, expand=1, merge_equal=True))
    assert {steps[0] for steps in world.scored} == {"3 + 4 = 7", "3 + 4 = 8"}
    twin = next(node for node in found.trace.nodes if node.step == "4 + 3 = 7.")
    assert (twin.state, twin.why, twin.prm_tokens) == ("pruned", "says the same as step 0", 0)
    both = World(tree, lambda steps: 0.9).find(BeamSearch(width=3, expand=1))
    assert {candidate.steps[0] for candidate in both.candidates} == {"3 + 4 = 7", "4 + 3 = 7.", "3 + 4 = 8"}


@pytest.mark.parametrize("search", [BeamSearch(width=1, expand=2), BestOfN(n=2)])
def test_steps_are_scored_as_the_policy_wrote_them(search):
    """With the white space of their lines, which some PRMs were trained with; the line breaks between them are nobody's."""
    tree = {(): ["  a = 3 + 4 "], ("  a = 3 + 4 ",): ["\tthe answer is 7"]}
    world = World(tree, lambda steps: 0.9)
    found = world.find(search)
    assert found.solution.steps == ("  a = 3 + 4 ", "\tthe answer is 7")
    assert set(world.scored) == {found.solution.steps[:1], found.solution.steps}


VOTES = {(): ["it is 3", "it is 5", "it is three", "they say 5", "and so 5"]}
VOTES |= {
    ("it is 3",): ["The answer is 3"], ("it is 5",): ["The answer is 5"], ("it is three",): ["The answer is 3.0"],
    ("they say 5",): ["The answer is 5"], ("and so 5",): ["The answer is 5"],
}  # fmt: skip
WEIGHTS = {"it is 3": 0.7, "it is 5": 0.2, "it is three": 0.9, "they say 5": 0.3, "and so 5": 0.1}


def vote_score(steps):
    return WEIGHTS[steps[0]] if len(steps) == 2 else 1.0


def test_votes_by_hand():
    """3 has two votes of weight 0.7 + 0.9, 5 has three of 0.2 + 0.3 + 0.1; 3 and 3.0 are one answer."""
    best = World(VOTES, vote_score).find(BestOfN(n=5))
    majority = World(VOTES, vote_score).find(Majority(n=5))
    weighted = World(VOTES, vote_score).find(WeightedVote(n=5))
    assert best.solution.steps[0] == "it is three"
    assert majority.solution.answer == "5"
    assert [candidate.votes for candidate in majority.candidates] == [2, 3, 2, 3, 3]
    assert weighted.solution.steps == ("it is three", "The answer is 3.0")
    assert [candidate.votes for candidate in weighted.candidates] == pytest.approx([1.6, 0.6, 1.6, 0.6, 0.6])


def test_the_same_candidates_for_every_way_to_choose():
    texts = []
    for search in (BestOfN(n=5), Majority(n=5), WeightedVote(n=5)):
        found = World(VOTES, vote_score).find(search)
        texts.append([candidate.text for candidate in found.candidates])
    assert texts[0] == texts[1] == texts[2]


def test_majority_and_greedy_ask_no_prm():
    for search in (Majority(n=5), Greedy()):
        world = World(VOTES, vote_score)
        found = world.find(search)
        assert world.scored == []
        assert found.cost.prm == 0
        assert found.cost.scores == 0
        assert all(score is None for candidate in found.candidates for score in candidate.scores)
    assert found.solution.steps == ("it is 3", "The answer is 3")


def test_solutions_without_answers_do_not_vote():
    world = World({(): ["no idea at all", "nobody knows"]}, lambda steps: 0.9)
    found = world.find(Majority(n=2))
    assert found.chosen is None
    assert (found.stopped, found.note) == ("dead end", "no solution names an answer, so that none could vote")
    assert [candidate.votes for candidate in found.candidates] == [None, None]


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightedVote(grading=Grading(aggregate="min", kind="margin")),
        lambda: WeightedVote(grading=Grading(aggregate="sum-logit")),
        lambda: BeamSearch(choose="vote", grading=Grading(aggregate="mean", kind="log-ratio")),
        lambda: MCTS(grading=Grading(aggregate="min", kind="unbounded")),
        lambda: Rebase(grading=Grading(aggregate="sum-logit")),
        lambda: Rebase(balance=0),
        lambda: BeamSearch(width=0),
        lambda: BestOfN(n=0),
        lambda: DiverseTrees(subtrees=0),
        lambda: MCTS(simulations=0),
        lambda: Steps(stop=""),
        lambda: Steps(max_tokens=0),
        lambda: Steps(top_p=0),
        lambda: Budget(tokens=-1),
    ],
)
def test_settings_that_mean_nothing_are_refused(make):
    with pytest.raises(UsageError):
        make()


def test_a_product_of_margins_is_refused():
    with pytest.raises(ScoreKindError):
        Grading(aggregate="product", kind="margin")


# -- PUCT, by hand -------------------------------------------------------------------------------------------

HAND = {(): ["A", "B"], ("A",): ["A1", "A2"], ("B",): ["B1", "B2"]}
HAND_VALUES = {
    ("A",): 0.6, ("B",): 0.5, ("A", "A1"): 0.2, ("A", "A2"): 0.1, ("B", "B1"): 0.9, ("B", "B2"): 0.3,
}  # fmt: skip


def statistics(found):
    return {node.step: (node.visits, node.value) for node in found.trace.nodes}


def test_puct_by_hand():
    """c = 1, P = 1/2, Q = mean, value = the last score.

    1: expand the root; A (0.6) is best.           N: A 1.
    2: A 0.6 + 0.5/2 = 0.85, B 0.5 + 0.5 = 1.0: B; expand, B1 0.9.         B 1, B1 1.
    3: A 0.6 + 0.5*sqrt2/2 = 0.954, B 0.9 + 0.354 = 1.254: B; B1 0.9 + 0.25 = 1.15, B2 0.3 + 0.5 = 0.8: B1.   B 2, B1 2.
    4: A 0.6 + 0.5*sqrt3/2 = 1.033, B 0.9 + 0.289 = 1.189: B; B1 0.9 + 0.236 = 1.136, B2 0.3 + 0.707 = 1.007: B1.   B 3, B1 3.
    5: A 0.6 + 0.5 = 1.1, B 0.9 + 0.25 = 1.15: B; B1 0.9 + 0.5*sqrt3/4 = 1.117, B2 0.3 + 0.866 = 1.166: B2, 0.3.   B 4 = 0.75, B2 1.
    6: A 0.6 + 0.5*sqrt5/2 = 1.159, B 0.75 + 0.224 = 0.974: A; expand, A1 0.2.   A 2 = 0.4, A1 1.
    """
    world = World(HAND, HAND_VALUES)
    found = world.find(MCTS(simulations=6, expand=2, grading=LAST))
    assert {step: visits for step, (visits, _) in statistics(found).items()} == {
        "A": 2, "B": 4, "A1": 1, "A2": 0, "B1": 3, "B2": 1,
    }  # fmt: skip
    values = {step: value for step, (_, value) in statistics(found).items()}
    assert values["A"] == pytest.approx(0.4)
    assert values["B"] == pytest.approx(0.75)
    assert values["B1"] == pytest.approx(0.9)
    assert values["A2"] is None
    assert found.solution.steps == ("B", "B1")
    # An end that is visited again costs nothing: three expansions are all that was asked.
    assert found.cost.writes == 3


def test_backing_up_the_maximum():
    """As by hand above until the fifth; then B keeps 0.9: A 1.159, B 0.9 + 0.224 = 1.124, so A, which keeps 0.6."""
    found = World(HAND, HAND_VALUES).find(MCTS(simulations=6, expand=2, grading=LAST, backup="max"))
    assert statistics(found)["B"] == (4, 0.9)
    assert statistics(found)["A"] == (2, 0.6)
    assert statistics(found)["B2"] == (1, 0.3)


def test_priors_from_scores():
    """With T = 0.1 the priors are the softmax of 6 and 5: 0.731 and 0.269. Second simulation: A 0.6 + 0.731/2 = 0.966, B 0.5 + 0.269 =
    0.769: A, which even priors would not take."""
    search = MCTS(simulations=2, expand=2, grading=LAST, prior="score", prior_temperature=0.1)
    found = World(HAND, HAND_VALUES).find(search)
    assert statistics(found)["A"] == (2, pytest.approx((0.6 + 0.2) / 2))
    assert statistics(found)["B"] == (0, None)


def test_rollouts_are_judged_by_the_verifier_where_it_is_asked():
    tree = {(): ["a", "b"], ("a",): ["the answer is 6"], ("b",): ["the answer is 7"]}
    world = World(tree, lambda steps: 0.9 if steps[0] == "a" else 0.1)
    trusting = world.find(MCTS(simulations=4, expand=2, rollouts=1))
    assert trusting.solution.answer == "6"
    judged = World(tree, lambda steps: 0.9 if steps[0] == "a" else 0.1).find(
        MCTS(simulations=4, expand=2, rollouts=1, verify=True)
    )
    assert judged.solution.answer == "7"
    # The first rollout, from a, is wrong (0); the second simulation goes to b, whose rollout is right (1).
    assert statistics(judged)["b"][1] == 1.0
    assert statistics(judged)["a"][1] == 0.0


def test_dead_ends_are_left():
    tree = {(): ["a", "b"], ("a",): ["a"], ("a", "a"): ["a"], ("b",): ["the answer is 7"]}
    found = World(tree, lambda steps: 0.9 if steps[0] == "a" else 0.1).find(MCTS(simulations=20, expand=2))
    assert found.solution.steps == ("b", "the answer is 7")
    a = next(node for node in found.trace.nodes if node.step == "a" and node.parent is None)
    assert (a.state, a.why) == ("pruned", "every step after it was given up")


def test_mcts_writes_the_best_leaf_to_its_end_where_nothing_was_finished():
    tree, _ = full_tree(6, 2)
    found = World(tree, random_scores(5)).find(MCTS(simulations=2, expand=2))
    assert found.solution.finished
    assert len(found.solution.steps) == 6


# -- Other trees -----------------------------------------------------------------------------------------------


def test_subtrees_stay_apart():
    """The subtree of b is worse at every step, and is brought to its end all the same."""
    tree, _ = full_tree(3, 2)
    world = World(tree, lambda steps: 0.9 if steps[0].endswith("a") else 0.1)
    found = world.find(DiverseTrees(subtrees=2, expand=2))
    firsts = [candidate.steps[0] for candidate in found.candidates]
    assert sorted(firsts) == ["step 0 a", "step 0 b"]
    assert found.solution.steps[0] == "step 0 a"
    beams = World(tree, lambda steps: 0.9 if steps[0].endswith("a") else 0.1).find(
        BeamSearch(width=2, expand=2)
    )
    assert {candidate.steps[0] for candidate in beams.candidates} == {"step 0 a"}


def test_a_subtree_keeps_its_best_step_alone():
    tree, _ = full_tree(2, 3)
    scores = random_scores(8)
    found = World(tree, scores).find(DiverseTrees(subtrees=1, expand=3, grading=LAST))
    first = max(tree[()], key=lambda step: scores((step,)))
    second = max(tree[first,], key=lambda step: scores((first, step)))
    assert found.solution.steps == (first, second)
    assert sum(node.why == "not the best step of its subtree" for node in found.trace.nodes) == 4


def test_no_subtree_begins_as_another_does():
    world = World({(): ["only"], ("only",): ["the answer is 1"]}, lambda steps: 0.9)
    found = world.find(DiverseTrees(subtrees=3, expand=2))
    assert len(found.candidates) == 1
    assert sum("another subtree begins with step" in node.why for node in found.trace.nodes) == 4


def test_rebase_counts_by_hand():
    """exp(s / 0.2): 0.9, 0.5, 0.1 stand as 1 : 0.1353 : 0.0183. 8 / 1.1536 = 6.93, so 7; of 1 left, 0.88 of it, so 1; then none."""
    assert allocation([0.9, 0.5, 0.1], width=8, temperature=0.2) == [7, 1, 0]
    assert allocation([0.5, 0.5, 0.5, 0.5], width=8, temperature=0.2) == [2, 2, 2, 2]
    assert allocation([0.1, 0.9], width=1, temperature=0.2) == [0, 1]
    assert allocation([0.5, 0.5], width=3, temperature=1) == [2, 1]
    names = ["x", "y", "z"]
    tree = {(): names} | {(name,): [f"{name} {n}" for n in range(8)] for name in names}
    tree |= {(name, f"{name} {n}"): ["the answer is 1"] for name in names for n in range(8)}
    scores = {"x": 0.9, "y": 0.5, "z": 0.1}
    world = World(tree, lambda steps: scores[steps[0]])
    found = world.find(Rebase(width=8))
    assert [world.asked(name) for name in names] == [7, 1, 0]
    assert sum(world.asked(name, f"{name} {n}") for name in names for n in range(8)) == 8
    assert next(node.why for node in found.trace.nodes if node.step == "z") == "its share of 8 steps is none"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 64), st.floats(0.01, 5))
@settings(max_examples=100, deadline=None)
def test_shares_sum_to_the_width_and_follow_the_scores(scores, width, temperature):
    counts = allocation(scores, width=width, temperature=temperature)
    assert sum(counts) == width
    assert min(counts) >= 0
    for left, first in zip(scores, counts, strict=True):
        for right, second in zip(scores, counts, strict=True):
            if left > right:
                assert first >= second


def test_rebase_gives_up_a_place_for_each_finished_solution():
    tree = {(): ["the answer is 1", "go"], ("go",): ["on"], ("go", "on"): ["the answer is 2"]}
    world = World(tree, lambda steps: 0.5)
    world.find(Rebase(width=2))
    assert world.asked() == 2
    assert world.asked("go") == 1


# -- What a check refutes ------------------------------------------------------------------------------------------

REFUTED = {
    (): ["2 + 2 = 5", "so we add"],
    ("2 + 2 = 5",): ["the answer is 5"],
    ("so we add",): ["the answer is 4"],
}


def charmed(steps):
    """Likes the wrong sum best."""
    return 0.99 if steps[0] == "2 + 2 = 5" else 0.2


@pytest.mark.parametrize(
    "search",
    [
        BestOfN(n=2), WeightedVote(n=2), Majority(n=2), BeamSearch(width=1, expand=2), DiverseTrees(subtrees=1, expand=2),
        Rebase(width=2), MCTS(simulations=3, expand=2),
    ],
    ids=lambda search: search.name,
)  # fmt: skip
def test_what_a_check_refutes_is_never_chosen_and_never_expanded(search):
    from dataclasses import replace

    free = World(REFUTED, charmed).find(search)
    found = World(REFUTED, charmed).find(replace(search, grading=Grading(checks="all")))
    if search.name != "majority":
        assert free.solution.answer == "5"
    assert found.solution.answer == "4"
    [refuted] = [node for node in found.trace.nodes if node.refuted]
    assert (refuted.step, refuted.state, refuted.score) == ("2 + 2 = 5", "pruned", None)
    if search.name not in ("best-of-n", "weighted-vote", "majority"):  # which write whole solutions
        assert all(node.parent != refuted.number for node in found.trace.nodes)


def test_where_every_solution_is_refuted_none_is_chosen():
    world = World({(): ["2 + 2 = 5 is the answer"]}, lambda steps: 0.9)
    found = world.find(BestOfN(n=1, grading=Grading(checks="all")))
    assert (found.chosen, found.solution, found.stopped) == (None, None, "dead end")
    assert [(one.refuted, one.finished) for one in found.candidates] == [(True, True)]


# -- Costs and budgets -----------------------------------------------------------------------------------------

METHODS = [
    BestOfN(n=6), Majority(n=6), WeightedVote(n=6), Greedy(), BeamSearch(width=2, expand=3), BeamSearch(width=2, expand=2, lookahead=2),
    DiverseTrees(subtrees=2, expand=2), DiverseTrees(subtrees=2, expand=2, lookahead=1), Rebase(width=5), MCTS(simulations=8, expand=2),
    MCTS(simulations=5, expand=2, rollouts=2), MCTS(simulations=5, expand=2, rollouts=1, verify=True),
]  # fmt: skip
IDS = [f"{search.name}-{place}" for place, search in enumerate(METHODS)]


def with_budget(search, budget):
    from dataclasses import replace

    return replace(search, budget=budget)


@pytest.mark.parametrize("search", METHODS, ids=IDS)
def test_costs_are_those_of_the_texts_and_the_trace_adds_up(search):
    tree, _ = full_tree(4, 3)
    world = World(tree, random_scores(11))
    found = world.find(search)
    nodes = found.trace.nodes
    assert found.cost.decoded == sum(node.policy_tokens for node in nodes) == world.decoded
    words = sum(len(steps[-1].split()) for steps in set(world.scored))
    expected = words + len(PROBLEM.text.split()) if world.scored else 0
    assert found.cost.prm == sum(node.prm_tokens for node in nodes) == expected
    assert found.cost.scores == len(set(world.scored))
    assert found.cost.tokens == found.cost.decoded + found.cost.prm
    assert found.cost.samples == len(world.requests)
    assert found.stopped == "done"
    assert found.solution.finished
    by_number = {node.number: node for node in nodes}
    chosen = [node.step for node in nodes if node.state == "chosen"]
    assert tuple(chosen) == found.solution.steps
    for node in nodes:
        assert bool(node.why) == (node.state == "pruned")
        assert node.parent is None or (
            node.parent < node.number and by_number[node.parent].round <= node.round
        )


@pytest.mark.parametrize("search", METHODS, ids=IDS)
def test_every_search_can_be_drawn(search):
    tree, _ = full_tree(3, 2)
    tree[("step 0 a", "step 1 a")] = [""]  # an end without another step
    for budget in (Budget(), Budget(tokens=60), Budget(tokens=0)):
        found = World(tree, random_scores(12)).find(with_budget(search, budget))
        view = row_view(found_row(found), trace_row(found), judge=lambda text, gold: gold in text)
        assert len(view.nodes) == len(found.trace.nodes)
        assert view.chosen == (found.solution.node if found.solution else None)
        assert (
            view.tokens
            == found.cost.tokens
            == sum(node.policy_tokens + node.prm_tokens for node in view.nodes)
        )
        assert {one.node: one.right for one in view.candidates} == {
            one.node: "7" in one.text for one in found.candidates
        }
        if found.solution:
            assert tuple(node.step for node in view.path(view.chosen) if node.step) == found.solution.steps


@pytest.mark.parametrize("search", METHODS, ids=IDS)
def test_a_budget_of_zero_asks_for_nothing(search):
    tree, _ = full_tree(3, 2)
    world = World(tree, random_scores(1))
    found = world.find(with_budget(search, Budget(tokens=0)))
    assert (found.stopped, found.chosen, found.candidates, found.trace.nodes) == ("budget", None, (), ())
    assert found.cost.tokens == 0
    assert world.requests == world.scored == []


@pytest.mark.parametrize("search", METHODS, ids=IDS)
@given(tokens=st.integers(1, 400), seed=st.integers(0, 5))
@settings(max_examples=6, deadline=None)
def test_a_budget_is_never_exceeded(search, tokens, seed):
    """A word of the PRM is at most a token of the policy in this world, so only the problem itself may come on top."""
    tree, _ = full_tree(4, 3)
    world = World(tree, random_scores(seed))
    found = world.find(with_budget(search, Budget(tokens=tokens)))
    assert found.cost.decoded <= tokens
    assert found.cost.tokens <= tokens + len(PROBLEM.text.split())
    assert found.cost.decoded == sum(node.policy_tokens for node in found.trace.nodes)
    free = World(tree, random_scores(seed)).find(search)
    if getattr(search, "lookahead", 0):
        return  # a lower max_tokens makes another request of the same greedy step, which then costs anew
    if found.stopped == "done":
        assert found.cost.tokens == free.cost.tokens
    else:
        assert found.stopped == "budget"
        assert free.cost.tokens > tokens // 2


def test_a_budget_that_ends_takes_the_best_step_to_its_end():
    tree, _ = full_tree(5, 3)
    search = BeamSearch(width=3, expand=3)
    whole = World(tree, random_scores(2)).find(search).cost.tokens
    found = World(tree, random_scores(2)).find(with_budget(search, Budget(tokens=whole // 2)))
    assert found.stopped == "budget"
    assert found.solution.finished
    assert len(found.solution.steps) == 5


def test_the_ledger_names_what_caches_save():
    """One beam of two steps: after "step 0 a" the policy is given its prompt and that step, and the PRM reads the second step alone."""
    from stepmark.searches.result_rows import cost_row, found_row

    world = World({(): ["step 0 a"], ("step 0 a",): ["so 7"]}, lambda steps: 0.9)
    found = world.find(BeamSearch(width=1, expand=1))
    prompt = len(str(Steps().prompt_of(PROBLEM)).split())
    problem = len(PROBLEM.text.split())
    cost = found.cost
    assert (cost.prompt, cost.cached, cost.new, cost.decoded) == (2 * prompt + 3, prompt + 3, prompt, 4 + 3)
    assert (cost.prm_prompt, cost.prm_cached, cost.prm) == (2 * problem + 3 + 5, problem + 3, problem + 5)
    assert cost.told_cached is None  # nothing told it
    row = found_row(found)["cost"]
    assert row == cost_row(cost)
    assert (row["cached"], row["prm_cached"], row["tokens"]) == (prompt + 3, problem + 3, 7 + problem + 5)


def test_what_a_server_says_of_its_cache_is_in_the_ledger():
    def write(request, number):
        text, finish = ("so 7", "end") if request.prefill else ("first", "stop")
        return Completion(
            text=text, finish=finish, tokens=2, prompt_tokens=30, cached_tokens=16 if request.prefill else 0
        )

    world = World({}, lambda steps: 0.9)
    world.policy = ScriptedPolicy(write)
    assert world.find(BeamSearch(width=1, expand=2)).cost.told_cached == 16


def test_the_same_seed_gives_the_same_and_another_number_of_problems_changes_nothing():
    tree, _ = full_tree(4, 3)
    problems = [Problem(text=f"What is it, number {n}?", id=str(n)) for n in range(7)]
    from stepmark.searches.run import run
    from stepmark.verifiers.base import load_verifier

    results = []
    for in_flight in (1, 3, 16):
        models, search = World(tree, random_scores(9)).models, BeamSearch(width=2, expand=2)
        results.append(list(run(problems, search, models, load_verifier("number"), in_flight=in_flight)))
    assert results[0] == results[1] == results[2]
    assert [found.problem.id for found in results[0]] == [str(n) for n in range(7)]
