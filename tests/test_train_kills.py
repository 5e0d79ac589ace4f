"""`stepmark train`, really killed: the same command finishes what is missing, and nothing is left behind."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
from killing import Runs
from stepmark.cli import main
from test_recipe import BYTES, file_of, rated_rows, words
from tiny_base import write_base

FILES = sorted([*BYTES, "README.md", "history.jsonl", "report.html"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Base, rows, and a folder for outputs."""
    folder = tmp_path_factory.mktemp("killed")
    write_base(folder / "base")
    file_of(folder / "rated.jsonl", rated_rows())
    (folder / "outputs").mkdir()
    return folder


@pytest.fixture(scope="module")
def runs(place):
    modules = ("peft", "transformers", "stepmark.cli.train", "stepmark.training.recipe")
    made = Runs(place / "outputs", *modules, "stepmark.training.trainer", "matplotlib.figure")
    yield made
    made.close()


@pytest.fixture
def out(place):
    folder = place / "outputs" / "prm"
    yield folder
    shutil.rmtree(place / "outputs")
    folder.parent.mkdir()


def command(place, out, *flags, base="base", **options):
    settings = {"epochs": 1, "evaluations": 3} | options
    return words([place / "rated.jsonl"], out, place / base, "--adapter", *flags, **settings)


@pytest.fixture(scope="module")
def whole(runs, place):
    """An unbroken run: its moments, and what it wrote."""
    out = place / "outputs" / "prm"
    done = runs(command(place, out))
    assert done.code == 0, done.err
    assert names(place / "outputs") == ["prm"]
    assert names(out) == FILES
    kept = shutil.copytree(out, place / "whole")
    shutil.rmtree(place / "outputs")
    out.parent.mkdir()
    return done.moments, kept


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "history.jsonl").read_text().splitlines()]


def check_finished(out, kept):
    assert names(out.parent) == ["prm"]
    assert names(out) == FILES
    for name in (*BYTES, "README.md"):
        assert (out / name).read_bytes() == (kept / name).read_bytes(), name
    assert steps(out) == steps(kept)
    assert "Loss a label" in (out / "report.html").read_text()


def moment(moments, *parts, after=0):
    """The first moment that holds all the parts, and so many after it."""
    return next(n for n, one in enumerate(moments) if all(part in one for part in parts)) + after


@pytest.mark.parametrize(
    ("parts", "after"),
    [
        pytest.param(("open", "run/history.jsonl"), 0, marks=pytest.mark.slow),
        pytest.param(("os.rename", "state.part -> "), 2, marks=pytest.mark.slow),
        # The checkpoint is whole and has no name yet; it has its name and the state is there still; half of the state is gone.
        (("os.rename", "prm.run/checkpoint -> "), 0),
        (("os.rename", "prm.run/checkpoint -> "), 1),
        pytest.param(("os.rename", "prm.run/checkpoint -> "), 4, marks=pytest.mark.slow),
    ],
)
def test_killed_it_is_finished_by_the_same_command(runs, place, out, whole, parts, after):
    moments, kept = whole
    killed = runs(command(place, out), at=moment(moments, *parts, after=after))
    assert killed.code == -9
    there = out.exists()
    written = {path.name: path.stat().st_mtime_ns for path in out.iterdir()} if there else {}
    again = runs(command(place, out))
    assert again.code == 0, again.err
    assert ("this run is done, and everything is there" in again.out) is there
    assert ("curves: " in again.out) is not there
    check_finished(out, kept)
    for name, time in written.items():
        assert (out / name).stat().st_mtime_ns == time, name


@pytest.mark.slow
def test_killed_at_any_moment_it_is_finished_by_the_same_command(runs, place, out, whole):
    moments, kept = whole
    # To make a folder that is there changes nothing.
    chosen = [n for n, one in enumerate(moments) if one not in moments[:n] or not one.startswith("os.mkdir")]
    killed = 0
    for at in chosen:
        killed += runs(command(place, out), at=at).code == -9
        again = runs(command(place, out))
        assert again.code == 0, (moments[at], again.err)
        check_finished(out, kept)
        shutil.rmtree(out)
    assert killed >= len(chosen) - 2


def test_two_at_once_the_second_is_refused_and_the_first_goes_on(runs, place, out, whole):
    moments, kept = whole
    first = runs.begin(command(place, out), at=moment(moments, "os.rename", "state.part -> ", after=2))
    second = runs(command(place, out))
    assert second.code == 2
    assert second.err == f"error: another run is writing {out}.run; wait for it, or choose another --out\n"
    assert runs.go_on(first).code == 0
    check_finished(out, kept)


def test_another_base_between_kill_and_resume_is_refused(runs, place, out, whole):
    moments, kept = whole
    base = shutil.copytree(place / "base", place / "turned")
    turned = command(place, out, base="turned")
    killed = runs(turned, at=moment(moments, "os.rename", "prm.run/checkpoint -> "))
    assert killed.code == -9
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    refused = runs(turned)
    assert refused.code == 2
    assert f"{out}.run" in refused.err and "base_fingerprint was" in refused.err
    assert "step 1 of" not in refused.err
    (base / "model.safetensors").write_bytes(weights)
    again = runs(turned)
    assert again.code == 0, again.err
    assert "step 1 of" not in again.err  # it was continued
    # What the base was stands in the checkpoint and on its card.
    noted = json.loads((out / "train.json").read_text())["base_fingerprint"]
    assert noted == json.loads((kept / "train.json").read_text())["base_fingerprint"]
    assert f"have the fingerprint `{noted}`" in (out / "README.md").read_text()
    # A finished one is told from one of another base too.
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    refused = runs(turned)
    assert refused.code == 2
    assert "base_fingerprint was" in refused.err
    shutil.rmtree(base)


def test_a_base_that_changes_while_it_is_trained_on_gives_no_checkpoint(runs, place, out, whole):
    moments, kept = whole
    base = shutil.copytree(place / "base", place / "moving")
    moving = command(place, out, base="moving")
    first = runs.begin(moving, at=moment(moments, "os.rename", "state.part -> ", after=2))
    before = (base / "config.json").read_bytes()
    (base / "config.json").write_bytes(before + b"\n")
    ended = runs.go_on(first)
    assert ended.code == 2
    assert f"the files of the base {base} were changed while it was trained on" in ended.err
    assert not out.exists()
    (base / "config.json").write_bytes(before)
    assert runs(moving).code == 0
    assert names(out) == FILES and steps(out) == steps(kept)
    shutil.rmtree(base)


def test_a_finished_run_of_other_settings_or_rows_is_refused_untouched(place, out, whole, capsys):
    shutil.copytree(whole[1], out)
    for other, said in (
        (command(place, out, seed=3), f"{out} exists and was trained otherwise: settings.seed was 0 and is now 3"),
        (
            words([file_of(place / "fewer.jsonl", rated_rows(23))], out, place / "base", "--adapter", epochs=1, evaluations=3),
            f"{out} exists and was trained otherwise: rows was ",
        ),
    ):  # fmt: skip
        assert main(other) == 2
        assert said in capsys.readouterr().err
    assert names(out.parent) == ["prm"]
    for name in FILES:
        assert (out / name).read_bytes() == (whole[1] / name).read_bytes()


def test_what_is_missing_of_a_finished_run_is_made_again_or_named(place, out, whole, capsys):
    shutil.copytree(whole[1], out)
    (out / "report.html").unlink()
    assert main(command(place, out)) == 0
    assert (out / "report.html").read_text().count("Loss a label") == (
        whole[1] / "report.html"
    ).read_text().count("Loss a label")
    (out / "README.md").unlink()
    assert main(command(place, out)) == 2
    assert "was trained by this command and lacks README.md now" in capsys.readouterr().err
