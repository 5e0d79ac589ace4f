"""Sessions of PRMs in this process: scores of prefixes that grow, where a new step costs its own tokens only.

A session stores keys, values and last hidden states in one tree of tokens over all problems (`engine.PrefixCache`). Prefix and step are tokenised
together (the only way that gives the tokens of training); what the tree lacks of them is computed, all branches of all problems in one packed
forward pass. A dropped branch frees what no other branch shares.

"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepmark.backends import Ready, Release, ScoreRequest, StepScore
from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.encoding import Encoded, Encoder
from stepmark.models.engine import NONE, CachedPrefix, Engine, KeyValuePool, PrefixCache, check_vocabulary
from stepmark.models.packed_tree import Ints, common_prefix
from stepmark.models.prm import Ledger, check_finite
from stepmark.records import Problem, Solution, Step, StepScores
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """A prefix in a session: a problem and the steps so far."""

    solution: Solution
    """Its steps; none at a problem's root."""
    ids: Ints
    """Its tokens, up to the last that was read."""
    slots: Ints
    """Where they are stored; valid only where `births` agrees."""
    births: Ints
    """When each slot was filled; a slot that was freed and filled again has another."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NextStep:
    """A request for the score of a prefix's last step; the answer is `Extended`, whose place is held until it is dropped."""

    place: Place
    """Its solution with the step; tokens and slots of what was read of it before."""
    encoded: Encoded
    """That solution."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeSolution:
    """A request for the scores of all steps; the answer is `StepScores`. Nothing is held."""

    encoded: Encoded


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRows:
    """A request for the head's logits at some tokens of a text; the answer is [positions, classes]. Nothing is held."""

    ids: Ints
    """Token ids; at least one."""
    positions: Ints
    """Which tokens, ascending."""


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A prefix that is one step longer, and the score of that step."""

    place: Place
    score: float
    """In the range of the PRM's `score_kind`."""
    classes: tuple[float, ...] | None = None
    """Class probabilities, for PRMs of three classes."""


Asked = NextStep | WholeSolution | TokenRows
Answer = Extended | StepScores | Tensor | InputError
"""What `CachedSession.answer` gives."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """Tokens to read for one request."""

    index: int
    """Of the request."""
    asked: Asked
    ids: Ints
    """Up to the last token that is read; none where nothing is (a solution of which no step fits)."""
    reads: Ints
    """The positions that are read, ascending."""

    @classmethod
    def of(cls, index: int, asked: Asked) -> Text:
        """What is to be read for a request."""
        if isinstance(asked, TokenRows):
            ids, reads = asked.ids, asked.positions
        else:
            ends = asked.encoded.reads[-1:] if isinstance(asked, NextStep) else asked.encoded.reads
            ids, reads = asked.encoded.ids, np.asarray([r for r in ends if r is not None], dtype=np.int64)
        ids = ids[: int(reads[-1]) + 1] if len(reads) else NONE
        return cls(index=index, asked=asked, ids=ids, reads=reads)

    @property
    def known(self) -> CachedPrefix:
        """As the tree is asked for it, with where its beginning was."""
        if not isinstance(self.asked, NextStep):
            return CachedPrefix(ids=self.ids)
        place = self.asked.place
        return CachedPrefix(ids=self.ids, before=place.ids, slots=place.slots, births=place.births)


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """What was read of one text, in the order of its `reads`."""

    scores: list[float]
    """Not used for `TokenRows`."""
    classes: list[tuple[float, ...]] | None = None
    logits: Tensor | None = None
    """[reads, classes]; None for an implicit PRM."""


class States(Protocol):
    """Hidden states of tokens by their places: slots of a `PrefixCache`, or packed indices of a tree."""

    value: npt.NDArray[np.float64]
    """A number that the PRM keeps of the token in each place; NaN where there is none yet."""

    def states(self, slots: Ints, backbone: int = 0) -> Tensor:
        """Hidden states in some places, [slots, hidden]."""


class TokenPRM(Protocol):
    """A PRM in this process, as a session reads it: `local.HeadPRM`, `local.ImplicitPRM`."""

    name: str
    encoder: Encoder
    ledger: Ledger

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The networks that read the same tokens."""

    @property
    def has_head(self) -> bool:
        """Whether it gives logits of single tokens."""

    def read(self, states: States, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
        """The scores of texts whose tokens are in the places `paths`.

        Raises:
            CheckpointError: the model gave NaN or an infinity.
        """

    def scores_of(
        self, encoded: Encoded, scores: Sequence[float], classes: Sequence[tuple[float, ...]] | None
    ) -> StepScores:
        """The record of what was read, None for steps that were not."""


class CachedSession:
    """A `prm.Session` that stores keys and values in a tree of tokens. Made by `PRM.open_session`.

    `answer` takes any mixture of steps, whole solutions and bare tokens in one pass, in groups of which each fits the memory.

    In float32 scores are those of `PRM.score_many`, up to rounding in the seventh digit. In bfloat16 a hidden state depends in its
    third digit on which tokens went through the network together, here as there (default PRM, 45 steps in four ways of batching: scores
    apart by 0.013 at most, 0.002 on average).

    Args:
        prm: with a head, or implicit; not read as an outcome model.
        memory_tokens: tokens stored at most, at least one (else a `UsageError`).
    """

    reason = ""
    in_process = True

    def __init__(self, prm: TokenPRM, *, memory_tokens: int) -> None:
        self._prm = prm
        self._vocabulary = min(engine.vocabulary for engine in prm.engines)
        self.cache = PrefixCache(prm.engines, capacity=memory_tokens, states=True)
        self._places: dict[tuple[str, tuple[str, ...]], Place] = {}
        """By problem and steps; a prefix without a place, as after a replay, is opened whole."""

    @property
    def pool(self) -> KeyValuePool:
        """The memory."""
        return self.cache.pool

    @property
    def places(self) -> int:
        """Prefixes that `score` holds."""
        return len(self._places)

    def score(self, requests: Sequence[ScoreRequest], ready: Ready) -> list[StepScore | InputError]:
        """See `Session.score`; computed together, all replies are recorded together."""
        del ready
        asked = [self._request(self._place(request), Step(text=request.steps[-1])) for request in requests]
        replies: list[StepScore | InputError] = []
        for request, step, answer in zip(requests, asked, self.answer(asked), strict=True):
            if not isinstance(answer, Extended) or isinstance(step, InputError):
                assert isinstance(answer, InputError)
                replies.append(answer)
                continue
            check_finite(self._prm.name, answer.score, request.steps)
            key = (request.problem, request.steps)
            before = self._places.get(key)
            self._places[key] = answer.place
            if before is not None:  # asked twice, and held twice
                self.drop([before])
            replies.append(graded(step, answer))
        return replies

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """See `Session.release`."""
        del ready
        keys = [(request.problem, steps) for request in requests for steps in request.prefixes]
        self.drop(place for key in keys if (place := self._places.pop(key, None)) is not None)
        return [None] * len(requests)

    def extend(self, asked: Sequence[tuple[Place, Step]]) -> list[Extended | InputError]:
        """Score one more step at each of several places, of any problems, together; see `answer`."""
        answers = self.answer([self._request(place, step) for place, step in asked])
        return cast("list[Extended | InputError]", answers)

    def answer(self, asked: Sequence[Asked | InputError]) -> list[Answer]:
        """Answer any mixture of requests together.

        Returns:
            One result each, in order: `Extended` for `NextStep`, `StepScores` for `WholeSolution`, logits for `TokenRows`; an
            `InputError` for what the model or the memory cannot take, and for an `InputError`, itself.

        Raises:
            UsageError: `TokenRows` of an implicit PRM.
            CheckpointError: NaN or an infinity, or a model and a tokenizer of two checkpoints. After any failure the tree is empty, and all is read anew.
        """
        results: dict[int, Answer] = {}
        group: list[Text] = []
        size = 0
        try:
            for index, request in enumerate(asked):
                if isinstance(request, InputError):
                    results[index] = request
                    continue
                text = Text.of(index, request)
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
            # A failure may have left slots half filled, or filled with NaN; a score made of those would be a plausible number.
            self.cache.clear()
            raise
        return [results[index] for index in range(len(asked))]

    def drop(self, places: Iterable[Place]) -> None:
        """Free what only these places use. They must not be extended afterwards."""
        for place in places:
            self.cache.drop(place.slots, place.births)

    def lacks(self, asked: Asked) -> int:
        """Tokens that a request would compute now, if it came alone."""
        text = Text.of(0, asked)
        return len(text.ids) - self.cache.known(text.known) if len(text.ids) else 0

    def _without_reading(self, text: Text) -> Answer | None:
        """The result of a request for which nothing is read; None for any other."""
        asked = text.asked
        where = asked.place.solution.id if isinstance(asked, NextStep) else None
        if isinstance(asked, TokenRows):
            if not self._prm.has_head:
                raise UsageError(f"{self._prm.name} is an implicit PRM: it has no head to read tokens with")
            if not len(asked.positions):
                return torch.zeros(0, 0)
            wrong = asked.ids[(asked.ids < 0) | (asked.ids >= self._vocabulary)]
            if len(wrong):
                return InputError(f"the token {int(wrong[0])} is none of the model's {self._vocabulary}")
        elif not len(text.ids):
            if isinstance(asked, NextStep):
                return TooLongError("the step lies past what this model reads", where=where)
            return self._counted(self._prm.scores_of(asked.encoded, [], None))
        else:
            check_vocabulary(text.ids, self._vocabulary)
        if len(text.ids) > self.pool.capacity:
            return TooLongError(
                f"the prefix has {amount(len(text.ids), 'token')} and the session keeps {self.pool.capacity}; give it more memory",
                where=where,
            )
        return None

    def _read(self, group: Sequence[Text]) -> dict[int, Answer]:
        """One round over a group that fits the memory."""
        held = self.cache.hold([text.known for text in group])
        ledger = self._prm.ledger
        ledger.tokens_in += sum(len(text.ids) for text in group)
        ledger.tokens_computed += held.computed
        ledger.tokens_again += held.again
        ledger.tokens_distinct += held.computed - held.again
        with torch.inference_mode():
            reads = self._prm.read(self.cache, group, held.slots)
        results: dict[int, Answer] = {}
        for text, read, slots in zip(group, reads, held.slots, strict=True):
            asked = text.asked
            if isinstance(asked, NextStep):
                self.cache.pin(int(slots[-1]))
                ledger.steps += 1
                results[text.index] = Extended(
                    place=replace(asked.place, ids=text.ids, slots=slots, births=self.cache.births(slots)),
                    score=read.scores[-1],
                    classes=None if read.classes is None else read.classes[-1],
                )
            elif isinstance(asked, WholeSolution):
                scores = self._prm.scores_of(asked.encoded, read.scores, read.classes)
                results[text.index] = self._counted(scores)
            else:
                assert read.logits is not None
                results[text.index] = read.logits
        return results

    def _counted(self, scores: StepScores) -> StepScores:
        self._prm.ledger.solutions += 1
        self._prm.ledger.steps += sum(score is not None for score in scores.scores)
        return scores

    def _place(self, request: ScoreRequest) -> Place:
        """Where the prefix before a request's step lies; without tokens, where that is not known: they are looked up then, and the rest is read."""
        problem, steps = request.problem, request.steps[:-1]
        held = self._places.get((problem, steps))
        return held or replace(root_of(Problem(text=problem)), solution=Solution.of(problem, steps))

    def _request(self, place: Place, step: Step) -> NextStep | InputError:
        solution = replace(place.solution, steps=(*place.solution.steps, step))
        try:
            return NextStep(
                place=replace(place, solution=solution), encoded=self._prm.encoder.encode(solution)
            )
        except InputError as error:
            return error


def graded(asked: NextStep, answer: Extended) -> StepScore:
    """The score of a step, and the tokens that it adds to the prefix before it, whatever the tree had of them."""
    before, ids, reads = asked.place.ids, answer.place.ids, asked.encoded.reads
    root = asked.encoded.problem_tokens
    if len(before):
        shared = common_prefix(before, ids)
    else:  # the prefix before was not read in this session: it ends where its last step is read
        above = reads[-2] if len(reads) > 1 else None
        shared = min(root, len(ids)) if above is None else above + 1
    return StepScore(score=answer.score, tokens=len(ids) - shared, root=root, classes=answer.classes)


def root_of(problem: Problem) -> Place:
    """The prefix of no steps."""
    return Place(solution=Solution(problem=problem, steps=()), ids=NONE, slots=NONE, births=NONE)


class GrowingSession:
    """A conversation that grows, each token read once (`watch.Growing`)."""

    def __init__(self, session: CachedSession, problem: Problem) -> None:
        self._session = session
        self._places = [root_of(problem)]

    def score(self, steps: Sequence[Step], step: Step) -> float:
        """See `Growing.score`."""
        place = self._places[-1]
        before = replace(place, solution=replace(place.solution, steps=tuple(steps)))
        [result] = self._session.extend([(before, step)])
        if isinstance(result, InputError):
            raise result
        self._places.append(result.place)
        return result.score

    def back(self, to: int) -> None:
        """See `Growing.back`."""
        self._session.drop(reversed(self._places[to + 1 :]))
        del self._places[to + 1 :]
