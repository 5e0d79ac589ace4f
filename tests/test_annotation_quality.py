"""Accuracy, speed, overrides, screening and progress of annotators, worked by hand."""

from __future__ import annotations

import pytest

from stepmark.annotation.agreement import annotator_quality, project_progress
from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.marks import Answer, marks_of_first_error, marks_of_ratings
from stepmark.records import Solution


def item(name, steps=4, **known):
    return Item(id=name, solution=Solution.of("What is 1 + 1?", [f"step {n}" for n in range(steps)]), **known)


def answer(account, name, error=-1, *, steps=4, submitted=True, **known):
    marks = marks_of_first_error(error, steps, submitted=submitted)
    return Answer(item=name, account=account, marks=marks, **known)


def known(name, error, role, steps=4):
    return item(name, steps, role=role, gold=marks_of_first_error(error, steps))


def test_accuracy_on_gold():
    items = [known("g1", 2, "gold"), known("g2", -1, "gold"), known("g3", 0, "gold"), item("w")]
    answers = [
        answer("Ann", "g1", 2),  # 3 of 3 judged steps
        answer("Ann", "g2", 1),  # of steps 0 and 1 the first
        answer("Ann", "g3", 0, submitted=False),  # not yet
        answer("Ann", "w", 0),
        answer("Bob", "g1", 0),
    ]
    found = annotator_quality("Ann", items, answers)
    assert (found.gold.items, found.gold.exact.value) == (2, 0.5)
    # Wilson at 1 of 2: centre 1/2, half width z / (2 (2 + z^2)) * sqrt(2 + z^2) = z / (2 sqrt(2 + z^2)).
    z = 1.959964
    assert found.gold.exact.low == pytest.approx(0.5 - z / (2 * (2 + z * z) ** 0.5), abs=1e-6)
    assert (found.screening.items, found.screening.exact.value, found.passed) == (0, None, None)


def test_screening():
    items = [
        known("s1", 2, "screening"),
        known("s2", -1, "screening"),
        known("s3", 0, "screening"),
        item("w"),
    ]
    answers = [answer("Ann", "s1", 2), answer("Ann", "s2", 0), answer("Bob", "s1", 1)]
    assert annotator_quality("Ann", items, answers, pass_mark=0.1).passed is None
    answers.append(answer("Ann", "s3", 0))
    assert annotator_quality("Ann", items, answers, pass_mark=2 / 3).passed is True  # exactly the mark
    failed = annotator_quality("Ann", items, answers, pass_mark=0.67)
    assert (failed.passed, failed.screening.exact.value) == (False, pytest.approx(2 / 3))
    assert annotator_quality("Ann", [item("w")], answers, pass_mark=0.5).passed is None


def test_speed_is_a_median():
    items = [item("a", 4), item("b", 4), item("c", 4), item("d", 4)]
    answers = [answer("Ann", name, seconds=s) for name, s in zip("abc", (8.0, 400.0, 20.0), strict=True)]
    answers.append(answer("Ann", "d", seconds=1.0, submitted=False))
    assert annotator_quality("Ann", items, answers).seconds_a_step == 5
    assert annotator_quality("Bob", items, answers).seconds_a_step is None


def test_overrides():
    wrong_at_1 = tuple(Suggestion(judge="prm", rating=r, score=s) for r, s in ((1, 0.9), (-1, 0.2), (1, 0.8)))
    items = [item("a", 3, suggestions=wrong_at_1), item("b", 3), item("c", 3, suggestions=wrong_at_1)]
    by_steps = {
        "a": marks_of_ratings((1, 1, -1)),  # two of three overridden
        "c": marks_of_ratings((1, -1, None)),  # one not judged
    }
    answers = [Answer(item=name, account="Ann", marks=marks) for name, marks in by_steps.items()]
    answers.append(answer("Ann", "b", 2, steps=3))  # nothing was suggested
    found = annotator_quality("Ann", items, answers)
    assert (found.overridden.count, found.overridden.of, found.overridden.value) == (2, 5, 0.4)
    assert annotator_quality("Ann", items, answers, shown=False).overridden.value is None


def test_progress_of_all():
    items = [item(name) for name in "abcd"] + [known("g", 1, "gold")]
    answers = [
        answer("Ann", "a", seconds=10.0, at=1000.0),
        answer("Bob", "a", seconds=20.0, at=1050.0),
        answer("Cid", "a", seconds=30.0, at=1060.0),  # over the overlap
        answer("Ann", "b", seconds=40.0, at=1100.0),
        answer("Ann", "g", seconds=40.0, at=1100.0),
    ]
    found = project_progress(items, answers, overlap=2, now=1120.0)
    assert (found.submitted, found.of, found.seconds_each, found.work_left) == (3, 8, 25, 125)
    # Three answers after the first, in the 120 seconds since it: 5 more take 200.
    assert found.eta == pytest.approx(200)


def test_no_rate_no_eta():
    items = [item("a"), item("b"), item("c")]
    assert project_progress(items, [], now=0.0).eta is None
    one = [answer("Ann", "a", at=5.0)]
    assert project_progress(items, one, now=50.0).eta is None
    assert project_progress(items, [*one, answer("Ann", "b")], now=50.0).eta is None  # a time is missing
    assert project_progress(items, [*one, answer("Ann", "b", at=5.0)], now=5.0).eta is None
    done = [answer("Ann", name, at=float(n), seconds=3.0) for n, name in enumerate("abc")]
    finished = project_progress(items, done, now=9.0)
    assert (finished.submitted, finished.work_left, finished.eta) == (3, 0, 0)
