"""Records: strict reading, round trips, and how they show themselves."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError

import pytest

import stepmark
from stepmark.errors import InputError
from stepmark.records import (
    GradedSolution,
    Judgement,
    LabelledSolution,
    Problem,
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
    scored = GradedSolution(
        solution=SOLUTION,
        step_scores=StepScores(scores=(0.9, 0.2), kind="probability"),
        score=0.2,
        aggregate="min",
        first_error=1,
        threshold=0.5,
        prm="p",
        outcome=0.25,
        outcome_model="o",
    )
    assert (
        str(scored) == "min 0.200 · first error: step 2\n1     0.900  2 + 2 = 4\n2     0.200 ✗  So <b>4</b>."
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


def test_a_graded_solution_shows_itself(capsys) -> None:
    scored = stepmark.ScriptedPRM({"60 * 2 = 120": 0.9, "120 + 5 = 126": 0.8, "So 126.": 0.3}).grade(
        "How far?", "60 * 2 = 120\n120 + 5 = 126\nSo 126.", checks="all"
    )
    assert scored.scores == (0.9, 0.8, 0.3)
    assert [step.text for step in scored] == ["60 * 2 = 120", "120 + 5 = 126", "So 126."]
    assert [(step.number, step.score, step.refuted) for step in scored.steps] == [
        (1, 0.9, False),
        (2, 0.8, True),
        (3, 0.3, False),
    ]
    assert (len(scored), scored[1].findings, scored.first_error_step) == (3, scored.findings, 2)
    assert scored.text == "60 * 2 = 120\n120 + 5 = 126\nSo 126."
    assert scored.refuted
    [line] = [line for line in str(scored).splitlines() if "126" in line and "✗" in line]
    assert line.split()[:3] == ["2", "0.800", "✗"]
    assert "125" in str(scored)  # what is right
    scored.show()
    shown = capsys.readouterr().out
    assert "How far?" in shown and "0.800" in shown and "first error: step 2" in shown
    row = scored.to_dict()
    assert row["steps"] == ["60 * 2 = 120", "120 + 5 = 126", "So 126."]
    assert (row["scores"], row["first_error_step"], row["findings"][0]["step"]) == ([0.9, 0.8, 0.3], 2, 1)
    [written] = stepmark.grade([scored.solution], stepmark.ScriptedPRM(lambda p, s: 0.9), progress=False)
    assert written.to_dict().keys() | {"findings", "first_error_by"} == row.keys()


@pytest.mark.parametrize("wrong", ["is_correct", "probabilities"])
def test_an_unknown_attribute_far_from_all_lists_what_there_is(wrong):
    scored = stepmark.ScriptedPRM(lambda problem, steps: 0.9).grade("p", "a")
    with pytest.raises(AttributeError) as caught:
        getattr(scored, wrong)
    assert "did you mean" not in str(caught.value)
    assert "first_error_step" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "right"), [("score_s", "scores"), ("first_eror", "first_error"), ("step", "steps")]
)
def test_a_wrong_attribute_suggests_the_right_one(wrong: str, right: str) -> None:
    scored = stepmark.ScriptedPRM(lambda problem, steps: 0.9).grade("p", "a")
    with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
        getattr(scored, wrong)
    assert not hasattr(scored, "nothing_like_it") and not hasattr(scored, "_ipython_display_")
    assert copy.deepcopy(scored) == copy.copy(scored) == scored


def test_the_text_of_a_long_solution_stays_short() -> None:
    prm = stepmark.ScriptedPRM(lambda problem, steps: 0.2 if steps[-1] == "step 30" else 0.9)
    lines = str(prm.grade("p", steps=[f"step {n}" for n in range(1, 101)])).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5", "…", "30", "…", "99", "100"]
    assert "24 more steps" in lines[6] and "68 more steps" in lines[8] and "✗" in lines[7]
    assert len(str(prm.grade("p", steps=["a"] * 12)).splitlines()) == 13
