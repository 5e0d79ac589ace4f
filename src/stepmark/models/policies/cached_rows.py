"""Texts that a policy writes together, a row each: reading a few more tokens of every row, and keeping their keys and values.

`PlannedRows` keeps keys and values itself, through transformers' attention interface (`attention.NAME`): it depends on no class of transformers.
`CachedRows` leaves them to the model's own cache: for architectures whose attention takes no plan, and for those that keep a window or a state.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from stepmark.models import attention

Layers = dict[Any, tuple[Tensor, Tensor]]
"""Layer -> keys and values, [rows, kv_heads, tokens, dim]."""


def last_only(model: Any) -> dict[str, int]:
    """The argument that makes a model compute the logits of its last token alone, where it has one."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


@final
class CachedRows:
    """Rows whose keys, values and states are in the model's own cache.

    Args:
        model: a causal language model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._last_only = last_only(model)
        # Its name since transformers 5.24, of the argument and of the output; architectures change one by one.
        self._name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._cache: Any = None
        self._mask: Tensor | None = None

    def active(self) -> AbstractContextManager[None]:
        """Wrapped around the calls of `read`."""
        return nullcontext()

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Read some more tokens of each row [rows, new], 0 in the mask where one is padding; the logits after the last, [rows, vocabulary]."""
        self._mask = mask if self._mask is None else torch.cat([self._mask, mask], dim=1)
        out = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=_positions(self._mask, ids.shape[1]),
            use_cache=True,
            **self._last_only,
            **({} if self._cache is None else {self._name: self._cache}),
        )
        self._cache = getattr(out, self._name)
        logits: Tensor = out.logits[:, -1]
        return logits

    def select(self, rows: Tensor, room: int) -> None:
        """Go on with these rows, each as often as it is named, with room for as many tokens more at first."""
        assert self._mask is not None
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]


@final
class PlannedRows:
    """Rows whose keys and values are kept here; it is an attention plan.

    Args:
        model: a causal language model whose attention takes a plan.
        layers: what was read already.
        mask: of that, [rows, tokens]; without it nothing was.
    """

    def __init__(self, model: Any, layers: Layers | None = None, mask: Tensor | None = None) -> None:
        self._model = model
        self._last_only = last_only(model)
        self._full: Layers = dict(layers or {})
        """They may have room for more tokens than were read."""
        self._mask = mask
        self._length = 0 if mask is None else mask.shape[1]
        self._padded = mask is not None and bool((mask == 0).any())
        self._seen: Tensor | None = None
        self._masks: dict[tuple[int, torch.device], Tensor] = {}

    def active(self) -> AbstractContextManager[None]:
        """See `CachedRows.active`."""
        return attention.planned(self._model.get_decoder())

    @property
    def length(self) -> int:
        """Tokens of a row that were read, with its padding."""
        return self._length

    def layers(self, row: int, first: int, end: int) -> Layers:
        """Keys and values of some tokens of a row, [1, kv_heads, tokens, dim]."""
        return {
            layer: (key[row : row + 1, :, first:end], value[row : row + 1, :, first:end])
            for layer, (key, value) in self._full.items()
        }

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """See `CachedRows.read`."""
        new, start = ids.shape[1], self._length
        if self._mask is None:
            self._padded = bool((mask == 0).any())
        self._mask = mask if self._mask is None else torch.cat([self._mask, mask], dim=1)
        self._masks = {}
        columns = torch.arange(start + new, device=mask.device)
        queries = columns[start:, None]
        # Padding looks at itself: a softmax over nothing would be NaN, and stay in the keys of the next layer.
        every = new == 1 and not self._padded
        self._seen = (
            None if every else (self._mask[:, None, None] > 0) & (columns <= queries) | (columns == queries)
        )
        out = self._model(
            input_ids=ids,
            position_ids=_positions(self._mask, new),
            use_cache=False,
            **self._last_only,
            **{attention.PLAN: self},
        )
        self._length = start + new
        logits: Tensor = out.logits[:, -1]
        return logits

    def attend(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Output [rows, new, heads, dim] of a layer's queries [rows, heads, new, dim]; its new keys and values are kept."""
        end = self._length + key.shape[2]
        if layer not in self._full:
            self._full[layer] = (key, value)
        else:
            if end > self._full[layer][0].shape[2]:
                every = torch.arange(len(key), device=key.device)
                self._full[layer] = _spread(self._full[layer], every, end)
            for full, added in zip(self._full[layer], (key, value), strict=True):
                full[:, :, self._length : end] = added
        key, value = (full[:, :, :end] for full in self._full[layer])
        rows, heads, new, dim = query.shape
        groups = heads // key.shape[1]
        # The query heads of one key head are just more queries: no key is copied for them.
        out = torch.nn.functional.scaled_dot_product_attention(
            query.reshape(rows, key.shape[1], groups * new, dim),
            key,
            value,
            attn_mask=self._mask_of(groups, query.device),
            scale=scale,
        )
        return out.reshape(rows, heads, new, -1).transpose(1, 2).contiguous()

    def _mask_of(self, groups: int, device: torch.device) -> Tensor | None:
        """What the queries of a pass look at, [rows, 1, groups * new, tokens]; None for everything. Equal in most layers."""
        if self._seen is None:
            return None
        if (groups, device) not in self._masks:
            self._masks[groups, device] = self._seen.to(device).repeat(1, 1, groups, 1)
        return self._masks[groups, device]

    def select(self, rows: Tensor, room: int) -> None:
        """See `CachedRows.select`."""
        assert self._mask is not None
        self._mask = self._mask[rows]
        for layer, pair in self._full.items():
            spare = pair[0].shape[2] - self._length
            self._full[layer] = _spread(pair, rows, max(0, room - spare))


def _positions(mask: Tensor, new: int) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)[:, -new:]


def _spread(pair: tuple[Tensor, Tensor], rows: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """These rows of keys and values, with zeros for `room` more tokens."""
    key, value = pair
    return _wider(key, rows, room), _wider(value, rows, room)


def _wider(tensor: Tensor, rows: Tensor, room: int) -> Tensor:
    full = tensor.new_zeros(len(rows), tensor.shape[1], tensor.shape[2] + room, tensor.shape[3])
    full[:, :, : tensor.shape[2]] = tensor[rows.to(tensor.device)]
    return full
