"""The engine: many sequences in, hidden states where they are wanted out, every distinct prefix once.

Sequences that are given together form one packed tree (`tree.py`), computed in chunks of a token budget, so
memory is bounded by the budget and one path of keys and values. Between calls the engine keeps the keys and
values of the prefix that all sequences of the last call shared: a template's opening is computed once in a
run, and a problem once for all calls about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models import attention
from stepmark.models.prm import Ledger
from stepmark.models.tree import Chunk, Ints, PackedTree, chunks, common_prefix, pack

Take = Callable[[Ints, Tensor], None]
"""Receives (packed indices [rows], hidden states [rows, hidden]) chunk by chunk."""

Item = TypeVar("Item")


class Engine:
    """Runs a backbone over packed prefix trees.

    Args:
        backbone: a decoder whose attention is `attention.NAME`.
        device: where it stands.
        token_budget: tokens a forward pass; bounds memory.
        ledger: counts what is computed.
    """

    def __init__(self, backbone: Any, *, device: str, token_budget: int, ledger: Ledger) -> None:
        self.backbone = backbone
        self.device = device
        self.token_budget = token_budget
        self.ledger = ledger
        self._root: Ints = np.empty(0, dtype=np.int64)
        self._root_state: dict[int, tuple[Tensor, Tensor]] = {}

    def run(
        self,
        sequences: Sequence[Ints],
        wanted: Callable[[PackedTree], Ints],
        take: Callable[[PackedTree], Take],
    ) -> PackedTree:
        """Compute the hidden states of some tokens.

        Args:
            sequences: token ids, none empty.
            wanted: from the tree, the packed indices (ascending, distinct) whose hidden state is read.
            take: from the tree, the function that receives them; each index comes exactly once.

        Returns:
            The tree, whose `paths` tell which index is which sequence's token.
        """
        tree = pack(sequences)
        known = int(self.backbone.config.vocab_size)
        if int(tree.ids.max()) >= known:
            # On a GPU this would be an assertion in a kernel, after which nothing works.
            raise CheckpointError(
                f"the tokenizer gives the token {int(tree.ids.max())} and the model has {known}: they are not of one checkpoint"
            )
        rows = wanted(tree)
        receive = take(tree)
        if len(rows) == 0:
            return tree
        # What all sequences share, short of the first token that is read: a read needs its hidden state.
        shared = min(int(rows[0]), *(common_prefix(tree.paths[0], path) for path in tree.paths))
        opening = tree.ids[:shared]
        skip = common_prefix(self._root, opening)
        parts = chunks(tree, self.token_budget, skip=skip)
        carried = {layer: (k[:, :, :skip], v[:, :, :skip]) for layer, (k, v) in self._root_state.items()}
        self.ledger.tokens_in += sum(len(s) for s in sequences)
        self.ledger.tokens_distinct += len(tree) - skip
        with torch.inference_mode():
            for i, part in enumerate(parts):
                after = parts[i + 1].carried if i + 1 < len(parts) else np.empty(0, dtype=np.int64)
                # Of the chunks, the one with the token after the opening has the whole opening at hand.
                kept = opening if part.start <= shared < part.end else None
                carried = self._chunk(tree, part, carried, after, kept, rows, receive)
        return tree

    def _chunk(
        self,
        tree: PackedTree,
        part: Chunk,
        carried: dict[int, tuple[Tensor, Tensor]],
        after: Ints,
        opening: Ints | None,
        rows: Ints,
        receive: Take,
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """One forward pass; returns the keys and values that the next chunk needs."""
        have = np.concatenate([part.carried, np.arange(part.start, part.end, dtype=np.int64)])
        # The opening's tokens are the first packed ones: their index is their position.
        root = have[have < (len(opening) if opening is not None else 0)]
        keep = np.union1d(after, root)
        plan = attention.Plan.of_chunk(part, self.device)
        plan.carried = carried
        plan.keep = torch.from_numpy(np.searchsorted(have, keep)).to(self.device)
        low, high = np.searchsorted(rows, [part.start, part.end])
        hidden = self.backbone(
            input_ids=self._tensor(tree.ids[part.start : part.end])[None],
            position_ids=self._tensor(tree.depths[part.start : part.end])[None],
            use_cache=False,
            stepmark_plan=plan,
        ).last_hidden_state[0]
        self.ledger.tokens_computed += part.end - part.start
        if high > low:
            here = rows[low:high]
            receive(here, hidden[self._tensor(here - part.start)])
        if opening is not None:
            n = len(root)
            self._root = opening[:n]
            self._root_state = {
                layer: (k[:, :, :n].clone(), v[:, :, :n].clone()) for layer, (k, v) in plan.kept.items()
            }
        pick = torch.from_numpy(np.searchsorted(keep, after)).to(self.device)
        return {layer: (k[:, :, pick], v[:, :, pick]) for layer, (k, v) in plan.kept.items()}

    def _tensor(self, values: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)


def windows(items: Iterable[tuple[str, int, Item]], budget: int) -> Iterator[list[Item]]:
    """Group a stream so that items of one key stay together and a group has about `budget` tokens.

    Args:
        items: (key, tokens, item); neighbours of one key belong together (candidates of one problem).
        budget: tokens after which a group ends, at the next change of key; a key that alone has more than
            16 times as many is cut, to bound memory, and its prefix is then computed once in each part.
    """
    group: list[Item] = []
    size = 0
    before: str | None = None
    for key, tokens, item in items:
        if group and ((key != before and size >= budget) or size >= 16 * budget):
            yield group
            group, size = [], 0
        group.append(item)
        size += tokens
        before = key
    if group:
        yield group
