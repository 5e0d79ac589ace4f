"""A server on a port: from the first connection, while the model still loads, to the last answer after SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING, final

import uvicorn

from stepmark.errors import UsageError
from stepmark.serving.app import guarded
from stepmark.serving.page import curl
from stepmark.serving.service import Extension, Service
from stepmark.serving.settings import DEFAULTS, ServerSettings
from stepmark.serving.wire import EXAMPLE

if TYPE_CHECKING:
    from stepmark.models.prm import PRM
    from stepmark.serving.keys import Keys

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IDLE_CONNECTION = 75
"""Seconds: longer than clients keep theirs, so that a request does not meet a connection that is being closed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a server listens, and to whom."""

    host: str
    port: int
    """0: any that is free."""
    everybody: bool = False
    """Whoever reaches it may ask."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self, *, keyed: bool) -> None:
        """Refuse an address that lets other machines ask where nothing says who may.

        Raises:
            UsageError: such an address.
        """
        if not keyed and not self.everybody and not self.loopback:
            raise UsageError(
                f"`host` {self.host} lets other machines ask: give `keys`, a file of those who may (a line each: NAME KEY), or `open` for all"
            )

    def link(self, port: int) -> str:
        """What a client on this machine types."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host.strip("[]"), self.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}"


def run(
    load: Callable[[], PRM],
    settings: ServerSettings,
    place: Place,
    *,
    what: str,
    keys: Keys | None = None,
    extensions: Sequence[Extension] = (),
    quiet: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        load: makes the PRM.
        settings: limits.
        place: where.
        what: the PRM's name, for people.
        keys: whose requests are answered.
        extensions: what else is served.
        quiet: no line for each request.

    Raises:
        UsageError: an address that cannot be listened on.
        StepmarkError: the PRM could not be loaded.
    """

    def log(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    service = Service(load, settings, extensions=extensions, log=log, log_requests=not quiet)
    hosts = frozenset({"127.0.0.1", "localhost", "[::1]"}) if keys is None and not place.everybody else None
    if hosts is not None:
        hosts |= {place.host}
    with _listen(place) as listening:
        link = place.link(listening.getsockname()[1])
        server = _Server(_config(guarded(service, keys=keys, hosts=hosts), settings), service, log)

        def loaded(task: asyncio.Task[None]) -> None:
            if service.state == "ready" and service.live is not None:
                log(_greeting(link, service.live.name, keyed=keys is not None))
            elif service.error is not None:
                server.should_exit = True

        service.when_loaded = loaded
        log(f"loading {what}; {link}/ready says when it is there")
        # Batches are computed in a thread that holds the interpreter between kernels; requests get it back this quickly.
        sys.setswitchinterval(0.001)
        server.run(sockets=[listening])
    if service.error is not None:
        raise service.error
    log("stopped")


def _config(app: Callable[..., object], settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="auto",
        http=_protocol(settings),
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        # A forwarded address is what anybody may write into a header.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_IDLE_CONNECTION,
        # What is in work is finished or refused within the time of grace; then its answer is still to be sent.
        timeout_graceful_shutdown=int(settings.grace) + 5,
    )


def _protocol(settings: ServerSettings) -> type[asyncio.Protocol] | str:
    try:
        from stepmark.serving.heads import bounded
    except ModuleNotFoundError:  # without httptools; h11 has a bound of its own for headers
        return "h11"
    return bounded(settings.body_timeout)


class _Server(uvicorn.Server):
    """Ends as a service should: SIGTERM is an order and no failure."""

    def __init__(self, config: uvicorn.Config, service: Service, log: Callable[[str], None]) -> None:
        super().__init__(config)
        self._service, self._log = service, log

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def told(number: int, _frame: FrameType | None) -> None:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)  # a second one ends it at once
            loop.call_soon_threadsafe(self._stop, signal.Signals(number).name)

        before = {number: signal.signal(number, told) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, name: str) -> None:
        grace = self._service.settings.grace
        self._log(f"{name}: nothing new is taken; what is in work has {grace:g} s (again: at once)")
        self._service.stop()
        self.should_exit = True


def _listen(place: Place) -> socket.socket:
    host = place.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # `create_server` would make an OSError of it whose number is none of the system's.
        socket.getaddrinfo(host, place.port, family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UsageError(
            f"`host` {place.host}: {error.strerror}; give a name or an address of this machine"
        ) from None
    try:
        return socket.create_server((host, place.port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"{place.host}:{place.port} cannot be listened on ({os.strerror(error.errno or 0)}); give another `port`"
        ) from None


def _greeting(link: str, name: str, *, keyed: bool) -> str:
    line = curl(link, "/v1/score", "post", EXAMPLE, keyed=keyed).replace(" \\\n ", "")
    return "\n".join(
        [
            f"Serving {name} on {link} (Ctrl-C ends it; what is in work is finished)",
            f"Try it:  {line}",
            f"All of it: {link}/docs",
        ]
    )


@final
class BackgroundServer:
    """A server in a thread of this process, for notebooks and tests; `stepmark.serve` is the one for other machines.

    Closed by `close()`, or at the end of a `with` block.

    Args:
        prm: what it serves.
        settings: how it serves, and limits.
        port: of 127.0.0.1, where it listens; 0 for any port that is free.

    Raises:
        UsageError: the port cannot be listened on.
    """

    def __init__(self, prm: PRM, settings: ServerSettings = DEFAULTS, *, port: int = 0) -> None:
        place = Place(host="127.0.0.1", port=port)
        self._socket = _listen(place)
        self.address = place.link(self._socket.getsockname()[1])
        """What clients on this machine connect to."""
        app = guarded(Service(lambda: prm, settings))
        self._server = uvicorn.Server(_config(app, settings))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Finish the requests in progress and end."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
