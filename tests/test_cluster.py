"""`--ray` on clusters of two nodes on this machine, of which nodes, workers and drivers are killed; and what needs no cluster to be tested."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest

import test_label_cli as single
from fake_ray import FakeRay
from stepmark.backends import ChoiceLogprobs, Completion, Completions, VerdictRequest
from stepmark.backends.cluster import Cluster, ClusterWorker, RayWorkers, WorkerModels
from stepmark.cli import main
from stepmark.errors import (
    BackendError,
    InputError,
    MissingExtraError,
    StepmarkError,
    TooLongError,
    UsageError,
)
from stepmark.version import __version__

TESTS = Path(__file__).parent


def words(file, out, policy, *more):
    found = [
        "label",
        "rollout",
        file,
        "--policy",
        policy,
        "--verifier",
        "number",
        "--k",
        "4",
        "--out",
        out,
        *more,
    ]
    return [str(word) for word in found]


def recorded(out):
    with closing(sqlite3.connect(f"{out}.replies.sqlite")) as db:
        return dict(db.execute("SELECT key, reply FROM replies"))


def logged(folder):
    return [line for log in folder.iterdir() for line in log.read_text().splitlines()]


def driver(file, out, address):
    return started(*words(file, out, "cluster_policies:Slow", "--ray", address))


def started(*words):
    code = "import sys; from stepmark.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def until(true, what, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_a_node_a_worker_and_the_driver_are_killed_and_nothing_is_lost_or_changed(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    asked = tmp_path / "asked"
    asked.mkdir()
    # Workers inherit these from their node, nodes from here.
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    from ray.cluster_utils import Cluster as RayCluster

    file, _ = single.world(tmp_path, count=48)
    monkeypatch.setenv("DELAY", "0")
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert main(words(file, whole, "cluster_policies:Slow")) == 0
    undisturbed = logged(asked)
    assert len(undisturbed) == len(set(undisturbed)) > 100
    for log in asked.iterdir():
        log.unlink()
    monkeypatch.setenv("DELAY", "0.05")

    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        first = driver(file, out, cluster.address)
        until(lambda: len(list(asked.iterdir())) == 2 and len(logged(asked)) > 20, "both workers")
        cluster.remove_node(nodes[0], allow_graceful=False)
        _, said = first.communicate(timeout=180)
        assert first.returncode == 0, said
        assert "2 workers on a Ray cluster with 3 nodes, 2 CPUs" in said
        assert "will be asked again" in said
        # Asked twice is at most what was under way when the node was killed: no more than a chunk.
        unchanged(out, whole, logged(asked), undisturbed, twice=32)

        for log in asked.iterdir():
            log.unlink()
        out = tmp_path / "again.jsonl"
        second = driver(file, out, cluster.address)
        until(lambda: len(logged(asked)) > 20, "the node that is left")
        second.send_signal(signal.SIGKILL)
        second.communicate()
        before = set(asked.iterdir())
        third = driver(file, out, cluster.address)
        until(lambda: set(asked.iterdir()) - before and len(logged(asked)) > 60, "the third driver's worker")
        (worker,) = set(asked.iterdir()) - before
        os.kill(int(worker.name), signal.SIGKILL)
        _, said = third.communicate(timeout=120)
    finally:
        cluster.shutdown()
    assert third.returncode == 0, said
    assert f"worker 1 (process {worker.name} on" in said
    assert "will be asked again" in said
    assert "is there again" in said
    unchanged(out, whole, logged(asked), undisturbed, twice=32)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_grading_and_searching_go_on_when_a_worker_a_node_and_the_driver_are_killed(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    asked = tmp_path / "asked"
    asked.mkdir()
    monkeypatch.setenv("ASKED", str(asked))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DELAY", "0")
    from ray.cluster_utils import Cluster as RayCluster

    file, _ = single.world(tmp_path, count=24)
    solutions = tmp_path / "solutions.jsonl"
    rows = [
        {"problem": f"problem {p}", "steps": ["x" * (1 + (s * k + p) % 7) for k in range(1, 4)]}
        for p in range(40)
        for s in range(8)
    ]
    solutions.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def grade(out, *more):
        return ["grade", solutions, "--prm", "cluster_policies:grader", "--out", out, *more]

    def search(out, *more):
        models = ["--policy", "cluster_policies:Slow", "--prm", "cluster_policies:grader"]
        small = ["--width", "2", "--expand", "2", "--max-steps", "6", "--verifier", "number"]
        return ["search", "beam", file, *models, *small, "--out", out, *more]

    for command in (grade, search):
        assert main([str(word) for word in command(tmp_path / f"{command.__name__}.whole")]) == 0
    for log in asked.iterdir():
        log.unlink()
    monkeypatch.setenv("DELAY", "0.02")

    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        out = tmp_path / "graded"
        first = started(*grade(out, "--ray", cluster.address))
        until(lambda: len(list(asked.iterdir())) == 2 and len(logged(asked)) > 20, "both workers")
        os.kill(int(min(asked.iterdir()).name), signal.SIGKILL)
        part = tmp_path / "graded.part"
        until(lambda: part.exists() and part.read_bytes().count(b"\n") > 60, "graded rows")
        first.send_signal(signal.SIGKILL)
        _, said = first.communicate()
        assert "will be asked again" in said
        again = started(*grade(out, "--ray", cluster.address))
        _, said = again.communicate(timeout=120)
        assert again.returncode == 0, said
        done = int(re.search(r"continued after the (\d+) rows", said)[1])
        left = sum(len(row["steps"]) + 2 for row in rows[done:])  # a word a step, two a problem
        assert f"{left:,} tokens read" in said
        assert out.read_bytes() == (tmp_path / "grade.whole").read_bytes()

        for log in asked.iterdir():
            log.unlink()
        found = tmp_path / "found"
        third = started(*search(found, "--ray", cluster.address))
        until(lambda: len(list(asked.iterdir())) == 2 and len(logged(asked)) > 40, "both workers")
        cluster.remove_node(nodes[0], allow_graceful=False)
        _, said = third.communicate(timeout=180)
        assert third.returncode == 0, said
        assert "will be asked again" in said
        assert found.read_bytes() == (tmp_path / "search.whole").read_bytes()
    finally:
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_what_cannot_be_answered_ends_the_run_with_its_reason(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    asked = tmp_path / "asked"
    asked.mkdir()
    file, _ = single.world(tmp_path, count=48)
    deadly = json.loads(file.read_text().splitlines()[30])["problem"]
    env = {"ASKED": asked, "DEADLY": deadly, "DELAY": "0.05", "PYTHONPATH": TESTS, "OMP_NUM_THREADS": "1"}
    for name, value in {**env, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, str(value))
    from ray.cluster_utils import Cluster as RayCluster

    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        for policy, reason in (
            ("Deadly", re.escape("3 workers died over one request")),
            ("Broken", "died 3 times before it was ready"),
            ("Confused", r"worker \d \(.*expected Completions model of process .*found"),
            ("Failing", r"worker \d \(.*the server went away"),
        ):
            out = tmp_path / f"{policy}.jsonl"
            run = started(*words(file, out, f"cluster_policies:{policy}", "--ray", cluster.address))
            _, said = run.communicate(timeout=180)
            assert run.returncode == 1, said
            assert re.search(reason, said), said
            if policy == "Deadly":
                assert deadly[-30:] in said
                assert len(recorded(out)) > 100  # what others were asked is kept
    finally:
        cluster.shutdown()


def unchanged(out, whole, asked, undisturbed, *, twice):
    assert out.read_bytes() == whole.read_bytes()
    assert recorded(out) == recorded(whole)
    assert set(asked) == set(undisturbed)
    assert len(asked) <= len(undisturbed) + twice


def test_without_ray_the_line_to_type_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stepmark\[cluster\]'"):
        RayWorkers("m:f", {}, Cluster(ray="auto"))


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        ("nowhere", UsageError, "expected auto, HOST:PORT, ray://HOST:PORT or local, found 'nowhere'"),
        ("host:port", UsageError, "found 'host:port'"),
        ("127.0.0.1:1", BackendError, "nothing answers at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", BackendError, "nothing answers at ray://127.0.0.1:1"),
    ],
)
def test_an_address_where_no_cluster_is_says_so_at_once(monkeypatch, address, error, said):
    class Ray:
        @staticmethod
        def is_initialized():
            return False

    monkeypatch.setitem(sys.modules, "ray", Ray)
    with pytest.raises(error, match=said):
        RayWorkers("m:f", {}, Cluster(ray=address))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ray-workers", "2"], "give --ray ADDRESS too"),
        (["--ray", "auto", "--ray-workers", "0"], "--ray-workers 0: expected 1 or more"),
        (["--ray", "auto", "--ray-cpus", "0"], "--ray-cpus 0"),
        (["--ray", "auto", "--ray-gpus", "-1"], "--ray-gpus -1"),
        (["--ray", "auto", "--device", "cuda"], "set --ray-gpus to 1"),
    ],
)
def test_flags_that_cannot_work_are_refused(tmp_path, monkeypatch, capsys, flags, said):
    monkeypatch.chdir(tmp_path)
    file, _ = single.world(tmp_path, count=1)
    assert main(words(file, "out.jsonl", "stepmark:arithmetic", *flags)) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("out.jsonl*"))


# What a worker builds in the tests below; called by name, as on a cluster.


def built(*, identity):
    def write(requests, ready):
        replies = []
        for place, request in enumerate(requests):
            if request.prompt == "crash":
                raise RuntimeError("no memory")
            if request.prompt == "long":
                replies.append(TooLongError("9 tokens, at most 8", where="here"))
            else:
                replies.append([Completion(text=request.prompt, finish="end")])
            if place == 0:
                ready(place, replies[-1])
        return replies

    def short(requests, ready):
        return []

    return WorkerModels(answers={Completions: (identity, write), VerdictRequest: ("v", short)})


NUMBERS = itertools.count()


def differing():
    return built(identity=f"model {next(NUMBERS)}")


def older():
    return WorkerModels(answers={}, facts={"stepmark": "0.0.1"})


def refusing():
    raise UsageError("no such model")


def worker(function="built", settings='{"identity": "me"}', folder="/nowhere"):
    return ClusterWorker(f"test_cluster:{function}", settings, folder)


def test_a_worker_gives_every_reply_once_in_words_that_travel():
    at_work = worker()
    facts, place = at_work.build()
    assert facts == {"stepmark": __version__, "Completions": "me", "VerdictRequest": "v"}
    assert str(os.getpid()) in place
    for _ in range(2):  # chunk after chunk
        # As they travel: copied by the protocol of pickle.
        replies, error, _ = deepcopy(
            at_work.answer([Completions(prompt=text) for text in ("a", "long", "b")])
        )
        assert error is None
        assert [replies[place][0].text for place in (0, 2)] == ["a", "b"]
        assert type(replies[1]) is InputError
        assert str(replies[1]) == "here: 9 tokens, at most 8"


def test_a_worker_reports_an_error_with_the_replies_before_it_and_lives():
    at_work = worker()
    replies, error, _ = deepcopy(at_work.answer([Completions(prompt=text) for text in ("a", "crash")]))
    assert list(replies) == [0]
    assert type(error) is BackendError
    assert str(error) == "RuntimeError: no memory"
    assert "in write" in error.__notes__[0]
    assert at_work.answer([Completions(prompt="c")])[1] is None
    replies, error, _ = at_work.answer([VerdictRequest(answer="1", gold="1")])
    assert not replies
    assert "v gave 0 replies" in str(error)
    assert at_work.answer([ChoiceLogprobs(prompt="p", options=("a", "b"))])[1] is not None


def test_what_cannot_be_built_is_the_callers_error():
    for error in (worker("refusing", "{}").build(), worker("refusing", "{}").answer([])[1]):
        there = deepcopy(error)
        assert type(there) is UsageError
        assert str(there) == "no such model"


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("differing", r"expected Completions model \d.*found Completions model \d"),
        ("older", rf"expected stepmark {re.escape(__version__)}.*found stepmark 0\.0\.1"),
        ("refusing", "no such model"),
    ],
)
def test_a_worker_that_is_not_as_the_others_ends_the_run_and_is_named(monkeypatch, function, found):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with (
        pytest.raises(StepmarkError, match=rf"worker \d.*{found}"),
        closing(RayWorkers(f"test_cluster:{function}", {}, Cluster(ray="local"))) as workers,
    ):
        workers.answer([Completions(prompt=str(number)) for number in range(30)], lambda place, reply: None)
