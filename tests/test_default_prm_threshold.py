"""`recipes/default_prm_threshold.py` against an exhaustive choice and a run on a PRM whose scores are known."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

FILE = str(Path(__file__).parents[1] / "recipes" / "default_prm_threshold.py")
RECIPE = runpy.run_path(FILE)


Sample = RECIPE["Sample"]


def of(score: float, right: bool) -> object:
    return Sample(scores=(score,), refuted=None, right=right)


def mean(samples: list[tuple[float, bool]], threshold: float) -> float:
    wrong = [score < threshold for score, right in samples if not right]
    right = [score >= threshold for score, right in samples if right]
    a, b = sum(wrong) / len(wrong), sum(right) / len(right)
    return 2 * a * b / (a + b) if a + b else 0.0


@given(st.lists(st.tuples(st.integers(0, 9).map(lambda n: n / 10), st.booleans()), min_size=2, max_size=30))
def test_no_threshold_is_better(pairs: list[tuple[float, bool]]) -> None:
    samples = [of(*pair) for pair in pairs]
    if len({right for _, right in pairs}) < 2:
        with pytest.raises(ValueError, match="one kind"):
            RECIPE["best_threshold"]([samples], RECIPE["THRESHOLDS"])
        return
    threshold = RECIPE["best_threshold"]([samples], RECIPE["THRESHOLDS"])
    assert mean(pairs, threshold) == pytest.approx(max(mean(pairs, at / 10 + 0.05) for at in range(10)))


@pytest.mark.parametrize(
    ("scores", "refuted", "right", "first_error", "hit"),
    [
        ((0.9, 0.8), None, True, None, True),
        ((0.9, 0.4), None, True, None, False),
        ((0.9, 0.8), 1, True, None, False),  # refuted by a check
        ((0.9, 0.4), None, False, None, True),  # where the error is, is not known
        ((0.9, 0.4), None, False, 1, True),
        ((0.9, 0.4, 0.2), None, False, 2, False),  # named too early
        ((0.9, 0.9, 0.4), 1, False, 1, True),  # the check is before the score
        ((0.9, 0.9), None, False, 1, False),
    ],
)
def test_a_hit_is_the_first_error_or_none(scores, refuted, right, first_error, hit) -> None:
    sample = Sample(scores=scores, refuted=refuted, right=right, first_error=first_error)
    assert sample.is_hit(0.5) is hit


def test_two_sets_count_alike() -> None:
    # The first set alone is best just above 0.2, the second above 0.6; together 0.6 costs the first nothing but its one right sample of three.
    first = [of(0.2, False), of(0.5, True), of(0.9, True), of(0.9, True)]
    second = [of(0.6, False), of(0.9, True)]
    best, grid = RECIPE["best_threshold"], RECIPE["THRESHOLDS"]
    assert 0.2 < best([first], grid) <= 0.5 and 0.6 < best([second], grid) <= 0.9
    # 0.8 + 1 (two of three right ones left) beats 1 + 0.
    assert 0.6 < best([first, second], grid) <= 0.9


def test_a_run_writes_the_threshold_that_parts_right_from_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # tests/own_searches.py's trap PRM scores "a" high and "b" low.
    rows = [
        {"problem": f"{number}?", "steps": [step], "correct": step == "a"}
        for number in range(4)
        for step in ("a", "b")
    ]
    samples = tmp_path / "samples.jsonl"
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["threshold", "own_searches:trap_prm", str(samples)])
    RECIPE["main"]()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["samples"]["solutions"], figures["samples"]["problems"]) == (8, 4)
    assert figures["interval"][0] <= figures["threshold"] <= figures["interval"][1]
