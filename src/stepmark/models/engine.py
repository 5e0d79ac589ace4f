"""The prefix computer: every distinct prefix goes through the network once.

Texts that are given together form one packed tree (`tree.py`); what is not stored of it goes through the network in passes of a token budget
(`tree.passes`, `computed`), and keys and values lie in a `KeyValuePool`. Two owners decide what stays there:

`Engine.run` scores in bulk: tokens are freed when no later one looks at them, so memory is bounded by the budget and one path. Between calls
it keeps the prefix that all sequences of the last call shared.

`PrefixCache` serves sessions and policies, whose texts grow: tokens stay until room is needed, then the least recently used are evicted. A text is looked
up token by token. What is evicted and computed again is counted (`KeyValueSlots.again`).
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.backbone import token_limit
from stepmark.models.decoder import Decoder
from stepmark.models.packed_tree import Ints, PackedTree, Pass, common_prefix, pack, passes
from stepmark.models.prm import Ledger
from stepmark.words import amount

Kept = dict[Any, tuple[Tensor, Tensor]]
"""Layer -> keys and values, [1, kv_heads, tokens, head_dim]. The owner chooses the names of the layers."""
Item = TypeVar("Item")

NONE: Ints = np.empty(0, dtype=np.int64)
"""No tokens, no slots."""
_FIRST = 1024
_GHOSTS = 4
"""Evicted tokens that are recognised when they come again, as a multiple of the capacity."""
_FEWEST_GHOSTS = 1 << 14
"""At least as many; a small memory would otherwise forget at once what it evicted. Each costs about a hundred bytes."""
_STATE = -1
"""The layer under which hidden states lie in the pool."""


class Backbone(Protocol):
    """A network whose attention takes a plan (`attention.NAME`)."""

    @property
    def device(self) -> str:
        """Where it computes."""

    @property
    def token_budget(self) -> int:
        """Tokens a forward pass."""

    def forward(self, ids: Ints, positions: Ints, plan: attention.Plan) -> Tensor:
        """Hidden states [tokens, hidden] of token ids at positions, [tokens] each."""


class Engine:
    """Runs a backbone over packed prefix trees.

    Args:
        backbone: a decoder whose attention is `attention.NAME`.
        device: where it stands.
        token_budget: tokens a forward pass; bounds memory.
        ledger: counts what is computed.
    """

    def __init__(self, backbone: Any, *, device: str, token_budget: int, ledger: Ledger) -> None:
        self.backbone, self.device = backbone, device
        self.token_budget, self.ledger = token_budget, ledger
        self._pool = KeyValuePool(sys.maxsize)
        self._root: Ints = NONE
        self._root_slots: Ints = NONE

    @property
    def vocabulary(self) -> int:
        """Tokens that the network has."""
        return int(self.backbone.config.vocab_size)

    @property
    def token_limit(self) -> int | None:
        """Tokens that the network reads at most; see `backbone.token_limit`."""
        return token_limit(self.backbone.config)

    def forward(self, ids: Ints, positions: Ints, plan: attention.Plan) -> Tensor:
        """See `Backbone.forward`."""
        return hidden_states(self.backbone, ids, positions, plan, self.device)

    def run(self, tree: PackedTree, rows: Ints) -> Tensor:
        """Compute the hidden states of some tokens; keys and values are freed as soon as no later token looks at them.

        Args:
            tree: all distinct prefixes.
            rows: the packed indices whose hidden state is read; ascending, distinct, at least one.

        Returns:
            Hidden states [rows, hidden], on the engine's device.
        """
        check_vocabulary(tree.ids, self.vocabulary)
        # What all sequences share, short of the first token that is read: a read needs its hidden state.
        shared = min(int(rows[0]), *(common_prefix(tree.paths[0], path) for path in tree.paths))
        skip = common_prefix(self._root, tree.ids[:shared])
        slots = np.full(len(tree), -1, dtype=np.int64)
        slots[:skip] = self._root_slots[:skip]
        self._pool.give(self._root_slots[skip:])
        self.ledger.tokens_in += sum(map(len, tree.paths))
        self.ledger.tokens_distinct += len(tree) - skip
        states = []
        try:
            with torch.inference_mode():
                for part in passes(tree, np.arange(skip, len(tree), dtype=np.int64), self.token_budget):
                    end = int(part.part[-1]) + 1
                    keep = part.part[(tree.ends[part.part] > end) | (part.part < shared)]
                    carried = self._pool.read(slots[part.held])
                    hidden, kept = computed(self, tree, part, carried, keep - int(part.part[0]))
                    self.ledger.tokens_computed += len(part.part)
                    slots[keep] = self._pool.take(len(keep))
                    self._pool.write(slots[keep], kept)
                    self._pool.give(slots[part.held[(tree.ends[part.held] <= end) & (part.held >= shared)]])
                    inside = rows[(rows >= part.part[0]) & (rows < end)]
                    states.append(hidden[attention.moved(inside - part.part[0], hidden.device)])
        except BaseException:  # slots of the run may be half filled
            self._pool, self._root, self._root_slots = KeyValuePool(sys.maxsize), NONE, NONE
            raise
        self._root, self._root_slots = tree.ids[:shared], slots[:shared]
        return torch.cat(states)


def computed(
    backbone: Backbone, tree: PackedTree, part: Pass, carried: Kept, keep: Ints
) -> tuple[Tensor, Kept]:
    """One forward pass over stored keys.

    Args:
        backbone: the network.
        tree: what the tokens are of.
        part: the tokens.
        carried: keys and values of `part.held`, by layer.
        keep: which of the tokens' keys and values are returned, counted from the first of them; ascending.

    Returns:
        Hidden states [tokens, hidden], and keys and values by layer, [1, kv_heads, keep, head_dim].
    """
    plan = attention.Plan.of_pass(part, backbone.device)
    if len(part.held):
        plan.carried = carried
    plan.keep = attention.moved(len(part.held) + keep, backbone.device)
    hidden = backbone.forward(tree.ids[part.part], tree.depths[part.part], plan)
    return hidden, plan.kept


_FEWEST, _MOST = 2048, 16_384
"""Tokens of a pass by default. More make no product faster, and a server would answer later."""


def token_budget(backbone: Any, device: str) -> int:
    """The default number of tokens of a forward pass: 2,048 on a CPU; on CUDA what half of the free memory has room for, from 2,048 to 16,384.

    A token takes the inputs and outputs of one layer, and keys and values of all layers twice, stored and read. Call it once the weights are there.
    """
    if torch.device(device).type != "cuda":
        return _FEWEST
    free, _ = torch.cuda.mem_get_info(device)
    return fitting(backbone, free // 2)


def fitting(backbone: Any, memory: int) -> int:
    """Tokens of a pass that `memory` bytes have room for, from 2,048 to 16,384; see `token_budget`."""
    config = backbone.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    dim = getattr(config, "head_dim", None) or hidden // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    numbers = 8 * hidden + 4 * inner + 4 * config.num_hidden_layers * groups * dim
    return max(_FEWEST, min(_MOST, memory // int(numbers * backbone.dtype.itemsize)))


def hidden_states(network: Any, ids: Ints, positions: Ints, plan: attention.Plan, device: str) -> Tensor:
    """One forward pass of a decoder whose attention takes a plan; see `Backbone.forward`."""
    tokens, places = (attention.moved(x, device) for x in (ids, positions))
    hidden: Tensor
    if isinstance(network, Decoder):
        hidden = network(tokens, places, plan)
    else:
        hidden = network(
            input_ids=tokens[None], position_ids=places[None], use_cache=False, stepmark_plan=plan
        ).last_hidden_state[0]
    return hidden


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


def check_vocabulary(ids: Ints, vocabulary: int) -> None:
    """Refuse (`CheckpointError`) token ids that the network does not have; on a GPU they would end in a failed kernel, after which nothing works."""
    if int(ids.max()) >= vocabulary:
        raise CheckpointError(
            f"the tokenizer gives the token {int(ids.max())} and the model has {vocabulary}: they are not of one checkpoint"
        )


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
            raise ValueError(f"the pool has room for {amount(self.left, 'token')}, not for {count}")
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
        places: dict[torch.device, Tensor] = {}
        for layer, (key, value) in kept.items():
            if layer not in self._layers:
                self._layers[layer] = (self._empty(key), self._empty(value))
            where = _copied(slots, key.device, places)
            for tensor, new in zip(self._layers[layer], (key, value), strict=True):
                tensor[:, where] = new[0]

    def read(self, slots: Ints, layers: Iterable[Any] | None = None) -> Kept:
        """Layer -> keys and values of some slots, [1, kv_heads, slots, head_dim]; of some layers, None for all."""
        stored: Kept = {}
        places: dict[torch.device, Tensor] = {}
        for layer in self._layers if layers is None else layers:
            key, value = self._layers[layer]
            where = _copied(slots, key.device, places)
            stored[layer] = (key.index_select(1, where)[None], value.index_select(1, where)[None])
        return stored

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_empty(like.shape[-3], self._room, like.shape[-1])

    def _grow(self, room: int) -> None:
        before, self._room = self._room, room
        for layer, pair in self._layers.items():
            key, value = self._layers[layer] = (self._empty(pair[0]), self._empty(pair[1]))
            for tensor, old in zip((key, value), pair, strict=True):
                tensor[:, :before] = old


def _copied(slots: Ints, device: torch.device, places: dict[torch.device, Tensor]) -> Tensor:
    """Slots on a device: one copy a pass and device, not one a layer."""
    if device not in places:
        places[device] = attention.moved(slots, device)
    return places[device]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyValueSlots:
    """Texts that are held now."""

    slots: tuple[Ints, ...]
    """For each, where its tokens lie."""
    computed: int
    """Tokens that went through the network."""
    again: int
    """Of those, what had been forgotten."""


@final
class PrefixCache:
    """Keys and values of prefixes, in a tree.

    Args:
        backbones: networks that read the same tokens; all stand on one device.
        capacity: tokens kept at most, at least one (else a `UsageError`).
        states: keep the last layer's hidden state of every token too.
    """

    def __init__(self, backbones: Sequence[Backbone], *, capacity: int, states: bool) -> None:
        if capacity < 1:
            raise UsageError(f"a cache of prefixes needs room for at least one token, found {capacity}")
        self.pool = KeyValuePool(capacity)
        self.evicted = 0
        """Tokens forgotten for want of memory."""
        self.value: npt.NDArray[np.float64] = np.empty(0)
        """A number that the owner keeps of the token in each slot; NaN when a token is entered."""
        self._backbones, self._states = tuple(backbones), states
        self._child: dict[tuple[int, int], int] = {}
        self._parent, self._token, self._kids, self._used = (np.zeros(0, dtype=np.int64) for _ in range(4))
        self._held = np.zeros(0, dtype=bool)
        """Whether each slot holds a token."""
        self._mark: list[int] = []
        self._ghosts: dict[int, None] = {}
        self._now = 0

    def __len__(self) -> int:
        """Tokens that are held."""
        return self.pool.held

    def hold(self, texts: Sequence[Ints]) -> KeyValueSlots:
        """Compute what some texts lack, together; all of their tokens are then held, until the next call.

        Args:
            texts: token ids of at least one text, none empty; together no more tokens than the capacity (else a `CheckpointError`).
        """
        self._now += 1
        tree = pack(texts)
        slots = np.full(len(tree), -1, dtype=np.int64)
        for ids, path in zip(texts, tree.paths, strict=True):
            stored = self._found(ids)
            slots[path[: len(stored)]] = stored
        self._used[slots[slots >= 0]] = self._now
        new = np.flatnonzero(slots < 0)
        self._make_room(len(new))
        budget, again = min(backbone.token_budget for backbone in self._backbones), 0
        with torch.inference_mode():
            # A slot is what a token has had through all of this: no text of the call forgets another's.
            for part in passes(tree, new, budget):
                kept = self._computed(tree, part, slots[part.held])
                again += self._enter(tree.ids, tree.parents, slots, part.part)
                self.pool.write(slots[part.part], kept)
        return KeyValueSlots(slots=tuple(slots[path] for path in tree.paths), computed=len(new), again=again)

    def add(self, ids: Ints, kept: Kept, first: int) -> None:
        """Enter tokens that were computed elsewhere, such as those that a policy has written; they are left out where there is no room.

        Args:
            ids: a whole text.
            kept: keys and values of the first backbone, by layer, [1, kv_heads, len(ids) - first, head_dim].
            first: of which token the first of them are. Those before it must be held, or nothing is entered.
        """
        self._now += 1
        stored = self._found(ids)
        self._used[stored] = self._now
        have = len(stored)
        if have < first or have == len(ids) or len(ids) > self.pool.capacity:
            return
        self._make_room(len(ids) - have)
        slots = np.concatenate([stored, np.full(len(ids) - have, -1, dtype=np.int64)])
        part = np.arange(have, len(ids), dtype=np.int64)
        self._enter(ids, np.arange(-1, len(ids) - 1, dtype=np.int64), slots, part)
        self.pool.write(
            slots[part],
            {
                (0, layer): (key[:, :, have - first :], value[:, :, have - first :])
                for layer, (key, value) in kept.items()
            },
        )

    def clear(self) -> None:
        """Forget everything: after a failure, when it is not known which slots were filled."""
        self._child.clear()
        self._held[:] = False
        self._kids[:] = 0
        self.pool = KeyValuePool(self.pool.capacity)

    def known(self, ids: Ints) -> int:
        """How many tokens of the beginning of a text are held now."""
        return len(self._found(ids))

    def read(self, slots: Ints) -> Kept:
        """Keys and values of the first backbone in some slots, by layer, [1, kv_heads, slots, head_dim]."""
        return self._of(0, slots)

    def states(self, slots: Ints, backbone: int = 0) -> Tensor:
        """Hidden states in some slots, [slots, hidden]."""
        return self.pool.read(slots, [(backbone, _STATE)])[backbone, _STATE][0][0, 0]

    def drop(self, ids: Ints, first: int) -> None:
        """Free the tokens of a text from `first` on, as far as no other text that is held goes on from them."""
        gone: list[int] = []
        for slot in self._found(ids)[first:][::-1].tolist():
            if self._kids[slot]:
                break
            gone.append(slot)
            self._unhung(slot)
        self._free(gone)

    def _computed(self, tree: PackedTree, part: Pass, held: Ints) -> Kept:
        """Keys, values and states of new tokens, as the pool takes them."""
        stored: Kept = {}
        every = np.arange(len(part.part), dtype=np.int64)
        for number, backbone in enumerate(self._backbones):
            hidden, kept = computed(backbone, tree, part, self._of(number, held), every)
            stored |= {(number, layer): pair for layer, pair in kept.items()}
            if self._states:
                stored[number, _STATE] = (hidden[None, None], hidden.new_empty(1, 1, len(every), 0))
        return stored

    def _of(self, number: int, slots: Ints) -> Kept:
        """Keys and values of one backbone in some slots, by layer."""
        mine = [name for name in self.pool.layers if name[0] == number and name[1] != _STATE]
        return {name[1]: pair for name, pair in self.pool.read(slots, mine).items()}

    def _found(self, ids: Ints) -> Ints:
        """The slots of the beginning of a text that is held."""
        stored: list[int] = []
        at = -1
        for token in ids.tolist():
            below = self._child.get((at, token))
            if below is None:
                break
            stored.append(below)
            at = below
        return np.asarray(stored, dtype=np.int64)

    def _enter(self, ids: Ints, parents: Ints, slots: Ints, part: Ints) -> int:
        """Slots for new tokens, each hung on its parent's; parents stand before their children. How many of them had been forgotten."""
        fresh_slots = self.pool.take(len(part))
        self._make_tables(int(fresh_slots.max(initial=-1)) + 1)
        slots[part] = fresh_slots
        above = parents[part]
        over = np.where(above < 0, -1, slots[above])
        self.value[fresh_slots] = np.nan
        self._parent[fresh_slots], self._token[fresh_slots] = over, ids[part]
        self._kids[fresh_slots] = 0
        np.add.at(self._kids, over[over >= 0], 1)
        self._used[fresh_slots] = self._now
        self._held[fresh_slots] = True
        again = 0
        for parent, token, slot in zip(over.tolist(), ids[part].tolist(), fresh_slots.tolist(), strict=True):
            self._child[parent, token] = slot
            # Stands for all tokens up to this one.
            mark = self._mark[slot] = hash((0 if parent < 0 else self._mark[parent], token))
            if mark in self._ghosts:
                del self._ghosts[mark]
                again += 1
        return again

    def _make_room(self, count: int) -> None:
        """Forget what was used longest ago until as many tokens fit; what this round needs stays."""
        short = count - self.pool.left
        while short > 0:
            leaves = np.flatnonzero(self._held & (self._kids == 0) & (self._used < self._now))
            if not len(leaves):
                raise CheckpointError(
                    f"a cache of {amount(self.pool.capacity, 'token')} is smaller than what is asked at once"
                )
            gone: list[int] = []
            for leaf in leaves[np.argsort(self._used[leaves], kind="stable")].tolist():
                slot, age = leaf, self._used[leaf]
                while slot >= 0 and self._kids[slot] == 0 and self._used[slot] == age and len(gone) < short:
                    self._ghosts[self._mark[slot]] = None
                    gone.append(slot)
                    slot = self._unhung(slot)
                if len(gone) == short:
                    break
            self._free(gone)
            self.evicted += len(gone)
            short -= len(gone)
            while len(self._ghosts) > max(_FEWEST_GHOSTS, _GHOSTS * self.pool.capacity):
                del self._ghosts[next(iter(self._ghosts))]

    def _unhung(self, slot: int) -> int:
        """Take a token from its parent, which is returned; its slot is still to be freed."""
        parent = int(self._parent[slot])
        del self._child[parent, int(self._token[slot])]
        if parent >= 0:
            self._kids[parent] -= 1
        return parent

    def _free(self, slots: list[int]) -> None:
        self._held[slots] = False
        self._parent[slots] = -2
        self.pool.give(slots)

    def _make_tables(self, room: int) -> None:
        have = len(self._held)
        if room <= have:
            return
        more = np.zeros(max(room, 2 * have) - have, dtype=np.int64)
        self._parent, self._token, self._kids, self._used = (
            np.concatenate([table, more]) for table in (self._parent, self._token, self._kids, self._used)
        )
        self._held = np.concatenate([self._held, more.astype(bool)])
        self._mark += [0] * len(more)
        self.value = np.concatenate([self.value, np.full(len(more), np.nan)])
