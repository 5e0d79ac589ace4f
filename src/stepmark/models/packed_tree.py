"""Token sequences as one prefix tree, laid out flat so that every distinct prefix token stands once.

The layout is depth-first: sort the sequences, and each sequence adds only the tokens past its common prefix
with the one before. So the tokens below a token, its subtree, are the run that follows it, and one number a token,
where that run ends, tells all of attention: token q looks at token k if `k <= q < ends[k]`.

What is to be computed of a tree is cut into passes of a token budget along the same order; a pass needs from before only the keys on the path to
its first token and those that it branches off (`Pass.held`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedTree:
    """Distinct prefix tokens of some sequences, in depth-first order.

    Shapes: `ids`, `depths`, `parents`, `ends` are [tokens]; `paths[i]` is [len(sequence i)].
    """

    ids: Ints
    """Token ids."""
    depths: Ints
    """Position of each token in its sequence: the position that the network reads."""
    parents: Ints
    """Packed index of the token before; -1 at a root."""
    paths: tuple[Ints, ...]
    """For each sequence as given, the packed index of each of its tokens."""
    ends: Ints
    """One past the last token below each token: tokens `[i, ends[i])` are i and what continues from it."""

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
    ends = np.zeros(sum(map(len, arrays)), dtype=np.int64)
    size = 0
    before: Ints = np.empty(0, dtype=np.int64)
    before_path: Ints = np.empty(0, dtype=np.int64)
    for i in order:
        sequence = arrays[i]
        shared = common_prefix(before, sequence)
        path = before_path[:shared]
        if shared < len(sequence):
            # What the sequence before had past the common prefix is continued by none that follows.
            ends[before_path[shared:]] = size
            new = np.arange(size, size + len(sequence) - shared, dtype=np.int64)
            ids.append(sequence[shared:])
            depths.append(np.arange(shared, len(sequence), dtype=np.int64))
            above = path[-1] if shared else -1
            parents.append(np.concatenate([np.asarray([above], dtype=np.int64), new[:-1]]))
            path = np.concatenate([path, new])
            size += len(new)
            before, before_path = sequence, path
        paths[i] = path
    ends[before_path] = size
    return PackedTree(
        ids=np.concatenate(ids),
        depths=np.concatenate(depths),
        parents=np.concatenate(parents),
        paths=tuple(paths),
        ends=ends[:size],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Tokens of a packed tree that go through the network together, and how they attend: query q looks at key k where `since[k] <= q < until[k]`.

    Queries are numbered from 0 in the order of `part`; keys are those of `held` and then those of `part`.
    """

    part: Ints
    """Packed indices of the tokens to compute, ascending."""
    held: Ints
    """Packed indices, ascending, of the tokens that they look at and whose keys and values are stored."""
    since: Ints
    """[keys]: the first query that looks at each key."""
    until: Ints
    """[keys]: one past the last."""


def passes(tree: PackedTree, new: Ints, budget: int) -> Iterator[Pass]:
    """Cut what is to be computed of a tree into parts of at most `budget` tokens, in order.

    Args:
        tree: the packed tree.
        new: packed indices of the tokens to compute, ascending; the others are stored already.
        budget: tokens a pass.

    Raises:
        ValueError: a budget below 1.
    """
    if budget < 1:
        raise ValueError(f"the token budget must be at least 1, found {budget}")
    stored = np.ones(len(tree), dtype=bool)
    stored[new] = False
    before = np.concatenate([[0], np.cumsum(~stored)])
    since, until = before[:-1], before[tree.ends]
    for start in range(0, len(new), budget):
        part = new[start : start + budget]
        end = start + len(part)
        held = np.flatnonzero((stored | (since < start)) & (since < end) & (until > start))
        yield Pass(
            part=part,
            held=held,
            since=np.concatenate([np.maximum(since[held] - start, 0), np.arange(len(part))]),
            until=np.minimum(until[np.concatenate([held, part])], end) - start,
        )
