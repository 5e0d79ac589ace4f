"""PRM800K's records and its flat layout: walks worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.data.formats.rows import Counts, ReaderSettings
from stepmark.data.labelled import read_labelled, write_labelled
from stepmark.errors import InputError

PROBLEM = "What is 2 + 3, doubled?"


def said(text: str, rating: int | None, flagged: bool | None = None) -> dict[str, Any]:
    return {"text": text, "rating": rating, "flagged": flagged}


def step(*completions: dict[str, Any], chosen: int | None = None, human: str | None = None) -> dict[str, Any]:
    written = None if human is None else {"text": human, "rating": None, "source": "human", "flagged": False}
    return {
        "completions": list(completions) or None,
        "human_completion": written,
        "chosen_completion": chosen,
    }


def record(*steps: dict[str, Any], finish: str = "solution", **more: Any) -> dict[str, Any]:
    return {
        "labeler": "ann",
        "timestamp": "2022-07-30T23:23:32",
        "generation": None,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": PROBLEM, "ground_truth_answer": "10"},
        "label": {"steps": list(steps), "total_time": 1000, "finish_reason": finish},
        **more,
    }


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read(path: Path, *rows: dict[str, Any], counts: Counts | None = None, **settings: Any) -> list[Any]:
    return list(read_labelled(write(path, *rows), settings=ReaderSettings(**settings), counts=counts))


def shape(row: Any) -> tuple[tuple[str, ...], tuple[tuple[int | None, ...], ...], int]:
    return (
        row.solution.texts,
        tuple(tuple(j.rating for j in s) for s in row.labelled.judgements),
        row.repeated,
    )


PHASE_1 = record(
    step(said("Add.", 1), said("Guess.", -1), said("Hm.", 0), chosen=0),
    step(said("2 + 3 = 6.", -1), said("It is 7.", -1), human="2 + 3 = 5."),
    step(said("Stop.", -1), said("Double it.\n\n# Answer\n\n10", 0), chosen=1),
)
"""Three offered at the first step; a step that the labeller wrote; the last chosen one is neutral."""


def test_every_rated_completion_becomes_a_row_after_the_chosen_steps(tmp_path):
    rows = read(tmp_path / "raw.jsonl", PHASE_1)
    right, wrong = (1,), (-1,)
    assert [shape(row) for row in rows] == [
        (("Guess.",), (wrong,), 0),
        (("Hm.",), ((0,),), 0),
        (("Add.", "2 + 3 = 6."), (right, wrong), 1),
        (("Add.", "It is 7."), (right, wrong), 1),
        (("Add.", "2 + 3 = 5.", "Stop."), (right, right, wrong), 2),
        (("Add.", "2 + 3 = 5.", "Double it.\n\n# Answer\n\n10"), (right, right, (0,)), 0),
    ]
    assert {j.judge for row in rows for s in row.labelled.judgements for j in s} == {"human:ann"}
    main = rows[-1]
    assert main.labelled.judgements[1][0].note == "written by the labeller, not rated"
    assert main.meta["prm800k"]["finish_reason"] == "solution"
    assert main.meta["prm800k"]["total_time"] == 1000
    assert main.meta["from"] == "raw.jsonl:1"
    assert main.solution.problem.answer == "10"
    assert [row.solution.id for row in rows] == [
        "raw.jsonl:1/0.1",
        "raw.jsonl:1/0.2",
        "raw.jsonl:1/1.0",
        "raw.jsonl:1/1.1",
        "raw.jsonl:1/2.0",
        "raw.jsonl:1",
    ]
    # Without what other rows have already, every rating of the record is there once, and the written step beside them.
    own = [j for row in rows for s in row.own.judgements for j in s]
    assert sorted(j.rating for j in own if j.note is None) == [-1, -1, -1, -1, 0, 0, 1]
    assert sum(j.note is not None for j in own) == 1


def test_phase_2_ends_at_the_error_and_its_alternatives_are_branches(tmp_path):
    walk = record(
        step(said("2 + 3 = 5.", 1), chosen=0),
        step(said("5 * 2 = 12.", -1), said("5 * 2 = 10.", 1), said("Twice 5.", None), said("?", 1, True)),
        finish="found_error",
        generation=6,
    )
    walk["question"] |= {"pre_generated_steps": ["2 + 3 = 5.", "5 * 2 = 12.", "# Answer\n\n12"]}
    walk["question"] |= {"pre_generated_answer": "12", "pre_generated_verifier_score": 0.25}
    counts = Counts()
    branch, main = read(tmp_path / "raw.jsonl", walk, counts=counts)
    assert shape(branch) == (("2 + 3 = 5.", "5 * 2 = 10."), ((1,), (1,)), 1)
    assert shape(main) == (("2 + 3 = 5.", "5 * 2 = 12."), ((1,), (-1,)), 0)
    assert main.meta["prm800k"]["pre_generated_verifier_score"] == 0.25
    assert main.meta["prm800k"]["generation"] == 6


def test_an_error_at_the_first_step_is_a_row_and_never_an_empty_one(tmp_path):
    (row,) = read(tmp_path / "raw.jsonl", record(step(said("No.", -1)), finish="found_error"))
    assert shape(row) == (("No.",), ((-1,),), 0)


def test_a_walk_that_was_given_up_says_nothing_of_its_end(tmp_path):
    nothing_more = {"completions": None, "human_completion": None, "chosen_completion": None}
    counts = Counts()
    (row,) = read(
        tmp_path / "raw.jsonl",
        record(step(said("Add.", 1), chosen=0), step(said("So.", None)), nothing_more, finish="give_up"),
        counts=counts,
    )
    assert shape(row) == (("Add.",), ((1,),), 0)
    assert row.outcome is None


@pytest.mark.parametrize("completion", [said("Add.", None), said("Add.", 1, True), said("Add.", -1, True)])
def test_a_chosen_step_that_was_not_rated_or_was_flagged_is_not_judged(completion, tmp_path):
    (row,) = read(tmp_path / "raw.jsonl", record(step(completion, chosen=0), step(said("5.", 1), chosen=0)))
    assert shape(row) == (("Add.", "5."), ((), (1,)), 0)


def test_screening_quality_control_and_bad_problems(tmp_path):
    walk = step(said("Add.", 1), chosen=0)
    rows = [
        record(walk, is_initial_screening_question=True),
        record(walk, is_quality_control_question=True),
        record(walk, finish="bad_problem"),
        record(walk),
    ]
    counts = Counts()
    (row,) = read(tmp_path / "raw.jsonl", *rows, counts=counts)
    assert row.where.endswith(":4")
    assert (counts.read, counts.dropped) == (1, 3)
    kept = read(tmp_path / "raw.jsonl", *rows, quality_control=True)
    assert [row.where[-2:] for row in kept] == [":1", ":2", ":4"]


@pytest.mark.parametrize(
    ("bad", "said_"),
    [
        (record(step(said("Add.", 1), chosen=1)), "a completion's index, 0; found 1"),
        (record(step(said(" ", 1), chosen=0)), "a blank one"),
        (record(step(said("Add.", 2), chosen=0)), "rating"),
        ({**record(step(said("Add.", 1), chosen=0)), "label": {"steps": 3}}, "steps"),
    ],
)
def test_a_bad_record_is_refused_with_its_place(bad, said_, tmp_path):
    good = record(step(said("Add.", 1), chosen=0))
    with pytest.raises(InputError, match=said_) as caught:
        read(tmp_path / "raw.jsonl", good, bad)
    assert caught.value.where == f"{tmp_path / 'raw.jsonl'}:2"


def test_each_row_is_a_record_of_its_own(tmp_path):
    rows = read(tmp_path / "raw.jsonl", PHASE_1)
    (alone,) = write_labelled([rows[3]], "prm800k")
    assert [
        (s["chosen_completion"], [(c["text"], c["rating"]) for c in s["completions"]])
        for s in alone["label"]["steps"]
    ] == [(0, [("Add.", 1)]), (None, [("It is 7.", -1)])]
    assert alone["label"]["finish_reason"] == "found_error"


def test_flat_rows(tmp_path):
    base = {"instruction": PROBLEM, "responses": ["Add."], "answer": None, "is_human_response": False}
    base |= {"is_solution": False, "is_preferred_response": False}
    rows = [
        {**base, "next_response": "It is 7.", "rating": -1},
        {**base, "next_response": "It is odd.", "rating": 0, "is_preferred_response": True},
        {**base, "next_response": "So.", "answer": "10", "rating": 1, "is_solution": True},
        {**base, "next_response": "2 + 3 = 5.", "rating": None, "is_human_response": True},
    ]
    rows[2]["is_preferred_response"] = rows[3]["is_preferred_response"] = True
    read_ = read(tmp_path / "flat.jsonl", *rows)
    assert [shape(row)[1] for row in read_] == [((), (r,)) for r in (-1, 0, 1, 1)]
    assert read_[2].solution.texts[-1] == "So.\n\n# Answer\n\n10"
    assert read_[2].solution.problem.answer is None  # `answer` is the completion's own, right or wrong


def test_an_unrated_flat_row_is_not_wrong(tmp_path):
    row = {"instruction": PROBLEM, "responses": [], "next_response": "Add.", "rating": None}
    (one,) = read(tmp_path / "flat.jsonl", row)
    assert one.labelled.judgements == ((),)


def test_unknown_fields_of_published_rows_are_passed_over(tmp_path):
    """Phase 1 has `corrected_rating` and more; nothing else changes."""
    walk = record(step(said("2 + 3 = 5.", 1), chosen=0), step(said("5 * 2 = 10.", 1), chosen=0))
    plain = read(tmp_path / "plain.jsonl", walk)
    more = json.loads(json.dumps(walk))
    more["label"]["steps"][0]["human_completion"] = {
        "text": "x", "rating": None, "source": "human", "flagged": False, "corrected_rating": 1,
    }  # fmt: skip
    for completion in more["label"]["steps"][1]["completions"]:
        completion["logprob"] = -1.5
    more["question"]["difficulty"] = 3
    more["batch"] = "b"
    rows = read(tmp_path / "plain.jsonl", more)
    assert [row.labelled for row in rows] == [row.labelled for row in plain]
    assert rows[-1].meta["batch"] == "b"
