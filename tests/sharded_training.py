"""A program for several processes whose weights are shared out: `python sharded_training.py BASE FOLDER`; see test_training_sharded.py."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import torch

from parallel_training import shares, single
from stepmark.errors import UsageError
from stepmark.training.examples import by_problem
from stepmark.training.objectives.steps import SoftLabels
from stepmark.training.parallel import gathered
from stepmark.training.saving import write_trained
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer
from tiny_base import branching, net_for

PASSES = {"token_budget": 80, "rows_per_step": 8, "evaluations": 3, "learning_rate": 3e-3}


def rows():
    return branching(4, make=shares)


def held_out():
    return branching(2, seed=5, make=shares)


SCENARIOS = {
    # Of an odd number of passes, so that a process runs empty ones; watched, so that weights are set from outside.
    "full": ({"rank": None}, {**PASSES, "patience": 1}, rows, held_out),
    "lora": ({"rank": 4}, {**PASSES, "learning_rate": 1e-2}, rows, held_out),
    "again": ({"rank": None, "gradient_checkpointing": True, "frozen_layers": 1}, PASSES, rows, list),
    # One row: one process has nothing to do.
    "single": ({"rank": None}, {"token_budget": 400, "epochs": 3, "learning_rate": 3e-3}, single, list),
    "bfloat16": ({"rank": None, "dtype": "bfloat16"}, PASSES, rows, held_out),
    "bfloat16 lora": ({"rank": 4, "dtype": "bfloat16"}, {**PASSES, "learning_rate": 1e-2}, rows, list),
}


class Stop(Exception):
    """Raised in the middle of a run."""


def trainer_for(name, base, folder, *, shard):
    """A trainer of a scenario."""
    weights, settings, _, _ = SCENARIOS[name]
    net = net_for(base, SoftLabels(), shard=shard, **weights)
    train = Training(**asdict(net.weights), save_every=2, **({"epochs": 2} | settings))
    return Trainer(net, SoftLabels(), train, folder / name)


def run(name, base, folder, *, shard, stop=None):
    """Train; what was told of each step, the figures after it and the trained weights."""
    _, _, data, others = SCENARIOS[name]
    told = {}
    trainer = trainer_for(name, base, folder, shard=shard)

    def report(progress):
        told[progress.step] = {
            "loss": progress.loss,
            "labels": progress.labels,
            "gradient": progress.gradient,
            "held_out": None if progress.held_out is None else progress.held_out.loss,
        }

    if stop is not None:
        step = trainer._step

        def until(parts, rate):
            if trainer.done == stop:
                raise Stop
            return step(parts, rate)

        trainer._step = until
    trainer.run(by_problem(data()), by_problem(others()), report=report)
    found = trainer.measured(by_problem(data()))
    return told, [found.loss, found.labels, found.auc], trainer


def save(folder, name, told, after, trainer):
    """What the test reads."""
    weights = gathered(trainer.net, trainer.workers)
    if trainer.workers.first:
        torch.save({"told": told, "after": after, "weights": weights}, folder / f"{name}.pt")


def main(base, folder):
    """All scenarios; one is stopped and goes on, and its checkpoint is written."""
    for name in SCENARIOS:
        save(folder, name, *run(name, base, folder / "runs", shard=True))
    with contextlib.suppress(Stop):
        run("full", base, folder / "stopped", shard=True, stop=5)
    told, after, trainer = run("full", base, folder / "stopped", shard=True)
    save(folder, "resumed", told, after, trainer)
    whole = trainer.whole()
    if trainer.workers.first:
        write_trained(folder / "checkpoint", whole, adapter=False, base_name=str(base), notes={})
    held = {
        "rank": trainer.workers.rank,
        "held": sum(master.numel() for master in trainer.masters),
        "files": sorted(path.name for path in (folder / "stopped" / "full").iterdir()),
    }
    # Alone it goes on with nothing, and says so.
    alone = trainer_for("full", base, folder / "stopped", shard=True)
    alone.workers.size = 1
    try:
        alone._resume()
    except UsageError as error:
        held["refused"] = str(error)
    trainer.workers.wait()
    (folder / f"held.{os.environ['RANK']}.json").write_text(json.dumps(held))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    folder_ = Path(sys.argv[2])
    folder_.mkdir(exist_ok=True)
    main(Path(sys.argv[1]), folder_)
    torch.distributed.destroy_process_group()
