"""Agreement and progress of annotators, and the disagreements that the admin decides, from tables worked by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation_marks import marks_of_first_error, marks_of_ratings
from stepmark.annotation.disputes import (
    disputes,
    project_progress,
    severity,
    side_by_side,
    step_agreement,
)
from stepmark.annotation.items import Item
from stepmark.annotation.marks import AnnotatorMarks, Decision, Marks
from stepmark.errors import InputError
from stepmark.records import Solution


def item(name, steps=5, **known):
    return Item(id=name, solution=Solution.of("What is 1 + 1?", [f"step {n}" for n in range(steps)]), **known)


def first(account, name, error, *, steps=5, at=1.0, submitted=True):
    marks = marks_of_first_error(error, steps, submitted=submitted)
    return AnnotatorMarks(item=name, account=account, marks=marks, at=at)


def rated(account, name, *ratings):
    return AnnotatorMarks(item=name, account=account, marks=marks_of_ratings(ratings), at=1.0)


def test_first_errors_by_hand():
    items = [item(name) for name in "abcd"]
    answers = [
        first("Ann", "a", 2),
        first("Bob", "a", 2),  # exact
        first("Ann", "b", 1),
        first("Bob", "b", 2),  # within one
        first("Ann", "c", 4),
        first("Bob", "c", -1),  # the last step against none: never within one
        first("Ann", "d", 0),  # alone
    ]
    found = step_agreement(items, answers)
    assert (found.items, found.annotators, found.answer_pairs) == (3, 2, 3)
    assert found.exact.value == pytest.approx(1 / 3)
    assert found.within_one.value == pytest.approx(2 / 3)
    # Steps that both judged: a: ++ ++ --; b: ++ -+; c: ++ ++ ++ ++ -+. n = 20, n_- = 4, n_+ = 16, o(+-) + o(-+) = 4.
    # D_o = 4/20, D_e = 2*4*16/(20*19): alpha = 1 - (1/5)(380/128).
    assert (found.nominal.units, found.nominal.ratings) == (10, 20)
    assert found.nominal.value.value == pytest.approx(1 - 380 / 640)
    assert found.ordinal.value.value == pytest.approx(1 - 380 / 640)


@pytest.mark.parametrize(
    ("ann", "bob", "near"),
    [(0, 1, True), (2, 1, True), (0, 2, False), (-1, 0, False), (0, -1, False), (-1, -1, True)],
)
def test_within_one(ann, bob, near):
    found = step_agreement([item("a")], [first("Ann", "a", ann), first("Bob", "a", bob)])
    assert found.within_one.value == near


def test_three_annotators_count_by_pairs():
    answers = [first("Ann", "a", 1), first("Bob", "a", 1), first("Cid", "a", 3)]
    found = step_agreement([item("a")], answers)
    assert (found.answer_pairs, found.annotators) == (3, 3)
    assert found.exact.value == pytest.approx(1 / 3)


def test_an_unknown_first_error_is_no_pair():
    # Bob has left step 1 unrated and calls step 2 wrong: where his first error is, nobody knows.
    answers = [rated("Ann", "a", 1, 1, -1), rated("Bob", "a", 1, None, -1)]
    found = step_agreement([item("a", 3)], answers)
    assert (found.items, found.answer_pairs, found.exact.value) == (1, 0, None)
    assert found.nominal.units == 2


def test_what_is_left_aside():
    answers = [
        first("Ann", "a", 1),
        first("Bob", "a", 2, submitted=False),
        first("Ann", "g", 1),
        first("Bob", "g", 3),
        first("Ann", "unknown", 1),
        first("Bob", "unknown", 1),
    ]
    found = step_agreement([item("a"), item("g")], answers)
    assert (found.items, found.exact.value) == (1, 0)


def test_the_first_pass_counts():
    """Where suggestions are shown after it: what was changed then agrees with the machine."""
    ann = first("Ann", "a", 1)
    bob = replace(first("Bob", "a", 1), first_pass=marks_of_first_error(3, 5))
    assert step_agreement([item("a")], [ann, bob]).exact.value == 0


def test_agreement_of_nothing():
    found = step_agreement([item("a")], [])
    assert (found.items, found.annotators) == (0, 0)
    assert (found.exact.value, found.nominal.value.value, found.nominal.why) == (None, None, "no pairs")


def test_full_agreement_on_few_items_is_not_certain():
    items = [item(name) for name in "abc"]
    answers = [first(who, name, place) for who in ("Ann", "Bob") for place, name in enumerate("abc")]
    found = step_agreement(items, answers)
    assert (found.exact.value, found.exact.high) == (1, 1)
    assert found.exact.low == pytest.approx(3 / (3 + 1.959964**2), abs=1e-6)  # Wilson's at 3 of 3


def test_severity_by_hand():
    def after(k):
        return marks_of_first_error(k, 5)

    assert severity(after(2), after(2)) is severity(after(2), after(None)) is None
    assert severity(after(0), after(2)) == 0.5 + 0.5 * 2 / 5
    # No error counts as the place after the last step; from the first to there is the whole length.
    assert severity(after(-1), after(0)) == 1
    for left, right, expected in (
        ((1, 1, 0), (1, 0, 0), 0.5 / 3),
        # All neutral against all right stays under the least opposite pair.
        ((0,) * 4, (1,) * 4, 0.5),
        ((1,) * 4, (1, 1, 1, -1), 0.5 + 0.5 / 4),
        # Unjudged against judged is no disagreement.
        ((1, None, None), (1, -1, 1), None),
    ):
        assert severity(marks_of_ratings(left), marks_of_ratings(right)) == (
            expected and pytest.approx(expected)
        )


def test_progress_of_all():
    items = [item(name) for name in "abcd"]
    answers = [
        first("Ann", "a", 1),
        first("Bob", "a", 1),
        first("Cid", "a", 1),  # over the overlap
        first("Ann", "b", 1),
        first("Ann", "c", 1, submitted=False),
    ]
    assert project_progress(items, answers, overlap=2) == {"submitted": 3, "of": 8}


def decision(name, error, *, at=10.0, over=("Ann", "Bob")):
    return Decision(item=name, account="Zoe", marks=marks_of_first_error(error, 5), over=over, at=at)


def test_worst_first():
    items = [item(name) for name in ("same", "near", "far", "neutral", "alone", "three")]
    answers = [
        first("Ann", "same", 2),
        first("Bob", "same", 2),
        first("Ann", "near", 2),
        first("Bob", "near", 3),
        first("Ann", "far", 0),
        first("Bob", "far", -1),
        rated("Ann", "neutral", 1, 0, 0, 0, 0),
        rated("Bob", "neutral", 1, 1, 1, 1, 1),
        first("Ann", "alone", 1),
        first("Ann", "three", 2),
        first("Bob", "three", 3),
        first("Cid", "three", 3),
    ]
    found = disputes(items, answers)
    # "three" is as bad as "near", and three people are about it.
    assert [one.item for one in found] == ["far", "three", "near", "neutral"]
    assert [one.severity for one in found] == [1.0, 0.6, 0.6, 0.4]
    assert all(one.state == "open" for one in found)
    assert found[1].annotators == ("Ann", "Bob", "Cid")


def test_a_decision_takes_it_off():
    answers = [first("Ann", "a", 1), first("Bob", "a", 3)]
    found = disputes(
        [item("a"), item("b")], [*answers, first("Ann", "b", 1), first("Bob", "b", 2)], [decision("a", 1)]
    )
    assert [(one.item, one.state) for one in found] == [("b", "open"), ("a", "decided")]


def test_a_changed_answer_brings_it_back():
    decided = [decision("a", 1)]
    (back,) = disputes([item("a")], [first("Ann", "a", 1), first("Bob", "a", 4, at=11.0)], decided)
    assert back.state == "reopened"
    # Changed to what was decided: nothing to decide again.
    assert disputes([item("a")], [first("Ann", "a", 1), first("Bob", "a", 1, at=11.0)], decided) == []
    # All of one mind now, against the decision.
    (turned,) = disputes([item("a")], [first("Ann", "a", 4, at=12.0), first("Bob", "a", 4, at=11.0)], decided)
    assert (turned.state, turned.annotators) == ("reopened", ("Ann", "Bob"))
    # Decided again.
    answers = [first("Ann", "a", 1), first("Bob", "a", 4, at=11.0)]
    assert disputes([item("a")], answers, [*decided, decision("a", 4, at=12.0)])[0].state == "decided"


def test_a_late_annotator_brings_it_back():
    answers = [first("Ann", "a", 1, at=1.0), first("Bob", "a", 3, at=1.0), first("Cid", "a", 0, at=2.0)]
    assert disputes([item("a")], answers, [decision("a", 1)])[0].state == "reopened"
    (kept,) = disputes([item("a")], answers, [decision("a", 1, over=("Ann", "Bob", "Cid"))])
    assert kept.state == "decided"


def test_side_by_side():
    answers = [first("Bob", "a", 3), first("Ann", "a", 1), first("Cid", "a", 1), first("Dan", "b", 1)]
    found = side_by_side(item("a"), answers)
    assert [answer.account for answer in found.answers] == ["Ann", "Bob", "Cid"]
    assert found.differing == (1,)  # Ann judged nothing after step 1
    assert found.decision is None
    with pytest.raises(InputError, match=r"item 'b'.*found none"):
        side_by_side(item("b"), answers[:3])


def test_the_version_follows_the_answers():
    answers = [first("Bob", "a", 3), first("Ann", "a", 1)]
    version = side_by_side(item("a"), answers).version
    assert side_by_side(item("a"), answers[::-1]).version == version
    noted = replace(answers[0].marks, notes=((None, "sure"), (2, "see above")))
    flagged = replace(answers[0].marks, unsure=frozenset({None, 1}))
    for other in (
        [first("Bob", "a", 2), answers[1]],
        [*answers, first("Cid", "a", 1)],
        [replace(answers[0], marks=noted), answers[1]],
        [replace(answers[0], marks=flagged), answers[1]],
    ):
        assert side_by_side(item("a"), other).version != version


marks = st.one_of(
    st.integers(-1, 3).map(lambda error: marks_of_first_error(error, 4)),
    st.lists(st.sampled_from([-1, 0, 1, None]), min_size=4, max_size=4).map(marks_of_ratings),
)


@given(st.lists(marks, min_size=2, max_size=4))
def test_severity_is_bounded_and_symmetric(said: list[Marks]):
    answers = [AnnotatorMarks(item="a", account=f"person {n}", marks=one) for n, one in enumerate(said)]
    backwards = [replace(answer, account=f"person {9 - n}") for n, answer in enumerate(answers)]
    found, turned = disputes([item("a", 4)], answers), disputes([item("a", 4)], backwards)
    assert [one.severity for one in found] == [one.severity for one in turned]
    worst = max((far for pair in combinations(said, 2) if (far := severity(*pair))), default=None)
    assert [one.severity for one in found] == ([] if worst is None else [worst])
    names = [answer.account for answer in answers]
    assert all(one.annotators == tuple(names) for one in found)
    for one in found:
        assert 0 < one.severity <= 1
