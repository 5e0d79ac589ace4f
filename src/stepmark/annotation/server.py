"""The app, built from its routes, behind its security middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stepmark.annotation import routes, routes_admin
from stepmark.annotation.accounts import RequestError
from stepmark.annotation.security import SecurityMiddleware, Site
from stepmark.errors import InputError, StepmarkError, UsageError

if TYPE_CHECKING:
    from stepmark.annotation.live import Live

ROUTERS = (routes.work, routes.session, routes_admin.disputes_router, routes_admin.admin, routes.pages)


def build_app(live: Live, site: Site, *, started: Callable[[], None] | None = None) -> FastAPI:
    """The app of a project, for one process of any ASGI server: logs in use are in memory. `started` is called once all is loaded."""

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
        exception_handlers={
            HTTPException: _refused,
            RequestValidationError: _malformed,
            StepmarkError: _stepmark_error,
            Exception: _failed,
        },
    )
    app.state.live, app.state.site = live, site
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes += routes.STATIC
    return app


def secured(app: FastAPI, live: Live, site: Site) -> SecurityMiddleware:
    """The app behind its security middleware, as it is served."""
    direct = {("POST", "/api/changes"): routes.changes, ("GET", "/api/next"): routes.next_item}
    limits = live.project.limits
    return SecurityMiddleware(app, accounts=live.accounts, limits=limits, site=site, direct=direct)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such page", 405: "this address does not take that method"}
    body = {"error": words.get(error.status_code, error.detail)}
    body = error.body if isinstance(error, RequestError) else body
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": first["msg"], "field": field}, status_code=400)


async def _stepmark_error(_request: Request, error: Exception) -> JSONResponse:
    field = {"field": error.field} if isinstance(error, InputError) and error.field else {}
    status = 400 if isinstance(error, InputError | UsageError) else 503
    return JSONResponse({"error": str(error), **field}, status_code=status)


async def _failed(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed at this request; its log says why"}, status_code=500)
