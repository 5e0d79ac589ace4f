"""Items and suggestions from files, from PRMs and from files of scores; what is of another solution is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.annotation.items import Item, Suggestion, view
from stepmark.annotation.project import Gold, Limits, Project, Screening
from stepmark.annotation.reading import from_prm, from_scores, read_items, suggest
from stepmark.errors import InputError
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Solution
from test_agent_traces import ROWS

TWO = {"problem": "?", "steps": ["a", "b"]}
PROCESSBENCH = {
    "id": "pb-1",
    "generator": "m",
    "problem": "?",
    "steps": ["a", "b", "c"],
    "final_answer_correct": False,
    "label": 1,
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labels(*steps: list[dict[str, Any]], id_: str = "s") -> dict[str, Any]:
    solution = {
        "problem": {"text": "?"},
        "steps": [{"text": f"step {n}"} for n in range(len(steps))],
        "id": id_,
    }
    return {"solution": solution, "judgements": list(steps)}


def said(judge: str, rating: int | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "correctness", "judge": judge, "rating": rating, **more}


def read(tmp_path: Path, *rows: object, **settings: Any) -> list[Any]:
    return read_items(Project(items=(write(tmp_path / "items.jsonl", *rows),), **settings))


def test_every_format_gives_items(tmp_path):
    rows: dict[str, dict[str, Any]] = {
        "plain": {"id": "p", **TWO},
        "solution": {"id": "s", "problem": "?", "solution": "first line\nsecond line"},
        "trl": {"id": "t", "prompt": "?", "completions": ["a", "b"], "labels": [True, False]},
        "shepherd": {
            "input": "Q? Step 1: a ки\nStep 2: b ки",
            "label": "Q? Step 1: a +\nStep 2: b -",
            "task": "GSM8K",
        },
        "processbench": PROCESSBENCH,
        "trace": {"id": "r", "question": "?", "steps": [{"action": "a"}, {"action": "b"}]},
        "words": {"id": "w", "question": "?", "steps": ["a", "b"]},
    }
    files = tuple(write(tmp_path / f"{name}.jsonl", row) for name, row in rows.items())
    items = read_items(Project(items=files))
    assert [item.id for item in items] == ["p", "s", "t", "shepherd.jsonl:1", "pb-1", "r", "w"]
    assert [len(item.solution.steps) for item in items] == [2, 2, 2, 2, 3, 2, 2]
    assert items[4].outcome is False
    assert items[3].meta["from"] == "shepherd.jsonl:1"


def test_a_conversation_is_a_trace(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    messages = [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [call]},
        {"role": "tool", "content": "here", "tool_call_id": "c1"},
        {"role": "assistant", "content": [{"type": "text", "text": "Found."}]},
    ]
    (item,) = read(tmp_path, {"id": "chat", "messages": messages})
    assert item.solution.texts == ('I look.\nlook({"at": 1})', "Found.")
    assert item.thoughts == ("I look.", "")
    shown = view(item, Project())
    assert shown["agent"]
    assert [(step["thought"], step["text"]) for step in shown["steps"]] == [
        ("I look.", 'look({"at": 1})'),
        ("", "Found."),
    ]
    assert shown["steps"][0]["observation"] == "\n\nTool (look):\nhere"
    (plain,) = read(tmp_path, {"messages": [messages[0], {"role": "assistant", "content": "One.\nTwo."}]})
    assert (plain.thoughts, len(plain.solution.steps)) == ((), 2)
    assert not view(plain, Project())["agent"]


INSPECT = {
    "id": 1,
    "epoch": 1,
    "target": "140",
    "messages": [
        {"role": "user", "content": "Find it."},
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "reasoning": "Look."}, {"type": "text", "text": "I search."}],
            "tool_calls": [
                {"id": "c1", "function": "search", "arguments": {"to": "OSL"}, "type": "function"}
            ],
        },
        {"role": "tool", "content": "140", "tool_call_id": "c1", "function": "search"},
        {"role": "assistant", "content": "140 euros."},
    ],
}


@pytest.mark.parametrize("format", [*sorted(ROWS), "inspect"])
def test_every_format_of_traces_is_shown_by_turns(tmp_path, format):
    (item,) = read(tmp_path, *(ROWS | {"inspect": [INSPECT]})[format])
    first, second = view(item, Project())["steps"]
    assert (first["thought"], first["text"]) == ("Look.", 'I search.\nsearch({"to": "OSL"})')
    assert first["observation"].startswith("\n\nTool")
    assert (second["thought"], second["text"]) == ("", "140 euros.")


def test_evidence_is_a_score_and_no_rating(tmp_path):
    rollouts = {"kind": "value", "judge": "rollout", "successes": 3, "trials": 4}
    (item,) = read(tmp_path, labels([rollouts], [{"kind": "value", "judge": "rollout", "share": 0.5}]))
    assert item.suggestions == (
        Suggestion(judge="rollout", score=0.75),
        Suggestion(judge="rollout", score=0.5),
    )
    (item,) = read(tmp_path, labels([rollouts], []), labels="gold")
    assert item.gold is None


def test_several_judges(tmp_path):
    row = labels([said("a", 1), said("b", 1), said("c", -1)], [said("a", -1), said("b", -1)], [said("a", 1)])
    (item,) = read(tmp_path, row)
    # a and b outvote c on step 0, and agree on step 1; a alone goes on from there.
    assert [s.rating for s in item.suggestions] == [1, -1, 1]
    assert {s.judge for s in item.suggestions if s} == {"consensus:majority"}
    (item,) = read(tmp_path, row, labels="gold")  # c names another first error
    assert item.gold is None


def test_gold_and_screening_files_must_tell_what_is_right(tmp_path):
    work = write(tmp_path / "work.jsonl", {"id": "w", **TWO})
    gold = write(tmp_path / "gold.jsonl", PROCESSBENCH)
    screening = write(tmp_path / "screening.jsonl", {**PROCESSBENCH, "id": "pb-2", "label": -1})
    project = Project(items=(work,), gold=Gold(items=gold), screening=Screening(items=screening))
    items = read_items(project)
    assert [(item.id, item.role) for item in items] == [
        ("w", "work"),
        ("pb-1", "gold"),
        ("pb-2", "screening"),
    ]
    assert [item.gold and item.gold.first_error for item in items] == [None, 1, -1]
    write(gold, {"id": "x", **TWO})
    with pytest.raises(InputError, match="the first error, as a gold item must") as caught:
        read_items(project)
    assert caught.value.where == f"{gold}:1"
    write(gold, {**PROCESSBENCH, "id": "w"})
    with pytest.raises(InputError, match=r"'w' stands twice \(first: .*work.jsonl:1\)"):
        read_items(project)


def test_limits(tmp_path):
    long = {"id": "l", "problem": "?", "steps": [f"step {n}" for n in range(5000)]}
    (item,) = read(tmp_path, long)
    assert len(item.solution.steps) == 5000
    with pytest.raises(InputError, match="at most 4,999 steps, found 5,000") as caught:
        read(tmp_path, long, limits=Limits(steps=4999))
    assert str(caught.value.where).endswith("items.jsonl:1")
    with pytest.raises(InputError, match=r"at most 2,000,000 characters"):
        read(tmp_path, {"problem": "?", "steps": ["a", "x" * 10_000_000]})


@pytest.mark.parametrize(
    ("rows", "said_"),
    [
        (({"a": 1},), "no known format"),
        (({"id": "x", "problem": "?", "steps": []},), "at least one"),
        (({"id": "x", "problem": "?", "steps": ["a", " "]},), "white space"),
        (({"id": "x", "question": "?", "steps": [{"action": ""}, {}]},), "expected a text"),
        (({"question": "?", "steps": [{"action": "a"}]},), "expected a name"),
        (({"id": "x", "steps": [{"action": "a"}]},), "no problem"),
        (({"instance_id": "x", "annotator": "a", "steps": [], "mode": "per_step"},), "hold no text"),
        (({"id": "x", **TWO}, {"id": "x", **TWO}), "stands twice"),
    ],
)
def test_what_is_no_item_is_refused(tmp_path, rows, said_):
    with pytest.raises(InputError, match=said_) as caught:
        read(tmp_path, *rows)
    assert "items.jsonl" in str(caught.value.where)


@pytest.mark.parametrize(
    ("mode", "gold", "ratings", "said_"),
    [
        ("first_error", {"first_error": 1}, (1, -1), None),
        ("per_step", {"ratings": [1, None]}, (1, None), None),
        ("per_step", {"ratings": [None, None]}, None, "no rating"),
        ("per_step", {"ratings": [1]}, None, "2 ratings"),
        ("per_step", {"first_error": 1}, None, '"ratings"'),
        ("first_error", {"first_error": 2}, None, "found 2"),
        ("first_error", None, None, '"first_error"'),
    ],
)
def test_a_trace_says_what_is_right(tmp_path, mode, gold, ratings, said_):
    work = write(tmp_path / "work.jsonl", {"id": "w", "question": "?", "steps": [{"action": "a"}]})
    row = {"id": "g", "question": "?", "steps": [{"action": "a"}, {"action": "b"}], "gold": gold}
    file = write(tmp_path / "gold.jsonl", row)
    project = Project(items=(work,), format="traces", mode=mode, gold=Gold(items=file))
    if said_ is None:
        (_, item) = read_items(project)
        assert (item.role, item.gold.ratings) == ("gold", ratings)
        # Beside work, it is a key like any other unless the project says so.
        assert [one.gold for one in read_items(Project(items=(file,), mode=mode))] == [None]
    else:
        with pytest.raises(InputError, match=said_) as caught:
            read_items(project)
        assert caught.value.where == f"{file}:1"


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


def suggested(item):
    return [None if one is None else (one.rating, one.score) for one in item.suggestions]


def test_a_prm_rates_by_its_own_threshold():
    found = from_prm(ITEMS, ScriptedPRM(PRM, name="sums"))
    assert [suggested(one) for one in found.items] == [[(1, 0.9), (1, 0.8)], [(1, 0.9), (-1, 0.1), (1, 0.5)]]
    assert found.items[0].suggestions[0] == Suggestion(judge="sums", rating=1, score=0.9)
    assert found.without == ()
    assert ITEMS[0].suggestions == ()
    strict = from_prm(ITEMS, ScriptedPRM(PRM, default_threshold=0.85))
    assert [rating for rating, _ in suggested(strict.items[0])] == [1, -1]
    assert [
        rating for rating, _ in suggested(from_prm(ITEMS, ScriptedPRM(PRM), threshold=0.95).items[0])
    ] == [
        -1,
        -1,
    ]


def test_margins_are_no_probabilities():
    margins = {text: 2 * score - 1 for text, score in PRM.items()}
    found = from_prm(ITEMS, ScriptedPRM(margins, score_kind="margin", default_threshold=0.0))
    assert suggested(found.items[1]) == [(1, None), (-1, None), (1, None)]
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
    assert [suggested(one) for one in found.items] == [[(1, 0.9), None], [(1, 0.9), (-1, 0.1), (1, 0.5)]]
    assert suggest(ITEMS, str(path)) == found
    assert [rating for rating, _ in suggested(from_scores(ITEMS, path, threshold=0.05).items[1])] == [1, 1, 1]


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
            "step 2 .*'absent'",
        ),
        (
            graded("What is 1 + 1 + 1?", ["1 + 1 = 2", "2 + 1 = 5"], [0.1] * 2, id="right"),
            "step 1 .*2 \\+ 1 = 5",
        ),
        (graded("What is 2?", RIGHT, [0.1] * 2, id="right"), "problem of .*'What is 2\\?'"),
        ({"id": "right", "scores": [0.1]}, "expected 2 scores"),
        ({"id": "right", "scores": [0.1, 1.5]}, "1.5"),
        ({"id": "right", "scores": [0.1, "high"]}, "'high'"),
        ({"id": "right", "scores": {"a": [0.1, 0.2]}}, "field 'scores'"),
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
