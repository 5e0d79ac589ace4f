"""A cluster in this process: workers as Ray's are, built and asked by the same code, which die when a test says so."""

from __future__ import annotations

import json
from collections import Counter

from stepmark.batching.cluster_worker import ClusterWorker, Trouble
from stepmark.batching.spreading import Done, Failed, Lost, Replied, Spreading


class Here:
    """Stands where `batching.cluster.RayWorkers` does.

    Args:
        build: what `RayWorkers` is given.
        size: how many workers.
        deaths: at which of its replies each of the first workers dies, by number; it is then started again.
        options: what else `RayWorkers` is given.
    """

    made = None
    """The latest."""

    def __init__(self, build, *, size=2, deaths=(), homes=False, tell=print, **options):
        del options
        type(self).made = self
        self.build, self.size = build, size
        self.deaths = dict(deaths)
        self.there = list(range(1, size + 1))
        self.at, self.places, self.turn, self.tickets = {}, {}, 0, 0
        self.given = []
        """(worker, requests) in order."""
        self.spent = Counter()
        self.lasting = {}
        self.workers = {}
        for number in self.there:
            self._start(number)
        self._spreading = Spreading(self, tell=tell, homes=homes)
        self.answerers = self._spreading.answerers(self.hello.identities)
        self.facts = self.hello.facts

    def _start(self, number):
        self.workers[number] = ClusterWorker(
            self.build.function, json.dumps(dict(self.build.settings)), "/nowhere"
        )
        hello = self.workers[number].build()
        if isinstance(hello, Trouble):
            raise hello.error(f"worker {number}")
        self.hello = hello
        self.lasting[number] = {}

    tokens_written = property(lambda self: self._spreading.tokens_written)
    counters = property(lambda self: sum(map(Counter, self.lasting.values()), self.spent.copy()))
    idle = property(lambda self: [number for number in self.there if number not in self.at])

    def stream(self, requests, *, expected=None):
        return self._spreading.stream(requests, expected=expected)

    def submit(self, requests, *, to):
        assert to in self.idle
        self.tickets += 1
        self.at[to] = self.tickets
        self.given.append((to, list(requests)))
        self.workers[to].take(list(requests))
        return self.tickets

    def wait(self):
        busy = [number for number in self.there if number in self.at]
        self.turn += 1
        number = busy[self.turn % len(busy)]
        ticket = self.at[number]
        said = self.workers[number].more()
        events = []
        for place, reply in said.replies:
            if number in self.deaths:
                self.deaths[number] -= 1
                if self.deaths[number] < 0:
                    del self.deaths[number], self.at[number]
                    self.spent.update(self.lasting[number])
                    self._start(number)
                    return [*events, Lost(ticket=ticket, begun=True, why=f"worker {number} died: for a test")]
            events.append(Replied(ticket=ticket, place=place, reply=reply))
        self.lasting[number] = said.spent
        if said.end:
            del self.at[number]
            trouble = said.trouble
            events.append(
                Done(ticket=ticket)
                if trouble is None
                else Failed(ticket=ticket, error=trouble.error(f"worker {number}"))
            )
        return events

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
