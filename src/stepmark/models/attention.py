"""Attention over a packed prefix tree, as dense pieces whose softmaxes are joined exactly.

Each piece gives an output and the log-sum-exp of its scores; two pieces of the same query join by weighting
with their log-sum-exps (Milakov & Gimelshein 2018; the "cascade" of shared-prefix inference). The result is
ordinary attention, up to rounding.

It is reached through transformers' attention interface under the name `NAME`, with the plan passed as the
keyword argument `stepmark_plan` of the model's forward. The coupling: transformers passes keyword arguments
that it does not know down to the attention function; a test holds that for every backbone that we load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.tree import Block, Chunk, PackedTree, blocks

NAME = "stepmark_tree"
PLAN = "stepmark_plan"

_WASTE = 1.15  # padded over real tokens that one batch of causal blocks may have


@dataclass(frozen=True, kw_only=True)
class Indices:
    """A block's indices, ready for the device: [queries] and [keys]."""

    queries: Tensor
    keys: Tensor

    @classmethod
    def of(cls, block: Block, device: str) -> Indices:
        """From the packed tree's block."""
        return cls(
            queries=torch.from_numpy(block.queries).to(device), keys=torch.from_numpy(block.keys).to(device)
        )


@dataclass(kw_only=True)
class Plan:
    """How packed tokens attend.

    Shapes: keys and values are [1, kv_heads, tokens, head_dim].
    """

    chains: tuple[tuple[int, int], ...]
    """[start, end) of the causal runs."""
    blocks: tuple[Indices, ...]
    carried: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Layer -> keys and values that stand before those of the packed tokens; block keys count from there."""
    keep: Tensor | None = None
    """Indices into [carried, packed] of the keys that a later chunk needs; None keeps nothing."""
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Layer -> what was kept, after the forward."""
    train: bool = False
    """Let gradients flow; then nothing can be carried."""

    @classmethod
    def of_chunk(cls, chunk: Chunk, device: str) -> Plan:
        """The plan of one chunk of a tree."""
        return cls(chains=chunk.chains, blocks=tuple(Indices.of(b, device) for b in chunk.blocks))

    @classmethod
    def of_trees(cls, trees: Sequence[PackedTree], device: str) -> Plan:
        """The training plan of whole trees laid one after the other."""
        chains: list[tuple[int, int]] = []
        parts: list[Indices] = []
        at = 0
        for tree in trees:
            chains += [(c.start + at, c.end + at) for c in tree.chains]
            parts += [
                Indices.of(Block(queries=b.queries + at, keys=b.keys + at), device)
                for b in blocks(tree.chains)
            ]
            at += len(tree)
        return cls(chains=tuple(chains), blocks=tuple(parts), train=True)


def register() -> None:
    """Make `NAME` known to transformers as an attention implementation that takes no mask."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    for name in ("softcap", "s_aux", "logits_soft_cap"):
        if kwargs.get(name) is not None:
            raise CheckpointError(f"this backbone's attention uses {name!r}, which the tree engine does not")
    plan: Plan = kwargs[PLAN]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if plan.train:
        out = _TreeAttention.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
        return out.transpose(1, 2).contiguous(), None
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    own_key, own_value = key, value
    if layer in plan.carried:
        key = torch.cat([plan.carried[layer][0], key], dim=2)
        value = torch.cat([plan.carried[layer][1], value], dim=2)
    if plan.keep is not None:
        plan.kept[layer] = (key[:, :, plan.keep], value[:, :, plan.keep])
    joined, _ = _forward(query, own_key, own_value, key, value, plan, scale)
    return joined.to(query.dtype).transpose(1, 2).contiguous(), None


def _forward(
    query: Tensor, own_key: Tensor, own_value: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float
) -> tuple[Tensor, Tensor]:
    """Output [1, heads, tokens, dim] and log-sum-exp [1, heads, tokens], float32."""
    out, lse = _causal(query, own_key, own_value, plan.chains, scale)
    for block in plan.blocks:
        part, part_lse = _unmasked(query, key, value, block, scale)
        old = lse[:, :, block.queries]
        total = torch.logaddexp(old, part_lse)
        out[:, :, block.queries] = out[:, :, block.queries] * (old - total).exp_().unsqueeze(-1) + part * (
            part_lse - total
        ).exp_().unsqueeze(-1)
        lse[:, :, block.queries] = total
    return out, lse


class _TreeAttention(torch.autograd.Function):
    """Tree attention with its gradient.

    The gradient of attention with respect to one block of keys needs of the other blocks only the final
    output and the final log-sum-exp (Dao 2023, FlashAttention-2, section 3.1), so the backward pass is again
    one dense kernel a block.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float) -> Tensor:
        out, lse = _forward(query, key, value, key, value, plan, scale)
        result = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, lse)
        ctx.plan, ctx.scale = plan, scale
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, lse = ctx.saved_tensors
        d_query, d_key, d_value = (torch.zeros_like(t, dtype=torch.float32) for t in (query, key, value))
        kv_heads, dim = key.shape[1], key.shape[3]
        groups = query.shape[1] // kv_heads
        for batch in _batches(ctx.plan.chains):
            rows, real = _rows(batch, query.device)
            q, o, g = (t[0][:, rows].transpose(0, 1) for t in (query, out, grad))
            k, v = (t[0][:, rows].transpose(0, 1).repeat_interleave(groups, dim=1) for t in (key, value))
            # Rows past a chain's end are copies; with no gradient of their own they add nothing.
            g = g * real[:, None, :, None].to(g.dtype)
            dq, dk, dv = _flash_backward(g, q, k, v, o, lse[0][:, rows].transpose(0, 1), True, ctx.scale)
            dk, dv = (t.reshape(len(batch), kv_heads, groups, -1, dim).sum(2) for t in (dk, dv))
            for total, part in ((d_query, dq), (d_key, dk), (d_value, dv)):
                for i, (start, end) in enumerate(batch):
                    total[0, :, start:end] += part[i, :, : end - start]
        for block in ctx.plan.blocks:
            n = len(block.queries)
            q, o, g = (
                t[:, :, block.queries].reshape(1, kv_heads, groups * n, dim) for t in (query, out, grad)
            )
            block_lse = lse[:, :, block.queries].reshape(1, kv_heads, groups * n)
            k, v = key[:, :, block.keys], value[:, :, block.keys]
            dq, dk, dv = _flash_backward(g, q, k, v, o, block_lse, False, ctx.scale)
            d_query[:, :, block.queries] += dq.reshape(1, kv_heads * groups, n, dim)
            d_key[:, :, block.keys] += dk
            d_value[:, :, block.keys] += dv
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), None, None


def _causal(
    query: Tensor, key: Tensor, value: Tensor, chains: tuple[tuple[int, int], ...], scale: float
) -> tuple[Tensor, Tensor]:
    """Each chain with itself. Returns float32 [1, heads, tokens, dim] and its log-sum-exp [1, heads, tokens]."""
    groups = query.shape[1] // key.shape[1]
    out = torch.empty_like(query, dtype=torch.float32)
    lse = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    for batch in _batches(chains):
        rows, _ = _rows(batch, query.device)
        q = query[0][:, rows].transpose(0, 1)
        k = key[0][:, rows].transpose(0, 1).repeat_interleave(groups, dim=1)
        v = value[0][:, rows].transpose(0, 1).repeat_interleave(groups, dim=1)
        part, part_lse = _flash(q, k, v, causal=True, scale=scale)
        for i, (start, end) in enumerate(batch):
            out[0, :, start:end] = part[i, :, : end - start]
            lse[0, :, start:end] = part_lse[i, :, : end - start]
    return out, lse


def _rows(batch: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Packed indices [chains, longest] of a batch of chains, and which of them are real.

    Rows past a chain's end repeat its last token: causal queries before them never look there.
    """
    longest = max(end - start for start, end in batch)
    starts = torch.tensor([start for start, _ in batch], device=device)[:, None]
    last = torch.tensor([end - 1 for _, end in batch], device=device)[:, None]
    rows = starts + torch.arange(longest, device=device)
    return torch.minimum(rows, last), rows <= last


def _batches(chains: tuple[tuple[int, int], ...]) -> list[list[tuple[int, int]]]:
    """Chains of like length together, so that little of a batch is padding."""
    batches: list[list[tuple[int, int]]] = []
    real = 0
    for chain in sorted(chains, key=lambda c: c[1] - c[0]):
        length = chain[1] - chain[0]
        if batches and length * (len(batches[-1]) + 1) <= _WASTE * (real + length) + 32:
            batches[-1].append(chain)
            real += length
        else:
            batches.append([chain])
            real = length
    return batches


def _unmasked(
    query: Tensor, key: Tensor, value: Tensor, block: Indices, scale: float
) -> tuple[Tensor, Tensor]:
    """What a block's queries get from all its keys: [1, heads, queries, dim] and [1, heads, queries]."""
    kv_heads, dim = key.shape[1], key.shape[3]
    groups = query.shape[1] // kv_heads
    rows = len(block.queries)
    # Without a mask the query heads of one key head are just more queries: no key is copied.
    q = query[:, :, block.queries].reshape(1, kv_heads, groups * rows, dim)
    part, part_lse = _flash(q, key[:, :, block.keys], value[:, :, block.keys], causal=False, scale=scale)
    return part.reshape(1, kv_heads * groups, rows, dim), part_lse.reshape(1, kv_heads * groups, rows)


def _has_kernel(query: Tensor) -> bool:
    """Whether the kernel below takes it; forward and backward must go the same way."""
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _flash(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp: [b, heads, rows, dim] and [b, heads, rows], same heads everywhere."""
    if _has_kernel(query):
        # The kernel behind scaled_dot_product_attention on CPU; called by name because only it returns
        # the log-sum-exp.
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return out.float(), lse
    scores = (query.float() @ key.float().transpose(-1, -2)) * scale
    if causal:
        rows = query.shape[-2]
        above = torch.ones((rows, rows), dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(above, -torch.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ value.float(), lse


def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one block, float32, from the final output and log-sum-exp of its queries."""
    if _has_kernel(query):
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad.contiguous(), query, key, value, out, lse.contiguous(), 0.0, causal, scale=scale
        )
        return parts[0].float(), parts[1].float(), parts[2].float()
    q, k, v, g = query.float(), key.float(), value.float(), grad.float()
    weights = ((q @ k.transpose(-1, -2)) * scale - lse.unsqueeze(-1)).exp()
    if causal:
        weights = weights.tril()
    share = (g * out.float()).sum(-1, keepdim=True)
    inner = weights * (g @ v.transpose(-1, -2) - share) * scale
    return inner @ k, inner.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ g
