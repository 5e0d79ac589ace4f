"""Logs of inspect_ai, as JSON and as a zip."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import pytest

from stepmark.data.formats.rows import Counts, ReaderSettings
from stepmark.data.labelled import read_labelled
from stepmark.errors import InputError


def sample(id_: object = 1, value: object = "C", **more: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "epoch": 1,
        "input": "Fly me.",
        "target": "AB12",
        "messages": [
            {"id": "m1", "role": "user", "content": "Fly me.", "source": "input"},
            {
                "role": "assistant",
                "content": [
                    {"type": "reasoning", "reasoning": "First a search."},
                    {"type": "text", "text": "I look."},
                ],
                "tool_calls": [
                    {"id": "c1", "function": "search", "arguments": {"to": "Ålesund"}, "type": "function"}
                ],
                "model": "m",
            },
            {"role": "tool", "content": "AB12", "tool_call_id": "c1", "function": "search"},
            {"role": "assistant", "content": "AB12 it is."},
        ],
        "output": {"model": "m-1", "choices": []},
        "scores": {"match": {"value": value, "answer": "AB12"}},
        **more,
    }


def log(*samples: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": "t", "model": "maker/m"},
        "samples": list(samples),
    }


def test_a_log_as_json(tmp_path):
    file = tmp_path / "log.json"
    file.write_text(json.dumps(log(sample(1), sample("b", "I")), indent=1), encoding="utf-8")
    counts = Counts()
    first, second = read_labelled(file, counts=counts)
    assert first.solution.problem.text == "Fly me."
    assert first.solution.problem.answer == "AB12"
    assert first.solution.texts == ('First a search.\nI look.\nsearch({"to": "Ålesund"})', "AB12 it is.")
    assert first.solution.steps[0].observation == "\n\nTool (search):\nAB12"
    assert [row.solution.id for row in (first, second)] == ["1/1", "b/1"]
    assert [row.outcome for row in (first, second)] == [True, False]
    assert first.solution.source == "maker/m"
    assert first.origin == "log.json:1/1/1"
    assert first.labelled.judgements == ((), ())


def test_a_log_as_a_zip(tmp_path):
    file = tmp_path / "log.eval"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"version": 2, "eval": {"model": "m"}}))
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample(1)))
        archive.writestr("samples/2_epoch_1.json", json.dumps(sample(2, "I"), indent=2))
    rows = list(read_labelled(file))
    assert [(row.solution.id, row.outcome, row.origin) for row in rows] == [
        ("1/1", True, "log.eval:1"),
        ("2/1", False, "log.eval:2"),
    ]
    assert rows[0].solution.source == "m-1"
    (tmp_path / "bad.eval").write_bytes(b"no zip at all")
    with pytest.raises(InputError, match="a zip"):
        list(read_labelled(tmp_path / "bad.eval"))


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ({"a": {"value": 1}}, True),
        ({"a": {"value": 0.0}}, False),
        ({"a": {"value": True}}, True),
        ({"a": {"value": 0.5}}, None),
        ({"a": {"value": "P"}}, None),
        ({"a": {"value": {"x": 1}}}, None),
        ({"a": {"value": "C"}, "b": {"value": "C"}}, None),
        (None, None),
    ],
)
def test_only_a_plain_score_says_whether_the_answer_is_right(scores, outcome, tmp_path):
    file = tmp_path / "log.json"
    file.write_text(json.dumps(log(sample(scores=scores))), encoding="utf-8")
    (row,) = read_labelled(file)
    assert row.outcome is outcome


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "user", "content": "?"}], "at least one assistant"),
        ([{"role": "wizard", "content": "?"}], "the role of a message"),
        (
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": [{"type": "image", "image": "x"}]},
            ],
            "expected text, thought or tool calls, found 'image'",
        ),
        (
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "x", "redacted": True}]},
            ],
            "found neither",
        ),
        ("?", "a list"),
    ],
)
def test_samples_that_cannot_be_read_whole_are_refused(messages, said, tmp_path):
    file = tmp_path / "log.json"
    file.write_text(json.dumps(log(sample(messages=messages))), encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        list(read_labelled(file, settings=ReaderSettings()))
    assert caught.value.where == f"{file}:1, sample 1/1"


def test_what_a_log_holds_beside_texts(tmp_path):
    """Redacted reasoning by its summary, a tool that ran at the server, a tool that failed, a picture."""
    hidden = {"type": "reasoning", "reasoning": "gAAA", "summary": "A search.", "redacted": True}
    served = {"type": "tool_use", "id": "s1", "name": "web_search", "arguments": "{}", "result": "AB12"}
    asked = {"id": "c1", "function": "book", "arguments": {}, "type": "function"}
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "data:x"}, {"type": "text", "text": "Fly me."}]},
        {"role": "assistant", "content": [hidden, served, {"type": "text", "text": "Found."}], "tool_calls": [asked]},
        {"role": "tool", "content": "", "function": "book", "error": {"type": "timeout", "message": "Too slow."}},
        {"role": "assistant", "content": "Sorry."},
    ]  # fmt: skip
    file = tmp_path / "log.json"
    file.write_text(json.dumps(log(sample(messages=messages))), encoding="utf-8")
    (row,) = read_labelled(file)
    assert row.solution.problem.text == "[image]\nFly me."
    assert row.solution.texts == ("A search.\nweb_search({})", "Found.\nbook({})", "Sorry.")
    assert row.solution.steps[0].observation == "\n\nTool (web_search):\nAB12"
    assert row.solution.steps[1].observation == "\n\nTool (book):\nToo slow."
