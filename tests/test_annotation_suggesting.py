"""Suggestions from PRMs, files of scores and files of labels; what is of another solution is refused with its place."""

from __future__ import annotations

import json

import pytest

from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.reading import from_prm, from_scores, suggest
from stepmark.errors import InputError
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Solution

RIGHT = ["1 + 1 = 2", "2 + 1 = 3"]
WRONG = ["1 + 1 = 2", "2 + 1 = 4", "so 4"]


def item(name, steps, problem="What is 1 + 1 + 1?"):
    return Item(id=name, solution=Solution.of(problem, steps))


ITEMS = [item("right", RIGHT), item("wrong", WRONG)]
PRM = {"1 + 1 = 2": 0.9, "2 + 1 = 3": 0.8, "2 + 1 = 4": 0.1, "so 4": 0.5}


@pytest.fixture
def file(tmp_path):
    def write(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


def said(item):
    return [None if one is None else (one.rating, one.score) for one in item.suggestions]


def test_a_prm_rates_by_its_own_threshold():
    found = from_prm(ITEMS, ScriptedPRM(PRM, name="sums"))
    assert [said(one) for one in found.items] == [[(1, 0.9), (1, 0.8)], [(1, 0.9), (-1, 0.1), (1, 0.5)]]
    assert found.items[0].suggestions[0] == Suggestion(judge="sums", rating=1, score=0.9)
    assert found.without == ()
    assert ITEMS[0].suggestions == ()
    strict = from_prm(ITEMS, ScriptedPRM(PRM, default_threshold=0.85))
    assert [rating for rating, _ in said(strict.items[0])] == [1, -1]
    assert [rating for rating, _ in said(from_prm(ITEMS, ScriptedPRM(PRM), threshold=0.95).items[0])] == [
        -1,
        -1,
    ]


def test_margins_are_no_probabilities():
    margins = {text: 2 * score - 1 for text, score in PRM.items()}
    found = from_prm(ITEMS, ScriptedPRM(margins, score_kind="margin", default_threshold=0.0))
    assert said(found.items[1]) == [(1, None), (-1, None), (1, None)]
    assert found.items[1].suggestions[1].reason == "margin -0.8, threshold 0"


def graded(problem, steps, scores, **known):
    return {"problem": problem, "steps": steps, "scores": scores, "prm": "sums", "threshold": 0.5} | known


def test_graded_rows_by_id_and_by_text(file):
    problem = "What is 1 + 1 + 1?"
    path = file(
        graded("another problem", ["x"], [0.3], id="somebody else's"),
        graded(problem, [f" {text}\n" for text in WRONG], [0.9, 0.1, 0.5]),
        {"id": "right", "scores": [0.9, None], "prm": "sums", "threshold": 0.5},
    )
    found = from_scores(ITEMS, path)
    assert [said(one) for one in found.items] == [[(1, 0.9), None], [(1, 0.9), (-1, 0.1), (1, 0.5)]]
    assert suggest(ITEMS, str(path)) == found
    assert [rating for rating, _ in said(from_scores(ITEMS, path, threshold=0.05).items[1])] == [1, 1, 1]


def test_without_a_row_or_refused(file):
    found = from_scores(
        [*ITEMS, item("third", ["x"])],
        file({"id": "right", "scores": [0.9, 0.8]}, {"id": "wrong", "scores": None, "refused": "too long"}),
    )
    assert found.without == (("wrong", "too long"), ("third", "no row in rows.jsonl"))
    # No threshold in the file: numbers and no ratings, under the file's name.
    assert found.items[0].suggestions[0] == Suggestion(judge="rows", score=0.9)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            graded("What is 1 + 1 + 1?", [*RIGHT, "x"], [0.1] * 3, id="right"),
            "2 steps of the item 'right', found 3",
        ),
        (
            graded("What is 1 + 1 + 1?", ["1 + 1 = 2", "2 + 1 = 5"], [0.1] * 2, id="right"),
            "step 1 .*2 \\+ 1 = 5",
        ),
        (graded("What is 2?", RIGHT, [0.1] * 2, id="right"), "problem of .*'What is 2\\?'"),
        ({"id": "right", "scores": [0.1]}, "expected 2 scores"),
        ({"id": "right", "scores": [0.1, 1.5]}, "1.5"),
        ({"id": "right", "scores": [0.1, "high"]}, "'high'"),
        ({"id": "right", "scores": {"a": [0.1, 0.2]}}, "expected a list of scores, found an object"),
        ({"id": "right", "scores": [0.1, 0.2], "threshold": "low"}, "threshold"),
        ({"id": "right", "scores": [0.1, 0.2], "score_kind": "odds"}, "'odds'"),
        ({"id": "right", "scores": [0.1, 0.2], "critiques": ["fine", "fine"]}, "critiques"),
        ({"scores": [0.1, 0.2]}, "expected an id"),
        ({"id": "right", "scores": [0.9, 0.7]}, "other scores at .*rows.jsonl:1"),
        ({"id": "wrong", "scores": [0.9, 0.7, 0.1], "prm": "other"}, "scores of one PRM"),
    ],
)
def test_rows_that_cannot_be_used(file, row, message):
    with pytest.raises(InputError, match=message) as caught:
        from_scores(ITEMS, file({"id": "right", "scores": [0.9, 0.8]}, row))
    assert str(caught.value.where).endswith("rows.jsonl:2")
