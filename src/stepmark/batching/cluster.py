"""Workers on a Ray cluster: one Ray actor each, which builds its own answerers and builds them again where it died.

What travels, by Ray's own means (pickle, between processes of this program): the name of the function that builds
the answerers with its settings as JSON; requests; replies. No model, no file, no code. Every node has the same
stepmark installed, and the cluster is trusted: anyone who can reach its ports can run code on it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, final

from stepmark.batching.cluster_worker import ClusterWorker, Fact, Hello, More, Trouble
from stepmark.batching.driver import Answerer, Reply
from stepmark.batching.requests import Ask, ScoreSolution
from stepmark.batching.spreading import Done, Event, Failed, Lost, Replied, Spreading
from stepmark.errors import BackendError, MissingExtraError, UsageError


def loaded_ray() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    # Read when ray is loaded: it otherwise tells its makers about this machine.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise MissingExtraError("a Ray cluster needs ray: pip install 'stepmark[cluster]'") from None


def connect(ray: Any, address: str) -> bool:
    """Join the cluster; whether it was us who did, and not our caller before.

    Raises:
        UsageError: no such form of an address.
        BackendError: there is no cluster.
        MissingExtraError: the address needs Ray's client, which is not installed.
    """
    if ray.is_initialized():
        return False
    own = address == "local"
    if not own and address != "auto":
        _check_reachable(address)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({"include_dashboard": False} if own else {}),
        )
    except ImportError as error:  # Ray's client needs grpcio
        raise MissingExtraError(
            f"{address} needs Ray's client: pip install 'stepmark[cluster]' ({error})"
        ) from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"cannot join a Ray cluster at {address!r}: {error}. Start one with `ray start --head`, or run this on one of "
            f"its nodes, or give ray://HOST:10001, or 'local'"
        ) from error
    return True


def _check_reachable(address: str) -> None:
    # Ray itself tries for a minute and then ends the process.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"the cluster's address: expected auto, HOST:PORT, ray://HOST:PORT or local, found {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"nothing answers at {address} ({error}): is the cluster up? Ray prints its address when it starts"
        ) from None


def short(error: Exception) -> str:
    """What happened, from Ray's report, which is a page of advice."""
    words = " ".join(str(error).split())
    for before, after in (
        ("The actor is dead because ", " Some common causes"),
        ("The actor died because ", " Node Id"),
        (" is unavailable: ", " rpc_code"),
    ):
        if before in words:
            return words.rpartition(before)[2].partition(after)[0][:240].rstrip(".")
    return words[:240] or type(error).__name__


_STARTS = 3
"""How often in a row one worker may die before it is ready."""

_TICK = 0.2
"""Seconds after which `wait` comes back even where nothing happened: another thread may have asked for something."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """How every worker makes its answerers."""

    function: str
    """"package.module:function", called as `function(**settings)`; gives a `dict[type, Answerer]`, or a `cluster_worker.Built`."""
    settings: Mapping[str, str | int | float | bool | None]
    """Its arguments."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Place:
    """One worker as the driver sees it; its actor is another after a death."""

    number: int
    actor: Any = None
    call: Any = None
    """What it was asked and has not answered yet."""
    state: Literal["waiting", "building", "idle", "taking", "working", "given up"] = "waiting"
    where: str = ""
    ticket: int = -1
    starts: int = 0
    failed_starts: int = 0
    """In a row."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """By its actor of now."""

    @property
    def name(self) -> str:
        return f"worker {self.number}" + (f" ({self.where})" if self.where else "")


@final
class RayWorkers:
    """Answers requests on a Ray cluster; use it in a `with`. It is made ready when the first worker is.

    A worker whose process or node died is started again wherever the cluster has room; the others go on meanwhile.

    Args:
        build: how every worker makes its answerers.
        address: "auto" (the cluster that this machine belongs to), "HOST:PORT" (its head), "ray://HOST:PORT" (a
            cluster that this machine does not belong to) or "local" (a Ray of its own on this machine).
        workers: how many; None for as many as the cluster has room for now, at most `most`.
        most: see `workers`.
        cpus: processors that each is given. Ray lets a worker's torch use as many threads.
        gpus: GPUs that each is given; below 1, several share one. With 0 they see none.
        homes: see `Spreading`.
        patience: seconds that are waited for a place in the cluster when no worker has one.
        tell: called with a line of text about workers that start and die.

    Raises:
        MissingExtraError: ray is not installed.
        UsageError: a setting out of its range, or what `build` raised.
        BackendError: there is no such cluster, it has no room, its nodes have another stepmark, or workers die
            before they are ready.
    """

    def __init__(
        self,
        build: Build,
        *,
        address: str,
        workers: int | None = None,
        most: int = 64,
        cpus: float = 1.0,
        gpus: float = 0.0,
        homes: bool = False,
        patience: float = 120.0,
        tell: Callable[[str], None],
    ) -> None:
        for name, value, good, wanted in (
            ("workers", workers, workers is None or workers >= 1, "1 or more"),
            ("most", most, most >= 1, "1 or more"),
            ("cpus", cpus, math.isfinite(cpus) and cpus > 0, "more than 0"),
            ("gpus", gpus, math.isfinite(gpus) and gpus >= 0, "0 or more"),
        ):
            if not good:
                raise UsageError(f"{name}: expected {wanted}, found {value}")
        self._ray = loaded_ray()
        self._build = build
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._patience = patience
        self._tell = tell
        self._address = address
        self._hello: Hello | None = None
        self._spent: Counter[str] = Counter()
        self._tickets = 0
        self._last_death = ""
        self._placed = time.monotonic()
        self._ours = connect(self._ray, address)
        self._places: list[_Place] = []
        try:
            count = min(self._room(), most) if workers is None else workers
            if count < 1:
                raise BackendError(f"{self._wanted()}, and no node of the cluster has that: {self._has()}")
            self._places = [_Place(number=number) for number in range(1, count + 1)]
            for place in self._places:
                self._start(place)
            self._tell(f"{count} worker{'s' * (count > 1)} on a Ray cluster with {self._has()}")
            while self._hello is None:
                self.wait()
        except BaseException:
            self.close()
            raise
        self._spreading: Spreading = Spreading(self, tell=tell, homes=homes)
        self.answerers: dict[type, Answerer] = self._spreading.answerers(self._hello.identities)
        """By the kind of request, for `batching.run`; their identities are those of the workers' own."""

    @property
    def tokens_written(self) -> int:
        """Tokens of all texts that came back so far, as far as the workers count them."""
        return self._spreading.tokens_written

    @property
    def facts(self) -> Mapping[str, Fact]:
        """What the workers say of their models; see `cluster_worker.Built`."""
        assert self._hello is not None
        return self._hello.facts

    @property
    def counters(self) -> Mapping[str, int]:
        """What all workers have spent, dead ones too as far as they could say."""
        return sum((Counter(place.spent) for place in self._places), self._spent.copy())

    def stream(self, requests: Iterable[ScoreSolution], *, expected: int | None = None) -> Iterator[Reply]:
        """See `Spreading.stream`."""
        return self._spreading.stream(requests, expected=expected)

    @property
    def size(self) -> int:
        """See `Workers`."""
        return max(1, sum(place.state != "given up" for place in self._places))

    @property
    def there(self) -> Collection[int]:
        """See `Workers`."""
        return [place.number for place in self._places if place.state in ("idle", "taking", "working")]

    @property
    def idle(self) -> Sequence[int]:
        """See `Workers`."""
        return [place.number for place in self._places if place.state == "idle"]

    def submit(self, requests: Sequence[Ask], *, to: int) -> int:
        """See `Workers`."""
        place = self._places[to - 1]
        assert place.state == "idle"
        self._tickets += 1
        place.ticket, place.state = self._tickets, "taking"
        place.call = place.actor.take.remote(list(requests))
        return self._tickets

    def wait(self) -> list[Event]:
        """See `Workers`."""
        asked = {place.call: place for place in self._places if place.call is not None}
        if any(place.state not in ("waiting", "given up") for place in self._places):
            self._placed = time.monotonic()
        if not asked and not self.idle:
            raise BackendError(
                f"no worker is left: each died {_STARTS} times before it was ready. {self._last_death.capitalize()}. "
                f"Replies so far are recorded"
            )
        done, _ = self._ray.wait(list(asked), num_returns=1, timeout=_TICK) if asked else ([], [])
        if done:
            return self._heard(asked[done[0]])
        if time.monotonic() - self._placed > self._patience:
            raise BackendError(
                f"no worker is left and for {self._patience:.0f} s the cluster had no room for one: "
                f"{self._wanted()}, and it has {self._has()}. Replies so far are recorded: add a node, or wait, "
                f"then run the same again"
            )
        return []

    def close(self) -> None:
        """End the workers and leave the cluster."""
        if self._ray.is_initialized():
            for place in self._places:
                if place.actor is not None:
                    self._ray.kill(place.actor)
            if self._ours:
                self._ray.shutdown()
        # What they spent is asked for when they are gone.
        self._spent = Counter(self.counters)
        self._places = []

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, place: _Place) -> None:
        # Ray's own restarts stay off: it would repeat calls whose replies are here already.
        actor = self._ray.remote(ClusterWorker).options(
            **self._needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        place.actor = actor.remote(
            self._build.function, json.dumps(dict(self._build.settings)), str(Path.cwd())
        )
        place.starts += 1
        place.state, place.where = "waiting", ""
        place.call = place.actor.hello.remote()

    def _heard(self, place: _Place) -> list[Event]:
        """Take what a worker answered, and ask it the next."""
        call, place.call = place.call, None
        try:
            said = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise BackendError(f"{place.name} failed in a way that it should not: {error}") from error
        except self._ray.exceptions.RayError as error:
            return self._died(place, error)
        if place.state == "waiting":
            place.where, place.state = said, "building"
            place.call = place.actor.build.remote()
        elif place.state == "building":
            self._built(place, said)
        elif place.state == "taking":
            place.state = "working"
            place.call = place.actor.more.remote()
        else:
            return self._replied(place, said)
        return []

    def _built(self, place: _Place, said: Hello | Trouble) -> None:
        if isinstance(said, Trouble):
            raise said.error(place.name)
        if said.version != version("stepmark"):
            raise BackendError(
                f"{place.name} has stepmark {said.version}, here is {version('stepmark')}: install the same on every node"
            )
        if self._hello not in (None, said):
            assert self._hello is not None
            ours, theirs = (_differing(one, two) for one, two in ((self._hello, said), (said, self._hello)))
            raise BackendError(
                f"{place.name} answers as {theirs}, the first worker as {ours}: every node needs the same model, in "
                f"the same place, and the same versions"
            )
        if place.starts > 1:
            self._tell(f"{place.name} is there again")
        self._hello = said
        place.state, place.failed_starts = "idle", 0

    def _replied(self, place: _Place, said: More) -> list[Event]:
        place.spent = said.spent
        events: list[Event] = [
            Replied(ticket=place.ticket, place=at, reply=reply) for at, reply in said.replies
        ]
        if not said.end:
            place.call = place.actor.more.remote()
            return events
        place.state = "idle"
        if said.trouble is not None:
            return [*events, Failed(ticket=place.ticket, error=said.trouble.error(place.name))]
        return [*events, Done(ticket=place.ticket)]

    def _died(self, place: _Place, error: Exception) -> list[Event]:
        self._last_death = why = f"{place.name} died: {short(error)}"
        self._spent.update(place.spent)
        place.spent = {}
        lost = place.state in ("taking", "working")
        begun = place.state == "working"
        if not lost:
            place.failed_starts += 1
        # Out of reach is as good as dead, but must not go on beside its successor.
        self._ray.kill(place.actor)
        if place.failed_starts == _STARTS:
            place.state, place.actor = "given up", None
            self._tell(f"{why}; it is not started again")
        else:
            self._start(place)
        if lost:
            return [Lost(ticket=place.ticket, begun=begun, why=why)]
        if place.state != "given up":
            self._tell(f"{why}; it is started again")
        return []

    def _room(self) -> int:
        """How many workers fit on the nodes that are there."""
        room = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                fits = [has.get("CPU", 0) // self._needs["num_cpus"]]
                if self._needs["num_gpus"]:
                    fits.append(has.get("GPU", 0) // self._needs["num_gpus"])
                room += int(min(fits))
        return room

    def _wanted(self) -> str:
        gpus = f" and {self._needs['num_gpus']:g} GPU" if self._needs["num_gpus"] else ""
        return f"a worker needs {self._needs['num_cpus']:g} CPU{gpus}"

    def _has(self) -> str:
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cpus, gpus = (sum(has.get(what, 0) for has in alive) for what in ("CPU", "GPU"))
        unused = "" if self._needs["num_gpus"] else " (workers are given none)"
        shown = f", {gpus:g} GPUs{unused}" if gpus else ""
        return f"{len(alive)} node{'s' * (len(alive) != 1)}, {cpus:g} CPUs{shown}"


def _differing(one: Hello, other: Hello) -> list[str]:
    """What of one worker's answerers and models is not the other's."""
    identities = {who for kind, who in one.identities.items() if other.identities.get(kind) != who}
    facts = {f"{name} {value}" for name, value in one.facts.items() if other.facts.get(name) != value}
    return sorted(identities | facts)
