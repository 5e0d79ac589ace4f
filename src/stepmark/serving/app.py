"""The app of a score server, behind its guard; and its life on a port."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, final

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from stepmark.errors import StepmarkError
from stepmark.hosting import link_of, listen, uvicorn_config
from stepmark.models.remote.wire import EXAMPLE
from stepmark.serving import routes
from stepmark.serving.chat import add_chat, check_chat
from stepmark.serving.errors import Refused, refused, refused_body
from stepmark.serving.guard import Guard, Keys
from stepmark.serving.metrics import Metrics
from stepmark.serving.service import Service
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings
from stepmark.version import __version__

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
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="stepmark serve",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if keyed else None,
    )
    app.state.service, app.state.metrics = service, Metrics(service)
    for router in (routes.router, *service.routers):
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

    Raises:
        UsageError: settings that do not fit the PRM.
    """
    service = Service(prm, settings)
    add_chat(service, check_chat(policy, chat), chat)
    await service.start()
    try:
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


def run(
    service: Service,
    listening: socket.socket,
    *,
    link: str,
    keys: Keys | None = None,
    hosts: frozenset[str] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        service: what is served.
        listening: where.
        link: what clients on this machine connect to.
        keys: whose requests are answered.
        hosts: see `Guard`.
    """
    app = guarded(service, keys=keys, hosts=hosts)
    server = _Server(_config(app), service)
    key = '-H "Authorization: Bearer $STEPMARK_API_KEY" ' if keys is not None else ""
    service.log(
        f"Serving {service.name} on {link} (Ctrl-C ends it; requests in progress are finished)\n"
        f"Try it:  curl {link}/v1/score {key}-H 'Content-Type: application/json' -d '{json.dumps(EXAMPLE)}'\n"
        f"All of it: {link}/docs"
    )
    # Batches are computed in a thread that holds the interpreter between kernels; requests get it back this quickly.
    sys.setswitchinterval(0.001)
    server.run(sockets=[listening])
    service.log("stopped")


def _config(app: Guard) -> uvicorn.Config:
    # Requests in progress are finished or refused within the time of grace; then the answers are sent.
    return uvicorn_config(app, grace=app.service.settings.grace + 5, keep_alive=_IDLE_CONNECTION)


class _Server(uvicorn.Server):
    """Ends with status 0 at SIGTERM."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

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
        self._service.log(
            f"{name}: nothing new is taken; requests in progress have {grace:g} s (again: at once)"
        )
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
        UsageError: the port cannot be listened on, or settings that do not fit the PRM.
    """

    def __init__(self, prm: PRM, settings: ServerSettings = DEFAULTS, *, port: int = 0) -> None:
        app = guarded(Service(prm, settings))
        self._socket = listen("127.0.0.1", port)
        self.address = link_of("127.0.0.1", self._socket.getsockname()[1])
        """What clients on this machine connect to."""
        self._server = uvicorn.Server(_config(app))
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
