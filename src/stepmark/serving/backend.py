"""What computes behind a server: one PRM, from its tree of keys and values where it keeps one, else whole prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, final

from stepmark.batching import Graded, Score
from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.models.grading import checked_scores
from stepmark.models.prm import PRM, Ledger
from stepmark.models.scorer import why_whole_prefixes
from stepmark.records import StepScores
from stepmark.serving.jobs import Ask, Grown, Growth, Prepared, Reading, Result, Rows, Whole, refused

if TYPE_CHECKING:
    from torch import Tensor

    from stepmark.models.encoding import Encoded
    from stepmark.models.local import HeadPRM
    from stepmark.models.session import Answer, Asked, Extended
    from stepmark.models.tree import Ints

_CHARACTERS = 3
"""To a token, where nothing better is known."""


class Backend(Protocol):
    """A PRM as a `Batcher` drives it.

    Who calls what: `estimate` and `fresh` are cheap and called by the event loop, `fresh` only while nothing is computed; `prepare`
    by the one thread of the tokeniser; `compute` and `release` by the one thread that computes.
    """

    @property
    def prm(self) -> PRM:
        """What scores."""

    @property
    def incremental(self) -> bool:
        """Whether a step of a session costs its own tokens only."""

    @property
    def pooling(self) -> bool:
        """Whether it gives rows of bare token ids."""

    @property
    def max_tokens(self) -> int | None:
        """What a solution may have at most; None where nobody knows."""

    @property
    def ledger(self) -> Ledger:
        """What it has cost so far."""

    @property
    def memory(self) -> tuple[int, int, int]:
        """Tokens that are kept now, that are kept at most, and that were forgotten for want of room."""

    def estimate(self, ask: Ask) -> int:
        """Tokens, about, before anything is tokenised."""

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """What can be computed of some asks; an `InputError` for what the PRM cannot read."""

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """Tokens that are to be computed for it, about, where another one of its problem is computed with it."""

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """One result each, in order.

        Raises:
            StepmarkError: the model failed; nothing of the batch has a result.
        """

    def release(self, kept: Sequence[Grown]) -> None:
        """Let go of what is kept of some prefixes."""


def backend_of(prm: PRM, *, memory_tokens: int | None = None) -> Backend:
    """The backend of a PRM: with a tree of keys and values where its family allows it (`PRM.open_session`).

    Args:
        prm: as `load_prm` gives it.
        memory_tokens: tokens whose keys and values are kept at most; None: 65,536. Ignored where nothing is kept.
    """
    if prm.open_session().in_process:
        return CachedBackend(prm, memory_tokens=memory_tokens)
    return WholeBackend(prm)


@final
class WholeBackend:
    """A PRM that is asked through `PRM.score_many`: generative, behind a server, scripted, an outcome model.

    Args:
        prm: any.
    """

    incremental = False
    pooling = False
    max_tokens = None

    def __init__(self, prm: PRM) -> None:
        self.prm = prm
        self._steps = prm.open_session()

    @property
    def reason(self) -> str:
        """Why it keeps nothing."""
        return self._steps.reason or "another server keeps it"

    @property
    def ledger(self) -> Ledger:
        """The PRM's own."""
        return self.prm.ledger

    @property
    def memory(self) -> tuple[int, int, int]:
        """Nothing is kept."""
        return 0, 0, 0

    def estimate(self, ask: Ask) -> int:
        """By its characters."""
        return 1 + ask.characters // _CHARACTERS

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """The PRM reads texts when it computes; nothing is tokenised here."""
        for ask in asks:
            if isinstance(ask, Reading):
                raise UsageError(f"{self.prm.name} gives no rows of token ids")
        return [Prepared(ask=ask, tokens=self.estimate(ask)) for ask in asks]

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """Everything: it keeps nothing that we know of."""
        return work.tokens

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """Solutions of one problem are given to the PRM one after the other, which is where it can share them."""
        order = sorted(range(len(works)), key=lambda i: works[i].ask.key)
        results: dict[int, Result] = {}
        whole = [(i, ask.solution) for i in order if isinstance(ask := works[i].ask, Whole)]
        scored = checked_scores((solution for _, solution in whole), self.prm, keep_going=True)
        results |= {i: result for (i, _), (_, result) in zip(whole, scored, strict=True)} if whole else {}
        grown = [(i, ask) for i in order if isinstance(ask := works[i].ask, Growth)]
        if grown:
            requests = [Score(problem=ask.problem.text, steps=(*ask.steps, ask.text)) for _, ask in grown]
            replies = self._steps.score(requests, lambda index, reply: None)
            results |= {
                i: reply if isinstance(reply, InputError) else Grown(graded=reply)
                for (i, _), reply in zip(grown, replies, strict=True)
            }
        return [results[i] for i in range(len(works))]

    def release(self, kept: Sequence[Grown]) -> None:
        """Nothing is kept."""


@final
class CachedBackend:
    """A PRM in this process, answered from one tree of keys and values over all clients and all time.

    Args:
        prm: with a head, or implicit; not read as an outcome model.
        memory_tokens: see `backend_of`.

    Raises:
        UsageError: another PRM, or a memory that holds no token.
    """

    incremental = True

    def __init__(self, prm: PRM, *, memory_tokens: int | None = None) -> None:
        from stepmark.models.encoding import mark_token
        from stepmark.models.local import HeadPRM, ImplicitPRM
        from stepmark.models.session import CachedSession

        if reason := why_whole_prefixes(prm):
            raise UsageError(f"{prm.name} keeps no state: {reason}")
        assert isinstance(prm, HeadPRM | ImplicitPRM)
        self.prm: PRM = prm
        self.session = CachedSession(prm, memory_tokens=65_536 if memory_tokens is None else memory_tokens)
        self._encoder = prm.encoder
        self._head: HeadPRM | None = prm if isinstance(prm, HeadPRM) else None
        self._mark = mark_token(prm.encoder)

    @property
    def pooling(self) -> bool:
        """Where there is a head."""
        return self._head is not None

    @property
    def max_tokens(self) -> int | None:
        """Of the model, or of the memory where that is smaller."""
        capacity, limit = self.session.pool.capacity, self._encoder.max_tokens
        return capacity if limit is None else min(limit, capacity)

    @property
    def ledger(self) -> Ledger:
        """The PRM's own."""
        return self.prm.ledger

    @property
    def memory(self) -> tuple[int, int, int]:
        """See `Backend.memory`."""
        pool = self.session.pool
        return pool.held, pool.capacity, self.session.cache.evicted

    def estimate(self, ask: Ask) -> int:
        """By its characters; of token ids, their number."""
        if isinstance(ask, Reading) and not isinstance(ask.tokens, str):
            return max(1, len(ask.tokens))
        return 1 + ask.characters // _CHARACTERS

    def prepare(self, asks: Sequence[Ask]) -> list[Prepared | InputError]:
        """Everything that needs the tokenizer, which two threads must not use at once."""
        found: list[Prepared | InputError] = []
        for ask in asks:
            try:
                encoded = (
                    self._tokens(ask) if isinstance(ask, Reading) else self._encoder.encode(ask.solution)
                )
            except InputError as error:
                found.append(error)
            else:
                found.append(Prepared(ask=ask, tokens=len(encoded.ids), encoded=encoded))
        return found

    def fresh(self, work: Prepared, beside: Prepared | None) -> int:
        """What neither the tree nor the other one has."""
        from stepmark.models.tree import common_prefix

        lacking = self.session.lacks(_asked(work))
        if lacking and beside is not None:
            ours, theirs = _encoded(work).ids, _encoded(beside).ids
            lacking = min(lacking, len(ours) - common_prefix(ours, theirs))
        return lacking

    def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """All of them in one pass, as far as the memory takes them at once."""
        answers = self.session.answer([_asked(work) for work in works])
        return [self._result(work, answer) for work, answer in zip(works, answers, strict=True)]

    def release(self, kept: Sequence[Grown]) -> None:
        """See `Backend.release`."""
        self.session.drop(one.place for one in kept if one.place is not None)

    def _tokens(self, ask: Reading) -> Encoded:
        """Token ids, with their marks where steps would be read."""
        import numpy as np

        from stepmark.models.encoding import Encoded, marked

        if self._head is None:
            raise UsageError(f"{self.prm.name} is an implicit PRM: it has no head to read tokens with")
        given = (
            self._encoder.tokenizer(ask.tokens, add_special_tokens=ask.special)["input_ids"]
            if isinstance(ask.tokens, str)
            else ask.tokens
        )
        known = int(self._head.engine.backbone.config.vocab_size)
        wrong = next((token for token in given if not 0 <= token < known), None)
        if wrong is not None:
            raise InputError(f"the token {wrong} is none of the model's {known}", field="input")
        if not given:
            raise InputError("there are no tokens to read", field="input")
        limit = self.max_tokens
        if limit is not None and len(given) > limit:
            raise TooLongError(f"{len(given)} tokens, and this model reads {limit}", field="input")
        ids: Ints = np.asarray(given, dtype=np.int64)
        return Encoded(ids=ids, reads=tuple(marked(ids, self._mark).tolist()), answer=0)

    def _result(self, work: Prepared, answer: Answer) -> Result:
        from stepmark.models.session import Extended

        if isinstance(answer, InputError):
            return refused(work.ask, answer)
        if isinstance(answer, StepScores):
            return answer
        if isinstance(answer, Extended):
            return _grown(work, answer)
        assert isinstance(work.ask, Reading)
        return Rows(rows=self._rows(answer, work.ask.activation), tokens=work.tokens)

    def _rows(self, logits: Tensor, activation: bool) -> tuple[tuple[float, ...], ...]:
        if activation and len(logits):
            import torch

            assert self._head is not None
            # Of classes that exclude each other, shares; of one, and of the members of an ensemble, each its own.
            own = logits.shape[1] == 1 or self._head.spec.readout.activation == "sigmoid-mean"
            logits = torch.sigmoid(logits) if own else torch.softmax(logits, -1)
        return tuple(tuple(row) for row in logits.tolist())


def _encoded(work: Prepared) -> Encoded:
    assert work.encoded is not None
    return work.encoded


def _asked(work: Prepared) -> Asked:
    """As a session is asked."""
    import numpy as np

    from stepmark.models.session import NextStep, TokenRows, WholeSolution, root_of

    ask, encoded = work.ask, _encoded(work)
    if isinstance(ask, Whole):
        return WholeSolution(encoded=encoded)
    if isinstance(ask, Reading):
        return TokenRows(ids=encoded.ids, positions=np.asarray(encoded.reads, dtype=np.int64))
    place = root_of(ask.problem) if ask.place is None else ask.place
    return NextStep(place=replace(place, solution=ask.solution), encoded=encoded)


def _grown(work: Prepared, extended: Extended) -> Grown:
    """Counted as `models.session.CachedSession` counts: by the texts, whatever the tree had."""
    from stepmark.models.tree import common_prefix

    ask, ids = work.ask, extended.place.ids
    assert isinstance(ask, Growth)
    root = _encoded(work).problem_tokens
    shared = min(root, len(ids)) if ask.place is None else common_prefix(ask.place.ids, ids)
    graded = Graded(score=extended.score, tokens=len(ids) - shared, root=root, classes=extended.classes)
    return Grown(graded=graded, place=extended.place, size=extended.place.size)
