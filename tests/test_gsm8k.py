"""Reading GSM8K: its layout, and bad rows by file and line."""

import gzip
import json

import pytest

from stepmark.errors import InputError
from stepmark.problems.sources import read_gsm8k

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
        ({"question": "q", "answer": ""}, "answer", "'#### RESULT'"),
        ({"question": "q", "answer": "#### 5"}, "answer", "no step"),
        ({"question": "q", "answer": " \n\n#### 5"}, "answer", "no step"),
        ({"question": " ", "answer": "One.\n#### 5"}, "question", "empty"),
        ({"question": "q"}, "answer", "required"),
        ({"answer": "One.\n#### 5"}, "question", "required"),
        ({"question": "q", "answer": 5}, "answer", "string"),
        ({"question": None, "answer": "One.\n#### 5"}, "question", "string"),
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
