"""A tree of prefixes whose keys and values stay, a token a node: what scoring sessions and policies in this process keep.

A text is found in it token by token, and only what it lacks is computed: the missing tokens of all texts that are asked together in
one packed forward pass. Memory is bounded: over the budget, what was used longest ago goes. What is forgotten so and read again is
counted apart (`Held.again`); of what was forgotten, the last tokens, `_GHOSTS` times as many as there is room for, are known again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.pool import Kept, KeyValuePool
from stepmark.models.tree import Ints, common_prefix, pack

NONE: Ints = np.empty(0, dtype=np.int64)
"""No tokens, no slots."""
_GHOSTS = 4
_FEWEST_GHOSTS = 1 << 14
# A forgotten token costs about a hundred bytes: without a bound of its own a small memory would leave a large one behind.
_STATE = -1
"""The layer under which hidden states lie in the pool."""


class Backbone(Protocol):
    """A network whose attention takes a plan (`attention.NAME`)."""

    @property
    def device(self) -> str:
        """Where it stands."""

    @property
    def token_budget(self) -> int:
        """Tokens a forward pass."""

    def forward(self, ids: Tensor, positions: Tensor, plan: attention.Plan) -> Tensor:
        """Hidden states [tokens, hidden] of token ids [1, tokens] at positions [1, tokens]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """A text, and where its beginning was when it was read last; nothing, for a text that was not."""

    ids: Ints
    """Its tokens; at least one."""
    before: Ints = field(default_factory=lambda: NONE)
    """Tokens that were read."""
    slots: Ints = field(default_factory=lambda: NONE)
    """Where those lay; valid only where `births` still says so."""
    births: Ints = field(default_factory=lambda: NONE)
    """When each slot was filled; a slot that was given back and filled again has another."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
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
        capacity: tokens kept at most.
        states: keep the last layer's hidden state of every token too.

    Raises:
        UsageError: room for no token.
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
        self._parent, self._token, self._kids, self._pins, self._used, self._born = (
            np.zeros(0, dtype=np.int64) for _ in range(6)
        )
        self._mark: list[int] = []
        self._ghosts: dict[int, None] = {}
        self._now = self._births = 0

    def __len__(self) -> int:
        """Tokens that are held."""
        return self.pool.held

    def hold(self, texts: Sequence[Known]) -> Held:
        """Compute what some texts lack, together; all of their tokens are then held, until the next call.

        Args:
            texts: at least one; together no more tokens than the capacity.

        Raises:
            CheckpointError: they do not fit.
        """
        self._now += 1
        tree = pack([text.ids for text in texts])
        slots = np.full(len(tree), -1, dtype=np.int64)
        again = np.zeros(len(tree), dtype=bool)
        for text, path in zip(texts, tree.paths, strict=True):
            found, shared = self._found(text)
            slots[path[: len(found)]] = found
            # Read before by whoever asks, and not there any more.
            again[path[len(found) : max(shared, len(found))]] = True
        self._used[slots[slots >= 0]] = self._now
        new = np.flatnonzero(slots < 0)
        self._make_room(len(new))
        # A slot is what a token has had through all of this: no text of the call forgets another's.
        before = np.concatenate([[0], np.cumsum(slots < 0)])
        since, until = before[:-1], before[tree.ends]
        budget = min(backbone.token_budget for backbone in self._backbones)
        with torch.inference_mode():
            for start in range(0, len(new), budget):
                part = new[start : start + budget]
                end = start + len(part)
                held = np.flatnonzero((slots >= 0) & (since < end) & (until > start))
                keys = np.concatenate([held, part])
                looks = (
                    np.concatenate([np.maximum(since[held] - start, 0), np.arange(len(part))]),
                    np.minimum(until[keys], end) - start,
                )
                kept = self._computed(tree.ids[part], tree.depths[part], slots[held], looks)
                again[part] |= self._enter(tree.ids, tree.parents, slots, part)
                self.pool.write(slots[part], kept)
        return Held(
            slots=tuple(slots[path] for path in tree.paths), computed=len(new), again=int(again[new].sum())
        )

    def add(self, ids: Ints, kept: Kept, first: int) -> None:
        """Enter tokens that were computed elsewhere, such as those that a policy has written; they are left out where there is no room.

        Args:
            ids: a whole text.
            kept: keys and values of the first backbone, by layer, [1, kv_heads, len(ids) - first, head_dim].
            first: of which token the first of them are. Those before it must be held, or nothing is entered.
        """
        self._now += 1
        found, _ = self._found(Known(ids=ids))
        self._used[found] = self._now
        have = len(found)
        if have < first or have == len(ids) or len(ids) > self.pool.capacity:
            return
        self._make_room(len(ids) - have)
        slots = np.concatenate([found, np.full(len(ids) - have, -1, dtype=np.int64)])
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
        """Forget everything, pins too: after a failure, when it is not known which slots were filled."""
        self._child.clear()
        self._born[:] = 0  # of slots that somebody remembers, none is what it was; births go on counting
        self._kids[:] = self._pins[:] = 0
        self.pool = KeyValuePool(self.pool.capacity)

    def known(self, text: Known) -> int:
        """How many tokens of the beginning of a text are held now."""
        return len(self._found(text)[0])

    def births(self, slots: Ints) -> Ints:
        """When some slots were filled."""
        return self._born[slots].copy()

    def read(self, slots: Ints) -> Kept:
        """Keys and values of the first backbone in some slots, by layer, [1, kv_heads, slots, head_dim]."""
        found = self.pool.read(slots, [name for name in self.pool.layers if name[0] == 0])
        return {layer: pair for (_, layer), pair in found.items() if layer != _STATE}

    def states(self, slots: Ints, backbone: int = 0) -> Tensor:
        """Hidden states in some slots, [slots, hidden]."""
        return self.pool.read(slots, [(backbone, _STATE)])[backbone, _STATE][0][0, 0]

    def pin(self, slot: int) -> None:
        """Somebody will go on from this token: it is not given back with others."""
        self._pins[slot] += 1

    def drop(self, slots: Ints, births: Ints) -> None:
        """Take a pin from the last of these tokens, and give back what nothing needs any more. Nothing, where it is gone."""
        if not len(slots) or self._born[slots[-1]] != births[-1]:
            return
        slot = int(slots[-1])
        self._pins[slot] -= 1
        gone: list[int] = []
        while slot >= 0 and self._kids[slot] == 0 and self._pins[slot] <= 0:
            gone.append(slot)
            slot = self._unhung(slot)
        self._free(gone)

    def _computed(self, ids: Ints, depths: Ints, held: Ints, looks: tuple[Ints, Ints]) -> Kept:
        """Keys, values and states of new tokens, as the pool takes them."""
        found: Kept = {}
        for number, backbone in enumerate(self._backbones):
            plan = attention.Plan.of_cached(*looks, len(held), backbone.device)
            if len(held):
                mine = [name for name in self.pool.layers if name[0] == number and name[1] != _STATE]
                plan.carried = {name[1]: pair for name, pair in self.pool.read(held, mine).items()}
            plan.keep = torch.arange(len(held), len(held) + len(ids), device=backbone.device)
            tokens, positions = (
                torch.from_numpy(np.ascontiguousarray(some))[None].to(backbone.device)
                for some in (ids, depths)
            )
            hidden = backbone.forward(tokens, positions, plan)
            found |= {(number, layer): pair for layer, pair in plan.kept.items()}
            if self._states:
                found[number, _STATE] = (hidden[None, None], hidden.new_empty(1, 1, len(ids), 0))
        return found

    def _found(self, text: Known) -> tuple[Ints, int]:
        """The slots of the beginning of a text that is held, and how many of its tokens were read before."""
        shared = common_prefix(text.before, text.ids)
        alive = self._born[text.slots[:shared]] == text.births[:shared]
        dead = np.flatnonzero(~alive)
        found = text.slots[: int(dead[0]) if len(dead) else shared].tolist()
        at = found[-1] if found else -1
        for token in text.ids[len(found) :].tolist():
            below = self._child.get((at, token))
            if below is None:
                break
            found.append(below)
            at = below
        return np.asarray(found, dtype=np.int64), shared

    def _enter(self, ids: Ints, parents: Ints, slots: Ints, part: Ints) -> npt.NDArray[np.bool_]:
        """Slots for new tokens, each hung on its parent's; parents stand before their children. Which of them had been forgotten."""
        taken = self.pool.take(len(part))
        self._make_tables(int(taken.max(initial=-1)) + 1)
        slots[part] = taken
        above = parents[part]
        over = np.where(above < 0, -1, slots[above])
        self.value[taken] = np.nan
        self._parent[taken], self._token[taken] = over, ids[part]
        self._kids[taken] = self._pins[taken] = 0
        np.add.at(self._kids, over[over >= 0], 1)
        self._used[taken] = self._now
        self._born[taken] = np.arange(len(part)) + (self._births + 1)
        self._births += len(part)
        again = np.zeros(len(part), dtype=bool)
        for i, (parent, token, slot) in enumerate(
            zip(over.tolist(), ids[part].tolist(), taken.tolist(), strict=True)
        ):
            self._child[parent, token] = slot
            # Stands for all tokens up to this one.
            mark = self._mark[slot] = hash((0 if parent < 0 else self._mark[parent], token))
            if mark in self._ghosts:
                del self._ghosts[mark]
                again[i] = True
        return again

    def _make_room(self, count: int) -> None:
        """Forget what was used longest ago until as many tokens fit; what this round needs stays."""
        short = count - self.pool.left
        while short > 0:
            leaves = np.flatnonzero((self._born > 0) & (self._kids == 0) & (self._used < self._now))
            if not len(leaves):
                raise CheckpointError(
                    f"a cache of {self.pool.capacity} tokens is smaller than what is asked at once"
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
        self._born[slots] = 0
        self._parent[slots] = -2
        self.pool.give(slots)

    def _make_tables(self, room: int) -> None:
        have = len(self._born)
        if room <= have:
            return
        more = np.zeros(max(room, 2 * have) - have, dtype=np.int64)
        self._parent, self._token, self._kids, self._pins, self._used, self._born = (
            np.concatenate([table, more])
            for table in (self._parent, self._token, self._kids, self._pins, self._used, self._born)
        )
        self._mark += [0] * len(more)
        self.value = np.concatenate([self.value, np.full(len(more), np.nan)])
