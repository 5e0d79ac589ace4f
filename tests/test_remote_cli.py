"""An address as a PRM: `load_prm`, `stepmark grade` and `stepmark search` with a server on a port."""

from __future__ import annotations

import functools
import json
from contextlib import ExitStack

import pytest
import torch

import stepmark.models.remote.client
from score_servers import OnPort
from stepmark import load_prm
from stepmark.cli import main
from stepmark.errors import BackendError, UnreachableError, UsageError
from stepmark.models.http import Patience
from stepmark.models.remote.client import RemotePRM
from stepmark.models.scripted import ScriptedPRM
from token_servers import TokenServer

torch.set_num_threads(1)

ROWS = [
    {
        "problem": "Ann has 3 boxes of 12 pens. How many pens?",
        "steps": ["3 * 12 = 36 pens.", "The answer is 36."],
        "id": "a",
    },
    {
        "problem": "Ann has 3 boxes of 12 pens. How many pens?",
        "solution": "3 * 12 = 36 pens.\nShe has 6.",
        "meta": {"x": 1},
    },
    {"problem": "2x + 5 = 17", "steps": ["2x = 12.", "<extra_0>"]},
    {"problem": "2x + 5 = 17", "steps": ["2x = 12.", "x = 6.", "So x = 6."]},
]


@pytest.fixture(scope="module")
def folder(zoo):
    return str(zoo["qwen-prm"].folder)


@pytest.fixture(scope="module")
def served(folder):
    with OnPort(load_prm(folder, dtype="float32", device="cpu")) as server:
        yield server


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_address_is_a_prm(served):
    prm = load_prm(served.url)
    assert isinstance(prm, RemotePRM)
    assert prm.name == "qwen-prm"
    with load_prm(served.url + "/v1/", model="qwen-prm") as named:
        assert named.identity == prm.identity
    with pytest.raises(UsageError, match="'other' was asked for"):
        load_prm(served.url, model="other")
    prm.close()


def test_another_server_needs_a_tokenizer_and_says_what_was_found():
    with TokenServer("/pooling", lambda body: (500, b"")) as server:
        with pytest.raises(UsageError, match=r"it serves 'tiny-prm', and no PRM of stepmark's.*`tokenizer`"):
            load_prm(server.url)
        assert server.bodies == []
    with (
        TokenServer("/pooling", lambda body: (500, b""), models={"data": 7}) as server,
        pytest.raises(UsageError, match=r"found 7.*`tokenizer`"),
    ):
        load_prm(server.url)
    with pytest.raises(UnreachableError, match="nothing answers there"):
        load_prm("http://127.0.0.1:9")


def test_grading_over_a_server_is_grading_here(served, folder, tmp_path, capsys):
    file, here, there = tmp_path / "in.jsonl", tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["grade", str(file), "--keep-going"]
    assert main([*words, "--prm", folder, "--dtype", "float32", "--device", "cpu", "--out", str(here)]) == 0
    told_here = capsys.readouterr().err
    assert main([*words, "--prm", served.url, "--out", str(there)]) == 0
    told_there = capsys.readouterr().err
    expected, found = rows(here), rows(there)
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert one.pop("scores") == pytest.approx(other.pop("scores"), abs=1e-5)
        assert one.pop("score") == pytest.approx(other.pop("score"), abs=1e-5)
        assert (one.pop("prm"), other.pop("prm")) == ("qwen-prm", folder)
        assert one == other
    left_out = [line for line in told_there.splitlines() if "in.jsonl:3" in line]
    assert left_out == [line for line in told_here.splitlines() if "in.jsonl:3" in line] != []


def test_a_run_whose_server_fails_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    impatient = functools.partial(RemotePRM, patience=Patience(retries=0), batch=2)
    asked, broken = [], [True]

    def script(problem, steps):
        if broken and problem == "problem 5":
            raise BackendError("out of memory")
        asked.append(problem)
        return 0.5

    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps({"problem": f"problem {i}", "steps": ["a"]}) + "\n" for i in range(8)))
    with OnPort(ScriptedPRM(script)) as server:
        monkeypatch.setattr(stepmark.models.remote.client, "RemotePRM", impatient)
        command = ["grade", str(file), "--prm", server.url, "--out", str(out)]
        assert main(command) == 1
        told = capsys.readouterr().err
        assert "out of memory" in told
        assert "4 rows are kept" in told
        broken.clear()
        assert main(command) == 0
    assert [row["problem"] for row in rows(out)] == [f"problem {i}" for i in range(8)]
    assert [asked.count(f"problem {i}") for i in range(4)] == [1] * 4  # what was kept is not asked again


def test_a_server_that_is_restarted_is_waited_for():
    """Its cache is gone with it; what is needed is read again."""
    prm = ScriptedPRM(lambda problem, steps: 1 / (1 + len(steps)))
    with ExitStack() as stack:
        again = []

        def sleep(seconds):
            if not again:
                again.append(stack.enter_context(OnPort(prm, int(first.url.rpartition(":")[2]))))

        with OnPort(prm) as first:
            remote = stack.enter_context(RemotePRM(first.url, sleep=sleep))
            assert remote.score("p", steps=["a"]) == [1 / 2]
        assert remote.score("p", steps=["a", "b"]) == [1 / 2, 1 / 3]
        assert len(again) == 1
