"""Sessions of PRMs in this process: scores of prefixes that grow, where a new step costs its own tokens only.

A session stores keys, values and last hidden states in one tree of tokens over all problems (`engine.PrefixCache`). Each prefix is tokenised whole
(the only way that gives the tokens of training) and looked up; what the tree lacks is computed, all branches of all problems in one packed
forward pass. A released branch frees what no other prefix shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepmark.backends import Ready, Release, StepScore
from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.encoding import Encoded
from stepmark.models.engine import NONE, KeyValuePool, PrefixCache, check_vocabulary
from stepmark.models.packed_tree import Ints, common_prefix
from stepmark.models.prm import Session
from stepmark.records import Solution, StepScores
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.models.local_prm import LocalPRM

Prefix = tuple[str, tuple[str, ...]]
"""A problem's text and the texts of some steps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """Tokens to read for one request."""

    ids: Ints
    """Up to the last token that is read; none where nothing is (a solution of which no step fits)."""
    reads: Ints
    """The positions that are read, ascending."""
    encoded: Encoded | None = None
    """The solution; None for bare tokens, of which the head's logits are asked for."""
    last: bool = False
    """Only the last step of the solution is read."""

    @classmethod
    def of(cls, encoded: Encoded, *, last: bool = False) -> Text:
        """Asks for the scores of all steps of a solution, or of its last one."""
        ends = encoded.reads[-1:] if last else encoded.reads
        reads = np.asarray([read for read in ends if read is not None], dtype=np.int64)
        ids = encoded.ids[: int(reads[-1]) + 1] if len(reads) else NONE
        return cls(ids=ids, reads=reads, encoded=encoded, last=last)

    @classmethod
    def bare(cls, ids: Ints, positions: Ints) -> Text:
        """Asks for the head's logits at some positions, ascending, of token ids."""
        return cls(ids=ids[: int(positions[-1]) + 1] if len(positions) else NONE, reads=positions)


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """What was read of one text, in the order of its `reads`."""

    scores: list[float]
    """Not used for bare tokens."""
    classes: list[tuple[float, ...]] | None = None
    logits: Tensor | None = None
    """[reads, classes]; None for an implicit PRM."""


class States(Protocol):
    """Hidden states of tokens by their places: slots of a `PrefixCache`, or packed indices of a tree."""

    value: npt.NDArray[np.float64]
    """A number that the PRM keeps of the token in each place; NaN where there is none yet."""

    def states(self, slots: Ints, backbone: int = 0) -> Tensor:
        """Hidden states in some places, [slots, hidden]."""


class CachedSession(Session):
    """A session that stores keys and values in a tree of tokens. Made by `PRM.open_session`.

    In float32 scores are those of `PRM.score_many`, up to rounding in the seventh digit. In bfloat16 a hidden state depends in its
    third digit on which tokens went through the network together, here as there (default PRM, 45 steps in four ways of batching: scores
    apart by 0.013 at most, 0.002 on average).

    Args:
        prm: with a head, or implicit; not read as an outcome model.
        memory_tokens: tokens stored at most, at least one (else a `UsageError`).
    """

    reason = ""
    in_process = True

    def __init__(self, prm: LocalPRM, *, memory_tokens: int) -> None:
        self._prm = prm
        self._vocabulary = min(engine.vocabulary for engine in prm.engines)
        self.cache = PrefixCache(prm.engines, capacity=memory_tokens, states=True)
        self.prefixes: dict[Prefix, Ints] = {}
        """Prefixes whose last step was scored and that were not released, with their tokens."""

    @property
    def pool(self) -> KeyValuePool:
        """The memory."""
        return self.cache.pool

    def score_last(
        self, solutions: Sequence[Solution], ready: Ready | None = None
    ) -> list[StepScore | InputError]:
        """See `Session.score_last`; all are computed together."""
        texts: list[Text | InputError] = []
        for solution in solutions:
            try:
                texts.append(Text.of(self._prm.encoder.encode(solution), last=True))
            except InputError as error:
                texts.append(error)
        replies: list[StepScore | InputError] = []
        for solution, text, read in zip(solutions, texts, self.answer(texts), strict=True):
            if isinstance(text, InputError) or isinstance(read, InputError):
                assert isinstance(read, InputError)
                replies.append(read)
                continue
            self._prm.ledger.steps += 1
            self.prefixes[solution.problem.text, solution.texts] = text.ids
            replies.append(
                StepScore(
                    score=read.scores[-1],
                    tokens=len(text.ids) - self._before(solution, text),
                    root=_encoded(text).problem_tokens,
                    classes=None if read.classes is None else read.classes[-1],
                )
            )
        return replies

    def _before(self, solution: Solution, text: Text) -> int:
        """Tokens of the prefix before the last step, whatever the tree has of them."""
        before = self.prefixes.get((solution.problem.text, solution.texts[:-1]))
        if before is not None:
            return common_prefix(before, text.ids)
        encoded = _encoded(text)
        above = encoded.reads[-2] if len(encoded.reads) > 1 else None
        return min(encoded.problem_tokens, len(text.ids)) if above is None else above + 1

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """See `Session.release`."""
        for request in requests:
            for steps in sorted(request.prefixes, key=len, reverse=True):
                ids = self.prefixes.pop((request.problem, steps), None)
                if ids is None:
                    continue
                above = (
                    self.prefixes.get((request.problem, steps[:n])) for n in range(len(steps) - 1, 0, -1)
                )
                needed = next((kept for kept in above if kept is not None), NONE)
                self.cache.drop(ids, common_prefix(needed, ids))
        return [None] * len(requests)

    def answer(self, texts: Sequence[Text | InputError]) -> list[Read | InputError]:
        """Read any mixture of texts together, in groups of which each fits the memory.

        Returns:
            One result each, in order; an `InputError` for what the model or the memory cannot take, and for an `InputError`, itself.

        Raises:
            UsageError: bare tokens for an implicit PRM.
            CheckpointError: NaN or an infinity, or a model and a tokenizer of two checkpoints. After any failure the tree is empty, and all is read anew.
        """
        results: dict[int, Read | InputError] = {}
        group: dict[int, Text] = {}
        size = 0
        try:
            for index, text in enumerate(texts):
                early = text if isinstance(text, InputError) else self._without_reading(text)
                if early is not None:
                    results[index] = early
                    continue
                assert isinstance(text, Text)
                if group and size + len(text.ids) > self.pool.capacity:
                    results |= self._read(group)
                    group, size = {}, 0
                group[index] = text
                size += len(text.ids)
            if group:
                results |= self._read(group)
        except BaseException:
            # A failure may have left slots half filled, or filled with NaN; a score made of those would be a plausible number.
            self.cache.clear()
            raise
        return [results[index] for index in range(len(texts))]

    def scores(self, encoded: Encoded, read: Read) -> StepScores:
        """The record of a whole solution that was read; it is counted."""
        scores = self._prm.scores_of(encoded, read.scores, read.classes)
        self._prm.ledger.solutions += 1
        self._prm.ledger.steps += sum(score is not None for score in scores.scores)
        return scores

    def lacks(self, ids: Ints) -> int:
        """Tokens of a text that would be computed now, if it came alone."""
        return len(ids) - self.cache.known(ids)

    def _without_reading(self, text: Text) -> Read | InputError | None:
        """The result of a request for which nothing is read; None for any other."""
        if text.encoded is None:
            if not self._prm.has_head:
                raise UsageError(f"{self._prm.name} is an implicit PRM: it has no head to read tokens with")
            wrong = text.ids[(text.ids < 0) | (text.ids >= self._vocabulary)]
            if len(wrong):
                return InputError(f"the token {int(wrong[0])} is none of the model's {self._vocabulary}")
        if not len(text.ids):
            if text.last:
                return TooLongError("the step lies past what this model reads")
            return Read(scores=[], logits=torch.zeros(0, 0))
        check_vocabulary(text.ids, self._vocabulary)
        if len(text.ids) > self.pool.capacity:
            return TooLongError(
                f"the prefix has {amount(len(text.ids), 'token')} and the session keeps {self.pool.capacity}; give it more memory"
            )
        return None

    def _read(self, group: dict[int, Text]) -> dict[int, Read | InputError]:
        """One round over a group that fits the memory."""
        texts = list(group.values())
        held = self.cache.hold([text.ids for text in texts])
        ledger = self._prm.ledger
        ledger.tokens_in += sum(len(text.ids) for text in texts)
        ledger.tokens_computed += held.computed
        ledger.tokens_again += held.again
        ledger.tokens_distinct += held.computed - held.again
        with torch.inference_mode():
            return dict(zip(group, self._prm.read(self.cache, texts, held.slots), strict=True))


def _encoded(text: Text) -> Encoded:
    assert text.encoded is not None
    return text.encoded
