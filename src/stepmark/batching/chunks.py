"""Requests cut into chunks for workers, and the chunks of a round that wait for a worker."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import final

from stepmark.batching.requests import Ask, Choose, Release, Request, Score, ScoreSolution, Verify, Write
from stepmark.errors import BackendError

DEATHS = 3
"""Workers that one request may kill."""
LARGEST = 64
"""Samples, or solutions, in the largest chunk."""
CHUNKS_A_WORKER = 3
SMALLEST = 8
"""Solutions in a chunk at least, however few there are: they are read together."""
_WHOLE_PROBLEM = 4 * LARGEST
"""Solutions of one problem that are still one chunk."""
_CHARACTERS = 1 << 20
"""Of the solutions in a chunk, after which it ends."""
_BEHIND = 2
"""Chunks that wait for one worker before another takes the last of them: reading a problem anew costs more than a short wait."""

Chunk = dict[int, Ask]
"""Requests for one worker, by their place in the round."""


def cut(requests: Mapping[int, Request], workers: int) -> list[Chunk]:
    """Chunks of neighbours, which share their prompt: several for every worker, at most `LARGEST` samples each, at least a request."""
    total = sum(map(size_of, requests.values()))
    limit = min(LARGEST, ceil(total / (CHUNKS_A_WORKER * workers)))
    chunks: list[Chunk] = []
    room = 0
    for place, request in requests.items():
        if size_of(request) > room:
            chunks.append({})
            room = limit
        chunks[-1][place] = request
        room -= size_of(request)
    return chunks


def gathered(requests: Iterable[ScoreSolution], limit: int) -> Iterator[list[ScoreSolution]]:
    """Chunks of neighbours of about `limit` solutions; those of one problem stay together, up to 256 of them."""
    chunk: list[ScoreSolution] = []
    characters = 0
    for request in requests:
        full = len(chunk) >= limit or characters >= _CHARACTERS
        same = bool(chunk) and chunk[-1].solution.problem.text == request.solution.problem.text
        if chunk and full and (not same or len(chunk) >= _WHOLE_PROBLEM or characters >= 4 * _CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(request)
        characters += sum(map(len, request.solution.texts))
    if chunk:
        yield chunk


def size_of(request: Ask) -> int:
    """Samples that it asks for."""
    return request.n if isinstance(request, Write) else 1


@final
class Queue:
    """The chunks of a round that no worker has.

    Args:
        source: chunks for any worker, read as needed; None from it where nothing may be read for now.
        homed: chunks by the worker that should have them.
    """

    def __init__(
        self, source: Iterable[Chunk | None] = (), homed: Mapping[int, deque[Chunk]] | None = None
    ) -> None:
        self._source = iter(source)
        self._homed = homed or {}
        self._again: deque[Chunk] = deque()
        self._deaths: Counter[int] = Counter()
        self._read = False

    @property
    def empty(self) -> bool:
        """Whether nothing is left; for when no worker has a chunk."""
        return self._read and not self._again and not any(self._homed.values())

    def take(self, worker: int, ready: Iterable[int]) -> Chunk | None:
        """What an idle worker is given: its own, else what is any worker's, else what waits for one that is gone or far behind."""
        if own := self._homed.get(worker):
            return own.popleft()
        if self._again:
            return self._again.popleft()
        if not self._read:
            try:
                if chunk := next(self._source):
                    return chunk
            except StopIteration:
                self._read = True
        gone = next((queue for home, queue in self._homed.items() if queue and home not in ready), None)
        if gone is not None:
            return gone.popleft()
        longest = max(self._homed.values(), key=len, default=None)
        return longest.pop() if longest is not None and len(longest) >= _BEHIND else None

    def lost(self, chunk: Chunk, why: str) -> BackendError | None:
        """A worker died over a chunk: ask its requests again one by one; an error where one of them has killed too many."""
        for place, request in reversed(chunk.items()):
            self._again.appendleft({place: request})
            self._deaths[place] += 1
            if self._deaths[place] == DEATHS:
                lever = "`token_budget`" if isinstance(request, ScoreSolution) else "max_tokens"
                return BackendError(
                    f"{DEATHS} workers died over one request, {_named(request)}. The last: {why}. If it needs more memory than a worker "
                    f"has, give workers more or lower {lever}; every other reply is recorded"
                )
        return None


def _named(request: Ask) -> str:
    if isinstance(request, Verify):
        return f"the Verify of {request.answer[-80:]!r} against {request.gold[-80:]!r}"
    if isinstance(request, Score | Release):
        return f"the {type(request).__name__} of a prefix of the problem {request.problem[-160:]!r}"
    if isinstance(request, ScoreSolution):
        named = "" if request.solution.id is None else f" with the id {request.solution.id!r}"
        return f"the scores of a solution of the problem {request.solution.problem.text[-160:]!r}{named}"
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
    asked = f"{len(request.options)} options" if isinstance(request, Choose) else many(request.n, "sample")
    after = f" and whose reply begins {request.prefill[:80]!r}" if request.prefill else ""
    return f"the {type(request).__name__} of {asked} whose prompt ends {prompt[-160:]!r}{after}"


def many(count: int, what: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count} {what}" + ("" if count == 1 else "s")
