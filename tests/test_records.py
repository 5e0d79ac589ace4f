"""Records: strict reading, round trips, and how they show themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

import stepmark
from stepmark.errors import InputError
from stepmark.records import (
    Judgement,
    LabelledSolution,
    Problem,
    ScoredSolution,
    Solution,
    Step,
    StepScores,
    read_record,
    to_data,
)

SOLUTION = Solution(
    problem=Problem(text="What is 2 + 2?", answer="4"),
    steps=(
        Step(text="2 + 2 = 4", tail="\n", observation=" ok", start=0),
        Step(text="So <b>4</b>.", lead=" "),
    ),
    id="a",
)


def test_a_record_reads_back_from_its_plain_data() -> None:
    assert read_record(Solution, to_data(SOLUTION)) == SOLUTION


@pytest.mark.parametrize(
    ("data", "field", "word"),
    [
        ({"text": "x", "tail": 3}, "tail", "string"),
        ({"text": "x", "start": "3"}, "start", "integer"),
        ({"text": "x", "start": True}, "start", "integer"),
        ({"text": "x", "score": 1}, "score", "nexpected"),
        ({"tail": ""}, "text", "required"),
    ],
)
def test_reading_is_strict_and_names_the_field(data: dict[str, object], field: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        read_record(Step, data, where="rows.jsonl:7")
    assert caught.value.field == field
    assert caught.value.where == "rows.jsonl:7"
    assert word in str(caught.value)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SOLUTION.id = "b"  # type: ignore[misc]


def test_the_raw_text_of_a_step_holds_everything_in_order() -> None:
    assert "".join(step.raw for step in SOLUTION.steps) == "2 + 2 = 4 ok\n So <b>4</b>."


def test_an_error_keeps_the_place_it_had() -> None:
    assert str(InputError("bad").at("f:1")) == "f:1: bad"
    assert str(InputError("bad", where="f:2", field="x").at("f:1")) == "f:2, field 'x': bad"


def test_records_show_themselves_with_their_text_escaped() -> None:
    scored = ScoredSolution(
        solution=SOLUTION,
        steps=StepScores(scores=(0.9, 0.2), kind="probability"),
        score=0.2,
        aggregate="min",
        first_error=1,
        threshold=0.5,
        prm="p",
        outcome=0.25,
        outcome_model="o",
    )
    html = scored._repr_html_()
    assert "So &lt;b&gt;4&lt;/b&gt;." in html and "<b>4</b>" not in html
    assert "min 0.200" in html and "o 0.250" in html and "first error" in html
    labelled = LabelledSolution(
        solution=SOLUTION,
        judgements=(
            (),
            (
                Judgement(kind="correctness", judge="human", rating=-1),
                Judgement(kind="value", judge="rollout", successes=1, trials=8),
            ),
        ),
    )
    assert "wrong, 1 of 8" in labelled._repr_html_()
    assert "not graded" in SOLUTION._repr_html_()
    assert "2 steps by" in stepmark.split("a = 1\nb = <i>", how="line")._repr_html_()
    assert "<i>" not in stepmark.split("a = 1\nb = <i>", how="line")._repr_html_()
