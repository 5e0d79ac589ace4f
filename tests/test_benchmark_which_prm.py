"""The page of published PRMs' choices: its figures against a case by hand."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.which_prm import HOWS, candidate_sets, figures_of, page, value


def problem(name: str, right: int) -> dict[str, object]:
    """32 solutions; the first `right` say 2 and have high scores, all others but the last say 3, and the last says nothing."""
    texts = ["So the answer is 2."] * right + ["So the answer is 3."] * (31 - right) + ["And so on\nand on."]
    candidates = [
        {"text": text, "scores": {"qwen-7b": [0.9, 0.8] if at < right else [0.9, 0.1]}}
        for at, text in enumerate(texts)
    ]
    return {"id": name, "gold": "2", "candidates": candidates}


def test_choices_by_hand():
    problems = [problem("a", 4), problem("b", 31)]
    sets, unread = candidate_sets(problems, "number")
    assert unread == 2 / 64
    figures = figures_of(sets, problems, "qwen-7b")
    assert abs(value(figures, "accuracy/single/1") - 100 * 35 / 64) < 1e-9
    assert value(figures, "accuracy/majority/32") == 50  # of a 27 say 3
    for how in HOWS:
        expected = 100 * (4 / 32 + 31 / 32) / 2 if how == "max" else 100  # all have a first step of 0.9
        assert abs(value(figures, f"accuracy/best {how}/32") - expected) < 1e-9, how
    assert value(figures, "over majority/best min/32") == 50
    text = page({"gsm8k": {"qwen-7b": figures}}, {"gsm8k": (2, unread)})
    assert "2 problems of GSM8K (3.1 % of the solutions" in text
    assert "| highest `min` | +50.0" in text
