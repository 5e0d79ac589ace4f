"""What a batcher counts: for `/metrics`, for whoever tunes it, and for the time that a refused client should wait."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import final

from stepmark.models.prm import Ledger

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of a histogram's buckets, in seconds; a last one has none."""


@final
@dataclass(kw_only=True, slots=True)
class Histogram:
    """Durations, counted by size."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """How many fell into each bucket of `BUCKETS` and past the last; a bound belongs to its bucket."""
    seconds: float = 0.0
    """Their sum."""

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.counts)

    @property
    def cumulative(self) -> tuple[int, ...]:
        """How many were at most each bound, and all: what Prometheus calls `le`."""
        return tuple(accumulate(self.counts))


@dataclass(kw_only=True, slots=True)
class Figures:
    """What a batcher has done and has to do. Counts only grow; those of what is there now say so."""

    requests: int = 0
    """Taken in."""
    answered: int = 0
    """Of those, answered."""
    busy: int = 0
    """Refused for want of room, and not taken in."""
    late: int = 0
    """Of those taken in: their deadline passed."""
    gone: int = 0
    """Of those taken in: the client went away."""
    failed: int = 0
    """Of those taken in: the model failed at them."""
    drained: int = 0
    """Of those taken in: the server stopped before it came to them."""
    items: int = 0
    """Solutions, steps and texts computed."""
    refusals: int = 0
    """Of all that was asked, what the PRM could not read."""
    batches: int = 0
    """Computed; one that failed and was tried again counts each time."""
    failed_batches: int = 0
    """Of those, the ones that failed."""
    compute_seconds: float = 0.0
    """In which something was computed."""
    tokens_read: int = 0
    """Of all items computed, each by itself."""
    tokens_in: int = 0
    """What the model says of itself: its `Ledger`."""
    tokens_computed: int = 0
    tokens_distinct: int = 0
    tokens_again: int = 0
    waiting_requests: int = 0
    """Now: taken in and not answered."""
    waiting_tokens: int = 0
    """Now: tokens in the queue, those of the batch in work not among them; what is not tokenised yet is estimated."""
    computing_tokens: int = 0
    """Now: tokens of the batch in work."""
    memory_tokens: int = 0
    """Now: tokens whose keys and values are kept."""
    memory_capacity: int = 0
    """Tokens that are kept at most; 0 where nothing is."""
    evicted: int = 0
    """Tokens that were forgotten for want of memory."""
    tokens_per_second: float | None = None
    """Tokens read a second of computing, of late; None before the first batch."""
    queue_seconds: Histogram = field(default_factory=Histogram)
    """From a request's arrival until the first of it was taken into a batch."""
    batch_seconds: Histogram = field(default_factory=Histogram)
    """That a batch took."""

    def now(
        self, ledger: Ledger, memory: tuple[int, int, int], *, waiting_requests: int, waiting_tokens: int
    ) -> Figures:
        """A copy, with what others know.

        Args:
            ledger: the model's.
            memory: as `Backend.memory` gives it.
        """
        held, capacity, evicted = memory
        return replace(
            self,
            tokens_in=ledger.tokens_in,
            tokens_computed=ledger.tokens_computed,
            tokens_distinct=ledger.tokens_distinct,
            tokens_again=ledger.tokens_again,
            waiting_requests=waiting_requests,
            waiting_tokens=waiting_tokens,
            memory_tokens=held,
            memory_capacity=capacity,
            evicted=evicted,
            queue_seconds=replace(self.queue_seconds, counts=list(self.queue_seconds.counts)),
            batch_seconds=replace(self.batch_seconds, counts=list(self.batch_seconds.counts)),
        )
