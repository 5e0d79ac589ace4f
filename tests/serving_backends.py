"""A backend that computes by rule, when it is told to, and notes what it was given."""

from __future__ import annotations

import threading

from stepmark.errors import BackendError, InputError, TooLongError
from stepmark.models.prm import Ledger
from stepmark.records import Problem, Refusal, Solution, Step, StepScores
from stepmark.serving.backend import Prepared, Rows


class Named:
    name, score_kind, default_aggregate, default_threshold = "ruled", "unbounded", "min", None
    ledger = Ledger()


class Ruled:
    """Tokens are characters of the steps; a step's score is its length; "?" cannot be read, "~" is too long, "!" breaks the batch.

    With `gated`, `compute` waits for `gate`.
    """

    caches, pooling, max_tokens, memory = True, True, None, (0, 1000, 0)

    def __init__(self, *, gated=False):
        self.prm = Named()
        self.batches, self.threads = [], []
        self.gate = threading.Semaphore(0) if gated else None

    def prepare(self, asks):
        self.threads.append(("prepare", threading.get_ident()))
        return [self._prepared(ask) for ask in asks]

    def _prepared(self, ask):
        if "?" in text_of(ask):
            return InputError("it asks")
        if "~" in text_of(ask):
            return TooLongError("too long")
        return Prepared(ask=ask, tokens=max(1, len(text_of(ask))))

    def fresh(self, work, beside):
        return work.tokens

    def compute(self, works):
        self.threads.append(("compute", threading.get_ident()))
        self.batches.append([text_of(work.ask) for work in works])
        if self.gate is not None:
            assert self.gate.acquire(timeout=60)
        if any("!" in text_of(work.ask) for work in works):
            raise BackendError("it broke")
        return [self._result(work.ask) for work in works]

    def _result(self, ask):
        if not isinstance(ask, Solution):
            return Rows(rows=tuple((float(t),) for t in ask.tokens), tokens=len(ask.tokens))
        if "#" in text_of(ask):
            return Refusal(solution=ask, error=InputError("too much"))
        return StepScores(scores=tuple(float(len(t)) for t in ask.texts), kind="unbounded")


def text_of(ask):
    return "|".join(ask.texts) if isinstance(ask, Solution) else "".join(map(str, ask.tokens))


def solution(*texts, problem="p"):
    return Solution(problem=Problem(text=problem), steps=tuple(Step(text=t) for t in texts))
