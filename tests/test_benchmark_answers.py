"""The parts of the benchmark `answers`, by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import answers


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        ("So it is 12 and costs $1,250.", "1250", True),
        ("12 apples in 3 boxes", "12", False),
        ("no number", "5", None),
    ],
)
def test_the_last_number_of_a_text(text, gold, verdict):
    assert answers.last_number(text, gold) is verdict


def test_truth_is_what_three_say_or_what_was_read():
    ours = {("a", 0): True, ("a", 1): True, ("a", 2): None, ("a", 3): False, ("a", 4): True}
    other = {("a", 0): True, ("a", 1): False, ("a", 2): None, ("a", 3): True, ("a", 4): True}
    number = {("a", 0): True, ("a", 1): True, ("a", 2): True, ("a", 3): True, ("a", 4): False}
    box = {("a", 0): None, ("a", 1): True, ("a", 2): None, ("a", 3): True, ("a", 4): True}
    readings = {"": ours, "b": other, answers.LAST_NUMBER: number, answers.BOX: box}
    known = answers.truths(readings, {"a": {"1": True, "2": None}})
    assert known == {("a", 0): True, ("a", 1): True, ("a", 2): None, ("a", 4): True}
    assert answers.figures_of(ours, known) == {"coverage": 80.0, "precision": 100.0}
    assert answers.figures_of(other, known)["precision"] == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        (r"\boxed{\left(3, \dfrac{1}{2}\right)}", r"(3,\frac{1}{2})", True),
        (r"\boxed{1} and \boxed{2}", "1", False),
        (r"\boxed{1", "1", None),
        ("1", "1", None),
    ],
)
def test_the_last_box_as_text(text, gold, verdict):
    assert answers.last_box(text, gold) is verdict


def test_a_verdict_on_a_text_that_names_no_answer_is_wrong():
    assert answers.figures_of({("a", 0): False}, {("a", 0): None})["precision"] == 0.0


def test_judgements_name_solutions_and_hold_no_text():
    judged = answers.json.loads(answers._JUDGED.read_text("utf-8"))
    assert set(judged) == set(answers.SETS)
    for problems in judged.values():
        for name, verdicts in problems.items():
            assert name.startswith(("gsm8k_", "math500_"))
            assert all(
                number.isdigit() and verdict in (True, False, None) for number, verdict in verdicts.items()
            )
