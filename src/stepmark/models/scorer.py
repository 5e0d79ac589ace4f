"""A PRM as an answerer of `Score` and `Release`, for searches that `batching.run` drives.

A PRM that keeps its state (`models.session`, or a stepmark server: `models.remote`) is asked for the new step alone: places are kept by problem and steps, and a prefix
without a place, as after a replay, is opened whole. Any other PRM reads the whole prefix for every step, and its `Graded.tokens`
say so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

from stepmark.batching import Answerer, Graded, Ready, Release, Score
from stepmark.errors import BackendError, InputError, TooLongError
from stepmark.models.identity import identity_of
from stepmark.models.prm import PRM
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Problem, Refusal, Solution, Step, StepScores

if TYPE_CHECKING:
    from stepmark.models.remote.prm import RemotePRM
    from stepmark.models.session import CachedSession, Place
    from stepmark.models.tree import Ints

Key = tuple[str, tuple[str, ...]]
"""A prefix: the problem's text and the steps."""


class Scorer(Protocol):
    """Answers requests for scores."""

    def score(self, requests: Sequence[Score], ready: Ready) -> list[Graded | InputError]:
        """One reply a request, in order; an `InputError` for a prefix that the PRM cannot read.

        Raises:
            BackendError: the PRM gave NaN, or another number of scores than there are steps.
        """

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """Let go of what is kept of prefixes; those that nothing is kept of are passed over."""


def answerers(
    prm: PRM, *, session: CachedSession | None = None, memory_tokens: int | None = None
) -> dict[type, Answerer]:
    """What `batching.run` needs to have a PRM answer `Score` and `Release`; merge it with a policy's.

    Args:
        prm: as `load_prm` gives it.
        session: of this PRM, to be used; None for one of its own.
        memory_tokens: see `session_of`; of a session of its own.
    """
    scorer = scorer_of(prm, memory_tokens=memory_tokens) if session is None else SessionScorer(session, prm)
    identity = identity_of(prm)
    return {
        Score: Answerer(identity=identity, answer=scorer.score),
        Release: Answerer(identity=identity, answer=scorer.release),
    }


def scorer_of(prm: PRM, *, memory_tokens: int | None = None) -> Scorer:
    """The scorer of a PRM: with a session where it keeps state, here or on its server, else over whole prefixes."""
    remote = remote_of(prm)
    if remote is not None:
        from stepmark.models.remote.prm import RemoteScorer

        return RemoteScorer(remote)
    if not _torch_is_loaded():
        return WholePrefixScorer(prm)
    from stepmark.models.session import CachedSession, session_of

    session = session_of(prm, memory_tokens=memory_tokens)
    return SessionScorer(session, prm) if isinstance(session, CachedSession) else WholePrefixScorer(prm)


def why_whole_prefixes(prm: PRM) -> str:
    """Why a search must have this PRM read every prefix whole; "" where a step costs its own tokens only."""
    from stepmark.models.generative import GenerativePRM

    remote = remote_of(prm)
    if remote is not None:
        return "" if remote.served.sessions else "the PRM on the server keeps no state, and says so"
    if isinstance(prm, GenerativePRM):
        return "a generative PRM writes about the whole solution each time"
    if _torch_is_loaded():
        from stepmark.models.local import HeadPRM, ImplicitPRM
        from stepmark.models.pooling import PoolingPRM

        if isinstance(prm, HeadPRM | ImplicitPRM):
            return "an outcome model gives a whole solution one score" if prm.spec.outcome_only else ""
        if isinstance(prm, PoolingPRM):
            return "a server keeps no state for us"
    return "its keys and values are out of reach: it is no model that stepmark loaded into this process"


def remote_of(prm: PRM) -> RemotePRM | None:
    """It, where it is one behind a stepmark server; nobody else is made to load a client."""
    if "stepmark.models.remote.prm" not in sys.modules:
        return None
    from stepmark.models.remote.prm import RemotePRM

    return prm if isinstance(prm, RemotePRM) else None


def _torch_is_loaded() -> bool:
    """A PRM that computes in this process has loaded torch; the others must not be made to: it takes seconds."""
    return "torch" in sys.modules


@final
class WholePrefixScorer:
    """Scores a prefix by reading it whole.

    Args:
        prm: any.
    """

    def __init__(self, prm: PRM) -> None:
        self._prm = prm

    def score(self, requests: Sequence[Score], ready: Ready) -> list[Graded | InputError]:
        """See `Scorer.score`."""
        replies: list[Graded | InputError] = []
        results = self._prm.score_many(
            (_solution(request.problem, request.steps) for request in requests), keep_going=True
        )
        for request, result in zip(requests, results, strict=False):
            replies.append(self._graded(request, result))
            ready(len(replies) - 1, replies[-1])
        if len(replies) < len(requests):
            raise BackendError(
                f"{self._prm.name} gave {len(replies)} results for {len(requests)} prefixes; what it did not score has no score"
            )
        return replies

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """Nothing is kept."""
        return [None] * len(requests)

    def _graded(self, request: Score, result: StepScores | Refusal) -> Graded | InputError:
        if isinstance(result, Refusal):
            return result.error
        if len(result.scores) != len(request.steps):
            raise BackendError(
                f"{self._prm.name} gave {len(result.scores)} scores for {len(request.steps)} steps; "
                f"expected one a step. Nothing was recorded of it"
            )
        score = result.scores[-1]
        if score is None:
            return TooLongError("the step lies past what this model reads")
        _check_finite(self._prm, score, request)
        tokens: int | None
        if isinstance(self._prm, ScriptedPRM):  # whose tokens are words, and which computes each prefix once
            tokens, root = len(request.steps[-1].split()), len(request.problem.split())
        else:
            tokens, root = _sum(result.problem_tokens, result.solution_tokens), 0
        classes = None if result.classes is None else result.classes[-1]
        return Graded(score=score, tokens=tokens, root=root if tokens is not None else None, classes=classes)


@final
class SessionScorer:
    """Scores a step by reading that step, in a session.

    Args:
        session: of `prm`.
        prm: whose session it is.
    """

    def __init__(self, session: CachedSession, prm: PRM) -> None:
        from stepmark.models.local import HeadPRM, ImplicitPRM

        assert isinstance(prm, HeadPRM | ImplicitPRM)
        self._session = session
        self._prm = prm
        self._places: dict[Key, Place] = {}
        self._roots: dict[str, int] = {}

    @property
    def places(self) -> int:
        """Prefixes that are kept."""
        return len(self._places)

    def score(self, requests: Sequence[Score], ready: Ready) -> list[Graded | InputError]:
        """See `Scorer.score`."""
        parents = [self._place(request.problem, request.steps[:-1]) for request in requests]
        results = self._session.extend(
            [(place, Step(text=one.steps[-1])) for place, one in zip(parents, requests, strict=True)]
        )
        replies: list[Graded | InputError] = []
        for request, parent, result in zip(requests, parents, results, strict=True):
            if isinstance(result, InputError):
                replies.append(result)
                continue
            _check_finite(self._prm, result.score, request)
            key = (request.problem, request.steps)
            before = self._places.get(key)
            self._places[key] = result.place
            if before is not None:  # asked twice, and held twice
                self._session.drop([before])
            root = self._root(request.problem, result.place)
            above = self._ids(parent)
            replies.append(
                Graded(
                    score=result.score,
                    tokens=_beyond(above, result.place.ids, root),
                    root=root,
                    classes=result.classes,
                )
            )
        # Computed in one go, they are recorded in one go.
        return replies

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """See `Scorer.release`."""
        for request in requests:
            for steps in request.prefixes:
                place = self._places.pop((request.problem, steps), None)
                if place is not None:
                    self._session.drop([place])
        return [None] * len(requests)

    def _place(self, problem: str, steps: tuple[str, ...]) -> Place:
        from dataclasses import replace

        held = self._places.get((problem, steps))
        # One without tokens: the session finds what it has of it when it is extended, and reads the rest.
        return held or replace(self._session.open(Problem(text=problem)), solution=_solution(problem, steps))

    def _root(self, problem: str, place: Place) -> int:
        if problem not in self._roots:
            if len(self._roots) > 10_000:
                self._roots.clear()
            self._roots[problem] = self._prm.encoder.encode(place.solution).problem_tokens
        return self._roots[problem]

    def _ids(self, place: Place) -> Ints:
        """The tokens of a prefix, up to where its last step is read; none for the problem's root."""
        if len(place.ids) or not place.solution.steps:
            return place.ids
        encoded = self._prm.encoder.encode(place.solution)
        read = encoded.reads[-1]
        return encoded.ids if read is None else encoded.ids[: read + 1]


def _beyond(above: Ints, ids: Ints, root: int) -> int:
    from stepmark.models.tree import common_prefix

    return len(ids) - (common_prefix(above, ids) if len(above) else min(root, len(ids)))


def _solution(problem: str, steps: tuple[str, ...]) -> Solution:
    return Solution.of(problem, steps)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _check_finite(prm: PRM, score: float, request: Score) -> None:
    if not math.isfinite(score):
        raise BackendError(
            f"{prm.name} gave the score {score!r} to step {len(request.steps) - 1} (0-based), "
            f"{request.steps[-1][:80]!r}; expected a finite number. Nothing was recorded of it"
        )
