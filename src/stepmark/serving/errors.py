"""Every error that the server answers: its type, its status, and how a failure in the library or a bad field becomes one clear message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from stepmark.data.json_rows import json_type
from stepmark.errors import InputError, MarkerInTextError, StepmarkError, TooLongError, UsageError

TYPES: dict[str, int] = {
    "invalid_request": 400,
    "marker_in_text": 400,
    "unauthorized": 401,
    "not_found": 404,
    "too_long": 413,
    "busy": 429,
    "failed": 500,
    "unavailable": 503,
    "deadline": 504,
}
"""Every `type` of an error, and its status; docs/serve.md#settings-of-the-server says when. `invalid_request`, `marker_in_text` and `too_long` also stand in
single results."""


class Refused(HTTPException):
    """A request that is refused.

    Args:
        kind: one of `TYPES`.
        message: what was expected, what was found, what to do.
        field: the field that it is about.
        where: the caller's name of the solution that it is about.
        retry_after: seconds after which the client should ask again.
        status: where it is another one than that of the type.
        headers: more headers of the answer.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        field: str | None = None,
        where: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        wait = {} if retry_after is None else {"retry-after": str(max(1, round(retry_after + 0.499)))}
        super().__init__(status or TYPES[kind], message, {**(headers or {}), **wait})
        more = {"field": field, "where": where}
        self.error: dict[str, Any] = {"type": kind, "message": message}
        self.error |= {name: value for name, value in more.items() if value is not None}

    @property
    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse({"error": self.error}, self.status_code, self.headers)


def invalid(message: str, field: str | None = None) -> Refused:
    """A request with a wrong field."""
    return Refused("invalid_request", message, field=field)


def refused_input(error: InputError, *, at: str | None = None) -> Refused:
    """An error of the PRM or of the reader of solutions; `at` is where its fields stand in the request: "solutions.3"."""
    kinds = ((MarkerInTextError, "marker_in_text"), (TooLongError, "too_long"))
    kind = next((kind for cls, kind in kinds if isinstance(error, cls)), "invalid_request")
    inside = re.sub(r"\[(\d+)\]", r".\1", error.field or "")
    field = ".".join(part for part in (at, inside) if part) or None
    return Refused(kind, error.message, field=field, where=error.where or None)


def refused(error: StepmarkError) -> Refused:
    """The answer to a failure in the library."""
    if isinstance(error, InputError):
        return refused_input(error)
    return Refused("invalid_request" if isinstance(error, UsageError) else "failed", str(error))


def refused_body(errors: Sequence[dict[str, Any]]) -> Refused:
    """The first error of a body, as pydantic reports them; an unknown key before a missing one, for it may be that one misspelt."""
    error = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    # Without the alternatives of a union, which pydantic names by their types.
    places = [str(part) for part in error["loc"][1:] if isinstance(part, int) or part.isidentifier()]
    field = ".".join(places) or None
    if error["type"] == "missing":
        return invalid("expected this field, found none" if field else "expected a JSON object", field)
    if error["type"] == "extra_forbidden":
        return invalid("unknown field; /docs lists those of each address", field)
    if error["type"] == "json_invalid":
        return invalid(f"expected JSON in UTF-8: {error['ctx']['error']}")
    expected, value = error["msg"].removeprefix("Input should be "), error["input"]
    # Long values and texts of a request are not repeated.
    short = isinstance(value, float | bool) or (isinstance(value, str) and len(value) <= 40)
    return invalid(f"expected {expected}, found {ascii(value) if short else json_type(value)}", field)
