"""Each format on rows written by hand; what it cannot hold is refused or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepmark.data.formats.rows import Counts, LabelledRow, ReaderSettings, Writing
from stepmark.data.labelled import detect, read_labelled, write_labelled
from stepmark.data.reading import Row, read_rows
from stepmark.errors import InputError, UsageError
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step

CORRECT, VALUE = "correctness", "value"


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rated(rating: int | None, judge: str = "ann", kind: str = CORRECT, **more: Any) -> Judgement:
    return Judgement(kind=kind, judge=judge, rating=rating, **more)  # type: ignore[arg-type]


def labelled(
    *steps: tuple[str, tuple[Judgement, ...]], problem: str = "How many?", **more: Any
) -> LabelledRow:
    return LabelledRow(
        labelled=LabelledSolution(
            solution=Solution(
                problem=Problem(text=problem), steps=tuple(Step(text=text) for text, _ in steps), id="s1"
            ),
            judgements=tuple(judgements for _, judgements in steps),
        ),
        where="in.jsonl:7",
        **more,
    )


def written(row: LabelledRow, to: str, counts: Counts | None = None, **settings: Any) -> Any:
    (one,) = write_labelled([row], to, Writing(**settings), counts)
    return one


RIGHT_NEUTRAL_WRONG = labelled(("a", (rated(1),)), ("b", (rated(0),)), ("c", (rated(-1),)), ("d", ()))
SOFT = labelled(
    ("a", (rated(None, kind=VALUE, successes=3, trials=4),)), ("b", (rated(None, kind=VALUE, share=0.25),))
)


# --- one label a step -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["trl", "math-shepherd", "rlhflow", "processbench"])
def test_neutral_is_never_turned_without_being_told(to):
    with pytest.raises(InputError, match="`neutral` positive, negative or drop") as caught:
        list(write_labelled([RIGHT_NEUTRAL_WRONG], to))
    assert caught.value.where == "in.jsonl:7"


def test_neutral_becomes_what_was_asked():
    assert written(RIGHT_NEUTRAL_WRONG, "trl", neutral="positive")["labels"] == [True, True, False]
    assert written(RIGHT_NEUTRAL_WRONG, "trl", neutral="negative")["labels"] == [True, False, False]
    counts = Counts()
    assert written(RIGHT_NEUTRAL_WRONG, "trl", counts, neutral="drop")["labels"] == [True]


def test_unjudged_is_never_wrong_in_any_format():
    first_unjudged = labelled(("a", ()), ("b", (rated(1),)))
    for to in ("trl", "math-shepherd", "rlhflow", "processbench"):
        counts = Counts()
        assert isinstance(written(first_unjudged, to, counts), InputError)
        assert counts.dropped == 1
    assert written(first_unjudged, "prm800k")["label"]["steps"][0]["completions"][0]["rating"] is None


def test_shares_stay_floats_and_become_hard_only_when_told():
    assert written(SOFT, "trl")["labels"] == [0.75, 0.25]
    assert written(SOFT, "trl", hard="any")["labels"] == [True, True]
    assert written(SOFT, "trl", hard=0.25)["labels"] == [True, False]  # above, not at
    zero = labelled(("a", (rated(None, kind=VALUE, successes=0, trials=8),)))
    assert written(zero, "trl", hard="any")["labels"] == [False]
    assert written(zero, "trl")["labels"] == [0.0]
    for to in ("math-shepherd", "rlhflow", "processbench", "prm800k"):
        with pytest.raises(InputError, match="set with `hard`"):
            list(write_labelled([SOFT], to))
    with pytest.raises(UsageError, match=r"hard=\S+"):
        Writing(hard=1.0)


def test_rollouts_of_one_judge_are_pooled_and_no_trials_are_no_label():
    row = labelled(
        (
            "a",
            (rated(None, kind=VALUE, successes=1, trials=4), rated(None, kind=VALUE, successes=0, trials=4)),
        ),
        ("b", (rated(None, kind=VALUE, successes=0, trials=0),)),
    )
    counts = Counts()
    assert written(row, "trl", counts)["labels"] == [0.125]


def test_shares_of_unknown_trials_are_not_averaged():
    row = labelled(
        ("a", (rated(1, kind=VALUE),)),
        ("b", (rated(None, kind=VALUE, share=0.0), rated(None, kind=VALUE, share=0.5))),
    )
    assert written(row, "trl")["labels"] == [True]
    assert written(row, "trl", hard="any")["labels"] == [True, True]
    assert written(row, "trl", hard=0.25)["labels"] == [True]


def test_judges_side_by_side_need_a_choice():
    row = labelled(
        ("a", (rated(1, "human:ann"), rated(1, "human:bob"), rated(-1, "ai"))),
        ("b", (rated(1, "human:ann"), rated(-1, "human:bob"))),
    )
    with pytest.raises(InputError, match=r"3 judges \(human:ann, human:bob, ai\).*`judge`.*`consensus`"):
        written(row, "trl")
    with pytest.raises(InputError, match="2 judges"):
        written(row, "trl", judge="human")
    assert written(row, "trl", judge="human:bob")["labels"] == [True, False]
    assert written(row, "trl", judge="human:bob")["meta"]["judge"] == "human:bob"
    assert written(row, "trl", judge="ai")["labels"] == [False]
    assert isinstance(written(row, "trl", consensus="agree"), InputError)
    assert written(row, "trl", consensus="majority")["labels"] == [True]
    assert written(row, "trl", judge="human", consensus="agree")["labels"] == [True]
    assert isinstance(written(row, "trl", judge="nobody"), InputError)


def test_conclusions_go_before_the_evidence_they_were_drawn_from():
    row = labelled(
        ("a", (rated(None, "bayes", VALUE, successes=2, trials=8), rated(1, "bayes", confidence=0.9))),
        ("b", (rated(-1, "bayes", confidence=0.9),)),
    )
    counts = Counts()
    assert written(row, "trl", counts)["labels"] == [True, False]
    assert written(row, "trl", kind="value")["labels"] == [0.25]


def test_a_branch_that_would_be_cut_before_its_own_step_is_dropped():
    steps = (("a", (rated(1),)), ("b", (rated(0),)), ("c", (rated(-1),)))
    counts = Counts()
    branch = labelled(*steps, repeated=2)
    assert isinstance(written(branch, "trl", counts, neutral="drop"), InputError)
    assert counts.dropped == 1
    assert written(branch, "trl", counts, neutral="positive")["labels"] == [True, True, False]


def test_one_judge_with_two_ratings_leaves_the_step_unjudged():
    row = labelled(("a", (rated(1),)), ("b", (rated(1), rated(-1))))
    assert written(row, "trl")["labels"] == [True]


# --- formats --------------------------------------------------------------------------------------------------


def test_math_shepherd_and_what_it_cannot_hold():
    row = labelled(("3 a day\nfor 2 days", (rated(1),)), ("It is 6.", (rated(-1),)), outcome=False)
    assert written(row, "math-shepherd") == {
        "input": "How many? Step 1: 3 a day\nfor 2 days ки\nStep 2: It is 6. ки",
        "label": "How many? Step 1: 3 a day\nfor 2 days +\nStep 2: It is 6. -",
        "task": "unknown",
        "meta": {
            "from": "in.jsonl:7",
            "judge": "ann",
            "kind": "correctness",
            "outcome": False,
            "record": {"id": "s1"},
        },
    }
    counts = Counts()
    assert isinstance(written(labelled(("a ки b", (rated(1),))), "math-shepherd", counts), InputError)
    bad_question = labelled(("a", (rated(1),)), problem="Step 1: what?")
    assert isinstance(written(bad_question, "math-shepherd", counts), InputError)
    assert list(counts.facts()["dropped"].values()) == [1, 1]
    numbered = labelled(("Step 1: a", (rated(1),)), ("step 2: b", (rated(1),)))
    assert written(numbered, "math-shepherd")["input"] == "How many? Step 1: a ки\nstep 2: b ки"


def test_rlhflow(tmp_path):
    row = {
        "conversations": [
            {"role": "user", "content": "How many? Step 1: 3 a day.\n\nfor 2 days"},
            {"role": "assistant", "content": "+"},
            {"role": "user", "content": "Step 2: It is 7."},
            {"role": "assistant", "content": "-"},
        ]
    }
    (read,) = read_labelled(write(tmp_path / "r.jsonl", row))
    assert read.solution.problem.text == "How many?"
    assert read.solution.texts == ("3 a day.\n\nfor 2 days", "It is 7.")
    assert [[(j.kind, j.rating) for j in s] for s in read.labelled.judgements] == [
        [(VALUE, 1)],
        [(VALUE, -1)],
    ]
    assert written(read, "rlhflow")["conversations"] == row["conversations"]
    paragraph = {
        "conversations": [{"role": "user", "content": "How many?\n\n3 a day."}, *row["conversations"][1:]]
    }
    (read,) = read_labelled(write(tmp_path / "r.jsonl", paragraph))
    assert (read.solution.problem.text, read.solution.texts[0]) == ("How many?", "3 a day.")


@pytest.mark.parametrize(
    ("content", "sign", "said"),
    [
        ("How many? 3 a day.", "+", "not clear"),
        ("One.\n\nTwo.\n\nThree.", "+", "3 paragraphs"),
        ("Step 1: a Step 1: b", "+", '2 x "Step 1:"'),
        ("Step 1: a", "+", "a question"),
        ("How many? Step 1: ", "+", "step 0 .* is blank"),
        ("How many? Step 1: a", "yes", "'\\+' or '-'"),
    ],
)
def test_rlhflow_rows_that_cannot_be_read(content, sign, said, tmp_path):
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": sign}]
    with pytest.raises(InputError, match=said) as caught:
        list(read_labelled(write(tmp_path / "r.jsonl", {"conversations": turns}), format="rlhflow"))
    assert caught.value.where == f"{tmp_path / 'r.jsonl'}:1"


@pytest.mark.parametrize(
    "turns", [[], [{"role": "user", "content": "a"}], [{"role": "assistant", "content": "+"}] * 2]
)
def test_rlhflow_turns_out_of_order(turns, tmp_path):
    with pytest.raises(InputError, match="turn"):
        list(read_labelled(write(tmp_path / "r.jsonl", {"conversations": turns})))


def test_trl(tmp_path):
    hard = {"prompt": "How many?", "completions": ["a", "b"], "labels": [True, False]}
    soft = {"prompt": "How many?", "completions": ["a", "b"], "labels": [1.0, 0.5], "meta": {"judge": "mc"}}
    bare = {"prompt": "How many?", "completions": ["a", "b"]}
    one, two, three = read_labelled(write(tmp_path / "t.jsonl", hard, soft, bare))
    assert [(j.kind, j.judge, j.rating, j.share) for s in one.labelled.judgements for j in s] == [
        (CORRECT, "TRL", 1, None),
        (CORRECT, "TRL", -1, None),
    ]
    assert [(j.kind, j.judge, j.rating, j.share) for s in two.labelled.judgements for j in s] == [
        (VALUE, "mc", None, 1.0),
        (VALUE, "mc", None, 0.5),
    ]
    assert three.labelled.judgements == ((), ())
    with pytest.raises(InputError, match=r"0 to 1, found 1\.5"):
        list(read_labelled(write(tmp_path / "t.jsonl", {**hard, "labels": [1.5, 0]})))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([1, 0, -1], [1, 0, -1]),
        ([1.0, -1.0, None], [1, -1, None]),
        ([-1, None, None], [-1, None, None]),
        ([1, 0, None], [1, -1, None]),
        ([True, None, False], [1, None, -1]),
        ([None, None, None], [None, None, None]),
        ([0.5, None, 1.0], [0.5, None, 1.0]),
    ],
)
def test_ratings_and_steps_that_nobody_judged_beside_steps(labels, expected):
    (row,) = read_labelled([{"problem": "p", "steps": ["a", "b", "c"], "labels": labels}])
    found = [step[0] if step else None for step in row.labelled.judgements]
    assert [j and (j.rating if j.share is None else j.share) for j in found] == expected


def test_a_file_has_one_meaning_of_zero(tmp_path):
    rows = [
        {"problem": "p", "steps": ["a", "b"], "labels": labels}
        for labels in ([1, 0], None, [True, False], [1, -1])
    ]
    for given in (rows, rows[::-1]):
        with pytest.raises(InputError) as caught:
            list(read_labelled(write(tmp_path / "r.jsonl", *given)))
        assert caught.value.field == "labels"
    settled = read_labelled(write(tmp_path / "r.jsonl", *rows), settings=ReaderSettings(zero="neutral"))
    assert [[j.rating for s in row.labelled.judgements for j in s] for row in settled] == [
        [1, 0],
        [],
        [1, -1],
        [1, -1],
    ]
    list(read_labelled(write(tmp_path / "r.jsonl", *rows[:3])))
    # another file may mean something else
    folder = tmp_path / "both"
    folder.mkdir()
    write(folder / "a.jsonl", rows[0])
    write(folder / "b.jsonl", rows[3])
    assert len(list(read_labelled(folder))) == 2


@pytest.mark.parametrize("labels", [["fine", "poor"], "good", {"0": True}])
def test_labels_that_nobody_can_read_are_refused_and_not_dropped(labels):
    first = {"problem": "p", "steps": ["a", "b"], "labels": [True, False]}
    unread = {**first, "problem": "q", "labels": labels}
    for rows in ([first, unread], [unread, first]) if isinstance(labels, list) else ([first, unread],):
        with pytest.raises(InputError) as caught:
            list(read_labelled(rows))
        assert caught.value.field == "labels"


def test_a_row_of_null_labels_before_labelled_ones(tmp_path):
    first, second = read_labelled(
        [
            {"problem": "p", "steps": ["a"], "labels": None},
            {"problem": "q", "steps": ["a"], "labels": [False]},
        ]
    )
    assert first.labelled.judgements == ((),)
    assert second.labelled.judgements[0][0].rating == -1


def processbench(label: int, correct: bool = False) -> dict[str, Any]:
    return {
        "id": "x-1",
        "generator": "m",
        "problem": "How many?",
        "steps": ["a", "b", "c"],
        "final_answer_correct": correct,
        "label": label,
    }


def test_processbench_is_not_written_where_something_would_be_invented():
    counts = Counts()
    right = (rated(1),)
    assert isinstance(written(labelled(("a", right)), "processbench", counts), InputError)  # no outcome
    assert isinstance(
        written(labelled(("a", right), ("b", ()), outcome=True), "processbench", counts), InputError
    )
    assert counts.dropped == 2
    after = labelled(("a", (rated(-1),)), ("b", right), outcome=False)
    assert written(after, "processbench", counts)["label"] == 0


def test_prmbench(tmp_path):
    row = {
        "idx": "q1",
        "classification": "redundancy",
        "original_question": "?",
        "modified_question": "How many?",
        "modified_process": ["1. Three.", "2. No, four.", "Five."],
        "error_steps": [2, 9],
        "reason": "",
    }
    counts = Counts()
    (read,) = read_labelled(write(tmp_path / "p.jsonl", row), counts=counts)
    assert read.solution.texts == ("Three.", "No, four.", "Five.")
    assert "".join(step.raw for step in read.solution.steps) == "1. Three.2. No, four.Five."
    assert [[j.rating for j in s] for s in read.labelled.judgements] == [[1], [-1], [1]]
    assert read.solution.id == "redundancy_q1"
    for bad in ({"error_steps": [0]}, {"error_steps": ["2"]}, {"modified_process": ["a", " "]}):
        with pytest.raises(InputError):
            list(read_labelled(write(tmp_path / "p.jsonl", {**row, **bad})))


def test_solutions_and_chat_have_no_labels(tmp_path):
    rows = [
        {"problem": "How many?", "solution": "3 a day.\n6 in all."},
        {"problem": "?", "steps": ["a"], "id": 3},
    ]
    read = list(read_labelled(write(tmp_path / "s.jsonl", *rows)))
    assert [row.solution.texts for row in read] == [("3 a day.", "6 in all."), ("a",)]
    assert [row.solution.id for row in read] == ["s.jsonl:1", "3"]
    messages = [
        {"role": "user", "content": "Book it."},
        {"role": "assistant", "content": "I look."},
        {"role": "user", "content": "Good."},
        {"role": "assistant", "content": "Done."},
    ]
    (chat,) = read_labelled(write(tmp_path / "c.jsonl", {"messages": messages}))
    assert chat.solution.texts == ("I look.", "Done.")


# --- which format ---------------------------------------------------------------------------------------------


def test_a_row_tells_its_format():
    def told(*keys: str) -> str:
        return detect(Row(data=dict.fromkeys(keys), file="f", line=1))

    assert told("problem", "steps") == "solutions"
    assert told("id", "generator", "problem", "steps", "final_answer_correct", "label") == "processbench"
    assert told("prompt", "completions") == told("prompt", "completions", "labels", "meta") == "trl"
    assert told("labeler", "timestamp", "question", "label") == "prm800k"
    assert told("instruction", "responses", "next_response", "rating") == "prm800k-flat"
    assert told("input", "label", "task") == "math-shepherd"
    assert told("solution", "judgements", "meta") == "stepmark-labels"
    assert told("instance_id", "annotator", "steps", "mode") == "potato"
    assert told("messages") == "chat"
    assert told("id", "epoch", "messages", "target") == "inspect"
    with pytest.raises(InputError, match=r"may be chat or rlhflow.*`from_format`") as caught:
        told("messages", "conversations")
    assert caught.value.where == "f:1"
    with pytest.raises(InputError, match=r"no known format: it has 'a'"):
        told("a")
    with pytest.raises(InputError, match=r"^f:1: .* stepmark sample"):
        detect(Row(data={"question": "q", "gold": "1"}, file="f", line=1))


# --- stepmark-labels ------------------------------------------------------------------------------------------

OURS = {
    "solution": {"problem": {"text": "How many?"}, "steps": [{"text": "a"}, {"text": "b"}]},
    "judgements": [[{"kind": "value", "judge": "r", "successes": 1, "trials": 2}], []],
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"judgements": [[]]}, "judgements"),
        (
            {"judgements": [[{"kind": "value", "judge": "r", "successes": 3, "trials": 2}], []]},
            "judgements.0.0",
        ),
        ({"judgements": [[{"kind": "value", "judge": "r", "successes": 3}], []]}, "judgements.0.0"),
        ({"judgements": [[], [{"kind": "value", "judge": "r", "share": 1.5}]]}, "judgements.1.0.share"),
        ({"solution": {"problem": {"text": " "}, "steps": [{"text": "a"}] * 2}}, "solution.problem.text"),
        ({"solution": {"problem": {"text": "a"}, "steps": []}, "judgements": []}, "solution.steps"),
        ({"outcome": "yes"}, "outcome"),
        ({"repeated": 2}, "repeated"),
    ],
)
def test_our_own_rows_are_read_strictly(change, field, tmp_path):
    file = write(tmp_path / "l.jsonl", OURS, {**OURS, **change})
    with pytest.raises(InputError) as caught:
        list(read_labelled(file))
    assert caught.value.where == f"{file}:2"
    assert (caught.value.field or "").startswith(field)


@pytest.mark.parametrize("column", ["value", "label"])
def test_rows_of_openrlhf(column, tmp_path):
    text = "How many eggs? Step 1: 3 a day. ки\nStep 2: 6 in all. ки"
    for labels, expected in ((["+", "-"], [1, -1]), ([1, 0], [1, -1]), ([0.75, 0.0], [0.75, 0.0])):
        file = write(tmp_path / "o.jsonl", {"input": text, column: labels, "dataset": "d"})
        assert detect(next(read_rows(file))) == "openrlhf"
        (row,) = read_labelled(file)
        assert row.solution.problem.text == "How many eggs?"
        assert row.solution.texts == ("3 a day.", "6 in all.")
        judged = [judgement for (judgement,) in row.labelled.judgements]
        assert [j.rating if j.share is None else j.share for j in judged] == expected
        assert {j.kind for j in judged} == {VALUE}
        assert row.meta["dataset"] == "d"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"input": "Q? Step 1: a ки", "value": ["+", "-"]}, "value"),
        ({"input": "Q? Step 1: a ки", "value": ["x"]}, "value"),
        ({"input": "Q? Step 1: a ки", "value": [1.5]}, "value"),
        ({"input": "Q? Step 1:  ки", "value": ["+"]}, "input"),
        ({"input": "Step 1: a ки", "value": ["+"]}, "input"),
    ],
)
def test_bad_rows_of_openrlhf(row, field, tmp_path):
    with pytest.raises(InputError) as caught:
        list(read_labelled(write(tmp_path / "o.jsonl", row)))
    assert (caught.value.where, caught.value.field) == (f"{tmp_path / 'o.jsonl'}:1", field)


def test_a_new_format_is_one_file(tmp_path):
    """Formats and traces are found by their modules."""
    from stepmark.data import formats, traces

    for package, taken in ((formats, {"rows"}), (traces, {"base"})):
        (folder,) = package.__path__
        modules = {file.stem for file in Path(folder).glob("*.py")} - {"__init__"} - taken
        assert len(modules) == len(formats.formats() if package is formats else traces.TRACES)
