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

from stepmark.errors import InputError, MissingExtraError, UnknownNameError, UsageError
from stepmark.integrations import hub_datasets
from stepmark.integrations.hub_datasets import (
    COLUMNS,
    from_columns,
    from_dataset,
    open_dataset,
    read_dataset,
    to_columns,
    to_dataset,
)
from stepmark.records import Judgement, LabelledSolution, Problem, ScoredSolution, Solution, Step, StepScores

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
SCORED = ScoredSolution(
    solution=BARE,
    steps=StepScores(
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
    assert to_columns(SCORED)["classes"] == [[0.5, 0.25, 0.25]]


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


def test_columns_of_others_are_mapped():
    rows = [
        {"question": "2 + 3?", "final": 5.0, "unique": 17},
        {"question": "4 + 4?", "final": "8", "unique": 18},
    ]
    found = list(
        from_dataset(rows, Problem, columns={"problem": "question", "answer": "final", "id": "unique"})
    )
    assert found == [Problem(text="2 + 3?", id="17", answer="5"), Problem(text="4 + 4?", id="18", answer="8")]


def test_a_text_is_cut_into_steps():
    rows = [{"problem": "2 + 3?", "response": "2 + 3 = 5\nSo 5."}]
    [found] = from_dataset(rows, Solution, columns={"solution": "response"}, split="line")
    assert found.texts == ("2 + 3 = 5", "So 5.")
    assert found.split == "line"
    assert "".join(one.raw for one in found.steps) == "2 + 3 = 5\nSo 5."


def test_a_mapped_column_is_not_read_under_its_own_name_too():
    rows = [{"problem": "2 + 3?", "source": "8", "steps": ["a"]}]
    [found] = from_dataset(rows, Solution, columns={"answer": "source"})
    assert (found.problem.answer, found.source) == ("8", None)


GOOD = {"problem": "2 + 3?", "steps": ["a", "b"]}


@pytest.mark.parametrize(
    ("row", "kind", "columns", "match"),
    [
        ({**GOOD, "anwser": "5"}, Solution, None, r"row 1, field 'anwser': 'anwser': no columns of a Solution.*ignore"),
        ({"steps": ["a"]}, Solution, None, "row 1, field 'problem': a Solution needs this column; found 'steps'"),
        ({**GOOD, "steps": ["a", 3]}, Solution, None, r"row 1, field 'steps.1': .*string"),
        ({**GOOD, "steps": "a"}, Solution, None, "row 1, field 'steps': expected a list of texts, found a string"),
        ({**GOOD, "steps": ["a", " "]}, Solution, None, r"row 1, field 'steps': step 1 \(0-based\) is blank"),
        ({**GOOD, "steps": []}, Solution, None, "row 1, field 'steps': expected at least one step"),
        ({**GOOD, "problem": None}, Solution, None, "row 1, field 'problem'.*string"),
        ({**GOOD, "problem": "  "}, Solution, None, "row 1, field 'problem': expected a text, found a blank one"),
        ({**GOOD, "layout": [{}]}, Solution, None, r"row 1, field 'layout': expected null, or one entry a step \(2\)"),
        ({**GOOD, "layout": [{}, {"start": "x"}]}, Solution, None, "row 1, field 'layout.1.start'"),
        ({"problem": "p", "text": 4}, Solution, {"solution": "text"}, "row 1, field 'text': expected a text, found a number"),
        ({"problem": "p", "text": " "}, Solution, {"solution": "text"}, "row 1, field 'text'.*blank"),
        ({"problem": "p"}, Solution, {"steps": "parts"}, "row 1, field 'parts': no such column; found 'problem'"),
        ({"text": ""}, Problem, {"problem": "text"}, "row 1, field 'text': expected a text, found a blank one"),
        ({**GOOD, "judgements": [[]]}, LabelledSolution, None, r"row 1, field 'judgements': .*a step \(2\), found 1"),
        (
            {**GOOD, "judgements": [[], [{"kind": "worth", "judge": "x"}]]},
            LabelledSolution,
            None,
            "row 1, field 'judgements.1.0.kind'",
        ),
        (
            {**to_columns(SCORED), "scores": [0.5, 0.5]},
            ScoredSolution,
            None,
            "row 1, field 'scores': expected 1 scores, one a step, found 2",
        ),
        ({**to_columns(SCORED), "scores": [1.5]}, ScoredSolution, None, r"row 1.*1.5: expected a number in \[0, 1\]"),
        ({**to_columns(SCORED), "score_kind": "odds"}, ScoredSolution, None, "row 1, field 'score_kind'"),
        ({**to_columns(SCORED), "first_error": 0.5}, ScoredSolution, None, "row 1, field 'first_error'"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named_with_its_number_and_column(row, kind, columns, match):
    good = (
        {"problem": "2 + 3?"}
        if kind is Problem
        else to_columns(SCORED if kind is ScoredSolution else LABELLED)
    )
    if kind is Solution:
        good = GOOD
    theirs = {name: (columns or {}).get(name, name) for name in good}
    first = {theirs[name]: value for name, value in good.items()}
    if columns and "solution" in columns:
        first = {"problem": "p", columns["solution"]: "a"}
    records = from_dataset([first, row], kind, columns=columns)
    next(records)
    with pytest.raises(InputError, match=match):
        next(records)


def test_settings_that_cannot_work():
    with pytest.raises(UsageError, match="a Problem has no 'question'; known: problem, id, answer, source"):
        from_dataset([], Problem, columns={"question": "problem"})
    with pytest.raises(UsageError, match="expected Problem, Solution"):
        from_dataset([], StepScores)  # type: ignore[type-var]
    rows = [{**GOOD, "extra": 1}]
    assert list(from_dataset(rows, Solution, others="ignore")) == [Solution.of("2 + 3?", ["a", "b"])]


def test_formats_of_others_are_read_as_rows():
    rows = [
        {"prompt": "2 + 3?", "completions": ["2 + 3 = 5", "So 6."], "labels": [True, False]},
        {"prompt": "4 + 4?", "completions": ["8."], "labels": [True]},
    ]
    found = list(read_dataset(rows, name="owner/sums"))
    assert [one.solution.texts for one in found] == [("2 + 3 = 5", "So 6."), ("8.",)]
    assert [[j.rating for j in step] for step in found[0].labelled.judgements] == [[1], [-1]]
    assert found[1].where == "owner/sums:2"
    with pytest.raises(InputError, match="owner/sums:2"):
        list(read_dataset([rows[0], {"prompt": "x"}], name="owner/sums"))
    with pytest.raises(InputError, match="at least one row"):
        list(read_dataset([]))
    with pytest.raises(UnknownNameError):
        list(read_dataset(rows, format="trll"))


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    def missing():
        raise MissingExtraError("pip install 'stepmark[hub]'")

    monkeypatch.setattr(hub_datasets, "_datasets", missing)
    with pytest.raises(MissingExtraError, match=r"stepmark\[hub\]"):
        to_dataset([PROBLEM])
    with pytest.raises(MissingExtraError):
        open_dataset(str(tmp_path))


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
    assert list(from_dataset(open_dataset(str(tmp_path / "saved")), type(record))) == [record, record]
    dataset.to_parquet(tmp_path / "rows.parquet")
    assert list(from_dataset(open_dataset(str(tmp_path / "rows.parquet")), type(record))) == [record, record]


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


def test_files_and_folders_are_opened_as_streams(datasets, tmp_path):
    rows = "".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(3))
    (tmp_path / "test.jsonl").write_text(rows)
    stream = open_dataset(str(tmp_path / "test.jsonl"), part="test")
    assert isinstance(stream, datasets.IterableDataset)
    found = list(from_dataset(stream, Problem, columns={"problem": "question"}))
    assert [one.answer for one in found] == ["1", "2", "3"]
    assert (
        len(
            list(
                from_dataset(
                    open_dataset(str(tmp_path), part="test"), Problem, columns={"problem": "question"}
                )
            )
        )
        == 3
    )


def test_what_cannot_be_opened(datasets, tmp_path, monkeypatch):
    def without_network(*args, **settings):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", without_network)
    for source, match in (
        (str(tmp_path / "nothing"), "nothing of that name"),
        ("sums", "OWNER/NAME"),
        ("owner/name", "no data set could be opened"),
    ):
        with pytest.raises(InputError, match=match):
            open_dataset(source)
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(InputError, match=r"ends in \.parquet"):
        open_dataset(str(tmp_path / "rows.txt"))
    to_dataset([BARE]).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": to_dataset([BARE])}).save_to_disk(tmp_path / "several")
    with pytest.raises(InputError, match="no data set could be opened"):
        open_dataset(str(tmp_path / "several"), part="test")
    assert len(open_dataset(str(tmp_path / "several"))) == 1
