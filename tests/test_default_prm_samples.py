"""`recipes/default_prm_samples.py`: rows of three repositories, made by hand in their shapes, as samples."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

RECIPE = runpy.run_path(str(Path(__file__).parents[1] / "recipes" / "default_prm_samples.py"))


def write(file: Path, rows: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows), encoding="utf-8")


def test_teachers_of_one_solution_are_counted_together(tmp_path: Path) -> None:
    row = {
        "problem": "Tom has 2 boxes of 3 pens. How many pens?",
        "reference_solution": "He has 6 pens because 2 x 3 = 6\n 6",
        "student_incorrect_solution": ["2 + 3 is 5. ", "So he has 5 pens.", " 5"],
        "incorrect_index": 0,
    }
    bare = {**row, "incorrect_index": 2}  # the answer alone, which is no step
    write(tmp_path / "dataset/dataset.json", [row, {**row, "incorrect_index": 1}, bare])
    [sample] = RECIPE["vtg"](tmp_path)
    assert sample["steps"] == ["2 + 3 is 5.", "So he has 5 pens."]
    assert (sample["first_errors"], sample["answer"], sample["correct"]) == ([0, 1], "6", False)


@pytest.mark.parametrize(
    ("text", "correct"), [("A: 7 - 2 = 5. The answer is 5.", True), ("7 + 2 is 9", False)]
)
def test_the_final_number_decides_and_the_equation_is_the_reference(
    tmp_path: Path, text: str, correct: bool
) -> None:
    question = "Ann had 7 pens and lost 2. How many are left?"
    for name in ("SVAMP", "MultiArith", "AddSub", "SingleEq"):
        folder = tmp_path / "dataset" / name
        write(folder / f"{name}.json", [{"sQuestion": question, "lEquations": ["X=(7.0-2.0)"]}])
        write(folder / f"{name.lower()}_1.json", [])
    sample = {"question": question, "chain-of-thought": text, "answer": 5.0}
    write(tmp_path / "dataset/AddSub/addsub_1.json", [sample])
    trained = [
        {"instruction": question, "output": text, "answer": "5.0"},
        {"instruction": "Of words?", "output": "none", "answer": "none"},
    ]
    write(tmp_path / "ft-training_set/math_data.json", trained)
    [made] = RECIPE["llm_adapters"](tmp_path)  # the second is the same sample, the third names no number
    assert (made["correct"], made["answer"], made["reference"]) == (correct, "5", "(7-2) = 5")
    assert made["solution"] == text.removeprefix("A: ")


def test_right_solutions_keep_their_answer(tmp_path: Path) -> None:
    row = {
        "question": "1 + 1?",
        "answer_cot": "1 + 1 = 2\n\nTherefore, the answer is <2>.",
        "answer_value": "2.0",
    }
    write(tmp_path / "data/svamp_nl.json", [row])
    [sample] = RECIPE["reft"](tmp_path)
    assert (sample["solution"], sample["correct"]) == ("1 + 1 = 2\n\nTherefore, the answer is 2.", True)
