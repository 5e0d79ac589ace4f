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


def mean(samples: list[tuple[float, bool]], threshold: float) -> float:
    wrong = [score < threshold for score, right in samples if not right]
    right = [score >= threshold for score, right in samples if right]
    a, b = sum(wrong) / len(wrong), sum(right) / len(right)
    return 2 * a * b / (a + b) if a + b else 0.0


@given(st.lists(st.tuples(st.integers(0, 9).map(float), st.booleans()), min_size=2, max_size=30))
def test_no_threshold_is_better(samples: list[tuple[float, bool]]) -> None:
    if len({right for _, right in samples}) < 2:
        with pytest.raises(ValueError, match="one kind"):
            RECIPE["best_threshold"](samples)
        return
    threshold, caught, clean = RECIPE["best_threshold"](samples)
    best = max(mean(samples, at + 0.5) for at in range(-1, 10))
    assert (2 * caught * clean / (caught + clean) if caught + clean else 0) == pytest.approx(best)
    # The highest score as its own threshold has nothing under it that is equal to it.
    if threshold < max(score for score, _ in samples):
        assert mean(samples, threshold) == pytest.approx(best)


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
    assert (figures["samples"], figures["problems"]) == (8, 4)
    assert figures["interval"][0] <= figures["threshold"] <= figures["interval"][1]
