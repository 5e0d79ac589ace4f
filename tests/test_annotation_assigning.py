"""Who gets which item: places, leases, screening and gold, worked out by hand; and the active order's tiers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotation_worlds import Clock, an_item, anyio_backend, serving, suggestions
from stepmark.annotation.assigning import Assigning, Assignment, ItemFacts
from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.live import active_order, uncertainty
from stepmark.annotation.project import Gold, Project, Screening
from stepmark.records import Solution

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio
MINUTE = 60.0


def facts(id, position, role="work", order=0.0):
    return ItemFacts(
        id=id, position=position, role=role, steps=3, order=order, suggested=frozenset(), gold=None
    )


def made(count, project=None, clock=None, **roles):
    assigning = Assigning(project or Project(), clock or Clock())
    extra = [facts(id, count + at, role) for at, (id, role) in enumerate(roles.items())]
    assigning.add_items([*(facts(f"i{k}", k) for k in range(count)), *extra])
    return assigning


def given_to(assigning, account, after=None, screens=False):
    found, _ = assigning.next(account, after=after, screens=screens)
    return found.item if isinstance(found, Assignment) else found


def submit(assigning, account, item, correct=None):
    assigning.submit(assigning.of(account, item), seconds=1.0, correct=correct)


def test_one_place_an_item():
    assigning = made(2)
    assert given_to(assigning, 1) == "i0"
    assert given_to(assigning, 1) == "i0", "asked again, the same"
    assert given_to(assigning, 2) == "i1"
    assert given_to(assigning, 3) == "waiting"
    submit(assigning, 1, "i0")
    assert given_to(assigning, 1, after="i0") == "waiting"
    submit(assigning, 2, "i1")
    assert [given_to(assigning, account) for account in (1, 2, 3)] == ["done"] * 3


def test_a_lease_runs_out_and_on():
    clock = Clock()
    assigning = made(1, Project(lease_minutes=30), clock)
    assert given_to(assigning, 1) == "i0"
    clock.now += 29 * MINUTE
    assert assigning.renew(assigning.of(1, "i0")) is True  # a change
    clock.now += 29 * MINUTE
    assert given_to(assigning, 2) == "waiting"
    clock.now += 2 * MINUTE
    assert given_to(assigning, 2) == "i0"
    assert assigning.renew(assigning.of(1, "i0")) is None, "the place is another's now"
    assert given_to(assigning, 1) == "waiting"
    clock.now += 31 * MINUTE
    row = assigning.renew(assigning.of(1, "i0"))
    assert row == ("i0", 1, 1_000_000.0, clock.now + 30 * MINUTE, "open"), "free again: the first one goes on"


def test_who_has_submitted_keeps_the_place():
    clock = Clock()
    assigning = made(1, Project(lease_minutes=1), clock)
    given_to(assigning, 1)
    submit(assigning, 1, "i0")
    clock.now += 1000 * MINUTE
    assigning.reopen(assigning.of(1, "i0"))
    clock.now += 1000 * MINUTE
    assert given_to(assigning, 2) == "done", "there is nothing to wait for"
    assert assigning.renew(assigning.of(1, "i0")) is True
    assert given_to(assigning, 1) == "i0"


def test_screening_comes_first_and_decides():
    project = Project(screening=Screening(pass_mark=0.5))
    assigning = made(2, project, s0="screening", s1="screening")
    for right, end in (([True, False], "i0"), ([False, False], "screening-failed")):
        account = 1 if right[0] else 2
        after = None
        for item, correct in zip(("s0", "s1"), right, strict=True):
            assert given_to(assigning, account, after, screens=True) == item
            assert assigning.screened(account).passed is None
            submit(assigning, account, item, correct)
            after = item
        assert assigning.screened(account).passed is right[0]
        assert given_to(assigning, account, after, screens=True) == end
    assert given_to(assigning, 3, screens=False) == "i1", "an adjudicator is not screened"


def test_one_gold_item_in_every_block():
    project = Project(gold=Gold(every=5), seed=3)
    golds = {f"g{k}": "gold" for k in range(4)}
    assigning = made(40, project, **golds)
    for account in (1, 2):
        seen, after = [], None
        for _ in range(20):
            after = given_to(assigning, account, after)
            seen.append(after)
            submit(assigning, account, after)
        blocks = [seen[k : k + 5] for k in range(0, 20, 5)]
        assert [sum(item.startswith("g") for item in block) for block in blocks] == [1, 1, 1, 1]
        assert [item for item in seen if item.startswith("g")] == list(golds)
    first, second = (list(assigning.all_of(account)) for account in (1, 2))
    assert [k for k, i in enumerate(first) if i[0] == "g"] != [k for k, i in enumerate(second) if i[0] == "g"]


@given(work=st.integers(1, 25), gold=st.integers(0, 8), every=st.integers(2, 6), account=st.integers(1, 50))
def test_progress_does_not_tell_gold(work, gold, every, account):
    """The number of items to come, told at the start, is the number that comes; it never moves when a gold item is shown or done."""
    assigning = made(work, Project(gold=Gold(every=every)), **{f"g{k}": "gold" for k in range(gold)})
    told = assigning.progress(account)[1]
    after, count = None, 0
    while (after := given_to(assigning, account, after)) != "done":
        assert assigning.progress(account)[:2] == (count, told)
        submit(assigning, account, after)
        count += 1
        assert assigning.progress(account)[:2] == (count, told)
    assert count == told


async def test_convincing_wrong_answers_come_first(tmp_path):
    """The order is D's (`ordering.active_order`); here: that the server asks it at its start."""

    items = [
        an_item("plain"),
        an_item("sure", suggestions=suggestions(1, 1, 1)),
        an_item("convincing", suggestions=suggestions(1, 1, 1), outcome=False),
    ]
    from dataclasses import replace

    items = [
        replace(item, suggestions=tuple(replace(s, score=0.9) for s in item.suggestions)) for item in items
    ]
    async with serving(tmp_path / "x.sqlite", items, Project(order="active")) as world:
        ada = await world.join("ada")
        assert (await ada.next())["item"]["id"] == "convincing"


@settings(max_examples=60, deadline=None)
@given(
    overlap=st.integers(1, 3),
    moves=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["next", "skip", "submit", "reopen", "wait"])),
        max_size=80,
    ),
)
def test_never_more_than_the_places(overlap, moves):
    """Whatever people do in whatever order: no item is held by more than `overlap`, nobody has one twice, nothing is lost."""
    clock = Clock()
    assigning = made(4, Project(overlap=overlap, lease_minutes=10), clock)
    current: dict[int, str | None] = dict.fromkeys(range(5))
    for account, move in moves:
        item = current[account]
        one = None if item is None else assigning.of(account, item)
        if move == "wait":
            clock.now += 6 * MINUTE
        elif move in ("next", "skip"):
            found = given_to(assigning, account, item if move == "skip" else None)
            current[account] = found if found.startswith("i") else None
        elif one is not None and assigning.renew(one) is not None:
            if move == "submit" and one.state == "open":
                submit(assigning, account, item)
            elif move == "reopen" and one.state == "submitted":
                assigning.reopen(one)
        held = Counter(
            one.item for who in range(5) for one in assigning.all_of(who).values() if one.holds(clock.now)
        )
        assert all(count <= overlap for count in held.values())
    # Everybody goes on to the end: every item has its answers.
    clock.now += 60 * MINUTE
    for account in range(5):
        after = None
        for _ in range(20):
            found = given_to(assigning, account, after)
            if not found.startswith("i"):
                break
            submit(assigning, account, found)
            after = found
    kept = Counter(
        one.item for who in range(5) for one in assigning.all_of(who).values() if one.state == "submitted"
    )
    assert kept == {f"i{k}": overlap for k in range(4)}


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
