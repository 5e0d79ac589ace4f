"""Implicit PRMs in training: against transformers' full logits row by row, and a planted rule learnt from outcomes alone."""

from __future__ import annotations

import json
import random

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call
from transformers import LlamaForCausalLM

from stepmark import load_prm
from stepmark.data.formats.rows import LabelledRow
from stepmark.models.spec import LogRatioHead, TextLayout
from stepmark.records import LabelledSolution, Solution
from stepmark.training.examples import Dropped, by_problem
from stepmark.training.net import Net
from stepmark.training.objectives.implicit import ImplicitCrossEntropy, ImplicitDPO, LogRatios
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training
from tiny_base import branching, example, weights_of, write_base

torch.set_num_threads(1)

TEXT = TextLayout(opening="{problem}\n", mark="\n\n", special_tokens=False)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request, tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"), tied=request.param)


def net_of(base, objective, **weights):
    net = Net(base, objective.spec(TEXT, str(base)), weights_of(**weights), max_tokens=200, seed=0)
    net.set_head(objective.head(net))
    return net


def moved(net, seed=5):
    """The policy away from its reference."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.named_parameters.values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=dice))
    return net


def items(objective, net, rows, *, every_step=True, budget=4000, dropped=None):
    dropped = Dropped() if dropped is None else dropped
    return [
        item
        for group in by_problem(rows)
        for item in objective.items(group, net, budget=budget, dropped=dropped, every_step=every_step)
    ]


class Plain:
    """Policy and reference as two ordinary causal language models, one row at a time, every logit made."""

    def __init__(self, base, net):
        self.net, self.model = net, LlamaForCausalLM.from_pretrained(base, attn_implementation="eager")
        self.frozen = {name: weight.detach() for name, weight in self.model.named_parameters()}
        own = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters.items()}
        self.own, self.policy = own, dict(self.frozen)
        if net.weights.full:
            for name, parameter in own.items():
                self.policy["lm_head.weight" if name == "output" else f"model.{name}"] = parameter
            return
        scale = net.weights.alpha / net.weights.lora_rank
        for name in [n for n in own if ".lora_A." in n]:
            bare = name.removeprefix("base_model.model.").replace(".lora_A.default", "")
            up = own[name.replace(".lora_A.", ".lora_B.")]
            self.policy[f"model.{bare}"] = self.frozen[f"model.{bare}"] + scale * up @ own[name]

    def logprobs(self, weights, ids):
        """Of each token but the first."""
        logits = functional_call(self.model, weights, (torch.tensor([ids]),)).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]

    def ratios(self, solution):
        """[answer tokens], and for each step the number of tokens up to its end."""
        encoded = self.net.encoder.encode(solution)
        ids = encoded.ids.tolist()
        with torch.no_grad():
            reference = self.logprobs(self.frozen, ids)
        every = self.logprobs(self.policy, ids) - reference
        return every[encoded.answer - 1 :], [read - encoded.answer + 1 for read in encoded.reads]


def close(ours, plain):
    for name, parameter in ours.items():
        assert parameter.grad is not None, name
        largest = float(plain[name].grad.abs().max())
        assert largest > 0, name
        torch.testing.assert_close(parameter.grad, plain[name].grad, rtol=1e-4, atol=1e-4 * largest)


@pytest.mark.parametrize("rank", [4, None], ids=["lora", "all weights"])
def test_cross_entropy_is_that_of_separate_rows_with_full_logits(base, rank):
    objective = ImplicitCrossEntropy(beta=0.3)
    net = moved(net_of(base, objective, rank=rank))
    rows = branching(2, seed=1)
    batch = items(objective, net, rows)
    assert sum(len(i.tree) for i in batch) < sum(len(r.path) for i in batch for r in i.rows), "nothing shared"
    fitted = objective.fit(net, batch)
    fitted.loss.backward()

    plain, total = Plain(base, net), torch.zeros(())
    for row in rows:
        q = 0.3 * plain.ratios(row.solution)[0].sum()
        total = total + F.binary_cross_entropy_with_logits(q, torch.tensor(float(row.outcome)))
    total.backward()
    assert fitted.labels == len(rows)
    assert fitted.loss.item() == pytest.approx(total.item(), rel=1e-5)
    close(net.named_parameters, plain.own)


@pytest.mark.parametrize("rank", [4, None], ids=["lora", "all weights"])
def test_dpo_is_that_of_all_pairs_and_weighs_as_many_as_are_disjoint(base, rank):
    objective = ImplicitDPO(beta=0.3)
    net = moved(net_of(base, objective, rank=rank))
    rows = branching(2, seed=1)
    dropped = Dropped()
    fitted = objective.fit(net, items(objective, net, rows, every_step=False, dropped=dropped))
    fitted.loss.backward()

    plain, total, labels, alone = Plain(base, net), torch.zeros(()), 0, 0
    for group in by_problem(rows):
        q = {True: [], False: []}
        for row in group:
            q[row.outcome].append(0.3 * plain.ratios(row.solution)[0].sum())
        pairs = [-F.logsigmoid(right - wrong) for right in q[True] for wrong in q[False]]
        alone += 0 if pairs else len(group)
        if pairs:
            labels += min(map(len, q.values()))
            total = total + torch.stack(pairs).mean() * min(map(len, q.values()))
    total.backward()
    assert labels > 0
    assert fitted.labels == labels
    assert sum(dropped.counts.values()) == alone
    assert fitted.loss.item() == pytest.approx(total.item(), rel=1e-5)
    close(net.named_parameters, plain.own)


def test_scores_are_the_log_ratio_summed_to_each_step(base):
    objective = ImplicitCrossEntropy(beta=0.3)
    net = moved(net_of(base, objective))
    batch = items(objective, net, branching(2, seed=3))
    fitted = objective.fit(net, batch)
    plain, at = Plain(base, net), 0
    for item in batch:
        for row in item.rows:
            ratios, ends = plain.ratios(row.example.solution)
            expected = [0.3 * ratios[:end].sum().item() for end in ends]
            assert [fitted.scores[at + r] for r in row.reads] == pytest.approx(expected, abs=1e-4)
        at += len(item.reads)
    assert len(fitted.scores) == at


def test_the_reference_stays_and_is_computed_once(base, monkeypatch):
    objective = ImplicitCrossEntropy()
    net = net_of(base, objective, rank=None)
    batch = items(objective, net, branching(2))
    before = [net.head.reference(item).copy() for item in batch]
    moved(net)
    monkeypatch.setattr(LogRatios, "_computed", lambda *_: pytest.fail("computed again"))
    again = items(objective, net, branching(2))
    for old, item in zip(before, again, strict=True):
        assert (net.head.reference(item) == old).all()
    monkeypatch.undo()
    fresh = LogRatios(net)
    for old, item in zip(before, batch, strict=True):
        assert fresh.reference(item) == pytest.approx(old, abs=1e-5), "the frozen copy moved with the policy"


def test_what_cannot_be_fitted_is_counted_and_named(base):
    rows = [
        example("p", ["a"], [None], outcome=True, where="f:1"),
        example("p", ["b"], [1.0], where="f:2"),
        example("q", ["a"], [None], outcome=True, where="f:3"),
        example("q", ["b"], [None], outcome=False, where="f:4"),
    ]
    for objective, expected in (
        (ImplicitCrossEntropy(), {"rows without an outcome": "f:2"}),
        (
            ImplicitDPO(),
            {
                "rows without an outcome": "f:2",
                "solutions without one of the other outcome in the same tree": "f:1",
            },
        ),
    ):
        dropped = Dropped()
        found = items(objective, net_of(base, objective), rows, every_step=False, dropped=dropped)
        assert dropped.first == expected
        assert set(dropped.counts.values()) == {1}
        assert sum(len(item.rows) for item in found) == 4 - len(expected)


# A planted rule: a step with z is a mistake, and nobody says which step was one.


def planted(seed, problems=24, rows=6):
    dice = random.Random(seed)
    made = []
    for p in range(problems):
        for _ in range(rows):
            steps = [f"{dice.choice('abc')} = {dice.randint(1, 4)}" for _ in range(3)]
            wrong = dice.randrange(3) if dice.random() < 0.5 else None
            if wrong is not None:
                steps[wrong] = f"z = {dice.randint(1, 4)}"
            made.append((f"problem {seed} {p}", steps, wrong))
    return made


def rows_of(solutions):
    return [
        LabelledRow(
            labelled=LabelledSolution(solution=Solution.of(problem, steps), judgements=((),) * len(steps)),
            where=f"planted:{i}",
            outcome=wrong is None,
        )
        for i, (problem, steps, wrong) in enumerate(solutions)
    ]


@pytest.mark.parametrize("objective", [ImplicitCrossEntropy(), ImplicitDPO()], ids=lambda o: o.name)
def test_outcomes_alone_find_the_wrong_step(tmp_path, objective):
    base = write_base(tmp_path / "base")
    settings = Training(
        **({"full": True} if objective.name.endswith("ce") else {"lora_rank": 8, "lora_alpha": 32.0}),
        dtype="float32",
        device="cpu",
        layout="text",
        learning_rate=2e-3 if objective.name.endswith("ce") else 5e-3,
        epochs=8,
        token_budget=1500,
        held_out=0.2,
        evaluations=1,
    )
    done = run_recipe(
        rows_of(planted(1)),
        tmp_path / "prm",
        Recipe(base=str(base), objective=objective, training=settings),
        report=lambda progress: None,
    )
    assert done.held_out is not None
    assert done.held_out.auc > 0.9
    assert done.held_out.first_error_f1 is None, "no step has a label"

    spec = json.loads((done.folder / "stepmark.json").read_text())
    assert spec["readout"]["head"] == {
        "kind": "log-ratio",
        "beta": objective.beta,
        "per_step": False,
        "reference": str(base.resolve()),
    }
    prm = load_prm(str(done.folder), dtype="float32")
    assert (prm.score_kind, prm.default_threshold) == ("log-ratio", 0.0)
    assert isinstance(prm.spec.readout.head, LogRatioHead)
    found, wrongs = 0, 0
    for problem, steps, wrong in planted(2, problems=6):
        q = prm.score(problem, steps=steps)
        if wrong is not None:
            rewards = [b - a for a, b in zip([0.0, *q], q, strict=False)]
            wrongs += 1
            found += min(range(3), key=rewards.__getitem__) == wrong
    assert found >= 0.9 * wrongs > 10
