"""Watching an agent while it works: each turn is scored when it comes, and the rule says go on, go back or stop.

**The rule.** A turn whose score is under the threshold is weak. After `patience` weak turns in a row: back to the first of them, to do it
again. After `retries` such returns the next one is a stop. A running aggregate under `floor` is a stop at once. What is said is
advice: `back` is called by who takes it, and a caller may go on.

A PRM that stepmark loaded reads each token once: its session keeps what it has read (`models.session`). Any other PRM reads the
conversation anew for each turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import aggregate, check_score, resolve_aggregate
from stepmark.models.prm import PRM, Session, checked_scores
from stepmark.records import Problem, Solution, Step, StepScores
from stepmark.solutions.inputs import ProblemLike, problem_of, read_message
from stepmark.solutions.thoughts import Reasoning

if TYPE_CHECKING:
    from stepmark.models.session import CachedSession, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a turn came to."""

    turn: int
    """The turn, counted from 0."""
    score: float
    """Of the kind `score_kind` of the PRM."""
    running: float
    """The aggregate of all turns so far."""
    advice: Literal["go on", "go back", "stop"]
    to: int | None = None
    """With "go back": the turn to do again, counted from 0."""
    why: str = ""
    """The reason for anything but "go on"."""


@final
class Watch:
    """A conversation that is watched; made by `prm.watch`.

    Args:
        prm: scores the turns.
        problem: what the agent was asked.
        threshold: a turn whose score is under it is weak; None for the PRM's own.
        aggregate: how turns become one number; None for the PRM's own.
        patience: weak turns in a row after which to go back; at least 1.
        retries: how often to go back, before a stop; 0 stops at once.
        floor: a running aggregate under it is a stop; None for none.
        reasoning: what becomes of thoughts, as in `stepmark.split`.

    Raises:
        UsageError: no threshold, one that does not fit the scores, or another setting that cannot work.
    """

    def __init__(
        self,
        prm: PRM,
        problem: ProblemLike,
        *,
        threshold: float | None = None,
        aggregate: str | None = None,
        patience: int = 1,
        retries: int = 3,
        floor: float | None = None,
        reasoning: Reasoning = "keep",
    ) -> None:
        own = prm.default_threshold if threshold is None else threshold
        if own is None:
            raise UsageError(f"{prm.name} has no threshold of its own; give one (`threshold`)")
        try:
            check_score(own, prm.score_kind, step=0)
        except InputError:
            raise UsageError(f"the threshold {own!r} is no {prm.score_kind}") from None
        if patience < 1 or retries < 0:
            raise UsageError(
                f"expected `patience` of 1 or more and `retries` of 0 or more, found {patience} and {retries}"
            )
        self._prm, self._threshold, self._patience, self._left = prm, own, patience, retries
        self._floor, self._reasoning = floor, reasoning
        self._how = resolve_aggregate(aggregate, prm.default_aggregate, prm.score_kind)
        self._problem: Problem = problem_of(problem)
        self._steps: list[Step] = []
        self._scores: list[float] = []
        self._names: dict[str, str] = {}
        self._session = _Incremental.of(prm.open_session(), self._problem)

    @property
    def solution(self) -> Solution:
        """The conversation so far."""
        return Solution(problem=self._problem, steps=tuple(self._steps), split="agent")

    @property
    def scores(self) -> tuple[float, ...]:
        """The score of each turn so far."""
        return tuple(self._scores)

    def add(self, message: str | Mapping[str, Any]) -> Seen | None:
        """Take what comes next.

        Args:
            message: a chat message; a text is an assistant's.

        Returns:
            What an assistant's turn came to; None for anything else, which is context of the next turn.

        Raises:
            InputError: no such message, a turn of which nothing is graded, an answer before the first turn, or a turn that the PRM
                cannot read; the turn is then not taken.
        """
        given = {"role": "assistant", "content": message} if isinstance(message, str) else message
        read = read_message(given, f"message {len(self._steps)}", None, self._names)
        if read.role != "assistant":
            if not self._steps:
                raise InputError(
                    f"expected the agent's first turn, found a {read.role} message: it belongs to the problem"
                )
            last = self._steps[-1]
            seen = f"{last.observation}\n\n{read.heading}\n{read.content}"
            self._steps[-1] = replace(last, observation=seen)
            return None
        before, text, after = read.shares(self._reasoning)
        if not text.strip():
            raise InputError("expected a turn with a text or tool calls to grade, found none")
        step = Step(
            text=text.strip(),
            lead=f"{read.heading}\n{before}",
            observation=after,
            speaker=read.speaker,
        )
        score = self._score(step)
        self._steps.append(step)
        self._scores.append(score)
        return self._seen()

    def back(self, to: int) -> None:
        """Forget the turns from `to` on, and what came back after them.

        Raises:
            UsageError: there is no such turn.
        """
        if not 0 <= to < len(self._steps):
            raise UsageError(f"expected a turn from 0 to {len(self._steps) - 1}, found {to}")
        del self._steps[to:], self._scores[to:]
        if self._session is not None:
            self._session.back(to)

    def close(self) -> None:
        """Free what the session stores."""
        if self._session is not None:
            self._session.back(0)

    def _score(self, step: Step) -> float:
        if self._session is not None:
            return self._session.score(self._steps, step)
        whole = replace(self.solution, steps=(*self._steps, step))
        [(_, result)] = checked_scores(iter([whole]), self._prm)
        assert isinstance(result, StepScores)  # without keep_going a refusal is raised
        score = result.scores[-1]
        if score is None:
            raise InputError("the turn lies past what this PRM reads")
        return score

    def _seen(self) -> Seen:
        turn, score = len(self._steps) - 1, self._scores[-1]
        running = aggregate(self._scores, self._how, kind=self._prm.score_kind)
        seen = Seen(turn=turn, score=score, running=running, advice="go on")
        if self._floor is not None and running < self._floor:
            return replace(
                seen, advice="stop", why=f"the {self._how} so far, {running:.3g}, is under {self._floor:g}"
            )
        weak = self._scores[-self._patience :]
        if len(weak) < self._patience or any(one >= self._threshold for one in weak):
            return seen
        why = f"{self._patience} turn{'s' if self._patience > 1 else ''} in a row under {self._threshold:g}"
        if not self._left:
            return replace(seen, advice="stop", why=f"{why}, and no return is left")
        self._left -= 1
        return replace(seen, advice="go back", to=turn - self._patience + 1, why=why)


class _Incremental:
    """A session that reads a growing conversation, each token once."""

    def __init__(self, session: CachedSession, root: Place) -> None:
        self._session = session
        self._places = [root]

    @classmethod
    def of(cls, session: Session, problem: Problem) -> _Incremental | None:
        """One for a PRM in this process; None for any other."""
        if not session.in_process:
            return None
        from stepmark.models.session import CachedSession, root_of

        assert isinstance(session, CachedSession)
        return cls(session, root_of(problem))

    def score(self, steps: Sequence[Step], step: Step) -> float:
        """The score of a step after these, whose observations may have come since they were scored."""
        place = self._places[-1]
        before = replace(place, solution=replace(place.solution, steps=tuple(steps)))
        [found] = self._session.extend([(before, step)])
        if isinstance(found, InputError):
            raise found
        self._places.append(found.place)
        return found.score

    def back(self, to: int) -> None:
        """Keep the first `to` steps."""
        self._session.drop(reversed(self._places[to + 1 :]))
        del self._places[to + 1 :]
