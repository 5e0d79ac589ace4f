"""The head that reads the step's tokens: features by hand, training against transformers row by row, and one reading in every way of grading."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from stepmark import load_prm
from stepmark.backends import ScoreRequest
from stepmark.data.formats.rows import LabelledRow
from stepmark.errors import CheckpointError, UsageError
from stepmark.models.spec import TextLayout
from stepmark.models.token_head import token_features
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.training.examples import Dropped, by_problem
from stepmark.training.net import Net
from stepmark.training.objectives.published import in_family
from stepmark.training.objectives.steps import CrossEntropy, HardLabels, Outcome, ThreeClass
from stepmark.training.packing import step_tokens
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training
from tiny_base import branching, example, weights_of, write_base

torch.set_num_threads(1)

TEXT = TextLayout(opening="{problem}\n", mark="\n", special_tokens=False)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request, tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"), tied=request.param)


def net_of(base, objective, **weights):
    net = Net(base, objective.spec(TEXT, str(base)), weights_of(**weights), max_tokens=200, seed=0)
    net.set_head(objective.head(net))
    dice = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in net.head.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=dice))
    return net


def items(objective, net, rows):
    return [
        item
        for group in by_problem(rows)
        for item in objective.items(group, net, budget=4000, dropped=Dropped(), every_step=True)
    ]


def plain_inputs(model, ids, spans):
    """What the head reads of each step [begin, end), the last token its mark, from a whole language model: [steps, 4 + hidden]."""
    out = model(torch.tensor([ids]), output_hidden_states=True)
    logprobs = torch.log_softmax(out.logits[0, :-1].float(), -1).gather(-1, torch.tensor(ids[1:])[:, None])[
        :, 0
    ]
    rows = []
    for begin, end in spans:
        own = logprobs[begin - 1 : end - 2]
        numbers = torch.stack([own.min(), own.mean(), own.sum(), torch.tensor(float(len(own))).log()])
        rows.append(torch.cat([numbers, out.hidden_states[-1][0, end - 1].float()]))
    return torch.stack(rows)


def spans_of(encoded):
    ends = [read + 1 for read in encoded.reads]
    return list(pairwise([encoded.answer, *ends]))


def test_features_by_hand():
    numbers = token_features(torch.tensor([-1.0, -3.0, -0.5]), [2, 1]).tolist()
    assert numbers[0] == pytest.approx([-3.0, -2.0, -4.0, math.log(2)])
    assert numbers[1] == pytest.approx([-0.5, -0.5, -0.5, 0.0])
    with pytest.raises(CheckpointError):
        token_features(torch.tensor([-1.0]), [1, 0])


@pytest.mark.parametrize("rank", [4, None], ids=["lora", "all weights"])
def test_loss_and_gradient_are_those_of_separate_rows(base, rank):
    objective = HardLabels(token_features=True)
    net = net_of(base, objective, rank=rank)
    rows = branching(2, seed=1)
    batch = items(objective, net, rows)
    assert sum(len(i.tree) for i in batch) < sum(len(r.path) for i in batch for r in i.rows), "nothing shared"
    fitted = objective.fit(net, batch)
    fitted.loss.backward()

    model = LlamaForCausalLM.from_pretrained(base, attn_implementation="eager")
    weight, bias = (p.detach().clone().requires_grad_() for p in (net.head.weight, net.head.bias))
    total, labels = torch.zeros(()), 0
    for row in rows:
        encoded = net.encoder.encode(row.solution)
        logits = F.linear(plain_inputs(model, encoded.ids.tolist(), spans_of(encoded)), weight, bias)[:, 0]
        for logit, target in zip(logits, row.targets, strict=True):
            if target is not None:
                total = total + F.binary_cross_entropy_with_logits(
                    logit, torch.tensor(float(target.value > 0))
                )
                labels += 1
    total.backward()
    assert fitted.labels == labels
    assert fitted.loss.item() == pytest.approx(total.item(), rel=1e-5)
    torch.testing.assert_close(net.head.weight.grad, weight.grad, rtol=1e-4, atol=1e-4)
    if rank is None:
        ours = net.backbone.embed_tokens.weight.grad
        torch.testing.assert_close(ours, model.get_input_embeddings().weight.grad, rtol=1e-3, atol=1e-4)


def test_tokens_of_a_tool_are_no_part_of_the_step(base):
    objective = HardLabels(token_features=True)
    net = net_of(base, objective)
    rows = [example("which?", ["x0 = 1", "y1 = 0"], [1, 0], observations=["no, 0"])]
    [item] = items(objective, net, rows)
    tokens, lengths = step_tokens([item])
    texts = [net.tokenizer.decode(part) for part in np.split(item.tree.ids[tokens], np.cumsum(lengths)[:-1])]
    assert "x0 = 1" in texts[0]
    assert "y1 = 0" in texts[1]
    assert "no" not in "".join(texts)


def judged(target):
    return (
        ()
        if target is None
        else (Judgement(kind="correctness", judge="human", rating=1 if target.value else -1),)
    )


def rows_of(many):
    return [
        LabelledRow(
            labelled=LabelledSolution(solution=one.solution, judgements=tuple(map(judged, one.targets))),
            where=f"row:{number}",
            outcome=one.outcome,
        )
        for number, one in enumerate(many)
    ]


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """One checkpoint each: all weights, an adapter, an outcome model."""
    folder = tmp_path_factory.mktemp("trained")
    rows, made = rows_of(branching(20, seed=2)), {}
    for name, objective, settings in (
        ("whole", HardLabels(token_features=True), {"full": True, "learning_rate": 1e-3}),
        ("adapter", HardLabels(token_features=True), {"adapter": True, "lora_rank": 4}),
        ("outcome", Outcome(token_features=True), {"full": True, "learning_rate": 1e-3}),
    ):
        training = Training(
            mark="\n",
            layout="text",
            dtype="float32",
            device="cpu",
            epochs=2,
            held_out=0.2,
            head_rate=10,
            **settings,
        )
        recipe = Recipe(base=str(base), objective=objective, training=training)
        made[name] = run_recipe(rows, folder / name, recipe, report=lambda progress: None).folder
    return made


def solutions():
    return [row.solution for row in branching(3, seed=9)]


def test_a_written_checkpoint_is_read_as_transformers_reads_it(trained):
    folder = trained["whole"]
    prm, model = load_prm(str(folder), dtype="float32"), AutoModelForCausalLM.from_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    readout = json.loads((folder / "stepmark.json").read_text())["readout"]
    solution = Solution.of("problem 1", ("x0 = 1", "y1 = 0"))
    encoded = prm.encoder.encode(solution)
    assert prm.encoder.tokenizer.decode(encoded.ids) == "<|bos|>problem 1\n\nx0 = 1\ny1 = 0\n"
    inputs = plain_inputs(model, encoded.ids.tolist(), spans_of(encoded))
    logits = F.linear(inputs, tensors["score.weight"], tensors["score.bias"])[:, 0]
    expected = torch.sigmoid(readout["scale"] * logits + readout["shift"]).tolist()
    assert prm.score(solution.problem.text, solution) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["whole", "adapter", "outcome"])
def test_alone_and_together_are_the_same_scores(trained, name):
    prm = load_prm(str(trained[name]), dtype="float32")
    many = solutions()
    together = [result.scores for result in prm.score_many(many)]
    for one, scores in zip(many, together, strict=True):
        [alone] = load_prm(str(trained[name]), dtype="float32").score_many([one])
        assert [s is None for s in alone.scores] == [s is None for s in scores]
        assert [s for s in alone.scores if s is not None] == pytest.approx(
            [s for s in scores if s is not None], abs=1e-5
        )
    assert len({s for scores in together for s in scores if s is not None}) > 5
    if name == "outcome":
        assert all(set(scores[:-1]) <= {None} for scores in together)


@pytest.mark.parametrize("name", ["whole", "adapter"])
def test_a_session_gives_the_scores_of_whole_solutions(trained, name):
    prm = load_prm(str(trained[name]), dtype="float32")
    session = prm.open_session()
    for one in solutions():
        texts = one.texts
        [whole] = prm.score_many([one])
        grown = [
            session.score([ScoreRequest(problem=one.problem.text, steps=texts[: n + 1])], None)[0].score
            for n in range(len(texts))
        ]
        assert grown == pytest.approx(list(whole.scores), abs=1e-5)


def test_a_head_that_is_no_linear_one_is_refused():
    with pytest.raises(UsageError):
        CrossEntropy(kind="mlp", token_features=True).spec(TEXT, "")
    with pytest.raises(UsageError):
        in_family(HardLabels(token_features=True), "qwen-prm")


def test_three_classes_are_read_too(base):
    objective = ThreeClass(token_features=True)
    net = net_of(base, objective)
    assert net.head.weight.shape == (3, 4 + net.hidden_size)
