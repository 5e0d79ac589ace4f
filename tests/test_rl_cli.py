"""`stepmark rl`: what it writes, killed and gone on with, stopped at an alarm, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")

from stepmark.cli import main  # noqa: E402
from stepmark.errors import UsageError  # noqa: E402
from stepmark.models.policies.local import LocalPolicy  # noqa: E402
from stepmark.rl.credit.assignment import load_credit  # noqa: E402
from stepmark.rl.monitor import read_watched  # noqa: E402
from stepmark.rl.policy_trainer import Update  # noqa: E402
from stepmark.rl.report import PolicyProgressLines  # noqa: E402
from stepmark.training.state import read_lines  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

torch.set_num_threads(1)
TESTS = Path(__file__).parent
SMALL = {
    "--updates": "2", "--problems": "2", "--group": "3", "--max-tokens": "6", "--prompt": "text", "--instruction": "",
    "--learning-rate": "1e-2", "--warmup": "0", "--evaluate-every": "1", "--save-every": "1",
    "--held-out": "3", "--verifier": "text",
}  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    words = tiny_tokenizer()
    tiny_model(words).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture
def no_page(monkeypatch):
    """Plots take seconds, and are tested elsewhere."""
    monkeypatch.setattr("stepmark.rl.report.rl_html", lambda *_arguments, **_more: iter(("",)))


def problems(tmp_path, texts=("a", "b c", "what is it", "2 + 3", "yes", "no"), name="problems.jsonl"):
    file = tmp_path / name
    file.write_text(
        "".join(json.dumps({"problem": text, "answer": "e", "id": text}) + "\n" for text in texts)
    )
    return file


def words(file, policy, out, credit="process-grpo", prm="rl_models:wordy", **more):
    flags = SMALL | {f"--{name.replace('_', '-')}": str(value) for name, value in more.items()}
    asked = ["rl", str(file), "--policy", str(policy), "--out", str(out)]
    asked += [] if credit is None else ["--credit", credit]
    asked += [] if prm is None else ["--prm", prm]
    return asked + [f"{name}={value}" for name, value in flags.items()]


def test_killed_with_a_signal_it_goes_on_to_the_same_weights(
    tmp_path, policy, capsys, no_page, monkeypatch
) -> None:
    file, whole, parts = problems(tmp_path), tmp_path / "whole", tmp_path / "parts"
    assert main(words(file, policy, whole, prm="rl_models:mortal")) == 0
    shown = capsys.readouterr().err
    assert "after update 2, held out: accuracy 0.000" in shown
    assert "update 2 of 2" in shown
    # Asked at the first evaluation, then at an update and an evaluation by turns: the fifth time it dies at the evaluation after update 2, which is in the
    # history and not in the state.
    code = "import sys; from stepmark.cli import main; sys.exit(main(sys.argv[1:]))"
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
        "DIES_AT": "5",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", code, *words(file, policy, parts, prm="rl_models:mortal")]
    killed = subprocess.run(command, env=env, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert [row["update"] for row in read_lines(parts / "history.jsonl")] == [1, 2]
    assert [row.update for row in read_watched(parts / "monitor.jsonl")] == [0, 1]
    assert (parts / "state.pt").is_file()
    assert main(words(file, policy, parts, prm="rl_models:mortal")) == 0
    for name in ("model.safetensors", "history.jsonl", "monitor.jsonl", "run.json", "best/model.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    start = LocalPolicy.load(str(policy)).identity
    assert LocalPolicy.load(str(parts)).identity != start  # it has learnt
    assert not (parts / "state.pt").exists()
    assert f"{parts}: continuing from its saved state" in capsys.readouterr().err
    # Done is done; other settings are another run.
    before = (parts / "model.safetensors").stat().st_mtime_ns
    assert main(words(file, policy, parts, prm="rl_models:mortal")) == 0
    assert "this run is done" in capsys.readouterr().err
    assert (parts / "model.safetensors").stat().st_mtime_ns == before
    assert main(words(file, policy, parts, prm="rl_models:mortal", group=4)) == 2
    assert "made otherwise: settings.group was 3 and is now 4. Run with" in capsys.readouterr().err
    monkeypatch.setattr("rl_models._Mortal.identity", "mortal#other weights")
    assert main(words(file, policy, parts, prm="rl_models:mortal")) == 2
    assert 'otherwise: prm was "mortal" and is now "mortal#other weights". Run' in capsys.readouterr().err


def test_what_a_run_writes(tmp_path, policy, capsys) -> None:
    file, out = problems(tmp_path), tmp_path / "out"
    assert main(words(file, policy, out, updates=1, seed=3)) == 0
    card = (out / "README.md").read_text()
    for part in (
        "0.0000 [0.0000, 0.5615]",
        "Trained on 3 problems of problems.jsonl",
        "3 held-out problems",
        "`credit.process_weight` | 1.0",
        "Seed: 3.",
    ):
        assert part in card, part
    assert "the best checkpoint" in (out / "best" / "README.md").read_text()
    assert "PRM return" in (out / "report.html").read_text()
    rows = read_watched(out / "monitor.jsonl")
    assert [row.update for row in rows] == [0, 1]
    assert rows[0].divergence.value == pytest.approx(0, abs=1e-6)
    assert rows[1].divergence.value > 0
    assert "\nbest: after update 0" in capsys.readouterr().err


def test_prime_runs_with_its_implicit_prm_and_without_a_reference(tmp_path, policy, no_page) -> None:
    file, out = problems(tmp_path), tmp_path / "out"
    more = words(file, policy, out, credit="prime", prm=None, updates=1, implicit_learning_rate="1e-3")
    assert main([*more, "--implicit", "--no-reference", "--set", "normalise=false"]) == 0
    record = json.loads((out / "run.json").read_text())
    assert record["credit"] == {
        "name": "prime",
        "form": "paper",
        "gamma": 1.0,
        "process_weight": 1.0,
        "outcome_weight": 1.0,
        "normalise": False,
        "deviation": "sample",
    }
    assert record["implicit"] == {"beta": 0.05, "learning_rate": 1e-3, "clip": 10.0}
    row = read_watched(out / "monitor.jsonl")[-1]
    assert (row.kind, row.divergence, row.rise) == ("log-ratio", None, None)


def test_it_stops_at_the_alarm_and_stays_stopped(tmp_path, policy, capsys, no_page, monkeypatch) -> None:
    # Anything but the first evaluation is an alarm here.
    monkeypatch.setattr("stepmark.rl.monitor.rise", lambda first, now: 0.0 if first is now else 9.0)
    file, out = problems(tmp_path), tmp_path / "out"
    assert main([*words(file, policy, out, updates=6, group=6), "--stop-on-hack"]) == 0
    shown = capsys.readouterr().err
    rows = read_watched(out / "monitor.jsonl")
    assert rows[-1].alarmed == rows[-1].update < 6
    assert f"ALARM after update {rows[-1].update}" in shown
    assert f"alarm after update {rows[-1].update}" in shown
    assert f"Alarm after update {rows[-1].update}" in (out / "README.md").read_text()
    assert (out / "best" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"credit": "prime", "prm": None}, [], "give --implicit"),
        ({"credit": "grp"}, [], "Did you mean 'grpo'"),
        ({}, ["--set", "progress_weight=2"], "no setting of ProcessGRPO 'progress_weight'"),
        ({"credit": "min-form"}, ["--set", "shaping=clip"], "baseline, centre, outcome_weight, temperature"),
        ({}, ["--implicit-beta", "2"], "--implicit-beta needs --implicit"),
        ({}, ["--kl-weight", "1", "--no-reference"], "--no-reference does not keep"),
        ({"split": "lines"}, [], "'lines'"),
        ({"device": "cuda:99"}, [], "--device cuda:99: this machine"),
        ({}, ["--dtype", "bfloat16"], "bfloat16"),
        (
            {"credit": "min-form", "prm": "rl_models:margin"},
            [],
            "`centre`",
        ),
        ({"policy": "http://localhost:1/v1#x"}, [], "a server's weights"),
        ({"file": "missing.jsonl"}, [], "missing.jsonl"),
        ({"group": 1}, [], "--group 1"),
        ({}, ["--threshold", "2"], "--threshold"),
        ({}, ["--set", "process_weight=3"], "process_weight=3"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_run(
    tmp_path, policy, capsys, change, more, message
) -> None:
    asked = {"file": problems(tmp_path), "policy": policy} | change
    out = tmp_path / "out"
    assert main([*words(asked.pop("file"), asked.pop("policy"), out, **asked), *more]) == 2
    assert message in capsys.readouterr().err
    # Nothing is left behind that another command could not go on with.
    assert not (out / "run.json").exists()


def test_what_has_no_effect_is_noted(tmp_path, policy, capsys, no_page) -> None:
    more = ["--implicit", "--stop-on-hack", "--threshold", "0.3", "--kl", "k3", "--value-weight", "0.1"]
    asked = words(problems(tmp_path), policy, tmp_path / "out", credit="grpo", prm=None, updates=1)
    assert main([*asked, *more]) == 0
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    named = [name for name in more if name.startswith("--")]
    assert sorted(line.split()[1] for line in shown) == sorted(named)


def test_a_prm_that_only_watches_is_noted_and_the_default_credit_reads_it(
    tmp_path, policy, capsys, no_page
) -> None:
    file = problems(tmp_path)
    assert main(words(file, policy, tmp_path / "watched", credit="grpo", updates=1)) == 0
    assert "the PRM watches" in capsys.readouterr().err
    assert main(words(file, policy, tmp_path / "used", credit=None, updates=1)) == 0
    assert "the PRM watches" not in capsys.readouterr().err
    assert json.loads((tmp_path / "used" / "run.json").read_text())["credit"]["name"] == "min-form"


def test_a_folder_of_something_else_is_left_alone(tmp_path, policy, capsys) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    assert main(words(problems(tmp_path), policy, out)) == 2
    assert "found thesis.txt in it" in capsys.readouterr().err
    assert [one.name for one in out.iterdir()] == ["thesis.txt"]
    assert main(words(problems(tmp_path), policy, out / "thesis.txt")) == 2
    assert "found a file" in capsys.readouterr().err


def test_held_out_problems_are_not_trained_on(tmp_path, policy, capsys, no_page) -> None:
    file, other = problems(tmp_path), problems(tmp_path, ("a", "new"), "other.jsonl")
    out = tmp_path / "out"
    assert main(words(file, policy, out, updates=1, held_out=other)) == 0
    assert "left out 1 problem found among the held-out ones" in capsys.readouterr().err
    assert "Trained on 5 problems" in (out / "README.md").read_text()
    assert main(words(other, policy, tmp_path / "none", held_out=other)) == 2
    assert "not held out, found none" in capsys.readouterr().err


def test_a_methods_settings_are_its_own() -> None:
    method, source = load_credit("min-form", ["temperature=0.5", "centre=false"])
    assert (method.temperature, method.centre, method.baseline, source) == (0.5, False, "token", None)
    with pytest.raises(UsageError, match="which has no assign"):
        load_credit("rl_models:wordy")


def test_a_line_a_tenth_of_the_run_with_the_time_that_is_left(capsys) -> None:
    now = [0.0]
    display = PolicyProgressLines(None, 400, clock=lambda: now[0])
    figures = {"accuracy": 0.25, "reward": None, "kl": 0.5}
    for number in range(5, 401):  # it continues an earlier run
        now[0] += 60.0
        display.updated(Update(number=number, rollouts=1, figures=figures))
    shown = capsys.readouterr().err.splitlines()
    assert [line.partition(" of")[0] for line in shown[1:]] == [f"update {n}" for n in range(80, 401, 40)]
    assert shown[1] == "update 80 of 400, accuracy 0.250, KL 0.500, 5:20:00 left"
    assert shown[-1] == "update 400 of 400, accuracy 0.250, KL 0.500"
