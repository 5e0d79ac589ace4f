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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol, final

from stepmark.batching.driver import Answerer, Ready, Reply
from stepmark.batching.requests import Choose, Release, Request, Score, Verify, Write, Written
from stepmark.errors import BackendError, InputError, StepmarkError

DEATHS = 3
"""Workers that one request may kill."""

LARGEST = 64
"""Samples in the largest chunk."""

_CHUNKS_A_WORKER = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Replied:
    """One request of a chunk was answered."""

    ticket: int
    """Of the chunk."""
    place: int
    """Of the request within it."""
    reply: Reply


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A chunk is done, and its worker is idle again; all its replies were reported before."""

    ticket: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """The worker of a chunk died; what was not reported before will not be."""

    ticket: int
    begun: bool
    """Whether it had begun to answer; otherwise no request can have killed it."""
    why: str
    """Which worker, and what is known of its death."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The answerer itself failed on a chunk; what was not reported before will not be. The worker lives."""

    ticket: int
    error: StepmarkError


Event = Replied | Done | Lost | Failed


class Workers(Protocol):
    """Workers that answer chunks of requests, one chunk each at a time."""

    @property
    def size(self) -> int:
        """How many there are when all are well, at least 1."""

    @property
    def idle(self) -> int:
        """How many are ready to take a chunk."""

    def submit(self, requests: Sequence[Request]) -> int:
        """Give requests of one kind to an idle worker; the ticket that its events will bear."""

    def wait(self) -> Sequence[Event]:
        """What happened since, waiting until something did: an event, or a worker became idle (then perhaps none).

        Raises:
            BackendError: no worker is left and none is to be had.
        """


@final
class Spreading:
    """Answers requests with workers.

    Args:
        workers: who answers.
        tell: called with a line of text when a worker died.
    """

    def __init__(self, workers: Workers, *, tell: Callable[[str], None]) -> None:
        self._workers = workers
        self._tell = tell
        self.tokens_written = 0
        """Tokens of all texts that were written so far, as far as the workers count them."""

    def answerers(self, identities: Mapping[type, str]) -> dict[type, Answerer]:
        """One answerer for each kind of request.

        Args:
            identities: of the workers' own answerers, by the kind of request.
        """
        return {
            kind: Answerer(identity=identity, answer=self.answer) for kind, identity in identities.items()
        }

    def answer(self, requests: Sequence[Request], ready: Ready) -> list[Reply]:
        """Answer requests of one kind; each reply is reported when it is there.

        Raises:
            BackendError: no worker is left; a request killed `DEATHS` workers; the workers' answerer failed. In the
                last case what the other workers are at is waited for and reported first.
            StepmarkError: whatever else the workers' answerer raised.
        """
        replies: dict[int, Reply] = {}
        deaths = dict.fromkeys(range(len(requests)), 0)
        chunks = deque(cut(requests, self._workers.size))
        held: dict[int, dict[int, int]] = {}
        failure: StepmarkError | None = None
        while held or (chunks and failure is None):
            while chunks and failure is None and self._workers.idle:
                chunk = chunks.popleft()
                ticket = self._workers.submit([requests[index] for index in chunk])
                held[ticket] = dict(enumerate(chunk))
            for event in self._workers.wait():
                if event.ticket not in held:  # of an earlier round that an exception ended
                    continue
                if isinstance(event, Replied):
                    index = held[event.ticket].pop(event.place)
                    replies[index] = event.reply
                    self.tokens_written += _tokens(event.reply)
                    ready(index, event.reply)
                    continue
                left = list(held.pop(event.ticket).values())
                if isinstance(event, Failed):
                    failure = failure or event.error
                elif isinstance(event, Lost):
                    self._tell(f"{event.why}; {_many(len(left), 'request')} will be asked again")
                    if not event.begun:
                        chunks.appendleft(left)
                        continue
                    for index in reversed(left):
                        deaths[index] += 1
                        chunks.appendleft([index])
                        if deaths[index] == DEATHS:
                            failure = failure or _deadly(requests[index], event.why)
                elif left:
                    raise BackendError(f"a worker left {_many(len(left), 'request')} of its chunk unanswered")
        if failure is not None:
            raise failure
        return [replies[index] for index in range(len(requests))]


def cut(requests: Sequence[Request], workers: int) -> list[list[int]]:
    """Chunks of neighbours, as indices into the requests.

    Neighbours, because requests of one solution share their prompt. Small enough that every worker gets several,
    for one may be slower than another; at most `LARGEST` samples, but never less than a request.
    """
    sizes = [request.n if isinstance(request, Write) else 1 for request in requests]
    limit = min(LARGEST, ceil(sum(sizes) / (_CHUNKS_A_WORKER * workers)))
    chunks: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if size > room:
            chunks.append([])
            room = limit
        chunks[-1].append(index)
        room -= size
    return chunks


def _tokens(reply: Reply) -> int:
    if isinstance(reply, InputError) or not isinstance(reply, Sequence):
        return 0
    return sum(sample.tokens or 0 for sample in reply if isinstance(sample, Written))


def _deadly(request: Request, why: str) -> BackendError:
    return BackendError(
        f"{DEATHS} workers died over one request, {_named(request)}. The last: {why}. If it needs more memory than a "
        f"worker has, give workers more or lower max_tokens; every other reply is recorded"
    )


def _named(request: Request) -> str:
    if isinstance(request, Verify):
        return f"the Verify of {request.answer[-80:]!r} against {request.gold[-80:]!r}"
    if isinstance(request, Score | Release):
        return f"the {type(request).__name__} of a prefix of the problem {request.problem[-160:]!r}"
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
    many = f"{len(request.options)} options" if isinstance(request, Choose) else _many(request.n, "sample")
    after = f" and whose reply begins {request.prefill[:80]!r}" if request.prefill else ""
    return f"the {type(request).__name__} of {many} whose prompt ends {prompt[-160:]!r}{after}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
