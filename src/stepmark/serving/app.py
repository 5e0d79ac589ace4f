"""The app of a score server, behind its guard; and its life on a port, from the first connection, while the model still loads, to the last answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING, final

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from stepmark.errors import StepmarkError, UsageError
from stepmark.models.remote.wire import EXAMPLE
from stepmark.serving import routes
from stepmark.serving.chat import chat_extensions
from stepmark.serving.errors import Refused, refused, refused_body
from stepmark.serving.guard import Guard, Keys
from stepmark.serving.metrics import Metrics
from stepmark.serving.service import Extension, Service
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings

if TYPE_CHECKING:
    from stepmark.models.policies import PolicyLike
    from stepmark.models.prm import PRM

_ABOUT = """One process reward model (PRM) for many clients: scores of every step of solutions, ranked candidates, prefixes that grow.

Every answer whose status is 400 or more has the body {"error": {"type", "message", "field"?, "where"?}}. Steps are counted from 0; `first_error` is -1
where there is none and null where it is unknown."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IDLE_CONNECTION = 75
"""Seconds: longer than clients hold theirs, so that a request does not meet a connection that is being closed."""


def build_app(service: Service, *, keyed: bool = False) -> FastAPI:
    """The routes of a server, without the guard; its lifespan starts and stops the service.

    Args:
        service: what they serve.
        keyed: the document says that a key is needed.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="stepmark serve",
        version=version("stepmark"),
        description=_ABOUT,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if keyed else None,
    )
    app.state.service, app.state.metrics = service, Metrics(service)
    for router in (routes.router, *(extension.router for extension in service.extensions)):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _body_error)
    app.add_exception_handler(StepmarkError, _stepmark_error)
    app.add_exception_handler(Exception, _failure)
    return app


def guarded(service: Service, *, keys: Keys | None = None, hosts: frozenset[str] | None = None) -> Guard:
    """The app of a server behind its guard.

    Args:
        service: what it serves.
        keys: whose requests are answered; None: everybody's.
        hosts: see `Guard`.
    """
    app = build_app(service, keyed=keys is not None)
    return Guard(app, app.state.metrics, keys=keys, hosts=hosts)


@asynccontextmanager
async def serve_in_process(
    prm: PRM,
    settings: ServerSettings = DEFAULTS,
    *,
    policy: PolicyLike | None = None,
    chat: ChatModel = CHAT,
    keys: Keys | None = None,
    extensions: Sequence[Extension] = (),
) -> AsyncIterator[Guard]:
    """A server in this process, without a port: an ASGI app for `httpx.ASGITransport`.

        async with serve_in_process(prm) as app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stepmark") as client:
            ...

    Args:
        prm: what it serves.
        settings: how it serves, and limits.
        policy: the policy of the chat model; None: the PRM alone is served.
        chat: how it answers as a chat model.
        keys: whose requests are answered; None: everybody's.
        extensions: what else it serves.

    Raises:
        UsageError: settings that do not fit the PRM.
    """
    service = Service(lambda: prm, settings, extensions=[*extensions, *chat_extensions(policy, chat)])
    try:
        await service.start()
        yield guarded(service, keys=keys)
    finally:
        await service.stop()


def _response(refusal: Refused) -> Response:
    return Response(
        refusal.body, status_code=refusal.status_code, headers=refusal.headers, media_type="application/json"
    )


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return _response(error)
    headers = dict(error.headers or {})
    known = {
        404: ("not_found", "there is no such address; /docs lists them"),
        405: ("method_not_allowed", f"this address takes another method: {headers.get('Allow', 'none')}"),
    }
    kind, message = known.get(
        error.status_code, ("invalid_request", f"expected JSON in UTF-8: {error.detail}")
    )
    return _response(Refused(kind, message, headers=headers))


async def _body_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _response(refused_body(error.errors()))


async def _stepmark_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StepmarkError)
    refusal = refused(error)
    if refusal.error["type"] == "failed":
        request.app.state.service.log(f"error: {type(error).__name__}: {error}")
    return _response(refusal)


async def _failure(_request: Request, _error: Exception) -> Response:
    return _response(Refused("failed", "the server failed at this request; its log says why"))


# On a port.


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a server listens, and to whom."""

    host: str
    port: int
    """0: any that is free."""
    everybody: bool = False
    """Every client that reaches it may ask."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self, *, keyed: bool) -> None:
        """Refuse an address that lets other machines ask without keys.

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

    def listen(self) -> socket.socket:
        """A socket there.

        Raises:
            UsageError: no such host, or a port that is taken.
        """
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.getaddrinfo(host, self.port, family, socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise UsageError(
                f"`host` {self.host}: {error.strerror}; give a name or an address of this machine"
            ) from None
        try:
            return socket.create_server((host, self.port), family=family, backlog=2048)
        except OSError as error:
            raise UsageError(
                f"{self.host}:{self.port} cannot be listened on ({os.strerror(error.errno or 0)}); give another `port`"
            ) from None


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
    hosts = None
    if keys is None and not place.everybody:
        hosts = frozenset({"127.0.0.1", "localhost", "[::1]", place.host})
    with place.listen() as listening:
        link = place.link(listening.getsockname()[1])
        server = _Server(uvicorn_config(guarded(service, keys=keys, hosts=hosts), settings), service, log)

        def loaded(task: asyncio.Task[None]) -> None:
            if service.state == "ready" and service.live is not None:
                key = '-H "Authorization: Bearer $STEPMARK_API_KEY" ' if keys is not None else ""
                log(
                    f"Serving {service.live.name} on {link} (Ctrl-C ends it; requests in progress are finished)\n"
                    f"Try it:  curl {link}/v1/score {key}-H 'Content-Type: application/json' -d '{json.dumps(EXAMPLE)}'\n"
                    f"All of it: {link}/docs"
                )
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


def uvicorn_config(app: Guard, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn runs a server."""
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        proxy_headers=False,  # clients could write any address into a header
        server_header=False,
        date_header=False,
        timeout_keep_alive=_IDLE_CONNECTION,
        # Requests in progress are finished or refused within the time of grace; then the answers are sent.
        timeout_graceful_shutdown=int(settings.grace) + 5,
    )


class _Server(uvicorn.Server):
    """Ends with status 0 at SIGTERM."""

    def __init__(self, config: uvicorn.Config, service: Service, log: Callable[[str], None]) -> None:
        super().__init__(config)
        self._service, self._log = service, log

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def handle(number: int, _frame: FrameType | None) -> None:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)  # a second one ends it at once
            loop.call_soon_threadsafe(self._stop, signal.Signals(number).name)

        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, name: str) -> None:
        grace = self._service.settings.grace
        self._log(f"{name}: nothing new is taken; requests in progress have {grace:g} s (again: at once)")
        self._service.stop()
        self.should_exit = True


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
        self._socket = place.listen()
        self.address = place.link(self._socket.getsockname()[1])
        """What clients on this machine connect to."""
        self._server = uvicorn.Server(uvicorn_config(guarded(Service(lambda: prm, settings)), settings))
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
