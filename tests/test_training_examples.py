"""From labelled rows to examples: what becomes a target, what is masked, and that what is left out is counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.training.examples import (
    Dropped,
    LabelRules,
    Target,
    by_problem,
    examples,
    split_problems,
    target_of,
)
from tiny_base import counted, example, rated


def judgement(rating, judge="human"):
    return Judgement(kind="correctness", judge=judge, rating=rating)


def rollouts(successes, trials, judge="rollout"):
    return Judgement(kind="value", judge=judge, successes=successes, trials=trials)


def labelled(problem, steps, judgements, *, repeated=0, outcome=None, where="", observations=None):
    """`judgements`: for each step a list of ratings or judgements."""
    seen = observations or [""] * len(steps)
    return LabelledRow(
        labelled=LabelledSolution(
            solution=Solution(
                problem=Problem(text=problem),
                steps=tuple(Step(text=s, observation=o) for s, o in zip(steps, seen, strict=True)),
            ),
            judgements=tuple(
                tuple(j if isinstance(j, Judgement) else judgement(j) for j in step) for step in judgements
            ),
        ),
        where=where,
        outcome=outcome,
        repeated=repeated,
    )


def row(problem, steps, *ratings):
    """A row of which only the last step is rated."""
    return labelled(problem, list(steps), [*[[]] * (len(steps) - 1), list(ratings)])


# One step

DISAGREE = "judges disagree on a step"


@pytest.mark.parametrize(
    ("ratings", "positive", "negative", "drop", "keep"),
    [
        ([], None, None, None, None),
        ([None], None, None, None, None),
        ([1], 1.0, 1.0, 1.0, 1.0),
        ([-1], 0.0, 0.0, 0.0, 0.0),
        ([0], 1.0, 0.0, "a neutral step", 1.0),
        ([0, 0], 1.0, 0.0, "a neutral step", 1.0),
        ([1, 1], 1.0, 1.0, 1.0, 1.0),
        ([1, None], 1.0, 1.0, 1.0, 1.0),
        ([1, -1], DISAGREE, DISAGREE, DISAGREE, DISAGREE),
        ([0, 1], 1.0, DISAGREE, DISAGREE, DISAGREE),
        ([0, -1], DISAGREE, 0.0, DISAGREE, DISAGREE),
    ],
)
def test_ratings_of_a_step(ratings, positive, negative, drop, keep):
    judgements = [judgement(r) for r in ratings]
    rules = {"positive": positive, "negative": negative, "drop": drop, "keep": keep}
    for neutral, wanted in rules.items():
        found = target_of(judgements, LabelRules(neutral=neutral), kind="correctness")
        assert (found.value if isinstance(found, Target) else found) == wanted
    # They say nothing of the chances to reach the answer.
    assert target_of(judgements, LabelRules(), kind="value") is None


@pytest.mark.parametrize(
    ("judgements", "wanted"),
    [
        ([rollouts(1, 4)], counted(1, 4)),
        ([rollouts(0, 4)], Target(value=0.0, successes=0, trials=4)),
        # Two experiments are added, the same told twice is not.
        ([rollouts(1, 4), rollouts(4, 4, "rollout:b")], counted(5, 8)),
        ([rollouts(1, 4), rollouts(1, 4)], counted(1, 4)),
        ([rollouts(0, 0)], "a step whose rollouts all have no verdict"),
        ([Judgement(kind="value", judge="rollout", share=0.7)], Target(value=0.7)),
        # Counts are evidence, a share beside them is not more of it.
        ([Judgement(kind="value", judge="a", share=0.9), rollouts(1, 2)], counted(1, 2)),
    ],
)
def test_rollouts_of_a_step(judgements, wanted):
    assert target_of(judgements, LabelRules(), kind="value") == wanted
    assert target_of(judgements, LabelRules(), kind="correctness") is None


def test_only_the_judge_that_is_asked_for():
    rows = [labelled("p", ["a", "b"], [[judgement(1, "human:ann")], [judgement(-1, "gpt")]])]
    dropped = Dropped()
    (one,) = examples(rows, LabelRules(judge="human"), dropped=dropped)
    assert one.targets == (rated(1), None)
    assert dropped.counts == {"steps without a judgement that counts": 1}
    (other,) = examples(rows, LabelRules(judge="gpt"))
    assert other.targets == (None, rated(-1))
    assert examples(rows, LabelRules(judge="hum")) == []


def test_ratings_where_a_row_has_any_else_values():
    both = labelled("p", ["a", "b"], [[rollouts(3, 4)], [1, rollouts(1, 4)]])
    values = labelled("q", ["a", "b"], [[rollouts(3, 4)], [rollouts(1, 4)]])
    dropped = Dropped()
    first, second = examples([both, values], dropped=dropped)
    assert first.targets == (None, rated(1))
    assert dropped.counts == {"steps without a judgement that counts": 1}
    assert second.targets == (counted(3, 4), counted(1, 4))
    (first, second) = examples([both, values], LabelRules(labels="value"))
    assert first.targets == second.targets == (counted(3, 4), counted(1, 4))
    (only,) = examples([both, values], LabelRules(labels="correctness"))
    assert only.targets == (None, rated(1))


def test_shares_where_a_row_has_any_else_ratings():
    """What the objectives that fit shares train on: Math-Shepherd's soft estimation of rows that hold its conclusions too."""
    rolled_out = labelled(
        "p", ["a", "b", "c"], [[rollouts(3, 4), 1], [rollouts(1, 4), 1], [rollouts(0, 4), -1]]
    )
    planted = labelled("p", ["a", "x", "y"], [[1], [-1], []])
    first, second = examples([rolled_out, planted], shares=True)
    assert first.targets == (counted(3, 4), counted(1, 4), counted(0, 4))
    # Another row rolled its first step out; its own labels are ratings.
    assert second.targets == (rated(1), rated(-1), None)
    (only,) = examples([rolled_out], LabelRules(labels="correctness"), shares=True)
    assert only.targets == (rated(1), rated(1), rated(-1))
    # Steps after the first error are masked by the conclusion, and no rollout of a sound prefix that failed by chance is one.
    unlucky = labelled("q", ["a", "b", "c"], [[rollouts(0, 1), 1], [rollouts(2, 4), 1], [rollouts(1, 4), -1]])
    (one,) = examples([unlucky], shares=True)
    assert one.targets == (counted(0, 1), counted(2, 4), counted(1, 4))


# Up to the first error


def last(rows, **rules):
    """(problem, steps, value of the last step) of each example, the only labelled one."""
    found = []
    for e in examples(rows, LabelRules(**rules)):
        assert e.targets[:-1] == (None,) * (len(e.targets) - 1)
        found.append((e.solution.problem.text, "".join(e.solution.texts), e.targets[-1].value))
    return found


ROWS = [
    row("p", "a", 1),
    row("p", "ab", -1),
    row("p", "abc", 1),  # after the error
    row("p", "abcd", -1),
    row("p", "ax", 0),
    row("p", "axc", -1),
    row("p", "z", -1),
    row("p", "zb", 1),  # after an error at the very first step
    row("q", "abc", 1),  # another problem, in which nothing is known of a b
]


def test_examples_stop_at_the_first_error_that_any_row_knows():
    kept = [
        ("p", "a", 1.0),
        ("p", "ab", 0.0),
        ("p", "ax", 1.0),
        ("p", "axc", 0.0),
        ("p", "z", 0.0),
        ("q", "abc", 1.0),
    ]
    assert last(ROWS) == kept
    assert sorted(last(ROWS[::-1])) == sorted(kept)
    # Where neutral is bad, x is an error, and what follows it goes.
    assert last(ROWS, neutral="negative") == [
        ("p", "a", 1.0),
        ("p", "ab", 0.0),
        ("p", "ax", 0.0),
        ("p", "z", 0.0),
        ("q", "abc", 1.0),
    ]
    assert len(last(ROWS, after_error="keep")) == len(ROWS)


def test_unjudged_steps_are_masked_and_unjudged_rows_counted():
    dropped = Dropped()
    rows = [row("p", "a"), row("p", "b", None), labelled("p", ["a", "b"], [[1], []])]
    (found,) = examples(rows, dropped=dropped)
    assert found.targets == (rated(1), None)
    assert dropped.counts == {
        "rows without a step to train on": 2,
        "steps without a judgement that counts": 1,
    }


@pytest.mark.parametrize("ratings", [(1, -1), (-1, 1), (1, -1, 1), (-1, None, 1, 1), (0, -1)])
def test_duplicates_that_disagree_are_none_in_any_order(ratings):
    rows = [row("p", "ab", r) for r in ratings]
    assert last(rows) == []
    assert last([row("p", "ab", *ratings)]) == []
    # And what is unknown is no known error: what follows it stays.
    assert last([*rows, row("p", "abc", 1)]) == [("p", "abc", 1.0)]


def test_what_the_world_answered_is_part_of_the_place():
    """The same steps after different tool results are two places: their ratings do not disagree."""
    rows = [
        labelled("p", ["look", "so"], [[1], [r]], observations=[seen, ""]) for r, seen in ((1, "5"), (-1, ""))
    ]
    assert [e.targets for e in examples(rows)] == [(rated(1), rated(1)), (rated(1), rated(-1))]


def test_a_branch_trains_only_what_leaves_the_line():
    main = labelled("p", ["a", "b", "c"], [[1], [1], [1]])
    branch = labelled("p", ["a", "b", "d"], [[1], [1], [-1]], repeated=2)
    assert [e.targets for e in examples([main, branch])] == [
        (rated(1), rated(1), rated(1)),
        (None, None, rated(-1)),
    ]


def test_outcomes_are_kept_joined_and_their_contradictions_told():
    def one(outcome, where, steps=("a",), ratings=((),)):
        return labelled("p", list(steps), [list(r) for r in ratings], outcome=outcome, where=where)

    dropped = Dropped()
    (found,) = examples([one(None, "f:1"), one(True, "f:2"), one(True, "f:3")], dropped=dropped)
    assert (found.outcome, found.targets) == (True, (None,))
    assert dropped.counts == {"rows that say the same as another": 2}
    dropped = Dropped()
    assert examples([one(False, "f:1"), one(True, "f:2")], dropped=dropped) == []
    assert dropped.counts == {"rows disagree on an outcome": 2, "rows without a step to train on": 2}
    assert dropped.first["rows disagree on an outcome"] == "f:1"
    (kept,) = examples([one(False, "f:1", ratings=[[1]]), one(True, "f:2", ratings=[[1]])])
    assert (kept.outcome, kept.targets) == (None, (rated(1),))


WORD = st.sampled_from("ab")
SAID = st.lists(
    st.one_of(
        st.sampled_from([-1, 0, 1, None]).map(judgement),
        st.sampled_from([-1, 1]).map(lambda r: judgement(r, "gpt")),
        st.integers(0, 2).map(lambda s: rollouts(s, 2)),
    ),
    max_size=2,
)
RULES = st.builds(
    LabelRules,
    labels=st.sampled_from(["auto", "correctness", "value"]),
    neutral=st.sampled_from(["positive", "negative", "drop"]),
    judge=st.sampled_from([None, "human"]),
    after_error=st.sampled_from(["mask", "keep"]),
)
OF_STEPS = (
    "judges disagree on a step",
    "a neutral step",
    "a step whose rollouts all have no verdict",
    "a step that the labeller wrote",
    "steps after an error",
    "steps without a judgement that counts",
)
OF_ROWS = ("rows that say the same as another", "rows without a step to train on")


@st.composite
def some_rows(draw):
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        steps = draw(st.lists(WORD, min_size=1, max_size=4))
        said = [draw(SAID) for _ in steps]
        repeated = draw(st.integers(0, len(steps) - 1))
        rows.append(labelled(draw(WORD), steps, said, repeated=repeated, where=f"f:{len(rows)}"))
    return rows


@settings(max_examples=80, deadline=None)
@given(some_rows(), RULES)
def test_every_judged_step_is_a_target_or_counted(rows, rules):
    # A last step of its own keeps every row apart, so that none is left out as a duplicate.
    apart = [
        labelled(
            r.solution.problem.text,
            [*r.solution.texts, f"end {i}"],
            [*r.labelled.judgements, [judgement(1), rollouts(1, 1, "human")]],
            repeated=r.repeated,
            where=r.where,
        )
        for i, r in enumerate(rows)
    ]
    dropped = Dropped()
    found = examples(apart, rules, dropped=dropped)
    judged = sum(bool(said) for r in apart for said in r.own.judgements)
    fitted = sum(t is not None for e in found for t in e.targets)
    assert fitted + sum(dropped.counts.get(why, 0) for why in OF_STEPS) == judged
    for e in found:
        before = [t.value == 0.0 for t in e.targets if t is not None]
        if rules.after_error == "mask":
            assert not any(before[:-1])


# Held-out problems


def test_a_problem_is_wholly_trained_on_or_held_out():
    rows = [example(f"problem {i % 20}", [f"s{i}"], [1.0]) for i in range(100)]
    assert [len(group) for group in by_problem(rows)] == [5] * 20
    training, held_out = split_problems(rows, 0.15, seed=3)
    names = [{e.solution.problem.text for g in part for e in g} for part in (training, held_out)]
    assert not names[0] & names[1]
    assert (len(names[0]), len(names[1])) == (17, 3)
    assert sum(len(g) for part in (training, held_out) for g in part) == 100
    assert split_problems(rows, 0.15, seed=3) == (training, held_out)
    assert split_problems(rows, 0.15, seed=4)[1] != held_out
    assert split_problems(rows, 0.0, seed=3)[1] == []


# PRM800K's records


def said(text, rating, flagged=None):
    return {"text": text, "rating": rating, "flagged": flagged}


def step(*completions, chosen=None, human=None):
    written = None if human is None else {"text": human, "rating": None, "source": "human", "flagged": False}
    return {
        "completions": list(completions) or None,
        "human_completion": written,
        "chosen_completion": chosen,
    }


def record(*steps, finish="solution"):
    return {
        "labeler": "ann",
        "timestamp": None,
        "generation": None,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": "What is 2 + 3, doubled?", "ground_truth_answer": "10"},
        "label": {"steps": list(steps), "total_time": 1, "finish_reason": finish},
    }


def trained(tmp_path, *records, **rules):
    """{steps: values} of the examples of PRM800K's own records, and what was left out of them."""
    file = tmp_path / "raw.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    dropped = Dropped()
    found = examples(read_labelled(file), LabelRules(**rules), dropped=dropped)
    rows = {e.solution.texts: tuple(None if t is None else t.value for t in e.targets) for e in found}
    assert len(rows) == len(found)
    return rows, dropped.counts


WALK = record(
    step(said("Add.", 1), said("Guess.", -1), said("Hm.", 0), said("Later.", None), chosen=0),
    step(said("2 + 3 = 6.", -1), said("It is 7.", -1, True), human="2 + 3 = 5."),
    step(said("Stop.", -1), said("Double it.", 0), chosen=1),
    step(said("10.", 1), chosen=0),
)
HUMAN = ("Add.", "2 + 3 = 5.")


def test_branches_of_prm800k_train_their_last_step_only(tmp_path):
    rows, dropped = trained(tmp_path, WALK)
    assert rows == {
        ("Guess.",): (0.0,),
        ("Hm.",): (1.0,),  # neutral is positive by default
        ("Add.", "2 + 3 = 6."): (None, 0.0),
        (*HUMAN, "Stop."): (None, None, 0.0),
        # The step that the labeller wrote is read and not trained on.
        (*HUMAN, "Double it.", "10."): (1.0, None, 1.0, 1.0),
    }
    assert dropped == {"a step that the labeller wrote": 1}
