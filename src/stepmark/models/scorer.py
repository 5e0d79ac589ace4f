"""A PRM as an answerer of `Score` and `Release`, for searches that `batching.run` drives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

from stepmark.batching import Answerer, Graded, Ready, Release, Score
from stepmark.errors import BackendError, InputError, TooLongError
from stepmark.models.identity import identity_of
from stepmark.models.prm import PRM, Session
from stepmark.records import Refusal, Solution, StepScores


def answerers(
    prm: PRM, *, session: Session | None = None, memory_tokens: int | None = None
) -> dict[type, Answerer]:
    """What `batching.run` needs to have a PRM answer `Score` and `Release`; merge it with a policy's.

    Args:
        prm: as `load_prm` gives it.
        session: an open session of this PRM; None opens one.
        memory_tokens: see `Grader.open_session`; for the session that is opened here.
    """
    session = prm.open_session(memory_tokens=memory_tokens) if session is None else session
    identity = identity_of(prm)
    return {
        Score: Answerer(identity=identity, answer=session.score),
        Release: Answerer(identity=identity, answer=session.release),
    }


def why_whole_prefixes(prm: PRM) -> str:
    """Why a search must have this PRM read every prefix whole; "" where a step costs its own tokens only."""
    return prm.open_session().reason


@final
class WholePrefixSession:
    """A session that stores nothing: every prefix is scored whole, and its last score is the step's.

    Args:
        prm: any.
        reason: why nothing is stored.
        counts_words: the PRM computes each prefix once, and a word is its token (`ScriptedPRM`).
    """

    in_process = False

    def __init__(self, prm: PRM, reason: str, *, counts_words: bool = False) -> None:
        self._prm, self.reason, self._counts_words = prm, reason, counts_words

    def score(self, requests: Sequence[Score], ready: Ready) -> list[Graded | InputError]:
        """See `Session.score`."""
        replies: list[Graded | InputError] = []
        results = self._prm.score_many(
            (Solution.of(request.problem, request.steps) for request in requests), keep_going=True
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
        """Nothing is stored."""
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
        check_finite(self._prm.name, score, request)
        classes = None if result.classes is None else result.classes[-1]
        if self._counts_words:
            tokens, root = len(request.steps[-1].split()), len(request.problem.split())
            return Graded(score=score, tokens=tokens, root=root, classes=classes)
        if result.problem_tokens is None or result.solution_tokens is None:
            return Graded(score=score, tokens=None, root=None, classes=classes)
        tokens = result.problem_tokens + result.solution_tokens
        return Graded(score=score, tokens=tokens, root=0, classes=classes)


def check_finite(name: str, score: float, request: Score) -> None:
    """Refuse a score that is NaN or infinite.

    Raises:
        BackendError: it is.
    """
    if not math.isfinite(score):
        raise BackendError(
            f"{name} gave the score {score!r} to step {len(request.steps) - 1} (0-based), "
            f"{request.steps[-1][:80]!r}; expected a finite number. Nothing was recorded of it"
        )
