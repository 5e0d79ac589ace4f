"""Active order: the tiers, the mix, and that nothing is left to chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.live import ActiveOrder, active_order, uncertainty
from stepmark.errors import UsageError
from stepmark.records import Solution


def item(name, *scores, outcome=None):
    suggestions = tuple(None if s is None else Suggestion(judge="prm", score=s) for s in scores)
    steps = [f"step {n}" for n in range(max(1, len(scores)))]
    return Item(id=name, solution=Solution.of("Why?", steps), outcome=outcome, suggestions=suggestions)


def ranked(items, *settings, **known):
    order = active_order(items, *settings, **known)
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


def test_the_mix():
    wrong = [item(f"w{n}", 0.9 - n / 100, outcome=False) for n in range(9)]
    rest = [item(f"r{n}", 0.5 + n / 100) for n in range(5)]
    found = ranked([*rest, *wrong], ActiveOrder(convincing=0.8))
    assert found[:10] == ["w0", "w1", "w2", "w3", "r0", "w4", "w5", "w6", "w7", "r1"]
    assert found[10:] == ["w8", "r2", "r3", "r4"]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 20))
def test_the_mix_keeps_its_share_at_every_head(wrong, rest, twentieths):
    share = twentieths / 20
    items = [item(f"w{n}", 0.9, outcome=False) for n in range(wrong)] + [item(f"r{n}") for n in range(rest)]
    found = ranked(items, ActiveOrder(convincing=share))
    assert sorted(found) == sorted(one.id for one in items)
    seen = 0
    for count, name in enumerate(found, start=1):
        seen += name[0] == "w"
        if seen < wrong and count - seen < rest:
            # Rounded up, in whole numbers: no float of ours decides.
            assert seen == -(-count * twentieths // 20)


def test_the_threshold_decides_what_convinces():
    items = [item("low", 0.3, 0.3, outcome=False), item("doubt", 0.31)]
    assert ranked(items) == ["doubt", "low"]
    assert ranked(items, ActiveOrder(threshold=0.3)) == ["low", "doubt"]


def test_at_the_borders():
    # A score at the threshold is no error; an uncertainty at its border is uncertain.
    items = [item("disputed"), item("uncertain", 0.75), item("at the threshold", 0.5, outcome=False)]
    assert ranked(items, disputed={"disputed": 1.0}) == ["at the threshold", "uncertain", "disputed"]


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
    assert uncertainty([0.8], threshold=0.8) == 1
    assert uncertainty([0.4], threshold=0.8) == 0.5
    assert uncertainty([0.9], threshold=0.8) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "wrong", [{"convincing": 0.0}, {"convincing": 1.1}, {"threshold": 1.0}, {"uncertain": 0.0}]
)
def test_settings_out_of_range(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        ActiveOrder(**wrong)
