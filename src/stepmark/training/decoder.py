"""A decoder's forward pass in training, out of the operations of `fused.py`: the same function of the same weights as transformers' own.

Of the last layer only the keys and values are computed for every token; queries, the feed-forward part and the last norm, for those that
are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stepmark.models import attention
from stepmark.models.tree import Ints, PackedTree
from stepmark.training.fused import Weight, add_norm, linears, rotary, swiglu

_KNOWN = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Backbones of this shape: norm, attention, norm, gated feed-forward part, with nothing scaled in between."""


def fits(backbone: Any) -> bool:
    """Whether `hidden_rows` computes this backbone; others run as transformers has them.

    So do those whose weights are shared out (`fully_shard` gives them another class): a layer's are put together only where it is called.
    """
    return type(backbone).__name__ in _KNOWN and backbone.config.hidden_act == "silu"


def hidden_rows(backbone: Any, trees: list[PackedTree], device: str, rows: Ints | None) -> Tensor:
    """Hidden states of tokens of trees laid one after the other.

    Args:
        backbone: of a kind that `fits`; its layers may carry LoRA of peft, active or not.
        trees: at least one.
        device: where the backbone is.
        rows: the tokens that are read, ascending and distinct; None: all.

    Returns:
        [rows, hidden], after the last norm.
    """
    ids = torch.from_numpy(np.concatenate([tree.ids for tree in trees])).to(device)
    depths = torch.from_numpy(np.concatenate([tree.depths for tree in trees])).to(device)
    x: Tensor = backbone.embed_tokens(ids)
    cos, sin = (t[0, :, : t.shape[-1] // 2] for t in backbone.rotary_emb(x[None], depths[None]))
    layers = list(backbone.layers)
    plan = attention.Plan.of_trees(trees, device)
    branch: Tensor | None = None
    # Asked of a layer, because transformers means to rename the question on the whole.
    again = layers[0].gradient_checkpointing and torch.is_grad_enabled()
    for layer in layers if rows is None else layers[:-1]:
        arguments = (layer, x, branch, cos, sin, plan, None)
        x, branch = checkpoint(_layer, *arguments, use_reentrant=False) if again else _layer(*arguments)
    if rows is not None:
        # Few rows: computing them again would save nothing.
        last, picked = attention.Plan.of_trees(trees, device, rows), torch.from_numpy(rows).to(device)
        x, branch = _layer(layers[-1], x, branch, cos, sin, last, picked)
    return add_norm(x, branch, backbone.norm.weight, backbone.norm.variance_epsilon)[1]


def _layer(
    layer: Any,
    x: Tensor,
    branch: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    plan: attention.Plan,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The residual stream [tokens or rows, hidden] before the feed-forward part, and what that adds to it."""
    own, mlp = layer.self_attn, layer.mlp
    x, y = add_norm(x, branch, layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon)
    if rows is None:
        query, key, value = linears(y, [_weight(own.q_proj), _weight(own.k_proj), _weight(own.v_proj)])
        cos_query, sin_query = cos, sin
    else:
        key, value = linears(y, [_weight(own.k_proj), _weight(own.v_proj)])
        x, y = x.index_select(0, rows), y.index_select(0, rows)
        (query,) = linears(y, [_weight(own.q_proj)])
        cos_query, sin_query = cos[rows], sin[rows]
    if type(own).__name__ == "Qwen3Attention":
        query, key = _head_norm(query, own.q_norm), _head_norm(key, own.k_norm)
    seen = attention.attend(
        rotary(query, cos_query, sin_query)[None],
        rotary(key, cos, sin)[None],
        value.view(len(value), -1, own.head_dim).transpose(0, 1).contiguous()[None],
        plan,
        own.scaling,
    )
    (branch,) = linears(seen.view(len(query), -1), [_weight(own.o_proj)])
    norm = layer.post_attention_layernorm
    x, y = add_norm(x, branch, norm.weight, norm.variance_epsilon)
    gate, up = linears(y, [_weight(mlp.gate_proj), _weight(mlp.up_proj)])
    (branch,) = linears(swiglu(gate, up), [_weight(mlp.down_proj)])
    return x, branch


def _head_norm(x: Tensor, norm: Any) -> Tensor:
    heads = x.reshape(-1, norm.weight.shape[0])
    return add_norm(heads, None, norm.weight, norm.variance_epsilon)[1].view(x.shape)


def _weight(module: Any) -> Weight:
    """A linear layer, or peft's over one; its dropout is 0 here (`net.py` sets none)."""
    if isinstance(module, torch.nn.Linear):
        return Weight(weight=module.weight, bias=module.bias)
    base = module.base_layer
    if module.disable_adapters:
        return Weight(weight=base.weight, bias=base.bias)
    (name,) = module.active_adapters
    return Weight(
        weight=base.weight,
        bias=base.bias,
        down=module.lora_A[name].weight,
        up=module.lora_B[name].weight,
        scale=float(module.scaling[name]),
    )
