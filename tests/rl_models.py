"""PRMs for the tests of `stepmark rl`: `--prm rl_models:NAME` calls NAME without arguments."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence

from stepmark.models.prm import PRM, Ledger
from stepmark.models.scripted import ScriptedPRM
from stepmark.records import Refusal, ScoreKind, Solution, StepScores, Verdict
from stepmark.verifiers.base import VerifierBase


def wordy() -> ScriptedPRM:
    """Likes long steps, whatever they say: easily pleased."""
    return ScriptedPRM(lambda _problem, steps: 1 - 1 / (1 + len(steps[-1]) / 10), name="wordy")


def margin() -> ScriptedPRM:
    """Another kind of scores."""
    return ScriptedPRM(
        lambda _problem, steps: 1 - 2 / (1 + len(steps[-1]) / 10), name="margin", score_kind="margin"
    )


class _Mortal(PRM):
    """As `wordy`; the process is killed when it is asked for the time that $DIES_AT names."""

    name = identity = "mortal"
    score_kind: ScoreKind = "probability"
    default_aggregate = "min"
    default_threshold: float | None = 0.5

    def __init__(self) -> None:
        self._prm = wordy()
        self._asked = 0

    @property
    def ledger(self) -> Ledger:
        return self._prm.ledger

    def score(self, problem: str, *, steps: Sequence[str]) -> list[float | None]:
        return self._prm.score(problem, steps=steps)

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        self._asked += 1
        if os.environ.get("DIES_AT") == str(self._asked):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._prm.score_many(solutions, keep_going=keep_going)


def mortal() -> _Mortal:
    """May be killed."""
    return _Mortal()


class Says(VerifierBase):
    """Right is what holds a given word."""

    name = "says"

    def verify(self, reply, gold):
        outcome = "match" if gold in (reply or "") else "mismatch"
        return Verdict(outcome=outcome, verifier=self.name, answer=reply)

    def verify_many(self, pairs):
        return [self.verify(*pair) for pair in pairs]

    def compare(self, gold, answer):
        raise AssertionError("not asked")
