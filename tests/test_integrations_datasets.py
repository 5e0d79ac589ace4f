"""Rows that the commands write go through a `datasets.Dataset` and come back, without a schema of ours."""

from __future__ import annotations

import json

import pytest

from stepmark import load_problems, read_labelled
from stepmark.cli import main

datasets = pytest.importorskip("datasets")


def test_labelled_rows(tmp_path):
    rows = [
        {"prompt": "2 + 3?", "completions": ["2 + 3 = 6", "So 6."], "labels": [False, False]},
        {"prompt": "1 + 1?", "completions": ["1 + 1 = 2"], "labels": [True]},
    ]
    source, out = tmp_path / "trl.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    assert main(["convert", str(source), "--to", "stepmark-labels", "--out", str(out)]) == 0
    dataset = datasets.Dataset.from_list([json.loads(line) for line in out.read_text().splitlines()])
    for labelled in (read_labelled(out), read_labelled(dataset)):
        assert [[view[0].rating for view in row.labelled.judgements] for row in labelled] == [[-1, -1], [1]]


def test_problems(tmp_path):
    dataset = datasets.Dataset.from_dict({"question": ["2 + 3?", "1 + 1?"], "answer": ["5", "2"]})
    assert [(problem.text, problem.answer) for problem in load_problems(dataset)] == [("2 + 3?", "5"), ("1 + 1?", "2")]  # fmt: skip
