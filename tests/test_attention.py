"""Tree attention against ordinary attention: one forward pass a sequence, with transformers' own kernel."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModel, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from stepmark.errors import CheckpointError
from stepmark.models import attention
from stepmark.models.attention import Plan
from stepmark.models.packed_tree import pack, passes

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
    hidden, stored = [], {}
    for part in passes(tree, np.arange(len(tree)), budget):
        plan = Plan.of_pass(part, "cpu")
        held = torch.from_numpy(part.held)
        plan.carried = {layer: (k[:, :, held], v[:, :, held]) for layer, (k, v) in stored.items()}
        plan.keep = torch.arange(len(held), len(held) + len(part.part))
        spoil(plan)
        hidden.append(
            model(
                input_ids=torch.from_numpy(tree.ids[part.part])[None],
                position_ids=torch.from_numpy(tree.depths[part.part])[None],
                use_cache=False,
                stepmark_plan=plan,
            ).last_hidden_state[0]
        )
        for layer, pair in plan.kept.items():
            before = stored.get(layer, (pair[0][:, :, :0], pair[1][:, :, :0]))
            stored[layer] = tuple(torch.cat(both, dim=2) for both in zip(before, pair, strict=True))
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


def test_a_forgotten_mask_would_be_seen():
    """The comparison above can fail: the same forward in which every query sees all of its piece is far off."""
    model, sequences = backbone(LlamaConfig), forest(1)
    tree = pack(sequences)

    def forget(plan):
        plan.pieces = tuple(replace(piece, mask=None) for piece in plan.pieces)

    with torch.inference_mode():
        hidden = in_chunks(model, tree, 1000, spoil=forget)
        pairs = zip(tree.paths, alone(model, sequences), strict=True)
        assert max((hidden[torch.from_numpy(p)] - e).abs().max().item() for p, e in pairs) > 0.1


@pytest.mark.parametrize("width", [128, 9])
@pytest.mark.parametrize("config_class", CONFIGS)
def test_gradient_of_the_tree_is_the_sum_over_separate_rows(config_class, width, monkeypatch):
    """The read hidden states go through a nonlinear function, each row with a weight of its own."""
    monkeypatch.setitem(attention._WIDTH, "cpu", width)
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


def by_hand(query, key, value, sees, scale):
    """Softmax attention in float64 as the textbook has it; each key head serves the query heads that follow it."""
    groups = query.shape[1] // key.shape[1]
    key, value = (t.double().repeat_interleave(groups, dim=1) for t in (key, value))
    scores = query.double() @ key.transpose(-1, -2) * scale
    return torch.softmax(scores.masked_fill(~sees, -torch.inf), -1) @ value


def path_matrix(tree):
    """[tokens, tokens]: True where a token sees another, read from the parents alone."""
    sees = torch.eye(len(tree), dtype=torch.bool)
    for i, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            sees[i] |= sees[parent]
    return sees


@pytest.mark.parametrize("width", [128, 10])
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 2e-6), (torch.float64, 1e-12), (torch.bfloat16, 0.02)]
)
def test_pieces_are_attention_and_its_gradient(dtype, close, width, monkeypatch):
    monkeypatch.setitem(attention._WIDTH, "cpu", width)
    trees = [pack(forest(5)), pack(forest(6, ((4, 3), (2, 8))))]
    tokens = sum(map(len, trees))
    generator = torch.Generator().manual_seed(5)
    query, key, value, grad = (
        torch.randn(1, heads, tokens, 8, generator=generator).to(dtype) for heads in (6, 2, 2, 6)
    )
    sees = torch.block_diag(*(path_matrix(tree) for tree in trees)).bool()
    inputs = [t.double().requires_grad_() for t in (query, key, value)]
    expected = by_hand(*inputs, sees, 0.4)
    wanted = torch.autograd.grad(expected, inputs, grad.double())
    own = [t.requires_grad_() for t in (query, key, value)]
    plan = Plan.of_trees(trees, "cpu")
    if width == 10:  # both ways to read keys, and pieces with and without a border between trees
        assert {type(piece.keys) for piece in plan.pieces} == {slice, torch.Tensor}
    out = attention._TreeAttention.apply(*own, plan.pieces, 0.4)
    assert out.dtype == dtype
    torch.testing.assert_close(out.transpose(1, 2).double(), expected, rtol=close, atol=close)
    found = torch.autograd.grad(out, own, grad.transpose(1, 2))
    for part, want in zip(found, wanted, strict=True):
        assert part.dtype == dtype
        scale = 1 if dtype != torch.bfloat16 else want.abs().max().item()
        torch.testing.assert_close(part.double(), want, rtol=close, atol=close * scale)


def passes_of(seed, budget):
    """Passes of a forest whose trees branch at many depths, the first with nothing before it."""
    rng = np.random.RandomState(seed)
    tree = pack(forest(seed, [(int(rng.randint(21)), int(rng.randint(1, 60))) for _ in range(20)]))
    return passes(tree, np.arange(len(tree)), budget)


def random_pass(part, dtype=torch.float32):
    """Queries, keys and values of a pass, and attention by hand in float64, [1, queries, heads, dim]."""
    generator = torch.Generator().manual_seed(len(part.until))
    query, key, value = (
        torch.randn(1, heads, tokens, 16, generator=generator).to(dtype)
        for heads, tokens in ((6, len(part.part)), (2, len(part.until)), (2, len(part.until)))
    )
    rows = torch.arange(len(part.part))[:, None]
    sees = (torch.from_numpy(part.since) <= rows) & (rows < torch.from_numpy(part.until))
    return (query, key, value), by_hand(query, key, value, sees, 0.4).transpose(1, 2)


@pytest.mark.parametrize("width", [128, 50])
def test_pieces_as_cuda_runs_them(width, monkeypatch):
    """Keys in multiples of 16 and 16-bit pieces in one kernel. Bound in bfloat16: 2 ** -7 of the largest value, as weights and output are rounded to 8 bits."""
    monkeypatch.setitem(attention._WIDTH, "cpu", width)
    monkeypatch.setitem(attention._ALIGN, "cpu", 16)
    monkeypatch.setattr(attention, "FUSED", {"cpu"})
    ways = set()
    for part in passes_of(7, 150):
        plan = Plan.of_pass(part, "cpu")
        for piece in plan.pieces:
            count = (
                len(piece.keys)
                if isinstance(piece.keys, torch.Tensor)
                else piece.keys.stop - piece.keys.start
            )
            assert count % 16 == 0
            ways.add(type(piece.keys))
        for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7)):
            (query, key, value), expected = random_pass(part, dtype)
            out = attention._forward(query, key, value, plan.pieces, 0.4, None)
            assert out.dtype == dtype
            assert (out.double() - expected).abs().max() <= close * value.abs().max()
    assert ways == {slice, torch.Tensor}


def test_factors_of_16_bits_lose_nothing():
    """What `_scores` does on CUDA, products of bfloat16 summed in float32, and what it does elsewhere have the same terms."""
    rows, keys = (torch.randn(1, 40, 16).bfloat16() for _ in range(2))
    exact = rows.double() @ keys.double().transpose(1, 2) * 0.4
    torch.testing.assert_close(attention._scores(rows, keys, 0.4).double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("train", [False, True])
def test_a_backbone_with_capped_logits_is_refused(train):
    """Gemma 2 squashes attention scores; computing it without would be a plausible number."""
    attention.register()
    config = Gemma2Config(**SIZES | {"num_hidden_layers": 1})
    model = AutoModel.from_config(config, attn_implementation=attention.NAME).eval()
    tree = pack([[1, 2], [1, 3]])
    plan = (
        Plan.of_trees([tree], "cpu")
        if train
        else Plan.of_pass(next(passes(tree, np.arange(len(tree)), 10)), "cpu")
    )
    with pytest.raises(CheckpointError, match="softcap"):
        model(
            input_ids=torch.from_numpy(tree.ids)[None],
            position_ids=torch.from_numpy(tree.depths)[None],
            use_cache=False,
            stepmark_plan=plan,
        )
