"""`stepmark problems` and `stepmark sample`: what is written, what is left out, what a run after a failure repeats."""

from __future__ import annotations

import importlib
import json

import pytest

from stepmark.batching import Message
from stepmark.cli import main
from stepmark.models.scripted import ScriptedPolicy
from stepmark.solutions.formats import read_solutions

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


def sample(problems, out, *more, verifier="number"):
    return main(
        [
            *("sample", str(problems), "--policy", "test_sample_cli:scripted", "--n", "4", "--out", str(out)),
            *("--verifier", verifier, *more),
        ]
    )


def test_every_solution_with_its_verdict(problems, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert sample(problems, out) == 0
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
