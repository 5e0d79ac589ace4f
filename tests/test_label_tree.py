"""The rollout tree: selection by hand, every rollout and prefix at most once, per-step labels, resuming."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_worlds import PROBLEM, RIGHT, WRONG, Cut, CutStore, World, solution
from stepmark.backends import Completion, Completions, Message
from stepmark.backends.replies import MemoryReplies
from stepmark.data.steps.splitting import split
from stepmark.errors import InputError
from stepmark.labels.labelling import Labelling
from stepmark.labels.rollout_tree import (
    RolloutTree,
    TreeLabels,
    cut_branch,
    on_lines,
    prefixes,
    priority,
    way_of,
)
from stepmark.problems.arithmetic_world import (
    ArithmeticPolicy,
    SolverSettings,
    true_labels,
    true_values,
    wrong_solutions,
)
from stepmark.records import LabelledSolution, Solution, Step
from stepmark.verifiers.base import BatchVerifier
from stepmark.verifiers.number import NumberVerifier

# ---------------------------------------------------------------- worlds


def scripted(rollouts: dict[str, list[str | tuple[str, int]]]) -> World:
    """A world by prefix: the texts of its samples, in order, or (text, tokens)."""

    def write(prefix: str, number: int) -> str | Completion:
        given = rollouts[prefix][number]
        return given if isinstance(given, str) else Completion(text=given[0], finish="end", tokens=given[1])

    return World(write)


def draw(text: str, below: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") % below


LINES = 8


def stumbling(*, slips: int = 12, rescues: int = 0) -> World:
    """A policy that writes eight lines, each of which is "bad" with `slips` percent; the answer is right if none is, or
    with `rescues` percent if one is. Few wordings, so that rollouts repeat each other's beginnings and whole texts."""

    def write(prefix: str, number: int) -> Completion:
        lines = prefix.splitlines()
        while len(lines) < LINES - 1:
            place = f"{prefix}|{number}|{len(lines)}"
            kind = "bad" if draw(place, 100) < slips else "good"
            lines.append(f"{kind} {draw(place + '?', 2)}")
        rescued = draw(f"{prefix}|{number}|end", 100) < rescues
        lines.append(WRONG if "bad" in " ".join(lines) and not rescued else RIGHT)
        text = "\n".join(lines)[len(prefix) :]
        return Completion(text=text, finish="end", tokens=len(text.split()))

    return World(write)


def stumbled(first_bad: int) -> Solution:
    """A given solution of that world, whose line of this number (0-based) is the first bad one."""
    texts = [f"{'good' if t < first_bad else 'bad'} {t % 2}" for t in range(LINES - 1)]
    return Solution(problem=PROBLEM, steps=tuple(Step(text=text) for text in [*texts, WRONG]), id="s")


def truth(labelled: LabelledSolution) -> int:
    return next(n for n, text in enumerate(labelled.solution.texts) if text.startswith("bad"))


def evidence(labelled: LabelledSolution) -> list[tuple[int | None, int | None] | None]:
    values = [[j for j in own if j.kind == "value"] for own in labelled.judgements]
    assert all(len(own) <= 1 for own in values)
    return [(own[0].successes, own[0].trials) if own else None for own in values]


def ratings(labelled: LabelledSolution) -> list[int | None]:
    return [next((j.rating for j in own if j.kind == "correctness"), None) for own in labelled.judgements]


# ---------------------------------------------------------------- by hand


def test_the_priority_by_hand():
    paper = RolloutTree()
    # 0.5^0.5 * 0.9^0.5 + 0.125 * 2 / 2
    assert priority(mc=0.5, length=250, visits=1, total=4, settings=paper) == pytest.approx(
        math.sqrt(0.45) + 0.125
    )
    assert priority(mc=0.0, length=0, visits=0, total=0, settings=paper) == 0.5
    assert priority(mc=1.0, length=1000, visits=3, total=16, settings=paper) == pytest.approx(0.81 + 0.125)
    assert (paper.omega_alpha, paper.omega_beta, paper.length_scale, paper.c_puct, paper.k, paper.searches) == (
        0.5, 0.9, 500, 0.125, 8, 100,
    )  # fmt: skip


def test_a_tree_by_hand():
    world = scripted(
        {
            "": [RIGHT, "a\nb\nc\n" + WRONG],
            "a\nb\n": [RIGHT, "c2\n" + WRONG],
            "a\nb\nc\n": [WRONG, "d\n" + WRONG],
            "a\nb\nc2\n": [RIGHT, "d\n" + RIGHT],
        }
    )
    grown = world.run(RolloutTree(k=2).grow, PROBLEM, ())
    # Root 1 of 2. First "a b c": its middle 1 of 2, its third step 0 of 2: the third is wrong. Then "a b c2" from the
    # middle: its third step 2 of 2, so the answer line is the error. No state with 0 < MC < 1 has a wrong rollout left.
    assert (grown.successes, grown.trials) == (1, 2)
    assert [one.first_error for one in grown.rollouts] == [2, 3]
    first, second = (one.labelled for one in grown.rollouts)
    assert first.solution.texts == ("a", "b", "c", WRONG)
    assert evidence(first) == [None, (1, 2), (0, 2), (0, 1)]
    assert ratings(first) == [1, 1, -1, None]
    assert second.solution.texts == ("a", "b", "c2", WRONG)
    assert evidence(second) == [None, (1, 2), (2, 2), (0, 1)]
    assert ratings(second) == [1, 1, 1, -1]
    assert [step.start for step in second.solution.steps] == [0, 2, 4, 7]
    assert (grown.cost.rollouts, grown.cost.probes, len(world.asked)) == (8, 4, 8)
    assert second.solution.split == "line"
    assert second.solution.id == "p/rollout-2"


SHORT, LONG = ("x\n" + WRONG, 100), ("y\n" + WRONG, 400)


def test_selection_prefers_hopeful_states_then_short_rollouts():
    world = scripted(
        {
            # MC 1/4: Q = 0.5^0.75 * 0.9^(len/500) = 0.582 for 100 tokens, 0.547 for 400.
            "": [LONG, SHORT, ("a\nb\nc\n" + WRONG, 100), (RIGHT, 5)],
            # MC 3/4: Q = 0.5^0.25 * 0.9 = 0.757.
            "x\n": [(RIGHT, 5), (RIGHT, 5), (RIGHT, 5), ("z\n" + WRONG, 500)],
            "x\nz\n": [(RIGHT, 1)] * 4,
            "a\nb\n": [(RIGHT, 1)] * 4,
            "a\nb\nc\n": [(RIGHT, 1)] * 4,
            "y\n": [(RIGHT, 1)] * 4,
        }
    )
    grown = world.run(RolloutTree(k=4, c_puct=0).grow, PROBLEM, ())
    assert [one.labelled.solution.texts[0] for one in grown.rollouts] == ["x", "x", "a", "y"]
    assert grown.rollouts[1].labelled.solution.texts == ("x", "z", WRONG)


def test_a_given_solution_is_searched_first_and_shares_its_states():
    world = scripted(
        {
            "": [RIGHT, "step 1\nother\n" + WRONG],
            "step 1\n": [RIGHT, WRONG],
            "step 1\nstep 2\n": ["n\n" + WRONG, WRONG],
        }
        | {"step 1\nother\n": [RIGHT, RIGHT]}
    )
    found = world.run(RolloutTree(k=2).label, solution(4))
    # Given: step 2 is probed (0 of 2), then step 1 (1 of 2). "step 1, other" is next; the third rollout of step 1, the bare
    # answer, repeats "step 1" and a wrong answer: one step to blame, no probe.
    assert (found.first_error, found.abstained, found.method) == (1, False, "rollout-tree")
    assert found.labelled.solution is not None
    assert evidence(found.labelled) == [(1, 2), (0, 2), None, (0, 1)]
    assert ratings(found.labelled) == [1, -1, None, None]
    texts = [other.solution.texts for other in found.others]
    assert sorted(texts) == [("step 1", "other", WRONG), ("step 1", WRONG)]
    assert all(evidence(other)[0] == (1, 2) for other in found.others)
    assert len(world.asked) == len(set(world.asked)) == found.cost.rollouts == 8


def test_a_solution_without_an_answer_is_probed_at_its_end():
    rollouts: dict[str, list[str | tuple[str, int]]] = {
        "": [RIGHT, RIGHT],
        "step 1\n": [RIGHT, RIGHT],
        "step 1\nstop\n": ["go\n" + WRONG, WRONG],
    }
    found = scripted(rollouts).run(RolloutTree(k=2).label, solution(2, ending="stop"))
    assert (found.first_error, found.others) == (1, ())
    rollouts["step 1\nstop\n"] = [RIGHT, "go\n" + WRONG]
    rollouts["step 1\nstop\ngo\n"] = [RIGHT, RIGHT]
    found = scripted(rollouts).run(RolloutTree(k=2).label, solution(2, ending="stop"))
    assert (found.first_error, found.abstained) == (None, False)
    assert evidence(found.labelled) == [None, (1, 2)]
    assert [other.solution.texts for other in found.others] == [("step 1", "stop", "go", WRONG)]


def test_one_rollout_that_cannot_be_read_again_costs_only_its_own_search():
    def write(prefix: str, number: int) -> str:
        if prefix.startswith("long"):
            raise InputError("too long")
        return [RIGHT, "long\n" + WRONG, "a\n" + WRONG][number] if not prefix else RIGHT

    grown = World(write).run(RolloutTree(k=3).grow, PROBLEM, ())
    assert [(one.first_error, one.abstained) for one in grown.rollouts] == [(None, True), (1, False)]


# ---------------------------------------------------------------- against truth


@pytest.mark.parametrize("searches", [1, 30])
def test_a_tree_against_truth(searches):
    world = stumbling()
    labeller = RolloutTree(k=24, searches=searches)
    solutions = [stumbled(first_bad) for first_bad in (0, 3, 6)]
    found = world.label(solutions, labeller, store=MemoryReplies())
    assert [one.first_error for one in found] == [0, 3, 6]
    # One store: solutions of one problem share every common prefix.
    assert len(world.asked) == len(set(world.asked))
    for one in found:
        assert len(one.others) == searches - 1
        for other in one.others:
            place = next((n for n, own in enumerate(ratings(other)) if own == -1), None)
            # 24 rollouts, 8 lines, 12 slips in 100: a good prefix nearly always has a success.
            assert place == truth(other)
            for step, value in enumerate(evidence(other)):
                if value is not None and value[0]:
                    assert step < truth(other)


def test_the_tree_s_evidence_is_drawn_from_v():
    policy = ArithmeticPolicy(SolverSettings(repair_rate=0.0))
    k = 8
    drawn = expected = spread = unlucky = missed = 0.0
    searched = 0
    for known in wrong_solutions(6, seed=5, settings=policy.settings):
        labeller = RolloutTree(k=k, searches=8)
        found = asyncio.run(labeller.label(known.solution, policy, BatchVerifier(NumberVerifier())))
        states = {}
        for one in (found.labelled, *found.others):
            texts = one.solution.texts
            _, first_error = true_labels(known.problem, texts)
            values = true_values(known.problem, texts, policy.settings)
            # This solver never recovers: a success proves that all before it is right, so errors are found late by no step.
            place = next((n for n, rating in enumerate(ratings(one)) if rating == -1), None)
            assert place is None or place <= first_error
            assert place is None or (place == first_error) == (values[place + 1] == 0)
            for step, value in enumerate(evidence(one)[:-1]):
                if value is not None:
                    states[texts[: step + 1]] = (value, values[step + 1])
            searched += 1
        for (successes, trials), v in states.values():
            assert trials == k
            drawn, expected, spread = drawn + successes, expected + k * v, spread + k * v * (1 - v)
            if v:
                unlucky, missed = unlucky + (successes == 0), missed + (1 - v) ** k
    assert searched > 30
    # A martingale, whatever chooses the states: within four standard deviations.
    assert abs(drawn - expected) < 4 * math.sqrt(spread)
    assert abs(unlucky - missed) < 4 * math.sqrt(missed)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1), st.integers(5, 30), st.integers(0, 40), st.integers(2, 6), st.integers(1, 25))
def test_what_holds_in_every_tree(given_one, slips, rescues, k, searches):
    world = stumbling(slips=slips, rescues=rescues)
    given = (stumbled(slips % 7),) if given_one else ()
    grown = world.run(RolloutTree(k=k, searches=searches).grow, PROBLEM, given)
    assert isinstance(grown, TreeLabels)
    # No prefix is rolled out twice, so no sample is asked for twice; what is asked is what is counted.
    assert len(set(world.asked)) == len(world.asked) == grown.cost.rollouts
    assert grown.cost.rollouts == k * grown.cost.probes
    assert set(Counter(world.prefixes).values()) == {k}
    # No text is searched twice.
    paths = [*grown.given, *grown.rollouts]
    wholes = ["".join(prefixes(on_lines(one.labelled.solution.steps))[-1:]).rstrip() for one in paths]
    assert len(wholes) == len(set(wholes))
    assert len(paths) <= max(searches, len(given))
    states = {prefix: evidence_of(world, prefix, k) for prefix in set(world.prefixes)}
    for one in paths:
        own = on_lines(one.labelled.solution.steps)
        texts = prefixes(own)
        assert texts[-1].rstrip() in wholes
        # Every state on the way stands in the evidence, and nothing else does.
        for step, value in enumerate(evidence(one.labelled)):
            if texts[step + 1] in states:
                assert value == states[texts[step + 1]]
            else:
                assert value == ((0, 1) if step == len(own) - 1 else None)
        if one.abstained:
            assert not grown.successes
            continue
        # The search's own claim: a success just before the error (or the root), none at it.
        place = one.first_error
        assert place is not None
        before, at = evidence(one.labelled)[place - 1] if place else (1, 1), evidence(one.labelled)[place]
        assert before is not None
        assert at is not None
        assert before[0]
        assert not at[0]
        assert ratings(one.labelled) == [1] * place + [-1] + [None] * (len(own) - place - 1)
    # Every state lies on a path.
    assert set(states) <= {
        text for one in paths for text in prefixes(on_lines(one.labelled.solution.steps))
    } | {""}


def evidence_of(world: World, prefix: str, k: int) -> tuple[int, int]:
    """(successes, trials) of a prefix by asking the world itself once more."""
    texts = [stumble_again(world, prefix, number) for number in range(k)]
    return sum(text.endswith(RIGHT) for text in texts), k


def stumble_again(world: World, prefix: str, number: int) -> str:
    asked, prefixes_seen = list(world.asked), list(world.prefixes)
    request = Completions(
        prompt=(Message(role="user", content="x"),), prefill=prefix, temperature=1.0, first=number
    )
    ((written,),) = world.policy.complete_many([request])  # type: ignore[misc]
    world.asked[:], world.prefixes[:] = asked, prefixes_seen
    return written.text


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_that_was_stopped_anywhere_goes_on(recorded):
    labeller = RolloutTree(k=4, searches=6)
    solutions = [stumbled(4), stumbled(2)]
    whole, store = stumbling(), MemoryReplies()
    expected = whole.label(solutions, labeller, store=store)
    assert all(isinstance(one, Labelling) and one.others for one in expected)
    for after in range(1, len(store) + 8, 7):
        broken, cut = stumbling(), CutStore(after, recorded=recorded)
        try:
            again = broken.label(solutions, labeller, store=cut)
        except Cut:
            world = stumbling()
            assert world.label(solutions, labeller, store=cut) == expected
            lost = [key for key in cut.lost if key in set(whole.asked)]
            assert sorted(broken.asked + world.asked) == sorted(whole.asked + lost)
        else:
            assert again == expected
            assert after > len(store)
            return
    pytest.fail("the run never ended")


# ---------------------------------------------------------------- cutting


def test_a_branch_keeps_its_prefix_and_counts_offsets_from_the_beginning():
    begun = split("1. one\n2. two\n", "numbered").steps
    steps, way = cut_branch(begun, "3. three\n4. four", "numbered")
    assert way == "numbered"
    assert [step.text for step in steps] == ["1. one", "2. two", "3. three", "4. four"]
    text = "1. one\n2. two\n3. three\n4. four"
    assert "".join(step.raw for step in steps) == text
    assert all(text[step.start : step.start + len(step.text)] == step.text for step in steps)  # type: ignore[operator]
    # Alone, the third item would be two lines; after the others it is an item.
    steps, way = cut_branch(begun, "3. three\nand more", "auto")
    assert (way, steps[2:]) == ("numbered", (Step(text="3. three\nand more", start=14),))
    # No border at the prefix's end: what follows is cut by itself.
    steps, _ = cut_branch((Step(text="so x", start=0),), " = 3\nend", "line")
    assert [(step.text, step.start) for step in steps] == [("so x", 0), (" = 3", 4), ("end", 9)]


@given(
    st.text(alphabet="ab \n$.1", min_size=1).filter(str.strip),
    st.text(alphabet="ab \n$.1", min_size=1).filter(str.strip),
    st.sampled_from(["line", "blank-line", "sentence", "numbered", "auto", "whole", "token"]),
    st.integers(0, 9),
)
def test_no_branch_loses_a_character(before, text, way, kept):
    begun = split(before, way).steps[:kept]
    steps, _ = cut_branch(begun, text, way)
    assert steps[: len(begun)] == begun
    assert len(steps) > len(begun)
    whole = "".join(step.raw for step in begun) + text
    assert prefixes(steps)[-1] == whole
    assert all(whole[step.start : step.start + len(step.text)] == step.text for step in steps)  # type: ignore[operator]


def test_how_rollouts_are_cut():
    one = solution(2)
    assert way_of(()) == way_of((one,)) == "line"
    cut = Solution(problem=PROBLEM, steps=split("a\n\nb", "blank-line").steps, split="blank-line", id="t")
    assert way_of((cut,)) == "blank-line"
    for several in ((one, cut), (Solution(problem=PROBLEM, steps=one.steps, split="agent", id="s"),)):
        with pytest.raises(InputError, match="cannot be cut as these solutions were"):
            way_of(several)
