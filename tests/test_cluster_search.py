"""`stepmark search --ray` and `stepmark sample --ray`: what is found without; a problem stays with the worker that has read it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict

import pytest
import torch

from checkpoints import qwen_prm
from fake_ray import FakeRay
from stepmark.backends import Completions, Release, ScoreRequest
from stepmark.cli import main
from test_search_cli import MODELS, SMALL, problems, rows_of
from tiny_language_model import tiny_model, tiny_tokenizer

torch.set_num_threads(1)


@pytest.fixture
def cluster(monkeypatch):
    """What `--ray` reaches, with the deaths that a test asks for."""

    def make(**how):
        ray = FakeRay(**how)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return make


def asked_of_whom(ray, kinds):
    """By problem, how often each worker was asked; the problem is what stands before the instruction."""
    found = defaultdict(Counter)
    for worker, requests in ray.given:
        for request in requests:
            if isinstance(request, kinds):
                about = request.prompt if isinstance(request, Completions) else request.problem
                found[about][worker] += 1
    return found


@pytest.mark.parametrize(("method", "deaths"), [("best-of-n", {1: 2}), ("beam", {}), ("mcts", {1: 3, 2: 5})])
def test_what_is_found_is_what_is_found_without(tmp_path, cluster, method, deaths):
    file = problems(tmp_path, 4)
    cluster(size=3, deaths=deaths)
    for name, more in (("here", []), ("there", ["--ray", "local"])):
        words = [
            str(file),
            *MODELS,
            *SMALL[method],
            "--out",
            tmp_path / name,
            "--trace",
            tmp_path / f"{name}.trace",
        ]
        assert main(["search", method, *map(str, words), *more]) == 0
    for end in ("", ".trace"):
        assert (tmp_path / f"here{end}").read_bytes() == (tmp_path / f"there{end}").read_bytes()
    ours, theirs = (json.loads((tmp_path / f"{n}.manifest.json").read_text()) for n in ("here", "there"))
    assert ours == theirs


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A policy and a PRM with weights, that keep what they have read."""
    folder = tmp_path_factory.mktemp("models")
    words = tiny_tokenizer()
    tiny_model(words, context=400).save_pretrained(folder / "policy")
    words.save_pretrained(folder / "policy")
    (folder / "prm").mkdir()
    qwen_prm(folder / "prm")
    return folder


def test_models_that_keep_what_they_read_are_asked_where_they_have_read(
    tmp_path, cluster, checkpoints, capsys
):
    file = problems(tmp_path, 4)
    ray = cluster(size=2)
    words = ["--policy", checkpoints / "policy", "--prm", checkpoints / "prm", "--dtype", "float32"]
    words += ["--stop", " ", "--max-tokens", "6", "--max-steps", "4", "--width", "2", "--expand", "2"]
    words += ["--verifier", "number"]
    for name, more in (("here", []), ("there", ["--ray", "local"])):
        assert main(["search", "beam", *map(str, [file, *words, "--out", tmp_path / name]), *more]) == 0
    here, there = (rows_of(tmp_path / name) for name in ("here", "there"))
    for ours, theirs in zip(here, there, strict=True):
        assert [c["steps"] for c in ours["candidates"]] == [c["steps"] for c in theirs["candidates"]]
        for one, other in zip(ours["candidates"], theirs["candidates"], strict=True):
            assert other["scores"] == pytest.approx(one["scores"], abs=1e-5)
        assert ours["cost"] == theirs["cost"]
    for kinds in (Completions, ScoreRequest):
        of = asked_of_whom(ray, kinds)
        assert len(of) == 4
        assert all(len(workers) == 1 for workers in of.values())
        assert len({worker for workers in of.values() for worker in workers}) == 2
    # Whoever has scored a problem is told what may go, and nobody else.
    scored, released = asked_of_whom(ray, ScoreRequest), asked_of_whom(ray, Release)
    assert {about: set(workers) for about, workers in released.items()} == {
        about: set(workers) for about, workers in scored.items()
    }
    said = capsys.readouterr().err
    counted = re.findall(r"policy prompts: ([\d,]+) tokens, ([\d,]+) computed", said)
    (given, here), (again, there) = ([int(n.replace(",", "")) for n in found] for found in counted)
    assert given == again
    # Each worker reads once what its prompts begin with, and nothing else is read twice.
    assert here <= there < here + 20
    assert there < given / 5


def test_one_typed_problem(tmp_path, cluster, capsys):
    text = rows_of(problems(tmp_path, 1))[0]["problem"]
    cluster()
    said = []
    for more in ([], ["--ray", "local"]):
        assert main(["search", "beam", "--problem", text, *MODELS, *SMALL["beam"], *more]) == 0
        said.append(capsys.readouterr())
    assert said[0].out == said[1].out
    assert said[1].err == "ray: 2 workers on a Ray cluster with 1 node, 2 CPUs\n" + said[0].err


def test_samples_are_those_of_a_run_without(tmp_path, cluster):
    file = problems(tmp_path, 5)
    ray = cluster(size=2, deaths={1: 1})
    words = [str(file), "--policy", "search_models:policy", "--verifier", "number", "--n", "3"]
    assert main(["sample", *words, "--out", str(tmp_path / "here")]) == 0
    assert main(["sample", *words, "--out", str(tmp_path / "there"), "--ray", "local"]) == 0
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    assert (tmp_path / "here.manifest.json").read_bytes() == (tmp_path / "there.manifest.json").read_bytes()
    assert ray.given


@pytest.mark.parametrize("command", [["search", "greedy"], ["sample"]])
def test_flags_without_a_cluster_are_refused(tmp_path, capsys, command):
    words = [*command, str(problems(tmp_path, 1)), "--policy", "search_models:policy", "--ray-workers", "2"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "give --ray ADDRESS too" in capsys.readouterr().err
