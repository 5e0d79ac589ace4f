"""A PRM behind `stepmark serve`, as any other PRM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import final

from stepmark.models.grading import Grader
from stepmark.models.prm import Ledger, Session, repr_of
from stepmark.models.remote.answers import ServedModel
from stepmark.models.remote.client import Client
from stepmark.models.remote.scoring import RemoteScorer
from stepmark.records import Refusal, ScoreKind, Solution, StepScores


@final
class RemotePRM(Grader):
    """Scores on a server. Made by `load_prm` from an address.

    Its name, kind of scores, aggregate and threshold are the server's; so is how the checkpoint is read.

    Args:
        client: of the server; closed with this.

    Raises:
        UsageError: the server has no PRM of the client's choice.
        BackendError: the server gives no answer, or is no stepmark server.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.served: ServedModel = client.model()

    def __repr__(self) -> str:
        return repr_of(self, place={"address": self.client.address})

    @property
    def name(self) -> str:
        """As the server names it."""
        return self.served.id

    @property
    def identity(self) -> str:
        """The name with what the server tells of settings and weights; with the address where it tells nothing."""
        told = self.served.identity
        return told if told != self.served.id else f"{told}@{self.client.address}"

    @property
    def score_kind(self) -> ScoreKind:
        """What its scores are."""
        return self.served.score_kind

    @property
    def default_aggregate(self) -> str:
        """Its authors' way to one number, or the one that the server was started with."""
        return self.served.default_aggregate

    @property
    def default_threshold(self) -> float | None:
        """The score under which a step is an error."""
        return self.served.default_threshold

    @property
    def default_checks(self) -> str:
        """The exact checks that run beside it, as its server says."""
        return self.served.default_checks

    @property
    def ledger(self) -> Ledger:
        """See `Client.ledger`."""
        return self.client.ledger

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `Grader.open_session`: the server's own sessions, where it has them."""
        del memory_tokens
        return RemoteScorer(self)

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions, some dozens in a request; see `PRM.score_many`.

        Raises:
            BackendError: the server failed. What was given before stays good.
        """
        # Only the scores of the steps are asked for. The least of them exists for every kind, and is never infinite.
        # Checks, where they are wanted, run here.
        checks = None if self.served.default_checks == "none" else "none"
        for result in self.client.score_many(
            solutions, keep_going=keep_going, aggregate="min", checks=checks
        ):
            yield result if isinstance(result, Refusal) else result.steps

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self.client.close()

    def __enter__(self) -> RemotePRM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
