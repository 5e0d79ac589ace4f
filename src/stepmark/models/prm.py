"""What every process reward model is, whatever runs it: one protocol, and the ledger of what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepmark.records import Refusal, ScoreKind, Solution, StepScores


@dataclass(kw_only=True, slots=True)
class Ledger:
    """What scoring has cost so far. Counts only grow."""

    solutions: int = 0
    """Solutions scored."""
    steps: int = 0
    """Steps scored."""
    tokens_in: int = 0
    """Tokens of all solutions, each read alone: what one-at-a-time scoring computes."""
    tokens_distinct: int = 0
    """Distinct prefix tokens among solutions that were scored together."""
    tokens_computed: int = 0
    """Tokens that went through the network. Equal to `tokens_distinct` when nothing is computed twice."""
    tokens_again: int = 0
    """Of those computed, tokens that a session had forgotten for want of memory and read once more (known of the last few times as many as there is room for)."""
    tokens_written: int = 0
    """Tokens that a generative PRM wrote."""

    @property
    def cache_hits(self) -> int:
        """Tokens that were needed and not computed, because a shared prefix had them already."""
        return self.tokens_in - self.tokens_computed


class PRM(Protocol):
    """A process reward model: reads a prefix of a solution and scores its last step.

    The score of step t depends on the problem and on steps 1..t, never on what follows.
    """

    @property
    def name(self) -> str:
        """Its name in outputs: a catalog name, a hub name, a folder, an address."""

    @property
    def identity(self) -> str:
        """What tells it from every PRM that gives other scores: equal identities, equal scores.

        Scores are recorded under it, and a run is continued under it only. Where weights decide the scores, a digest of them is
        part of it (`models.identity.named`); a PRM of fixed rules may give its name, and changes it with the rules.
        """

    @property
    def score_kind(self) -> ScoreKind:
        """What its scores are."""

    @property
    def default_aggregate(self) -> str:
        """How its authors make one number of the step scores (`scoring/aggregate.py`)."""

    @property
    def default_threshold(self) -> float | None:
        """The score under which a step is an error; None when its scores have no such point."""

    @property
    def ledger(self) -> Ledger:
        """What it has cost so far."""

    def score(self, problem: str, steps: Sequence[str]) -> list[float | None]:
        """Score every step of one solution; the result has the length of `steps`.

        Raises:
            InputError: an empty problem or step, a marker inside the text, too many tokens.
        """

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions, one result each, in their order, without holding them all.

        Solutions of one problem that stand together share the computation of every common prefix.

        Args:
            solutions: read as needed; may be endless.
            keep_going: yield a `Refusal` for a solution that cannot be scored instead of raising.

        Raises:
            InputError: as `score`, unless `keep_going`.
        """
