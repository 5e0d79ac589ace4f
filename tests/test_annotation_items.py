"""Items and suggestions from files, from PRMs and from files of scores; what is of another solution is refused with its place."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from stepmark.annotation.items import Suggestion, read_items, view
from stepmark.annotation.project import Project
from stepmark.errors import InputError
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


def parts(step: dict[str, Any]) -> list[tuple[str, str]]:
    """What is shown of a step, without its marks-up; labels but "thought" stand before the text."""
    shown = []
    for part in step["parts"]:
        text = html.unescape(re.sub(r"<[^>]*>", "", part["html"]))
        label = "" if part["kind"] == "thought" else part["label"]
        shown.append((part["kind"], f"{label} {text}".strip()))
    return shown


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
    assert shown["trace"]
    assert [parts(step) for step in shown["steps"]] == [
        [("thought", "I look."), ("call", 'look {\n  "at": 1\n}'), ("output", "look here")],
        [("text", "Found.")],
    ]
    (plain,) = read(tmp_path, {"messages": [messages[0], {"role": "assistant", "content": "One.\nTwo."}]})
    assert (plain.thoughts, len(plain.solution.steps)) == ((), 2)
    assert not view(plain, Project())["trace"]


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
    first, second = (parts(step) for step in view(item, Project())["steps"])
    call = 'search {\n  "to": "OSL"\n}'
    assert first[:3] == [("thought", "Look."), ("text", "I search."), ("call", call)]
    assert [kind for kind, _ in first[3:]] == ["output"]
    assert second == [("text", "140 euros.")]


def test_evidence_is_a_score_and_no_rating(tmp_path):
    rollouts = {"kind": "value", "judge": "rollout", "successes": 3, "trials": 4}
    (item,) = read(tmp_path, labels([rollouts], [{"kind": "value", "judge": "rollout", "share": 0.5}]))
    assert item.suggestions == (
        Suggestion(judge="rollout", score=0.75),
        Suggestion(judge="rollout", score=0.5),
    )


def test_several_judges(tmp_path):
    row = labels([said("a", 1), said("b", 1), said("c", -1)], [said("a", -1), said("b", -1)], [said("a", 1)])
    (item,) = read(tmp_path, row)
    # a and b outvote c on step 0, and agree on step 1; a alone goes on from there.
    assert [s.rating for s in item.suggestions] == [1, -1, 1]
    assert {s.judge for s in item.suggestions if s} == {"consensus:majority"}


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


RIGHT = ["1 + 1 = 2", "2 + 1 = 3"]


def suggested(item):
    return [None if one is None else (one.rating, one.score) for one in item.suggestions]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [0.1]}, "expected 2 scores"),
        ({"scores": [0.1, 1.5]}, "1.5"),
        ({"scores": [0.1, "high"]}, "'high'"),
        ({"threshold": "low"}, "threshold"),
        ({"score_kind": "odds"}, "'odds'"),
        ({"critiques": ["fine", "fine"]}, "critiques"),
    ],
)
def test_graded_rows_that_cannot_be_used(tmp_path, change, message):
    row = {
        "problem": "What is 1 + 1 + 1?",
        "steps": RIGHT,
        "scores": [0.1, None],
        "prm": "sums",
        "threshold": 0.5,
    }
    (item,) = read(tmp_path, row)
    assert suggested(item) == [(-1, 0.1), None]
    margin = {"scores": [-0.8, 0.2], "score_kind": "margin", "threshold": 0.0}
    (item,) = read(tmp_path, row | margin)  # no probabilities
    assert suggested(item) == [(-1, None), (1, None)]
    assert item.suggestions[0].reason == "margin -0.8, threshold 0"
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, row | change)
    assert "items.jsonl" in str(caught.value.where)
