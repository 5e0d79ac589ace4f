"""Scoring that goes on where it was: a tree of prefixes whose keys and values stay, so that a new step costs its own tokens.

A search asks for the score of prefix + step, again and again, and every prefix has been read before. A session keeps keys and values a
token at a time in one tree over all problems. `extend` tokenises prefix and step in one go (the only way that gives the tokens of training),
finds what the tree has of them, and computes the rest: all branches of all problems in one packed forward pass.

A branch that is dropped gives back what no other one shares. Memory is bounded: over the budget, what was used longest ago goes, and is
computed again when it is needed; `Ledger.tokens_again` counts that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, InputError, TooLongError, UsageError
from stepmark.models import attention
from stepmark.models.heads import step_scores
from stepmark.models.local import HeadPRM
from stepmark.models.pool import KeyValuePool
from stepmark.models.prm import PRM, Ledger
from stepmark.models.tree import Ints, common_prefix, pack
from stepmark.records import Problem, Refusal, Solution, Step

_NO_INTS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """A prefix in a session: a problem and the steps so far."""

    solution: Solution
    """Its steps; none at a problem's root."""
    ids: Ints
    """Its tokens, up to the last that was read."""
    slots: Ints
    """Where they lie; valid only where `births` still says so."""
    births: Ints
    """When each slot was filled; a slot that was given back and filled again has another."""


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A prefix that is one step longer, and what the PRM says of that step."""

    place: Place
    score: float
    """In the range of the PRM's `score_kind`."""
    classes: tuple[float, ...] | None = None
    """Class probabilities, for PRMs of three classes."""


class ScoringSession(Protocol):
    """What a search asks: scores of prefixes that grow."""

    @property
    def incremental(self) -> bool:
        """Whether a step costs its own tokens only; else every prefix is read anew each time."""

    @property
    def ledger(self) -> Ledger:
        """What it has cost so far."""

    def open(self, problem: Problem) -> Place:
        """A problem's root. Costs nothing yet."""

    def extend(self, asked: Sequence[tuple[Place, Step]]) -> list[Extended | InputError]:
        """Score one more step at each of several places, of any problems, together.

        Returns:
            One result each, in order; an `InputError` for a step that cannot be read (empty, too long, a marker inside).

        Raises:
            CheckpointError: the model gave NaN or an infinity.
        """

    def drop(self, places: Iterable[Place]) -> None:
        """Give back what only these places use. They must not be extended afterwards."""


def session_of(prm: PRM, *, memory_tokens: int | None = None) -> ScoringSession:
    """A session of a PRM: incremental where its family allows it.

    Incremental: every PRM with a head that runs in this process. Not: generative PRMs, which write about the whole solution; PRMs behind a
    server, which keep no state for us; implicit PRMs, whose score is a sum over all tokens of two models; outcome models. Those read the
    whole prefix for each step.

    Args:
        prm: as `load_prm` gives it.
        memory_tokens: tokens whose keys and values are kept at most; None: 65,536. Ignored where nothing is kept.
    """
    if isinstance(prm, HeadPRM) and not prm.spec.outcome_only:
        return CachedSession(prm, memory_tokens=memory_tokens or 65_536)
    return WholePrefixSession(prm)


class WholePrefixSession:
    """A session that keeps nothing: the whole prefix is scored for each step, and the last score taken."""

    incremental = False

    def __init__(self, prm: PRM) -> None:
        self._prm = prm

    @property
    def ledger(self) -> Ledger:
        """The PRM's own."""
        return self._prm.ledger

    def open(self, problem: Problem) -> Place:
        """A problem's root."""
        return _root(problem)

    def extend(self, asked: Sequence[tuple[Place, Step]]) -> list[Extended | InputError]:
        """Score each prefix whole; see `ScoringSession.extend`."""
        longer = [_longer(place, step) for place, step in asked]
        results: list[Extended | InputError] = []
        for place, result in zip(
            longer, self._prm.score_many([p.solution for p in longer], keep_going=True), strict=True
        ):
            if isinstance(result, Refusal):
                results.append(result.error)
                continue
            score = result.scores[-1] if result.scores else None
            if score is None or len(result.scores) != len(place.solution.steps):
                results.append(
                    InputError(
                        f"{self._prm.name} gave {sum(s is not None for s in result.scores)} scores for "
                        f"{len(place.solution.steps)} steps",
                        where=place.solution.id,
                    )
                )
                continue
            classes = None if result.classes is None else result.classes[-1]
            results.append(Extended(place=place, score=score, classes=classes))
        return results

    def drop(self, places: Iterable[Place]) -> None:
        """Nothing is kept."""


class CachedSession:
    """A session over a PRM in this process that keeps keys and values in a token tree.

    Args:
        prm: with a head.
        memory_tokens: tokens kept at most.

    Raises:
        UsageError: a memory that holds no token.
    """

    incremental = True

    def __init__(self, prm: HeadPRM, *, memory_tokens: int) -> None:
        if memory_tokens < 1:
            raise UsageError(f"a session needs room for at least one token, found {memory_tokens}")
        self._prm = prm
        self.pool = KeyValuePool(memory_tokens)
        self._child: dict[tuple[int, int], int] = {}
        self._parent, self._token, self._kids, self._pins, self._used, self._born = (
            np.zeros(0, dtype=np.int64) for _ in range(6)
        )
        self._scores: dict[int, tuple[float, tuple[float, ...] | None]] = {}
        self._now = self._births = 0

    @property
    def ledger(self) -> Ledger:
        """The PRM's own."""
        return self._prm.ledger

    def open(self, problem: Problem) -> Place:
        """A problem's root."""
        return _root(problem)

    def extend(self, asked: Sequence[tuple[Place, Step]]) -> list[Extended | InputError]:
        """Score steps; see `ScoringSession.extend`."""
        results: list[Extended | InputError | None] = [None] * len(asked)
        group: list[tuple[int, Place, Ints, int]] = []
        size = 0
        for i, (place, step) in enumerate(asked):
            longer = _longer(place, step)
            try:
                encoded = self._prm.encoder.encode(longer.solution)
            except InputError as error:
                results[i] = error
                continue
            read = encoded.reads[-1]
            if read is None:
                results[i] = TooLongError("the step lies past what this model reads", where=place.solution.id)
                continue
            ids = encoded.ids[: read + 1] if len(encoded.ids) > read + 1 else encoded.ids
            if len(ids) > self.pool.capacity:
                results[i] = TooLongError(
                    f"the prefix has {len(ids)} tokens and the session keeps {self.pool.capacity}; give it more memory",
                    where=place.solution.id,
                )
                continue
            if group and size + len(ids) > self.pool.capacity:
                self._extend(group, results)
                group, size = [], 0
            group.append(
                (i, replace(longer, slots=place.slots, births=place.births, ids=place.ids), ids, read)
            )
            size += len(ids)
        if group:
            self._extend(group, results)
        done = [result for result in results if result is not None]
        assert len(done) == len(asked)
        return done

    def drop(self, places: Iterable[Place]) -> None:
        """Give back what only these places use."""
        for place in places:
            if len(place.slots) and self._alive(place):
                end = int(place.slots[-1])
                self._pins[end] -= 1
                self._release(end)

    def _extend(
        self, group: Sequence[tuple[int, Place, Ints, int]], results: list[Extended | InputError | None]
    ) -> None:
        """One forward pass over a group that fits the memory."""
        self._now += 1
        tree = pack([ids for _, _, ids, _ in group])
        slots = np.full(len(tree), -1, dtype=np.int64)
        again = np.zeros(len(tree), dtype=bool)
        for (_, place, ids, read), path in zip(group, tree.paths, strict=True):
            shared, found = self._found(place, ids)
            if len(found) == len(ids) and int(found[read]) not in self._scores:
                # Its end was read over, as part of a longer text: its state is gone, so it and what hangs on it are computed anew.
                self._forget(int(found[read]))
                shared, found = self._found(place, ids)
            slots[path[: len(found)]] = found
            again[path[len(found) : max(shared, len(found))]] = True
        held = slots[slots >= 0]
        # Another row of the group may have made room by forgetting what this one found.
        stale = held[self._born[held] == 0] if len(held) else held
        slots[np.isin(slots, stale)] = -1
        self._used[slots[slots >= 0]] = self._now
        new = np.flatnonzero(slots < 0)
        self._make_room(len(new))
        self.ledger.tokens_in += sum(len(ids) for _, _, ids, _ in group)
        self.ledger.tokens_distinct += int((~again[new]).sum())
        self.ledger.tokens_again += int(again[new].sum())
        reads = np.unique([int(path[read]) for (_, _, _, read), path in zip(group, tree.paths, strict=True)])
        self._compute(tree.ids, tree.depths, tree.parents, tree.ends, slots, new, reads)
        for (i, place, ids, read), path in zip(group, tree.paths, strict=True):
            mine = slots[path]
            end = int(mine[-1])
            self._pins[end] += 1
            score, classes = self._scores[int(mine[read])]
            results[i] = Extended(
                place=replace(place, ids=ids, slots=mine, births=self._born[mine].copy()),
                score=score,
                classes=classes,
            )
            self.ledger.steps += 1

    def _compute(
        self, ids: Ints, depths: Ints, parents: Ints, ends: Ints, slots: Ints, new: Ints, reads: Ints
    ) -> None:
        """Compute new tokens in chunks of the engine's budget; `slots` is filled as they come."""
        engine = self._prm.engine
        before = np.concatenate([[0], np.cumsum(slots < 0)])
        since, until = before[:-1], before[ends]
        with torch.inference_mode():
            for start in range(0, len(new), engine.token_budget):
                part = new[start : start + engine.token_budget]
                end = start + len(part)
                held = np.flatnonzero((slots >= 0) & (since < end) & (until > start))
                keys = np.concatenate([held, part])
                plan = attention.Plan.of_cached(
                    np.concatenate([np.maximum(since[held] - start, 0), np.arange(len(part))]),
                    np.minimum(until[keys], end) - start,
                    len(held),
                    engine.device,
                )
                if len(held):
                    plan.carried = self.pool.read(slots[held])
                plan.keep = torch.arange(len(held), len(keys), device=engine.device)
                hidden = engine.backbone(
                    input_ids=torch.from_numpy(ids[part])[None].to(engine.device),
                    position_ids=torch.from_numpy(depths[part])[None].to(engine.device),
                    use_cache=False,
                    stepmark_plan=plan,
                ).last_hidden_state[0]
                self.ledger.tokens_computed += len(part)
                self._enter(ids, parents, slots, part)
                self.pool.write(slots[part], plan.kept)
                self._read(hidden, part, reads, slots)

    def _read(self, hidden: Tensor, part: Ints, reads: Ints, slots: Ints) -> None:
        """Scores of the step ends among some new tokens."""
        rows = np.flatnonzero(np.isin(part, reads))
        if not len(rows):
            return
        logits = self._prm.head(hidden[torch.from_numpy(rows).to(hidden.device)].float()).float().cpu()
        scores, classes = step_scores(self._prm.spec.readout, logits, self._prm.neutral)
        for i, row in enumerate(rows.tolist()):
            self._scores[int(slots[part[row]])] = (scores[i], None if classes is None else classes[i])

    def _enter(self, ids: Ints, parents: Ints, slots: Ints, part: Ints) -> None:
        """Slots for new tokens, each hung on its parent's; parents stand before their children."""
        taken = self.pool.take(len(part))
        self._make_tables(int(taken.max(initial=-1)) + 1)
        slots[part] = taken
        for above, token, slot in zip(
            parents[part].tolist(), ids[part].tolist(), taken.tolist(), strict=True
        ):
            parent = -1 if above < 0 else int(slots[above])
            self._child[parent, token] = slot
            self._parent[slot], self._token[slot] = parent, token
            self._kids[slot] = self._pins[slot] = 0
            self._births += 1
            self._used[slot], self._born[slot] = self._now, self._births
            if parent >= 0:
                self._kids[parent] += 1

    def _found(self, place: Place, ids: Ints) -> tuple[int, Ints]:
        """How many of some tokens the place has read before, and the slots of those that are held."""
        shared = common_prefix(place.ids, ids)
        alive = (
            self._born[place.slots[:shared]] == place.births[:shared] if shared else np.empty(0, dtype=bool)
        )
        dead = np.flatnonzero(~alive)
        valid = int(dead[0]) if len(dead) else shared
        found = place.slots[:valid].tolist()
        at = found[-1] if found else -1
        for token in ids[valid:].tolist():
            below = self._child.get((at, token))
            if below is None:
                break
            found.append(below)
            at = below
        return shared, np.asarray(found, dtype=np.int64)

    def _alive(self, place: Place) -> bool:
        return bool(self._born[place.slots[-1]] == place.births[-1])

    def _make_room(self, count: int) -> None:
        """Forget what was used longest ago until as many tokens fit; what this round needs stays."""
        while self.pool.left < count:
            leaves = np.flatnonzero((self._born > 0) & (self._kids == 0) & (self._used < self._now))
            if not len(leaves):
                raise CheckpointError(
                    "the session's memory is smaller than one round needs"
                )  # groups are cut to fit
            oldest = leaves[np.argsort(self._used[leaves], kind="stable")]
            for slot in oldest[: count - self.pool.left].tolist():
                self._remove(slot)

    def _release(self, slot: int) -> None:
        """Give back a token and those above it that nothing needs any more."""
        while slot >= 0 and self._kids[slot] == 0 and self._pins[slot] <= 0:
            parent = int(self._parent[slot])
            self._remove(slot)
            slot = parent

    def _forget(self, slot: int) -> None:
        """Remove a token and everything below it."""
        below = [slot]
        for one in below:
            below.extend(np.flatnonzero((self._parent == one) & (self._born > 0)).tolist())
        for one in reversed(below):
            self._remove(one)

    def _remove(self, slot: int) -> None:
        parent = int(self._parent[slot])
        del self._child[parent, int(self._token[slot])]
        if parent >= 0:
            self._kids[parent] -= 1
        self._born[slot] = 0
        self._parent[slot] = -2
        self._scores.pop(slot, None)
        self.pool.give([slot])

    def _make_tables(self, room: int) -> None:
        have = len(self._born)
        if room <= have:
            return
        more = np.zeros(max(room, 2 * have) - have, dtype=np.int64)
        self._parent, self._token, self._kids, self._pins, self._used, self._born = (
            np.concatenate([table, more])
            for table in (self._parent, self._token, self._kids, self._pins, self._used, self._born)
        )


def _root(problem: Problem) -> Place:
    return Place(solution=Solution(problem=problem, steps=()), ids=_NO_INTS, slots=_NO_INTS, births=_NO_INTS)


def _longer(place: Place, step: Step) -> Place:
    solution = replace(place.solution, steps=(*place.solution.steps, step))
    return replace(place, solution=solution)
