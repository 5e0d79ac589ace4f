"""Potato's files: what people said of which step, and what the tool wrote without anybody saying it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.data.formats.rows import Counts, ReaderSettings
from stepmark.data.labelled import read_labelled
from stepmark.errors import InputError, UsageError

ITEMS = [
    {
        "id": "q1",
        "question": "How many?",
        "answer": "6",
        "steps": ["a", {"action": "b"}, {"thought": "c"}, "d"],
    },
    {
        "id": "t1",
        "task_description": "Book it.",
        "structured_turns": [
            {"role": "user", "content": "Book it."},
            {"role": "assistant", "content": "I look."},
            {"role": "user", "content": "Good."},
            {"role": "assistant", "content": "Done."},
        ],
    },
]


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def mark(index: int, reward: int | None, **more: Any) -> dict[str, Any]:
    known = {"source": "human", "verified": True, "ai_reward": None, "ai_reasoning": "", "confidence": None}
    return {"index": index, "reward": reward, **known, **more}


def label(mode: str, *marks: dict[str, Any]) -> str:
    return json.dumps({"steps": list(marks), "mode": mode})


def read(tmp_path: Path, row: object, counts: Counts | None = None, **settings: Any) -> list[Any]:
    items = write(tmp_path / "items.jsonl", *ITEMS)
    file = row if isinstance(row, str) else write(tmp_path / "labels.jsonl", row)
    return list(read_labelled(file, settings=ReaderSettings(items=items, **settings), counts=counts))


def export(id_: str, mode: str, *marks: dict[str, Any]) -> dict[str, Any]:
    return {"instance_id": id_, "annotator": "ann", "steps": list(marks), "mode": mode}


def said(row: Any) -> list[list[tuple[str, int | None]]]:
    return [[(j.judge, j.rating) for j in step] for step in row.labelled.judgements]


CASCADE = [mark(0, 1), mark(1, -1), mark(2, -1), mark(3, -1)]
ANN = "human:ann"


def test_what_follows_the_first_error_was_judged_by_nobody(tmp_path):
    counts = Counts()
    (row,) = read(tmp_path, export("q1", "first_error", *CASCADE), counts)
    assert row.solution.texts == ("a", "b", "c", "d")
    assert (row.solution.problem.text, row.solution.problem.answer) == ("How many?", "6")
    assert said(row) == [[(ANN, 1)], [(ANN, -1)], [], []]


def test_the_three_files_say_the_same(tmp_path):
    text = label("first_error", *CASCADE)
    annotation = {
        "instance_id": "q1",
        "user_id": "ann",
        "labels": {"step_rewards": {"step_rewards": text}, "quality": {"good": "true"}},
        "spans": {},
        "links": {},
    }
    state = {
        "user_id": "ann",
        "current_instance_index": 1,
        "instance_id_to_label_to_value": {
            "q1": [
                [{"schema": "step_rewards", "name": "step_rewards"}, text],
                [{"schema": "quality", "name": "good"}, "true"],
            ]
        },
    }
    document = tmp_path / "user_state.json"
    document.write_text(json.dumps(state, indent=2), encoding="utf-8")
    expected = read(tmp_path, export("q1", "first_error", *CASCADE))[0].labelled
    assert [row.labelled for row in read(tmp_path, annotation)] == [expected]
    assert [row.labelled for row in read(tmp_path, str(document))] == [expected]


def test_turns_of_the_user_are_not_steps(tmp_path):
    counts = Counts()
    marks = [mark(0, 1), mark(1, 1), mark(2, 1), mark(3, -1)]
    (row,) = read(tmp_path, export("t1", "first_error", *marks), counts)
    assert row.solution.problem.text == "Book it."
    assert row.solution.texts == ("I look.", "Done.")
    assert row.solution.steps[0].observation == "\n\nUser:\nGood."
    assert said(row) == [[(ANN, 1)], [(ANN, -1)]]


def test_zero_is_neutral_or_nothing_and_never_wrong(tmp_path):
    told = export("q1", "per_step", mark(0, 1), mark(1, 0), mark(2, None), mark(3, -1))
    assert said(read(tmp_path, told)[0]) == [[(ANN, 1)], [(ANN, 0)], [], [(ANN, -1)]]
    untold = export("q1", "per_step", mark(0, 1), mark(1, 0), mark(2, 1), mark(3, -1))
    with pytest.raises(InputError, match="`zero` neutral"):
        read(tmp_path, untold)
    assert said(read(tmp_path, untold, zero="neutral")[0])[1] == [(ANN, 0)]
    assert said(read(tmp_path, untold, zero="unjudged")[0])[1] == []
    first = export("q1", "first_error", mark(0, 0), mark(1, 0), mark(2, 1), mark(3, 0))
    assert said(read(tmp_path, first)[0]) == [[], [], [(ANN, 1)], []]


def test_a_solution_that_nobody_marked_is_counted(tmp_path):
    counts = Counts()
    assert read(tmp_path, export("q1", "first_error", *(mark(n, 0) for n in range(4))), counts) == []
    assert counts.dropped == 1


def test_the_ai_is_no_person(tmp_path):
    row = export(
        "q1",
        "per_step",
        mark(0, 1, source="ai", verified=False, ai_reasoning="fine", confidence=0.75),
        mark(1, -1, source="ai", verified=True, ai_reward=-1),
        mark(2, -1, source="human", ai_reward=1, confidence=0.5),
        mark(3, None),
    )
    (read_,) = read(tmp_path, row)
    assert said(read_) == [[("ai", 1)], [("ai", -1), (ANN, -1)], [("ai", 1), (ANN, -1)], []]
    first = read_.labelled.judgements[0][0]
    assert (first.confidence, first.note) == (0.75, "fine")
    assert read_.labelled.judgements[1][1].note == "confirmed the AI's label"


@pytest.mark.parametrize(
    ("row", "said_"),
    [
        (export("q9", "first_error", mark(0, 1)), "no item 'q9'"),
        (export("q1", "first_error", mark(4, 1)), "a step's index, 0 to 3; found 4"),
        (export("q1", "first_error", mark(0, 2)), "found 2"),
        (export("q1", "first_error", mark(0, True)), "-1, 0 or 1"),
        (export("q1", "sideways", mark(0, 1)), "mode"),
        ({"instance_id": "q1", "user_id": "ann", "labels": {"s": {"s": '{"steps": '}}}, "JSON"),
    ],
)
def test_bad_rows_are_refused(row, said_, tmp_path):
    with pytest.raises(InputError, match=said_) as caught:
        read(tmp_path, row)
    assert caught.value.where == f"{tmp_path / 'labels.jsonl'}:1"


def test_the_data_file_is_needed_and_read_strictly(tmp_path):
    file = write(tmp_path / "labels.jsonl", export("q1", "first_error", *CASCADE))
    with pytest.raises(UsageError, match="`items`"):
        list(read_labelled(file))
    for bad, said_ in (
        ([ITEMS[0], ITEMS[0]], "stands twice"),
        ([{"id": "q1", "question": "?"}], "the steps under"),
        ([{"id": "q1", "steps": ["a"]}], "no problem"),
        ([{"id": "q1", "question": "?", "steps": [" "]}], "expected a text"),
    ):
        items = write(tmp_path / "bad.jsonl", *bad)
        with pytest.raises(InputError, match=said_):
            list(read_labelled(file, settings=ReaderSettings(items=items)))


def test_tool_calls_belong_to_the_step(tmp_path):
    turn = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"tool": "read", "input": {"at": 1}, "output": "x", "output_type": "code"}],
    }
    items = write(tmp_path / "items.jsonl", {"id": "t", "question": "?", "structured_turns": [turn]})
    file = write(tmp_path / "labels.jsonl", export("t", "first_error", mark(0, 1)))
    (row,) = read_labelled(file, settings=ReaderSettings(items=items))
    assert row.solution.texts == ('I look.\nread({"at": 1})',)
    assert row.solution.steps[0].observation == "\n\nTool:\nx"
