"""What a policy in this process keeps of the prompts that it was given and of what it has written: keys and values, as a PRM's session does.

A search asks a policy to go on from prefixes that it has read or written before. With a `PromptCache` only what is new of a prompt is
computed, for all prompts of a batch in one packed pass (`models.engine`), except for its last token, which every request needs again:
its logits say what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from stepmark.models import attention
from stepmark.models.engine import Known, PrefixCache, hidden_states
from stepmark.models.prm import Reading
from stepmark.models.tree import Ints, pack

_PROBE = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8])
"""Two texts that part after three tokens, counted from the middle of the vocabulary: the first tokens are for control, and few models
have learnt what follows them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Begun:
    """Prompts that were read."""

    out: Any
    """At their last tokens, and with the model's cache."""
    mask: Tensor
    positions: Tensor
    """Padded on the left, both."""
    kept: PromptCache | None
    """Where what is written after them is kept; None for nowhere."""


@final
class PromptCache:
    """Keys and values of prompts and of what was written after them.

    Args:
        model: a causal language model for which `why_not` says nothing. Its weights must stay as they are.
        memory_tokens: tokens kept at most.
    """

    def __init__(self, model: Any, memory_tokens: int) -> None:
        self._model = model
        self._cache = PrefixCache([_Decoder(model)], capacity=memory_tokens, states=False)

    def begin(
        self,
        prompts: Sequence[list[int]],
        forward: Callable[[Tensor, Tensor, Tensor, Any], Any],
        read: Reading,
    ) -> Begun | None:
        """Read prompts, and what the model says after them.

        Args:
            prompts: token ids, none empty.
            forward: (token ids, mask, positions, cache) -> output, of the model as it is.
            read: counts.

        Returns:
            None where the prompts do not fit the memory, or none has two tokens.
        """
        known = [np.asarray(prompt[:-1], dtype=np.int64) for prompt in prompts]
        longer = [place for place, ids in enumerate(known) if len(ids)]
        room = self._cache.pool.capacity
        if not longer or (
            sum(len(ids) for ids in known) > room and len(pack([known[place] for place in longer])) > room
        ):
            return None
        held = self._cache.hold([Known(ids=known[place]) for place in longer])
        read.computed += held.computed + len(prompts)
        read.again += held.again
        read.forgotten = self._cache.evicted
        width = max(len(ids) for ids in known)
        slots = np.zeros((len(prompts), width), dtype=np.int64)
        for place, mine in zip(longer, held.slots, strict=True):
            slots[place, width - len(mine) :] = mine
        device = self._model.device
        past = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in known])
        mask = torch.cat([past, past.new_ones(len(prompts), 1)], dim=1).to(device)
        positions = torch.tensor([[len(ids)] for ids in known], device=device)
        last = torch.tensor([[prompt[-1]] for prompt in prompts], device=device)
        out = forward(last, mask, positions, self._filled(slots))
        return Begun(out=out, mask=mask, positions=positions, kept=self)

    def keep(self, ids: Sequence[int], cache: Any, row: int, first: int, column: int) -> None:
        """Keep what was written, where there is room.

        Args:
            ids: prompt and text, up to the last token that the model has read.
            cache: the model's, after that.
            row: whose they are.
            first: the place in `ids` of the first token to be kept.
            column: where that stands in the cache.
        """
        end = column + len(ids) - first
        kept = {
            number: (layer.keys[row : row + 1, :, column:end], layer.values[row : row + 1, :, column:end])
            for number, layer in enumerate(cache.layers)
        }
        self._cache.add(np.asarray(ids, dtype=np.int64), kept, first)

    def __len__(self) -> int:
        """Tokens that are held."""
        return len(self._cache)

    def _filled(self, slots: Ints) -> Any:
        """A cache of transformers with the keys and values in some slots, [rows, tokens]."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        for layer, pair in sorted(self._cache.read(slots.reshape(-1)).items()):
            key, value = (
                tensor_of_slots[0]
                .reshape(tensor_of_slots.shape[1], *slots.shape, tensor_of_slots.shape[3])
                .transpose(0, 1)  # [rows, heads, tokens, width]
                for tensor_of_slots in pair
            )
            cache.update(key, value, layer)
        return cache


def why_not(model: Any) -> str:
    """Why a `PromptCache` cannot be used with a causal language model; "" where it can.

    It is tried out: two texts that share their beginning must give the keys and values that the model itself gives.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    layers = DynamicCache(config=model.config).layers
    if not all(type(layer) is DynamicLayer for layer in layers):
        return "its layers keep a window or a state, and not all keys and values"
    try:
        with torch.inference_mode():
            trial = PrefixCache([_Decoder(model)], capacity=32, states=False)
            middle = int(model.get_input_embeddings().weight.shape[0]) // 2
            texts = [middle + np.asarray(ids, dtype=np.int64) for ids in _PROBE]
            held = trial.hold([Known(ids=ids) for ids in texts])
            apart = np.zeros(len(layers))
            for ids, slots in zip(texts, held.slots, strict=True):
                tokens = torch.from_numpy(ids)[None].to(model.device)
                own = model(input_ids=tokens, use_cache=True).past_key_values.layers
                ours = trial.read(slots)
                if sorted(ours) != list(range(len(own))):
                    return "its attention does not take a plan"
                for number, layer in enumerate(own):
                    for mine, other in zip(ours[number], (layer.keys, layer.values), strict=True):
                        gap = float((mine - other).float().norm() / other.float().norm())
                        apart[number] = max(apart[number], gap)
    except Exception as error:  # whatever an architecture makes of arguments that it does not know
        return f"its attention does not take a plan ({type(error).__name__})"
    # Another mask in one layer gives other keys altogether in the next; rounding gives almost the same, and adds up over the layers.
    first, most = (1e-3, 1e-3) if model.dtype == torch.float32 else (0.03, 0.3)
    if not (apart[:2].max() < first and apart.max() < most):
        return "its keys and values depend on more than the plan says"
    return ""


class _Decoder:
    """A causal language model's decoder as a `PrefixCache` asks it."""

    def __init__(self, model: Any) -> None:
        attention.register()
        self._decoder = model.get_decoder()
        self.device = str(model.device)
        self.token_budget = 16384 if self.device.startswith("cuda") else 2048

    def forward(self, ids: Ints, positions: Ints, plan: attention.Plan) -> Tensor:
        """See `models.engine.Backbone`."""
        with _planned(self._decoder):
            return hidden_states(self._decoder, ids, positions, plan, self.device)


@contextmanager
def _planned(decoder: Any) -> Iterator[None]:
    """For a while, attention is ours: writing token by token is faster with the model's own."""
    own = decoder.config._attn_implementation
    decoder.set_attn_implementation(attention.NAME)
    try:
        yield
    finally:
        decoder.set_attn_implementation(own)


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
