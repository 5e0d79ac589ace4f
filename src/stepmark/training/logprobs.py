"""Log-probabilities of tokens of packed trees, with their gradient, in bounded memory.

Each distinct (parent, token) is computed once. Vocabulary logits are made only for tokens that have a wanted token after them, a slice at
a time, and again in the backward pass instead of being kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from stepmark.errors import CheckpointError
from stepmark.models.packed_tree import Ints
from stepmark.training.packing import TrainingItem

SLICE = 256
"""Rows of vocabulary logits at a time."""


def answer_tokens(batch: Sequence[TrainingItem]) -> Ints:
    """Packed indices of all tokens of all answers (`Row.answer` and on), each once, of trees laid one after the other."""
    indices: list[Ints] = []
    at = 0
    for item in batch:
        indices += [at + row.path[row.answer :] for row in item.rows]
        at += len(item.tree)
    return np.unique(np.concatenate(indices)) if indices else np.empty(0, dtype=np.int64)


def token_logprobs(hidden: Tensor, output: Tensor, batch: Sequence[TrainingItem], places: Ints) -> Tensor:
    """Log-probability of the `wanted` tokens, each given the path above it: [tokens], float32, 0 elsewhere. `output` is [vocabulary, hidden]."""
    ids = np.concatenate([item.tree.ids for item in batch])
    starts = np.cumsum([0, *(len(item.tree) for item in batch)])
    parents = np.concatenate(
        [
            np.where(item.tree.parents < 0, -1, item.tree.parents + start)
            for item, start in zip(batch, starts[:-1], strict=True)
        ]
    )
    if (parents[places] < 0).any():
        raise CheckpointError("a token is needed before the answer, and the template gives none")
    targets = places[np.argsort(parents[places], kind="stable")]
    above, rows = np.unique(parents[targets], return_inverse=True)
    parts = []
    for low in range(0, len(above), SLICE):
        rows_ = slice(*np.searchsorted(rows, [low, low + SLICE]))
        states = hidden[_tensor(above[low : low + SLICE], hidden)]
        args = (states, output, _tensor(rows[rows_] - low, hidden), _tensor(ids[targets[rows_]], hidden))
        if torch.is_grad_enabled():
            parts.append(checkpoint(_picked, *args, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_picked(*args))
    every = torch.zeros(len(ids), dtype=torch.float32, device=hidden.device)
    return every.index_copy(0, _tensor(targets, hidden), torch.cat(parts)) if parts else every


def _picked(hidden: Tensor, output: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    logits = (hidden.to(output.dtype) @ output.T).float()
    return logits[rows, ids] - logits.logsumexp(-1)[rows]


def _tensor(numbers: Ints, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(like.device)
