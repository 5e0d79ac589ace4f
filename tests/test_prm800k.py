"""PRM800K in its flat layout, read row by row."""

from __future__ import annotations

import gzip
import json

import pytest

from stepmark.errors import InputError
from stepmark.records import Problem
from stepmark.solutions.interchange.prm800k_flat import read_prm800k


def write_rows(file, rows):
    file.write_text(
        "".join(json.dumps(r) + "\n" if isinstance(r, dict) else r + "\n" for r in rows), encoding="utf-8"
    )
    return file


RATED = {
    "instruction": "What is 2 + 2?",
    "responses": ["Add the numbers."],
    "next_response": "2 + 2 = 4.",
    "answer": "4",
    "rating": 1,
    "is_human_response": False,
    "is_solution": True,
    "is_preferred_response": True,
}


def test_reading_prm800k(tmp_path):
    rows = [
        RATED,
        {**RATED, "rating": -1, "next_response": "2 + 2 = 5."},
        {**RATED, "rating": 0, "responses": []},
        {"instruction": "q", "responses": [], "next_response": "by a person", "rating": None},
    ]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    right, wrong, neutral, unrated = read_prm800k(file)
    assert right.solution.problem == Problem(text="What is 2 + 2?", source="PRM800K")
    assert right.solution.texts == ("Add the numbers.", "2 + 2 = 4.")
    assert right.solution.id == f"{file}:1"
    assert [[j.rating for j in js] for js in right.judgements] == [[], [1]]
    assert [(j.kind, j.judge) for j in right.judgements[-1]] == [("correctness", "human")]
    assert [[j.rating for j in js] for js in wrong.judgements] == [[], [-1]]
    assert [[j.rating for j in js] for js in neutral.judgements] == [[0]]
    # Not rated is not wrong: the step has no judgement at all.
    assert unrated.judgements == ((),)


def test_reading_packed_prm800k(tmp_path):
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(RATED).encode() + b"\n"))
    assert [r.solution.id for r in read_prm800k(file)] == [f"{file}:1"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "not JSON"),
        ("[]", "object"),
        ({k: v for k, v in RATED.items() if k != "rating"}, "'rating'"),
        ({k: v for k, v in RATED.items() if k != "next_response"}, "'next_response'"),
        ({**RATED, "rating": 2}, "'rating'"),
        ({**RATED, "rating": "1"}, "'rating'"),
        ({**RATED, "responses": "Add."}, "'responses'"),
        ({**RATED, "responses": [None]}, r"'responses\.0'"),
        ({**RATED, "instruction": " "}, "empty problem or step"),
        ({**RATED, "next_response": ""}, "empty problem or step"),
        ({**RATED, "responses": ["a", "\n"]}, "empty problem or step"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, bad, message):
    file = write_rows(tmp_path / "rows.jsonl", [RATED, bad, RATED])
    rows = read_prm800k(file)
    next(rows)
    with pytest.raises(InputError, match=message) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{file}:2")
