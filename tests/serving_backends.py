"""A backend that computes by rule, when it is told to, and notes what it was given."""

from __future__ import annotations

import threading

from stepmark.backends import StepScore
from stepmark.errors import BackendError, InputError
from stepmark.models.prm import Ledger
from stepmark.records import Problem, Refusal, Solution, Step, StepScores
from stepmark.serving.backend import Grown, Prepared, Rows, Whole


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Named:
    name, score_kind, default_aggregate, default_threshold = "ruled", "unbounded", "min", None
    ledger = Ledger()


class Ruled:
    """Tokens are characters of the steps; a step's score is its length; "?" cannot be read, "!" breaks the batch.

    With `gated`, `compute` waits for `gate`; `entered` says that it does. `seconds` pass on the clock in every batch.
    """

    incremental, pooling, max_tokens = True, True, None

    def __init__(self, *, gated=False, clock=None, seconds=0.0):
        self.prm, self.clock, self.seconds = Named(), clock, seconds
        self.batches, self.released, self.threads = [], [], set()
        self.gate = threading.Semaphore(0) if gated else None
        self.entered = threading.Semaphore(0)
        self.kept = 0

    @property
    def ledger(self):
        return self.prm.ledger

    @property
    def memory(self):
        return self.kept, 1000, 0

    def estimate(self, ask):
        return tokens_of(ask)

    def prepare(self, asks):
        self.threads.add(("prepare", threading.get_ident()))
        return [
            InputError("it asks") if "?" in text_of(ask) else Prepared(ask=ask, tokens=tokens_of(ask))
            for ask in asks
        ]

    def fresh(self, work, beside):
        return work.tokens

    def compute(self, works):
        self.threads.add(("compute", threading.get_ident()))
        self.batches.append([text_of(work.ask) for work in works])
        self.entered.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=60)
        if self.clock is not None:
            self.clock.now += self.seconds
        if any("!" in text_of(work.ask) for work in works):
            raise BackendError("it broke")
        return [self._result(work.ask) for work in works]

    def _result(self, ask):
        if isinstance(ask, Whole):
            if "#" in text_of(ask):
                return Refusal(solution=ask.solution, error=InputError("too much"))
            return StepScores(scores=tuple(float(len(t)) for t in ask.solution.texts), kind="unbounded")
        if hasattr(ask, "text"):
            self.kept += 1
            graded = StepScore(score=float(len(ask.text)), tokens=len(ask.text))
            return Grown(graded=graded, place=ask, size=24 * len(ask.text))
        return Rows(rows=tuple((float(t),) for t in ask.tokens), tokens=len(ask.tokens))

    def release(self, kept):
        self.released += [one.place.text for one in kept]
        self.kept -= len(kept)


def text_of(ask):
    if isinstance(ask, Whole):
        return "|".join(ask.solution.texts)
    return ask.text if hasattr(ask, "text") else "".join(map(str, ask.tokens))


def tokens_of(ask):
    return max(1, len(text_of(ask)))


def solution(*texts, problem="p"):
    return Solution(problem=Problem(text=problem), steps=tuple(Step(text=t) for t in texts))
