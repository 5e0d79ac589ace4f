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
    """One process. Its calls run in order."""

    def __init__(self, ray, number, made):
        self.ray, self.number, self.made = ray, number, made
        self.dead = False
        self.calls = []

    def __getattr__(self, method):
        def remote(*arguments):
            ref = Ref(self, method, arguments)
            self.calls.append(ref)
            return ref

        return SimpleNamespace(remote=remote)

    def run(self):
        """The next call."""
        ref = self.calls.pop(0)
        ref.done = True
        if ref.method == "answer" and not self.dead:
            (requests,) = ref.arguments
            self.ray.given.append((self.number, list(requests)))
            self.dead = self.ray.dies(self.number, requests)
        if ref.method == "place":
            ref.value = "here"
        elif not self.dead:
            ref.value = getattr(self.made, ref.method)(*ref.arguments)
        if self.dead:
            ref.error = RayError("The actor died because of a test. Node Id")


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
        self._numbers = itertools.count(1)
        self._freed = []
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
        def make(*arguments):
            self.starts += 1
            number = self._freed.pop() if self._freed else next(self._numbers)
            return Actor(self, number, kind(*arguments))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def kill(self, actor):
        actor.dead = True
        self._freed.append(actor.number)

    def wait(self, refs, *, num_returns, timeout):
        del num_returns, timeout
        with self._lock:
            done = next((ref for ref in refs if ref.done), None)
            if done is None:
                done = refs[next(self.order) % len(refs)]
                while not done.done:
                    done.actor.run()
            return [done], [ref for ref in refs if ref is not done]

    def get(self, ref):
        assert ref.done
        if ref.error is not None:
            raise ref.error
        return ref.value
