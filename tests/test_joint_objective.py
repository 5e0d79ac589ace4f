"""The language-modelling loss beside a step objective, against transformers' own logits on separate rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepmark.training.examples import Dropped
from stepmark.training.objectives.base import right_tokens
from stepmark.training.objectives.steps import HardLabels
from stepmark.training.packing import items_of
from tiny_base import example, net_for, write_base

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


ROWS = [
    example("p", ["so 2 = 2", "then 3 + 3 = 6", "yes"], [1.0, 1.0, None]),
    example("p", ["so 2 = 2", "then 3 + 4 = 6"], [None, 0.0]),
    example("p", ["so 1 = 2", "yes"], [0.0, None]),
    example("q", ["no 5 - 5 = 0", "so 8 = 9"], [1.0, 0.0]),
    example("r", ["the sum is so"], [1.0]),
]


def trees(net, budget=1000):
    groups = (ROWS[:3], ROWS[3:])
    return [
        item for group in groups for item in items_of(group, net.encoder, budget=budget, dropped=Dropped())
    ]


def test_which_tokens_are_right(base):
    net = net_for(base, HardLabels())
    found = {}
    for item in trees(net):
        for row in item.rows:
            ids = item.tree.ids[right_tokens(item, row)]
            found[row.example.solution.texts] = net.tokenizer.decode(ids)
    # Up to the last step that is known to be right, and no further; nothing where the first label is wrong.
    assert found[ROWS[0].solution.texts[:2]] == "so 2 = 2\n<file_sep>then 3 + 3 = 6\n<file_sep>"
    assert found[ROWS[1].solution.texts] == ""
    assert found[ROWS[2].solution.texts[:1]] == ""
    assert found[ROWS[3].solution.texts] == "no 5 - 5 = 0\n<file_sep>"


@pytest.mark.parametrize("tokens", ["all", "quantities", "arithmetic"])
@pytest.mark.parametrize("rank", [4, None])
def test_loss_and_gradient_equal_those_of_separate_rows(base, tokens, rank):
    objective = HardLabels(language_weight=0.7, language_tokens=tokens)
    net = net_for(base, objective, rank=rank, dtype="float32")
    net.set_head(objective.head(net))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.named_parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    net.train(True)
    batch = trees(net)
    fitted = objective.fit(net, batch)
    fitted.loss.backward()
    ours = {name: p.grad.clone() for name, p in net.named_parameters.items()}
    for parameter in net.named_parameters.values():
        parameter.grad = None

    net.backbone.set_attn_implementation("sdpa")
    losses, logprobs, labels = [], {}, 0
    fitted_words = []
    for row in ROWS:
        encoded = net.encoder.encode(row.solution)
        hidden = net.model(input_ids=torch.from_numpy(encoded.ids)[None], use_cache=False).last_hidden_state[
            0
        ]
        end = -1
        for read, wanted in zip(encoded.reads, row.targets, strict=True):
            if wanted is None:
                continue
            labels += 1
            logit = net.head(hidden[read])
            losses.append(F.binary_cross_entropy_with_logits(logit, torch.tensor([wanted.value])))
            if wanted.value == 1.0 and end != -2:
                end = read
            elif wanted.value == 0.0 and end == -1:
                end = -2
        logits = (hidden @ net.output().T).log_softmax(-1)
        ids = encoded.ids.tolist()
        for at in range(encoded.answer, max(end, 0) + 1 if end > 0 else 0):
            text = net.tokenizer.decode([ids[at]])
            # Of words of quantity, the rows hold "sum".
            words = ("sum",) if tokens == "quantities" else ()
            if tokens == "all" or any(c in text for c in (*"0123456789+*/=<>×÷^%$-", *words)):
                fitted_words.append(text)
                logprobs[row.solution.problem.text, *ids[: at + 1]] = logits[at - 1, ids[at]]
    assert len(logprobs) > 8
    assert any("sum" in text for text in fitted_words) == (tokens != "arithmetic")
    expected = torch.stack(losses).sum() - 0.7 * torch.stack(list(logprobs.values())).mean() * labels
    expected.backward()
    assert fitted.labels == labels
    torch.testing.assert_close(fitted.loss, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in net.named_parameters.items():
        largest = parameter.grad.abs().max().item()
        torch.testing.assert_close(ours[name], parameter.grad, rtol=0, atol=1e-4 * max(largest, 1e-3))
