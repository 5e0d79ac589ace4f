"""Two processes that share out the weights train as one process that has all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from sharded_training import SCENARIOS, run
from stepmark.errors import UsageError
from stepmark.models.load import load_prm
from stepmark.training.net import fits
from stepmark.training.objectives.steps import SoftLabels
from test_recipe import rated_rows
from tiny_base import net_for, write_base

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, base):
    """What two processes wrote, started by torchrun."""
    folder = tmp_path_factory.mktemp("sharded")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
            *(str(Path(__file__).with_name("sharded_training.py")), str(base), str(folder / "two")),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_with_a_part_of_the_weights_each_train_as_one(folder, base, name):
    told, after, trainer = run(name, base, folder / "one", shard=False)
    found = torch.load(folder / "two" / f"{name}.pt", weights_only=True)
    assert found["told"].keys() == told.keys()
    # Rounded elsewhere in bfloat16, two runs of so steep a network part; in its first step they cannot have yet.
    rough = name.startswith("bfloat16")
    rel = 0.02 if rough else 1e-4
    for step, figures in list(told.items())[: 1 if rough else None]:
        theirs = found["told"][step]
        assert theirs["labels"] == figures["labels"]
        for key in ("loss", "gradient", "held_out"):
            wanted = figures[key]
            assert theirs[key] == (None if wanted is None else pytest.approx(wanted, rel=rel))
    assert found["after"] == pytest.approx(after, rel=0.2 if rough else rel)
    for (name_, ours), other in zip(
        trainer.net.named_parameters.items(), found["weights"].values(), strict=True
    ):
        far = (ours.detach().float() - other.float()).abs().max()
        assert far < (0.1 if rough else 2e-4), name_


@pytest.mark.slow
def test_each_process_holds_half(folder, base):
    held = [json.loads((folder / "two" / f"held.{rank}.json").read_text()) for rank in (0, 1)]
    net = net_for(base, SoftLabels(), rank=None)
    net.set_head(SoftLabels().head(net))
    head = sum(p.numel() for p in net.head.parameters())
    parts = [one["held"] - head for one in held]
    assert sum(parts) == sum(p.numel() for p in net.backbone.parameters())
    assert max(parts) / sum(parts) == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(folder):
    whole, resumed = (
        torch.load(folder / "two" / f"{name}.pt", weights_only=True) for name in ("full", "resumed")
    )
    assert len(resumed["told"]) < len(whole["told"])
    for step, figures in resumed["told"].items():
        assert figures == whole["told"][step]
    assert resumed["after"] == whole["after"]
    for name, weight in whole["weights"].items():
        assert torch.equal(weight, resumed["weights"][name])


@pytest.mark.slow
def test_the_checkpoint_is_whole_and_reads_as_it_was_trained(folder):
    found = torch.load(folder / "two" / "resumed.pt", weights_only=True)
    prm = load_prm(str(folder / "two" / "checkpoint"), dtype="float32", device="cpu")
    written = dict(prm.engine.backbone.named_parameters())
    names = [name for name in found["weights"] if not name.startswith("head.")]
    assert sorted(written) == sorted(names)
    for name in names:
        assert torch.equal(written[name], found["weights"][name])


def test_one_process_is_refused_and_so_is_what_reads_the_language_model_head(base, tmp_path):
    from stepmark.training.settings import Training
    from stepmark.training.trainer import Trainer

    net = net_for(base, SoftLabels(), rank=None, shard=True)
    with pytest.raises(UsageError, match="this is one: start them with `torchrun"):
        Trainer(net, SoftLabels(), Training(**asdict(net.weights)), tmp_path / "run")
    with pytest.raises(UsageError, match="reads the language-model head"):
        net.output()
    assert fits(net.backbone)


@pytest.mark.slow
def test_the_recipe_writes_a_prm_and_a_killed_run_goes_on(base, tmp_path):
    rows = tmp_path / "rated.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in rated_rows()))
    recipe = Path(__file__).resolve().parents[1] / "recipes" / "fsdp2.sh"
    words = [
        "--dtype",
        "float32",
        "--max-tokens",
        "200",
        "--held-out",
        "0.25",
        "--epochs",
        "2",
        "--learning-rate",
        "0.002",
    ]
    environment = {
        "GPUS": "2",
        "BASE": str(base),
        "TOKENS": "300",
        "ROWS": "4",
        "PYTHON": sys.executable,
    }

    def start(out):
        return subprocess.Popen(
            ["bash", str(recipe), str(rows), str(out), *words],
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(whole)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said
    assert said.count("curves:") == 1  # one of them talks
    process = start(killed)
    parts = tmp_path / "killed.run" / "parts.json"
    while not parts.exists() and process.poll() is None:
        time.sleep(0.02)
    process.terminate()  # torchrun ends its processes
    process.communicate()
    assert not killed.exists()
    process = start(killed)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "rated.jsonl", "whole"]
    [score] = load_prm(str(killed), device="cpu").score("What is 1 + 1?", steps=["1 + 1 = 2."])
    assert 0 <= score <= 1
