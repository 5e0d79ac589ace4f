"""The adjudicator's queue: what is on it, in which order, and what takes it off."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.annotation.agreement import aliases, disputes, gap, side_by_side
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Answer, Decision, Marks, marks_of_first_error, marks_of_ratings
from stepmark.errors import InputError
from stepmark.records import Solution


def item(name, steps=5):
    return Item(id=name, solution=Solution.of("What is 1 + 1?", [f"step {n}" for n in range(steps)]))


def first(account, name, error, *, steps=5, at=1.0, submitted=True):
    marks = marks_of_first_error(error, steps, submitted=submitted)
    return Answer(item=name, account=account, marks=marks, at=at)


def rated(account, name, *ratings):
    return Answer(item=name, account=account, marks=marks_of_ratings(ratings), at=1.0)


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
    assert [one.kind for one in found] == ["opposite"] * 3 + ["neutral"]
    assert all(one.state == "open" and one.decision is None for one in found)
    assert found[0].why == "Ann finds the first error at step 1 of 5, Bob finds none"
    assert found[2].why == "Ann puts the first error at step 3, Bob at step 4 of 5"
    assert found[3].why == "Ann rates step 2 of 5 neutral, Bob right; 3 more steps differ"
    assert found[1].annotators == ("Ann", "Bob", "Cid")


def test_a_decision_takes_it_off():
    answers = [first("Ann", "a", 1), first("Bob", "a", 3)]
    assert disputes([item("a")], answers, [decision("a", 1)]) == []
    (kept,) = disputes([item("a")], answers, [decision("a", 1)], decided=True)
    assert (kept.state, kept.decision.account, kept.why) == (
        "decided",
        "Zoe",
        "Ann puts the first error at step 2, Bob at step 4 of 5",
    )


def test_a_changed_answer_brings_it_back():
    decided = [decision("a", 1)]
    (back,) = disputes([item("a")], [first("Ann", "a", 1), first("Bob", "a", 4, at=11.0)], decided)
    assert (back.state, back.decision) == ("reopened", decided[0])
    # Changed to what was decided: nothing to decide again.
    assert disputes([item("a")], [first("Ann", "a", 1), first("Bob", "a", 1, at=11.0)], decided) == []
    # All of one mind now, against the decision.
    (turned,) = disputes([item("a")], [first("Ann", "a", 4, at=12.0), first("Bob", "a", 4, at=11.0)], decided)
    assert turned.why == "Ann puts the first error at step 5, the decision at step 2 of 5"
    assert turned.annotators == ("Ann", "Bob")
    # Decided again.
    answers = [first("Ann", "a", 1), first("Bob", "a", 4, at=11.0)]
    assert disputes([item("a")], answers, [decision("a", 4, at=12.0), *decided]) == []


def test_a_late_annotator_brings_it_back():
    answers = [first("Ann", "a", 1, at=1.0), first("Bob", "a", 3, at=1.0), first("Cid", "a", 0, at=2.0)]
    assert disputes([item("a")], answers, [decision("a", 1)])[0].state == "reopened"
    assert disputes([item("a")], answers, [decision("a", 1, over=("Ann", "Bob", "Cid"))]) == []


def test_side_by_side():
    answers = [first("Bob", "a", 3), first("Ann", "a", 1), first("Cid", "a", 1), first("Dan", "b", 1)]
    found = side_by_side(item("a"), answers)
    assert found.labels == ("Ann", "Bob", "Cid")
    assert [answer.account for answer in found.answers] == ["Ann", "Bob", "Cid"]
    assert found.first_errors == (1, 3, 1)
    assert found.differing == (1,)  # Ann judged nothing after step 1
    assert len(found.why) == 2
    assert found.decision is None
    with pytest.raises(InputError, match=r"item 'b'.*found none"):
        side_by_side(item("b"), answers[:3])


def test_the_version_follows_the_answers():
    answers = [first("Bob", "a", 3), first("Ann", "a", 1)]
    version = side_by_side(item("a"), answers).version
    assert side_by_side(item("a"), answers[::-1], blind=True).version == version
    noted = replace(answers[0].marks, notes=((None, "sure"), (2, "see above")))
    flagged = replace(answers[0].marks, unsure=frozenset({None, 1}))
    for other in (
        [first("Bob", "a", 2), answers[1]],
        [*answers, first("Cid", "a", 1)],
        [replace(answers[0], marks=noted), answers[1]],
        [replace(answers[0], marks=flagged), answers[1]],
    ):
        assert side_by_side(item("a"), other).version != version


def test_letters_do_not_follow_a_person():
    people = [f"person {n}" for n in range(30)]
    assert sorted(aliases("a", people).values(), key=lambda name: (len(name), name))[24:28] == [
        "Y",
        "Z",
        "AA",
        "AB",
    ]
    assert aliases("a", people) == aliases("a", reversed(people))
    assert len({aliases(f"item {n}", ["Ann", "Bob"])["Ann"] for n in range(20)}) == 2


marks = st.one_of(
    st.integers(-1, 3).map(lambda error: marks_of_first_error(error, 4)),
    st.lists(st.sampled_from([-1, 0, 1, None]), min_size=4, max_size=4).map(marks_of_ratings),
)


@given(st.lists(marks, min_size=2, max_size=4))
def test_severity_is_bounded_and_symmetric(said: list[Marks]):
    answers = [Answer(item="a", account=f"person {n}", marks=one) for n, one in enumerate(said)]
    backwards = [replace(answer, account=f"person {9 - n}") for n, answer in enumerate(answers)]
    found, turned = disputes([item("a", 4)], answers), disputes([item("a", 4)], backwards)
    assert [one.severity for one in found] == [one.severity for one in turned]
    worst = max((one.severity for a, b in combinations(said, 2) if (one := gap(a, b))), default=None)
    assert [one.severity for one in found] == ([] if worst is None else [worst])
    names = [answer.account for answer in answers]
    assert all(one.why.split()[0] == "person" and one.annotators == tuple(names) for one in found)
    for one in found:
        low, high = (0.5, 1) if one.kind == "opposite" else (0, 0.5)
        assert low < one.severity <= high
