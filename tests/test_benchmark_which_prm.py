"""The page of published PRMs' choices: its figures against a case by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.which_prm import HOWS, candidate_sets, edits_of, edits_section, figures_of, page, value


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
    text = page({"gsm8k": {"qwen-7b": figures}}, {"gsm8k": (2, unread)}, {})
    assert "2 problems of GSM8K (3.1 % of the solutions" in text
    assert "| highest `min` | +50.0" in text


def test_deleted_steps_by_hand(tmp_path):
    def row(group: int, clean: list[float], modified: list[float]) -> str:
        scores = {"clean_step_scores": clean, "modified_step_scores": modified}
        return json.dumps({"match_group_id": str(group), **scores}) + "\n"

    needed = [row(0, [0.9, 0.9, 0.9], [0.9, 0.2]), row(1, [0.9, 0.5, 0.9], [0.9, 0.9])]
    inert = [row(0, [0.9, 0.9, 0.9], [0.9, 0.9]), row(1, [0.9, 0.8, 0.9], [0.9, 0.7])]
    (tmp_path / "qwen_prm_gsm8k_necessary.jsonl").write_text("".join(needed))
    (tmp_path / "qwen_prm_gsm8k_inert.jsonl").write_text("".join(inert))
    figures = edits_of(tmp_path, "qwen-7b", "gsm8k")
    for how, falls in {"min": (50, 50), "last": (50, 50), "product": (50, 50), "mean": (50, 50)}.items():
        assert (value(figures, f"necessary/{how}"), value(figures, f"inert/{how}")) == falls, how
    assert value(figures, "difference/min") == 0
    assert "50 against 50" in "".join(edits_section({"gsm8k": {"qwen-7b": figures}}))
