"""Equality against the test cases of others: Math-Verify, lm-evaluation-harness (MATH, GSM8K), the PRM800K grader.

A row has the case as a fact: reference, answer, and whether its source calls them equal. Where this package says something else, `ours` says what and `why`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("math_verify")

from stepmark.verifiers.base import load_verifier

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("answer_oracles.jsonl").read_text("utf-8").splitlines()
]


@pytest.fixture(scope="module")
def math():
    with load_verifier("math") as verifier:
        yield verifier


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['source']}: {row['answer'][:40]}" for row in ROWS])
def test_equality_is_as_the_source_has_it(math, row):
    verdict = math.verify(row["answer"], row["gold"])
    expected = row.get("ours", "match" if row["equal"] else "mismatch")
    assert verdict.outcome == expected, verdict


def test_every_difference_has_its_reason():
    assert all(row["why"] for row in ROWS if "ours" in row)
    assert sum("ours" in row for row in ROWS) < len(ROWS) / 15
