"""What every route needs: the service, the request's body and deadline, an answer, and its words in the OpenAPI document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from stepmark.serving.refusals import TYPES, Refused, read_body
from stepmark.serving.wire import ErrorAnswer

if TYPE_CHECKING:
    from stepmark.serving.service import Live, Service

Body = TypeVar("Body", bound=BaseModel)

MODELS: dict[type[BaseModel], Literal["validation", "serialization"]] = {}
"""Models of bodies and answers, for the OpenAPI document: routes read and write them themselves, so FastAPI does not know them."""

ARRIVED = "stepmark.arrived"
"""The scope's key for when the request arrived, on the service's clock; the guard sets it."""

_ALWAYS = (401, 403)
_WITH_BODY = (400, 408, 413, 415, 429, 503)


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    service: Service = request.app.state.service
    return service


async def body_of(request: Request, model: type[Body]) -> Body:
    """The request's body.

    Raises:
        Refused: 415 for another type of content or a packed one, 400 for a body that is not what it must be.
    """
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        # Unpacked, a small body could be as large as it likes.
        raise Refused(
            "unsupported_media_type",
            f"expected a body as it is, found Content-Encoding: {packed[:80]}; send it unpacked, without that header",
        )
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(
            "unsupported_media_type",
            f"expected Content-Type: application/json, found {kind[:80]!r}; with curl: -H 'Content-Type: application/json'",
        )
    return read_body(model, await request.body())


def deadline_of(request: Request, timeout: float | None) -> float:
    """When the answer is no longer wanted, on the service's clock.

    Args:
        timeout: what the request says; None for the server's own.
    """
    service = service_of(request)
    arrived: float = request.scope.get(ARRIVED) or service.clock()
    return arrived + (service.settings.timeout if timeout is None else timeout)


def check_model(live: Live, asked: str | None) -> None:
    """Refuse a request for another model.

    Raises:
        Refused: 404.
    """
    if asked is not None and asked != live.name:
        raise Refused("not_found", f"no model {asked[:80]!r} answers here; {live.name!r} does", field="model")


def answer(data: Any, *, status: int = 200) -> Response:
    """A JSON answer.

    Raises:
        ValueError: NaN or an infinity, which JSON has no number for; no answer has any.
    """
    body = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status_code=status, media_type="application/json")


@final
class InOrder(GenerateJsonSchema):
    """Schemas whose examples have their fields as they were written, not by the alphabet."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        """As it is."""
        del parent_key
        return value


def examples_of(model: type[BaseModel]) -> list[Any]:
    """The examples that a model of a body or an answer has."""
    found: list[Any] = model.model_json_schema(schema_generator=InOrder).get("examples", [])
    return found


def described(
    result: type[BaseModel] | None,
    *errors: int,
    body: type[BaseModel] | None = None,
    path: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What a route tells FastAPI for the OpenAPI document.

    Args:
        result: the answer of status 200; None for text.
        errors: statuses that it may have beside those of every route.
        body: the request's body.
        path: parameters in the path, and what they are.
    """
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if result is not None:
        content = _content(result, "serialization")
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", "content": content}}
    for status in sorted({*_ALWAYS, *errors, *(_WITH_BODY if body is not None else ())}):
        why = "; ".join(text for kind, (code, text) in TYPES.items() if code == status)
        responses[status] = {
            "description": why[:1].upper() + why[1:] + ".",
            "content": _content(ErrorAnswer, "serialization"),
        }
        if status in (429, 503):
            responses[status]["headers"] = {
                "Retry-After": {
                    "description": "Seconds to wait.",
                    "schema": {"type": "integer", "minimum": 1},
                }
            }
    extra: dict[str, Any] = {}
    if body is not None:
        examples = examples_of(body)
        content = _content(body, "validation")
        content["application/json"]["examples"] = {
            f"example-{number}": {"value": one} for number, one in enumerate(examples, start=1)
        }
        extra["requestBody"] = {"required": True, "content": content}
    if path:
        extra["parameters"] = [
            {"name": name, "in": "path", "required": True, "description": what, "schema": {"type": "string"}}
            for name, what in path.items()
        ]
    return {"responses": responses, "openapi_extra": extra}


def _content(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    MODELS[model] = mode
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
