"""Rollout labels as cases, on trees and rows written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.formats.openr import JUDGE
from stepmark.errors import InputError
from stepmark.evaluation.cases import first_error, step_labels
from stepmark.evaluation.disagreement import steps_right
from stepmark.evaluation.sources import read_cases, read_openr

QUESTION = "What is 2 + 3?"


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def node(text: str, share: float, *children: dict[str, object]) -> dict[str, object]:
    return {"text": text, "mc_value": share, "children": list(children)}


def tree(*children: dict[str, object], share: float = 0.5) -> dict[str, object]:
    return {
        "question": QUESTION,
        "final_answer": "5",
        "question_id": "q7",
        "reasoning_steps": node(QUESTION, share, *children),
    }


def flat(*pairs: tuple[str, float]) -> dict[str, object]:
    return {
        "question": QUESTION,
        "final_answer": "5",
        "question_id": "q7",
        "reasoning_steps": [{"solution_prefix": prefix, "mc_value": share} for prefix, share in pairs],
    }


TREE = tree(
    node("It is 5.", 1.0),
    node("We add.", 0.75, node("So 5.", 1.0), node("Take away.", 0.25, node("No: 5.", 1.0), node("-1", 0.0))),
)
FLAT = flat(
    (QUESTION, 0.5),
    (f"{QUESTION}\n\nIt is 5.", 1.0),
    (f"{QUESTION}\n\nWe add.", 0.75),
    (f"{QUESTION}\n\nWe add.\n\nSo 5.", 1.0),
    (f"{QUESTION}\n\nWe add.\n\nTake away.", 0.25),
    (f"{QUESTION}\n\nWe add.\n\nTake away.\n\nNo: 5.", 1.0),
    (f"{QUESTION}\n\nWe add.\n\nTake away.\n\n-1", 0.0),
)
PATHS = [
    (("It is 5.",), True),
    (("We add.", "So 5."), True),
    (("We add.", "Take away.", "No: 5."), True),
    (("We add.", "Take away.", "-1"), None),
]


@pytest.mark.parametrize("row", [TREE, FLAT], ids=["tree", "flat"])
def test_both_layouts_give_every_path_and_what_is_known_of_it(row, tmp_path):
    file = write(tmp_path / "r.jsonl", row)
    cases = read_openr([file], trials=4)
    assert [(case.solution.texts, case.outcome) for case in cases] == PATHS
    assert [case.id for case in cases] == [f"r.jsonl:1/{n}" for n in range(4)]
    assert {case.where for case in cases} == {f"{file}:1"}
    assert {case.problem for case in cases} == {"q7"}
    assert {case.solution.problem.answer for case in cases} == {"5"}
    assert [step_labels(case.labelled) for case in cases] == [
        (1.0,),
        (0.75, 1.0),
        (0.75, 0.25, 1.0),
        (0.75, 0.25, 0.0),
    ]
    last = cases[3].labelled.judgements
    assert [[(j.kind, j.judge, j.successes, j.trials, j.rating) for j in step] for step in last] == [
        [("value", JUDGE, 3, 4, None)],
        [("value", JUDGE, 1, 4, None)],
        [("value", JUDGE, 0, 4, None)],
    ]
    # The end of a finished rollout is that one rollout and not four.
    assert [(j.successes, j.trials) for j in cases[0].labelled.judgements[0]] == [(1, 1)]
    assert [first_error(case.labelled) for case in cases] == [-1, -1, -1, 2]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_flat_layout_of_a_tree_gives_the_paths_of_the_tree(tmp_path_factory, data):
    counter = iter(range(10_000))

    def grow(depth: int) -> list[dict[str, object]]:
        count = data.draw(st.integers(0 if depth else 1, 3 if depth < 3 else 0))
        return [
            node(f"step {next(counter)}.", data.draw(st.integers(0, 8)) / 8, *grow(depth + 1))
            for _ in range(count)
        ]

    children = grow(0)
    pairs: list[tuple[str, float]] = [(QUESTION, 0.5)]
    expected: list[tuple[tuple[str, ...], tuple[float, ...]]] = []

    def walk(prefix: str, one: dict[str, object], texts: tuple[str, ...], shares: tuple[float, ...]) -> None:
        prefix, texts, shares = (
            f"{prefix}\n\n{one['text']}",
            (*texts, one["text"]),
            (*shares, one["mc_value"]),
        )
        pairs.append((prefix, one["mc_value"]))
        for child in one["children"]:
            walk(prefix, child, texts, shares)
        if not one["children"]:
            expected.append((texts, shares))

    for child in children:
        walk(QUESTION, child, (), ())
    folder = tmp_path_factory.mktemp("trees")
    for name, row in (("tree", tree(*children)), ("flat", flat(*pairs))):
        cases = read_openr([write(folder / f"{name}.jsonl", row)], trials=8)
        assert [(case.solution.texts, step_labels(case.labelled)) for case in cases] == expected
        assert [case.outcome for case in cases] == [
            True if shares[-1] == 1 else None for _, shares in expected
        ]


@pytest.mark.parametrize(
    ("row", "said", "field"),
    [
        (tree(node("We add.", 0.3)), "multiple of 1/4", "mc_value"),
        (tree(node("We add.", 1.5)), "0 to 1, found 1.5", "reasoning_steps.children.0.mc_value"),
        (tree(node("We add.", None)), "0 to 1, found None", "reasoning_steps.children.0.mc_value"),
        (tree({"text": 3, "mc_value": 0.5, "children": []}), "a text", "reasoning_steps.children.0.text"),
        (tree({"text": "a", "mc_value": 0.5}), "list of children", "reasoning_steps.children.0"),
        (flat(("Another question", 0.5)), "begins with the question", "reasoning_steps.0"),
        (flat(), "found none", "reasoning_steps"),
        ({"question": "q", "final_answer": "1", "reasoning_steps": "x"}, "a tree or", "reasoning_steps"),
        ({"question": " ", "final_answer": "1", "reasoning_steps": []}, "white space", "question"),
        ({"question": "q"}, "a row of openr", "final_answer"),
    ],
)
def test_a_bad_tree_is_refused_with_its_place(row, said, field, tmp_path):
    file = write(tmp_path / "r.jsonl", TREE, row)
    with pytest.raises(InputError, match=said) as caught:
        read_openr([file], trials=4)
    assert caught.value.where == f"{file}:2"
    assert caught.value.field == field


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
