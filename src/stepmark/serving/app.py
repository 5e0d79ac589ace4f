"""The app of a score server, and its life on a port."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
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
from stepmark.models.lazy import Lazy
from stepmark.models.policies import policy_of
from stepmark.models.remote.wire import EXAMPLE
from stepmark.serving import chat as chats
from stepmark.serving import routes
from stepmark.serving.errors import Refused, refused, refused_body
from stepmark.serving.guard import Guard, Keys
from stepmark.serving.service import Service
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings
from stepmark.version import __version__

if TYPE_CHECKING:
    from stepmark.models.policies import PolicyLike
    from stepmark.models.prm import PRM

_ABOUT = """One process reward model (PRM) for many clients: scores of every step of solutions, and ranked candidates. A prefix that grows is sent whole:
the server's prefix cache computes what is new.

Every answer whose status is 400 or more has the body {"error": {"type", "message", "field"?, "where"?}}. Steps are counted from 0; `first_error` is -1
where there is none and null where it is unknown."""
_IDLE_CONNECTION = 75
"""Seconds: longer than clients hold theirs, so that a request does not meet a connection that is being closed."""


def build_app(service: Service, *, keys: Keys | None = None, hosts: frozenset[str] | None = None) -> FastAPI:
    """The app of a server; its lifespan starts and stops the service.

    Args:
        service: what it serves.
        keys: whose requests are answered; None: everybody's.
        hosts: see `Guard`.
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
        dependencies=None if keys is None else [Depends(HTTPBearer(auto_error=False))],  # for the document
    )
    app.state.service = service
    app.include_router(routes.router)
    if service.policy is not None:
        app.include_router(chats.router)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _body_error)
    app.add_exception_handler(StepmarkError, _stepmark_error)
    app.add_middleware(Guard, service=service, keys=keys, hosts=hosts)
    return app


@asynccontextmanager
async def serve_in_process(
    prm: PRM,
    settings: ServerSettings = DEFAULTS,
    *,
    policy: PolicyLike | None = None,
    chat: ChatModel = CHAT,
    keys: Keys | None = None,
) -> AsyncIterator[FastAPI]:
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
    model = None if policy is None else policy_of(policy)
    if isinstance(model, Lazy):
        model = model.with_arguments(**chats.POLICY).load()
    service = Service(prm, settings, policy=model, chat=chat)
    await service.start()
    try:
        yield build_app(service, keys=keys)
    finally:
        await service.stop()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return error.response
    if error.status_code == 404:
        chat = request.url.path == "/v1/chat/completions"
        hint = "; a server that is started with --policy answers conversations" if chat else ""
        return Refused("not_found", f"there is no such address{hint}; /docs lists them").response
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "none")
        message = f"this address takes another method: {allowed}"
        return Refused("not_found", message, status=405, headers=error.headers).response
    return Refused("invalid_request", f"expected JSON in UTF-8: {error.detail}").response


async def _body_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return refused_body(error.errors()).response


async def _stepmark_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StepmarkError)
    refusal = refused(error)
    if refusal.error["type"] == "failed":
        request.app.state.service.log(f"error: {type(error).__name__}: {error}")
    return refusal.response


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
    server = _Server(_config(service, keys=keys, hosts=hosts), service.log)
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


def _config(service: Service, *, keys: Keys | None, hosts: frozenset[str] | None) -> uvicorn.Config:
    app = build_app(service, keys=keys, hosts=hosts)
    return uvicorn_config(app, grace=service.settings.grace, keep_alive=_IDLE_CONNECTION)


class _Server(uvicorn.Server):
    """Ends with status 0 at SIGTERM and Ctrl-C, once the requests in progress are answered; a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, log: Callable[[str], None]) -> None:
        super().__init__(config)
        self._log = log

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # As uvicorn does, but the signals are not raised again at the end.
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self._log(
            f"{signal.Signals(sig).name}: nothing new is taken; requests in progress are finished (again: at once)"
        )
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
        self.service = Service(prm, settings)
        self._socket = listen("127.0.0.1", port)
        self.address = link_of("127.0.0.1", self._socket.getsockname()[1])
        """What clients on this machine connect to."""
        self._server = uvicorn.Server(_config(self.service, keys=None, hosts=None))
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
