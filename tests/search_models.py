"""Models for the tests of `stepmark search`: `--policy search_models:NAME` and `--prm search_models:NAME` call NAME without arguments."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from stepmark.backends import BatchPolicy, ChoiceLogprobs, Completion, Completions, Ready
from stepmark.errors import BackendError, InputError
from stepmark.models.scripted import ScriptedPRM
from stepmark.problems.arithmetic import read_arithmetic
from stepmark.problems.arithmetic_world import ArithmeticPolicy, true_value


def _log(line: str) -> None:
    if "ASKED" in os.environ:
        with Path(os.environ["ASKED"]).open("a") as log:
            log.write(line + "\n")


class _Policy(BatchPolicy):
    """The arithmetic world's policy, slow where $PAUSE says so, with a log of what it was asked; $POLICY is its identity where given."""

    def __init__(self, dies: int | None = None) -> None:
        self._policy = ArithmeticPolicy()
        self.name, self.identity = self._policy.name, os.environ.get("POLICY", self._policy.identity)
        self._dies, self._asked = dies, 0

    @property
    def tokens_written(self) -> int:  # type: ignore[override]
        return self._policy.tokens_written

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        found: list[list[Completion] | InputError] = []
        for number, request in enumerate(requests):
            self._asked += 1
            if self._dies is not None and self._asked > self._dies:
                raise BackendError("the server went away")
            time.sleep(float(os.environ.get("PAUSE", "0")))
            found.append(self._policy.complete_many([request])[0])
            _log(f"write {hash((request.prompt, request.prefill))} {request.first} {request.n}")
            if ready is not None:
                ready(number, found[-1])
        return found

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        return self._policy.choose_many(requests, ready)


def policy() -> _Policy:
    """Solves arithmetic."""
    return _Policy()


def dying() -> _Policy:
    """Fails after some requests."""
    return _Policy(dies=10)


def truth() -> ScriptedPRM:
    """The true V, slow as the policy; $PRM is its identity where given."""

    def score(problem: str, steps: tuple[str, ...]) -> float:
        time.sleep(float(os.environ.get("PAUSE", "0")) / 10)
        return true_value(read_arithmetic(problem), steps)

    prm = ScriptedPRM(score, name="truth", default_aggregate="last")
    prm.identity = os.environ.get("PRM", prm.name)
    return prm


def never() -> ScriptedPRM:
    """Must not be loaded."""
    raise AssertionError("the PRM was loaded by a method that asks none")
