"""What a run starts from, how fast each part learns, and when it ends."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch

from stepmark.cli import main
from stepmark.training import trainer as trainers
from stepmark.training.examples import by_problem
from stepmark.training.objectives.steps import HardLabels
from stepmark.training.saving import write_trained
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer, few_steps, rate_groups
from tiny_base import branching, example, net_for, write_base

torch.set_num_threads(1)

ROWS = branching()
GROUPS = by_problem(ROWS)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


def trainer_of(base, folder, *, rank=2, alpha=4.0, objective=None, dtype="float32", **settings):
    objective = objective or HardLabels()
    frozen = settings.pop("frozen_layers", 0)
    net = net_for(base, objective, rank=rank, lora_alpha=alpha, dtype=dtype, frozen_layers=frozen)
    settings = {"epochs": 1, "token_budget": 150, "learning_rate": 1e-2} | settings
    return Trainer(net, objective, Training(**asdict(net.weights), **settings), folder)


def scores(trainer):
    return [score for one in trainer.graded(GROUPS)[0] for score in one.scores if score is not None]


def quiet(progress):
    pass


# --- warm start -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    """An adapter of rank 2 that was trained, and what it scores."""
    folder = tmp_path_factory.mktemp("adapter")
    trained = trainer_of(base, folder / "run")
    trained.run(GROUPS, report=quiet)
    found = scores(trained)
    write_trained(folder / "adapter", trained.net, adapter=True, base_name=str(base), notes={})
    return folder / "adapter", found


@pytest.mark.parametrize(("rank", "alpha"), [(2, 4.0), (5, 4.0), (4, 1.0)])
def test_a_run_starts_where_the_adapter_is_whatever_the_ranks(base, adapter, tmp_path, rank, alpha):
    folder, expected = adapter
    started = trainer_of(base, tmp_path / "run", rank=rank, alpha=alpha, warm_start=str(folder))
    assert scores(started) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 5
    new = trainer_of(base, tmp_path / "run", rank=rank, alpha=alpha)
    assert set(scores(new)) == {0.5}
    # Every part of a wider adapter can learn: B is zero there, and A is not.
    wide = [m for name, m in started.net.named_parameters.items() if "lora_A" in name]
    assert all(bool((m.abs().sum(1) > 0).all()) for m in wide)
    started.run(GROUPS, report=quiet)
    assert scores(started) != pytest.approx(expected, abs=1e-5)


# --- the head's rate --------------------------------------------------------------------------------------------------


def test_the_head_has_a_rate_of_its_own(base, tmp_path):
    """The first step of AdamW moves every weight by its rate, whatever the gradient: so by the rates' ratio."""
    moved = {}
    for rate in (1.0, 0.25):
        run = trainer_of(base, tmp_path / str(rate), head_rate=rate, token_budget=10_000, warmup=0.0)
        with torch.no_grad():
            # A head of zeros sends no gradient below.
            run.net.head.weight.copy_(torch.linspace(-1, 1, run.net.hidden_size)[None])
        before = {n: p.detach().clone() for n, p in run.net.named_parameters.items()}
        run.run(GROUPS, report=quiet)
        assert run.done == 1
        moved[rate] = {
            n: float((p.detach() - before[n]).abs().max()) for n, p in run.net.named_parameters.items()
        }
    for name, far in moved[1.0].items():
        share = 0.25 if name.startswith("head.") else 1.0
        assert moved[0.25][name] == pytest.approx(share * far, rel=1e-4)
    assert any(far > 0 for name, far in moved[1.0].items() if "lora_B" in name)
    a, b, c = (torch.zeros(1) for _ in range(3))
    assert rate_groups(["x", "head.weight", "y"], [a, b, c], 0.5) == [
        {"params": [a, c], "share": 1.0},
        {"params": [b], "share": 0.5},
    ]


# --- the clock --------------------------------------------------------------------------------------------------------


class Clock:
    """Every look at it takes a while."""

    def __init__(self, tick):
        self.now, self.tick = 0.0, tick

    def monotonic(self):
        self.now += self.tick
        return self.now


def test_a_time_limit_ends_the_run_with_the_rate_of_an_end(base, tmp_path, monkeypatch):
    whole = trainer_of(base, tmp_path / "whole", epochs=8)
    steps = []
    whole.run(GROUPS, report=steps.append)
    assert len(steps) > 12
    # A step is between two looks at the clock: 6 seconds each, and half a minute holds five.
    monkeypatch.setattr(trainers, "time", Clock(6.0))
    limited = trainer_of(base, tmp_path / "limited", epochs=8, minutes=0.5)
    told = []
    limited.run(GROUPS, report=told.append)
    assert [one.step for one in told] == [1, 2, 3, 4, 5]
    assert limited.dropped.counts == {"optimizer steps that the time limit left no time for": len(steps) - 5}
    # The fifth step begins when four fifths of the time are spent.
    far = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.8))
    assert told[-1].learning_rate == pytest.approx(1e-2 * far)
    assert told[-1].seconds_left == 0.0
    assert steps[4].learning_rate > told[4].learning_rate


def test_time_before_an_interruption_counts(base, tmp_path, monkeypatch):
    monkeypatch.setattr(trainers, "time", Clock(6.0))
    first = trainer_of(base, tmp_path / "run", epochs=8, minutes=0.5, save_every=1)

    class Stop(Exception):
        pass

    def until_three(progress):
        if progress.step == 4:
            raise Stop

    with pytest.raises(Stop):
        first.run(GROUPS, report=until_three)
    again, told = trainer_of(base, tmp_path / "run", epochs=8, minutes=0.5, save_every=1), []
    again.run(GROUPS, report=told.append)
    assert [one.step for one in told] == [4, 5]


# --- the threshold ----------------------------------------------------------------------------------------------------


def rows_of(path):
    """A step with z is wrong; most are. Two steps, so that some solutions are right and some are not."""
    rows = [
        {
            "prompt": f"p{n}",
            "completions": [f"{'z' if n % 3 == 0 else 'a'} = {n}", f"{'z' if n % 3 else 'b'} = {n + 1}"][
                : 1 + n % 2
            ],
            "labels": [n % 3 != 0, n % 3 == 0][: 1 + n % 2],
        }
        for n in range(48)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_threshold_is_chosen_on_held_out_solutions(base, tmp_path):
    from stepmark.models.spec import read_spec

    data = rows_of(tmp_path / "rows.jsonl")
    words = ["train", data, "--base", base, "--dtype", "float32", "--lora-rank", 2, "--epochs", 2]
    words += ["--learning-rate", "0.005", "--held-out", "0.5", "--evaluations", 1]
    words += ["--objective", "hard", "--set", "language_weight=0.1", "--set", "language_tokens=all"]
    words += ["--lora-alpha", 3]
    for name, more in (("plain", ["--no-tune-threshold"]), ("tuned", [])):
        assert main([*map(str, words), "--out", str(tmp_path / name), *more]) == 0
    fitted = {
        name: json.loads((tmp_path / name / "calibration.json").read_text()) for name in ("plain", "tuned")
    }
    best = fitted["plain"]["best_threshold"]
    assert read_spec(tmp_path / "plain" / "stepmark.json").threshold == 0.5
    assert read_spec(tmp_path / "tuned" / "stepmark.json").threshold == best["threshold"] != 0.5
    assert fitted["tuned"]["first_errors"]["f1"] == best["f1"] > fitted["plain"]["first_errors"]["f1"]
    assert (fitted["plain"]["threshold_tuned"], fitted["tuned"]["threshold_tuned"]) == (False, True)
    notes = json.loads((tmp_path / "tuned" / "train.json").read_text())
    assert notes["settings"]["lora_alpha"] == 3.0
    assert (notes["comparison"]["threshold"], notes["comparison"]["tuned"]) == (best["threshold"], True)


@pytest.mark.parametrize(
    ("steps", "settings", "named"),
    [
        (59, Training(epochs=2, token_budget=2048), ["token_budget", "epochs"]),
        (9, Training(epochs=3, rows_per_step=64), ["rows_per_step", "epochs"]),
        (1, Training(epochs=1, rows_per_step=1), ["epochs"]),
    ],
)
def test_too_few_steps_are_named_with_the_settings_to_change(steps, settings, named):
    warning = few_steps(steps, settings)
    assert [name for name in ("token_budget", "rows_per_step", "epochs") if f"`{name}`" in warning] in (
        named,
        sorted(named),
    )
    assert few_steps(60, settings) is None


@pytest.mark.parametrize(
    ("problems", "epochs", "expected"), [(12, None, 6), (30, None, 4), (200, None, 2), (30, 1, 1)]
)
def test_a_small_set_is_read_more_often(base, tmp_path, problems, epochs, expected):
    """Until there are 120 optimizer steps, at most six times."""
    rows = [example(f"{n} + 1?", [f"{n} + 1 = {n}"], [n % 2]) for n in range(problems)]
    budget = None if problems < 200 else 60
    trainer, told = trainer_of(base, tmp_path / "run", epochs=epochs, token_budget=budget), []
    trainer.run(by_problem(rows), report=told.append)
    steps = [len(trainer.epoch(by_problem(rows), n)) for n in range(expected)]
    assert len(told) == sum(steps)
    if problems == 200:
        assert steps[0] >= 60


@pytest.mark.parametrize(("problems", "expected"), [(120, range(30, 62)), (30, [30]), (12, [12])])
def test_a_small_set_makes_thirty_steps_an_epoch(base, tmp_path, problems, expected):
    """All of these rows fit one forward pass of 2,048 tokens, or three."""
    rows = [
        example(f"{number} + 1?", [f"{number} + 1 = {number}"], [number % 2]) for number in range(problems)
    ]
    groups = by_problem(rows)
    for epoch in (0, 1):
        steps = trainer_of(base, tmp_path / "run", token_budget=None).epoch(groups, epoch)
        assert len(steps) in expected
        assert sorted(
            row.example.where for step in steps for part in step for item in part for row in item.rows
        ) == sorted(row.where for row in rows)
    # A budget or a number of rows that the user names is kept.
    assert len(trainer_of(base, tmp_path / "run", token_budget=2048).epoch(groups, 0)) <= 3
    assert len(trainer_of(base, tmp_path / "run", token_budget=None, rows_per_step=60).epoch(groups, 0)) <= 3
