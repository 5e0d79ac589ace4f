"""A program for several processes: `python parallel_training.py BASE FOLDER`; see test_training_parallel.py."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import torch

from stepmark.training.examples import by_problem
from stepmark.training.objectives.steps import SoftLabels
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer
from tiny_base import branching, counted, example, net_for


def shares(dice):
    return counted(dice.randint(0, 4), 4)


def single():
    """One row: one tree, so that one process has nothing to do."""
    return [example("p", ["x", "y"], [0.25, 1.0])]


SCENARIOS = {
    # Steps of several passes, shared by passes; with held-out problems and patience.
    "passes": (
        {"token_budget": 80, "rows_per_step": 8, "evaluations": 3, "patience": 1, "learning_rate": 3e-2},
        lambda: branching(4, make=shares),
        lambda: branching(2, seed=5, make=shares),
    ),
    # Steps of a single pass of several trees, shared by trees.
    "trees": ({"token_budget": 400}, lambda: branching(6, make=shares), list),
    "single": ({"token_budget": 400, "epochs": 3}, single, list),
}


def run(name, base, folder):
    """Train; what was told of each step and the weights after it."""
    settings, rows, held_out = SCENARIOS[name]
    net = net_for(base, SoftLabels())
    told = {}
    train = Training(**asdict(net.weights), **({"learning_rate": 1e-2, "epochs": 2} | settings))
    trainer = Trainer(net, SoftLabels(), train, folder / name)

    def report(progress):
        told[progress.step] = {
            "loss": progress.loss,
            "labels": progress.labels,
            "gradient": progress.gradient,
            "held_out": None if progress.held_out is None else progress.held_out.loss,
            "auc": None if progress.held_out is None else progress.held_out.auc,
        }

    trainer.run(by_problem(rows()), by_problem(held_out()), report=report)
    found = trainer.measured(by_problem(rows()))
    weights = [m.clone() for m in trainer.masters]
    trainer.workers.wait()
    return {
        "told": told,
        "after": [found.loss, found.labels, found.auc],
        "rank": trainer.workers.rank,
    }, weights


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    base_, folder_ = Path(sys.argv[1]), Path(sys.argv[2])
    folder_.mkdir(exist_ok=True)
    for name_ in SCENARIOS:
        told_, weights_ = run(name_, base_, folder_)
        out = folder_ / f"{name_}.{os.environ['RANK']}"
        torch.save(weights_, out.with_name(out.name + ".pt"))
        out.with_name(out.name + ".json").write_text(json.dumps(told_))
    torch.distributed.destroy_process_group()
