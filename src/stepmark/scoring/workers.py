"""Grading on a cluster: what each worker builds, and the PRM that stands for all of theirs."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Literal, Protocol, cast, final, get_args

from stepmark.batching import Answerer, Ready, Reply, ScoreSolution
from stepmark.batching.cluster_worker import Built, Fact
from stepmark.errors import BackendError, InputError
from stepmark.models.grading import Grader
from stepmark.models.identity import identity_of
from stepmark.models.prm import Ledger, repr_of
from stepmark.records import Refusal, ScoreKind, Solution, StepScores

BUILD = "stepmark.scoring.workers:build"
"""`build`, as `batching.cluster.Build` names it."""


def build(*, prm: str, prm_arguments: str = "{}", orm: str | None = None, orm_arguments: str = "{}") -> Built:
    """A PRM, and an outcome model beside it where one is named, that answer `ScoreSolution`.

    Args:
        prm, orm: as `models.load.load_prm` takes them.
        prm_arguments, orm_arguments: their other arguments, as JSON.

    Raises:
        StepmarkError: whatever `load_prm` raises.
    """
    from stepmark.models.load import load_prm

    prms = {"prm": load_prm(prm, **json.loads(prm_arguments))}
    if orm is not None:
        prms["orm"] = load_prm(orm, **json.loads(orm_arguments))
    facts: dict[str, Fact] = {}
    for which, model in prms.items():
        facts |= {
            f"{which}.name": model.name,
            f"{which}.identity": identity_of(model),
            f"{which}.score_kind": model.score_kind,
            f"{which}.aggregate": model.default_aggregate,
            f"{which}.threshold": model.default_threshold,
        }

    def answer(requests: Sequence[ScoreSolution], ready: Ready) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for which, model in prms.items():
            places = [place for place, request in enumerate(requests) if request.model == which]
            results = model.score_many((requests[place].solution for place in places), keep_going=True)
            for place, result in zip(places, results, strict=False):
                replies[place] = result.error if isinstance(result, Refusal) else result
                ready(place, replies[place])
        if len(replies) < len(requests):
            raise BackendError(
                f"{len(requests) - len(replies)} of {len(requests)} solutions got no result; what a PRM did not score has no score"
            )
        return [replies[place] for place in range(len(requests))]

    identity = " and ".join(identity_of(model) for model in prms.values())
    return Built(
        answerers={ScoreSolution: Answerer(identity=identity, answer=answer)},
        facts=facts,
        counters=lambda: {
            f"{which}.{field.name}": getattr(model.ledger, field.name)
            for which, model in prms.items()
            for field in fields(Ledger)
        },
    )


class Workers(Protocol):
    """Workers that were built by `build`: `batching.cluster.RayWorkers`."""

    @property
    def facts(self) -> Mapping[str, Fact]:
        """What they say of their PRMs."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What they have spent."""

    def stream(self, requests: Iterable[ScoreSolution], *, expected: int | None = None) -> Iterator[Reply]:
        """One reply a request, in order."""


@final
class SpreadPRM(Grader):
    """A PRM (see `models.prm.PRM`) whose solutions are scored by the workers of a cluster, each with a PRM of its own.

    Only what keeps them busy is read ahead. Neighbours of one problem are scored by one worker together. Its name, identity, kind of
    scores, aggregate and threshold are those of the workers' PRMs, which are all equal.

    Args:
        workers: built with `BUILD`.
        which: the PRM, or the outcome model.
        expected: about how many solutions will come; None where that is not known.
    """

    def __init__(
        self, workers: Workers, *, which: Literal["prm", "orm"] = "prm", expected: int | None = None
    ) -> None:
        self._workers = workers
        self._which: Literal["prm", "orm"] = which
        self._expected = expected
        facts = workers.facts
        self.name, self.identity, self.default_aggregate = (
            str(facts[f"{which}.{fact}"]) for fact in ("name", "identity", "aggregate")
        )
        assert facts[f"{which}.score_kind"] in get_args(ScoreKind)
        self.score_kind = cast(ScoreKind, facts[f"{which}.score_kind"])
        threshold = facts[f"{which}.threshold"]
        assert threshold is None or isinstance(threshold, int | float)
        self.default_threshold: float | None = threshold

    def __repr__(self) -> str:
        return repr_of(self)

    @property
    def ledger(self) -> Ledger:
        """The sum over all workers; of one that died, its last report."""
        counters = self._workers.counters
        return Ledger(
            **{field.name: counters.get(f"{self._which}.{field.name}", 0) for field in fields(Ledger)}
        )

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions; see `PRM.score_many`.

        Raises:
            BackendError: no worker is left, one solution killed several workers, or their PRM failed.
        """
        waiting: deque[Solution] = deque()

        def requests() -> Iterator[ScoreSolution]:
            for solution in solutions:
                waiting.append(solution)
                yield ScoreSolution(solution=solution, model=self._which)

        for reply in self._workers.stream(requests(), expected=self._expected):
            solution = waiting.popleft()
            if isinstance(reply, StepScores):
                yield reply
            elif not isinstance(reply, InputError):
                raise BackendError(f"{self.name}: expected the scores of a solution, found {reply!r}")
            elif keep_going:
                yield Refusal(solution=solution, error=reply)
            else:
                raise reply
