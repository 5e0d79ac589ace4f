"""Every objective's loss against numbers worked out apart, and packed trees against separate rows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.errors import InputError
from stepmark.training.examples import Dropped, Target, by_problem
from stepmark.training.objectives import OBJECTIVES
from stepmark.training.objectives.steps import (
    BetaBinomial,
    CrossEntropy,
    HardLabels,
    Outcome,
    SoftLabels,
    SquaredError,
    TargetTokens,
    ThreeClass,
)
from stepmark.training.packing import items_of
from tiny_base import LAYOUT, branching, counted, example, net_for, rated, write_base

torch.set_num_threads(1)


def losses(objective, logits, targets):
    return objective.loss_of(torch.tensor(logits), targets).tolist()


def p_of(z):
    return 1 / (1 + math.exp(-z))


def log_softmax(row, at):
    return row[at] - math.log(sum(math.exp(z) for z in row))


# By hand


def test_hard_by_hand():
    """Logit ln 3 is P = 3/4."""
    ln3 = math.log(3)
    targets = [Target(value=v) for v in (1.0, 0.0, 0.25, 0.0)]
    found = losses(HardLabels(), [[ln3], [ln3], [ln3], [-ln3]], targets)
    assert found == pytest.approx([-math.log(3 / 4), -math.log(1 / 4), -math.log(3 / 4), -math.log(3 / 4)])
    # One success in four is right at `above` 0 and wrong at 0.25, which it is not above.
    assert losses(HardLabels(above=0.25), [[ln3]], targets[2:3]) == pytest.approx([-math.log(1 / 4)])
    assert HardLabels().score_of(torch.tensor([[ln3]])).tolist() == pytest.approx([0.75])


def test_soft_and_squared_error_by_hand():
    ln3 = math.log(3)
    targets = [Target(value=v) for v in (0.0, 0.25, 0.75, 1.0)]
    logits = [[ln3]] * 4
    cross = [-(v * math.log(3 / 4) + (1 - v) * math.log(1 / 4)) for v in (0, 0.25, 0.75, 1)]
    assert losses(SoftLabels(), logits, targets) == pytest.approx(cross)
    assert losses(SquaredError(), logits, targets) == pytest.approx([0.5625, 0.25, 0.0, 0.0625], abs=1e-6)
    assert SoftLabels().score_of(torch.tensor(logits)).tolist() == pytest.approx([0.75] * 4)


def test_cross_entropy_by_hand():
    """Logits (ln 1, ln 4): probabilities 1/5 and 4/5, class 1 right."""
    row = [0.0, math.log(4)]
    targets = [Target(value=1.0), Target(value=0.0), Target(value=0.5)]
    for objective in (CrossEntropy(), TargetTokens()):
        found = losses(objective, [row] * 3, targets)
        assert found == pytest.approx([-math.log(4 / 5), -math.log(1 / 5), -math.log(4 / 5)])
        assert objective.score_of(torch.tensor([row])).tolist() == pytest.approx([0.8])


@pytest.mark.parametrize("objective", [ThreeClass(), TargetTokens(candidates=("-", "0", "+"))])
def test_three_classes_by_hand(objective):
    """Logits ln 1, ln 2, ln 5: one eighth, two eighths, five eighths."""
    row = [0.0, math.log(2), math.log(5)]
    found = losses(objective, [row] * 3, [rated(-1), rated(0), rated(1)])
    assert found == pytest.approx([-math.log(1 / 8), -math.log(2 / 8), -math.log(5 / 8)])
    assert objective.score_of(torch.tensor([row])).tolist() == pytest.approx([7 / 8])  # neutral is no error


def rising(x, n):
    """x (x + 1) … (x + n - 1)."""
    result = Fraction(1)
    for i in range(n):
        result *= x + i
    return result


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 16), st.data())
def test_beta_binomial_by_rising_factorials(a, b, trials, data):
    """B(s + a, f + b) / B(a, b) is a(a+1)… b(b+1)… over (a+b)(a+b+1)…, exactly in fractions."""
    successes = data.draw(st.integers(0, trials))
    chance = rising(Fraction(a), successes) * rising(Fraction(b), trials - successes)
    chance /= rising(Fraction(a + b), trials)
    logits = [[math.log(b), math.log(a)]]
    found = losses(BetaBinomial(), logits, [counted(successes, trials)])
    assert found == pytest.approx([-math.log(chance)], rel=1e-5, abs=1e-5)
    assert BetaBinomial().score_of(torch.tensor(logits)).tolist() == pytest.approx([a / (a + b)])


def test_beta_binomial_stays_finite_far_out():
    logits = torch.tensor([[40.0, -40.0], [-40.0, 40.0], [40.0, 40.0]], requires_grad=True)
    loss = BetaBinomial().loss_of(logits, [counted(32, 32), counted(0, 32), counted(16, 32)])
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(logits.grad).all()


def test_outcome_by_hand():
    one = example("p", ["a", "b"], [rated(-1), None], outcome=True)
    wanted = Outcome().wanted(one)
    assert wanted.targets == (None, Target(value=1.0))
    assert Outcome().wanted(example("p", ["a"], [1.0])).targets == (None,)
    assert Outcome().wanted(example("p", ["a"], [1.0], outcome=False)).targets == (Target(value=0.0),)
    found = losses(Outcome(), [[math.log(3)], [math.log(3)]], [Target(value=1.0), Target(value=0.0)])
    assert found == pytest.approx([-math.log(3 / 4), -math.log(1 / 4)])


def test_labels_of_another_kind_are_refused_with_their_place():
    share = example("p", ["a"], [0.3], where="f:7")
    with pytest.raises(InputError, match=r"f:7.*needs \(successes, trials\).*0\.3"):
        BetaBinomial().wanted(share)
    for objective in (ThreeClass(), TargetTokens(candidates=("-", "0", "+"))):
        with pytest.raises(InputError, match=r"f:7.*ratings"):
            objective.wanted(share)
    assert TargetTokens().wanted(share) == share


# Packed trees against separate rows


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("untied"), tied=False)


def shares(dice):
    return counted(dice.randint(0, 4), 4)


def ratings(dice):
    return rated(dice.choice([-1, 0, 1]))


CASES = {
    "hard": (HardLabels(), shares),
    "ce": (CrossEntropy(), shares),
    "ce-mlp": (CrossEntropy(kind="mlp"), shares),
    "soft": (SoftLabels(), shares),
    "mse": (SquaredError(), shares),
    "beta-binomial": (BetaBinomial(), shares),
    "three-class": (ThreeClass(), ratings),
    "target-tokens": (TargetTokens(), shares),
    "three-tokens": (TargetTokens(candidates=("-", "0", "+")), ratings),
    "outcome": (Outcome(), ratings),
}


def by_row(name, z, target):
    """The loss of one label, in other words than the library's."""
    v = target.value
    if name in ("hard", "outcome"):
        return F.softplus(-z[0]) if v > 0 else F.softplus(z[0])
    if name == "soft":
        return v * F.softplus(-z[0]) + (1 - v) * F.softplus(z[0])
    if name == "mse":
        return (1 / (1 + torch.exp(-z[0])) - v) ** 2
    if name in ("ce", "ce-mlp", "target-tokens"):
        return torch.logsumexp(z, 0) - z[1 if v > 0 else 0]
    if name in ("three-class", "three-tokens"):
        return torch.logsumexp(z, 0) - z[target.rating + 1]
    assert name == "beta-binomial"
    b, a = torch.exp(z)
    s, n = target.successes, target.trials
    loss = sum(torch.log(a + b + i) for i in range(n))
    return loss - sum(torch.log(a + i) for i in range(s)) - sum(torch.log(b + i) for i in range(n - s))


def scramble(net):
    """Weights in which nothing is zero: the head and LoRA's second matrix begin there."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in net.named_parameters.items():
            if "lora_" in name or name.startswith("head."):
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) * (0.05 if "lora_" in name else 0.2)
                )


def gradients(net):
    found = {name: p.grad.clone() for name, p in net.named_parameters.items() if p.grad is not None}
    for parameter in net.named_parameters.values():
        parameter.grad = None
    return found


def packed(net, objective, rows, budget):
    """Sum of losses, labels and gradients of packed trees, several passes."""
    items = [
        item
        for group in by_problem(rows)
        for item in items_of(
            [objective.wanted(e) for e in group],
            net.encoder,
            budget=budget,
            dropped=Dropped(),
            outcomes=objective.outcomes,
        )
    ]
    loss, labels = 0.0, 0.0
    for at in range(0, len(items), 2):
        fitted = objective.fit(net, items[at : at + 2])
        fitted.loss.backward()
        loss, labels = loss + fitted.loss.item(), labels + fitted.labels
    return loss, labels, items, gradients(net)


def separate(net, name, objective, rows):
    """The same in float64, one row at a time by transformers' own attention; logits of tokens from the table directly."""
    net.model.double()
    net.head.double()
    net.backbone.set_attn_implementation("sdpa")
    words = net.tokenizer
    loss, labels = 0.0, 0
    for one_row in rows:
        row = objective.wanted(one_row)
        encoded = net.encoder.encode(row.solution)
        states = net.model(input_ids=torch.from_numpy(encoded.ids)[None], use_cache=False)
        states = states.last_hidden_state[0]
        for read, target in zip(encoded.reads, row.targets, strict=True):
            if target is None:
                continue
            if isinstance(objective, TargetTokens):
                ids = [words.convert_tokens_to_ids(text) for text in objective.candidates]
                own = net.named_parameters.get("output", None if net.tied else net.output())
                table = own if own is not None else net.backbone.get_input_embeddings().weight
                logits = table[ids].double() @ states[read]
            else:
                logits = net.head(states[read])
            one = by_row(name, logits, target)
            one.backward(retain_graph=True)
            loss, labels = loss + one.item(), labels + 1
    return loss, labels, gradients(net)


@pytest.mark.parametrize("rank", [4, None], ids=["lora", "all"])
@pytest.mark.parametrize(("name", "tied"), [*((name, "base") for name in CASES), ("target-tokens", "untied")])
def test_packed_trees_give_the_gradients_of_separate_rows(request, name, tied, rank):
    objective, make = CASES[name]
    net = net_for(request.getfixturevalue(tied), objective, rank=rank)
    net.set_head(objective.head(net))
    # The rows of an untied head are trained with all weights and stay with LoRA.
    assert ("output" in net.named_parameters) == (tied == "untied" and rank is None)
    scramble(net)
    rows = branching(2, make=make)
    loss, labels, items, ours = packed(net, objective, rows, budget=70)
    assert len(items) > 2  # problems are cut over several trees
    if name != "outcome":
        assert max(w for item in items for w in item.weights) >= 2  # rows share labelled steps
    apart, count, theirs = separate(net, name, objective, rows)
    assert labels == count
    assert loss == pytest.approx(apart, rel=1e-5)
    assert ours.keys() == theirs.keys()
    assert len(theirs) >= 2 * 9
    for key, gradient in theirs.items():
        largest = gradient.abs().max().item()
        assert largest > 0, key
        torch.testing.assert_close(ours[key].double(), gradient.double(), rtol=0, atol=1e-4 * largest)


# Refused before anything is loaded


@pytest.mark.parametrize("name", ["hard", "ce", "soft", "mse", "beta-binomial", "three-class", "outcome"])
def test_the_catalog_has_them_and_their_heads_begin_undecided(base, name):
    objective = OBJECTIVES.load(name)()
    assert objective.name == name
    net = net_for(base, objective)
    net.set_head(objective.head(net))
    classes = net.head(torch.randn(3, net.hidden_size))
    assert torch.equal(classes, torch.zeros_like(classes))
    assert objective.spec(LAYOUT, "b").readout.activation in ("sigmoid", "softmax")
