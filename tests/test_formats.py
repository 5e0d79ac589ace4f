"""Rows of every shape become solutions; rows of none are refused with the place and the way out."""

import gzip
import json

import pytest

from stepmark.errors import InputError, UnknownNameError
from stepmark.records import Problem, Refusal, Solution, Step
from stepmark.solutions.formats import GRADED_KEYS, SolutionRow, read_solution, read_solutions

STEPS = ["2 + 3 = 5", "5 * 2 = 10"]
NATIVE = {"problem": "What is (2 + 3) * 2?", "steps": STEPS}


def file_of(tmp_path, *rows, name="in.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_steps():
    row = {**NATIVE, "id": "a", "answer": "10", "source": "a model", "meta": {"scores": 1}}
    read = read_solution(row, where="f:1")
    assert read == SolutionRow(
        solution=Solution(
            problem=Problem(text=NATIVE["problem"], answer="10"),
            steps=(Step(text=STEPS[0]), Step(text=STEPS[1])),
            id="a",
            source="a model",
        ),
        row=row,
        where="f:1",
    )


def test_what_a_step_holds_is_not_touched():
    steps = [" leading", "trailing\n\n", "in\nside", "\u2028x"]
    assert read_solution({"problem": " p ", "steps": steps}).solution.texts == tuple(steps)
    assert read_solution({"problem": " p ", "steps": steps}).solution.problem.text == " p "


def test_absence_may_be_written_as_null():
    row = {**NATIVE, "id": None, "answer": None, "source": None, "meta": None}
    assert read_solution(row).solution == read_solution(NATIVE).solution


def test_a_number_may_be_an_id():
    assert read_solution({**NATIVE, "id": 7}).solution.id == "7"


def test_solution_text_is_cut():
    read = read_solution({"problem": "p", "solution": "2 + 3 = 5\n5 * 2 = 10"})
    assert read.solution.texts == tuple(STEPS)
    assert read.solution.split == "line"
    assert read.why
    whole = read_solution({"problem": "p", "solution": "2 + 3 = 5\n5 * 2 = 10"}, how="whole")
    assert whole.solution.texts == ("2 + 3 = 5\n5 * 2 = 10",)
    marked = read_solution({"problem": "p", "solution": "a##b##"}, how="marker", marker="##")
    assert marked.solution.texts == ("a", "b")


def test_ready_steps_are_not_cut():
    read = read_solution(NATIVE, how="sentence")
    assert (read.solution.split, read.why) == (None, None)
    assert read.solution.texts == tuple(STEPS)


@pytest.mark.parametrize(
    "extra", [{}, {"labels": [True, False]}, {"labels": [1, 0.5]}, {"labels": None}, {"id": "x"}]
)
def test_trl(extra):
    read = read_solution({"prompt": "p", "completions": STEPS, **extra})
    assert read.solution.problem.text == "p"
    assert read.solution.texts == tuple(STEPS)


def test_chat():
    row = {
        "messages": [
            {"role": "user", "content": "Add 2 and 3, then double it."},
            {"role": "assistant", "content": "2 + 3 = 5\n5 * 2 = 10"},
        ],
        "answer": "10",
        "id": "c",
    }
    read = read_solution(row)
    assert "Add 2 and 3" in read.solution.problem.text
    assert (read.solution.problem.answer, read.solution.id) == ("10", "c")
    assert len(read.solution.steps) >= 1


PROCESSBENCH = {
    "id": "gsm8k-0",
    "generator": "some model",
    "problem": "p",
    "steps": STEPS,
    "final_answer_correct": False,
    "label": 1,
}


def test_processbench():
    solution = read_solution(PROCESSBENCH).solution
    assert (solution.id, solution.source, solution.texts) == ("gsm8k-0", "some model", tuple(STEPS))
    read_solution({**PROCESSBENCH, "label": -1})


# A row, and what the message must hold. Every message begins with the place and, where there is one, the field.
BAD = [
    ({}, ["expected the keys 'problem' and 'steps'", "an empty object"]),
    ({"problem": "p"}, ["expected the keys", "'problem' and 'solution'", "found 'problem'"]),
    ({"problem": "p", "step": STEPS}, ["field 'step'", "unknown key", "Did you mean 'steps'?", "'meta'"]),
    ({**NATIVE, "anwser": "1"}, ["field 'anwser'", "Did you mean 'answer'?", "'meta'"]),
    (
        {**NATIVE, "temperature": 1},
        ["field 'temperature'", "unknown key", "data of your own goes under 'meta'"],
    ),
    ({"question": "q", "answer": "a"}, ["field 'question'", "Did you mean 'problem'?"]),
    ({"problem": "p", "response": "a"}, ["field 'response'", "Did you mean 'solution'?"]),
    ({**NATIVE, "label": 1}, ["field 'label'", "A ProcessBench row has all of", "'final_answer_correct'"]),
    ({**NATIVE, "solution": "x"}, ["field 'solution'", "both 'steps' and 'solution'"]),
    ({**NATIVE, "messages": []}, ["field 'problem'", "unknown key"]),
    ({"problem": 3, "steps": STEPS}, ["field 'problem'", "expected a string, found a number"]),
    ({"problem": True, "steps": STEPS}, ["field 'problem'", "expected a string, found true"]),
    ({"problem": None, "steps": STEPS}, ["field 'problem'", "found null"]),
    ({"problem": "", "steps": STEPS}, ["field 'problem'", "expected a text, found an empty string"]),
    ({"problem": " \n\t", "steps": STEPS}, ["field 'problem'", "only white space"]),
    ({"problem": "p", "steps": "one"}, ["field 'steps'", "expected a list, found a string"]),
    ({"problem": "p", "steps": {}}, ["field 'steps'", "expected a list, found an object"]),
    ({"problem": "p", "steps": []}, ["field 'steps'", "at least one", "empty list"]),
    (
        {"problem": "p", "steps": ["a", ""]},
        ["field 'steps'", "step 1 (0-based; number 2 of 2)", "an empty string"],
    ),
    (
        {"problem": "p", "steps": [" ", "a"]},
        ["field 'steps'", "step 0 (0-based; number 1 of 2)", "white space"],
    ),
    ({"problem": "p", "steps": ["a", None]}, ["step 1 (0-based", "expected a string, found null"]),
    ({"problem": "p", "steps": ["a", 1.5]}, ["expected a string, found a number"]),
    ({"problem": "p", "steps": [["a"]]}, ["step 0", "expected a string, found a list"]),
    ({"problem": "p", "solution": ["a"]}, ["field 'solution'", "expected a string, found a list"]),
    ({"problem": "p", "solution": ""}, ["field 'solution'", "found an empty string"]),
    ({"problem": "p", "solution": "\n"}, ["field 'solution'", "only white space"]),
    ({**NATIVE, "id": 1.5}, ["field 'id'", "a string or a whole number, found a number"]),
    ({**NATIVE, "id": True}, ["field 'id'", "found true"]),
    ({**NATIVE, "answer": 18}, ["field 'answer'", "expected a string or null, found a number"]),
    ({**NATIVE, "source": ["x"]}, ["field 'source'", "found a list"]),
    ({**NATIVE, "meta": "x"}, ["field 'meta'", "expected an object, found a string"]),
    ({"prompt": "p", "completions": "x"}, ["field 'completions'", "expected a list"]),
    ({"prompt": "p", "completions": ["a", "  "]}, ["field 'completions'", "step 1 (0-based; number 2 of 2)"]),
    ({"prompt": [{"role": "user"}], "completions": ["a"]}, ["field 'prompt'", "'messages'"]),
    ({"prompt": "p", "completions": ["a"], "labels": [True, True]}, ["field 'labels'", "(1), found 2"]),
    ({"prompt": "p", "completions": ["a"], "labels": ["good"]}, ["field 'labels'", "label 0", "a string"]),
    (
        {"prompt": "p", "completions": ["a"], "labels": True},
        ["field 'labels'", "expected a list, found true"],
    ),
    ({"messages": "hello"}, ["field 'messages'", "expected a list, found a string"]),
    ({"messages": []}, ["field 'messages'", "empty list"]),
    ({**PROCESSBENCH, "label": 2}, ["field 'label'", "(2 steps) or -1, found 2"]),
    ({**PROCESSBENCH, "label": -2}, ["field 'label'", "found -2"]),
    ({**PROCESSBENCH, "label": True}, ["field 'label'", "found True"]),
    ({**PROCESSBENCH, "final_answer_correct": 1}, ["field 'final_answer_correct'", "found a number"]),
    ({**PROCESSBENCH, "generator": None}, ["field 'generator'", "found null"]),
    ({**NATIVE, "score": 1.0}, ["field 'score'", "grading writes it", "'meta'"]),
    (
        {**NATIVE, "scores": [1, 1], "score": 1, "prm": "x", "aggregate": "min"},
        ["field 'scores'", "graded already", "Give the file that was graded"],
    ),
]


@pytest.mark.parametrize(("row", "parts"), BAD, ids=[json.dumps(row)[:60] for row, _ in BAD])
def test_bad_rows(tmp_path, row, parts):
    path = file_of(tmp_path, NATIVE, row, NATIVE)
    rows = read_solutions(path)
    next(rows)
    with pytest.raises(InputError) as caught:
        next(rows)
    message = str(caught.value)
    assert message.startswith(f"{path}:2")
    for part in parts:
        assert part in message

    first, bad, last = read_solutions(path, keep_going=True)
    assert isinstance(first, SolutionRow) and isinstance(last, SolutionRow)
    assert last.where == f"{path}:3"
    assert isinstance(bad, Refusal) and bad.solution is None and str(bad.error) == message


@pytest.mark.parametrize("key", GRADED_KEYS)
def test_what_grading_writes_is_refused(key):
    with pytest.raises(InputError, match="grading writes it"):
        read_solution({**NATIVE, key: None})


def test_a_bad_chat_says_where(tmp_path):
    path = file_of(tmp_path, {"messages": [{"role": "nobody", "content": "x"}]})
    with pytest.raises(InputError, match=r"in\.jsonl:1"):
        list(read_solutions(path))


def test_reading_errors_are_refusals_too(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(json.dumps(NATIVE).encode() + b"\nnot json\n" + json.dumps(NATIVE).encode())
    kinds = [type(row) for row in read_solutions(path, keep_going=True)]
    assert kinds == [SolutionRow, Refusal, SolutionRow]


def test_gzip(tmp_path):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(NATIVE).encode()))
    assert [row.where for row in read_solutions(path)] == [f"{path}:1"]


def test_names_and_ways(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_solutions(tmp_path / "nothing")
    row = {"problem": "p", "solution": "a"}
    with pytest.raises(UnknownNameError, match="'sentence'"):
        read_solution(row, how="sentense")
    with pytest.raises(InputError, match=r"^f:3, field 'solution'.*no turns.*'messages'"):
        read_solution(row, how="agent", where="f:3")
