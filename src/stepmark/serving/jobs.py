"""What is asked of a server's model, what comes out, and how a request can fail before it is computed.

Three things are asked: the scores of a whole solution, the score of one more step of a prefix, and the head's rows for bare token
ids. An `Ask` becomes a `Prepared` in the tokeniser's thread, and a `Result` in the compute thread. All three travel through one
queue and share one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepmark.batching import Graded
from stepmark.errors import InputError, StepmarkError
from stepmark.records import Problem, Refusal, Solution, Step, StepScores

if TYPE_CHECKING:
    from stepmark.models.encoding import Encoded
    from stepmark.models.session import Place


class BusyError(StepmarkError):
    """More waits than the queue takes.

    Args:
        message: what was asked and what there is.
        retry_after: seconds until there should be room; at least 1.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        self.retry_after = max(1.0, retry_after)
        super().__init__(message)


class LateError(StepmarkError):
    """The deadline passed before everything was computed; what was computed of it is not given out."""


class SessionFullError(InputError):
    """A step that a session has no room for; nothing is wrong with the step."""


class DrainingError(StepmarkError):
    """The server shuts down: it takes no new request, or it did not come to this one in its time of grace."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Whole:
    """Asks for the scores of all steps of a solution; answered by `StepScores` or `Refusal`."""

    solution: Solution

    @property
    def key(self) -> str:
        """What belongs together: the problem."""
        return self.solution.problem.text

    @property
    def characters(self) -> int:
        """Of its texts."""
        return len(self.solution.problem.text) + sum(
            len(s.text) + len(s.observation) for s in self.solution.steps
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Growth:
    """Asks for the score of one more step; answered by `Grown` or `InputError`."""

    problem: Problem
    steps: tuple[str, ...] = ()
    """Those before it."""
    text: str
    """The step."""
    place: Place | None = None
    """What is kept of the prefix, as `Grown` gave it; None where nothing is."""

    @property
    def key(self) -> str:
        """What belongs together: the problem."""
        return self.problem.text

    @property
    def characters(self) -> int:
        """Of its texts."""
        return len(self.problem.text) + sum(map(len, self.steps)) + len(self.text)

    @property
    def solution(self) -> Solution:
        """The prefix with the step."""
        return Solution(
            problem=self.problem, steps=tuple(Step(text=text) for text in (*self.steps, self.text))
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """Asks for the head's rows of a text that is tokens already; answered by `Rows` or `InputError`."""

    tokens: tuple[int, ...] | str
    """Token ids, or a text to be tokenised as it stands."""
    activation: bool
    """Probabilities; else logits."""
    special: bool = True
    """Of a text: with the tokenizer's own special tokens."""

    @property
    def key(self) -> str:
        """Nothing is known to belong together."""
        return ""

    @property
    def characters(self) -> int:
        """Of its text; of tokens, as many as would make them."""
        return len(self.tokens) if isinstance(self.tokens, str) else 3 * len(self.tokens)


Ask = Whole | Growth | Reading


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """An ask that can be computed."""

    ask: Ask
    tokens: int
    """It is read as; an estimate where the PRM has no tokens of its own."""
    encoded: Encoded | None = None
    """None where the PRM has no tokens of its own (scripted, generative, remote), or makes them when it computes (outcome models)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """A prefix with one more step."""

    graded: Graded
    """What the PRM says of the step, and its tokens."""
    place: Place | None = field(default=None, repr=False, compare=False)
    """What is kept of the prefix; whoever gets it gives it back with `Batcher.release`. None where nothing is."""
    size: int = field(default=0, compare=False)
    """Bytes, about, that this takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What the head says of some tokens of a text."""

    rows: tuple[tuple[float, ...], ...]
    """[marks, classes]: a row a step mark where the marks can be told from the tokens, else a row a token."""
    tokens: int
    """Of the text."""


Result = StepScores | Refusal | Grown | Rows | InputError


def refused(ask: Ask, error: InputError) -> Refusal | InputError:
    """The result of an ask that the PRM cannot read."""
    return Refusal(solution=ask.solution, error=error) if isinstance(ask, Whole) else error
