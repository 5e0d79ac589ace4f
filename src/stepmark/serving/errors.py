"""Every error that the server answers: its word, its status, and how a failure in the library or a bad field becomes one clear message."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException

from stepmark.data.json_rows import json_type
from stepmark.errors import InputError, MarkerInTextError, StepmarkError, TooLongError, UsageError
from stepmark.models.remote.wire import SessionFullError
from stepmark.serving.batcher import BusyError, DrainingError, LateError
from stepmark.serving.sessions import UnknownSessionError

TYPES: dict[str, int] = {
    "invalid_request": 400,
    "input": 400,
    "marker_in_text": 400,
    "too_long": 400,
    "session_full": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "unsupported_media_type": 415,
    "busy": 429,
    "failed": 500,
    "policy": 502,
    "policy_away": 503,
    "unavailable": 503,
    "deadline": 504,
}
"""Every `type` of an error, and its status; docs/serve.md says when. Those of status 400 also stand in single results."""


class Refused(HTTPException):
    """A request that is refused.

    Args:
        kind: one of `TYPES`.
        message: what was expected, what was found, what to do.
        field: the field that it is about.
        where: the caller's name of the solution that it is about.
        headers: more headers of the answer.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        field: str | None = None,
        where: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(TYPES[kind], message, headers)
        more = {"field": field, "where": where}
        self.error: dict[str, Any] = {"type": kind, "message": message}
        self.error |= {name: value for name, value in more.items() if value is not None}

    @property
    def body(self) -> bytes:
        """The answer's body."""
        return json.dumps({"error": self.error}).encode()


def invalid(message: str, field: str | None = None) -> Refused:
    """A request with a wrong field."""
    return Refused("invalid_request", message, field=field)


def retry(seconds: float) -> dict[str, str]:
    """The header Retry-After: whole seconds, at least 1."""
    return {"retry-after": str(max(1, round(seconds + 0.499)))}


def refused_input(error: InputError, *, at: str | None = None) -> Refused:
    """An error of the PRM or of the reader of solutions.

    Args:
        error: it.
        at: where its fields stand in the request: "solutions.3".
    """
    kinds = (
        (MarkerInTextError, "marker_in_text"),
        (TooLongError, "too_long"),
        (SessionFullError, "session_full"),
    )
    kind = next((kind for cls, kind in kinds if isinstance(error, cls)), "input")
    inside = re.sub(r"\[(\d+)\]", r".\1", error.field or "")
    field = ".".join(part for part in (at, inside) if part) or None
    return Refused(kind, error.message, field=field, where=error.where or None)


def refused(error: StepmarkError) -> Refused:
    """The answer to a failure in the library."""
    if isinstance(error, BusyError):
        return Refused("busy", f"{error}; try again later", headers=retry(error.retry_after))
    if isinstance(error, LateError):
        return Refused("deadline", str(error))
    if isinstance(error, DrainingError):
        return Refused("unavailable", str(error), headers={**retry(1.0), "connection": "close"})
    if isinstance(error, UnknownSessionError):
        return Refused("not_found", str(error))
    if isinstance(error, InputError):
        return refused_input(error)
    return Refused("invalid_request" if isinstance(error, UsageError) else "failed", str(error))


def refused_body(errors: Sequence[dict[str, Any]]) -> Refused:
    """The first error of a body, as pydantic reports them; an unknown key before a missing one, for it may be that one misspelt."""
    error = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    field = ".".join(map(str, error["loc"][1:])) or None
    if error["type"] == "missing":
        message = (
            "expected this field, found none" if field else "expected a JSON object, found an empty body"
        )
        return invalid(message, field)
    if error["type"] == "extra_forbidden":
        return invalid("unknown field; /docs lists those of each address", field)
    expected, value = error["msg"].removeprefix("Input should be "), error["input"]
    # Long values and texts of a request are not repeated.
    short = isinstance(value, float | bool) or (isinstance(value, str) and len(value) <= 40)
    return invalid(f"expected {expected}, found {repr(value) if short else json_type(value)}", field)
