"""Requests answered by many workers, which may die: cut into chunks, handed to whoever is idle, handed on when lost.

Nothing here decides a result. The driver (`batching.run`) keeps the methods, their order and the store; a worker gets
requests, each of which names everything that shapes its reply, and gives replies. So who answers what, in which
order and how often decides nothing, as long as the answerer gives equal replies to equal requests.

A worker that dies costs the requests that it was at. They are asked again one by one, so that one request that
kills its worker (it does not fit into memory, say) is found, and named after `DEATHS` workers.

What the workers are is behind the protocol `Workers`; `batching.cluster` has those of a Ray cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from threading import Condition
from typing import Any, Protocol, final

from stepmark.batching.driver import Answerer, Ready, Reply
from stepmark.batching.requests import Ask, Release, Request, ScoreSolution, Written
from stepmark.batching.rounds import CHUNKS_A_WORKER, LARGEST, Chunk, Event, Homes, Round, cut, gathered
from stepmark.errors import InputError

_SMALLEST = 8
"""Solutions in a chunk at least, however few there are: they are read together."""


class Workers(Protocol):
    """Workers that answer chunks of requests, one chunk each at a time. Each has a number, which it keeps when it is started again."""

    @property
    def size(self) -> int:
        """How many there are when all are well, at least 1."""

    @property
    def there(self) -> Collection[int]:
        """Those that are ready or at work; not those that are being started."""

    @property
    def idle(self) -> Sequence[int]:
        """Those that are ready to take a chunk."""

    def submit(self, requests: Sequence[Ask], *, to: int) -> int:
        """Give requests of one kind to an idle worker; the ticket that its events will bear."""

    def wait(self) -> Sequence[Event]:
        """What happened since, waiting until something did or some tenths of a second have passed: perhaps nothing.

        Raises:
            BackendError: no worker is left and none is to be had.
        """


@final
class Spreading:
    """Answers requests with workers. Several threads may ask at once: whoever waits keeps all workers busy for all.

    Args:
        workers: who answers.
        tell: called with a line of text when a worker died.
        homes: whether requests about one problem go to one worker, as long as it lives and is not far behind the others. For workers
            that keep what they have read; others are quicker without.
    """

    def __init__(self, workers: Workers, *, tell: Callable[[str], None], homes: bool = False) -> None:
        self._workers = workers
        self._tell = tell
        self._homes = Homes() if homes else None
        self._rounds: list[Round] = []
        self._changed = Condition()
        self._pumping = False
        self.tokens_written = 0
        """Tokens of all texts that were written so far, as far as the workers count them."""

    def answerers(self, identities: Mapping[type, str]) -> dict[type, Answerer]:
        """One answerer for each kind of request that is answered in rounds.

        Args:
            identities: of the workers' own answerers, by the kind of request.
        """
        return {
            kind: Answerer(identity=identity, answer=self.answer)
            for kind, identity in identities.items()
            if kind is not ScoreSolution
        }

    def answer(self, requests: Sequence[Request], ready: Ready) -> list[Any]:
        """Answer requests of one kind; each reply is reported when it is there.

        A `Release` goes to every worker that has been at its problem.

        Raises:
            BackendError: no worker is left; a request killed `DEATHS` workers; the workers' answerer failed. In the
                last case what the other workers are at is waited for and reported first.
            StepmarkError: whatever else the workers' answerer raised.
        """
        replies: list[Any] = [None] * len(requests)

        def keep(index: int, reply: Reply) -> None:
            replies[index] = reply
            self.tokens_written += _tokens(reply)
            ready(index, reply)

        with self._changed:
            if not requests or not isinstance(requests[0], Release):
                asked = Round(keep, dict(enumerate(requests)), self._shared_out(requests), homes=self._homes)
            elif self._homes is None:
                return replies  # nothing is kept by anyone who could be found again
            else:
                asked = self._homes.released(requests)
        self._run(asked)
        return replies

    def stream(self, requests: Iterable[ScoreSolution], *, expected: int | None = None) -> Iterator[Reply]:
        """Answer a stream of requests, one reply each, in order, reading only as far ahead as keeps all workers busy.

        Args:
            requests: read as needed; may be endless. Neighbours about one problem go to one worker together.
            expected: how many there are about, so that few are shared out too; None where that is not known.

        Raises:
            StepmarkError: as `answer`.
        """
        replies: dict[int, Reply] = {}
        asked = Round(replies.__setitem__, {}, [])
        limit = LARGEST
        if expected is not None:
            limit = min(limit, max(_SMALLEST, ceil(expected / (CHUNKS_A_WORKER * self._workers.size))))
        chunks = gathered(requests, limit)
        more = True
        read = turn = 0
        ends: deque[int] = deque()  # of the chunks with a reply that was not given on yet
        with self._begun(asked):
            while True:
                while turn in replies:
                    yield replies.pop(turn)
                    turn += 1
                asked.check()
                while ends and ends[0] <= turn:
                    ends.popleft()
                # Of each worker the chunk that it is at and the next one; as many may be done and wait for an earlier one.
                while more and len(ends) < 4 * self._workers.size and asked.open < 2 * self._workers.size:
                    chunk = next(chunks, None)
                    more = chunk is not None
                    if chunk is not None:
                        asked.add(range(read, read + len(chunk)), chunk)
                        read += len(chunk)
                        ends.append(read)
                if self._turn(asked) and not more and turn == read:
                    return

    def _shared_out(self, requests: Sequence[Request]) -> list[Chunk]:
        if self._homes is None:
            return [Chunk(indices=indices) for indices in cut(requests, self._workers.size)]
        return self._homes.shared_out(requests, there=self._workers.there, size=self._workers.size)

    def _run(self, asked: Round) -> None:
        with self._begun(asked):
            while not self._turn(asked):
                pass
            asked.check()

    @contextmanager
    def _begun(self, asked: Round) -> Iterator[None]:
        with self._changed:
            self._rounds.append(asked)
        try:
            yield
        finally:
            with self._changed:
                self._rounds.remove(asked)

    def _turn(self, asked: Round) -> bool:
        """Hand out what is waiting and hear what happened, for all rounds, or wait while another thread does; whether this one is over."""
        with self._changed:
            self._changed.wait_for(lambda: asked.over or not self._pumping)
            if asked.over:
                return True
            self._pumping = True
            self._hand_out()
        try:
            events = self._workers.wait()
            with self._changed:
                for event in events:
                    self._heard(event)
        finally:
            with self._changed:
                self._pumping = False
                self._changed.notify_all()
        return False

    def _hand_out(self) -> None:
        there = self._workers.there
        for one in self._rounds:
            one.settle(there)
        for worker in self._workers.idle:
            for one in self._rounds:
                given = one.take(worker, there)
                if given is not None:
                    one.held(self._workers.submit([one.asked[index] for index in given], to=worker), given)
                    break

    def _heard(self, event: Event) -> None:
        # Of no round where it belongs to one that an exception ended.
        for one in self._rounds:
            if event.ticket in one.tickets:
                one.heard(event, self._tell)


def _tokens(reply: Reply) -> int:
    if isinstance(reply, InputError) or not isinstance(reply, Sequence):
        return 0
    return sum(sample.tokens or 0 for sample in reply if isinstance(sample, Written))
