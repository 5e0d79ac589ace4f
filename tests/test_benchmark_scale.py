"""What scale costs beside the models: the benchmark's counting against other ways to count, and a whole run on something tiny."""

import json
import sys
from pathlib import Path

import pytest

from stepmark.backends import VerdictRequest
from stepmark.records import Verdict
from stepmark.verifiers.base import BatchVerifier, load_verifier
from tiny_base import write_base

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import scale  # noqa: E402


def test_bytes_a_row_are_those_of_the_lines(tmp_path):
    solutions = scale.texts(30)
    figures = scale.files(solutions, tmp_path)
    lines = [
        json.dumps(
            {"problem": one.problem.text, "steps": list(one.texts), "answer": one.problem.answer},
            ensure_ascii=False,
        ).encode()
        for one in solutions
    ]
    assert figures["bytes_a_solution"] == pytest.approx(sum(len(line) + 1 for line in lines) / 30)
    graded = [
        json.loads(line) for line in (tmp_path / "graded.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [len(row["scores"]) for row in graded] == [len(one.steps) for one in solutions]


def test_a_whole_run(tmp_path, monkeypatch, capsys):
    write_base(tmp_path / "base")
    words = ["scale", "--rows", "130", "--base", str(tmp_path / "base"), "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(scale, "ROUNDS", 1)
    scale.main()
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert line["benchmark"] == "scale" and all(value > 0 for value in line["figures"].values())
    assert {"replies_recorded_by_64_a_second", "verdicts_latex_a_second", "tokens_encoded_a_second"} <= set(
        line["figures"]
    )
    assert [path.name for path in tmp_path.iterdir()] == ["base"], "it left something behind"


def test_verdicts_are_reported_one_by_one():
    heard = []
    with load_verifier("number") as verifier:
        asked = [VerdictRequest(answer=text, gold="4") for text in ("4", "5", "no number")]
        found = BatchVerifier(verifier).verdicts(
            asked, lambda number, verdict: heard.append((number, verdict))
        )
    assert [verdict.correct for verdict in found] == [True, False, None]
    assert heard == list(enumerate(found))
    assert all(isinstance(verdict, Verdict) for verdict in found)
