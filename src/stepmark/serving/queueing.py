"""The queue: fair shares of tokens between requests, solutions of one problem side by side, batches of a budget."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from stepmark.serving.jobs import Prepared

Owner = TypeVar("Owner")
_READ = 16
"""A batch reads at most this many times its budget, however much of it is at hand."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Taken(Generic[Owner]):
    """One thing of a batch."""

    owner: Owner
    index: int
    """Which of its owner's it is."""
    work: Prepared


class _Lane(Generic[Owner]):
    """What waits of one request, by problem."""

    def __init__(self, owner: Owner, number: int, served: int) -> None:
        self.owner, self.number, self.served = owner, number, served
        self.waiting: dict[str, deque[tuple[int, Prepared]]] = {}
        self.tokens = 0

    @property
    def first(self) -> tuple[int, Prepared]:
        return next(iter(self.waiting.values()))[0]

    def pop(self) -> None:
        key, queue = next(iter(self.waiting.items()))
        queue.popleft()
        if not queue:
            del self.waiting[key]


@final
class FairQueue(Generic[Owner]):
    """What waits to be computed.

    Requests take turns of `quantum` tokens, and within a turn the one that came first comes first. So ten thousand solutions of one request do
    not keep the single one of another waiting for more than a turn of each that stands before it; and of many small ones each is
    finished before the next is begun, where going from one to the other solution by solution would finish all of them last. Of one request,
    solutions of one problem come one after the other, whatever order they came in.

    Args:
        quantum: tokens of a turn; 1: every solution is one.
    """

    def __init__(self, quantum: int = 1) -> None:
        self._quantum = quantum
        self.tokens = 0
        """Of all that waits."""
        self._lanes: dict[Owner, _Lane[Owner]] = {}
        self._numbers = 0
        self._floor = 0

    def __len__(self) -> int:
        """Requests of which something waits."""
        return len(self._lanes)

    def put(self, owner: Owner, works: Iterable[tuple[int, Prepared]]) -> None:
        """Add things of one request, each with its place among them."""
        for index, work in works:
            lane = self._lanes.get(owner)
            if lane is None:
                # One that comes now is owed nothing for the time before.
                self._floor = min((one.served for one in self._lanes.values()), default=self._floor)
                lane = self._lanes[owner] = _Lane(owner, self._numbers, self._floor)
                self._numbers += 1
            lane.waiting.setdefault(work.ask.key, deque()).append((index, work))
            self.tokens += work.tokens
            lane.tokens += work.tokens

    def tokens_of(self, owner: Owner) -> int:
        """Of what waits of a request."""
        lane = self._lanes.get(owner)
        return 0 if lane is None else lane.tokens

    def drop(self, owner: Owner) -> int:
        """Take out all that waits of a request; its tokens."""
        lane = self._lanes.pop(owner, None)
        gone = 0 if lane is None else lane.tokens
        self.tokens -= gone
        return gone

    def take(self, budget: int, cost: Callable[[Prepared, Prepared | None], int]) -> list[Taken[Owner]]:
        """A batch: as much as its budget takes, at least one thing if anything waits.

        Args:
            budget: in tokens that are to be computed. Only a single thing that is larger passes it, alone.
            cost: tokens of a thing that are to be computed, given another of the same problem that is in the batch.
        """
        taken: list[Taken[Owner]] = []
        beside: dict[str, Prepared] = {}
        size = read = 0
        order = [(lane.served // self._quantum, lane.number, lane) for lane in self._lanes.values()]
        heapq.heapify(order)
        while order:
            _, number, lane = heapq.heappop(order)
            index, work = lane.first
            key = work.ask.key
            asked = max(1, cost(work, beside.get(key) if key else None))
            if taken and (size + asked > budget or read + work.tokens > _READ * budget):
                # Its turn comes first next time.
                continue
            lane.pop()
            self.tokens -= work.tokens
            lane.tokens -= work.tokens
            size, read = size + asked, read + work.tokens
            taken.append(Taken(owner=lane.owner, index=index, work=work))
            beside[key] = work
            lane.served += work.tokens
            if lane.waiting:
                heapq.heappush(order, (lane.served // self._quantum, number, lane))
            else:
                self._floor = max(self._floor, lane.served)
                del self._lanes[lane.owner]
        return taken
