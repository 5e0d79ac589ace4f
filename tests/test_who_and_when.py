"""Who&When: agent and step accuracy against counts by hand and the authors' rule."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from stepmark.errors import IdleSettingWarning, InputError
from stepmark.evaluation.benchmarks.who_and_when import WhoAndWhen
from stepmark.evaluation.blame import base_name
from stepmark.evaluation.run import evaluate


def row(id: str, step: int, agent: str, speakers: str = "PTPV", **more: Any) -> dict[str, Any]:
    history = [
        {"content": f"{id}, entry {at}", "role": "user", "name": name} for at, name in enumerate(speakers)
    ]
    known = {"question": f"Question {id}?", "question_ID": id, "ground_truth": "8", "is_correct": False}
    return {**known, "history": history, "mistake_agent": agent, "mistake_step": str(step), **more}


ROWS = [
    row("a", 0, "P"),
    row("b", 2, "P"),
    row("c", 3, "V"),
    row("d", 3, "T"),
]  # of d another agent is blamed


def scores(tmp_path, **by_id: list[float]) -> str:
    file = tmp_path / "scores.jsonl"
    more = {"score_kind": "probability", "prm": "hand", "threshold": 0.5, "aggregate": "min"}
    file.write_text(
        "".join(json.dumps({"id": id, "scores": one, **more}) + "\n" for id, one in by_id.items())
    )
    return str(file)


HAND = {
    "a": [0.1, 0.9, 0.9, 0.9],  # exact
    "b": [0.4, 0.9, 0.9, 0.1],  # weakest: the next step, another agent; first: step 0, by the right agent
    "c": [0.9, 0.9, 0.9, 0.6],  # exact; first: none under the threshold
    "d": [0.9, 0.1, 0.9, 0.9],  # weakest: step 1, by T
}


def values(result: Any) -> dict[str, float]:
    return {
        name.removeprefix("algorithm-generated/"): figure.value for name, figure in result.figures.items()
    }


def test_figures_by_hand(tmp_path):
    file = scores(tmp_path, **HAND)
    result = evaluate("who-and-when", data=ROWS, scores=file, resamples=100, progress=False)
    assert values(result) == {
        "agent": 3 / 4,  # a, c, d
        "step": 2 / 4,
        "within one": 3 / 4,
        "agent, who speaks most": 2 / 4,  # P speaks most everywhere
        "step, the commonest": 2 / 4,
    }
    first = evaluate(WhoAndWhen(rule="first"), data=ROWS, scores=file, resamples=100, progress=False)
    assert values(first)["agent"] == 3 / 4  # a, b, d
    assert values(first)["step"] == 1 / 4
    assert any("In 1 no step is named" in fact for fact in first.facts)
    assert "53.5" in str(first.sections)


def test_parts_stand_apart_and_brackets_are_no_name(tmp_path):
    crafted = row("a", 1, "O", is_corrected=True)
    crafted["history"] = [{"content": "x", "role": "human"}, {"content": "y", "role": "O (thought)"}]
    file = scores(tmp_path, **{**HAND, "a/hand-crafted": [0.9, 0.1]})
    result = evaluate("who-and-when", data=[*ROWS, crafted], scores=file, resamples=100, progress=False)
    assert result.figures["hand-crafted/agent"].value == 1
    assert result.figures["average/step"].value == 3 / 4
    assert base_name("O (-> W)") == "O"


def test_the_script_counts_a_step_within_a_number(tmp_path):
    rng = random.Random(0)
    rows = [row(str(n), rng.randrange(14), "P", "PTV" * 5) for n in range(40)]
    named = {str(n): rng.randrange(14) for n in range(40)}
    marks = {id: [0.1 if at == step else 0.9 for at in range(15)] for id, step in named.items()}
    file = scores(tmp_path, **marks)
    loose = evaluate(WhoAndWhen(scoring="script"), data=rows, scores=file, resamples=100, progress=False)
    assert (
        values(loose)["step"]
        == sum(one["mistake_step"] in str(named[one["question_ID"]]) for one in rows) / 40
    )
    assert values(loose)["step"] > values(evaluate("who-and-when", data=rows, scores=file, resamples=100, progress=False))["step"]  # fmt: skip


def test_labels_name_steps_too(tmp_path):
    from stepmark.data.formats.own import to_row
    from stepmark.data.labelled import read_labelled

    labels = tmp_path / "judged.jsonl"
    made = []
    for read, blamed in zip(read_labelled(ROWS), (0, 1, None, 3), strict=True):
        judged = [
            []
            if blamed is None or at > blamed
            else [{"kind": "correctness", "judge": "j", "rating": -1 if at == blamed else 1}]
            for at in range(4)
        ]
        made.append({**to_row(read.labelled), "judgements": judged})
    labels.write_text("".join(json.dumps(one) + "\n" for one in made))
    result = evaluate(WhoAndWhen(labels=str(labels)), data=ROWS, resamples=100, progress=False)
    assert (values(result)["step"], values(result)["within one"]) == (2 / 4, 3 / 4)
    with pytest.raises(InputError, match="labels of every"):
        evaluate(WhoAndWhen(labels=str(labels)), data=[*ROWS, row("e", 0, "P")], progress=False)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"mistake_step": "4"}, "mistake_step"), ({"mistake_step": None}, "mistake_step"), ({"mistake_agent": ""}, "mistake_agent"),
     ({"question_ID": None}, "question_ID"), ({"history": "x"}, "history")],
)  # fmt: skip
def test_bad_rows_are_named(change, field):
    with pytest.raises(InputError) as caught:
        evaluate("who-and-when", data=[{**ROWS[0], **change}], progress=False)
    assert (caught.value.where, caught.value.field) == ("row 1", field)


def test_a_threshold_that_no_rule_reads_is_a_note():
    with pytest.warns(IdleSettingWarning, match="threshold"):
        evaluate(WhoAndWhen(threshold="0.5"), data=ROWS, progress=False)


def test_a_judge_names_steps_from_file_to_figure(tmp_path):
    import stepmark

    data, out = tmp_path / "rows.jsonl", tmp_path / "judged.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in ROWS))
    policy = stepmark.ScriptedPolicy(  # blames the last turn
        lambda request, number: (
            rf"\boxed{{{max(map(int, re.findall(r'<paragraph_(.)>', request.prompt[0].content)))}}}"
        )
    )
    judge = stepmark.labels.Judge(votes=1)
    stepmark.label(data, policy, method=judge, out=out, progress=False)
    result = evaluate(WhoAndWhen(labels=str(out)), data=data, resamples=100, progress=False)
    assert values(result) == {  # step 3, by V, of every conversation
        "agent": 1 / 4, "step": 2 / 4, "within one": 3 / 4, "agent, who speaks most": 2 / 4, "step, the commonest": 2 / 4,
    }  # fmt: skip
