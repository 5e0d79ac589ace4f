"""Watching an agent while it works: each turn is scored when it comes, and the rule says go on, go back or stop.

A turn is weak when its score is under the threshold, when an exact check refutes it, or when a judge says that a criterion fails; but not when the
agent writes again what it was sent back for, where all of these would only repeat themselves. After `patience` weak turns in a row: back to the
first of them, to do it again, with a sentence for each criterion that failed. After `retries` such returns the next one is a stop. A running
aggregate under `floor` is a stop at once. This is advice: a caller may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

from stepmark.data.conversations import ChatMessage, Opening, answered, read_message, step_of
from stepmark.data.steps.thoughts import Reasoning
from stepmark.errors import InputError, UsageError
from stepmark.metrics.aggregate import aggregate, check_score
from stepmark.records import Finding, Problem, ScoreKind, Solution, Step
from stepmark.verifiers.checks import check_names, check_solution
from stepmark.words import amount

if TYPE_CHECKING:
    from stepmark.models.prm import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What is wrong with a turn, in words for the agent."""

    criterion: str
    """The criterion that failed: one of a judge's, or the exact check ("equation") that refutes the turn."""
    sentence: str
    """One sentence for the agent: the judge's reason, or what was written and what is right."""
    source: Literal["judge", "check"]

    @classmethod
    def proof(cls, finding: Finding) -> Feedback:
        """What an exact check found."""
        written = " ".join(finding.written.split())
        return cls(
            criterion=finding.check, sentence=f'"{written}" is wrong: {finding.right}.', source="check"
        )


TurnJudge = Callable[[Solution], Sequence[Feedback]]
"""What is wrong with the last turn of a conversation; `labels.Judge.watching` makes one."""


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
    feedback: tuple[Feedback, ...] = ()
    """What is wrong with this turn; empty where only its score is known."""
    message: str | None = None
    """With "go back": the sentences about the turns to do again, for the agent to read; None where there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """When to go on, to go back, and to stop."""

    kind: ScoreKind
    threshold: float
    """A turn whose score is under it is weak."""
    aggregate: str
    """How turns become one number."""
    patience: int = 1
    """Weak turns in a row after which to go back; at least 1."""
    retries: int = 3
    """How often to go back, before a stop; 0 stops at once."""
    floor: float | None = None
    """A running aggregate under it is a stop; None for none."""

    def __post_init__(self) -> None:
        try:
            check_score(self.threshold, self.kind, step=0)
        except InputError:
            raise UsageError(f"the threshold {self.threshold!r} is no {self.kind}") from None
        if self.patience < 1 or self.retries < 0:
            raise UsageError(
                f"expected `patience` of 1 or more and `retries` of 0 or more, found {self.patience} and {self.retries}"
            )


@final
class Watch:
    """A conversation that is watched; made by `prm.watch`.

    Args:
        problem: what the agent was asked.
        session: scores its turns.
        rule: what is made of the scores.
        reasoning: what becomes of thoughts, as in `stepmark.split`.
        checks: the exact checks of each turn, as in `stepmark.grade`: "all", "none", or names with commas between them.
        judge: says what else is wrong with a turn.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        rule: Rule,
        reasoning: Reasoning = "keep",
        *,
        checks: str = "none",
        judge: TurnJudge | None = None,
    ) -> None:
        check_names(checks)
        self._problem, self._session, self._rule, self._reasoning = problem, session, rule, reasoning
        self._checks, self._judge = checks, judge
        self._left = rule.retries
        self._steps: list[Step] = []
        self._scores: list[float] = []
        self._feedback: list[tuple[Feedback, ...]] = []
        self._returned: set[tuple[str, ...]] = set()
        """The turns up to each that the agent was sent back for."""
        self._names: dict[str, str] = {}
        self._opening = Opening()
        self._read: Solution | None = None

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
            What an assistant's turn came to; None for anything else, which is context of the next turn: also a turn of which `reasoning`
            leaves nothing to grade.

        Raises:
            InputError: no such message, an empty turn, an answer before the first turn, or a turn that the PRM cannot read; the turn is
                then not taken.
        """
        turn = {"role": "assistant", "content": message} if isinstance(message, str) else message
        read = read_message(turn, f"message {len(self._steps)}", None, self._names)
        if read.role != "assistant":
            if not self._steps and not self._opening.text:
                raise InputError(
                    f"expected the agent's first turn, found a {read.role} message: it belongs to the problem"
                )
            self._observe(read)
            return None
        step = step_of(read, self._reasoning, Opening() if self._steps else self._opening)
        if step is None:
            if not read.shares("keep").graded.strip():
                raise InputError("expected a turn with a text or tool calls to grade, found none")
            self._observe(read)
            return None
        so_far = replace(self.solution, steps=(*self._steps, step))
        reply = self._session.score_turn(so_far, self._read)
        if isinstance(reply, InputError):
            raise reply
        self._read = so_far
        feedback = self._feedback_on(so_far)
        self._steps.append(step)
        self._scores.append(reply.score)
        self._feedback.append(feedback)
        return self._seen()

    def _feedback_on(self, solution: Solution) -> tuple[Feedback, ...]:
        """What is wrong with the last turn: proofs first."""
        last = len(solution.steps) - 1
        findings = check_solution(solution, self._checks) or ()
        proofs = [Feedback.proof(finding) for finding in findings if finding.step == last]
        return (*proofs, *(() if self._judge is None else self._judge(solution)))

    def _observe(self, message: ChatMessage) -> None:
        """What the agent sees before its next turn; before its first graded one, the layout of that."""
        if self._steps:
            self._steps[-1] = answered(self._steps[-1], message, self._reasoning)
        else:
            self._opening = self._opening.then(message, self._reasoning)

    def back(self, to: int) -> None:
        """Forget the turns from `to` on, and what came back after them; a `UsageError` where there is no such turn."""
        if not 0 <= to < len(self._steps):
            raise UsageError(f"expected a turn from 0 to {len(self._steps) - 1}, found {to}")
        self._returned.add(self.solution.texts[: to + 1])
        del self._steps[to:], self._scores[to:], self._feedback[to:]

    def _seen(self) -> Seen:
        rule, turn = self._rule, len(self._steps) - 1
        running = aggregate(self._scores, rule.aggregate, kind=rule.kind)
        seen = Seen(
            turn=turn, score=self._scores[-1], running=running, advice="go on", feedback=self._feedback[-1]
        )
        if rule.floor is not None and running < rule.floor:
            why = f"the {rule.aggregate} so far, {running:.3g}, is under {rule.floor:g}"
            return replace(seen, advice="stop", why=why)
        first, texts = turn - rule.patience + 1, self.solution.texts
        weak = (
            (self._scores[at] < rule.threshold or self._feedback[at])
            and texts[: at + 1] not in self._returned
            for at in range(first, turn + 1)
        )
        if first < 0 or not all(weak):
            return seen
        items = [item for feedback in self._feedback[first:] for item in feedback]
        failed = ", ".join(dict.fromkeys(item.criterion for item in items))
        why = f"{amount(rule.patience, 'turn')} in a row under {rule.threshold:g}"
        if failed:
            why = f"{amount(rule.patience, 'weak turn')}: {failed}"
        if not self._left:
            return replace(seen, advice="stop", why=f"{why}, and no return is left")
        self._left -= 1
        message = " ".join(dict.fromkeys(item.sentence for item in items)) or None
        return replace(seen, advice="go back", to=first, why=why, message=message)
