"""The thread that computes, what it measures, and the record of a request that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

from stepmark.errors import BackendError, StepmarkError
from stepmark.serving.backend import Backend
from stepmark.serving.jobs import Ask, Grown, Prepared, Result
from stepmark.serving.tallies import Figures

_SMOOTHING = 0.2
"""Weight of the last batch in the measured rate."""


@final
@dataclass(eq=False)
class Request:
    """What is asked together and answered together."""

    asks: Sequence[Ask]
    estimates: list[int]
    arrived: float
    deadline: float | None
    answer: asyncio.Future[list[Result]]
    results: list[Result | None]
    missing: int
    untold: int = 0
    """Tokens of it that are estimated: not tokenised yet."""
    begun: bool = False
    """Something of it was taken into a batch."""
    timer: asyncio.TimerHandle | None = None


@final
class Computer:
    """One thread, in which alone a backend computes.

    Args:
        backend: what computes.
        figures: where batches, their time and their rate are counted.
        clock: seconds.
    """

    def __init__(self, backend: Backend, figures: Figures, clock: Callable[[], float]) -> None:
        self._backend, self._figures, self._clock = backend, figures, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepmark-compute")
        self._released: list[Grown] = []

    def release(self, kept: Sequence[Grown]) -> None:
        """Have something given back before the next batch."""
        self._released += kept

    async def give_back(self) -> None:
        """Have it given back now."""
        if self._released:
            kept, self._released = self._released, []
            await asyncio.get_running_loop().run_in_executor(self._thread, self._backend.release, kept)

    async def compute(self, works: Sequence[Prepared]) -> list[Result]:
        """One result each, in order.

        Raises:
            StepmarkError, Exception: the model failed, or the code.
        """
        kept, self._released = self._released, []

        def compute() -> list[Result]:
            if kept:
                self._backend.release(kept)
            results = self._backend.compute(works)
            if len(results) != len(works):
                raise BackendError(f"{len(works)} were to be computed, and {len(results)} results came")
            return results

        figures = self._figures
        started = self._clock()
        figures.batches += 1
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, compute)
        except Exception:
            figures.failed_batches += 1
            raise
        finally:
            seconds = self._clock() - started
            figures.compute_seconds += seconds
            figures.batch_seconds.add(seconds)
        tokens = sum(work.tokens for work in works)
        figures.items += len(works)
        figures.tokens_read += tokens
        if seconds > 0:
            before, rate = figures.tokens_per_second, tokens / seconds
            figures.tokens_per_second = rate if before is None else before + _SMOOTHING * (rate - before)
        return results

    def shutdown(self) -> None:
        """End the thread, after what it is doing."""
        self._thread.shutdown()


def as_backend_error(error: Exception) -> Exception:
    """What stepmark says of its own stays; anything else is the model's failure."""
    if isinstance(error, StepmarkError):
        return error
    failure = BackendError(f"the model failed with {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
