"""Attention over a packed tree by torch's FlexAttention: one compiled kernel that skips blocks of which no query looks at a key.

The block mask is made on the host from the numbers that state the tree, and not by `create_block_mask`, which compares every query with every key
on the device; a test holds that both give the same blocks. Queries and keys are padded to a power of two blocks, and compiled sizes are symbols, so
that one compilation serves all passes. No gradient: training runs the pieces of `attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from stepmark.errors import UsageError
from stepmark.models.tree import Ints

BLOCK = 128
"""Queries and keys of a block."""
COMPILED = True
"""False computes all scores of a pass at once by torch's reference, which takes no compiler: for tests."""


def block_mask(since: Ints, until: Ints, queries: int, move: Callable[[Any], Tensor]) -> BlockMask:
    """The mask of a pass, padded: [padded queries, padded keys].

    Args:
        since: [keys]; with `until`, query q looks at key k where since[k] <= q < until[k].
        until: [keys].
        queries: how many there are.
        move: brings an array to the device.
    """
    rows, columns = padded(queries), padded(len(until))
    # A key that is padding is looked at by no query.
    start, end = (np.zeros(columns, dtype=np.int32) for _ in range(2))
    start[: len(since)], end[: len(until)] = since, until
    part, whole = (np.zeros((rows // BLOCK, columns // BLOCK), dtype=bool) for _ in range(2))
    for row in range(rows // BLOCK):
        first, last = row * BLOCK, (row + 1) * BLOCK
        seen = ((start < last) & (end > first)).reshape(-1, BLOCK)
        every = ((start <= first) & (end >= last)).reshape(-1, BLOCK).all(1)
        part[row], whole[row] = seen.any(1) & ~every, every
    some, every_key = (tuple(map(move, _listed(blocks))) for blocks in (part, whole))
    on_device = (move(start), move(end))
    return BlockMask.from_kv_blocks(
        some[0],
        some[1],
        every_key[0],
        every_key[1],
        BLOCK_SIZE=BLOCK,
        mask_mod=_looks(*on_device),
        seq_lengths=(rows, columns),
        compute_q_blocks=False,
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Attention by a block mask, without gradients.

    Args:
        query: [1, heads, queries, dim].
        key: [1, kv_heads, keys, dim].
        value: the same.
        mask: of these queries and keys, from `block_mask`.
        scale: of the scores.

    Returns:
        [1, queries, heads, dim].

    Raises:
        UsageError: it cannot be compiled here.
    """
    tokens = query.shape[2]
    rows, columns = mask.seq_lengths
    query, key, value = (_pad(t, to) for t, to in ((query, rows), (key, columns), (value, columns)))
    run: Any = _compiled() if COMPILED else flex_attention
    try:
        out: Tensor = run(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    except RuntimeError as error:  # torch's compiler raises kinds of it
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"FlexAttention cannot be compiled or run on {query.device} ({reason}); attention by pieces needs no compiler: "
            f"set stepmark.models.attention.METHOD[{query.device.type!r}] to 'pieces'"
        ) from error
    return out[:, :, :tokens].transpose(1, 2)


def padded(length: int) -> int:
    """The next power of two blocks, at least two: a size of one block would be compiled apart."""
    return BLOCK << max(1, (length - 1) // BLOCK).bit_length()


@functools.cache
def _compiled() -> Any:
    # With `fullgraph`, too many compilations are an error; otherwise torch would go on without compiling, and hold all scores at once.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def _looks(since: Tensor, until: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def looks(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (since[key] <= query) & (query < until[key])

    return looks


def _listed(blocks: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Any, Any]:
    """For each row of blocks how many are set, [1, 1, rows], and which, these first, [1, 1, rows, columns]."""
    order = np.argsort(~blocks, axis=1, kind="stable")
    return blocks.sum(1, dtype=np.int32)[None, None], order.astype(np.int32)[None, None]


def _pad(tensor: Tensor, length: int) -> Tensor:
    return (
        torch.nn.functional.pad(tensor, (0, 0, 0, length - tensor.shape[2]))
        if tensor.shape[2] < length
        else tensor
    )
