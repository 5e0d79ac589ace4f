"""Tree attention against ordinary attention: one forward pass a sequence, with transformers' own kernel."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModel, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from stepmark.errors import CheckpointError
from stepmark.models import attention
from stepmark.models.attention import Plan
from stepmark.models.tree import chunks, pack

torch.set_num_threads(1)

CONFIGS = (LlamaConfig, Qwen2Config, MistralConfig, Qwen3Config)
VOCABULARY = 50
# Weights of 0.02, the usual start, give nearly uniform attention, with which a wrong plan passes unseen.
SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "head_dim": 8,
    "initializer_range": 0.25,
    "pad_token_id": None,
}


@functools.cache
def backbone(config_class):
    """A tiny random decoder with key heads shared by three query heads each."""
    attention.register()
    torch.manual_seed(0)
    return AutoModel.from_config(config_class(**SIZES), attn_implementation="sdpa").eval()


def alone(model, sequences):
    """Hidden states of each sequence in a forward pass of its own, by transformers' attention."""
    model.set_attn_implementation("sdpa")
    return [model(torch.tensor([s]), use_cache=False).last_hidden_state[0] for s in sequences]


def in_chunks(model, tree, budget, *, spoil=lambda plan: None):
    """Hidden states of a whole tree, chunk by chunk, the needed keys and values handed on."""
    model.set_attn_implementation(attention.NAME)
    hidden, carried = [], {}
    parts = chunks(tree, budget)
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        plan = Plan.of_chunk(part, "cpu")
        plan.carried = carried
        if after is not None:
            have = np.concatenate([part.carried, np.arange(part.start, part.end)])
            plan.keep = torch.from_numpy(np.searchsorted(have, after.carried))
        spoil(plan)
        hidden.append(
            model(
                input_ids=torch.from_numpy(tree.ids[part.start : part.end])[None],
                position_ids=torch.from_numpy(tree.depths[part.start : part.end])[None],
                use_cache=False,
                stepmark_plan=plan,
            ).last_hidden_state[0]
        )
        carried = plan.kept
    return torch.cat(hidden)


def trained(model, trees):
    """Hidden states of trees laid one after the other, by the plan that lets gradients flow."""
    model.set_attn_implementation(attention.NAME)
    return model(
        input_ids=torch.from_numpy(np.concatenate([t.ids for t in trees]))[None],
        position_ids=torch.from_numpy(np.concatenate([t.depths for t in trees]))[None],
        use_cache=False,
        stepmark_plan=Plan.of_trees(trees, "cpu"),
    ).last_hidden_state[0]


def forest(seed, shape=((20, 3), (10, 8), (20, 7), (5, 4), (0, 9), (15, 1), (10, 8))):
    """Sequences that share a prefix of the first length and go on for the second."""
    rng = np.random.RandomState(seed)
    trunk = rng.randint(0, VOCABULARY, 20).tolist()
    return [trunk[:shared] + rng.randint(0, VOCABULARY, own).tolist() for shared, own in shape]


@pytest.mark.parametrize("config_class", CONFIGS)
@pytest.mark.parametrize("budget", [1000, 11, 1])
def test_forward_equals_separate_forwards(config_class, budget):
    model, sequences = backbone(config_class), forest(1)
    tree = pack(sequences)
    with torch.inference_mode():
        hidden = in_chunks(model, tree, budget)
        for path, expected in zip(tree.paths, alone(model, sequences), strict=True):
            torch.testing.assert_close(hidden[torch.from_numpy(path)], expected, rtol=1e-5, atol=1e-5)


def test_a_missing_block_would_be_seen():
    """The comparison above can fail: the same forward without one of its blocks is far off."""
    model, sequences = backbone(LlamaConfig), forest(1)
    tree = pack(sequences)

    def forget(plan):
        plan.blocks = plan.blocks[1:]

    with torch.inference_mode():
        hidden = in_chunks(model, tree, 1000, spoil=forget)
        pairs = zip(tree.paths, alone(model, sequences), strict=True)
        assert max((hidden[torch.from_numpy(p)] - e).abs().max().item() for p, e in pairs) > 0.1


@pytest.mark.parametrize("config_class", CONFIGS)
def test_gradient_of_the_tree_is_the_sum_over_separate_rows(config_class):
    """The read hidden states go through a nonlinear function, each row with a weight of its own."""
    model = backbone(config_class)
    groups = [forest(2), forest(3, ((4, 3), (2, 8)))]
    rows = [s for group in groups for s in group]
    probe = torch.randn(48, generator=torch.Generator().manual_seed(4))
    model.zero_grad()
    expected = sum((i + 1) * torch.tanh(h[-1] @ probe) for i, h in enumerate(alone(model, rows)))
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    trees = [pack(group) for group in groups]
    starts = [0, len(trees[0])]
    reads = [start + int(path[-1]) for tree, start in zip(trees, starts, strict=True) for path in tree.paths]
    weights = torch.arange(1, len(rows) + 1)
    loss = (weights * torch.tanh(trained(model, trees)[torch.tensor(reads)] @ probe)).sum()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(gradients)
    for name, parameter in model.named_parameters():
        largest = gradients[name].abs().max().item()
        assert largest > 0, name
        torch.testing.assert_close(
            parameter.grad, gradients[name], rtol=0, atol=1e-4 * largest, msg=lambda m, n=name: f"{n}: {m}"
        )
    model.zero_grad()


def by_hand(query, key, value, causal, scale):
    """Softmax attention in float64 as the textbook has it, and its log-sum-exp."""
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    if causal:
        rows, columns = torch.meshgrid(*(torch.arange(n) for n in scores.shape[-2:]), indexing="ij")
        scores = scores.masked_fill(columns > rows, -torch.inf)
    return torch.softmax(scores, -1) @ value.double(), torch.logsumexp(scores, -1)


def some_tensors(causal, dtype):
    generator = torch.Generator().manual_seed(5)
    keys = 9 if causal else 13
    return [
        torch.randn(2, 3, n, 8, generator=generator).to(dtype) for n in (9, keys, keys, 9)
    ]  # query, key, value, gradient of the output


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 2e-6), (torch.float64, 2e-6), (torch.bfloat16, 0.02)]
)
def test_both_ways_of_one_piece_are_attention(causal, kernel, dtype, close, monkeypatch):
    """The CPU kernel and the generic way (CUDA's, and float64's) give attention and its gradient."""
    if not kernel:
        monkeypatch.setattr(attention, "_has_kernel", lambda query: False)
    query, key, value, grad = some_tensors(causal, dtype)
    out, lse = attention._flash(query, key, value, causal=causal, scale=0.4)
    inputs = [t.double().requires_grad_() for t in (query, key, value)]
    expected, expected_lse = by_hand(*inputs, causal, 0.4)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=close, atol=close)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-6)
    found = attention._flash_backward(grad, query, key, value, out.to(dtype), lse, causal, 0.4)
    wanted = torch.autograd.grad(expected, inputs, grad.double())
    for part, want in zip(found, wanted, strict=True):
        assert part.dtype == torch.float32
        torch.testing.assert_close(part.double(), want, rtol=close, atol=close)


def test_the_kernel_is_used_where_it_can_be():
    like = torch.zeros(1)
    assert attention._has_kernel(like)
    assert attention._has_kernel(like.bfloat16())
    assert not attention._has_kernel(like.double())
    assert not attention._has_kernel(torch.zeros(1, device="meta"))


def test_the_generic_way_trains_a_whole_network_the_same(monkeypatch):
    """What CUDA does, step for step, on the CPU: loss and gradient as with the kernel."""
    model, trees = backbone(Qwen2Config), [pack(forest(6))]

    def gradients():
        model.zero_grad()
        loss = torch.tanh(trained(model, trees)).sum()
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}

    loss, with_kernel = gradients()
    monkeypatch.setattr(attention, "_has_kernel", lambda query: False)
    generic_loss, generic = gradients()
    torch.testing.assert_close(generic_loss, loss, rtol=1e-5, atol=1e-5)
    largest = max(g.abs().max().item() for g in with_kernel.values())
    for name, gradient in with_kernel.items():
        torch.testing.assert_close(generic[name], gradient, rtol=1e-4, atol=1e-6 * largest)
    model.zero_grad()


@pytest.mark.parametrize("config_class", CONFIGS)
def test_the_plan_reaches_the_attention_of_every_layer(config_class):
    """transformers hands keyword arguments that it does not know down to the attention; hold it to that."""
    model = backbone(config_class)
    model.set_attn_implementation(attention.NAME)
    tree = pack([[1, 2, 3]])
    plan = Plan.of_chunk(chunks(tree, 10)[0], "cpu")
    plan.keep = torch.tensor([0, 2])
    with torch.inference_mode():
        model(
            input_ids=torch.tensor([[1, 2, 3]]),
            position_ids=torch.tensor([[0, 1, 2]]),
            use_cache=False,
            stepmark_plan=plan,
        )
    assert sorted(plan.kept) == [0, 1, 2]
    assert {t.shape for pair in plan.kept.values() for t in pair} == {(1, 2, 2, 8)}


@pytest.mark.parametrize("train", [False, True])
def test_a_backbone_with_capped_logits_is_refused(train):
    """Gemma 2 squashes attention scores; computing it without would be a plausible number."""
    attention.register()
    config = Gemma2Config(**SIZES | {"num_hidden_layers": 1})
    model = AutoModel.from_config(config, attn_implementation=attention.NAME).eval()
    tree = pack([[1, 2], [1, 3]])
    plan = Plan.of_trees([tree], "cpu") if train else Plan.of_chunk(chunks(tree, 10)[0], "cpu")
    with pytest.raises(CheckpointError, match="softcap"):
        model(
            input_ids=torch.from_numpy(tree.ids)[None],
            position_ids=torch.from_numpy(tree.depths)[None],
            use_cache=False,
            stepmark_plan=plan,
        )


def test_chains_of_like_length_share_a_batch_and_none_is_lost():
    lengths = [1, 1, 2, 3, 40, 41, 42, 300, 1, 77]
    starts = np.cumsum([0, *lengths])
    chains = tuple((int(a), int(b)) for a, b in pairwise(starts))
    batches = attention._batches(chains)
    assert sorted(chain for batch in batches for chain in batch) == sorted(chains)
    for batch in batches:
        real = sum(end - start for start, end in batch)
        padded = len(batch) * max(end - start for start, end in batch)
        assert padded <= 1.15 * real + 32
    assert len(batches) < len(chains)
