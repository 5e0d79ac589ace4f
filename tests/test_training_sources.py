"""Where training rows come from, and who is told how it goes: files, folders, the hub (replaced), histories, the page."""

from __future__ import annotations

import json
import sys
import types
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from stepmark.errors import UsageError
from stepmark.metrics.first_error import FirstErrorAccuracy
from stepmark.training.examples import Dropped
from stepmark.training.measure import Measure, Trained
from stepmark.training.report import training_html
from stepmark.training.run import ProgressLines, recorders, training_rows
from stepmark.training.trainer import TrainerProgress

ROW = {"prompt": "1 + 1?", "completions": ["1 + 1 = 2"], "labels": [True]}


def write(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def problems(names, **settings):
    return [
        (row.solution.problem.text, row.solution.problem.source) for row in training_rows(names, **settings)
    ]


def test_files_and_folders_and_whose_they_are(tmp_path):
    one = write(tmp_path / "one.jsonl", ROW)
    folder = tmp_path / "more"
    folder.mkdir()
    write(folder / "b.jsonl", {**ROW, "prompt": "2 + 2?"})
    write(folder / "a.jsonl", {**ROW, "prompt": "3 + 3?"})
    (folder / "notes.txt").write_text("not rows")
    found = problems([str(one), str(folder)])
    # A problem that names no source is of its file, so that sources can be balanced.
    assert found == [("1 + 1?", "one.jsonl"), ("3 + 3?", "more"), ("2 + 2?", "more")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file in this folder ends in"):
        problems([str(tmp_path / "empty")])


def hub(monkeypatch, download):
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    write(tmp_path / "train.jsonl", ROW)
    write(tmp_path / "test.jsonl", {**ROW, "prompt": "held out"})
    asked = []

    def download(name, *, repo_type, allow_patterns, ignore_patterns):
        asked.append((name, repo_type, ignore_patterns))
        return str(tmp_path)

    hub(monkeypatch, download)
    assert [text for text, _ in problems(["owner/set"])] == ["1 + 1?"]
    assert [text for text, _ in problems(["owner/set"], split="test")] == ["held out"]
    # No file has the word: all of them.
    assert len(problems(["owner/set"], split="validation")) == 2
    assert asked[0] == ("owner/set", "dataset", None)  # files in folders too


def progress(step, *, held_out=None):
    return TrainerProgress(
        step=step,
        steps=4,
        loss=1.0 / step,
        labels=10.0,
        gradient=0.5,
        learning_rate=0.1,
        tokens_per_second=100.0,
        rows_per_second=5.0,
        seconds_left=1.0,
        held_out=held_out,
    )


MEASURED = Measure(loss=0.4, labels=20, auc=0.9, first_error_f1=None, solutions=7)


def test_wandb_is_told_every_step(monkeypatch):
    told = []

    class Run:
        def log(self, values, *, step):
            told.append((step, values["train/loss"]))

        def finish(self):
            told.append("finished")

    wandb = types.ModuleType("wandb")
    wandb.init = lambda **settings: told.append(settings) or Run()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with ExitStack() as closing:
        (record,) = recorders(("wandb",), Path("mine"), {"rank": 4}, closing)
        record(progress(1))
        record(progress(2))
    assert told == [
        {"name": "mine", "config": {"rank": 4}, "resume": "allow"},
        (1, 1.0),
        (2, 0.5),
        "finished",
    ]


def test_the_page_of_a_run(tmp_path):
    history = [
        {
            "step": s,
            "loss": 1.0 / s,
            "labels": 10.0,
            "held_out": None if s % 250 else {"loss": 0.4, "auc": 0.9, "first_error_f1": None},
        }
        for s in range(1, 501)
    ]
    done = Trained(
        folder=tmp_path,
        held_out=MEASURED,
        first_errors=FirstErrorAccuracy(threshold=0.5, error_accuracy=0.5, correct_accuracy=0.5, f1=0.5),
        examples=1234,
        problems=56,
        dropped=Dropped(counts={"steps after an error": 3}, first={"steps after an error": "a.jsonl:7"}),
        first=True,
    )
    page = "".join(training_html(done, history, {"base": "<b>hostile</b>"}, title="Training of mine"))
    assert "1,234 examples of 56 problems" in page
    assert "left out: 3 x steps after an error (first: a.jsonl:7)" in page
    assert "<b>hostile</b>" not in page
    assert "&lt;b&gt;hostile" in page
    assert "Loss a label" in page
    assert "0.900" in page  # the AUC's tile
    # 500 steps are drawn as 167 stretches of three, each the mean over its labels.
    assert f"{(1 / 1 + 1 / 2 + 1 / 3) / 3:.3g}" in page


def test_a_long_run_shows_a_first_line_one_a_tenth_and_its_measurements(capsys):
    """Where standard error is no terminal; the first steps are slow, so that their rate says nothing of the others."""
    now = [0.0]
    lines = ProgressLines(sys.stderr, clock=lambda: now[0])
    for step in range(1, 401):
        now[0] += 60.0
        found = MEASURED if step % 100 == 0 else None
        lines.record(replace(progress(step), steps=400, seconds_left=60.0 * (400 - step), held_out=found))
    shown = capsys.readouterr().err.splitlines()
    steps = [1, 40, 80, 100, 120, 160, 200, 240, 280, 300, 320, 360, 400]
    assert [line.partition(" of")[0] for line in shown] == [f"step {step}" for step in steps]
    assert "left" not in shown[0]
    assert "6:00:00 left" in shown[1]
