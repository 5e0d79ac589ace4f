"""`stepmark rl`, really killed: the same command goes on to the files of a run that was not killed, and nothing else is left."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")
from killing import Runs
from tiny_language_model import tiny_model, tiny_tokenizer

HOW = [
    "--credit=process-grpo",
    "--prm=rl_models:wordy",
    "--updates=3",
    "--problems=2",
    "--group=3",
    "--max-tokens=6",
    "--prompt=text",
    "--instruction=",
    "--learning-rate=1e-2",
    "--warmup=0",
    "--evaluate-every=1",
    "--save-every=2",
    "--held-out=3",
    "--verifier=text",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A policy, problems, and a folder for outputs."""
    folder = tmp_path_factory.mktemp("killed")
    words = tiny_tokenizer()
    tiny_model(words).save_pretrained(folder / "policy")
    words.save_pretrained(folder / "policy")
    rows = (json.dumps({"problem": text, "answer": "e"}) + "\n" for text in "abcdef")
    (folder / "problems.jsonl").write_text("".join(rows))
    (folder / "outputs").mkdir()
    return folder


@pytest.fixture(scope="module")
def runs(place):
    modules = ("transformers", "peft", "stepmark.cli.rl", "stepmark.rl.policy_trainer", "stepmark.rl.report")
    made = Runs(place / "outputs", *modules, "matplotlib.figure", "rl_models")
    yield made
    made.close()


@pytest.fixture
def out(place):
    folder = place / "outputs" / "policy"
    yield folder
    shutil.rmtree(place / "outputs")
    folder.parent.mkdir()


def command(place, out, *more, policy="policy", **options):
    how = HOW + [f"--{name}={value}" for name, value in options.items()]
    return ["rl", place / "problems.jsonl", f"--policy={place / policy}", f"--out={out}", *how, *more]


def files(out):
    return {str(one.relative_to(out)): one.read_bytes() for one in out.rglob("*") if one.is_file()}


def unbroken(runs, place, **options):
    out = place / "outputs" / "policy"
    done = runs(command(place, out, **options))
    assert done.code == 0, done.err
    wanted = files(out)
    shutil.rmtree(out)
    return done.moments, wanted


@pytest.fixture(scope="module")
def whole(runs, place):
    """The moments of an unbroken run, and what it wrote."""
    moments, wanted = unbroken(runs, place)
    assert {
        "README.md",
        "best/README.md",
        "config.json",
        "history.jsonl",
        "model.safetensors",
    } <= wanted.keys()
    assert {"monitor.jsonl", "report.html", "run.json"} <= wanted.keys()
    assert not {name for name in wanted if name.startswith((".", "state"))}
    return moments, wanted


def check_same(out, wanted, what=""):
    assert [one.name for one in out.parent.iterdir()] == [out.name]
    found = files(out)
    assert found.keys() == wanted.keys(), what
    assert [name for name in wanted if found[name] != wanted[name]] == [], what


def moment(moments, *parts):
    """The last moment that holds all the parts."""
    return max(n for n, one in enumerate(moments) if all(part in one for part in parts))


@pytest.mark.parametrize(
    "parts",
    [
        # The weights are there and the page is not; all files are there and the state still is.
        ("os.rename", "model.safetensors"),
        ("os.remove", "policy/state.pt"),
    ],
)
def test_killed_it_is_finished_by_the_same_command(runs, place, out, whole, parts):
    moments, wanted = whole
    assert runs(command(place, out), at=moment(moments, *parts)).code == -9
    card = out / "README.md"
    before = card.stat().st_mtime_ns if card.exists() else None
    again = runs(command(place, out))
    assert again.code == 0, again.err
    assert ("this run is done" in again.err) is (before is not None)
    assert before is None or card.stat().st_mtime_ns == before
    check_same(out, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lora-rank": 2}], ids=["all weights", "LoRA"])
def test_killed_at_any_moment_it_is_finished_by_the_same_command(runs, place, out, options):
    moments, wanted = unbroken(runs, place, **options)
    chosen = [n for n, one in enumerate(moments) if one not in moments[:n] or not one.startswith("os.mkdir")]
    assert len(chosen) > 20
    killed = 0
    for at in chosen:
        killed += runs(command(place, out, **options), at=at).code == -9
        again = runs(command(place, out, **options))
        assert again.code == 0, (moments[at], again.err)
        check_same(out, wanted, moments[at])
        shutil.rmtree(out)
    assert killed >= len(chosen) - 2


def test_two_at_once_the_second_is_refused_and_the_first_goes_on(runs, place, out, whole):
    moments, wanted = whole
    first = runs.begin(command(place, out), at=moment(moments, "os.rename", "state.part"))
    second = runs(command(place, out))
    assert second.code == 2
    assert second.err == f"error: another run is writing {out}; wait for it, or choose another --out\n"
    assert runs.go_on(first).code == 0
    check_same(out, wanted)


def test_what_is_gone_of_a_finished_run_is_named(runs, place, out, whole):
    for name, data in whole[1].items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    (out / "report.html").unlink()
    refused = runs(command(place, out))
    assert refused.code == 2
    assert f"--out {out} is of this run, which has ended, and lacks report.html now" in refused.err
    assert files(out).keys() == whole[1].keys() - {"report.html"}
