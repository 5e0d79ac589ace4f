"""Ray in this process: actors that run their calls when they are waited for, and die when a test says so."""

from __future__ import annotations

import itertools
from collections import Counter
from threading import RLock
from types import SimpleNamespace


class RayError(Exception):
    """As `ray.exceptions.RayError`."""


class RayTaskError(RayError):
    """As `ray.exceptions.RayTaskError`."""


class Ref:
    def __init__(self, actor, method, arguments):
        self.actor, self.method, self.arguments = actor, method, arguments
        self.done = False
        self.value = self.error = None


class Actor:
    """One process after another. Its calls run in order."""

    def __init__(self, ray, make):
        self.ray, self.make = ray, make
        self.number = ray.starts = ray.starts + 1
        self.made = make()
        self.calls = []

    def __getattr__(self, method):
        def remote(*arguments):
            # Of two chunks, nobody could say which one killed it.
            assert method != "answer" or not self.calls, "a worker was given a second chunk"
            ref = Ref(self, method, arguments)
            self.calls.append(ref)
            return ref

        # Options of a call say only how often Ray repeats it, and here nothing dies while it is built.
        return SimpleNamespace(remote=remote, options=lambda **_: SimpleNamespace(remote=remote))

    def run(self):
        """The next call."""
        ref = self.calls.pop(0)
        ref.done = True
        if ref.method == "answer":
            (requests,) = ref.arguments
            self.ray.given.append((self.number, list(requests)))
            if self.ray.dies(self.number, requests):
                ref.error = RayError("The actor died because of a test. Node Id")
                self.made = self.make()
                return
        ref.value = getattr(self.made, ref.method)(*ref.arguments)


class FakeRay:
    """Stands where the module `ray` does: `monkeypatch.setitem(sys.modules, "ray", FakeRay())`.

    Args:
        size: processors of its one node.
        deaths: after how many chunks each worker dies, by number; once, or as often as a list is long.
        order: numbers that choose whose call runs next.
        deadly: a request for which this is true kills its worker.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, *, size=2, deaths=(), order=(), deadly=None):
        self.size = size
        self.deaths = {
            number: [after] if isinstance(after, int) else list(after)
            for number, after in dict(deaths).items()
        }
        self.order = itertools.chain(order, itertools.count())
        self.deadly = deadly or (lambda request: False)
        self.given = []
        """(worker, requests) in order."""
        self.died = Counter()
        self.starts = 0
        self._on = False
        self._lock = RLock()

    def dies(self, number, requests):
        left = self.deaths.get(number)
        dies = any(map(self.deadly, requests))
        if left:
            left[0] -= 1
            if left[0] < 0:
                left.pop(0)
                dies = True
        self.died[number] += dies
        return dies

    def is_initialized(self):
        return self._on

    def init(self, **_):
        self._on = True

    def shutdown(self):
        self._on = False

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": self.size}}]

    def remote(self, kind):
        make = SimpleNamespace(remote=lambda *arguments: Actor(self, lambda: kind(*arguments)))
        return SimpleNamespace(options=lambda **_: make)

    def kill(self, actor):
        actor.calls.clear()

    def wait(self, refs, *, num_returns, timeout):
        del num_returns
        with self._lock:
            done = [ref for ref in refs if ref.done]
            if not done and timeout:
                done = [refs[next(self.order) % len(refs)]]
                while not done[0].done:
                    done[0].actor.run()
            return done, [ref for ref in refs if ref not in done]

    def get(self, ref):
        assert ref.done
        if ref.error is not None:
            raise ref.error
        return ref.value
