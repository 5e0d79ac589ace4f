"""A policy whose answers are given by hand: to try a method out without a model, and to test it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

from stepmark.batching import Choose, Ready, Write, Written, cut_at_stop
from stepmark.errors import BackendError, InputError, UsageError

T = TypeVar("T")
Writes = Callable[[Write, int], str | Written] | Sequence[str | Written]
Chooses = Callable[[Choose], Sequence[float]] | Sequence[Sequence[float]]


@final
class ScriptedPolicy:
    """Answers from a function or from a list.

    A plain text is cut at the request's stop strings, as a model would be (`finish` is then `stop`, else
    `end`); a `Written` is given as it is.

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

    def write(
        self, requests: Sequence[Write], ready: Ready | None = None
    ) -> list[list[Written] | InputError]:
        """The scripted texts; an `InputError` that the script raises refuses that request alone."""
        replies: list[list[Written] | InputError] = []
        for index, request in enumerate(requests):
            first = request.first or 0
            reply: list[Written] | InputError
            try:
                reply = [self._sample(request, number) for number in range(first, first + request.n)]
            except InputError as error:
                reply = error
            replies.append(reply)
            if ready is not None:
                ready(index, reply)
        return replies

    def choose(
        self, requests: Sequence[Choose], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        """The scripted log-probabilities."""
        replies: list[list[float] | InputError] = []
        for index, request in enumerate(requests):
            reply = [float(value) for value in self._values(request)]
            if len(reply) != len(request.options):
                raise BackendError(
                    f"{self.name}: the script gave {len(reply)} log-probabilities for the "
                    f"{len(request.options)} options {request.options!r}"
                )
            replies.append(reply)
            if ready is not None:
                ready(index, reply)
        return replies

    def _sample(self, request: Write, number: int) -> Written:
        if callable(self._write):
            answer = self._write(request, number)
        else:
            answer = _next(self.name, "texts", self._write, self._written)
            self._written += 1
        if not isinstance(answer, Written):
            text, stopped = cut_at_stop(answer, request.stop)
            answer = Written(text=text, finish="stop" if stopped else "end")
        self.tokens_written += answer.tokens or 0
        return answer

    def _values(self, request: Choose) -> Sequence[float]:
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
