"""`stepmark.sample` and `stepmark sample`: what is written, what is left out, what a run after a failure repeats."""

from __future__ import annotations

import importlib
import json

import pytest

import stepmark
from stepmark.backends import Message
from stepmark.cli import main
from stepmark.data.solutions import read_solutions
from stepmark.errors import BackendError, InputError, SettingError, UsageError
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.sampling.run import read_samples

ASKED: list[tuple[str, int]] = []
BROKEN = {"at": None}


def scripted():
    """Sample 0 is right, 1 wrong, 2 names no answer, 3 is blank."""

    def write(request, number):
        assert isinstance(request.prompt[0], Message)
        text = request.prompt[0].content.split("\n")[0]
        ASKED.append((text, number))
        if BROKEN["at"] is not None and len(ASKED) > BROKEN["at"]:
            from stepmark.errors import BackendError

            raise BackendError("the server went away")
        right = int(text.split("+")[0]) + int(text.split("+")[1])
        return [f"Add.\nThe answer is {right}.", f"The answer is {right + 1}.", "I do not know", "  "][number]

    return ScriptedPolicy(write, name="by-hand")


@pytest.fixture
def problems(tmp_path):
    file = tmp_path / "problems.jsonl"
    rows = [{"question": f"{i}+{i}", "answer": str(2 * i), "id": f"p{i}"} for i in range(1, 4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy().ASKED.clear()
    policy().BROKEN["at"] = None
    return file


def policy():
    """This module as the command loads it: pytest imports its own copy."""
    return importlib.import_module("test_sample_cli")


def command(problems, out, *more, verifier="number"):
    return main(
        [
            *("sample", str(problems), "--policy", "test_sample_cli:scripted", "--n", "4", "--out", str(out)),
            *("--verifier", verifier, *more),
        ]
    )


def test_every_solution_with_its_verdict(problems, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert command(problems, out) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"p{i}#{k}" for i in (1, 2, 3) for k in (0, 1, 2)]
    assert [row["meta"]["outcome"] for row in rows] == [True, False, None] * 3
    assert rows[0]["problem"] == "1+1"
    assert rows[0]["answer"] == "2"
    assert rows[3]["solution"] == "Add.\nThe answer is 4."
    # What is written is what grading and labelling read.
    assert [row.solution.problem.answer for row in read_solutions(out)] == ["2"] * 3 + ["4"] * 3 + ["6"] * 3
    told = capsys.readouterr().err
    assert "9 solutions of 3 problems" in told
    assert "3 of 6 right (50.0%), 3 problems solved at least once, 3 without a verdict" in told
    assert "3 x the policy wrote nothing" in told
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert (manifest["right"], manifest["wrong"], manifest["without_verdict"], manifest["blank"]) == (
        3,
        3,
        3,
        3,
    )
    assert manifest["settings"]["n"] == 4


POLICY = "test_sample_cli:adder"
PRM = ScriptedPRM(lambda problem, steps: 1 / (1 + len(steps[-1])), name="short steps")
ROWS = [{"problem": f"{n}+{n}", "answer": str(2 * n), "id": f"p{n}", "level": n} for n in range(1, 5)]


def adder():
    """Sample 0 is right, 1 wrong, 2 names no answer, 3 is blank."""

    def write(request, number):
        left, right = map(int, request.prompt[0].content.split("\n")[0].split("+"))
        return [
            f"Add.\nThe answer is {left + right}.",
            f"The answer is {left + right + 1}.",
            "I do not know",
            " ",
        ][number]

    return ScriptedPolicy(write, name="adder")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def sample(rows, policy=POLICY, **settings):
    settings = {"n": 4, "verifier": "number", "progress": False, **settings}
    return stepmark.sample(rows, policy, **settings)


def test_the_function_writes_what_the_command_writes(tmp_path, file):
    words = ["--policy", POLICY, "--n", "4", "--verifier", "number", "--out", str(tmp_path / "a.jsonl")]
    assert main(["sample", str(file), *words]) == 0
    results = sample(file, out=tmp_path / "b.jsonl")
    for end in ("", ".manifest.json"):
        assert (tmp_path / f"a.jsonl{end}").read_bytes() == (tmp_path / f"b.jsonl{end}").read_bytes()
    assert len(results) == 12
    assert results[0].text == "Add.\nThe answer is 2."


def test_records_without_a_file_are_those_of_the_file(tmp_path):
    written = sample(ROWS, out=tmp_path / "a.jsonl")
    results = sample(ROWS)
    assert list(results) == list(written) == list(read_samples(tmp_path / "a.jsonl"))
    assert results.out is None
    assert [one.outcome for one in results] == [True, False, None] * 4
    assert [one.id for one in results][:3] == ["p1#0", "p1#1", "p1#2"]
    assert results[4].problem == stepmark.Problem(text="2+2", answer="4", id="p2")
    assert (results[4].source, results[4].meta) == (POLICY, {"level": 2})
    assert "right" in results._repr_html_() and "7 more" in results._repr_html_()
    assert "4 of 8 right (50.0%), 4 problems solved at least once" in results.summary
    # A policy that is loaded gives the same texts, under its own name.
    assert [(one.text, one.source) for one in sample(ROWS, adder())] == [
        (one.text, "adder") for one in results
    ]


def test_a_failed_run_over_rows_continues(tmp_path):
    asked, limit = [], [2]

    def write(request, number):
        asked.append(request.prompt[0].content.split("\n")[0])
        if len(asked) > limit[0]:
            raise BackendError("the server went away")
        return "The answer is 2."

    policy = ScriptedPolicy(write, name="breaks")
    settings = {"n": 1, "verifier": "number", "in_flight": 1, "progress": False}
    with pytest.raises(BackendError, match="went away"):
        stepmark.sample(ROWS, policy, out=tmp_path / "a.jsonl", **settings)
    assert not (tmp_path / "a.jsonl").exists()
    with pytest.raises(UsageError, match=r"settings\.seed was 0 and is now 1"):
        stepmark.sample(ROWS, policy, out=tmp_path / "a.jsonl", seed=1, **settings)
    limit[0] = 99
    results = stepmark.sample(ROWS, policy, out=tmp_path / "a.jsonl", **settings)
    assert [one.outcome for one in results] == [True, False, False, False]
    assert asked == ["1+1", "2+2", "3+3", "3+3", "4+4"]  # the third was asked when it failed


def test_without_a_verifier_no_answer_is_needed(tmp_path):
    bare = [{"problem": "1+1"}]
    for none in (None, "none"):
        (one,) = sample(bare, n=1, verifier=none, out=tmp_path / "a.jsonl")
        assert (one.outcome, one.note, one.problem.answer) == (None, None, None)
    graded = stepmark.grade(tmp_path / "a.jsonl", PRM, progress=False)
    assert len(graded) == 1


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"n": 0}, SettingError, "n=0: expected 1 or more"),
        ({"n": "4"}, SettingError, "n='4': expected a whole number"),
        ({"top_p": 0.0}, SettingError, r"top_p=0.0: expected a number in \(0, 1\]"),
        ({"limit": 0}, SettingError, "limit=0: expected 1 or more"),
        ({"prompt": "chatty"}, SettingError, "prompt='chatty': expected chat or text"),
        ({"policy": 7}, UsageError, "expected a policy .* found 7"),
        ({"out": "-"}, UsageError, "`out` -: expected a file's name"),
        ({"cluster": stepmark.Cluster(ray="auto"), "policy": adder()}, UsageError, "as names, which every"),
        ({"isolation": "unsafe"}, UsageError, "`isolation` unsafe: only the verifier 'code'"),
    ],
)
def test_python_errors_name_settings(settings, error, message):
    with pytest.raises(error, match=message):
        sample(ROWS, **settings)
    with pytest.raises(InputError, match="put it in a list"):
        sample(ROWS[0])


def test_a_limit_takes_problems_evenly_spaced():
    assert [one.problem.id for one in sample(ROWS, n=1, limit=2)] == ["p1", "p3"]  # of 4: numbers 0 and 2
