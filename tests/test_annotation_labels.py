"""A log of changes, folded: the rules by hand, and against a slow model that keeps every state whole."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotation_marks import fold, marks_of_first_error, marks_of_ratings, read_change
from stepmark.annotation.marks import Change, Folding, change_data, changes_of, marks_data
from stepmark.errors import InputError


def c(kind: str, **fields: Any) -> Change:
    return read_change({"kind": kind, **fields})


def test_undo_and_redo_are_entries_of_the_log():
    log = [c("rate", step=0, rating=1), c("rate", step=1, rating=1), c("reset"), c("undo"), c("undo")]
    assert fold("per_step", 2, log).ratings == (1, None)
    assert fold("per_step", 2, [*log, c("redo")]).ratings == (1, 1)
    assert fold("per_step", 2, [*log, c("redo"), c("redo")]).ratings == (None, None)
    with pytest.raises(InputError, match=r"change 7 \(redo\).*redo follows undo"):
        fold("per_step", 2, [*log, c("rate", step=1, rating=-1), c("redo")])
    # What alters nothing neither needs an undo nor forgets what was undone.
    again = [c("rate", step=0, rating=1), c("rate", step=0, rating=1), c("undo")]
    assert fold("per_step", 2, again).ratings == (None, None)
    assert fold("per_step", 2, [*again, c("note"), c("redo")]).ratings == (1, None)


@pytest.mark.parametrize(
    ("mode", "log", "complete"),
    [
        ("first_error", [], False),
        ("first_error", [c("first_error", step=-1)], True),
        ("first_error", [c("unsure", step=0, on=True)], False),
        ("first_error", [c("unsure", on=True)], True),
        ("per_step", [c("rate", step=0, rating=1)], False),
        ("per_step", [c("rate", step=0, rating=1), c("rate", step=1, rating=-1)], True),
        ("per_step", [c("rate", step=1, rating=-1)], False),
        ("per_step", [c("rate", step=1, rating=-1), c("unsure", step=0, on=True)], True),
        ("per_step", [c("rate", step=k, rating=1) for k in range(3)], True),
    ],
)
def test_what_is_complete(mode, log, complete):
    folding = Folding(mode, 3)
    for change in log:
        folding.take(change)
    assert (folding.marks().missing is None) is complete
    if complete:
        folding.take(c("submit"))
    else:
        with pytest.raises(InputError, match="submit"):
            folding.take(c("submit"))


def test_what_is_missing_is_named():
    marks = fold("per_step", 3, [c("rate", step=0, rating=1), c("unsure", step=1, on=True)])
    missing = marks.missing
    assert missing is not None
    assert missing[0] == 2
    assert fold("first_error", 3, []).missing is not None


@pytest.mark.parametrize(
    ("mode", "change", "said"),
    [
        ("first_error", c("first_error", step=3), "a step from 0 to 2, found 3"),
        ("first_error", c("first_error", step=-2), "found -2"),
        ("first_error", c("rate", step=0, rating=1), "a change of the kind 'first_error'"),
        ("per_step", c("first_error", step=0), "a change of the kind 'rate'"),
        ("per_step", c("rate", step=0, rating=0), "does not allow neutral"),
        ("per_step", c("rate", rating=1), "found None"),
        ("per_step", c("rate", step=-1, rating=1), "found -1"),
        ("per_step", c("unsure", step=0), "true or false"),
        ("per_step", c("error_type", step=0, text="algebra"), "step 1 is not marked as wrong"),
        ("per_step", c("reset", step=0), "has no 'step'"),
        ("per_step", c("note", step=0, rating=1), "has no 'rating'"),
        ("per_step", c("undo"), "no change left"),
        ("per_step", c("reopen"), "not submitted"),
    ],
)
def test_what_cannot_be_is_refused_and_alters_nothing(mode, change, said):
    folding = Folding(mode, 3)
    before = folding.marks()
    with pytest.raises(InputError, match=rf"change 1 \({change.kind}\).*{said}"):
        folding.take(change)
    assert folding.marks() == before
    assert folding.version == 0


STEPS = st.integers(-2, 4) | st.none()
CHANGES = st.builds(
    Change,
    kind=st.sampled_from(
        ["first_error", "rate", "unsure", "note", "error_type", "reset", "submit", "reopen"]
        + ["undo", "redo"] * 3
    ),
    step=STEPS,
    rating=st.sampled_from([None, None, -1, 0, 1]),
    text=st.sampled_from([None, None, "", "a", "b"]),
    on=st.sampled_from([None, None, True, False]),
)
VALID = st.one_of(
    st.builds(Change, kind=st.just("rate"), step=st.integers(0, 3), rating=st.sampled_from([None, -1, 0, 1])),
    st.builds(Change, kind=st.just("first_error"), step=st.integers(-1, 3)),
    st.builds(Change, kind=st.sampled_from(["undo", "redo", "reset", "submit", "reopen"])),
    st.builds(Change, kind=st.just("unsure"), step=st.none() | st.integers(0, 3), on=st.booleans()),
    st.builds(Change, kind=st.just("error_type"), step=st.integers(0, 3), text=st.sampled_from(["a", "b"])),
)


class Slow:
    """Keeps every state whole: undo is the state before."""

    def __init__(self, steps: int) -> None:
        nothing: dict[str, Any] = {"first": None, "rate": [None] * steps, "unsure": set(), "type": {}}
        self.states = [nothing | {"note": {}}]
        self.at = 0
        self.done = False

    def put(self, state: dict[str, Any]) -> None:
        if state != self.states[self.at]:
            self.states = [*self.states[: self.at + 1], state]
            self.at += 1

    def take(self, change: Change) -> None:
        """A change that `Folding` took."""
        state = copy.deepcopy(self.states[self.at])
        kind, step = change.kind, change.step
        if kind in ("submit", "reopen"):
            self.done = kind == "submit"
        elif kind in ("undo", "redo"):
            self.at += 1 if kind == "redo" else -1
            assert 0 <= self.at < len(self.states)
        else:
            if kind == "reset":
                state = copy.deepcopy(self.states[0])
            elif kind == "first_error":
                state["first"] = step
                state["type"] = {k: v for k, v in state["type"].items() if k == step}
            elif kind == "rate":
                state["rate"][step] = change.rating
                if change.rating != -1:
                    state["type"].pop(step, None)
            elif kind == "unsure":
                (state["unsure"].add if change.on else state["unsure"].discard)(step)
            else:
                place = state["note" if kind == "note" else "type"]
                place.pop(step, None)
                if change.text:
                    place[step] = change.text
            self.put(state)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["first_error", "per_step"]), st.booleans(), st.lists(VALID | CHANGES, max_size=40))
def test_undo_is_the_state_before(mode, neutral, log):
    folding, slow = Folding(mode, 4, allow_neutral=neutral), Slow(4)
    taken = []
    for change in log:
        try:
            folding.take(change)
        except InputError:
            continue
        taken.append(change)
        slow.take(change)
        state, marks = slow.states[slow.at], folding.marks()
        assert marks.first_error == state["first"]
        if mode == "per_step":
            assert list(marks.ratings) == state["rate"]
        assert marks.unsure == state["unsure"]
        assert dict(marks.notes) == state["note"]
        assert dict(marks.error_types) == state["type"]
        assert marks.submitted is slow.done
        assert (folding.can_undo, folding.can_redo) == (slow.at > 0, slow.at + 1 < len(slow.states))
    assert folding.version == len(taken)
    # One at a time and all at once are the same, and so is what was kept as JSON.
    kept = [read_change(json.loads(json.dumps(change_data(change)))) for change in taken]
    assert kept == taken
    marks = fold(mode, 4, kept, allow_neutral=neutral)
    assert marks == folding.marks()
    # Another's log gives the same ratings and types of errors when it takes them over.
    copy_ = fold(mode, 4, changes_of(marks), allow_neutral=True)
    assert (copy_.ratings, copy_.error_types) == (marks.ratings, marks.error_types)
    assert json.loads(json.dumps(marks_data(marks)))["ratings"] == list(marks.ratings)


def test_ratings_tell_the_first_error():
    assert marks_of_ratings([1, 0, -1, None]).first_wrong == 2
    assert marks_of_ratings([1, None, -1]).first_wrong is None
    assert marks_of_ratings([1, 0]).first_wrong == -1
    assert marks_of_first_error(1, 3).ratings == (1, -1, None)


def test_five_thousand_changes_take_no_time_each():
    folding = Folding("per_step", 5000)
    for step in range(5000):
        folding.take(Change(kind="rate", step=step, rating=1))
    folding.take(Change(kind="reset"))
    folding.take(Change(kind="undo"))
    assert folding.marks().ratings == (1,) * 5000
    assert folding.version == 5002
