"""The web app: routes, guard, start and stop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stepmark.annotation import routes, routes_admin
from stepmark.annotation.refusals import Refused
from stepmark.annotation.security import Guard, Scope, Site
from stepmark.errors import InputError, StepmarkError, UsageError

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Account
    from stepmark.annotation.live import Live

ROUTERS = (
    routes.work,
    routes.session,
    routes_admin.disputes_router,
    routes_admin.admin,
    routes.pages,
)


def build_app(live: Live, site: Site, *, started: Callable[[], None] | None = None) -> FastAPI:
    """The app of a project, as any ASGI server runs it. It must run in one process: what is hot is in memory.

    Args:
        live: the project.
        site: where it is reached.
        started: called once all is loaded.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await live.start()
        if started is not None:
            started()
        try:
            yield
        finally:
            await live.stop()

    app = FastAPI(
        title="stepmark annotate",
        version=version("stepmark"),
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.live = live
    app.state.site = site
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StepmarkError, _stepmark_error)
    app.add_exception_handler(Exception, _failure)
    return app


def guarded(app: FastAPI, live: Live, site: Site) -> Guard:
    """The app behind its guard: what is served."""

    async def changes(account: Account, _scope: Scope, body: bytes) -> bytes:
        return await routes.answer_changes(live, account, body)

    async def next_item(account: Account, scope: Scope, _body: bytes) -> bytes:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        return await routes.answer_next(live, account, query.get("after", [None])[-1])

    return Guard(
        app,
        accounts=live.accounts,
        limits=live.project.limits,
        site=site,
        clock=live.clock,
        hot={("POST", "/api/changes"): changes, ("GET", "/api/next"): next_item},
    )


async def _refusal(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = error.body if isinstance(error, Refused) else {"error": _words(error)}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": first["msg"], "field": field}, status_code=400)


async def _stepmark_error(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, InputError | UsageError):
        field = {"field": error.field} if isinstance(error, InputError) and error.field else {}
        return JSONResponse({"error": str(error), **field}, status_code=400)
    return JSONResponse({"error": str(error)}, status_code=503)


def _words(error: HTTPException) -> str:
    known = {404: "there is no such page", 405: "this address does not take that method"}
    return known.get(error.status_code, error.detail)


async def _failure(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed at this request; its log says why"}, status_code=500)
