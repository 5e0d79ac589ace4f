"""The decoder's operations with gradients of our own, against PyTorch's, transformers' and peft's; and a decoder made of them against
transformers' own, one sequence at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.autograd import gradcheck
from transformers import AutoModel, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from stepmark.models import attention
from stepmark.models.packed_tree import pack
from stepmark.training import net as fused
from stepmark.training.net import Weight, add_norm, fits, hidden_rows, linears, rotary

torch.set_num_threads(1)


@pytest.fixture(autouse=True, params=[7, 2**18], ids=["small blocks", "one block"])
def block(request, monkeypatch):
    """Blocks of a row or so, and of everything."""
    monkeypatch.setattr(fused, "_BLOCK", request.param)


def drawn(*shape, dtype=torch.float32, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def agree(ours, theirs, inputs, *, seed=9):
    """Values, and the gradients that come of random gradients of the outputs, to 1e-5."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    grads = [drawn(*t.shape, seed=seed + n, grad=False) for n, t in enumerate(ours)]
    found = torch.autograd.grad(ours, inputs, grads)
    wanted = torch.autograd.grad(theirs, inputs, grads)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_norm_and_residual_are_transformers_own():
    x, branch = drawn(5, 12), drawn(5, 12, seed=1)
    norm = LlamaRMSNorm(12, eps=0.03)
    norm.weight.data = drawn(12, seed=2, grad=False)
    total = x + branch
    agree(add_norm(x, branch, norm.weight, 0.03), (total, norm(total)), (x, branch, norm.weight), seed=5)
    agree(add_norm(x, None, norm.weight, 0.03), (x.clone(), norm(x)), (x, norm.weight), seed=6)


def test_rotary_is_transformers_own():
    x, angles = drawn(5, 3 * 8), drawn(5, 4, seed=1, grad=False)
    cos, sin = (torch.cat([t, t], -1)[None] for t in (angles.cos(), angles.sin()))
    heads = x.view(5, 3, 8).transpose(0, 1)[None]
    theirs, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    agree((rotary(x, angles.cos(), angles.sin()),), (theirs[0],), (x,))


def test_linear_layers_of_one_input():
    x, w, b, other = drawn(5, 6), drawn(4, 6, seed=1), drawn(4, seed=2), drawn(3, 6, seed=3)
    ours = linears(x, [Weight(weight=w, bias=b), Weight(weight=other)])
    agree(ours, (F.linear(x, w, b), F.linear(x, other)), (x, w, b, other))


def test_gradients_are_those_of_finite_differences():
    """Independent of any other form."""
    wide = {"dtype": torch.float64}
    x, branch, weight = drawn(4, 6, **wide), drawn(4, 6, seed=1, **wide), drawn(6, seed=2, **wide)
    cos, sin = (drawn(4, 3, seed=n, grad=False, **wide) for n in (3, 4))
    w, down, up = (drawn(*shape, seed=7, **wide) for shape in ((5, 6), (2, 6), (5, 2)))
    assert gradcheck(lambda *t: add_norm(*t, 0.1), (x, branch, weight))
    assert gradcheck(lambda t: rotary(t, cos, sin), (x,))
    frozen = w.detach().clone()
    assert gradcheck(
        lambda x, w, down, up: linears(
            x, [Weight(weight=w), Weight(weight=frozen, down=down, up=up, scale=1.5)]
        ),
        (x, w, down, up),
    )


CONFIGS = (
    LlamaConfig(attention_bias=True, mlp_bias=True),
    LlamaConfig(
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        }
    ),
    MistralConfig(sliding_window=None),
    Qwen2Config(),
    Qwen3Config(),
)
# Weights of 0.02, the usual start, would let a wrong attention pass unseen.
SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "vocab_size": 50,
    "head_dim": 8,
    "initializer_range": 0.15,
    "rms_norm_eps": 1e-3,
    "pad_token_id": None,
}
SEQUENCES = (
    ((1, 2, 3, 4, 5), (1, 2, 3, 6), (1, 2, 3, 6, 7, 8, 9), (11, 12)),
    ((3, 4, 5, 6, 7, 8),),
)


def made(config, implementation="sdpa"):
    attention.register()
    torch.manual_seed(0)
    for name, size in SIZES.items():
        setattr(config, name, size)
    model = AutoModel.from_config(config, attn_implementation=implementation).eval()
    for parameter in model.parameters():
        # Biases begin at zero and norms at one, where a wrong one passes unseen.
        parameter.data.add_(torch.randn(parameter.shape) * 0.05)
    return model


def of_rows(model, weights):
    """The weighted sum of the last hidden states of every sequence, each in a forward pass of its own by transformers."""
    total = torch.zeros(())
    for sequences, own in zip(SEQUENCES, weights, strict=True):
        for sequence, w in zip(sequences, own, strict=True):
            states = model(input_ids=torch.tensor([sequence]), use_cache=False).last_hidden_state[0]
            total = total + (states[-1] * w).sum()
    return total


def of_trees(model, trees, weights, *, every):
    """The same from `hidden_rows`."""
    starts = [0, len(trees[0])]
    ends = [int(path[-1]) + start for tree, start in zip(trees, starts, strict=True) for path in tree.paths]
    flat = [w for own in weights for w in own]
    rows = None if every else np.unique(np.asarray(ends))
    states = hidden_rows(model, trees, "cpu", rows)
    assert len(states) == (sum(map(len, trees)) if every else len(rows))
    places = ends if every else np.searchsorted(rows, ends).tolist()
    return sum((states[at] * w).sum() for at, w in zip(places, flat, strict=True))


def chosen():
    return [[drawn(48, seed=10 * i + j, grad=False) for j in range(len(s))] for i, s in enumerate(SEQUENCES)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("every", [True, False])
def test_a_tree_is_the_sum_of_its_rows_by_transformers(config, every):
    model = made(config)
    assert fits(model)
    trees, weights = [pack(s) for s in SEQUENCES], chosen()
    ours, theirs = of_trees(model, trees, weights, every=every), of_rows(model, weights)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-4)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found, wanted = (torch.autograd.grad(t, parameters) for t in (ours, theirs))
    for name, a, b in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("config", [LlamaConfig(), Qwen2Config()], ids=lambda c: type(c).__name__)
def test_lora_is_pefts(config):
    model = made(config)
    adapted = get_peft_model(
        model,
        LoraConfig(
            r=3,
            lora_alpha=7,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            layers_to_transform=[1, 2],
            layers_pattern="layers",
        ),
    )
    for n, parameter in enumerate(adapted.parameters()):
        if parameter.requires_grad:
            parameter.data = drawn(*parameter.shape, seed=n, grad=False) * 0.2
    trees, weights = [pack(s) for s in SEQUENCES], chosen()
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 2 * 7
    ours, theirs = of_trees(model, trees, weights, every=False), of_rows(adapted, weights)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-4)
    found, wanted = (torch.autograd.grad(t, list(trained.values())) for t in (ours, theirs))
    for name, a, b in zip(trained, found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=name)
    with adapted.disable_adapter():
        off = of_trees(model, trees, weights, every=True).item()
        assert off == pytest.approx(of_rows(adapted, weights).item(), rel=1e-4, abs=1e-4)
    assert abs(off - ours.item()) > 0.01


def test_other_decoders_run_as_transformers_has_them():
    assert not fits(made(Gemma2Config(sliding_window=None), "eager"))
    assert not fits(made(LlamaConfig(hidden_act="gelu")))


def test_a_small_low_rank_difference_is_seen_beside_rough_weights():
    """In bfloat16 a difference far below the weights is lost in their sum; beside them more of it is left."""
    torch.manual_seed(0)
    x, weight, down, up = (
        torch.randn(128, 256),
        torch.randn(256, 256),
        torch.randn(8, 256),
        2e-4 * torch.randn(256, 8),
    )
    x, weight, down, up = (t.bfloat16() for t in (x, weight, down, up))
    true = (x.double() @ down.double().t() @ up.double().t()).flatten()
    plain = F.linear(x, weight).double()

    def likeness(found):
        return float(torch.cosine_similarity((found.double() - plain).flatten(), true, dim=0))

    ours = likeness(linears(x, [Weight(weight=weight, down=down, up=up, scale=1.0)])[0])
    merged = likeness(F.linear(x, torch.addmm(weight, up, down)))
    assert ours > merged + 0.1, (ours, merged)
