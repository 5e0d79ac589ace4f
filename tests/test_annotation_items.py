"""What is sent of an item, when an answer counts, and items as plain data."""

from __future__ import annotations

from dataclasses import replace

from stepmark.annotation.items import Item, Suggestion, Turn, counts, unverified, view
from stepmark.annotation.marks import marks_of_first_error, marks_of_ratings
from stepmark.annotation.project import Help, Project
from stepmark.records import Problem, Solution, Step

ITEM = Item(
    id="a/1",
    solution=Solution(
        problem=Problem(text="2 + 2?", answer="4"),
        steps=(Step(text="two", observation="\n\nUser:\nyes"), Step(text="<b>four</b>")),
        source="model-x",
    ),
    trace=(
        Turn(role="user", text="2 + 2?"),
        Turn(role="assistant", text="two", calls=(("f", "1"),), outputs=("1",), step=0),
    ),
    outcome=True,
    suggestions=(None, Suggestion(judge="prm", rating=-1, score=0.25)),
    gold=marks_of_first_error(1, 2),
    role="gold",
    order=2.5,
    potato_index=(1, 3),
    meta={"from": "x.jsonl:1", "secret": [1]},
)


def test_an_annotator_is_sent_nothing_that_tells():
    sent = view(ITEM, Project())
    assert sent == {
        "id": "a/1",
        "problem": "2 + 2?",
        "answer": None,
        "steps": [
            {"text": "two", "observation": "\n\nUser:\nyes"},
            {"text": "<b>four</b>", "observation": ""},
        ],
        "trace": [],
        "source": None,
    }
    told = view(ITEM, Project(show_answer=True, blind=False, inline_with_trace=True))
    assert (told["answer"], told["source"]) == ("4", "model-x")
    assert told["trace"][1] == {
        "role": "assistant",
        "text": "two",
        "calls": (("f", "1"),),
        "outputs": ("1",),
        "step": 0,
    }
    assert told["trace"][0]["step"] is None


def test_every_suggestion_on_a_judged_step_must_be_verified():
    item = replace(ITEM, suggestions=(Suggestion(judge="prm", rating=1),) * 2)
    strict = Help(show="before", require_verification=True)
    first = marks_of_first_error(0, 2)
    assert unverified(item, first) == (0,)
    assert not counts(item, first, strict)
    seen = replace(first, verified=frozenset({0}))
    assert counts(item, seen, strict)
    assert counts(item, first, Help(show="before"))
    # Nobody was shown a suggestion, so there is none to verify.
    assert counts(item, first, Help(show="never", require_verification=True))
    assert not counts(item, replace(seen, submitted=False), strict)
    assert unverified(ITEM, marks_of_ratings([1, 1])) == (1,)
