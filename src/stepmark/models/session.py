"""Scoring that goes on where it was: a tree of prefixes whose keys and values stay, so that a new step costs its own tokens.

A search asks for the score of prefix + step, again and again, and every prefix has been read before. A session keeps keys and values in
one tree of tokens over all problems (`prefixes.PrefixCache`). `extend` tokenises prefix and step in one go (the only way that gives the
tokens of training), finds what the tree has of them, and computes the rest: all branches of all problems in one packed forward pass. The
last hidden states are kept too: a head reads them at step ends, and an implicit PRM gets the chances of the next tokens from them.

A branch that is dropped gives back what no other one shares. Memory is bounded: over the budget, what was used longest ago goes, and is
computed again when it is needed; `Ledger.tokens_again` counts that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError, InputError, TooLongError
from stepmark.models import attention
from stepmark.models.encoding import Encoded
from stepmark.models.engine import Engine
from stepmark.models.heads import step_scores
from stepmark.models.local import HeadPRM, ImplicitPRM
from stepmark.models.pool import KeyValuePool
from stepmark.models.prefixes import NONE, Known, PrefixCache
from stepmark.models.prm import PRM, Ledger
from stepmark.models.scorer import why_whole_prefixes
from stepmark.models.tree import Ints
from stepmark.records import Problem, Refusal, Solution, Step


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
    def reason(self) -> str:
        """Why every prefix is read anew; "" where it is not."""

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

    Incremental: every PRM that runs in this process and is read at step ends or from the log-ratio of two models. The others read the
    whole prefix for each step, and `reason` says why: generative PRMs, which write about the whole solution; PRMs behind a server,
    which keep no state for us; outcome models.

    Args:
        prm: as `load_prm` gives it.
        memory_tokens: tokens whose keys and values are kept at most; None: 65,536. Ignored where nothing is kept.
    """
    reason = why_whole_prefixes(prm)
    if reason:
        return WholePrefixSession(prm, reason)
    assert isinstance(prm, HeadPRM | ImplicitPRM)
    return CachedSession(prm, memory_tokens=memory_tokens or 65_536)


class WholePrefixSession:
    """A session that keeps nothing: the whole prefix is scored for each step, and the last score taken.

    Args:
        prm: any.
        reason: why nothing is kept.
    """

    incremental = False

    def __init__(self, prm: PRM, reason: str) -> None:
        self._prm = prm
        self.reason = reason

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
    """A session over a PRM in this process that keeps keys and values in a tree of tokens.

    Args:
        prm: with a head, or implicit; not read as an outcome model.
        memory_tokens: tokens kept at most.

    Raises:
        UsageError: a memory that holds no token.
    """

    incremental = True
    reason = ""

    def __init__(self, prm: HeadPRM | ImplicitPRM, *, memory_tokens: int) -> None:
        self._prm = prm
        engines = [prm.engine] if isinstance(prm, HeadPRM) else [prm.policy[0], prm.reference[0]]
        self.cache = PrefixCache(
            [EngineBackbone(engine) for engine in engines], capacity=memory_tokens, states=True
        )

    @property
    def ledger(self) -> Ledger:
        """The PRM's own."""
        return self._prm.ledger

    @property
    def pool(self) -> KeyValuePool:
        """The memory."""
        return self.cache.pool

    def open(self, problem: Problem) -> Place:
        """A problem's root."""
        return _root(problem)

    def extend(self, asked: Sequence[tuple[Place, Step]]) -> list[Extended | InputError]:
        """Score steps; see `ScoringSession.extend`."""
        results: list[Extended | InputError | None] = [None] * len(asked)
        group: list[_Asked] = []
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
            count = read + 1
            if count > self.pool.capacity:
                results[i] = TooLongError(
                    f"the prefix has {count} tokens and the session keeps {self.pool.capacity}; give it more memory",
                    where=place.solution.id,
                )
                continue
            if group and size + count > self.pool.capacity:
                self._extend(group, results)
                group, size = [], 0
            if encoded.answer < 1 and isinstance(self._prm, ImplicitPRM):
                raise CheckpointError(
                    "an implicit PRM needs a token before the answer, and the template gives none"
                )
            group.append(_Asked(index=i, place=longer, encoded=encoded, ids=encoded.ids[:count]))
            size += count
        if group:
            self._extend(group, results)
        done = [result for result in results if result is not None]
        assert len(done) == len(asked)
        return done

    def drop(self, places: Iterable[Place]) -> None:
        """Give back what only these places use."""
        for place in places:
            self.cache.drop(place.slots, place.births)

    def _extend(self, group: Sequence[_Asked], results: list[Extended | InputError | None]) -> None:
        """One round over a group that fits the memory."""
        held = self.cache.hold(
            [
                Known(ids=one.ids, before=one.place.ids, slots=one.place.slots, births=one.place.births)
                for one in group
            ]
        )
        ledger = self.ledger
        ledger.tokens_in += sum(len(one.ids) for one in group)
        ledger.tokens_computed += held.computed
        ledger.tokens_again += held.again
        ledger.tokens_distinct += held.computed - held.again
        with torch.inference_mode():
            if isinstance(self._prm, HeadPRM):
                scores, classes = self._by_head(self._prm, held.slots)
            else:
                scores, classes = self._by_log_ratio(self._prm, group, held.slots), None
        for place, (one, slots) in enumerate(zip(group, held.slots, strict=True)):
            self.cache.pin(int(slots[-1]))
            results[one.index] = Extended(
                place=replace(one.place, ids=one.ids, slots=slots, births=self.cache.births(slots)),
                score=scores[place],
                classes=None if classes is None else classes[place],
            )
            ledger.steps += 1

    def _by_head(
        self, prm: HeadPRM, paths: Sequence[Ints]
    ) -> tuple[list[float], list[tuple[float, ...]] | None]:
        """What the head says of the last token of each path."""
        ends, which = np.unique([path[-1] for path in paths], return_inverse=True)
        logits = prm.head(self.cache.states(ends).float()).float().cpu()
        return step_scores(prm.spec.readout, logits[which], prm.neutral)

    def _by_log_ratio(self, prm: ImplicitPRM, group: Sequence[_Asked], paths: Sequence[Ints]) -> list[float]:
        """Log-ratios of the answer, up to each path's end or of its last step; as `ImplicitPRM` scores."""
        tokens = np.concatenate([path[one.encoded.answer :] for one, path in zip(group, paths, strict=True)])
        above = np.concatenate(
            [path[one.encoded.answer - 1 : -1] for one, path in zip(group, paths, strict=True)]
        )
        ids = np.concatenate([one.ids[one.encoded.answer :] for one in group])
        _, first = np.unique(tokens, return_index=True)
        fresh = first[np.isnan(self.cache.value[tokens[first]])]
        # By what they follow, so that alternatives share its logits.
        fresh = fresh[np.argsort(above[fresh], kind="stable")]
        for start in range(0, len(fresh), 256):
            some = fresh[start : start + 256]
            parents, which = np.unique(above[some], return_inverse=True)
            ratio = np.zeros(len(some))
            for number, (sign, (_, output)) in enumerate(((1.0, prm.policy), (-1.0, prm.reference))):
                logits = self.cache.states(parents, number).to(output.dtype) @ output.T
                table = torch.log_softmax(logits.float(), -1)
                picked = table[
                    torch.from_numpy(which).to(table.device), torch.from_numpy(ids[some]).to(table.device)
                ]
                ratio += sign * picked.double().cpu().numpy()
            self.cache.value[tokens[some]] = ratio
        scores = []
        for one, path in zip(group, paths, strict=True):
            reads = one.encoded.reads
            start = one.encoded.answer
            if prm.rule.per_step and len(reads) > 1:
                assert reads[-2] is not None  # a step that is read has all before it read
                start = reads[-2] + 1
            score = prm.rule.beta * float(np.sum(self.cache.value[path[start:]]))
            if not math.isfinite(score):
                raise CheckpointError(
                    f"{prm.name} gave NaN or an infinity as a log-ratio: its weights are damaged, or too large for {prm.policy[1].dtype}"
                )
            scores.append(score)
        return scores


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    index: int
    place: Place
    encoded: Encoded
    ids: Ints


class EngineBackbone:
    """A PRM's backbone as a `PrefixCache` asks it.

    Args:
        engine: whose it is.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def device(self) -> str:
        """Where it stands."""
        return self._engine.device

    @property
    def token_budget(self) -> int:
        """Tokens a forward pass."""
        return self._engine.token_budget

    def forward(self, ids: Tensor, positions: Tensor, plan: attention.Plan) -> Tensor:
        """See `Backbone.forward`."""
        hidden: Tensor = self._engine.backbone(
            input_ids=ids, position_ids=positions, use_cache=False, stepmark_plan=plan
        ).last_hidden_state[0]
        return hidden


def _root(problem: Problem) -> Place:
    return Place(solution=Solution(problem=problem, steps=()), ids=NONE, slots=NONE, births=NONE)


def _longer(place: Place, step: Step) -> Place:
    solution = replace(place.solution, steps=(*place.solution.steps, step))
    return replace(place, solution=solution)
