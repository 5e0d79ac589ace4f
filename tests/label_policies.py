"""Policies for the tests of `stepmark label`: `--policy label_policies:NAME` calls NAME without arguments."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from stepmark.backends import BatchPolicy, ChoiceLogprobs, Completion, Completions, Ready
from stepmark.errors import BackendError, InputError
from stepmark.models.scripted import ScriptedPolicy
from stepmark.problems.arithmetic_world import ArithmeticPolicy


class _Slow(BatchPolicy):
    """The arithmetic world's policy, slow, with a log of what it wrote in the file $ASKED; $POLICY is its identity where given."""

    def __init__(self) -> None:
        self._policy = ArithmeticPolicy()
        self.name = "slow arithmetic"
        self.identity = os.environ.get("POLICY", self._policy.identity)
        self._log = Path(os.environ["ASKED"])

    @property
    def tokens_written(self) -> int:  # type: ignore[override]
        return self._policy.tokens_written

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        found: list[list[Completion] | InputError] = []
        for number, request in enumerate(requests):
            time.sleep(float(os.environ.get("PAUSE", "0.03")))
            reply = self._policy.complete_many([request])[0]
            with self._log.open("a") as log:
                log.write(f"{hash((request.prompt, request.prefill))} {request.first} {request.n}\n")
            found.append(reply)
            if ready is not None:
                ready(number, reply)
        return found

    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        return self._policy.choose_many(requests, ready)


def slow() -> _Slow:
    """Takes a while over every rollout."""
    return _Slow()


class _Dying(_Slow):
    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        if len(self._log.read_text().splitlines() if self._log.exists() else []) > 8:
            raise BackendError("the server went away")
        return super().complete_many(requests, ready)


def dying() -> _Dying:
    """Fails after some rollouts."""
    return _Dying()


def program() -> ScriptedPolicy:
    """Writes a right program."""
    return ScriptedPolicy(lambda request, number: "```python\ndef double(x):\n    return 2 * x\n```\n")


def picky() -> ScriptedPolicy:
    """Solves half the time from the problem alone, goes on to a wrong answer, and cannot read "?"."""

    def write(request: Completions, number: int) -> Completion:
        if "?" in request.prefill:
            raise InputError("a question mark")
        right = number % 2 == 0 and not request.prefill
        return Completion(text="So \\boxed{7}" if right else "So \\boxed{8}", finish="end", tokens=4)

    return ScriptedPolicy(write, name="picky")


def judge() -> ScriptedPolicy:
    """Checks the sum in the first step, as `stepmark label judge` asks; every third reply is mistaken."""

    def write(request: Completions, number: int) -> str:
        assert not isinstance(request.prompt, str)
        asked = request.prompt[0].content
        a, b, c = map(int, re.findall(r"(\d+) \+ (\d+) = (\d+)", asked)[0])
        step = re.search(r"Check <paragraph_(\d+)> alone", asked)
        wrong = (a + b != c and (step is None or step[1] == "0")) != (number % 3 == 2)
        if step is not None:
            return f"I add {a} and {b}. \\boxed{{{'incorrect' if wrong else 'correct'}}}"
        return f"I add {a} and {b} of paragraph 0. \\boxed{{{0 if wrong else -1}}}"

    return ScriptedPolicy(write, name="a judge")
