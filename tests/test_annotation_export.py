"""What people said comes out in each format as its makers document it, and trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from annotation_marks import marks_of_first_error, marks_of_ratings
from stepmark.annotation.export import Exporting, export
from stepmark.annotation.items import Item
from stepmark.annotation.marks import AnnotatorMarks, Decision
from stepmark.annotation.project import Project
from stepmark.data.formats.rows import Counts
from stepmark.data.labelled import read_labelled, write_labelled
from stepmark.errors import InputError
from stepmark.evaluation.benchmarks.who_and_when import WhoAndWhen
from stepmark.evaluation.run import evaluate
from stepmark.records import Problem, Solution, Step
from stepmark.training.examples import LabelRules, examples
from stepmark.training.run import training_rows

FIRST = Project(name="algebra")
EACH = Project(mode="per_step", allow_neutral=True)


def item(id_: str, steps: int = 4, **more: Any) -> Item:
    texts = tuple(Step(text=f"{id_} step {n}") for n in range(steps))
    problem = Problem(text=f"{id_}?", answer="7")
    return Item(id=id_, solution=Solution(problem=problem, steps=texts, id=id_, source="model-x"), **more)


def first(item_: str, account: str, step: int, steps: int = 4, **more: Any) -> AnnotatorMarks:
    return AnnotatorMarks(item=item_, account=account, marks=marks_of_first_error(step, steps), **more)


def each(item_: str, account: str, *ratings: Any, **more: Any) -> AnnotatorMarks:
    return AnnotatorMarks(item=item_, account=account, marks=marks_of_ratings(ratings), **more)


def rows(
    project: Project, items: Any, answers: Any, *, decisions: Any = (), tally: Any = None, **settings: Any
) -> Any:
    found = export(project, items, answers, decisions, Exporting(**settings), tally)
    return [row for row in found if not isinstance(row, InputError)]


def ratings(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{j["judge"]: j["rating"] for j in step} for step in row["judgements"]]


def test_stepmark_holds_everything_side_by_side():
    ann = first("q", "ann", 2, seconds=12.5, at=1_700_000_000.0)
    marks = replace(
        ann.marks,
        unsure=frozenset({1}),
        notes=((None, "odd"), (2, "sign lost")),
        error_types=((2, "algebra"),),
    )
    answers = [first("q", "bob", -1), replace(ann, marks=marks)]
    decision = Decision(
        item="q",
        account="eve",
        marks=marks_of_first_error(2, 4),
        reason="see",
        over=("ann", "bob"),
    )
    (row,) = rows(FIRST, [item("q", outcome=False)], answers, decisions=[decision])
    assert ratings(row) == [
        {"human:ann": 1, "human:bob": 1, "human:eve": 1},
        {"human:ann": 1, "human:bob": 1, "human:eve": 1},
        {"human:ann": -1, "human:bob": 1, "human:eve": -1},
        {"human:bob": 1},
    ]
    assert row["judgements"][1][0]["note"] == "unsure"
    assert row["judgements"][2][0]["note"] == "error type: algebra; sign lost"
    assert row["outcome"] is False
    facts = row["meta"]["annotation"]
    assert facts["answers"][0] == {
        "account": "ann",
        "at": 1_700_000_000.0,
        "seconds": 12.5,
        "submitted": True,
        "unsure": [1],
        "notes": [[None, "odd"], [2, "sign lost"]],
        "error_types": [[2, "algebra"]],
    }
    assert (facts["decision"]["reason"], facts["decision"]["over"]) == ("see", ["ann", "bob"])


def test_prm800k_records_as_released():
    (row,) = rows(FIRST, [item("q", 3)], [first("q", "ann", 1, 3)], format="prm800k")
    assert row == {
        "labeler": "ann",
        "timestamp": None,
        "generation": None,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {
            "problem": "q?",
            "ground_truth_answer": "7",
            "pre_generated_steps": ["q step 0", "q step 1", "q step 2"],
        },
        "label": {
            "steps": [
                {
                    "completions": [{"text": "q step 0", "rating": 1, "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": 0,
                },
                {
                    "completions": [{"text": "q step 1", "rating": -1, "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": None,
                },
            ],
            "total_time": None,
            "finish_reason": "found_error",
        },
    }


def test_trl_is_cut_where_nobody_judged():
    counts = Counts()
    (row,) = rows(FIRST, [item("q")], [first("q", "ann", 1)], format="trl", tally=counts)
    assert (row["prompt"], row["completions"], row["labels"]) == (
        "q?",
        ["q step 0", "q step 1"],
        [True, False],
    )
    assert list(row["meta"]) == ["from", "judge", "kind", "outcome", "annotation"]
    assert row["meta"]["annotation"]["answers"][0]["account"] == "ann"


def test_a_decision_wins_else_agreement():
    items = [item(name) for name in "abcd"]
    answers = [
        first("a", "ann", 1),
        first("a", "bob", 3),
        first("b", "ann", 2),
        first("b", "bob", 2),
        first("c", "ann", 0),
        first("c", "bob", 1),
        first("c", "cem", 1),
        first("d", "ann", 0),
        first("d", "bob", -1),
    ]
    decision = Decision(item="a", account="eve", marks=marks_of_first_error(3, 4))
    counts = Counts()
    found = rows(FIRST, items, answers, decisions=[decision], format="trl", tally=counts)
    assert {row["id"]: row["labels"] for row in found} == {
        "a": [True, True, True, False],
        "b": [True, True, False],
    }
    assert {row["id"]: row["meta"]["judge"] for row in found} == {
        "a": "human:eve",
        "b": "consensus:first-error-agrees",
    }
    assert counts.facts()["dropped"] == {
        "no agreement among annotators (first-error-agrees: places differ), and no decision": 2
    }
    found = rows(FIRST, items, answers, format="trl", view="annotators")
    assert [(row["id"], row["meta"]["judge"]) for row in found[:2]] == [
        ("a", "human:ann"),
        ("a", "human:bob"),
    ]


def test_only_answers_that_count():
    submitted = first("q", "ann", 1)
    begun = replace(first("q", "bob", 0), marks=replace(submitted.marks, submitted=False))
    counts = Counts()
    (row,) = rows(FIRST, [item("q")], [submitted, begun], tally=counts)
    assert ratings(row)[0] == {"human:ann": 1}
    (row,) = rows(FIRST, [item("q")], [submitted, begun], unfinished=True)
    assert set(ratings(row)[0]) == {"human:ann", "human:bob"}


def test_what_an_answer_says_beside_its_marks_stands_in_meta():
    answer = first("q", "ann", 1, 2, seconds=3.0)
    marks = replace(
        answer.marks, notes=((0, "n"), (None, "m")), error_types=((1, "t"),), unsure=frozenset({0, None})
    )
    for format in ("trl", "math-shepherd", "processbench"):
        counts = Counts()
        (row,) = rows(
            FIRST, [item("q", 2, outcome=False)], [replace(answer, marks=marks)], format=format, tally=counts
        )
        if format in ("trl", "math-shepherd"):  # whose rows have a meta
            (said,) = row["meta"]["annotation"]["answers"]
            assert said["notes"] == [[0, "n"], [None, "m"]]
            assert said["error_types"] == [[1, "t"]]
            assert (said["unsure"], said["seconds"]) == ([None, 0], 3.0)


@pytest.mark.parametrize("format", ["stepmark", "prm800k", "trl", "math-shepherd", "processbench"])
def test_every_export_trains(format, tmp_path: Path):
    """`stepmark train` reads each: 1 for the steps before the first error, 0 for it, no target after it."""
    items = [item("q", 3, outcome=False), item("r", 2, outcome=True)]
    answers = [first("q", "ann", 1, 3), first("r", "bob", -1, 2)]
    file = tmp_path / "export.jsonl"
    file.write_text(
        "".join(json.dumps(row) + "\n" for row in rows(FIRST, items, answers, format=format)),
        encoding="utf-8",
    )
    rules = LabelRules(labels="correctness", judge="human")
    found = list(examples(training_rows([str(file)]), rules))
    targets = {e.solution.problem.text: [t.value for t in e.targets if t is not None] for e in found}
    assert targets == {"q?": [1.0, 0.0], "r?": [1.0, 1.0]}


def test_an_export_reads_back_as_what_was_said(tmp_path: Path):
    answers = [each("q", "ann", 1, 0, -1, None), each("q", "bob", 1, 1, 1, 1)]
    file = tmp_path / "export.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows(EACH, [item("q")], answers)))
    (back,) = read_labelled(file)
    said = {
        name: [next((j.rating for j in step if j.judge == name), None) for step in back.labelled.judgements]
        for name in ("human:ann", "human:bob")
    }
    assert said == {"human:ann": [1, 0, -1, None], "human:bob": [1, 1, 1, 1]}


def test_an_agents_trace_comes_out_in_who_and_whens_shape(tmp_path):
    """What came back after a step is an entry of its own; the row is read back, and measured, as Who&When's own are."""
    steps = (
        Step(
            text="I search.",
            speaker="Surfer (thought)",
            observation="\n\nTool (search):\nnothing\n\nUser:\nHurry.",
        ),
        Step(text="It is 5.", speaker="Surfer (answer)"),
    )
    one = Item(id="w1", solution=Solution(problem=Problem(text="How many?", answer="7"), steps=steps))
    marks = replace(marks_of_first_error(1, 2), notes=((1, "a guess"),), error_types=((1, "wrong fact"),))
    none = Item(id="w2", solution=one.solution)
    answers = [
        AnnotatorMarks(item="w1", account="ann", marks=marks),
        AnnotatorMarks(item="w1", account="bob", marks=marks_of_first_error(1, 2)),
        first("w2", "ann", -1, steps=2),
        first("w2", "bob", -1, steps=2),
    ]
    counts = Counts()
    (row,) = rows(Project(overlap=2), [one, none], answers, format="who-and-when", tally=counts)
    assert row == {
        "question": "How many?",
        "question_ID": "w1",
        "ground_truth": "7",
        "history": [
            {"content": "I search.", "role": "assistant", "name": "Surfer (thought)"},
            {"content": "nothing", "role": "tool", "name": "search"},
            {"content": "Hurry.", "role": "user", "name": "user"},
            {"content": "It is 5.", "role": "assistant", "name": "Surfer (answer)"},
        ],
        "mistake_agent": "Surfer",
        "mistake_step": "3",
        "mistake_reason": "wrong fact; a guess",
    }
    assert counts.dropped == 1
    file = tmp_path / "labels.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (read,) = read_labelled(file)
    assert [[j.rating for j in step] for step in read.labelled.judgements] == [[1], [1], [1], [-1]]
    assert read.labelled.judgements[3][0].note == "wrong fact; a guess"
    assert read.outcome is False
    counts = Counts()
    (again,) = write_labelled([read], "who-and-when", counts=counts)
    assert [entry["content"] for entry in again.pop("history")] == [e["content"] for e in row.pop("history")]
    assert again == row
    result = evaluate(WhoAndWhen(labels=str(file)), data=str(file), resamples=100, progress=False)
    assert result.figures["algorithm-generated/step"].value == 1
    assert result.figures["algorithm-generated/agent"].value == 1
