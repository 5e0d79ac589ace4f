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
from stepmark.training.examples import Dropped
from stepmark.training.measure import Measure, Trained
from stepmark.training.parallel import ProcessGroup
from stepmark.training.report import training_html
from stepmark.training.run import ProgressLines, recorders, training_rows
from stepmark.training.trainer import TrainerProgress

ROW = {"prompt": "1 + 1?", "completions": ["1 + 1 = 2"], "labels": [True]}


def write(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def problems(names, **settings):
    return [row.solution.problem.text for row in training_rows(names, **settings)]


def test_files_and_folders_and_whose_they_are(tmp_path):
    one = write(tmp_path / "one.jsonl", ROW)
    folder = tmp_path / "more"
    folder.mkdir()
    write(folder / "b.jsonl", {**ROW, "prompt": "2 + 2?"})
    write(folder / "a.jsonl", {**ROW, "prompt": "3 + 3?"})
    (folder / "notes.txt").write_text("not rows")
    found = problems([str(one), str(folder)])
    assert found == ["1 + 1?", "3 + 3?", "2 + 2?"]
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
    assert problems(["owner/set"]) == ["1 + 1?"]
    assert problems(["owner/set"], split="test") == ["held out"]
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


class Tracker(types.ModuleType):
    """The package of a tracker, which keeps what it is sent."""

    def __init__(self, name):
        super().__init__(name)
        self.started, self.settings, self.logged, self.finished = {}, {}, [], False
        self.config = types.SimpleNamespace(update=lambda values, **_: self.settings.update(values))

    def init(self, **started):
        self.started = started
        return self

    def log(self, values, *, step):
        self.logged.append((step, values["train/loss"]))

    def finish(self):
        self.finished = True


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_every_step_is_sent_to_a_tracker(monkeypatch, name):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    tracker = Tracker(name)
    monkeypatch.setitem(sys.modules, name, tracker)
    ProcessGroup("cpu")  # as a run has made: accelerate's trackers ask which process they are in
    with ExitStack() as closing:
        (record,) = recorders((name,), Path("mine"), {"rank": 4, "axes": ("a", "b")}, closing)
        record(progress(1))
        record(progress(2))
        assert not tracker.finished
    assert tracker.started == {"project": "stepmark", "name": "mine", "resume": "allow"}
    assert tracker.settings == {"rank": 4, "axes": "('a', 'b')"}
    assert tracker.logged == [(1, 1.0), (2, 0.5)]
    assert tracker.finished


def test_event_files_lie_beside_the_checkpoint(monkeypatch, tmp_path):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(Path(folder))

        def add_hparams(self, values, metric_dict):
            written.append(values)

        def add_scalar(self, name, value, *, global_step):
            if name == "train/loss":
                written.append((global_step, value))

        def flush(self):
            pass

        def close(self):
            written.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("torch.utils.tensorboard", module, raising=False)
    ProcessGroup("cpu")
    with ExitStack() as closing:
        (record,) = recorders(("tensorboard",), tmp_path / "mine", {"rank": 4}, closing)
        record(progress(2))
    assert written == [tmp_path / "mine.tensorboard", {"rank": 4}, (2, 0.5), "closed"]


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
