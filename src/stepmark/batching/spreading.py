"""Requests answered by many workers, which may die: cut into chunks, handed to idle workers, handed on when lost.

Nothing here decides a result. The driver (`batching.run`) keeps the methods, their order and the store; a worker gets
requests, each of which names everything that shapes its reply, and gives replies. So who answers what, in which
order and how often decides nothing, as long as the answerer gives equal replies to equal requests.

A worker that dies costs the requests that it was at. They are asked again one by one, so that one request that
kills its worker (it does not fit into memory, say) is found, and named after `DEATHS` workers.

What the workers are is behind the protocol `Workers`; `batching.cluster` has those of a Ray cluster.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from threading import Condition
from typing import Any, Protocol, final

from stepmark.batching.driver import Answerer, Ready, Reply
from stepmark.batching.requests import (
    Ask,
    Choose,
    Release,
    Request,
    Score,
    ScoreSolution,
    Verify,
    Write,
    Written,
)
from stepmark.errors import BackendError, InputError, StepmarkError

DEATHS = 3
"""Workers that one request may kill."""

LARGEST = 64
"""Samples, or solutions, in the largest chunk."""

CHUNKS_A_WORKER = 3

_WHOLE_PROBLEM = 4 * LARGEST
"""Solutions of one problem that are still one chunk."""

_CHARACTERS = 1 << 20
"""Of the solutions in a chunk, after which it ends."""

_BEHIND = 2
"""Chunks that wait for one worker before another takes the last of them: to read one anew elsewhere costs more than to wait for one."""
_REMEMBERED = 10_000
"""Problems whose worker is known."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Requests that are given to one worker together."""

    indices: Sequence[int]
    """Their places in the round."""
    home: int | None = None
    """The worker that should have it; None for any."""


def cut(requests: Sequence[Request], workers: int) -> list[list[int]]:
    """Chunks of neighbours, as indices into the requests.

    Neighbours, because requests of one solution share their prompt. Small enough that every worker gets several,
    for one may be slower than another; at most `LARGEST` samples, but never less than a request.
    """
    return _cut(range(len(requests)), [_size(request) for request in requests], workers)


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


def _cut(indices: Iterable[int], sizes: Sequence[int], workers: int) -> list[list[int]]:
    limit = min(LARGEST, ceil(sum(sizes) / (CHUNKS_A_WORKER * workers)))
    chunks: list[list[int]] = []
    room = 0
    for index in indices:
        if sizes[index] > room:
            chunks.append([])
            room = limit
        chunks[-1].append(index)
        room -= sizes[index]
    return chunks


def _size(request: Request) -> int:
    return request.n if isinstance(request, Write) else 1


@final
class Homes:
    """Which worker has read a problem before, and so should be asked about it again. Of the latest 10,000 problems."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, list[int]] = OrderedDict()
        """The worker that is asked now, then those that were before."""

    def shared_out(self, requests: Sequence[Request], *, there: Collection[int], size: int) -> list[Chunk]:
        """Chunks, each for the worker at which its problems are at home; new problems for those with the least to do.

        Args:
            requests: of one kind.
            there: the workers that are ready or at work.
            size: how many there are when all are well.
        """
        sizes = [_size(request) for request in requests]
        groups: dict[object, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(_about(request), []).append(index)
        load: Counter[int] = Counter(dict.fromkeys(sorted(there), 0))
        shares: dict[int | None, list[int]] = {}
        strangers = []
        for about, group in groups.items():
            home = next(iter(self._known.get(about, ())), None)
            if home not in load:
                strangers.append((about, group))
                continue
            assert home is not None
            load[home] += sum(sizes[index] for index in group)
            shares.setdefault(home, []).extend(group)
            self._known.move_to_end(about)
        for about, group in strangers:
            if not load:  # all are being started: the first that is ready
                shares.setdefault(None, []).extend(group)
                continue
            least = min(load, key=lambda worker: load[worker])
            load[least] += sum(sizes[index] for index in group)
            shares.setdefault(least, []).extend(group)
            self._moved(about, least)
        return [
            Chunk(indices=indices, home=home)
            for home, share in shares.items()
            for indices in _cut(share, sizes, size)
        ]

    def moved(self, requests: Iterable[Ask], worker: int) -> None:
        """Note that a worker took what was not its own."""
        for about in dict.fromkeys(_about(request) for request in requests):
            self._moved(about, worker)

    def released(self, requests: Sequence[Request]) -> Round:
        """A round that tells every worker that has been at a problem what it may let go."""
        asked: dict[int, Ask] = {}
        of: dict[int, list[int]] = {}
        for request in requests:
            for worker in self._known.get(_about(request), ()):
                of.setdefault(worker, []).append(len(asked))
                asked[len(asked)] = request
        chunks = [Chunk(indices=indices, home=worker) for worker, indices in of.items()]
        return Round(lambda index, reply: None, asked, chunks, fixed=True)

    def _moved(self, about: object, worker: int) -> None:
        before = self._known.pop(about, [])
        self._known[about] = [worker, *(one for one in before if one != worker)]
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def _about(request: Ask) -> object:
    """What requests have in common that are quicker answered where the like was answered before."""
    if isinstance(request, Score | Release):
        return "prm", request.problem
    if isinstance(request, Write | Choose):
        return "policy", request.prompt
    return request


@final
class Round:
    """Requests of one kind on their way: what waits, what workers are at, what went wrong.

    Args:
        keep: called with the place and the reply of each request.
        asked: the requests that have no reply yet, by place.
        chunks: the same, cut.
        homes: told when a worker takes what was meant for another.
        fixed: whether a chunk is for its own worker only, and is dropped where that one is gone.
    """

    def __init__(
        self,
        keep: Callable[[int, Reply], None],
        asked: dict[int, Ask],
        chunks: Iterable[Chunk],
        *,
        homes: Homes | None = None,
        fixed: bool = False,
    ) -> None:
        self.asked = asked
        self.tickets: dict[int, dict[int, int]] = {}
        """Of the chunks that workers are at: the place in the round by the place in the chunk."""
        self._keep = keep
        self._homes = homes
        self._fixed = fixed
        self._free: deque[Sequence[int]] = deque()
        self._homed: dict[int, deque[Sequence[int]]] = {}
        for chunk in chunks:
            queue = self._free if chunk.home is None else self._homed.setdefault(chunk.home, deque())
            queue.append(chunk.indices)
        self._deaths: Counter[int] = Counter()
        self._failure: StepmarkError | None = None
        self._broken: Exception | None = None

    @property
    def open(self) -> int:
        """Chunks that are not done."""
        return len(self.tickets) + len(self._free) + sum(map(len, self._homed.values()))

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        if self._broken is not None or self._failure is not None:
            return self._broken is not None or not self.tickets
        return not self.open

    def check(self) -> None:
        """Raise what ended the round, if anything did."""
        if self._broken is not None:
            raise self._broken
        if self._failure is not None and self.over:
            raise self._failure

    def add(self, places: Iterable[int], requests: Sequence[Ask]) -> None:
        """One more chunk."""
        indices = list(places)
        self.asked.update(zip(indices, requests, strict=True))
        self._free.append(indices)

    def settle(self, there: Collection[int]) -> None:
        """Drop what only workers could do that are gone."""
        if self._fixed:
            for worker in [worker for worker in self._homed if worker not in there]:
                del self._homed[worker]

    def take(self, worker: int, there: Collection[int]) -> Sequence[int] | None:
        """What an idle worker is to be given: its own, else what is anyone's, else what is another's who is far behind."""
        if self._failure is not None or self._broken is not None:
            return None
        own = self._homed.get(worker)
        if own:
            return own.popleft()
        if self._free:
            return self._free.popleft()
        if self._fixed:
            return None
        found: Sequence[int] | None = None
        for other, queue in self._homed.items():
            if queue and other not in there:
                found = queue.popleft()
                break
        longest = max(self._homed.values(), key=len, default=None)
        if found is None and longest is not None and len(longest) >= _BEHIND:
            found = longest.pop()
        if found is not None and self._homes is not None:
            self._homes.moved((self.asked[index] for index in found), worker)
        return found

    def held(self, ticket: int, indices: Sequence[int]) -> None:
        """A worker has a chunk."""
        self.tickets[ticket] = dict(enumerate(indices))

    def heard(self, event: Event, tell: Callable[[str], None]) -> None:
        """Note what happened to one of the chunks."""
        if isinstance(event, Replied):
            index = self.tickets[event.ticket].pop(event.place)
            del self.asked[index]
            try:
                self._keep(index, event.reply)
            except Exception as error:  # it is the asker's, who may be another thread
                self._broken = self._broken or error
            return
        left = list(self.tickets.pop(event.ticket).values())
        if isinstance(event, Failed):
            self._failure = self._failure or event.error
        elif isinstance(event, Lost):
            if self._fixed:
                return
            tell(f"{event.why}; {_many(len(left), 'request')} will be asked again")
            if not event.begun:
                self._free.appendleft(left)
                return
            for index in reversed(left):
                self._deaths[index] += 1
                self._free.appendleft([index])
                if self._deaths[index] == DEATHS:
                    self._failure = self._failure or _deadly(self.asked[index], event.why)
        elif left:
            raise BackendError(f"a worker left {_many(len(left), 'request')} of its chunk unanswered")


def _deadly(request: Ask, why: str) -> BackendError:
    return BackendError(
        f"{DEATHS} workers died over one request, {_named(request)}. The last: {why}. If it needs more memory than a "
        f"worker has, give workers more or lower {_lever(request)}; every other reply is recorded"
    )


def _lever(request: Ask) -> str:
    return "`token_budget`" if isinstance(request, ScoreSolution) else "max_tokens"


def _named(request: Ask) -> str:
    if isinstance(request, Verify):
        return f"the Verify of {request.answer[-80:]!r} against {request.gold[-80:]!r}"
    if isinstance(request, Score | Release):
        return f"the {type(request).__name__} of a prefix of the problem {request.problem[-160:]!r}"
    if isinstance(request, ScoreSolution):
        named = request.solution.id
        of = f"a solution of the problem {request.solution.problem.text[-160:]!r}"
        return f"the scores of {of}" + ("" if named is None else f" with the id {named!r}")
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
    many = f"{len(request.options)} options" if isinstance(request, Choose) else _many(request.n, "sample")
    after = f" and whose reply begins {request.prefill[:80]!r}" if request.prefill else ""
    return f"the {type(request).__name__} of {many} whose prompt ends {prompt[-160:]!r}{after}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


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
    """Answers requests with workers. Several threads may ask at once: a waiting thread keeps all workers busy for all.

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
