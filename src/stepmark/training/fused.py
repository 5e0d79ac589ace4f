"""The small operations of a decoder with their gradients written out: fewer passes over memory, and no more kept than the gradient needs.

Each is the same function as its plain form in PyTorch; the tests hold values and gradients to it. Rows are tokens. On a CPU the operations
between matrix products go over blocks of rows that stay in its cache.

A decoder's forward pass in training, out of the operations of `fused.py`: the same function of the same weights as transformers' own.

Of the last layer only the keys and values are computed for every token; queries, the feed-forward part and the last norm, for those that
are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stepmark.models import attention
from stepmark.models.tree import Ints, PackedTree

_BLOCK = 2**18
"""Elements of a block: about a megabyte in float32."""


def _blocks(like: Tensor) -> Iterator[slice]:
    rows = len(like) if like.device.type != "cpu" else max(1, _BLOCK // max(1, like[0].numel()))
    for start in range(0, len(like), max(1, rows)):
        yield slice(start, start + rows)


def add_norm(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream after a branch, and its root mean square norm (Zhang and Sennrich 2019).

    Args:
        x: [rows, width], the residual stream.
        branch: [rows, width], what is added to it; None adds nothing.
        weight: [width].
        eps: added to the mean square.

    Returns:
        x + branch, and that divided by its root mean square, times `weight`; the square is taken in float32.
    """
    found: tuple[Tensor, Tensor] = _AddNorm.apply(x, branch, weight, eps)  # type: ignore[no-untyped-call]
    return found


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.view_as(x) if branch is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        inverse = torch.empty(len(x), 1, dtype=wide, device=x.device)
        for rows in _blocks(x):
            if branch is not None:
                torch.add(x[rows], branch[rows], out=total[rows])
            h = total[rows].to(wide)
            r = torch.linalg.vector_norm(h, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps)
            r = torch.rsqrt(r, out=inverse[rows])
            # Rounded before the weight, as transformers does.
            torch.mul((h * r).to(x.dtype), weight, out=normed[rows])
        ctx.save_for_backward(total, weight, inverse)
        ctx.branched = branch is not None
        return total, normed

    @staticmethod
    def backward(
        ctx: Any, d_total: Tensor, d_normed: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        total, weight, inverse = ctx.saved_tensors
        wide, w = inverse.dtype, weight.to(inverse.dtype)
        d_weight = torch.zeros_like(w) if ctx.needs_input_grad[2] else None
        d_x = torch.empty_like(total)
        for rows in _blocks(total):
            g = d_normed[rows].to(wide)
            unit = total[rows].to(wide) * inverse[rows]
            if d_weight is not None:
                d_weight += (g * unit).sum(0)
            g = g * w
            mean = torch.linalg.vecdot(g, unit).unsqueeze(-1).div_(total.shape[-1])
            g.addcmul_(unit, mean, value=-1).mul_(inverse[rows])
            torch.add(g, d_total[rows], out=g)
            d_x[rows] = g
        return (
            d_x if ctx.needs_input_grad[0] else None,
            d_x if ctx.branched else None,
            None if d_weight is None else d_weight.to(weight.dtype),
            None,
        )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020), elementwise on [rows, width]."""
    found: Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return found


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        for rows in _blocks(gate):
            torch.mul(F.silu(gate[rows]), up[rows], out=out[rows])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        for rows in _blocks(gate):
            g = gate[rows]
            torch.mul(F.silu(g), grad[rows], out=d_up[rows])
            d_gate[rows] = torch.ops.aten.silu_backward(grad[rows] * up[rows], g)
        return d_gate, d_up


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021), the halves of a head as pairs.

    Args:
        x: [rows, heads * dim].
        cos: [rows, dim / 2], of each row's angles.
        sin: the same.

    Returns:
        [heads, rows, dim].
    """
    found: Tensor = _Rotary.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return found


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        half = cos.shape[-1]
        heads = x.view(len(x), -1, 2 * half).transpose(0, 1)
        out = torch.empty(heads.shape, dtype=x.dtype, device=x.device)
        _turn(heads, cos, sin, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        heads, rows, dim = grad.shape
        out = torch.empty(rows, heads * dim, dtype=grad.dtype, device=grad.device)
        _turn(grad, cos, -sin, out.view(rows, heads, dim).transpose(0, 1))
        return out, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Turn each pair by its angle; [heads, rows, dim]."""
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half:]
    out[..., :half] = (a * cos).addcmul_(b, sin, value=-1)
    out[..., half:] = (b * cos).addcmul_(a, sin)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A linear layer: its own weights, or frozen ones and a low-rank difference (LoRA, Hu et al. 2021)."""

    weight: Tensor
    """[out, in]."""
    bias: Tensor | None = None
    """[out]."""
    down: Tensor | None = None
    """A: [rank, in]; with it `weight` and `bias` are not trained."""
    up: Tensor | None = None
    """B: [out, rank]."""
    scale: float = 0.0


def linears(x: Tensor, layers: Sequence[Weight]) -> tuple[Tensor, ...]:
    """Linear layers of one input [rows, in]: [rows, out] of each.

    A low-rank difference is a product of its own beside that of the weights, as peft has it: added to weights in bfloat16, differences as small as
    those at the beginning of a training would be rounded away. Gradients go to the factors alone.
    """
    given = [t for w in layers for t in (w.weight, w.bias, w.down, w.up)]
    found: tuple[Tensor, ...] = _Linears.apply(x, tuple(w.scale for w in layers), *given)  # type: ignore[no-untyped-call]
    return found


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: tuple[float, ...], *given: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *given)
        ctx.scales = scales
        found = []
        for at, scale in enumerate(scales):
            weight, bias, down, up = given[4 * at : 4 * at + 4]
            assert weight is not None
            y = F.linear(x, weight, bias)
            if down is not None and up is not None:
                y.addmm_(x @ down.t(), up.t(), alpha=scale)
            found.append(y)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *given = ctx.saved_tensors
        d_x: Tensor | None = None
        found: list[Tensor | None] = []
        for at, (scale, g) in enumerate(zip(ctx.scales, grads, strict=True)):
            weight, _, down, up = given[4 * at : 4 * at + 4]
            needs = ctx.needs_input_grad[2 + 4 * at : 6 + 4 * at]
            if ctx.needs_input_grad[0]:
                d_x = g @ weight if d_x is None else d_x.addmm_(g, weight)
            found += [g.t() @ x if needs[0] else None, g.sum(0) if needs[1] else None]
            if down is None or up is None:
                found += [None, None]
                continue
            inner = (g @ up).mul_(scale)
            if d_x is not None:
                d_x.addmm_(inner, down)
            found += [
                inner.t() @ x if needs[2] else None,
                g.t() @ (x @ down.t()).mul_(scale) if needs[3] else None,
            ]
        return d_x, None, *found


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
