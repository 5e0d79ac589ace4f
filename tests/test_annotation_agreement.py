"""Agreement of annotators on steps and on first errors, from tables worked by hand."""

from __future__ import annotations

import pytest

from stepmark.annotation.agreement import gap, step_agreement
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Answer, marks_of_first_error, marks_of_ratings
from stepmark.records import Solution


def item(name, steps=5, **known):
    return Item(id=name, solution=Solution.of("What is 1 + 1?", [f"step {n}" for n in range(steps)]), **known)


def first(account, name, error, *, steps=5, submitted=True, **known):
    marks = marks_of_first_error(error, steps, submitted=submitted)
    return Answer(item=name, account=account, marks=marks, **known)


def rated(account, name, *ratings, **known):
    return Answer(item=name, account=account, marks=marks_of_ratings(ratings), **known)


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
    (pair,) = found.pairs
    assert (pair.annotators, pair.items) == (("Ann", "Bob"), 3)
    assert pair.exact.value == pytest.approx(1 / 3)
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
    assert found.within_one.value == found.pairs[0].within_one.value == near


def test_three_annotators_count_by_pairs():
    answers = [first("Ann", "a", 1), first("Bob", "a", 1), first("Cid", "a", 3)]
    found = step_agreement([item("a")], answers)
    assert (found.answer_pairs, found.annotators) == (3, 3)
    assert found.exact.value == pytest.approx(1 / 3)
    assert [pair.annotators for pair in found.pairs] == [("Ann", "Bob"), ("Ann", "Cid"), ("Bob", "Cid")]
    assert [pair.exact.value for pair in found.pairs] == [1, 0, 0]


def test_an_unknown_first_error_is_no_pair():
    # Bob has left step 1 unrated and calls step 2 wrong: where his first error is, nobody knows.
    answers = [rated("Ann", "a", 1, 1, -1), rated("Bob", "a", 1, None, -1)]
    found = step_agreement([item("a", 3)], answers)
    assert (found.items, found.answer_pairs, found.exact.value) == (1, 0, None)
    assert found.nominal.units == 2


def test_what_is_left_aside():
    items = [item("a"), item("s", role="screening"), item("g", role="gold")]
    answers = [
        first("Ann", "a", 1),
        first("Bob", "a", 2, submitted=False),
        first("Ann", "s", 1),
        first("Bob", "s", 1),
        first("Ann", "g", 1),
        first("Bob", "g", 3),
        first("Ann", "unknown", 1),
        first("Bob", "unknown", 1),
    ]
    found = step_agreement(items, answers)
    assert (found.items, found.exact.value) == (1, 0)


def test_agreement_of_nothing():
    found = step_agreement([item("a")], [])
    assert (found.items, found.annotators, found.pairs) == (0, 0, ())
    assert (found.exact.value, found.nominal.value.value, found.nominal.why) == (None, None, "no pairs")


def test_full_agreement_on_few_items_is_not_certain():
    items = [item(name) for name in "abc"]
    answers = [first(who, name, place) for who in ("Ann", "Bob") for place, name in enumerate("abc")]
    found = step_agreement(items, answers)
    assert (found.exact.value, found.exact.high) == (1, 1)
    assert found.exact.low == pytest.approx(3 / (3 + 1.959964**2), abs=1e-6)  # Wilson's at 3 of 3


def test_gaps():
    assert gap(marks_of_first_error(2, 5), marks_of_first_error(2, 5)) is None
    assert gap(marks_of_first_error(2, 5), marks_of_first_error(None, 5)) is None
    apart = gap(marks_of_first_error(0, 5), marks_of_first_error(2, 5))
    assert (apart.kind, apart.severity) == ("opposite", 0.5 + 0.5 * 2 / 5)
    # No error counts as the place after the last step; from the first to there is the whole length.
    assert gap(marks_of_first_error(-1, 5), marks_of_first_error(0, 5)).severity == 1
    assert gap(marks_of_ratings((1, 1, 0)), marks_of_ratings((1, 0, 0))).severity == pytest.approx(0.5 / 3)
    # All neutral against all right stays under the least opposite pair.
    assert gap(marks_of_ratings((0,) * 4), marks_of_ratings((1,) * 4)).severity == 0.5
    assert gap(marks_of_ratings((1,) * 4), marks_of_ratings((1, 1, 1, -1))).severity == 0.5 + 0.5 / 4
    # Unjudged against judged is no disagreement.
    assert gap(marks_of_ratings((1, None, None)), marks_of_ratings((1, -1, 1))) is None
