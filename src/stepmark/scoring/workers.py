"""Grading on a cluster: what a worker builds and answers with, and the PRM that stands here for all of theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Protocol, cast, final, get_args

from stepmark.batching import Answerer, Ready, Reply, ScoreSolution
from stepmark.batching.cluster_worker import Built, Fact
from stepmark.errors import BackendError, InputError
from stepmark.models.grading import Grader
from stepmark.models.identity import identity_of
from stepmark.models.prm import PRM, Ledger, repr_of
from stepmark.records import Refusal, ScoreKind, Solution, StepScores

BUILD = "stepmark.scoring.workers:build"
"""`build`, as `batching.cluster.Build` names it."""


def build(
    *,
    prm: str,
    family: str | None = None,
    neutral: Literal["positive", "negative"] = "positive",
    dtype: str = "auto",
    device: str = "auto",
    truncate: bool = False,
    token_budget: int | None = None,
    reference: str | None = None,
    model: str | None = None,
    tokenizer: str | None = None,
    samples: int | None = None,
    seed: int = 0,
    orm: str | None = None,
) -> Built:
    """A PRM, and an outcome model beside it where one is named, that answer `ScoreSolution`.

    Args:
        prm: as `models.load.load_prm` takes it, as is all below but `orm`.
        family, neutral, dtype, device, truncate, token_budget, reference, model, tokenizer, samples, seed: see `load_prm`.
        orm: the outcome model; None for none.

    Raises:
        StepmarkError: whatever `load_prm` raises.
    """
    from stepmark.models.load import idle_settings, load_prm, read_by

    shared: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "truncate": truncate,
        "token_budget": token_budget,
    }
    of_orm: dict[str, Any] = {} if orm is None else read_by(orm, shared)
    idle = idle_settings(prm, family=family, tokenizer=tokenizer)
    prms = {
        "prm": load_prm(
            prm,
            **{name: value for name, value in shared.items() if name not in idle or name not in of_orm},
            family=family,
            neutral=neutral,
            reference=reference,
            model=model,
            tokenizer=tokenizer,
            samples=samples,
            seed=seed,
        )
    }
    if orm is not None:
        prms["orm"] = load_prm(orm, outcome=True, **of_orm)
    identity = " and ".join(identity_of(one) for one in prms.values())
    return Built(
        answerers={ScoreSolution: Answerer(identity=identity, answer=lambda *asked: _answer(prms, *asked))},
        facts={name: value for which, one in prms.items() for name, value in _facts(which, one).items()},
        counters=lambda: spent(prms),
    )


def spent(prms: Mapping[str, PRM]) -> dict[str, int]:
    """The ledgers of some PRMs, flat: `{"prm.tokens_in": …}`."""
    return {
        f"{which}.{field.name}": getattr(one.ledger, field.name)
        for which, one in prms.items()
        for field in fields(Ledger)
    }


def ledger_of(counters: Mapping[str, int], which: str) -> Ledger:
    """A ledger from what `spent` gave, of one worker or added up over several."""
    return Ledger(**{field.name: counters.get(f"{which}.{field.name}", 0) for field in fields(Ledger)})


def _facts(which: str, prm: PRM) -> dict[str, Fact]:
    return {
        f"{which}.name": prm.name,
        f"{which}.identity": identity_of(prm),
        f"{which}.score_kind": prm.score_kind,
        f"{which}.aggregate": prm.default_aggregate,
        f"{which}.threshold": prm.default_threshold,
    }


def _answer(prms: Mapping[str, PRM], requests: Sequence[ScoreSolution], ready: Ready) -> list[Reply]:
    replies: dict[int, Reply] = {}
    for which, prm in prms.items():
        places = [place for place, request in enumerate(requests) if request.model == which]
        results = prm.score_many((requests[place].solution for place in places), keep_going=True)
        for place, result in zip(places, results, strict=False):
            replies[place] = result.error if isinstance(result, Refusal) else result
            ready(place, replies[place])
    if len(replies) < len(requests):
        raise BackendError(
            f"{len(requests) - len(replies)} of {len(requests)} solutions got no result; what a PRM did not score has no score"
        )
    return [replies[place] for place in range(len(requests))]


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
    """A PRM (see `models.prm.PRM`) that has the workers of a cluster score, each with a PRM of its own.

    Only what keeps them busy is read ahead and held here. Neighbours of one problem are scored by one worker together.

    Args:
        workers: who scores; made with `BUILD`.
        which: the PRM, or the outcome model.
        expected: solutions that will come, about; None where that is not known.
    """

    def __init__(
        self, workers: Workers, *, which: Literal["prm", "orm"] = "prm", expected: int | None = None
    ) -> None:
        self._workers = workers
        self._which: Literal["prm", "orm"] = which
        self._expected = expected
        facts = workers.facts
        self.name = str(facts[f"{which}.name"])
        """Of the workers' own."""
        self.identity = str(facts[f"{which}.identity"])
        """Of the workers' own, which are all equal."""
        assert facts[f"{which}.score_kind"] in get_args(ScoreKind)
        self.score_kind = cast(ScoreKind, facts[f"{which}.score_kind"])
        """Of the workers' own."""
        self.default_aggregate = str(facts[f"{which}.aggregate"])
        """Of the workers' own."""
        threshold = facts[f"{which}.threshold"]
        assert threshold is None or isinstance(threshold, int | float)
        self.default_threshold: float | None = threshold
        """Of the workers' own."""

    def __repr__(self) -> str:
        return repr_of(self)

    @property
    def ledger(self) -> Ledger:
        """What all workers have spent, added up; of one that died, what it had told."""
        return ledger_of(self._workers.counters, self._which)

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
