"""The app of a score server: its routes behind its guard, and the same in this process for tests and notebooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.serving import routes_info, routes_score, routes_sessions
from stepmark.serving.guard import Guard
from stepmark.serving.jobs import BusyError, DrainingError, LateError
from stepmark.serving.refusals import Refused, input_error_data, retry
from stepmark.serving.routes_completions import chat_extensions
from stepmark.serving.routing import MODELS, InOrder
from stepmark.serving.service import Extension, Service
from stepmark.serving.sessions import UnknownSessionError
from stepmark.serving.settings import CHAT, DEFAULTS, ChatModel, ServerSettings

if TYPE_CHECKING:
    from stepmark.models.policies import PolicyLike
    from stepmark.models.prm import PRM
    from stepmark.serving.keys import Keys

ROUTERS = (routes_score.router, routes_sessions.router, routes_info.router)

_ABOUT = """One process reward model (PRM) for many clients: scores of every step of solutions, candidates in order, prefixes that grow.

Every answer whose status is 400 or more has the body {"error": {"type", "message", "field"?, "where"?}}. Steps are counted from 0; `first_error` is -1
where there is none and null where it cannot be known."""


def build_app(service: Service, *, keyed: bool = False) -> FastAPI:
    """The routes of a server, without the guard.

    Args:
        service: what they serve; its lifespan starts and stops it.
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
        openapi_url=None,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        # Texts that clients send are nobody else's business, and each look whether telemetry is on takes time.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service = service
    for router in (*ROUTERS, *(extension.router for extension in service.extensions)):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StepmarkError, _stepmark_error)
    app.add_exception_handler(Exception, _failure)
    _document(app, keyed)
    return app


def guarded(service: Service, *, keys: Keys | None = None, hosts: frozenset[str] | None = None) -> Guard:
    """The app of a server behind its guard: what is served.

    Args:
        service: what it serves.
        keys: whose requests are answered; None: everybody's.
        hosts: see `Guard`.
    """
    return Guard(build_app(service, keyed=keys is not None), service, keys=keys, hosts=hosts)


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
        keys: whose requests are answered; None: everybody's.
        extensions: what else it serves.

    Raises:
        UsageError: settings that do not fit the PRM.
    """
    models = chat_extensions(policy, chat)
    service = Service(lambda: prm, settings, extensions=[*extensions, *models])
    try:
        await service.start()
        yield guarded(service, keys=keys)
    finally:
        await service.stop()


def _document(app: FastAPI, keyed: bool) -> None:
    """Make `app.openapi` give our document: with the bodies that the routes read themselves."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, models = models_json_schema(
                list(MODELS.items()), ref_template="#/components/schemas/{model}", schema_generator=InOrder
            )
            document.setdefault("components", {})["schemas"] = models["$defs"]
            if keyed:
                document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"key": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _answered(refused: Refused) -> Response:
    return Response(
        refused.body, status_code=refused.status_code, headers=refused.headers, media_type="application/json"
    )


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return _answered(error)
    headers = dict(error.headers or {})
    if "GET" in headers.get("Allow", "").split(", "):
        headers["Allow"] += ", HEAD"  # the guard answers it
    known = {
        404: ("not_found", "there is no such address; /docs lists them"),
        405: (
            "method_not_allowed",
            f"this address does not take that method, but {headers.get('Allow', 'others')}",
        ),
    }
    kind, message = known.get(error.status_code, ("invalid_request", error.detail))
    refused = Refused(kind, message, headers=headers)
    refused.status_code = error.status_code
    return _answered(refused)


async def _malformed(_request: Request, error: Exception) -> Response:
    # Of extensions whose routes have parameters that FastAPI reads.
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return _answered(Refused("invalid_request", first["msg"], field=field or None))


async def _stepmark_error(request: Request, error: Exception) -> Response:
    if isinstance(error, BusyError):
        return _answered(Refused("busy", f"{error}; try again later", headers=retry(error.retry_after)))
    if isinstance(error, LateError):
        return _answered(Refused("deadline", str(error)))
    if isinstance(error, DrainingError):
        return _answered(Refused("unavailable", str(error), headers={**retry(1.0), "connection": "close"}))
    if isinstance(error, UnknownSessionError):
        return _answered(Refused("not_found", str(error)))
    if isinstance(error, InputError):
        data = input_error_data(error)
        return _answered(
            Refused(data["type"], data["message"], field=data.get("field"), where=data.get("where"))
        )
    if isinstance(error, UsageError):
        return _answered(Refused("invalid_request", str(error)))
    service: Service = request.app.state.service
    service.log(f"error: {type(error).__name__}: {error}")
    return _answered(Refused("failed", str(error)))


async def _failure(_request: Request, _error: Exception) -> Response:
    return _answered(Refused("failed", "the server failed at this request; its log says why"))
