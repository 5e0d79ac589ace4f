"""What a refit leaves behind: its record as `refit.jsonl` holds it, and the PRM whose place another can take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

from stepmark.errors import UsageError
from stepmark.metrics.intervals import Difference
from stepmark.models.grading import Grader
from stepmark.models.identity import identity_of
from stepmark.models.prm import PRM, Ledger, repr_of
from stepmark.records import Refusal, ScoreKind, Solution, StepScores


@final
class RefittedPRM(Grader):
    """A PRM whose place another can take. It keeps its name, by which a run is known.

    Args:
        prm: the first.
    """

    def __init__(self, prm: PRM) -> None:
        self._prm, self._name, self._before = prm, prm.name, Ledger()

    def __repr__(self) -> str:
        return repr_of(self, place={"present": self._prm})

    @property
    def name(self) -> str:
        """The first one's, always."""
        return self._name

    @property
    def identity(self) -> str:
        """The present one's."""
        return identity_of(self._prm)

    @property
    def score_kind(self) -> ScoreKind:
        """Of all of them."""
        return self._prm.score_kind

    @property
    def default_aggregate(self) -> str:
        """The present one's."""
        return self._prm.default_aggregate

    @property
    def default_threshold(self) -> float | None:
        """The present one's."""
        return self._prm.default_threshold

    @property
    def ledger(self) -> Ledger:
        """What all of them together have cost."""
        return _sum(self._before, self._prm.ledger)

    def replace(self, prm: PRM) -> None:
        """Put another in its place.

        Raises:
            UsageError: its scores are of another kind.
        """
        if prm.score_kind != self._prm.score_kind:
            raise UsageError(
                f"{self._name} scores a {self._prm.score_kind}, and {prm.name} a {prm.score_kind}: it cannot take its place"
            )
        self._before, self._prm = self.ledger, prm

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """As `PRM.score_many`, by the one that is present when it is called."""
        return self._prm.score_many(solutions, keep_going=keep_going)


def _sum(a: Ledger, b: Ledger) -> Ledger:
    return Ledger(
        solutions=a.solutions + b.solutions,
        steps=a.steps + b.steps,
        tokens_in=a.tokens_in + b.tokens_in,
        tokens_distinct=a.tokens_distinct + b.tokens_distinct,
        tokens_computed=a.tokens_computed + b.tokens_computed,
        tokens_again=a.tokens_again + b.tokens_again,
        tokens_written=a.tokens_written + b.tokens_written,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Refitted:
    """What one refit did, as a line of `refit.jsonl`."""

    update: int
    replaced: bool
    """Whether the new PRM took the place of the old one."""
    why: str
    """In words."""
    folder: str | None
    """Of the new PRM, under the run's; None where it was not kept."""
    solutions: int
    """Fresh ones that were trained on."""
    steps: int
    """Of theirs, those with a label, up to the first error."""
    held_out_solutions: int
    held_out_steps: int
    refused: int
    """Solutions that could not be labelled, or that a PRM could not read."""
    rollouts: int
    """Written for the labels, beside the solutions themselves; they are in no other count of a run."""
    auc: Difference | None = None
    """Of held-out steps, more than half of whose rollouts were right against less than half: `a` the old PRM's, `b` the new one's, intervals over problems.
    None where nothing was trained."""
    before: float | None = None
    """The old PRM's mean score of held-out steps."""
    after: float | None = None
    """The new one's: by how much the rewards' level moves."""
