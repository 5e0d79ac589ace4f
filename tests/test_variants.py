"""Wrong variants of right solutions: marks, labels that are true, `stepmark.labels.plant_errors` and `stepmark label exact`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from stepmark.cli import main
from stepmark.data.labelled import read_labelled
from stepmark.errors import InputError, SettingError, UsageError
from stepmark.labels.exact import ExactErrors, marked, plant_errors, worked_of
from stepmark.problems.arithmetic import arithmetic_problems, read_arithmetic
from stepmark.problems.arithmetic_world import true_labels
from stepmark.records import Problem, Solution

PENS = "She packs 6 pens a day, sells 9 after a week. Each weighs 4 grams. What do the rest weigh?"
LINES = (
    "She packs 6 × 7 = 42 pens in the week.",
    "So 42 - 9 = 33 pens are left.",
    "These weigh 33*4 = 132 grams.",
)


def pens(*lines, answer="132"):
    given_one = Solution.of(PENS, list(lines or LINES))
    return Solution(problem=Problem(text=PENS, answer=answer), steps=given_one.steps)


# ---------------------------------------------------------------- marks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She sold 48/2 = 24 clips.", "She sold 48/2 = <<48/2=24>>24 clips."),
        ("6 × 7 = 42; then 42 - 9 = 33 left.", "6 × 7 = <<6*7=42>>42; then 42 - 9 = <<42-9=33>>33 left."),
        ("It costs $3.50 * 4 = $14.00.", "It costs $3.50 * 4 = $<<3.50*4=14.00>>14.00."),
        ("Now 1,000 + 200 = 1,200 in all.", "Now 1,000 + 200 = <<1,000+200=1200>>1,200 in all."),
        ("There is nothing here.", "There is nothing here."),
        ("Kept: 2+2=<<2+2=4>>4.", "Kept: 2+2=<<2+2=4>>4."),
    ],
)
def test_marks_by_hand(text, expected):
    assert marked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "So 7 * 6 = 43.",
        "About 10 / 3 = 3.33.",
        "20% of 50 = 10.",
        "So 2 * 3 = 6 and 6 + 1 = 7.",
        "So 1+1 = 2*1 = 2",
    ],
)
def test_what_an_error_could_not_be_carried_through_is_not_marked(text):
    with pytest.raises(InputError, match="cannot be marked"):
        marked(text)


def test_the_answer_s_own_step_is_written_anew():
    worked = worked_of(pens(*LINES, "The answer is \\boxed{132}."))
    assert len(worked.lines) == 3
    right, *_ = ExactErrors(wrong=1).make(worked, "w")
    assert right.solution.texts == (*LINES, "The answer is 132.")
    # A step that calculates the answer stays.
    assert len(worked_of(pens(*LINES[:2], "The answer is 33*4 = 132.")).lines) == 3
    # Without a reference the solution's own answer is it.
    assert worked_of(pens(*LINES, "The answer is $132.", answer=None)).problem.answer == "132"


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        (pens(*LINES, "The answer is 131."), "no right solution"),
        (pens(answer=None), "names none"),
        (pens("She packs 6 * 7 = 43 pens."), "a calculation is false: step 1"),
        (pens("So 10 / 3 = 3.33.", "And 3 * 44 = 132."), "cannot be marked: 10 / 3 = 3.33"),
        (pens("She packs them.", answer="132"), "no step writes down a calculation"),
        (pens(answer="many"), "the answer is no number: many"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(solution, why):
    with pytest.raises(InputError, match=why):
        ExactErrors().make(worked_of(solution), "w")


# ---------------------------------------------------------------- variants


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), wrong=st.integers(1, 9))
def test_variants_differ_and_their_labels_are_true(seed, wrong):
    (problem,) = arithmetic_problems(1, seed=seed, steps=(4, 8))
    # Kinds that the world can read; where a step is missing, it blames that place, and we the step that needs it.
    kinds = ("value", "operand", "operation", "repeated", "early stop")
    try:
        right, *made = ExactErrors(wrong=wrong, kinds=kinds, seed=seed).make(problem.worked, "w")
    except InputError:  # a few solutions of small numbers take none of these
        reject()
    texts = [row.solution.texts for row in made]
    assert len(set(texts)) == len(texts) <= wrong
    assert right.solution.texts not in texts
    assert true_labels(problem, right.solution.texts)[1] == -1
    assert all(j.rating == 1 for step in right.labelled.judgements for j in step)
    for row in made:
        ratings = [[j.rating for j in step] for step in row.labelled.judgements]
        place = ratings.index([-1])
        assert row.meta["first_error"] == place
        assert ratings == [[1]] * place + [[-1]] + [[]] * (len(ratings) - place - 1)
        assert true_labels(read_arithmetic(problem.text), row.solution.texts)[1] == place
        assert any(j.note.startswith(row.meta["kind"]) for j in row.labelled.judgements[place])
    again = ExactErrors(wrong=wrong, kinds=kinds, seed=seed).make(problem.worked, "w")
    assert [row.labelled for row in again] == [row.labelled for row in (right, *made)]


# ---------------------------------------------------------------- the command


def run(*words):
    return main(["label", "exact", *map(str, words)])


def gsm8k(tmp_path, name="gsm.jsonl"):
    marks = [marked(line) for line in LINES]
    rows = [
        {"question": PENS, "answer": "\n".join(marks) + "\n#### 132"},
        {"question": "A riddle.", "answer": "It is known.\n#### 7"},
        {"question": "Another.", "answer": "So 2*2 = <<2*2=5>>5 then.\n#### 5"},
    ]
    file = tmp_path / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_gsm8k_in_labelled_solutions_out(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert run(gsm8k(tmp_path), "--wrong", "3", "--out", out) == 0
    said = capsys.readouterr().err
    assert "1 right solution" in said
    assert "3 wrong ones" in said
    refused = [json.loads(line) for line in (tmp_path / "out.jsonl.refused.jsonl").read_text().splitlines()]
    assert [one["where"] for one in refused] == ["gsm.jsonl:2", "gsm.jsonl:3"]
    rows = list(read_labelled(out))
    assert [row.solution.id for row in rows][:4] == [
        f"gsm.jsonl:1/{n}" for n in ("right", "wrong-1", "wrong-2", "wrong-3")
    ]
    assert rows[0].meta["first_error"] == -1
    assert rows[0].outcome is True
    for row in rows[1:4]:
        place = row.meta["first_error"]
        assert [j.rating for j in row.labelled.judgements[place]] == [-1]
        assert row.outcome is (row.meta["kind"] == "unit")
        assert row.solution.problem.answer == "132"
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["made"]["right"] == 1
    assert sum(manifest["refused"].values()) == 2


def test_solutions_and_the_world_are_sources_too(tmp_path):
    file = tmp_path / "s.jsonl"
    rows = [
        {"id": "good", "problem": PENS, "steps": LINES, "answer": "132"},
        {"id": "bad", "problem": PENS, "steps": [*LINES, "The answer is 131."], "answer": "132"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "out.jsonl"
    assert run(file, "--kinds", "value", "--kinds", "early stop", "--wrong", "2", "--out", out) == 0
    (refused,) = (tmp_path / "out.jsonl.refused.jsonl").read_text().splitlines()
    assert json.loads(refused)["where"] == "s.jsonl:2"
    rows = list(read_labelled(out))
    assert {row.meta.get("kind") for row in rows} <= {None, "value", "early stop"}
    assert run("--arithmetic", "4", "--wrong", "2", "--out", out) == 0
    rows = list(read_labelled(out))
    assert sum(row.meta["first_error"] == -1 and "kind" not in row.meta for row in rows) == 4
    assert not (tmp_path / "out.jsonl.refused.jsonl").exists()


def test_a_broken_row_stops_the_run_unless_it_goes_on(tmp_path, capsys):
    file = gsm8k(tmp_path)
    with file.open("a") as handle:
        handle.write(json.dumps({"question": "Q", "answer": "no end"}) + "\n")
    out = tmp_path / "out.jsonl"
    assert run(file, "--out", out) == 2
    assert "--keep-going" in capsys.readouterr().err
    assert not out.exists()
    assert run(file, "--keep-going", "--out", out) == 0
    assert "left out 3 solutions" in capsys.readouterr().err


ROW = {"id": "pens", "problem": PENS, "steps": [line.replace("×", "*") for line in LINES], "answer": "132"}
WRONG = {**ROW, "id": "wrong", "steps": [*ROW["steps"], "The answer is 131."]}


def written(tmp_path, name, rows):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def same_files(a, b):
    assert a.read_bytes() == b.read_bytes()
    first, second = (json.loads(path.with_name(path.name + ".manifest.json").read_text()) for path in (a, b))
    assert first == second


def test_exact_writes_what_the_command_writes(tmp_path, capsys):
    file = written(tmp_path, "in.jsonl", [ROW, WRONG])
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    words = ["--wrong", "2", "--kinds", "value", "--kinds", "unit", "--seed", "3", "--out", str(a)]
    assert main(["label", "exact", str(file), *words]) == 0
    results = plant_errors(file, wrong=2, kinds=("value", "unit"), seed=3, out=b)
    same_files(a, b)
    refused = [path.with_name(path.name + ".refused.jsonl").read_bytes() for path in (a, b)]
    assert refused[0] == refused[1]
    assert results.summary.splitlines()[0] == capsys.readouterr().err.splitlines()[0]
    assert [entry.split(": ")[0] for entry in results.refused] == ["in.jsonl:2"]


@pytest.mark.parametrize(
    ("rows", "settings", "error", "message"),
    [
        (None, {}, UsageError, "`arithmetic`"),
        ([ROW], {"arithmetic": 2}, UsageError, "and not both"),
        ([ROW], {"kinds": ("unt",)}, SettingError, "kinds='unt'"),
        ([ROW], {"kinds": ()}, SettingError, "one or more different kinds"),
        ([{"steps": ["1 + 1 = 2"]}], {}, InputError, "row 1"),
        (
            [{**ROW, "steps": 5}],
            {"keep_going": True},
            InputError,
            "no error could be put into any solution: row 1",
        ),
    ],
)
def test_errors_of_exact(rows, settings, error, message):
    with pytest.raises(error, match=message):
        plant_errors(rows, **settings)
