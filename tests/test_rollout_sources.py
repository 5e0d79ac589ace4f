"""Rollout labels as cases, on rows written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.errors import InputError
from stepmark.evaluation.cases import first_error, step_labels
from stepmark.evaluation.disagreement import steps_right
from stepmark.evaluation.sources import read_cases

QUESTION = "What is 2 + 3?"


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def shepherd(question: str, steps: list[str], signs: str, task: str = "GSM8K") -> dict[str, str]:
    def text(marks: list[str]) -> str:
        numbered = (
            f"Step {n}: {step} {mark}" for n, (step, mark) in enumerate(zip(steps, marks, strict=True), 1)
        )
        return f"{question} " + "\n".join(numbered)

    return {"input": text(["ки"] * len(steps)), "label": text(list(signs)), "task": task}


def test_math_shepherd_rows(tmp_path):
    file = write(
        tmp_path / "m.jsonl",
        shepherd("Two and three?", ["2 + 3 = 5.", "The answer is: 5"], "++"),
        shepherd(
            "Is x+1 odd?", ["It is\n\na guess + a hope.", "No - so 4.", "The answer is: 4"], "+--", "MATH"
        ),
        shepherd("Two and three?", ["2 + 3 = 6.", "Less 1. The answer is: 5"], "-+"),
    )
    right, wrong, odd = read_cases([file])
    assert right.solution.problem.text == "Two and three?"
    assert right.solution.texts == ("2 + 3 = 5.", "The answer is: 5")
    assert "".join(step.raw for step in right.solution.steps) == (
        "Step 1: 2 + 3 = 5. ки\nStep 2: The answer is: 5 ки"
    )
    assert (right.outcome, right.group, right.answer, right.id) == (True, "GSM8K", "5", "m.jsonl:1")
    assert right.problem == odd.problem
    assert wrong.solution.texts == ("It is\n\na guess + a hope.", "No - so 4.", "The answer is: 4")
    assert (wrong.outcome, wrong.group, wrong.where) == (False, "MATH", f"{file}:2")
    assert [first_error(case.labelled) for case in (right, wrong, odd)] == [-1, 1, 0]
    assert [steps_right(case.labelled) for case in (right, wrong, odd)] == [True, False, False]
    assert {j.kind for step in odd.labelled.judgements for j in step} == {"value"}
    assert {j.trials for step in odd.labelled.judgements for j in step} == {None}


_CHARACTERS = st.text(alphabet="ab 1+-=.:\n", min_size=1, max_size=12).filter(lambda text: text.strip())


@given(st.lists(st.tuples(_CHARACTERS, st.sampled_from("+-")), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_math_shepherd_rows_are_read_as_they_were_written(tmp_path_factory, steps):
    file = write(
        tmp_path_factory.mktemp("rows") / "m.jsonl",
        shepherd("How many?", [text for text, _ in steps], "".join(sign for _, sign in steps)),
    )
    (case,) = read_cases([file])
    assert case.solution.texts == tuple(text.strip() for text, _ in steps)
    assert step_labels(case.labelled) == tuple(1.0 if sign == "+" else 0.0 for _, sign in steps)
    assert case.outcome is (steps[-1][1] == "+")


def changed(**keys: str) -> dict[str, str]:
    return {**shepherd("Two?", ["It is 2.", "The answer is: 2"], "++"), **keys}


@pytest.mark.parametrize(
    ("row", "said", "field"),
    [
        (changed(input="Two? It is 2. ки"), 'a question and then "Step 1:"', "input"),
        (changed(input="Step 1: It is 2. ки"), 'a question and then "Step 1:"', "input"),
        (changed(input="Two? Step 1: It is 2. ки\nStep 2: more"), "after the last", "input"),
        (changed(input="Two? Step 1: It is 2."), "to end in", "input"),
        (changed(input="Two? Step 1: ки", label="Two? Step 1: +"), "is blank", "input"),
        (changed(label="Two? Step 1: It is 3. +\nStep 2: The answer is: 2 +"), "text of the input", "label"),
        (changed(label="Two? Step 1: It is 2. +\nStep 2: The answer is: 2 ки"), "and then", "label"),
        (changed(label="Two? Step 1: It is 2. +"), "step 1", "label"),
        (
            changed(label="Two? Step 1: It is 2. +\nStep 2: The answer is: 2 + more"),
            "after the last",
            "label",
        ),
        ({"input": "Two? Step 1: a ки", "label": "Two? Step 1: a +"}, "Math-Shepherd", "task"),
        ({"input": 3, "label": "a", "task": "MATH"}, "a text", "input"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(row, said, field, tmp_path):
    file = write(tmp_path / "m.jsonl", changed(), row)
    with pytest.raises(InputError, match=said) as caught:
        read_cases([file])
    assert caught.value.where == f"{file}:2"
    assert caught.value.field == field
