"""Active order: the tiers, and that nothing is left to chance."""

from __future__ import annotations

import pytest

from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.live import active_order, uncertainty
from stepmark.records import Solution


def item(name, *scores, outcome=None):
    suggestions = tuple(None if s is None else Suggestion(judge="prm", score=s) for s in scores)
    steps = [f"step {n}" for n in range(max(1, len(scores)))]
    return Item(id=name, solution=Solution.of("Why?", steps), outcome=outcome, suggestions=suggestions)


def ranked(items, **known):
    order = active_order(items, **known)
    return sorted(order, key=lambda name: -order[name])


ITEMS = [
    item("plain"),
    item("sure", 0.99, 0.98),
    item("disputed", 0.99, 0.97),
    item("wrong, found", 0.9, 0.05, outcome=False),
    item("worse dispute"),
    item("doubtful", 0.9, 0.6),
    item("more doubtful", 0.52, 0.9),
    item("convincing", 0.8, 0.7, outcome=False),
    item("most convincing", 0.9, 0.9, outcome=False),
    item("right", 0.9, 0.95, outcome=True),
]
SPLIT = {"disputed": 0.3, "worse dispute": 0.9}


def test_the_tiers():
    assert ranked(ITEMS, disputed=SPLIT) == [
        "most convincing",  # 0.81
        "convincing",  # 0.56
        "more doubtful",  # 0.96
        "doubtful",  # 0.8
        "worse dispute",
        "disputed",
        "wrong, found",  # 0.2 at the first step, 0.1 at the second
        "right",  # 0.2, and stands later
        "sure",  # 0.04
        "plain",
    ]
    assert sorted(active_order(ITEMS).values()) == [float(n) for n in range(1, 11)]


def test_a_wrong_answer_with_an_unread_step_is_not_convincing():
    items = [item("unread", 0.9, None, outcome=False), item("read", 0.6, 0.6, outcome=False)]
    assert ranked(items) == ["read", "unread"]


def test_ties_stay_as_given():
    names = ["z", "a", "m", "b"]
    assert ranked([item(name, 0.9, outcome=False) for name in names]) == names
    assert ranked([item(name) for name in names]) == names


def test_uncertainty():
    assert uncertainty([0.5]) == 1
    assert uncertainty([1.0, 0.0]) == 0
    assert uncertainty([0.25]) == uncertainty([0.75]) == 0.5
    # After the first step under the threshold nothing is read.
    assert uncertainty([0.9, 0.1, 0.5]) == pytest.approx(0.2)
    assert uncertainty([None, 0.9]) == pytest.approx(0.2)
    assert uncertainty([]) is None
    assert uncertainty([None]) is None
