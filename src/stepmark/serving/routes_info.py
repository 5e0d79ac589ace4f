"""What the server says of itself."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from stepmark.serving.figures import CONTENT_TYPE, metrics
from stepmark.serving.page import CSP, page
from stepmark.serving.routing import answer, described, service_of
from stepmark.serving.wire import ModelsAnswer, StatusAnswer

router = APIRouter(tags=["server"])


@router.get("/v1/models", summary="The models", **described(ModelsAnswer, 503))
async def models(request: Request) -> Response:
    """What is served, in OpenAI's shape; `stepmark` says what a client must know of a PRM."""
    service = service_of(request)
    service.need()
    data = [json.loads(entry.model_dump_json(exclude_unset=True)) for entry in service.models]
    for entry, plain in zip(service.models, data, strict=True):
        plain |= {"object": entry.object, "owned_by": entry.owned_by}
    return answer({"object": "list", "data": data})


@router.get("/health", summary="Alive", **described(StatusAnswer))
async def health() -> Response:
    """Whether the process lives. It says nothing of the model; needs no key."""
    return answer({"status": "ok"})


@router.get("/ready", summary="Ready", **described(StatusAnswer, 503))
async def ready(request: Request) -> Response:
    """Whether requests are taken: 200 once the model is loaded, 503 before and while the server shuts down. Needs no key."""
    service = service_of(request)
    service.need()
    return answer({"status": "ready"})


@router.get("/metrics", summary="Figures", response_class=Response, **described(None))
async def figures(request: Request) -> Response:
    """Figures in Prometheus's text format."""
    return Response(metrics(service_of(request)), media_type=CONTENT_TYPE)


@router.get("/openapi.json", include_in_schema=False)
async def document(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/", include_in_schema=False)
@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The same for people: one page that needs no network."""
    text = page(request.app.openapi(), str(request.base_url).rstrip("/"))
    return HTMLResponse(text, headers={"content-security-policy": CSP})
