"""A key-value cache with room for tokens to come.

transformers' own copies all keys and values once a token, which for small models costs more than computing them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, of shape [rows, heads, tokens, width], at the beginning of larger tensors.

    Args:
        layer: what it begins with, of rows that are spread.
        rows: for each row of this layer, the row of `layer` that it begins with; shape [rows].
        room: tokens more that it has room for at once; beyond that it grows.
    """

    def __init__(self, layer: DynamicLayer, rows: Tensor, room: int) -> None:
        super().__init__()
        self.dtype, self.device = layer.dtype, layer.device
        self.is_initialized = True
        self._length = layer.get_seq_length()
        self._keys = _spread(layer.keys, rows, room)
        self._values = _spread(layer.values, rows, room)
        self._show()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new tokens behind the others; all keys and values so far."""
        end = self._length + key_states.shape[-2]
        if end > self._keys.shape[-2]:
            every = torch.arange(self._keys.shape[0], device=self._keys.device)
            self._keys, self._values = (_spread(full, every, end) for full in (self._keys, self._values))
        self._keys[:, :, self._length : end] = key_states
        self._values[:, :, self._length : end] = value_states
        self._length = end
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        self._keys, self._values = self._keys[indices], self._values[indices]
        self._show()

    def _show(self) -> None:
        self.keys, self.values = self._keys[:, :, : self._length], self._values[:, :, : self._length]


def _spread(tensor: Tensor, rows: Tensor, room: int) -> Tensor:
    """These rows of a tensor, with zeros for `room` more tokens."""
    count, heads, tokens, width = len(rows), *tensor.shape[1:]
    full = tensor.new_zeros(count, heads, tokens + room, width)
    full[:, :, :tokens] = tensor[rows]
    return full


def spread(cache: Any, rows: Tensor, room: int) -> None:
    """Make a cache of prompts one of samples, in place: row i goes on from prompt `rows[i]`.

    Layers of other kinds than the plain one (sliding windows, states of linear attention) stay as they are made.
    """
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.get_seq_length():
            cache.layers[place] = RoomyLayer(layer, rows, room)
        else:
            layer.batch_select_indices(rows)
