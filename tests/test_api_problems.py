"""Problems: the functions write and give what the commands do; GSM8K's layout, and bad rows by file and line."""

from __future__ import annotations

import gzip
import json

import pytest

from stepmark import ArithmeticWorld, Problem, load_problems
from stepmark.cli import main
from stepmark.errors import InputError, SettingError, UsageError
from stepmark.problems.loading import read_gsm8k

ROWS = [
    {"question": f"How many? {n}", "answer": f"Two and {n}.\n#### {2 + n}", "id": f"q{n}", "level": n}
    for n in range(5)
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def test_problems_are_written_as_the_command_writes_them(tmp_path, file, capsys):
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert main(["problems", "read", str(file), "--limit", "2", "--out", str(a)]) == 0
    problems = load_problems(file, limit=2, out=b)
    assert a.read_bytes() == b.read_bytes()
    assert [(one.id, one.answer) for one in problems] == [("q0", "2"), ("q2", "4")]  # evenly spaced over five
    assert json.loads(b.read_text().splitlines()[1])["meta"] == {"level": 2}
    assert "2 problems in" in capsys.readouterr().err


def test_problems_of_python_rows_and_several_files(file):
    assert list(load_problems(ROWS)) == list(load_problems(iter(ROWS))) == list(load_problems(file))
    assert len(load_problems([file, str(file)])) == 10
    (same,) = load_problems([Problem(text="Add.", answer="3", id="a")])
    assert same == Problem(text="Add.", answer="3", id="a")


@pytest.mark.parametrize(
    ("rows", "settings", "error", "message"),
    [
        ([{"answer": "4"}], {}, InputError, "row 1.*expected a problem"),
        ("none.jsonl", {}, InputError, "there is no such file"),
        (ROWS, {"limit": 0}, SettingError, "limit=0"),
        (ROWS, {"out": "nowhere/a.jsonl"}, UsageError, "there is no folder"),
        ([], {}, UsageError, "expected a file of problems"),
    ],
)
def test_errors_of_problems(rows, settings, error, message):
    with pytest.raises(error, match=message):
        load_problems(rows, **settings)


def test_the_arithmetic_world_writes_what_the_command_writes(tmp_path):
    a, b = (tmp_path / name for name in "ab")
    for folder in (a, b):
        folder.mkdir()
    words = ["--count", "4", "--steps", "3", "5", "--seed", "2", "--largest", "99", "--distractors", "0"]
    outs = ["--out", str(a / "p.jsonl"), "--solutions", str(a / "s.jsonl")]
    assert main(["problems", "arithmetic", *words, *outs]) == 0
    made = ArithmeticWorld.make_problems(
        count=4, steps=(3, 5), seed=2, largest=99, distractors=0, out=b / "p.jsonl", solutions=b / "s.jsonl"
    )
    for name in ("p.jsonl", "s.jsonl"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    assert all(3 <= len(problem.steps) <= 5 for problem in made)
    for problem in made:
        labels, first_error = ArithmeticWorld.true_labels(problem, problem.steps)
        assert all(labels) and first_error == -1
    with pytest.raises(SettingError, match=r"largest=5"):
        ArithmeticWorld.make_problems(largest=5)


GOOD = {"question": "How many pens?", "answer": "2*3 = <<2*3=6>>6 pens.\nSo 6.\n#### 6"}


def file_of(tmp_path, *rows, name="g.jsonl"):
    path = tmp_path / name
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["g.jsonl", "g.jsonl.gz"])
def test_layout(tmp_path, name):
    path = file_of(tmp_path, GOOD, {"question": "And $?", "answer": "One.\n#### $1,200.50"}, name=name)
    first, second = read_gsm8k(path)
    assert first.problem.text == "How many pens?"
    assert first.problem.answer == "6"
    assert first.problem.source == "GSM8K"
    assert first.problem.id == f"{path}:1"
    assert first.lines == ("2*3 = <<2*3=6>>6 pens.", "So 6.")
    assert (second.problem.id, second.problem.answer, second.lines) == (f"{path}:2", "$1,200.50", ("One.",))


@pytest.mark.parametrize(
    ("answer", "lines", "result"),
    [
        ("  One. \n\n \n Two.\n#### 5 ", ("One.", "Two."), "5"),
        ("One.\r\nTwo.\r\n#### 5\r\n", ("One.", "Two."), "5"),
        ("One.\n####5", ("One.",), "5"),
        ("One. #### 5", ("One.",), "5"),
        ("One.\n#### 5 pm \n\n", ("One.",), "5 pm"),
        ("See #### below.\n#### -3", ("See #### below.",), "-3"),
    ],
)
def test_lines_and_results(tmp_path, answer, lines, result):
    (found,) = read_gsm8k(file_of(tmp_path, {"question": "q", "answer": answer}))
    assert (found.lines, found.problem.answer) == (lines, result)


@pytest.mark.parametrize(
    ("bad", "field", "message"),
    [
        ({"question": "q", "answer": "One."}, "answer", "'#### RESULT'"),
        ({"question": "q", "answer": "One.\n#### "}, "answer", "'#### RESULT'"),
        ({"question": "q", "answer": "One.\n#### 5\nand more"}, "answer", "'#### RESULT'"),
        ({"question": "q", "answer": ""}, "answer", "empty"),
        ({"question": "q", "answer": "#### 5"}, "answer", "no step"),
        ({"question": "q", "answer": " \n\n#### 5"}, "answer", "no step"),
        ({"question": " ", "answer": "One.\n#### 5"}, "question", "white space"),
        ({"question": "q"}, "answer", "null"),
        ({"answer": "One.\n#### 5"}, "question", "null"),
        ({"question": "q", "answer": 5}, "answer", "number"),
        ({"question": None, "answer": "One.\n#### 5"}, "question", "null"),
        ("[1]", None, "expected a JSON object"),
        ('{"question": "q"', None, "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, bad, field, message):
    path = file_of(tmp_path, GOOD, "", bad)
    rows = read_gsm8k(path)
    assert next(rows).problem.answer == "6"
    with pytest.raises(InputError, match=message) as caught:
        next(rows)
    assert caught.value.where == f"{path}:3"
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}:3")
