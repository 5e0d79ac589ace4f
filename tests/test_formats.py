"""Rows of every shape become solutions; rows of none are refused with the place and the way out."""

import json

import pytest

from stepmark.data.solutions import GRADED_KEYS, SolutionRow, read_solution, read_solutions
from stepmark.errors import InputError, UnknownNameError
from stepmark.records import (
    Judgement,
    LabelledSolution,
    Problem,
    Refusal,
    Solution,
    Step,
    record_row,
)

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
        own_meta={"scores": 1},
    )


def test_what_a_step_holds_is_not_touched():
    steps = [" leading", "trailing\n\n", "in\nside", "\u2028x"]
    assert read_solution({"problem": " p ", "steps": steps}).solution.texts == tuple(steps)
    assert read_solution({"problem": " p ", "steps": steps}).solution.problem.text == " p "


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
    ({}, ["expected a solution under one of 'steps', 'solution'", "an empty object"]),
    ({"problem": "p"}, ["expected a solution", "found 'problem'. Say which column it is with `columns`"]),
    (
        {"frage": "p", "steps": STEPS},
        ["expected a problem under one of", "'question'", "found 'frage', 'steps'"],
    ),
    (
        {"question": "q", "answer": "She has 3 + 4 = 7.\n#### 7"},
        ["a problem with its reference answer", "stepmark sample", "`columns` (solution=answer)"],
    ),
    (
        {**NATIVE, "solution": "x"},
        ["field 'solution'", "both 'steps' and 'solution'", "(meta.solution=solution)"],
    ),
    (
        {"problem": "p", "solution": "gold", "response": "mine"},
        ["field 'response'", "both 'solution' and 'response'", "`columns` (solution=response)"],
    ),
    ({"question": "p", "prompt": "p", "steps": STEPS}, ["may both be the problem", "(problem=question)"]),
    ({**NATIVE, "gold": "1", "target": "2"}, ["'gold' and 'target' may both be the answer"]),
    (
        {"instruction": "p", "responses": ["a"], "next_response": "b", "rating": 1},
        ["prm800k-flat", "`stepmark.convert`"],
    ),
    ({"input": "a", "label": "b", "task": "c"}, ["math-shepherd", "`stepmark.convert`"]),
    ({"conversations": [{"role": "assistant", "content": "+"}]}, ["rlhflow", "`stepmark.convert`"]),
    ({"solution": {"problem": {}}, "judgements": [[]]}, ["field 'problem.text'", "Field required"]),
    ({"problem": "p", "solutions": []}, ["field 'solutions'", "at least one"]),
    ({"problem": "p", "solutions": [3]}, ["field 'solutions'", "candidate 0 (0-based)", "found a number"]),
    ({"problem": "p", "candidates": [{"x": 1}]}, ["an object with 'text' or 'steps'", "found 'x'"]),
    ({"problem": 3, "steps": STEPS}, ["field 'problem'", "expected a text, found a number"]),
    ({"problem": " \n\t", "steps": STEPS}, ["field 'problem'", "only white space"]),
    ({"problem": "p", "steps": "one"}, ["field 'steps'", "expected a list, found a string"]),
    ({"problem": "p", "steps": []}, ["field 'steps'", "at least one", "empty list"]),
    (
        {"problem": "p", "steps": [" ", "a"]},
        ["field 'steps'", "step 0 (0-based; number 1 of 2)", "white space"],
    ),
    ({"problem": "p", "steps": ["a", None]}, ["step 1 (0-based", "expected a text, found null"]),
    ({"problem": "p", "solution": ["a"]}, ["field 'solution'", "expected a text, found a list"]),
    ({"problem": "p", "Response": None}, ["field 'Response'", "found null"]),
    ({"problem": "p", "solution": ""}, ["field 'solution'", "found an empty string"]),
    ({**NATIVE, "id": 1.5}, ["field 'id'", "a string or a whole number, found a number"]),
    ({**NATIVE, "answer": True}, ["field 'answer'", "expected a text or a number, found true"]),
    ({**NATIVE, "meta": "x"}, ["field 'meta'", "expected an object, found a string"]),
    (
        {"prompt": [{"role": "user"}], "completions": ["a"]},
        ["field 'messages'", "a problem before the first assistant turn"],
    ),
    ({"prompt": "p", "completions": ["a"], "labels": [True, True]}, ["field 'labels'", "(1), found 2"]),
    (
        {"prompt": "p", "completions": ["a"], "labels": True},
        ["field 'labels'", "expected a list, found true"],
    ),
    ({"messages": []}, ["field 'messages'", "empty list"]),
    ({**PROCESSBENCH, "label": 2}, ["field 'label'", "(2 steps) or -1, found 2"]),
    ({**PROCESSBENCH, "final_answer_correct": 1}, ["field 'final_answer_correct'", "found a number"]),
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


# --- common names, several solutions, columns that ride along


@pytest.mark.parametrize("problem", ["problem", "question", "prompt", "query", "instruction", "Question"])
@pytest.mark.parametrize(
    "solution", ["solution", "response", "completion", "output", "generation", "Response"]
)
def test_common_names(problem, solution):
    row = {problem: "p", solution: "a\nb", "ground_truth": 18, "Source": "me", "level": 3}
    read = read_solution(row)
    assert (read.solution.problem, read.solution.texts) == (Problem(text="p", answer="18"), ("a", "b"))
    assert read.row is row
    assert (read.solution.source, read.meta) == ("me", {"level": 3})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"answer": "5"}, "5"),
        ({"gold": 0.5}, "0.5"),
        ({"reference": 1e6}, "1000000"),
        ({"target": "7", "answer": None}, "7"),
        ({"Ground Truth": "7"}, "7"),
        ({"answer": "2 + 3 = <<2+3=5>>5\n#### 5"}, "5"),
        ({"answer": "5", "gold": "6"}, "5"),
        ({}, None),
    ],
)
def test_reference_answers(answer, expected):
    assert read_solution({**NATIVE, **answer}).solution.problem.answer == expected


def test_other_columns_ride_along():
    row = {**NATIVE, "label": 1, "problem_type": "sum", "resource": "x", "question": "Q", "meta": {"k": 1}}
    read = read_solution(row)
    assert read.row is row
    assert read.meta == {"label": 1, "problem_type": "sum", "resource": "x", "question": "Q", "k": 1}
    # A misspelt name is kept where the caller says so.
    (kept,) = read_solutions([{**NATIVE, "anwser": "1"}], columns={"meta.anwser": "anwser"})
    assert (kept.solution.problem.answer, kept.meta) == (None, {"anwser": "1"})


def test_the_problem_has_an_id_and_a_source():
    read = read_solution({**NATIVE, "id": 7.0, "problem_id": 3, "problem_source": "a set", "source": "me"})
    assert read.solution.problem == Problem(text=NATIVE["problem"], id="3", source="a set")
    assert (read.solution.id, read.solution.source) == ("7", "me")


@pytest.mark.parametrize("name", ["solutions", "candidates", "responses", "completions"])
def test_several_solutions_of_one_problem(name):
    row = {"id": "q7", "question": "p", name: ["a\nb", ["c", "d"]], "answer": "5", "level": 3}
    first, second = read_solutions([row])
    assert [(one.solution.id, one.solution.texts, one.where) for one in (first, second)] == [
        ("q7#0", ("a", "b"), "row 1 (candidate 0)"),
        ("q7#1", ("c", "d"), "row 1 (candidate 1)"),
    ]
    assert first.solution.problem == second.solution.problem == Problem(text="p", id="q7", answer="5")
    assert first.row == {
        "question": "p",
        "answer": "5",
        "level": 3,
        "problem_id": "q7",
        "id": "q7#0",
        "solution": "a\nb",
    }
    assert first.meta == {"level": 3}
    with pytest.raises(InputError, match=f"expected one solution, found a list of them under '{name}'"):
        read_solution(row)


def test_candidates_that_are_objects(tmp_path):
    listed = [{"text": "a", "model": "m", "correct": True}, {"steps": ["b"]}, {"response": "c"}]
    path = file_of(tmp_path, {"problem": "p", "candidates": listed, "meta": {"k": 1}})
    rows = list(read_solutions(path))
    assert [(one.solution.id, one.solution.source, one.solution.texts) for one in rows] == [
        ("in.jsonl:1#0", "m", ("a",)),
        ("in.jsonl:1#1", None, ("b",)),
        ("in.jsonl:1#2", None, ("c",)),
    ]
    assert [one.meta for one in rows] == [{"k": 1, "correct": True}, {"k": 1}, {"k": 1}]
    file_of(tmp_path, {"problem": "p", "solutions": ["a", " "]}, NATIVE)
    good, bad, after = read_solutions(path, keep_going=True)
    assert isinstance(good, SolutionRow) and isinstance(after, SolutionRow)
    assert str(bad.error).startswith(f"{path}:1 (candidate 1), field 'solution'")


def test_completions_are_steps_beside_a_prompt_and_candidates_beside_any_other_name():
    (trl,) = read_solutions([{"prompt": "p", "completions": STEPS}])
    assert trl.solution.texts == tuple(STEPS)
    candidates = read_solutions([{"question": "p", "completions": STEPS}])
    assert [one.solution.texts for one in candidates] == [(STEPS[0],), (STEPS[1],)]


def test_columns_settle_what_two_names_leave_open():
    row = {
        "question": "q",
        "prompt": "long",
        "solution": "gold",
        "response": "mine",
        "steps": 3,
        "gold": 1,
        "target": 2,
    }
    (read,) = read_solutions(
        [row], columns={"problem": "question", "solution": "response", "answer": "target"}
    )
    assert (read.solution.problem, read.solution.texts) == (Problem(text="q", answer="2"), ("mine",))
    assert read.meta == {"prompt": "long", "solution": "gold", "steps": 3, "gold": 1}
    assert read.row == row
    (gold,) = read_solutions(
        [{"question": "q", "answer": "3 + 4 = 7\n#### 7"}], columns={"solution": "answer"}
    )
    assert gold.solution.texts == ("3 + 4 = 7", "#### 7")


def test_records_are_read_as_they_are():
    solution = Solution(
        problem=Problem(text="p", id="q"), steps=(Step(text="a", lead="1. ", start=3),), split="numbered"
    )
    (read,) = read_solutions([solution])
    assert read.solution is solution
    assert read.row == {"problem": "p", "steps": ["a"], "problem_id": "q"}
    with pytest.raises(InputError, match=r"^row 1"):
        list(read_solutions([Problem(text="p")]))


@pytest.mark.parametrize("key", GRADED_KEYS)
def test_columns_with_the_names_of_those_that_grading_writes_move_under_meta(key, tmp_path):
    one = read_solution({**NATIVE, key: 1, "meta": {"mine": 2}})
    (other,) = read_solutions(file_of(tmp_path, {**NATIVE, key: 1, "meta": {"mine": 2}}))
    for read in (one, other):
        assert read.meta == {"mine": 2, key: 1}
        assert key not in read.row and read.row["meta"] == {"mine": 2, key: 1}


def test_a_column_that_is_named_otherwise_and_a_score(tmp_path):
    row = {"Aufgabe": "p", "steps": ["a"], "score": 0.5}
    (read,) = read_solutions(file_of(tmp_path, row), columns={"problem": "Aufgabe"})
    assert read.row == {"Aufgabe": "p", "steps": ["a"], "meta": {"score": 0.5}}


def test_reading_errors_are_refusals_too(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(json.dumps(NATIVE).encode() + b"\nnot json\n" + json.dumps(NATIVE).encode())
    kinds = [type(row) for row in read_solutions(path, keep_going=True)]
    assert kinds == [SolutionRow, Refusal, SolutionRow]


def test_names_and_ways(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_solutions(tmp_path / "nothing")
    row = {"problem": "p", "solution": "a"}
    with pytest.raises(UnknownNameError, match="'sentence'"):
        read_solution(row, how="sentense")
    with pytest.raises(InputError, match=r"^f:3, field 'solution'.*no turns.*'messages'"):
        read_solution(row, how="agent", where="f:3")


def test_rows_of_labels_are_solutions_without_the_labels(tmp_path):
    labelled = LabelledSolution(
        solution=Solution.of("p", ["a", "b"], id="x"),
        judgements=((Judgement(kind="correctness", judge="j", rating=1),), ()),
    )
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps({**record_row(labelled), "outcome": True}) + "\n")
    (row,) = read_solutions(path)
    assert row.solution == labelled.solution
    assert row.row == {"problem": "p", "steps": ["a", "b"], "id": "x"}
