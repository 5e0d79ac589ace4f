"""The training loop: accumulation, schedule, precision, evaluations, stopping, resuming, and what it learns."""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM

from stepmark.errors import CheckpointError, UsageError
from stepmark.training.examples import Dropped, by_problem
from stepmark.training.objectives.steps import HardLabels, SoftLabels
from stepmark.training.settings import Training
from stepmark.training.trainer import Trainer, schedule
from tiny_base import branching, counted, example, net_for, tokenizer, write_base

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


def trainer_for(base, folder, *, objective=None, dropped=None, weights=None, run=None, **more):
    objective = HardLabels() if objective is None else objective
    chosen = {"token_budget": 150, "learning_rate": 1e-2} | more
    net = net_for(base, objective, **(weights or {}))
    settings = Training(**asdict(net.weights), **chosen)
    return Trainer(net, objective, settings, folder, dropped=dropped, run=run)


def trained(trainer, rows, held_out=(), *, stop=None):
    """What was reported, with the weights after each step."""
    told = []

    def report(progress):
        told.append((progress, [m.clone() for m in trainer.masters]))
        if progress.step == stop:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        trainer.run(by_problem(rows), by_problem(held_out), report=report)
    return told


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


# Accumulation


def gradient_of(trainer, parts):
    """Loss, labels and gradient of one optimizer step, which is then not taken."""
    taken = []
    trainer.optimizer.step = lambda: taken.extend(m.grad.clone() for m in trainer.masters)
    loss, labels, norm = trainer._step(parts, 1e-3)
    return loss, labels, norm, taken


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accumulation_divides_once_by_all_labels(base, tmp_path, dtype):
    """Two passes of very unequal numbers of labels are one pass; the mean of two means is not."""
    trainer = trainer_for(base, tmp_path, objective=SoftLabels(), clip=1e9, weights={"dtype": dtype})
    many = [example("a", [f"x{i}" for i in range(6)], [0.0] * 6)]
    few = [example("b", ["y"], [1.0])]
    first, second = (next(iter(trainer._items([rows], Dropped(), every_step=False))) for rows in (many, few))
    loss, labels, norm, whole = gradient_of(trainer, [[first, second]])
    apart = gradient_of(trainer, [[first], [second]])
    assert (labels, apart[1]) == (7, 7)
    exact = dtype == "float32"
    assert apart[0] == pytest.approx(loss, rel=1e-6 if exact else 2e-2)
    assert apart[2] == pytest.approx(norm, rel=1e-5 if exact else 2e-2)
    means = [gradient_of(trainer, [[one]])[3] for one in (first, second)]
    for i, gradient in enumerate(whole):
        largest = gradient.abs().max().item()
        torch.testing.assert_close(apart[3][i], gradient, rtol=0, atol=(1e-5 if exact else 3e-2) * largest)
    # What the division by labels of each pass would have given is far from it.
    wrong = torch.cat([((a + b) / 2).flatten() for a, b in zip(*means, strict=True)])
    right = torch.cat([g.flatten() for g in whole])
    assert (wrong - right).norm() > 0.3 * right.norm()


# What is trained


def test_gradient_checkpointing_gives_the_same_gradients(base, tmp_path):
    for rank in (4, None):
        found = []
        for on in (False, True):
            weights = {"rank": rank, "gradient_checkpointing": on}
            trainer = trainer_for(base, tmp_path, clip=1e9, weights=weights)
            assert trainer.net.backbone.is_gradient_checkpointing == on
            torch.manual_seed(1)
            for parameter in trainer.parameters:
                parameter.data.add_(torch.randn(parameter.shape) * 0.02)
            items = list(trainer._items(by_problem(branching(2)), Dropped(), every_step=False))
            found.append(gradient_of(trainer, [items]))
        assert found[0][:2] == pytest.approx(found[1][:2])
        for one, other in zip(found[0][3], found[1][3], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def moved(base, tmp_path, **weights):
    """Names of what a run changed, and of what it was to train."""
    trainer = trainer_for(base, tmp_path, epochs=2, weights=weights)
    net = trainer.net
    everything = dict(net.model.named_parameters()) | {f"head.{n}": p for n, p in net.head.named_parameters()}
    before = {name: p.detach().clone() for name, p in everything.items()}
    trained(trainer, branching(3))
    frozen = {name for name, p in everything.items() if not p.requires_grad}
    assert all(everything[name].grad is None for name in everything)
    assert frozen.isdisjoint(net.named_parameters)
    return {name for name, p in everything.items() if not torch.equal(p, before[name])}, net.named_parameters


def test_only_upper_layers_and_the_head_are_trained_with_lora(base, tmp_path):
    changed, trained_ = moved(base, tmp_path, frozen_layers=1)
    assert changed == set(trained_)
    assert len(changed) == 2 * 7 + 2  # two matrices on seven linear layers, and the head
    assert all(".layers.1." in n and ".lora_" in n for n in changed if not n.startswith("head."))


def test_only_upper_layers_and_the_head_are_trained_with_all_weights(base, tmp_path):
    changed, trained_ = moved(base, tmp_path, rank=None, frozen_layers=1)
    assert changed == set(trained_)
    assert {n.split(".")[0] for n in changed} == {"head", "layers", "norm"}
    assert {n.split(".")[1] for n in changed if n.startswith("layers")} == {"1"}


def test_lora_is_on_every_linear_layer_whatever_its_name(tmp_path):
    """Phi 3 joins projections that Llama has apart; an adapter of half of the layers would say nothing."""
    words = tokenizer()
    config = Phi3Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=2,
    )
    Phi3ForCausalLM(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    net = net_for(tmp_path, HardLabels())
    names = {n.split(".lora_")[0].split("layers.")[1] for n in net.named_parameters if "lora_" in n}
    kinds = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    assert names == {f"{layer}.{kind}" for layer in (0, 1) for kind in kinds}


def test_bfloat16_moves_by_updates_that_it_cannot_hold(base, tmp_path):
    """A thousandth of a weight is less than bfloat16's last digit; a hundred of them are not."""
    trainer = trainer_for(
        base, tmp_path, weights={"dtype": "bfloat16", "rank": None}, learning_rate=2e-5, epochs=12, warmup=0
    )
    at = list(trainer.net.named_parameters).index("layers.1.mlp.up_proj.weight")
    parameter = trainer.parameters[at]
    assert parameter.dtype == torch.bfloat16
    assert trainer.masters[at].dtype == torch.float32
    before = parameter.detach().clone()
    told = trained(trainer, branching(4))
    # The head begins at zero, so nothing reaches the layers in the first step.
    first = told[1][1][at]
    # Then the master moves everywhere, and the copy that computes hardly anywhere: its digits are too coarse.
    assert (first != before.float()).float().mean() > 0.9
    assert (first.bfloat16() != before).float().mean() < 0.1
    # Updates made in bfloat16 itself would be lost each time; these are not.
    assert (parameter != before).float().mean() > 5 * (first.bfloat16() != before).float().mean()
    torch.testing.assert_close(parameter.detach(), trainer.masters[at].bfloat16(), rtol=0, atol=0)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    rates = [schedule(step, 100, 0.1) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert all(a > b for a, b in pairwise(rates[9:]))
    assert rates[54] == pytest.approx(0.55)  # halfway down the cosine
    assert rates[-1] == pytest.approx(0.1)


def test_epochs_are_shuffled_alike_by_the_same_seed(base, tmp_path):
    groups = by_problem(branching(30, seed=1))

    def problems(trainer, number):
        return [i.problem for step in trainer.epoch(groups, number) for part in step for i in part]

    trainer = trainer_for(base, tmp_path)
    assert problems(trainer, 0) == problems(trainer, 0)
    assert problems(trainer, 0) != problems(trainer, 1)
    assert set(problems(trainer, 0)) == {group[0].solution.problem.text for group in groups}


def test_a_loss_that_is_no_number_stops_the_run_before_it_spreads(base, tmp_path):
    trainer = trainer_for(base, tmp_path)
    with torch.no_grad():
        trainer.net.head.bias.fill_(math.nan)
    kept = [m.clone() for m in trainer.masters[:-1]]
    with pytest.raises(CheckpointError, match="the loss of step 1 is nan; lower the learning rate"):
        trained(trainer, branching(1))
    same(trainer.masters[:-1], kept)


# Evaluations and stopping


def steps_of(count, epochs=1):
    """Rows that make `count` steps an epoch: of each problem a tree of more than half the budget."""
    text = "y = 1, " * 4
    return [example(f"p{i}", [f"{text} {i}"], [float(i % 2)]) for i in range(count)]


SINGLE = {"token_budget": 40}


@pytest.mark.parametrize(
    ("steps", "evaluations", "wanted"),
    [
        (12, 4, [3, 6, 9, 12]),
        (12, 5, [2, 5, 7, 10, 12]),
        (5, 9, [1, 2, 3, 4, 5]),
        (7, 1, [7]),
    ],
)
def test_held_out_problems_are_measured_evenly_and_at_the_end(base, tmp_path, steps, evaluations, wanted):
    trainer = trainer_for(base, tmp_path, epochs=1, evaluations=evaluations, **SINGLE)
    told = trained(trainer, steps_of(steps), steps_of(2))
    assert [p.step for p, _ in told] == list(range(1, steps + 1))
    assert {p.steps for p, _ in told} == {steps}
    assert [p.step for p, _ in told if p.held_out is not None] == wanted


def test_what_is_measured_is_the_network_at_that_step(base, tmp_path):
    """Held-out loss and AUC from scores worked out row by row, by transformers' own attention."""
    trainer = trainer_for(base, tmp_path, objective=SoftLabels(), epochs=1, evaluations=1)
    held = branching(3, seed=5, make=lambda dice: counted(dice.choice([0, 1, 4]), 4))
    told = trained(trainer, branching(3), held)
    found = told[-1][0].held_out
    net = trainer.net
    net.train(False)
    net.backbone.set_attn_implementation("sdpa")
    pairs = []
    for e in held:
        encoded = net.encoder.encode(e.solution)
        with torch.no_grad():
            ids = torch.from_numpy(encoded.ids)[None]
            states = net.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        for read, target in zip(encoded.reads, e.targets, strict=True):
            if target is not None:
                pairs.append((net.head(states[read]).item(), target.value))
    losses = [v * math.log1p(math.exp(-z)) + (1 - v) * math.log1p(math.exp(z)) for z, v in pairs]
    assert found.labels == len(pairs)
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    right = [z for z, v in pairs if v > 0.5]
    wrong = [z for z, v in pairs if v < 0.5]
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in right for b in wrong)
    assert found.auc == pytest.approx(wins / (len(right) * len(wrong)), abs=1e-6)


def opposed():
    """Held-out labels that say the opposite of the training labels: the more is learnt, the worse."""
    rows = [example(f"p{i}", ["y = 1, " * 4 + "ab"[i % 2]], [float(i % 2)]) for i in range(12)]
    against = [example(f"h{i}", ["y = 1, " * 4 + "ab"[i % 2]], [1.0 - i % 2]) for i in range(4)]
    return rows, against


def test_early_stopping_keeps_the_best_weights_and_stops(base, tmp_path):
    rows, against = opposed()
    patient = trainer_for(base, tmp_path / "a", epochs=2, evaluations=12, patience=3, **SINGLE)
    told = trained(patient, rows, against)
    measured = [(p.step, p.held_out.loss, weights) for p, weights in told if p.held_out is not None]
    losses = [loss for _, loss, _ in measured]
    best = min(range(len(losses)), key=losses.__getitem__)
    # Three evaluations in a row without a better one, and not a step more.
    assert len(losses) == best + 4 < 12
    assert told[-1][0].step == measured[-1][0]
    same(patient.masters, measured[best][2])
    assert any(not torch.equal(a, b) for a, b in zip(measured[-1][2], patient.masters, strict=True))
    assert patient.measured(by_problem(against)).loss == pytest.approx(losses[best], rel=1e-6)
    same([p.detach() for p in patient.parameters], patient.masters)
    # Without patience it runs to its end and keeps the last.
    whole = trainer_for(base, tmp_path / "b", epochs=2, evaluations=12, **SINGLE)
    told = trained(whole, rows, against)
    assert told[-1][0].step == 24
    same(whole.masters, told[-1][1])
    # A run that stopped and is started again does nothing and ends alike.
    again = trainer_for(base, tmp_path / "a", epochs=2, evaluations=12, patience=3, **SINGLE)
    assert trained(again, rows, against) == []
    same(again.masters, patient.masters)


# Interrupted runs

RESUMED = {"epochs": 3, "token_budget": 100, "save_every": 3, "evaluations": 4}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(base, tmp_path, dtype):
    rows, held = branching(4), branching(2, seed=7)

    def run(name, stop=None, **more):
        trainer = trainer_for(base, tmp_path / name, weights={"dtype": dtype}, **RESUMED, **more)
        return trainer, trained(trainer, rows, held, stop=stop)

    whole, told = run("whole")
    steps = [p.step for p, _ in told]
    due = [p.step for p, _ in told if p.held_out is not None]
    assert len(steps) >= 12
    assert steps == list(range(1, len(steps) + 1))
    run("cut", stop=1)  # before the first state
    run("cut", stop=5)  # in the middle
    run("cut", stop=due[2])  # just after an evaluation, whose state is not there yet
    resumed, rest = run("cut", stop=due[2] + 1)  # after the state of an evaluation
    assert rest[-1][0].step == due[2] + 1
    resumed, rest = run("cut")
    saved = {s for s in steps if s % 3 == 0} | set(due)
    assert rest[0][0].step == max(s for s in saved if s <= due[2] + 1) + 1
    same(resumed.masters, whole.masters)
    same([p.detach() for p in resumed.parameters], [p.detach() for p in whole.parameters])
    for (a, _), (b, _) in zip(rest, told[-len(rest) :], strict=True):
        assert (a.step, a.loss, a.gradient, a.held_out) == (b.step, b.loss, b.gradient, b.held_out)
    assert sorted(f.name for f in (tmp_path / "cut").iterdir()) == ["run.json", "state.pt"]


def test_an_interrupted_run_with_patience_keeps_the_same_best(base, tmp_path):
    rows, against = opposed()
    chosen = {"epochs": 2, "evaluations": 12, "patience": 3, "save_every": 100} | SINGLE

    def run(name, stop=None):
        trainer = trainer_for(base, tmp_path / name, **chosen)
        return trainer, trained(trainer, rows, against, stop=stop)

    whole, told = run("whole")
    for stop in (2, 3, 4, 5):
        run("cut", stop=stop)
    resumed, rest = run("cut")
    assert rest[-1][0].step == told[-1][0].step
    assert (resumed.best[0], resumed.waited) == (whole.best[0], whole.waited)
    same(resumed.best[1], whole.best[1])
    same(resumed.masters, whole.masters)


def test_a_state_of_another_run_is_refused(base, tmp_path):
    rows = branching(4)
    trained(trainer_for(base, tmp_path, run={"seed": 0}, **RESUMED), rows, stop=4)
    with pytest.raises(UsageError, match=r"made otherwise: seed was 0 and is now 7\. Run"):
        trained(trainer_for(base, tmp_path, run={"seed": 7}, **RESUMED), rows)
    # A state without a word on what it is, as versions before left it.
    (tmp_path / "run.json").unlink()
    with pytest.raises(UsageError, match=r"nothing says of which\. Delete .* to start again"):
        trained(trainer_for(base, tmp_path, **RESUMED), rows)
