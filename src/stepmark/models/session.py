"""Scoring that goes on where it was: a tree of prefixes whose keys and values stay, so that a new step costs its own tokens.

A search asks for the score of prefix + step, again and again, and every prefix has been read before. A session keeps keys and values in
one tree of tokens over all problems (`prefixes.PrefixCache`). `extend` tokenises prefix and step in one go (the only way that gives the
tokens of training), finds what the tree has of them, and computes the rest: all branches of all problems in one packed forward pass. The
last hidden states are kept too: a head reads them at step ends, and an implicit PRM gets the chances of the next tokens from them.

A branch that is dropped gives back what no other one shares. Memory is bounded: over the budget, what was used longest ago goes, and is
computed again when it is needed; `Ledger.tokens_again` counts that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, cast

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, InputError, TooLongError, UsageError
from stepmark.models import attention
from stepmark.models.encoding import Encoded
from stepmark.models.engine import Engine
from stepmark.models.local import HeadPRM, ImplicitPRM
from stepmark.models.pool import KeyValuePool
from stepmark.models.prefixes import NONE, PrefixCache
from stepmark.models.prm import PRM, Ledger
from stepmark.models.scorer import remote_of, why_whole_prefixes
from stepmark.models.session_reading import (
    Asked,
    Extended,
    NextStep,
    Place,
    Read,
    Text,
    TokenRows,
    WholeSolution,
    known_of,
    read_texts,
    text_of,
    whole_scores,
)
from stepmark.models.tree import Ints
from stepmark.records import Problem, Refusal, Solution, Step, StepScores

__all__ = [
    "Answer",
    "Asked",
    "CachedSession",
    "EngineBackbone",
    "Extended",
    "NextStep",
    "Place",
    "ScoringSession",
    "TokenRows",
    "WholePrefixSession",
    "WholeSolution",
    "root_of",
    "session_of",
]

Answer = Extended | StepScores | Tensor | InputError
"""What `CachedSession.answer` gives."""


class ScoringSession(Protocol):
    """What a search asks: scores of prefixes that grow."""

    @property
    def incremental(self) -> bool:
        """Whether a step costs its own tokens only; else every prefix is read anew."""

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
    whole prefix for each step, and `reason` says why: generative PRMs, which write about the whole solution; PRMs behind a server
    (where that keeps state, `scorer.scorer_of` uses it); outcome models.

    Args:
        prm: as `load_prm` gives it.
        memory_tokens: tokens whose keys and values are kept at most; None: 65,536. Ignored where nothing is kept.
    """
    reason = "its server keeps the state" if remote_of(prm) is not None else why_whole_prefixes(prm)
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
        return root_of(problem)

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

    Besides single steps (`extend`) it scores whole solutions (`score_many`) and reads bare tokens (`rows`), all from the same tree: each
    costs what nothing before it had. `answer` takes any mixture in one pass, in groups of which each fits the memory.

    In float32 scores are those of `PRM.score_many`, up to rounding in the seventh digit. In bfloat16 a hidden state depends in its
    third digit on which tokens went through the network together, here as there (default PRM, 45 steps in four ways of batching: scores
    apart by 0.013 at most, 0.002 on average).

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
        self._vocabulary = min(int(engine.backbone.config.vocab_size) for engine in engines)
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
        return root_of(problem)

    def extend(self, asked: Sequence[tuple[Place, Step]]) -> list[Extended | InputError]:
        """Score steps; see `ScoringSession.extend`."""
        places = [_longer(place, step) for place, step in asked]
        encoded = [self._encoded(place.solution) for place in places]
        found = self.answer(
            [
                one if isinstance(one, InputError) else NextStep(place=place, encoded=one)
                for place, one in zip(places, encoded, strict=True)
            ]
        )
        return cast("list[Extended | InputError]", found)

    def score_many(self, solutions: Sequence[Solution | Encoded]) -> list[StepScores | InputError]:
        """Score whole solutions, computing only what the tree lacks.

        Returns:
            One result each, in order: what `PRM.score_many` gives, or an `InputError` for a solution that cannot be read.
            Nothing is held for the asker: it stays until the room is needed.

        Raises:
            CheckpointError: the model gave NaN or an infinity.
        """
        encoded = [self._encoded(one) if isinstance(one, Solution) else one for one in solutions]
        found = self.answer(
            [one if isinstance(one, InputError) else WholeSolution(encoded=one) for one in encoded]
        )
        return cast("list[StepScores | InputError]", found)

    def rows(self, asked: Sequence[TokenRows]) -> list[Tensor | InputError]:
        """What the head says of some tokens of texts that are token ids already: logits [positions, classes] each, in float32.

        Raises:
            UsageError, CheckpointError: see `answer`.
        """
        return cast("list[Tensor | InputError]", self.answer(asked))

    def answer(self, asked: Sequence[Asked | InputError]) -> list[Answer]:
        """Answer any mixture of what can be asked, together.

        Returns:
            One result each, in order: `Extended` for `NextStep`, `StepScores` for `WholeSolution`, logits for `TokenRows`; an
            `InputError` for what the model or the memory cannot take, and for an `InputError`, itself.

        Raises:
            UsageError: `TokenRows` of an implicit PRM.
            CheckpointError: the model gave NaN or an infinity, or it and its tokenizer are not of one checkpoint. After this or any
                other failure (such as too little memory) the tree is empty, and everything is read anew.
        """
        results: dict[int, Answer] = {}
        group: list[Text] = []
        size = 0
        try:
            for index, one in enumerate(asked):
                if isinstance(one, InputError):
                    results[index] = one
                    continue
                text = text_of(index, one)
                if (early := self._without_reading(text)) is not None:
                    results[index] = early
                    continue
                if group and size + len(text.ids) > self.pool.capacity:
                    results |= self._read(group)
                    group, size = [], 0
                group.append(text)
                size += len(text.ids)
            if group:
                results |= self._read(group)
        except BaseException:
            # What failed may have left slots half filled, or filled with NaN; a score made of those would be a plausible number.
            self.cache.clear()
            raise
        return [results[index] for index in range(len(asked))]

    def drop(self, places: Iterable[Place]) -> None:
        """Give back what only these places use."""
        for place in places:
            self.cache.drop(place.slots, place.births)

    def lacks(self, asked: Asked) -> int:
        """Tokens that would be computed now for one that asks; where it alone asks."""
        text = text_of(0, asked)
        return len(text.ids) - self.cache.known(known_of(text)) if len(text.ids) else 0

    def _encoded(self, solution: Solution) -> Encoded | InputError:
        try:
            return self._prm.encoder.encode(solution)
        except InputError as error:
            return error

    def _without_reading(self, text: Text) -> Answer | None:
        """The result of what is not read at all; None for what is."""
        asked = text.asked
        where = asked.place.solution.id if isinstance(asked, NextStep) else None
        if isinstance(asked, TokenRows):
            if isinstance(self._prm, ImplicitPRM):
                raise UsageError(f"{self._prm.name} is an implicit PRM: it has no head to read tokens with")
            if not len(asked.positions):
                return torch.zeros(0, 0)
            wrong = asked.ids[(asked.ids < 0) | (asked.ids >= self._vocabulary)]
            if len(wrong):
                return InputError(f"the token {int(wrong[0])} is none of the model's {self._vocabulary}")
        elif not len(text.ids):
            if isinstance(asked, NextStep):
                return TooLongError("the step lies past what this model reads", where=where)
            return self._counted(whole_scores(self._prm, asked, None))
        elif int(text.ids.max()) >= self._vocabulary:
            # On a GPU this would be an assertion in a kernel, after which nothing works.
            raise CheckpointError(
                f"the tokenizer gives the token {int(text.ids.max())} and the model has {self._vocabulary}: they are not of one checkpoint"
            )
        if len(text.ids) > self.pool.capacity:
            return TooLongError(
                f"the prefix has {len(text.ids)} tokens and the session keeps {self.pool.capacity}; give it more memory",
                where=where,
            )
        return None

    def _read(self, group: Sequence[Text]) -> dict[int, Answer]:
        """One round over a group that fits the memory."""
        held = self.cache.hold([known_of(text) for text in group])
        ledger = self.ledger
        ledger.tokens_in += sum(len(text.ids) for text in group)
        ledger.tokens_computed += held.computed
        ledger.tokens_again += held.again
        ledger.tokens_distinct += held.computed - held.again
        with torch.inference_mode():
            reads = read_texts(self._prm, self.cache, group, held.slots)
        results: dict[int, Answer] = {}
        for text, read, slots in zip(group, reads, held.slots, strict=True):
            asked = text.asked
            if isinstance(asked, NextStep):
                results[text.index] = self._extended(asked, text, read, slots)
            elif isinstance(asked, WholeSolution):
                results[text.index] = self._counted(whole_scores(self._prm, asked, read))
            else:
                assert read.logits is not None
                results[text.index] = read.logits
        return results

    def _extended(self, asked: NextStep, text: Text, read: Read, slots: Ints) -> Extended:
        self.cache.pin(int(slots[-1]))
        self.ledger.steps += 1
        return Extended(
            place=replace(asked.place, ids=text.ids, slots=slots, births=self.cache.births(slots)),
            score=read.scores[-1],
            classes=None if read.classes is None else read.classes[-1],
        )

    def _counted(self, scores: StepScores) -> StepScores:
        self.ledger.solutions += 1
        self.ledger.steps += sum(score is not None for score in scores.scores)
        return scores


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


def root_of(problem: Problem) -> Place:
    """The prefix of no steps, of which nothing was read."""
    return Place(solution=Solution(problem=problem, steps=()), ids=NONE, slots=NONE, births=NONE)


def _longer(place: Place, step: Step) -> Place:
    solution = replace(place.solution, steps=(*place.solution.steps, step))
    return replace(place, solution=solution)
