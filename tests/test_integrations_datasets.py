"""Records as rows with typed columns and back; with `datasets` installed, as data sets.

The tests that need `datasets` are skipped without it, or run where it is: `PYTHONPATH=src …/bin/python -m pytest tests/test_integrations_datasets.py` in
an environment made from `benchmarks/peers/lm-eval.txt` with pytest and hypothesis.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark import load_problems, read_labelled
from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.integrations import hub_datasets
from stepmark.integrations.hub_datasets import (
    COLUMNS,
    from_columns,
    from_dataset,
    to_columns,
    to_dataset,
)
from stepmark.records import GradedSolution, Judgement, LabelledSolution, Problem, Solution, Step, StepScores

PROBLEM = Problem(text="2 + 3?", id="p1", answer="5", source="sums")
STEPS = (
    Step(text="2 + 3 = 5", lead="Step 1: ", tail="\n", start=8),
    Step(text="So 5.", observation="Right.", start=20),
)
SOLUTION = Solution(problem=PROBLEM, steps=STEPS, id="s1", split="numbered", source="a model")
BARE = Solution.of("4 + 4?", ["4 + 4 = 8"])
LABELLED = LabelledSolution(
    solution=SOLUTION,
    judgements=(
        (
            Judgement(kind="correctness", judge="human:ann", rating=1, confidence=0.75),
            Judgement(kind="value", judge="rollout", successes=3, trials=8, note="first run"),
        ),
        (),
    ),
    root=(Judgement(kind="value", judge="rollout", share=0.5),),
)
SCORED = GradedSolution(
    solution=BARE,
    step_scores=StepScores(
        scores=(0.25,),
        kind="probability",
        classes=((0.5, 0.25, 0.25),),
        class_names=("negative", "neutral", "positive"),
        critiques=(("Right.", "Wrong."),),
        problem_tokens=7,
        solution_tokens=5,
    ),
    score=math.inf,
    aggregate="sum-logit",
    first_error=0,
    threshold=0.5,
    prm="ours",
    outcome=0.125,
    outcome_model="theirs",
)
RECORDS = [PROBLEM, SOLUTION, BARE, LABELLED, SCORED]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_comes_back_equal(record):
    row = to_columns(record)
    assert list(row) == list(COLUMNS[type(record)])
    assert from_columns(json.loads(json.dumps(row)), type(record)) == record
    # What is null may be left out.
    assert from_columns({k: v for k, v in row.items() if v is not None}, type(record)) == record


def test_the_columns_of_a_row_say_what_the_record_says():
    row = to_columns(LABELLED)
    assert row["problem"] == "2 + 3?"
    assert row["steps"] == ["2 + 3 = 5", "So 5."]
    assert (row["id"], row["problem_id"], row["answer"], row["source"]) == ("s1", "p1", "5", "a model")
    assert row["layout"][0] == {
        "lead": "Step 1: ",
        "tail": "\n",
        "observation": "",
        "start": 8,
        "speaker": None,
    }
    assert row["judgements"][0][1]["successes"] == 3
    assert row["judgements"][1] == []
    assert to_columns(BARE)["layout"] is None
    assert list(to_columns(SCORED)["classes"][0]) == [0.5, 0.25, 0.25]


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
maybe = st.none() | text
judgement = st.builds(
    Judgement,
    kind=st.sampled_from(["correctness", "value"]),
    judge=text,
    rating=st.sampled_from([None, -1, 0, 1]),
    successes=st.none() | st.integers(0, 8),
    trials=st.none() | st.integers(0, 8),
    share=st.none() | st.floats(0, 1),
    note=maybe,
)
step = st.builds(Step, text=text, lead=st.text(max_size=3), start=st.none() | st.integers(0, 99))
solution = st.builds(
    Solution,
    problem=st.builds(Problem, text=text, id=maybe, answer=maybe, source=maybe),
    steps=st.lists(step, min_size=1, max_size=3).map(tuple),
    id=maybe,
    split=maybe,
    source=maybe,
)


@given(solution, st.data())
@settings(max_examples=60, deadline=None)
def test_any_labelled_solution_comes_back_equal(one, data):
    some = st.lists(judgement, max_size=2).map(tuple)
    labelled = LabelledSolution(
        solution=one, judgements=tuple(data.draw(some) for _ in one.steps), root=data.draw(some)
    )
    [found] = from_dataset([to_columns(labelled)], LabelledSolution)
    assert found == labelled


GOOD = {"problem": "2 + 3?", "steps": ["a", "b"]}
SCORED_ROW = to_columns(SCORED)


@pytest.mark.parametrize(
    ("row", "kind", "match"),
    [
        ({**GOOD, "anwser": "5"}, Solution, "field 'anwser': 'anwser': no columns of a Solution; expected problem, steps"),
        ({"steps": ["a"]}, Solution, "field 'problem.text'.*string"),
        ({**GOOD, "steps": ["a", 3]}, Solution, r"field 'steps.1.text': .*string"),
        ({**GOOD, "steps": "a"}, Solution, "field 'steps': expected a list of texts, found a string"),
        ({**GOOD, "steps": ["a", " "]}, Solution, r"field 'steps': step 1 \(0-based\) is blank"),
        ({**GOOD, "steps": []}, Solution, "field 'steps': expected at least one step"),
        ({**GOOD, "problem": "  "}, Solution, "field 'problem': expected a text, found a blank one"),
        ({**GOOD, "layout": [{}]}, Solution, r"field 'layout': expected null, or one entry a step \(2\)"),
        ({**GOOD, "layout": [{}, {"start": "x"}]}, Solution, "field 'steps.1.start'"),
        ({**GOOD, "judgements": [[]]}, LabelledSolution, r"field 'judgements': .*a step \(2\), found 1"),
        (
            {**GOOD, "judgements": [[], [{"kind": "worth", "judge": "x"}]]},
            LabelledSolution,
            "field 'judgements.1.0.kind'",
        ),
        ({**SCORED_ROW, "scores": [0.5, 0.5]}, GradedSolution, "expected 1 score, one a step, found 2"),
        ({**SCORED_ROW, "scores": [1.5]}, GradedSolution, r"1.5: expected a number in \[0, 1\]"),
        ({**SCORED_ROW, "score_kind": "odds"}, GradedSolution, "field 'step_scores.kind'"),
        ({**SCORED_ROW, "first_error": 0.5}, GradedSolution, "field 'first_error'"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named_with_its_number_and_field(row, kind, match):
    good = {Solution: SOLUTION, LabelledSolution: LABELLED, GradedSolution: SCORED}[kind]
    records = from_dataset([to_columns(good), row], kind)
    assert next(records) == good
    with pytest.raises(InputError, match=f"row 1.*{match}"):
        next(records)


def test_only_records_are_read_and_written(monkeypatch):
    with pytest.raises(UsageError, match="expected Problem, Solution"):
        from_dataset([], StepScores)  # type: ignore[type-var]

    def missing():
        raise MissingExtraError("pip install 'stepmark[hub]'")

    monkeypatch.setattr(hub_datasets, "_datasets", missing)
    with pytest.raises(MissingExtraError, match=r"stepmark\[hub\]"):
        to_dataset([PROBLEM])


# With `datasets`


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(module.config, "HF_DATASETS_OFFLINE", True)
    return module


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_data_set_gives_the_records_back(datasets, record, tmp_path):
    dataset = to_dataset([record, record])
    assert list(dataset.column_names) == list(COLUMNS[type(record)])
    assert list(from_dataset(dataset, type(record))) == [record, record]
    dataset.save_to_disk(tmp_path / "saved")
    assert list(from_dataset(datasets.load_from_disk(tmp_path / "saved"), type(record))) == [record, record]
    stream = dataset.to_iterable_dataset()
    assert list(from_dataset(stream, type(record))) == [record, record]


def test_columns_have_types_though_they_are_empty(datasets):
    dataset = to_dataset([BARE])
    assert dataset.features["answer"] == datasets.Value("string")
    assert dataset.features["layout"].feature["start"] == datasets.Value("int64")
    nothing = to_dataset([replace(LABELLED, judgements=((), ()), root=())])
    assert nothing.features == to_dataset([LABELLED]).features
    # So parts can be put together.
    assert len(datasets.concatenate_datasets([nothing, to_dataset([LABELLED])])) == 2


def test_records_of_several_kinds_are_no_data_set(datasets):
    with pytest.raises(InputError, match="record 1: expected a Solution, as record 0 is, found a Problem"):
        to_dataset([BARE, PROBLEM])
    with pytest.raises(InputError, match="at least one record"):
        to_dataset([])


def test_data_sets_of_others_are_read_by_what_takes_rows(datasets):
    rows = [
        {"prompt": "2 + 3?", "completions": ["2 + 3 = 5", "So 6."], "labels": [True, False]},
        {"prompt": "4 + 4?", "completions": ["8."], "labels": [True]},
    ]
    read = list(read_labelled(datasets.Dataset.from_list(rows)))
    assert [one.solution.texts for one in read] == [("2 + 3 = 5", "So 6."), ("8.",)]
    assert [[j.rating for j in step] for step in read[0].labelled.judgements] == [[1], [-1]]
    problems = load_problems(
        datasets.Dataset.from_list([{"task": "2 + 3?", "gold": 5}]), columns={"problem": "task"}
    )
    assert [(one.text, one.answer) for one in problems] == [("2 + 3?", "5")]
