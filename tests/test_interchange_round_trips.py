"""Written and read again, a labelled solution is what it was, as far as the format holds it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.formats.rows import Counts, LabelledRow, ReaderSettings, Writing
from stepmark.data.json_rows import parse_row
from stepmark.data.labelled import FORMATS, detect, read_labelled, write_labelled
from stepmark.data.reading import Row
from stepmark.data.traces import TRACES
from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.store import encode_row

# Markers, numbers, blank lines and the signs of formats all stand inside texts; a number at the start is layout elsewhere.
_PIECES = st.sampled_from(
    ["a", "Step", " ", "2", ":", "\n", "\n\n", "+", "-", "é", "# Answer", "{", '"', "\\", "x y"]
)
TEXTS = (
    st.lists(_PIECES, min_size=1, max_size=6)
    .map("".join)
    .map(str.strip)
    .filter(bool)
    .map(lambda text: "w" + text)
)
SHARES = st.sampled_from([0.0, 0.125, 0.3, 0.5, 1.0])
NAMES = st.none() | st.sampled_from(["m", "GSM8K", "é"])


@st.composite
def rows(draw: st.DrawFn, label: st.SearchStrategy[tuple[Judgement, ...]], *, whole: bool) -> LabelledRow:
    """`whole`: every step has a label of that kind; else some have none."""
    texts = draw(st.lists(TEXTS, min_size=1, max_size=5))
    judged = [draw(label) if whole or draw(st.booleans()) else () for _ in texts]
    solution = Solution(
        problem=Problem(text=draw(TEXTS), answer=draw(NAMES), source=draw(NAMES)),
        steps=tuple(Step(text=text) for text in texts),
        id=draw(st.sampled_from(["s1", "é"])),
        source=draw(NAMES),
    )
    return LabelledRow(
        labelled=LabelledSolution(solution=solution, judgements=tuple(judged)),
        where="in.jsonl:3",
        outcome=draw(st.none() | st.booleans()),
    )


def rating(*values: int, kind: str = "correctness", judge: str = "human:ann") -> Any:
    return st.sampled_from(
        [(Judgement(kind=kind, judge=judge, rating=value),) for value in values]  # type: ignore[arg-type]
    )


def there_and_back(row: LabelledRow, format: str) -> LabelledRow:
    (line,) = write_labelled([row], format, Writing(), Counts())
    assert isinstance(line, dict)
    data = parse_row(encode_row(line))
    raw = Row(data=data, file="out.jsonl", line=1)
    assert detect(raw) == format
    (back,) = FORMATS[format].read(raw, ReaderSettings(), Counts())
    return back


def texts_and_judgements(row: LabelledRow) -> Any:
    return row.solution.problem.text, row.solution.texts, row.labelled.judgements, row.outcome


HARD = rating(1, -1) | rating(1, -1, kind="value", judge="rollouts")
ANY = st.lists(
    st.builds(
        Judgement,
        kind=st.sampled_from(["correctness", "value"]),
        judge=st.sampled_from(["a", "human:b"]),
        rating=st.sampled_from([None, -1, 0, 1]),
        share=st.none() | SHARES,
        confidence=st.none() | SHARES,
        note=NAMES,
    )
    | st.integers(0, 3).flatmap(
        lambda n: st.builds(
            Judgement,
            kind=st.just("value"),
            judge=st.just("r"),
            successes=st.just(n),
            trials=st.integers(n, 5),
        )
    ),
    max_size=3,
).map(tuple)
STEPS = st.builds(
    Step, text=TEXTS, lead=st.sampled_from(["", "\n"]), tail=TEXTS, observation=st.sampled_from(["", " saw"]),
    start=st.none() | st.integers(0, 9),
)  # fmt: skip


@given(rows(ANY, whole=False), st.lists(STEPS, min_size=5, max_size=5), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_our_own_rows_lose_nothing(row, steps, repeated):
    count = len(row.solution.steps)
    solution = replace(row.solution, steps=tuple(steps[:count]), split="line")
    row = replace(
        row,
        labelled=replace(row.labelled, solution=solution),
        repeated=min(repeated, count - 1),
        meta={"mine": [1, None]},
    )
    back = there_and_back(row, "stepmark-labels")
    assert back.labelled == row.labelled
    assert (back.outcome, back.repeated) == (row.outcome, row.repeated)
    assert back.meta == {"from": "in.jsonl:3", "mine": [1, None]}


@given(rows(HARD, whole=True))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("format", ["math-shepherd", "rlhflow", "trl"])
def test_hard_labels(format, row):
    judgement = row.labelled.judgements[0]
    row = replace(
        row,
        labelled=replace(
            row.labelled,
            judgements=tuple(
                tuple(replace(j, judge=judgement[0].judge, kind=judgement[0].kind) for j in step)
                for step in row.labelled.judgements
            ),
        ),
    )
    back = there_and_back(row, format)
    assert texts_and_judgements(back) == texts_and_judgements(row)
    assert back.origin == "in.jsonl:3"
    if format == "trl":
        assert (back.solution.id, back.solution.source) == (row.solution.id, row.solution.source)
        assert back.solution.problem.answer == row.solution.problem.answer


@given(rows(SHARES.map(lambda s: (Judgement(kind="value", judge="mc", share=s),)), whole=True))
@settings(max_examples=40, deadline=None)
def test_soft_labels_stay_floats_in_trl(row):
    assert texts_and_judgements(there_and_back(row, "trl")) == texts_and_judgements(row)


@given(rows(rating(1, -1, judge="human"), whole=True), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_first_error_in_processbench(row, outcome):
    wrong = [j[0].rating == -1 for j in row.labelled.judgements]
    known = wrong.index(True) + 1 if any(wrong) else len(wrong)
    judgements = row.labelled.judgements[:known] + ((),) * (len(wrong) - known)
    row = replace(row, labelled=replace(row.labelled, judgements=judgements), outcome=outcome)
    back = there_and_back(row, "processbench")
    assert texts_and_judgements(back) == texts_and_judgements(row)
    assert (back.solution.id, back.solution.source) == (row.solution.id, row.solution.source)


@given(rows(rating(1, 0, -1), whole=False))
@settings(max_examples=80, deadline=None)
def test_three_way_ratings_in_prm800k(row):
    judged = [step for step, judgements in enumerate(row.labelled.judgements) if judgements]
    if not judged:
        neutral = Judgement(kind="correctness", judge="human:ann", rating=0)
        judgements = ((neutral,), *row.labelled.judgements[1:])
        row = replace(row, labelled=replace(row.labelled, judgements=judgements))
        judged = [0]
    back = there_and_back(row, "prm800k")
    end = judged[-1] + 1
    # What nobody judged after the last judged step stands in the question only.
    assert back.solution.texts == row.solution.texts[:end]
    assert back.labelled.judgements == row.labelled.judgements[:end]
    assert back.solution.problem.answer == row.solution.problem.answer
    if end < len(row.solution.steps):
        assert back.meta["prm800k"]["pre_generated_steps"] == list(row.solution.texts)


# --- every field is kept where the format has a place for it

META = {"level": 3, "tags": ["a", None]}
FULL = LabelledRow(
    labelled=LabelledSolution(
        solution=Solution(
            problem=Problem(text="How many?", id="q1", answer="6", source="GSM8K"),
            steps=(Step(text="3 a day", lead="1) "), Step(text="6 in all", tail=" ##")),
            id="s1",
            source="a model",
        ),
        judgements=(
            (Judgement(kind="correctness", judge="human:ann", rating=1, note="easy", confidence=0.9),),
            (Judgement(kind="correctness", judge="human:ann", rating=1),),
        ),
        root=(Judgement(kind="value", judge="r", successes=3, trials=4),),
    ),
    where="in.jsonl:7",
    outcome=True,
    meta={"from": "first.jsonl:2", "format": "chat", **META},
)
FAILED = replace(
    FULL,
    outcome=False,
    labelled=replace(
        FULL.labelled,
        judgements=(
            FULL.labelled.judgements[0],
            (Judgement(kind="correctness", judge="human:ann", rating=-1),),
        ),
    ),
)
"""For a format of failures alone."""
FIELDS: dict[str, Any] = {
    "id": lambda row: row.solution.id,
    "answer": lambda row: row.solution.problem.answer,
    "source": lambda row: row.solution.source,
    "problem_id": lambda row: row.solution.problem.id,
    "problem_source": lambda row: row.solution.problem.source,
    "outcome": lambda row: row.outcome,
    "meta.level": lambda row: row.meta.get("level"),
    "meta.tags": lambda row: row.meta.get("tags"),
    "note": lambda row: (
        row.labelled.judgements and [j.note for step in row.labelled.judgements for j in step][:1]
    ),
    "confidence": lambda row: [j.confidence for step in row.labelled.judgements for j in step][:1],
    "root": lambda row: row.labelled.root,
    "stands around a step": lambda row: [step.lead + step.tail for step in row.solution.steps],
}
# Conversations: see test_trace_writers.py.
WRITTEN = [name for name, format in FORMATS.items() if format.write is not None and name != "chat"]
WITH_META = ["stepmark-labels", "trl", "math-shepherd", "rlhflow"]


def lines_of(row: LabelledRow, format: str, counts: Counts) -> list[dict[str, Any]]:
    lines = list(write_labelled([row], format, Writing(), counts))
    assert lines and all(isinstance(line, dict) for line in lines)
    return lines  # type: ignore[return-value]


@pytest.mark.parametrize("format", WRITTEN)
def test_every_field_with_a_place_is_kept(format, tmp_path):
    counts = Counts()
    file = tmp_path / "out.jsonl"
    full = FAILED if format == "who-and-when" else FULL
    file.write_text("".join(json.dumps(line) + "\n" for line in lines_of(full, format, counts)))
    *_, back = read_labelled(file, format=format)
    lost = {name for name, value in FIELDS.items() if value(back) != value(full)}
    if format in WITH_META:
        fields = {
            "id",
            "answer",
            "source",
            "problem_id",
            "problem_source",
            "outcome",
            "meta.level",
            "meta.tags",
        }
        assert not lost & fields
        assert back.meta["from"] == "first.jsonl:2"
        assert "record" not in back.meta


SHEPHERD = {
    "input": "How many? Step 1: 3 a day. ки\nStep 2: The answer is: 6 ки",
    "label": "How many? Step 1: 3 a day. +\nStep 2: The answer is: 6 +",
    "task": "GSM8K",
}


@pytest.mark.parametrize("between", ["trl", "rlhflow", "stepmark-labels"])
def test_the_task_of_math_shepherd_survives(tmp_path, between):
    first = tmp_path / "first.jsonl"
    first.write_text(json.dumps({**SHEPHERD, "split": "train"}))
    (row,) = read_labelled(first)
    assert (row.solution.problem.source, row.meta["split"]) == ("GSM8K", "train")
    counts = Counts()
    second = tmp_path / "second.jsonl"
    second.write_text(json.dumps(*lines_of(row, between, counts)))
    (read,) = read_labelled(second, format=between)
    assert read.solution.problem.source == "GSM8K"
    assert (read.solution.id, read.origin) == ("first.jsonl:1", "first.jsonl:1")
    assert {"split": "train", "answer": "6"}.items() <= read.meta.items()
    (again,) = lines_of(read, "math-shepherd", Counts())
    assert {key: again[key] for key in SHEPHERD} == SHEPHERD
    assert again["meta"]["split"] == "train"


@pytest.mark.parametrize("format", sorted({*FORMATS} - {*TRACES}))
def test_other_columns_are_read_into_meta(tmp_path, format):
    examples: dict[str, dict[str, Any]] = {
        "prmbench": {
            "idx": "1",
            "classification": "x",
            "modified_question": "q",
            "modified_process": ["a", "b"],
            "error_steps": [2],
        },
        "prm800k-flat": {"instruction": "q", "responses": ["a"], "next_response": "b", "rating": 1},
        "solutions": {"problem": "q", "steps": ["a", "b"]},
        "openrlhf": {"input": "q Step 1: a ки\nStep 2: b ки", "value": ["+", "-"]},
        "chat": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    }
    if format in ("potato", "inspect"):
        pytest.skip("its rows are files of their own: see below")
    row = examples.get(format) or lines_of(FULL, format, Counts())[0]
    assert detect(Row(data={**row, "hour": 9}, file="f", line=1)) == format
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({**row, "hour": 9, "kind": "easy", "record": 1}))
    for read in read_labelled(file, format=format):
        assert read.meta["hour"] == 9
        assert (read.meta["column.kind"], read.meta["column.record"]) == ("easy", 1)


def test_what_logs_hold_beside_is_meta(tmp_path):
    sample = {
        "id": 1,
        "epoch": 1,
        "target": "6",
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "6"}],
        "scores": {"match": {"value": "C"}},
        "metadata": {"level": 3},
        "events": [{"event": "x"}],
        "store": {},
    }
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(sample))
    counts = Counts()
    (row,) = read_labelled(file, counts=counts)
    assert (row.meta["metadata"], row.outcome) == ({"level": 3}, True)


def test_steps_with_labels_are_read_under_any_name(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text('question,steps,labels,level\nq,"[""a"", ""b""]","[true, false]",3\n')
    (row,) = read_labelled(file)
    assert [step[0].rating for step in row.labelled.judgements] == [1, -1]
    assert (row.meta["format"], row.meta["level"]) == ("trl", "3")
    file.write_text('question,steps,labels\nq,"[""a"", ""b""]",[true]\n')
    with pytest.raises(InputError, match=r"in\.csv:2, field 'labels'"):
        list(read_labelled(file))
    (tmp_path / "in.jsonl").write_text(
        json.dumps({"problem": "q", "steps": ["a"], "labels": ["hard", "long"]})
    )
    (other,) = read_labelled(tmp_path / "in.jsonl", format="solutions")
    assert (other.labelled.judgements, other.meta["labels"]) == (((),), ["hard", "long"])


def test_candidates_are_rows_of_their_own(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"id": 7, "question": "q", "responses": ["a", "b"], "gold": 6, "level": 3}))
    rows = list(read_labelled(file))
    assert [(row.solution.id, row.solution.problem.answer, row.meta["level"]) for row in rows] == [
        ("7#0", "6", 3),
        ("7#1", "6", 3),
    ]
