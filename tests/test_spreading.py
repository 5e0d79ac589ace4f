"""Requests spread over workers that die: fake workers in this process, every schedule of deaths that hypothesis thinks of."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.batching import Answerer, Verify, Write, Written, run
from stepmark.batching.spreading import DEATHS, LARGEST, Done, Failed, Lost, Replied, Spreading, cut
from stepmark.errors import BackendError
from stepmark.records import Verdict


def writes(count, n=1):
    return [Write(prompt=f"question {number}", n=n, temperature=1.0, first=0) for number in range(count)]


def reply(request):
    return [
        Written(text=f"{request.prompt}: {request.first + number}", finish="end", tokens=2)
        for number in range(request.n)
    ]


class Fake:
    """Workers that do one thing a turn, in an order drawn beforehand.

    Args:
        size: how many.
        turns: for each turn, which of the busy workers acts, and whether it dies then.
        answer: what a worker says of a request; an exception fails its chunk.
        begun: whether a worker that dies had begun.
    """

    def __init__(self, size, turns=(), *, answer=reply, begun=True):
        self.size = size
        self.turns = deque(turns)
        self.answer = answer
        self.begun = begun
        self.busy = {}
        self.at = {}
        self.tickets = 0
        self.asked = Counter()
        self.deaths = 0

    @property
    def there(self):
        return range(1, self.size + 1)

    @property
    def idle(self):
        return [worker for worker in self.there if worker not in map(self.at.get, self.busy)]

    def submit(self, requests, *, to):
        assert to in self.idle, "a chunk for nobody"
        self.tickets += 1
        self.busy[self.tickets] = deque(enumerate(requests))
        self.at[self.tickets] = to
        return self.tickets

    def wait(self):
        assert self.busy, "waits for nobody"
        which, dies = self.turns.popleft() if self.turns else (0, False)
        ticket = list(self.busy)[which % len(self.busy)]
        rest = self.busy[ticket]
        if dies:
            self.deaths += 1
            del self.busy[ticket]
            return [Lost(ticket=ticket, begun=self.begun, why="worker 7 died: for a test")]
        if not rest:
            del self.busy[ticket]
            return [Done(ticket=ticket)]
        place, request = rest.popleft()
        self.asked[request] += 1
        try:
            return [Replied(ticket=ticket, place=place, reply=self.answer(request))]
        except BackendError as error:
            del self.busy[ticket]
            return [Failed(ticket=ticket, error=error)]


def spread(workers, requests):
    told, reported = [], []
    spreading = Spreading(workers, tell=told.append)
    replies = spreading.answer(requests, lambda index, reply: reported.append((index, reply)))
    return replies, reported, told, spreading


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60).map(
        # At most two deaths over any request: more are an error, tested below.
        lambda turns: [
            (who, dies and sum(d for _, d in turns[:at]) < DEATHS - 1) for at, (who, dies) in enumerate(turns)
        ]
    ),
)
def test_whatever_dies_every_request_has_its_reply_and_is_reported_once(count, size, turns):
    requests = writes(count, n=3)
    workers = Fake(size, turns)
    replies, reported, told, spreading = spread(workers, requests)
    assert replies == [reply(request) for request in requests]
    assert sorted(index for index, _ in reported) == list(range(count))
    assert all(replies[index] == said for index, said in reported)
    assert len(told) == workers.deaths
    # What was reported before a death is not asked again.
    assert set(workers.asked.values()) <= {1}
    assert spreading.tokens_written == 6 * count


def test_a_reply_is_reported_while_others_are_still_awaited():
    requests = writes(4)
    seen = []

    class Watched(Fake):
        def wait(self):
            seen.append(len(reported))
            return super().wait()

    reported = []
    Spreading(Watched(2), tell=print).answer(requests, lambda index, _: reported.append(index))
    assert seen[:3] == [0, 1, 1]  # answered, chunk done, …: not all at the end
    assert len(reported) == 4


def test_a_request_that_kills_every_worker_is_named():
    class Deadly(Fake):
        def wait(self):
            for place, (ticket, rest) in enumerate(self.busy.items()):
                if rest and rest[0][1].prompt == "question 4":
                    self.turns.appendleft((place, True))
                    assert self.busy[ticket] is rest
                    break
            return super().wait()

    workers = Deadly(3)
    requests = writes(30)
    reported = []
    with pytest.raises(BackendError, match=r"3 workers died over one request.*question 4") as caught:
        Spreading(workers, tell=print).answer(requests, lambda index, _: reported.append(index))
    assert "worker 7 died" in str(caught.value)
    assert workers.deaths == DEATHS
    assert 4 not in reported
    assert workers.asked[requests[4]] == 0
    assert {0, 1, 2, 3} <= set(reported)


def test_a_failure_ends_the_round_after_what_is_under_way_is_kept():
    def answer(request):
        if request.prompt == "question 0":
            raise BackendError("the server went away")
        return reply(request)

    workers = Fake(2, answer=answer)
    reported = []
    requests = writes(12)
    with pytest.raises(BackendError, match="the server went away"):
        Spreading(workers, tell=print).answer(requests, lambda index, _: reported.append(index))
    chunks = cut(requests, 2)
    assert reported == chunks[1]  # the other worker's chunk; the rest was not begun
    assert workers.idle == [1, 2]


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(1, 20))
def test_chunks_are_neighbours_and_small(sizes, workers):
    requests = [Write(prompt=f"p{at}", n=n, temperature=1.0) for at, n in enumerate(sizes)]
    chunks = cut(requests, workers)
    assert [index for chunk in chunks for index in chunk] == list(range(len(requests)))
    for chunk in chunks:
        weight = sum(sizes[index] for index in chunk)
        assert len(chunk) == 1 or weight <= min(LARGEST, sum(sizes) // (3 * workers) + 1)


def test_the_driver_gives_the_same_with_workers_as_without():
    def method(number):
        first, second = yield (
            Write(prompt=f"q{number % 3}", n=2, temperature=1.0),
            Write(prompt="shared", temperature=1.0),
        )
        verdict = yield Verify(answer=first[0].text, gold="q1: 0")
        return [sample.text for sample in (*first, *second)], verdict.outcome

    def answer(request):
        if isinstance(request, Verify):
            right = request.answer == request.gold
            return Verdict(
                outcome="match" if right else "mismatch", verifier="same", answer=request.answer, note=""
            )
        return reply(request)

    def here(requests, ready):
        return [answer(request) for request in requests]

    alone = {kind: Answerer(identity="it", answer=here) for kind in (Write, Verify)}
    workers = Fake(3, [(1, False), (0, True), (2, False), (1, True)], answer=answer)
    many = Spreading(workers, tell=print).answerers({Write: "it", Verify: "it"})
    methods = [list(run((method(number) for number in range(20)), who, in_flight=8)) for who in (alone, many)]
    assert methods[0] == methods[1]
    assert workers.deaths == 2
