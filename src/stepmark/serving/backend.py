"""What computes behind a server: one PRM, from its tree of keys and values where it keeps one, else whole prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

from stepmark.batching import Score
from stepmark.errors import InputError, UsageError
from stepmark.models.prm import PRM, Ledger
from stepmark.models.scorer import WholePrefixScorer, why_whole_prefixes
from stepmark.scoring.grade import checked_scores
from stepmark.serving.jobs import Ask, Grown, Growth, Prepared, Reading, Result, Whole

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
    """The backend of a PRM: with a tree of keys and values where its family allows it (`models.session.session_of`).

    Args:
        prm: as `load_prm` gives it.
        memory_tokens: tokens whose keys and values are kept at most; None: 65,536. Ignored where nothing is kept.
    """
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
        self._steps = WholePrefixScorer(prm)

    @property
    def reason(self) -> str:
        """Why it keeps nothing."""
        return why_whole_prefixes(self.prm)

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
