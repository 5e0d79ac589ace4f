"""The first day in commands: what breaks first when a library changes. `make test-latest` and CI run it with the newest versions."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("peft")

POLICY = "stepmark:arithmetic"


def run(folder, *words):
    line = [sys.executable, "-m", "stepmark", *map(str, words)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "it/s]" not in done.stderr  # transformers' own bars
    return done.stdout + done.stderr


def rows(file):
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.long
def test_sample_train_grade_and_serve(tmp_path):
    world = ("--steps", 3, 4, "--largest", 99, "--surface", "formula", "--seed", 1)
    run(
        tmp_path, "problems", "arithmetic", "--count", 30, *world,
        "--out", "problems.jsonl", "--solutions", "right.jsonl",
    )  # fmt: skip
    run(
        tmp_path,
        "sample",
        "problems.jsonl",
        "--policy",
        POLICY,
        "--n",
        2,
        "--max-tokens",
        60,
        "--out",
        "solutions.jsonl",
    )
    assert len(rows(tmp_path / "solutions.jsonl")) == 60

    run(
        tmp_path,
        "label",
        "exact",
        "right.jsonl",
        "--wrong",
        2,
        "--seed",
        1,
        "--out",
        "exact.jsonl",
        "--keep-going",
    )
    how = ("--base", POLICY, "--lora-rank", 4, "--epochs", 1, "--evaluations", 1, "--token-budget", 1024)
    run(tmp_path, "train", "exact.jsonl", *how, "--out", "prm")

    run(tmp_path, "grade", "solutions.jsonl", "--prm", "prm", "--out", "graded.jsonl")
    scores = [score for row in rows(tmp_path / "graded.jsonl") for score in row["scores"]]
    assert len(scores) >= 60 and all(0 <= score <= 1 for score in scores)

    line = [sys.executable, "-m", "stepmark", "serve", "--prm", "prm", "--port", "0"]
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            greeting = iter(server.stderr.readline, "")
            address = next(
                found[1] for text in greeting if (found := re.search(r" on (http://127\.0\.0\.1:\d+) ", text))
            )
            graded = rows(tmp_path / "graded.jsonl")[0]
            body = {"problem": graded["problem"], "steps": graded["steps"]}
            answer = httpx.post(f"{address}/v1/score", json=body, timeout=60, trust_env=False)
            assert answer.status_code == 200, answer.text
            [result] = answer.json()["results"]
            assert result["scores"] == pytest.approx(graded["scores"], abs=0.02)
        finally:
            server.terminate()
            server.communicate(timeout=120)


def test_the_doctor_tries_a_model():
    from stepmark.cli.doctor import check_models

    assert check_models().state == "ok"
