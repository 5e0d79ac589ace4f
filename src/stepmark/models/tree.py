"""Token sequences as one prefix tree, laid out flat so that every distinct prefix token stands once.

The layout is depth-first: sort the sequences, and each sequence adds only the tokens past its common prefix
with the one before. A run of tokens added by one sequence is a *chain*. What a token must attend to is then

- its own chain, causally, and
- the path above its chain, in full and without a mask.

All chains that hang on one token share that path, so attention over a tree is a list of dense pieces: the
causal chains, and one unmasked block for each token that chains hang on. No mask is ever built.

A tree larger than the token budget is cut into chunks along the same order; a chunk needs from the earlier
ones only the keys on the path to its first token (`Chunk.carried`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """A run of tokens [start, end) in the packed order, and the path above it."""

    start: int
    end: int
    above: Ints
    """Packed indices of everything before `start`, root first; empty for a root chain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """All of `queries` attend to all of `keys`. Shapes: [queries], [keys], indices."""

    queries: Ints
    keys: Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedTree:
    """Distinct prefix tokens of some sequences, in depth-first order.

    Shapes: `ids`, `depths`, `parents` are [tokens]; `paths[i]` is [len(sequence i)].
    """

    ids: Ints
    """Token ids."""
    depths: Ints
    """Position of each token in its sequence: the position that the network is told."""
    parents: Ints
    """Packed index of the token before; -1 at a root."""
    paths: tuple[Ints, ...]
    """For each sequence as given, the packed index of each of its tokens."""
    chains: tuple[Chain, ...]
    """In packed order; they cover every token once."""

    def __len__(self) -> int:
        return len(self.ids)


def common_prefix(a: Ints, b: Ints) -> int:
    """How many tokens two sequences share from their start."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def pack(sequences: Sequence[Sequence[int] | Ints]) -> PackedTree:
    """Lay sequences out as a prefix tree.

    Args:
        sequences: token ids, at least one sequence, none empty.

    Returns:
        The tree; `sum` of its length equals the number of distinct non-empty prefixes.
    """
    arrays = [np.asarray(s, dtype=np.int64) for s in sequences]
    if not arrays or any(len(a) == 0 for a in arrays):
        raise ValueError("pack needs at least one sequence, and none empty")
    order = sorted(range(len(arrays)), key=lambda i: arrays[i].tolist())
    paths: list[Ints] = [np.empty(0, dtype=np.int64)] * len(arrays)
    ids: list[Ints] = []
    depths: list[Ints] = []
    parents: list[Ints] = []
    chains: list[Chain] = []
    size = 0
    before: Ints = np.empty(0, dtype=np.int64)
    before_path: Ints = np.empty(0, dtype=np.int64)
    for i in order:
        sequence = arrays[i]
        shared = common_prefix(before, sequence)
        path = before_path[:shared]
        if shared < len(sequence):
            new = np.arange(size, size + len(sequence) - shared, dtype=np.int64)
            ids.append(sequence[shared:])
            depths.append(np.arange(shared, len(sequence), dtype=np.int64))
            above = path[-1] if shared else -1
            parents.append(np.concatenate([np.asarray([above], dtype=np.int64), new[:-1]]))
            chains.append(Chain(start=size, end=size + len(new), above=path))
            path = np.concatenate([path, new])
            size += len(new)
            before, before_path = sequence, path
        paths[i] = path
    return PackedTree(
        ids=np.concatenate(ids),
        depths=np.concatenate(depths),
        parents=np.concatenate(parents),
        paths=tuple(paths),
        chains=tuple(chains),
    )


def blocks(chains: Sequence[Chain]) -> list[Block]:
    """What chains attend to above themselves: one block for all chains that hang on the same token."""
    hanging: dict[int, list[Chain]] = {}
    for chain in chains:
        if len(chain.above):
            hanging.setdefault(int(chain.above[-1]), []).append(chain)
    return [
        Block(
            queries=np.concatenate([np.arange(c.start, c.end, dtype=np.int64) for c in group]),
            keys=group[0].above,
        )
        for group in hanging.values()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A contiguous part [start, end) of a packed tree, and what it needs of the parts before.

    Queries are numbered from 0 at `start`; keys are the carried ones and then those of this chunk.
    """

    start: int
    end: int
    carried: Ints
    """Packed indices (ascending, all below `start`) whose keys and values come from earlier chunks."""
    chains: tuple[tuple[int, int], ...]
    """[start, end) of the causal runs, as queries."""
    blocks: tuple[Block, ...]


def chunks(tree: PackedTree, budget: int, *, skip: int = 0) -> list[Chunk]:
    """Cut a tree into parts of at most `budget` tokens, in order; chains may be cut.

    Args:
        skip: the first tokens that need no computing because their keys and values are at hand; they must
            lie on the first chain, before any branch.
    """
    if budget < 1:
        raise ValueError(f"the token budget must be at least 1, found {budget}")
    result = []
    first = 0
    for start in range(skip, len(tree), budget):
        end = min(start + budget, len(tree))
        while tree.chains[first].end <= start:
            first += 1
        runs: list[Chain] = []
        for chain in tree.chains[first:]:
            if chain.start >= end:
                break
            head = max(chain.start, start)
            above = np.concatenate([chain.above, np.arange(chain.start, head, dtype=np.int64)])
            runs.append(Chain(start=head, end=min(chain.end, end), above=above))
        parts = blocks(runs)
        earlier = [block.keys[block.keys < start] for block in parts]
        carried = np.unique(np.concatenate(earlier)) if earlier else np.empty(0, dtype=np.int64)
        moved = []
        for block in parts:
            old = np.searchsorted(carried, block.keys[block.keys < start])
            new = block.keys[block.keys >= start] - start + len(carried)
            moved.append(Block(queries=block.queries - start, keys=np.concatenate([old, new])))
        result.append(
            Chunk(
                start=start,
                end=end,
                carried=carried,
                chains=tuple((run.start - start, run.end - start) for run in runs),
                blocks=tuple(moved),
            )
        )
    return result
