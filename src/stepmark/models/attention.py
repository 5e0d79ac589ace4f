"""Attention over a packed prefix tree, in pieces: some neighbouring queries, and the keys that any of them looks at.

The tree lies depth-first, so a run of queries looks at itself and at one path above it, however wide the tree is. Each piece is a dense product with
a small mask, and a whole tree costs about what its longest path would as a row, for each token. A query sees all of its keys in one softmax.

Scores and softmax are float32, as in the kernels behind scaled_dot_product_attention; weights have the network's own precision, for the
values and for the gradient. On CUDA in 16 bits the factors stay in 16 bits and are summed in float32, on tensor cores: each product of two
16-bit numbers is exact in float32, so the scores differ from those of float32 factors by the order of a sum only. The gradient is written out, so that
of a piece only its weights are kept.

On CUDA a pass waits for nothing: index arrays are copied from pinned memory once (`moved`), masks are made on the device.

It is reached through transformers' attention interface under the name `NAME`, with the plan as the keyword argument `stepmark_plan` of the model's
forward. The coupling: transformers passes keyword arguments that it does not know down to the attention function; a test holds that. A plan is anything
with a method `attend`: a `Plan` of packed trees, or the rows that a policy writes (`policies.rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from packaging.version import Version
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.packed_tree import Ints, PackedTree, Pass

NAME = "stepmark_tree"
PLAN = "stepmark_plan"

FUSED = {"cuda"}
"""Devices on which 16-bit pieces without gradient run in scaled_dot_product_attention, which writes no scores to memory."""
_SUMS_IN_FLOAT32 = Version(torch.__version__) >= Version("2.8")
"""Whether torch can multiply 16-bit matrices into float32 on CUDA; before, factors are made float32, with equal results."""

_WIDTH = {"cpu": 128}
_WIDE = 512
"""Queries a piece: few waste less on masked pairs, many make larger products."""
_ALIGN = {"cpu": 1}
_ALIGNED = 16
"""Keys of a piece come in multiples of this: tensor cores, and masks of fused kernels, need it."""


@dataclass(frozen=True, kw_only=True)
class AttentionPiece:
    """Queries [start, end) and their keys."""

    start: int
    end: int
    keys: slice | Tensor
    """Which of [carried, packed] they look at: the run that it is, or indices [keys], ascending."""
    mask: Tensor | None
    """[queries, keys], added to the scores: 0 where a query looks at a key, else minus infinity; None where every query
    looks at all. float32 on a CPU, else bfloat16. (Filling by a mask of booleans takes ten times as long on a CPU.)"""


@dataclass(kw_only=True)
class Plan:
    """How packed tokens attend.

    Shapes: keys and values are [1, kv_heads, tokens, head_dim].
    """

    pieces: tuple[AttentionPiece, ...]
    """In order; they cover every query once."""
    carried: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Layer (its attention module) -> keys and values that stand before those of the packed tokens; piece keys count from there."""
    keep: Tensor | None = None
    """Indices into [carried, packed] of the keys that a later chunk needs; None keeps nothing."""
    kept: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Layer -> what was kept, after the forward."""
    train: bool = False
    """Let gradients flow; then nothing can be carried."""

    @classmethod
    def of_pass(cls, part: Pass, device: str) -> Plan:
        """The plan of some tokens over stored keys."""
        return cls(pieces=_pieces(part.since, part.until, len(part.held), device))

    @classmethod
    def of_trees(cls, trees: Sequence[PackedTree], device: str, rows: Ints | None = None) -> Plan:
        """The training plan of whole trees laid one after the other.

        Args:
            rows: the tokens that look, ascending and distinct; None: all. Every token is looked at in either case.
        """
        starts = np.cumsum([0, *(len(tree) for tree in trees)])
        until = np.concatenate([tree.ends + start for tree, start in zip(trees, starts[:-1], strict=True)])
        if rows is None:
            return cls(pieces=_pieces(np.arange(len(until)), until, 0, device), train=True)
        since = np.searchsorted(rows, np.arange(len(until)))
        until = np.searchsorted(rows, until)
        return cls(pieces=_pieces(since, until, len(until) - len(rows), device), train=True)

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Output [1, tokens, heads, dim] of a layer's queries [1, heads, tokens, dim], keys and values [1, kv_heads, tokens, dim]."""
        if self.train:
            return attend(query, key, value, self, scale)
        if layer in self.carried:
            key = torch.cat([self.carried[layer][0], key], dim=2)
            value = torch.cat([self.carried[layer][1], value], dim=2)
        if self.keep is not None:
            self.kept[layer] = (key[:, :, self.keep], value[:, :, self.keep])
        return _forward(query, key, value, self.pieces, scale, None)


def _pieces(since: Ints, until: Ints, carried: int, device: str) -> tuple[AttentionPiece, ...]:
    """Cut queries into runs, each with its keys: query q looks at key k where since[k] <= q < until[k]. Both are [carried + queries]."""
    kind = device.partition(":")[0]
    width, dtype = _WIDTH.get(kind, _WIDE), torch.float32 if kind == "cpu" else torch.bfloat16
    queries = len(until) - carried
    first, last = moved(since, device), moved(until, device)
    pieces = []
    for start in range(0, queries, width):
        end = min(start + width, queries)
        seen = np.flatnonzero((since < end) & (until > start))
        keys, spare = _aligned(seen, len(until), _ALIGN.get(kind, _ALIGNED))
        run = not spare and int(keys[-1]) - int(keys[0]) + 1 == len(keys)
        # A run is read where it lies; other keys are gathered.
        where = slice(int(keys[0]), int(keys[-1]) + 1) if run else moved(keys, device)
        mask = None
        if len(keys) > len(seen) or (since[seen] > start).any() or (until[seen] < end).any():
            rows = torch.arange(start, end, device=device)[:, None]
            unseen = (rows < first[where]) | (rows >= last[where])
            if spare:
                unseen[:, -spare:] = True
            mask = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, -torch.inf)
        pieces.append(AttentionPiece(start=start, end=end, keys=where, mask=mask))
    return tuple(pieces)


def _aligned(keys: Ints, among: int, multiple: int) -> tuple[Ints, int]:
    """Keys in such a multiple, by neighbours of a run or, where there are none, the last key again; and how many of those stand at the end."""
    short = -len(keys) % multiple
    first, last = int(keys[0]), int(keys[-1]) + 1
    if not short:
        return keys, 0
    if last - first == len(keys) and len(keys) + short <= among:
        first = max(0, min(first, among - len(keys) - short))
        return np.arange(first, first + len(keys) + short), 0
    return np.concatenate([keys, np.full(short, keys[-1])]), short


def moved(array: npt.NDArray[Any], device: str | torch.device) -> Tensor:
    """An array on a device; on CUDA it is copied from pinned memory, and nothing waits for the copy."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def register() -> None:
    """Make `NAME` known to transformers as an attention implementation.

    No maker of masks is registered: transformers then makes none, and does not read the positions on the host.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)


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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output: Tensor = kwargs[PLAN].attend(module, query, key, value, scale)
    return output, None


@contextmanager
def planned(network: Any) -> Iterator[None]:
    """For a while, a network's attention takes a plan; before and after, it is the network's own."""
    register()
    own = network.config._attn_implementation
    network.set_attn_implementation(NAME)
    try:
        yield
    finally:
        network.set_attn_implementation(own)


def attend(query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float) -> Tensor:
    """Attention by a training plan; gradients flow.

    Args:
        query: [1, heads, queries, dim]: the tokens that look.
        key: [1, kv_heads, tokens, dim].
        value: the same.
        plan: from `Plan.of_trees`.
        scale: of the scores.

    Returns:
        [1, queries, heads, dim].
    """
    output: Tensor = _TreeAttention.apply(query, key, value, plan.pieces, scale)  # type: ignore[no-untyped-call]
    return output


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pieces: tuple[AttentionPiece, ...],
    scale: float,
    piece_weights: list[Tensor] | None,
) -> Tensor:
    """Output [1, tokens, heads, dim]; `piece_weights` takes each piece's weights [kv_heads, groups * queries, keys]."""
    heads, tokens, dim = query.shape[1:]
    kv_heads, half = key.shape[1], query.dtype in (torch.bfloat16, torch.float16)
    fused = piece_weights is None and half and query.device.type in FUSED
    out = query.new_empty(1, tokens, heads, dim)
    for piece in pieces:
        n = piece.end - piece.start
        k, v = _rows(key, piece.keys), _rows(value, piece.keys)
        if fused:
            # The query heads of one key head read the same memory.
            wide_k, wide_v = (t[:, None].expand(-1, heads // kv_heads, -1, -1) for t in (k, v))
            seen = torch.nn.functional.scaled_dot_product_attention(
                query[0, :, piece.start : piece.end].reshape(kv_heads, -1, n, dim),
                wide_k,
                wide_v,
                attn_mask=None if piece.mask is None else piece.mask.to(query.dtype),
                scale=scale,
            )
        else:
            # The query heads of one key head are just more queries: no key is copied for them.
            rows = query[0, :, piece.start : piece.end].reshape(kv_heads, -1, dim)
            scores = _scores(rows, k, scale)
            if piece.mask is not None:
                scores.view(kv_heads, heads // kv_heads, n, -1).add_(piece.mask)
            weights = torch.softmax(scores, -1).to(value.dtype)
            seen = weights @ v
            if piece_weights is not None:
                piece_weights.append(weights)
        out[0, piece.start : piece.end] = seen.reshape(heads, n, dim).transpose(0, 1)
    return out


def _scores(rows: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Scaled products [kv_heads, rows, keys], at least float32."""
    if rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16) and _SUMS_IN_FLOAT32:
        return torch.bmm(rows, keys.transpose(1, 2), out_dtype=torch.float32).mul_(scale)
    wide = _wide(rows)
    return (rows.to(wide) * scale) @ keys.to(wide).transpose(1, 2)


class _TreeAttention(torch.autograd.Function):
    """Tree attention with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: tuple[AttentionPiece, ...], scale: float
    ) -> Tensor:
        weights: list[Tensor] = []
        out = _forward(query, key, value, pieces, scale, weights)
        ctx.save_for_backward(query, key, value, *weights)
        ctx.pieces, ctx.scale = pieces, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, *piece_weights = ctx.saved_tensors
        heads, _, dim = query.shape[1:]
        kv_heads = key.shape[1]
        d_query = torch.empty_like(query)
        # A key's gradient is a sum over pieces, which bfloat16 would round away.
        d_key, d_value = (torch.zeros(t.shape[1:], dtype=_wide(t), device=t.device) for t in (key, value))
        for piece, weights in zip(ctx.pieces, piece_weights, strict=True):
            rows = query[0, :, piece.start : piece.end].reshape(kv_heads, -1, dim)
            g = grad[0, piece.start : piece.end].transpose(0, 1).reshape(kv_heads, -1, dim)
            k, v = _rows(key, piece.keys), _rows(value, piece.keys)
            inner = torch.ops.aten._softmax_backward_data(g @ v.transpose(1, 2), weights, -1, weights.dtype)
            d_query[0, :, piece.start : piece.end] = (inner @ k).view(heads, -1, dim) * ctx.scale
            _add(d_key, piece.keys, inner.transpose(1, 2) @ rows)
            _add(d_value, piece.keys, weights.transpose(1, 2) @ g)
        d_key *= ctx.scale
        return d_query, d_key.to(key.dtype)[None], d_value.to(value.dtype)[None], None, None


def _rows(tensor: Tensor, keys: slice | Tensor) -> Tensor:
    """Some rows of [1, heads, rows, dim], without the first dimension; a run is not copied."""
    return tensor[0, :, keys] if isinstance(keys, slice) else tensor[0].index_select(1, keys)


def _add(total: Tensor, keys: slice | Tensor, part: Tensor) -> None:
    """Add to some rows of [heads, rows, dim], in place; `+=` on a part of a tensor would copy the part back too."""
    if isinstance(keys, slice):
        total[:, keys].add_(part)
    else:
        total.index_add_(1, keys, part.to(total.dtype))


def _wide(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)
