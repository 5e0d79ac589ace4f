"""Two processes on this machine, launched as users do, train as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parallel_training import SCENARIOS, run
from ports import lasting_port
from tiny_base import write_base

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("parallel")
    base = write_base(folder / "base")
    # With --cpu, accelerate starts a single process and says nothing (it would need MPI); without a GPU these run on the CPU too.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += [
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        str(lasting_port()),  # torch 2.7 waits for ever on port 0
    ]
    done = subprocess.run(
        [*launch, str(Path(__file__).with_name("parallel_training.py")), str(base), str(folder / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_train_as_one(folder, name):
    told, weights = run(name, folder / "base", folder / "one")
    assert told["told"]
    for rank in (0, 1):
        found = json.loads((folder / "two" / f"{name}.{rank}.json").read_text())
        assert found["rank"] == rank
        # Only the first talks.
        assert bool(found["told"]) == (rank == 0)
        for step, figures in found["told"].items():
            one = told["told"][int(step)]
            assert figures["labels"] == one["labels"]
            for key in ("loss", "gradient", "held_out", "auc"):
                assert figures[key] == (None if one[key] is None else pytest.approx(one[key], rel=1e-5))
        assert found["after"] == pytest.approx(told["after"], rel=1e-5)
        if rank == 0:
            assert len(found["told"]) == len(told["told"])
        theirs = torch.load(folder / "two" / f"{name}.{rank}.pt", weights_only=True)
        for ours, other in zip(weights, theirs, strict=True):
            torch.testing.assert_close(other, ours, rtol=0, atol=1e-5)


def test_only_the_first_process_writes_the_state(folder):
    assert sorted(p.name for p in (folder / "two" / "passes").iterdir()) == [
        "run.json",
        "state.pt",
    ]
