"""A PRM behind `stepmark serve`: as any other PRM, and as the scorer of a search that sends each step once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

from stepmark.backends import Ready, Release, ScoreRequest, StepScore
from stepmark.errors import InputError, StepmarkError
from stepmark.models.http import Closing
from stepmark.models.prm import PRM
from stepmark.models.prm import Session as ScoringSession
from stepmark.models.remote.calls import ServedModel
from stepmark.models.remote.client import Client
from stepmark.models.remote.session import Observed, Session
from stepmark.models.watch import Growing
from stepmark.records import Problem, Refusal, Solution, Step, StepScores

_AT_ONCE = 16
"""Requests on their way together: the server computes in one batch what waits at one time."""


@final
class RemotePRM(PRM, Closing):
    """Scores on a server. Made by `load_prm` from an address.

    Its name, kind of scores, aggregate, threshold and checks are the server's; so is how the checkpoint is read.

    Args:
        client: of the server; closed with this.

    Raises:
        UsageError: the server has no PRM of the client's choice.
        BackendError: the server gives no answer, or is no stepmark server.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.served: ServedModel = client.model()
        self.name, self.score_kind, self.ledger = self.served.id, self.served.score_kind, client.ledger
        self.default_aggregate = self.served.default_aggregate
        self.default_threshold = self.served.default_threshold

    def __repr__(self) -> str:
        return self.describe(place={"address": self.client.address})

    @property
    def identity(self) -> str:
        """The name with what the server tells of settings and weights; with the address where it tells nothing."""
        identity = self.served.identity
        return identity if identity != self.served.id else f"{identity}@{self.client.address}"

    @property
    def default_checks(self) -> str:
        """The exact checks that run beside it, as its server says."""
        return self.served.default_checks

    def open_session(self, *, memory_tokens: int | None = None) -> ScoringSession:
        """See `PRM.open_session`: the server's own sessions."""
        del memory_tokens
        return RemoteScorer(self)

    def grow(self, problem: Problem) -> Growing:
        """See `PRM.grow`: the server's session reads each token once."""
        return RemoteGrowing(self.client.session(problem.text))

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
        for result in self.client.grade_many(
            solutions, keep_going=keep_going, aggregate="min", checks=checks
        ):
            yield result if isinstance(result, Refusal) else result.step_scores

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self.client.close()


@final
class RemoteGrowing:
    """A conversation that grows in a session of the server (`watch.Growing`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._prefixes: list[tuple[str | Observed, ...]] = []

    def score(self, steps: Sequence[Step], step: Step) -> float:
        """See `Growing.score`."""
        before = self._prefixes[-1] if self._prefixes else ()
        back = steps[-1].observation if steps else ""
        prefix = (*before, Observed(step.text, back) if back else step.text)
        [result] = self._session.extend([prefix])
        if isinstance(result, InputError):
            raise result
        self._prefixes.append(prefix)
        return result.score

    def back(self, to: int) -> None:
        """See `Growing.back`; with the first step the session ends."""
        if gone := self._prefixes[to:]:
            self._session.release(gone)
        del self._prefixes[to:]


@final
class RemoteScorer:
    """Scores a step by sending that step, in a session for each problem; the server ends idle sessions where it has too many, and they are opened anew."""

    in_process = False

    def __init__(self, prm: RemotePRM) -> None:
        self._client = prm.client
        self.reason = "" if prm.served.sessions else "the PRM on the server keeps no state, and says so"
        self._sessions: dict[str, Session] = {}

    @property
    def places(self) -> int:
        """Prefixes that are held."""
        return sum(session.held for session in self._sessions.values())

    def score(self, requests: Sequence[ScoreRequest], ready: Ready) -> list[StepScore | InputError]:
        """See `prm.Session.score`. Replies of one problem are recorded even where another problem fails."""
        by_problem: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_problem.setdefault(request.problem, []).append(number)
            if request.problem not in self._sessions:
                self._sessions[request.problem] = self._client.session(request.problem)
        replies: dict[int, StepScore | InputError] = {}

        def extend(problem: str) -> None:
            numbers = by_problem[problem]
            graded = self._sessions[problem].extend([requests[i].steps for i in numbers])
            replies.update(zip(numbers, graded, strict=True))

        failure = _together(by_problem, extend)
        if failure is not None:
            for number, reply in replies.items():
                ready(number, reply)
            raise failure
        return [replies[number] for number in range(len(requests))]

    def release(self, requests: Sequence[Release], ready: Ready) -> list[Any]:
        """See `prm.Session.release`. With the last prefix of a problem its session ends."""
        gone: dict[str, list[tuple[str, ...]]] = {}
        for request in requests:
            if request.problem in self._sessions:
                gone.setdefault(request.problem, []).extend(request.prefixes)
        _together(gone, lambda problem: self._sessions[problem].release(gone[problem]))
        for problem in gone:
            if not self._sessions[problem].held:
                del self._sessions[problem]
        return [None] * len(requests)


def _together(problems: Iterable[str], work: Callable[[str], None]) -> StepmarkError | None:
    """Do the work of every problem, side by side; the first failure, once all are done."""
    failure: StepmarkError | None = None
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        for future in [pool.submit(work, problem) for problem in problems]:
            try:
                future.result()
            except StepmarkError as error:
                failure = failure or error
    return failure
