"""Keys and values of single tokens, in slots that are taken and given back: the memory under a scoring session."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.models.tree import Ints

_FIRST = 1024

Kept = dict[Any, tuple[Tensor, Tensor]]
"""Layer -> keys and values, [1, kv_heads, tokens, head_dim]. What names a layer is the owner's choice."""


class KeyValuePool:
    """Slots for the keys and values of every layer, one token a slot. Grows as needed, up to its capacity.

    Args:
        capacity: tokens, at most.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.peak = 0
        """The most tokens that were held at once."""
        self._layers: Kept = {}
        """Layer -> keys and values, [kv_heads, room, head_dim]."""
        self._free: list[int] = []
        self._room = 0

    @property
    def layers(self) -> list[Any]:
        """The names of the layers that were written."""
        return list(self._layers)

    @property
    def held(self) -> int:
        """Tokens that are held."""
        return self._room - len(self._free)

    @property
    def left(self) -> int:
        """Tokens that can still be taken."""
        return self.capacity - self.held

    @property
    def bytes(self) -> int:
        """Of all tensors, filled or not."""
        return sum(t.numel() * t.element_size() for pair in self._layers.values() for t in pair)

    def take(self, count: int) -> Ints:
        """As many free slots."""
        if count > self.left:
            raise ValueError(f"the pool has room for {self.left} tokens, not for {count}")
        if count > len(self._free):
            room = min(self.capacity, max(_FIRST, 2 * self._room, self._room + count - len(self._free)))
            self._free = [*range(room - 1, self._room - 1, -1), *self._free]
            self._grow(room)
        slots = [self._free.pop() for _ in range(count)]
        self.peak = max(self.peak, self.held)
        return np.asarray(slots, dtype=np.int64)

    def give(self, slots: Sequence[int] | Ints) -> None:
        """Give slots back."""
        self._free.extend(int(slot) for slot in slots)

    def write(self, slots: Ints, kept: Mapping[Hashable, tuple[Tensor, Tensor]]) -> None:
        """Fill slots: layer -> keys and values, [1, kv_heads, slots, head_dim]."""
        for layer, (key, value) in kept.items():
            if layer not in self._layers:
                self._layers[layer] = (self._empty(key), self._empty(value))
            where = torch.from_numpy(slots).to(key.device)
            for tensor, new in zip(self._layers[layer], (key, value), strict=True):
                tensor[:, where] = new[0]

    def read(self, slots: Ints, layers: Iterable[Any] | None = None) -> Kept:
        """Layer -> keys and values of some slots, [1, kv_heads, slots, head_dim]; of some layers, None for all."""
        found: Kept = {}
        for layer in self._layers if layers is None else layers:
            key, value = self._layers[layer]
            where = torch.from_numpy(slots).to(key.device)
            found[layer] = (key.index_select(1, where)[None], value.index_select(1, where)[None])
        return found

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_empty(like.shape[1], self._room, like.shape[3])

    def _grow(self, room: int) -> None:
        before, self._room = self._room, room
        for layer, pair in self._layers.items():
            grown = tuple(self._grown(t, before, room) for t in pair)
            self._layers[layer] = (grown[0], grown[1])

    @staticmethod
    def _grown(tensor: Tensor, before: int, room: int) -> Tensor:
        grown = tensor.new_empty(tensor.shape[0], room, tensor.shape[2])
        grown[:, :before] = tensor[:, :before]
        return grown
