"""False positives and negatives of verifiers: counted by hand on small sets, read strictly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.result import as_markdown, read_result, write_json
from stepmark.evaluation.verifier import (
    VerifierAccuracy,
    check_pairs,
    errors_of,
    read_pairs,
)
from stepmark.verifiers.base import load_verifier
from stepmark.verifiers.number import NumberVerifier
from stepmark.verifiers.text import TextVerifier


def evaluate(checked, *, settings=None, resamples=1000):
    return VerifierAccuracy().of_items(checked, Run(resamples=resamples, settings=settings or {}))


EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "answer_pairs.jsonl"

ROWS = [
    {
        "gold": "18",
        "answer": "18.0",
        "equal": True,
        "id": "a",
        "why": "same integer",
    },  # number right, text misses
    {"gold": "C", "answer": "c", "equal": False, "id": "b"},  # text matches wrongly, number has no verdict
    {"gold": "5", "answer": "6", "equal": False, "id": "c"},  # both right
    {"gold": "5", "answer": None, "equal": False, "id": "d"},  # neither has a verdict
    {"gold": "7", "text": "We add 3.\nThe answer is: 7", "equal": True, "id": "e"},  # both right
]


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def checked(tmp_path):
    file = _write(tmp_path / "pairs.jsonl", ROWS)
    return list(check_pairs(read_pairs([file]), [NumberVerifier(), TextVerifier()]))


def counts(items, name):
    return {
        error: (sum(hits), sum(of))
        for error, (hits, of) in errors_of(items).items()
        if error.startswith(name)
    }


def test_counts_by_hand(checked):
    assert counts(checked, "number") == {
        "number/false positives": (0, 3),
        "number/false negatives": (0, 2),
        "number/unparsed": (2, 5),
    }
    assert counts(checked, "text") == {
        "text/false positives": (1, 3),
        "text/false negatives": (1, 2),
        "text/unparsed": (1, 5),
    }
    # Wilson's interval solves (p - s)^2 = z^2 p (1 - p) / n at both ends.
    for figure in evaluate(checked).figures.values():
        trials = errors_of(checked)[figure.name][1].count(True)
        for end in (figure.low, figure.high):
            assert (end - figure.value) ** 2 == pytest.approx(
                1.959964**2 * end * (1 - end) / trials, rel=1e-4, abs=1e-9
            )


def test_figures_are_what_the_counts_say(checked):
    for items in (checked, checked * 2):
        values = VerifierAccuracy().statistic(items)(np.ones((1, len(items))))
        assert values["text/false positives"][0] == pytest.approx(1 / 3)
        assert values["text/false negatives"][0] == pytest.approx(1 / 2)
        assert values["number/unparsed"][0] == pytest.approx(2 / 5)


def test_nothing_to_count_is_no_number(checked):
    assert evaluate(checked[:1]).figures["number/false positives"].value is None
    with pytest.raises(InputError, match="no pairs"):
        evaluate([])


def test_the_report(checked, tmp_path):
    result = evaluate(checked, settings={"verifier": "number,text"})
    assert result.figures["text/false positives"].value == pytest.approx(1 / 3)
    text = as_markdown(result)
    assert "1 of 3" in text
    assert "(wrong)" in text
    write_json(result, tmp_path / "result.json")
    body = read_result(tmp_path / "result.json")
    assert [item["id"] for item in body["items"]] == ["a", "b", "c", "d", "e"]
    assert body["items"][0]["verdicts"]["text"]["outcome"] == "mismatch"


CANDIDATES = {
    "id": "p1",
    "question": "How many?",
    "gold": 18,
    "candidates": [
        {"model": "m", "text": "16 + 3.\nThe answer is: 19", "answer": "18", "correct": True},
        {"text": "The answer is: 18", "correct": True},
        {"text": "no idea", "answer": None, "correct": False},
        {"text": "unknown", "answer": "18", "correct": None},
    ],
}


def test_candidates(tmp_path):
    file = tmp_path / "candidates.jsonl.gz"
    with gzip.open(file, "wt") as out:
        out.write(json.dumps(CANDIDATES) + "\n" + json.dumps({**CANDIDATES, "id": "p2"}) + "\n")
    pairs = list(read_pairs([file]))
    assert [(p.id, p.answer, p.equal) for p in pairs[:3]] == [
        ("p1/0", "18", True),
        ("p1/1", "The answer is: 18", True),
        ("p1/2", None, False),
    ]
    assert {p.problem for p in pairs} == {"p1", "p2"}
    assert pairs[0].gold == "18"
    assert next(iter(read_pairs([file], part="text"))).answer == "16 + 3.\nThe answer is: 19"
    checked = list(check_pairs(pairs, [NumberVerifier()]))
    assert [one["verdicts"]["number"]["outcome"] for one in checked[:3]] == ["match", "match", "unparsed"]
    assert any("bootstrap over problems" in fact for fact in evaluate(checked, resamples=100).facts)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"gold": "1", "answer": "1"}, "field 'equal'"),
        ({"gold": "1", "answer": "1", "equal": 1}, "field 'equal'.*valid boolean, found 1"),
        ({"gold": 1, "answer": "1", "equal": True}, "field 'gold'.*valid string, found 1"),
        ({"gold": " ", "answer": "1", "equal": True}, "field 'gold'"),
        ({"answer": "1", "equal": True}, "field 'gold'"),
        ({"gold": "1", "answer": 1, "equal": True}, "field 'answer'.*valid string, found 1"),
        ({"gold": "1", "equal": True}, "`answer`"),
        ({"gold": "1", "answer": "1", "text": "1", "equal": True}, "`answer`"),
        ({"id": "x", "gold": "1", "candidates": {}}, "field 'candidates'"),
        ({"id": "x", "candidates": []}, "field 'answer'"),
        ({"id": True, "gold": "1", "candidates": []}, "field 'id'"),
        ({"id": "x", "gold": "1", "candidates": [{"text": "a"}]}, "candidate 0 .0-based., field 'correct'"),
        (
            {"id": "x", "gold": "1", "candidates": [{"text": 3, "correct": True}]},
            "candidate 0 .0-based., field 'answer'",
        ),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path, row, message):
    file = _write(tmp_path / "bad.jsonl", [ROWS[0], row])
    with pytest.raises(InputError, match=rf"bad\.jsonl:2.*{message}"):
        list(read_pairs([file]))


def test_an_id_twice(tmp_path):
    file = _write(tmp_path / "twice.jsonl", [ROWS[0], ROWS[0]])
    with pytest.raises(InputError, match=r"twice\.jsonl:2.*'a' stands at .*twice\.jsonl:1 too"):
        list(read_pairs([file]))


def test_settings_that_cannot_work():
    for names, said in ((("number", "number"), "number, number"), ((), "none")):
        with pytest.raises(UsageError, match=f"found {said}"):
            VerifierAccuracy(verifier=names).check(Run())


def test_the_example_pairs_are_sound():
    pairs = list(read_pairs([EXAMPLES]))
    assert len(pairs) > 100
    assert all(pair.why for pair in pairs)
    assert len({(pair.gold, pair.answer) for pair in pairs}) == len(pairs)


def test_number_never_errs_on_the_example_pairs():
    checked = list(check_pairs(read_pairs([EXAMPLES]), [NumberVerifier()]))
    hits = counts(checked, "number")
    assert hits["number/false positives"][0] == hits["number/false negatives"][0] == 0


def test_math_never_errs_on_the_example_pairs():
    pytest.importorskip("math_verify")
    pairs = [
        pair for pair in read_pairs([EXAMPLES]) if "^(5^" not in (pair.answer or "")
    ]  # the tower takes seconds
    with load_verifier("math") as verifier:
        checked = list(check_pairs(pairs, [verifier]))
    hits = counts(checked, "math")
    assert hits["math/false positives"][0] == hits["math/false negatives"][0] == 0
    # Without a verdict: only the sentence that denies its number.
    assert [one["gold"] for one in checked if one["verdicts"]["math"]["outcome"] == "unparsed"] == ["18"]
