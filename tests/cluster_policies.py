"""Policies and PRMs for the tests of `--ray`: workers build them by name, in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from stepmark.backends import BatchPolicy, ChoiceLogprobs, Completion, Completions, Ready
from stepmark.errors import BackendError, InputError
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic_world import ArithmeticPolicy


class Slow(BatchPolicy):
    """The arithmetic world's policy, which takes $DELAY seconds a request; each process logs what it wrote in a file of its own in the folder $ASKED."""

    def __init__(self) -> None:
        self._policy = ArithmeticPolicy()
        self.name = "slow arithmetic"
        self.identity = self._policy.identity
        self._log = Path(os.environ["ASKED"]) / str(os.getpid())

    @property
    def tokens_written(self) -> int:  # type: ignore[override]
        return self._policy.tokens_written

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        replies: list[list[Completion] | InputError] = []
        for place, request in enumerate(requests):
            self.before(request)
            time.sleep(float(os.environ["DELAY"]))
            reply = self._policy.complete_many([request])[0]
            with self._log.open("a") as log:
                log.write(f"{request.prompt!r} {request.prefill!r} {request.first} {request.n}\n")
            replies.append(reply)
            if ready is not None:
                ready(place, reply)
        return replies

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        return self._policy.choose_many(requests, ready)

    def before(self, request: Completions) -> None:
        """What happens before a text is written."""


class Deadly(Slow):
    """One problem kills whoever goes on from it."""

    def before(self, request: Completions) -> None:
        if os.environ["DEADLY"] in str(request.prompt):
            os.kill(os.getpid(), signal.SIGKILL)


class Failing(Slow):
    """The server behind it goes away after some texts."""

    def before(self, request: Completions) -> None:
        if self._log.exists() and len(self._log.read_text().splitlines()) > 5:
            raise BackendError("the server went away")


class Confused(Slow):
    """Has another model in each process."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = f"model of process {os.getpid()}"


class Broken(Slow):
    """Dies while it is built."""

    def __init__(self) -> None:
        super().__init__()
        os.kill(os.getpid(), signal.SIGKILL)


def grader() -> ScriptedPRM:
    """Takes $DELAY seconds a step, and says of a step how long it is; each process logs the problems it read as `Slow` does."""
    log = Path(os.environ["ASKED"]) / str(os.getpid())

    def score(problem: str, steps: tuple[str, ...]) -> float:
        time.sleep(float(os.environ["DELAY"]))
        with log.open("a") as handle:
            handle.write(f"{problem!r} {len(steps)}\n")
        return 1 / len(steps[-1])

    return ScriptedPRM(score, name="grader")
