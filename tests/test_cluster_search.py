"""`stepmark search --ray` and `stepmark sample --ray`: what is found without; a problem stays with the worker that has read it."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import stepmark.batching.cluster
from checkpoints import qwen_prm
from cluster_here import Here
from stepmark.batching import Graded, Release, Score, Write, Written
from stepmark.batching.spreading import Homes, Spreading
from stepmark.cli import main
from test_search_cli import MODELS, SMALL, problems, rows_of
from test_spreading import Fake
from tiny_language_model import tiny_model, tiny_tokenizer

torch.set_num_threads(1)


@pytest.fixture
def cluster(monkeypatch):
    """What `--ray` reaches, with the deaths that a test asks for."""
    return lambda **how: monkeypatch.setattr(
        stepmark.batching.cluster, "RayWorkers", functools.partial(Here, **how)
    )


def asked_of_whom(kinds):
    """By problem, how often each worker was asked; the problem is what stands before the instruction."""
    found = defaultdict(Counter)
    for worker, requests in Here.made.given:
        for request in requests:
            if isinstance(request, kinds):
                about = request.prompt if isinstance(request, Write) else request.problem
                found[about][worker] += 1
    return found


@pytest.mark.parametrize(("method", "deaths"), [("best-of-n", {1: 2}), ("beam", {}), ("mcts", {1: 5, 2: 30})])
def test_what_is_found_is_what_is_found_without(tmp_path, cluster, method, deaths):
    file = problems(tmp_path, 4)
    cluster(size=3, deaths=deaths)
    for name, more in (("here", []), ("there", ["--ray", "x"])):
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
    tmp_path, cluster, checkpoints, capsys, monkeypatch
):
    # On a busy machine one worker may be far behind, and is helped.
    monkeypatch.setattr("stepmark.batching.spreading._BEHIND", 1000)
    file = problems(tmp_path, 4)
    cluster(size=2)
    words = ["--policy", checkpoints / "policy", "--prm", checkpoints / "prm", "--dtype", "float32"]
    words += ["--stop", " ", "--max-tokens", "6", "--max-steps", "4", "--width", "2", "--expand", "2"]
    words += ["--verifier", "number"]
    for name, more in (("here", []), ("there", ["--ray", "x"])):
        assert main(["search", "beam", *map(str, [file, *words, "--out", tmp_path / name]), *more]) == 0
    here, there = (rows_of(tmp_path / name) for name in ("here", "there"))
    for ours, theirs in zip(here, there, strict=True):
        assert [c["steps"] for c in ours["candidates"]] == [c["steps"] for c in theirs["candidates"]]
        for one, other in zip(ours["candidates"], theirs["candidates"], strict=True):
            assert other["scores"] == pytest.approx(one["scores"], abs=1e-5)
        assert ours["cost"] == theirs["cost"]
    for kinds in (Write, Score):
        of = asked_of_whom(kinds)
        assert len(of) == 4
        assert all(len(workers) == 1 for workers in of.values())
        assert len({worker for workers in of.values() for worker in workers}) == 2
    # Whoever has scored a problem is told what may go, and nobody else.
    scored, released = asked_of_whom(Score), asked_of_whom(Release)
    assert {about: set(workers) for about, workers in released.items()} == {
        about: set(workers) for about, workers in scored.items()
    }
    said = capsys.readouterr().err
    counted = re.findall(r"the policy computed ([\d,]+) of ([\d,]+) tokens", said)
    (here, given), (there, again) = ([int(n.replace(",", "")) for n in found] for found in counted)
    assert given == again
    # Each worker reads once what all prompts begin with, and nothing else is read twice.
    assert here <= there < here + 10
    assert there < given / 5


def test_one_typed_problem(tmp_path, cluster, capsys):
    text = rows_of(problems(tmp_path, 1))[0]["problem"]
    cluster()
    said = []
    for more in ([], ["--ray", "x"]):
        assert main(["search", "beam", "--problem", text, *MODELS, *SMALL["beam"], *more]) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1]


def test_samples_are_those_of_a_run_without(tmp_path, cluster):
    file = problems(tmp_path, 5)
    cluster(size=2, deaths={1: 3})
    words = [str(file), "--policy", "search_models:policy", "--verifier", "number", "--n", "3"]
    assert main(["sample", *words, "--out", str(tmp_path / "here")]) == 0
    assert main(["sample", *words, "--out", str(tmp_path / "there"), "--ray", "x"]) == 0
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
    assert (tmp_path / "here.manifest.json").read_bytes() == (tmp_path / "there.manifest.json").read_bytes()
    assert Here.made.given


@pytest.mark.parametrize("command", [["search", "greedy"], ["sample"]])
def test_flags_without_a_cluster_are_refused(tmp_path, capsys, command):
    words = [*command, str(problems(tmp_path, 1)), "--policy", "search_models:policy", "--ray-workers", "2"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "give --ray ADDRESS too" in capsys.readouterr().err


# Homes, with workers that do one thing a turn.


def score(problem, *steps):
    return Score(problem=problem, steps=steps or ("step",))


def graded(request):
    if isinstance(request, Release):
        return None
    if isinstance(request, Write):
        return [Written(text="x", finish="end")]
    return Graded(score=len(request.steps) / 10)


class Noted(Fake):
    """Who was asked what."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.given = []

    def submit(self, requests, *, to):
        self.given += [(to, request) for request in requests]
        return super().submit(requests, to=to)


def ask(workers, spreading, requests):
    """A round; who was asked."""
    workers.given.clear()
    replies = spreading.answer(requests, lambda index, reply: None)
    assert replies == [graded(request) for request in requests]
    return {request: to for to, request in workers.given}


def test_a_problem_stays_with_its_worker_and_a_new_one_goes_to_the_one_with_least_to_do():
    workers = Noted(3, answer=graded)
    spreading = Spreading(workers, tell=print, homes=True)
    first = ask(workers, spreading, [score(p) for p in "abc"])
    assert sorted(first.values()) == [1, 2, 3]
    again = ask(workers, spreading, [score(p, "step", str(k)) for p in "cab" for k in range(2)])
    assert {request.problem: to for request, to in again.items()} == {
        r.problem: to for r, to in first.items()
    }
    more = ask(workers, spreading, [score("a", "1"), score("a", "2"), score("b", "1"), score("d")])
    assert more[score("d")] == first[score("c")]


def test_a_worker_without_anything_to_do_takes_from_one_that_is_far_behind_and_keeps_it():
    workers = Noted(2, answer=graded)
    spreading = Spreading(workers, tell=print, homes=True)
    spreading._homes.moved([score(p) for p in "abcdef"], 1)
    taken = ask(workers, spreading, [score(p) for p in "abcdef"])
    assert set(taken.values()) == {1, 2}
    assert taken[score("a")] == 1  # what it has begun is its own
    again = ask(workers, spreading, [score(p, "2") for p in "af"])
    assert {r.problem: to for r, to in again.items()} == {"a": 1, "f": taken[score("f")]} == {"a": 1, "f": 2}
    # Both of them have read f, and both may let it go.
    ask(workers, spreading, [Release(problem="f", prefixes=(("step",),))])
    assert sorted(to for to, _ in workers.given) == [1, 2]
    ask(workers, spreading, [Release(problem="nobody has read", prefixes=(("step",),))])
    assert workers.given == []


def test_what_a_worker_had_to_do_that_is_gone_is_done_by_another():
    workers = Noted(2, answer=graded)
    spreading = Spreading(workers, tell=print, homes=True)
    first = ask(workers, spreading, [score(p) for p in "ab"])
    gone = first[score("a")]

    class There:
        def __get__(self, *_):
            return [3 - gone]

    workers.__class__ = type("Lame", (Noted,), {"there": There()})
    again = ask(workers, spreading, [score("a", "2"), score("b", "2")])
    assert set(again.values()) == {3 - gone}
    ask(workers, spreading, [Release(problem="a", prefixes=(("step",),))])
    assert [to for to, _ in workers.given] == [3 - gone]


@settings(deadline=None, max_examples=60)
@drawn(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=20), max_size=6),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 5), st.just(False)), max_size=60),
    st.integers(0, 30),
)
def test_with_homes_too_every_request_has_its_reply(rounds, size, turns, death):
    turns = [(who, number == death) for number, (who, _) in enumerate(turns)]
    workers = Noted(size, turns, answer=graded)
    spreading = Spreading(workers, tell=lambda line: None, homes=True)
    for number, about in enumerate(rounds):
        ask(workers, spreading, [score(problem, str(number), str(k)) for k, problem in enumerate(about)])


def test_only_the_latest_problems_are_remembered():
    homes = Homes()
    homes.moved((score(str(number)) for number in range(10_001)), 1)
    released = homes.released([Release(problem=name, prefixes=(("step",),)) for name in ("0", "1", "10000")])
    assert len(released.asked) == 2
