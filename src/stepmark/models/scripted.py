"""A PRM and a policy whose answers are given by hand: for tests, for documentation, and for trying a pipeline without a model.

The PRM keeps every promise of a real one: one score a step, causal, streaming, with a ledger. A token, to its ledger, is a word between white space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, final

from stepmark.backends import (
    BatchPolicy,
    ChoiceLogprobs,
    Completion,
    Completions,
    Ready,
    StepScore,
    cut_at_stop,
)
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.metrics.aggregate import check_score
from stepmark.models.prm import PRM, Ledger, Session
from stepmark.records import Refusal, ScoreKind, Solution, StepScores
from stepmark.words import amount

T = TypeVar("T")
Script = Callable[[str, tuple[str, ...]], float | None]
"""The score of the last of the steps, given the problem and the steps up to it; None for "not read"."""
Writes = Callable[[Completions, int], str | Completion] | Sequence[str | Completion]
Chooses = Callable[[ChoiceLogprobs], Sequence[float]] | Sequence[Sequence[float]]


@final
class ScriptedPRM(PRM):
    """A PRM whose scores are given.

    Args:
        script: a function of the problem and the steps up to the one to score, called once for each distinct
            prefix among solutions of one problem that stand together; or a table from a step's text to its
            score. A function may raise `InputError` to refuse a solution.
        name: its name in outputs, and its identity: recorded scores are found again under it, so give another script another name.
        score_kind: what the scores are.
        default_aggregate: how they make one number.
        default_threshold: the score under which a step is an error; None for no such point.

    """

    identity: str

    def __init__(
        self,
        script: Script | Mapping[str, float],
        *,
        name: str = "scripted",
        score_kind: ScoreKind = "probability",
        default_aggregate: str = "min",
        default_threshold: float | None = 0.5,
    ) -> None:
        self.name = self.identity = name
        self.score_kind = score_kind
        self.default_aggregate = default_aggregate
        self.default_threshold = default_threshold
        self.ledger = Ledger()
        self._script = _table(script) if isinstance(script, Mapping) else script
        # The prefixes of the latest problem only: memory stays bounded however long the stream.
        self._problem: str | None = None
        self._known: dict[tuple[str, ...], float | None] = {}

    def __repr__(self) -> str:
        return self.describe()

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """As `PRM.score_many`; each result comes before the next solution is read."""
        self._forget()
        for solution in solutions:
            try:
                yield self._read(solution)
            except InputError as error:
                if not keep_going:
                    raise
                yield Refusal(solution=solution, error=error)
        self._forget()

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`: every prefix is read whole, and each is computed once."""
        del memory_tokens
        reason = "its keys and values are out of reach: it is no model that stepmark loaded into this process"
        return _ScriptedSession(self, reason)

    def _forget(self) -> None:
        self._problem, self._known = None, {}

    def _read(self, solution: Solution) -> StepScores:
        problem, steps = solution.problem.text, solution.texts
        if not problem.strip():
            raise InputError("expected a text, found a blank problem", where=solution.id, field="problem")
        if not steps:
            raise InputError("expected at least one step, found none", where=solution.id, field="steps")
        for index, step in enumerate(steps):
            if not step.strip():
                raise InputError(f"step {index} (0-based) is blank", where=solution.id, field="steps")
        fresh = 0
        if problem != self._problem:
            self._problem, self._known = problem, {}
            fresh += _words(problem)
        scores = []
        for end in range(1, len(steps) + 1):
            prefix = steps[:end]
            if prefix not in self._known:
                self._known[prefix] = self._check(self._script(problem, prefix), prefix)
                fresh += _words(prefix[-1])
            scores.append(self._known[prefix])
        self.ledger.solutions += 1
        self.ledger.steps += len(steps)
        self.ledger.tokens_in += _words(problem) + sum(_words(step) for step in steps)
        self.ledger.tokens_distinct += fresh
        self.ledger.tokens_computed += fresh
        return StepScores(scores=tuple(scores), kind=self.score_kind)

    def _check(self, score: float | None, prefix: tuple[str, ...]) -> float | None:
        if score is None:
            return None
        try:
            return check_score(score, self.score_kind, step=len(prefix) - 1)
        except InputError as error:
            raise UsageError(f"{self.name}: the script gave {score!r} for {prefix[-1]!r}: {error}") from None


class _ScriptedSession(Session):
    """A word is a token, and each prefix is computed once."""

    def score_last(
        self, solutions: Sequence[Solution], ready: Ready | None = None
    ) -> list[StepScore | InputError]:
        # Reported once they are counted: what waits for a reply takes the first report of it.
        replies = [
            reply
            if isinstance(reply, InputError)
            else replace(reply, tokens=_words(solution.texts[-1]), root=_words(solution.problem.text))
            for solution, reply in zip(solutions, super().score_last(solutions), strict=True)
        ]
        for at, reply in enumerate(replies):
            if ready is not None:
                ready(at, reply)
        return replies


def _words(text: str) -> int:
    return len(text.split())


def _table(scores: Mapping[str, float]) -> Script:
    def look_up(problem: str, steps: tuple[str, ...]) -> float:
        try:
            return scores[steps[-1]]
        except KeyError:
            raise InputError(
                f"step {len(steps) - 1} (0-based), {steps[-1]!r}, is not in the script's table", field="steps"
            ) from None

    return look_up


@final
class ScriptedPolicy(BatchPolicy):
    """Answers from a function or from a list.

    A plain text is cut at the request's stop strings, as a model would be (`finish` is then `stop`, else
    `end`); a `Completion` is given as it is.

    Args:
        write: `write(request, number)` gives sample `number` of a request; or the texts in the order in which
            they are asked.
        choose: `choose(request)` gives one log-probability an option; or these, in the order of asking.
        name: its name and identity. Recorded replies are found again under the same name, so give another
            script another name.

    Raises:
        BackendError: when asked, there is no script for this kind of request, the list has run out, or the
            script gave the wrong number of log-probabilities.
    """

    def __init__(
        self, write: Writes | None = None, choose: Chooses | None = None, *, name: str = "scripted"
    ) -> None:
        if isinstance(write, str):
            raise UsageError("write must be a function or a list of texts, found one text")
        self._write = write
        self._choose = choose
        self.name = name
        self.identity = name
        self.tokens_written = 0
        self._written = 0
        self._chosen = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        """The scripted texts; an `InputError` that the script raises refuses that request alone."""
        replies: list[list[Completion] | InputError] = []
        for index, request in enumerate(requests):
            first = request.first
            reply: list[Completion] | InputError
            try:
                reply = [self._sample(request, number) for number in range(first, first + request.n)]
            except InputError as error:
                reply = error
            replies.append(reply)
            if ready is not None:
                ready(index, reply)
        return replies

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        """The scripted log-probabilities."""
        replies: list[list[float] | InputError] = []
        for index, request in enumerate(requests):
            reply = [float(value) for value in self._values(request)]
            if len(reply) != len(request.options):
                raise BackendError(
                    f"{self.name}: the script gave {len(reply)} log-probabilities for the "
                    f"{amount(len(request.options), 'option')} {request.options!r}"
                )
            replies.append(reply)
            if ready is not None:
                ready(index, reply)
        return replies

    def _sample(self, request: Completions, number: int) -> Completion:
        if callable(self._write):
            answer = self._write(request, number)
        else:
            answer = _next(self.name, "texts", self._write, self._written)
            self._written += 1
        if not isinstance(answer, Completion):
            text, stopped = cut_at_stop(answer, request.stop)
            answer = Completion(text=text, finish="stop" if stopped else "end")
        self.tokens_written += answer.tokens or 0
        return answer

    def _values(self, request: ChoiceLogprobs) -> Sequence[float]:
        if callable(self._choose):
            return self._choose(request)
        self._chosen += 1
        return _next(self.name, "log-probabilities", self._choose, self._chosen - 1)


def _next(name: str, what: str, script: Sequence[T] | None, place: int) -> T:
    if script is None:
        raise BackendError(f"{name}: there is no script for {what}")
    if place >= len(script):
        raise BackendError(f"{name}: the script has {len(script)} {what}, and one more was asked for")
    return script[place]
