"""What the server answers when it does not do what was asked, and how a body is read so that one bad field gives one clear error."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from stepmark.errors import InputError, MarkerInTextError, TooLongError
from stepmark.serving.jobs import SessionFullError
from stepmark.store import json_type

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Body = TypeVar("Body", bound=BaseModel)

TYPES: dict[str, tuple[int, str]] = {
    "invalid_request": (400, "a field is missing, unknown, or not what it must be; `field` names it"),
    "input": (400, "a problem or step cannot be graded: it is blank, say"),
    "marker_in_text": (400, "a problem or step holds a marker or control token of the PRM"),
    "too_long": (400, "a solution has more tokens than the PRM reads"),
    "session_full": (
        400,
        "the session holds as much as it may (`session_nodes`, `session_memory_mb`); release some",
    ),
    "unauthorized": (401, "no key in `Authorization: Bearer KEY`, or one that is not known"),
    "forbidden": (403, "the request comes from another site's page, or was sent to another host's name"),
    "not_found": (404, "no such address, model or session; a session may have expired"),
    "method_not_allowed": (405, "the address takes other methods, which the header Allow names"),
    "slow_body": (408, "the headers or the body did not arrive in time (`body_timeout`)"),
    "too_large": (413, "more bytes, solutions, steps or tokens than one request may have"),
    "unsupported_media_type": (415, "a body that is not application/json, or is packed (gzip)"),
    "busy": (
        429,
        "the queue is full, or the sessions are too many or too large; come again after Retry-After seconds",
    ),
    "headers_too_large": (431, "the first line and the headers have more than 64 KiB"),
    "failed": (500, "the model failed at this request; the server's log says why"),
    "policy": (502, "the policy behind best-of-N as a model failed, or answered nonsense"),
    "policy_away": (
        503,
        "the policy behind best-of-N as a model cannot be reached, or is full; come again after Retry-After seconds",
    ),
    "unavailable": (
        503,
        "the model is loading, or the server shuts down; come again after Retry-After seconds",
    ),
    "deadline": (504, "the answer was not there in time (`timeout` of the request, or of the server)"),
}
"""Every `type` of an error: its status, and when it is given. Those of status 400 also stand in single results."""


MOST_HEADERS = 1 << 16
"""Bytes that a request's first line and headers may have."""


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
        super().__init__(TYPES[kind][0], message, headers)
        self.error = error_data(kind, message, field=field, where=where)

    @property
    def body(self) -> bytes:
        """The answer's body."""
        return json.dumps({"error": self.error}).encode()


def headers_too_large() -> Refused:
    """A request whose headers are."""
    return Refused(
        "headers_too_large",
        f"expected a first line and headers of at most {MOST_HEADERS} bytes, found more; what is asked belongs into the body",
        headers={"connection": "close"},
    )


def error_data(
    kind: str, message: str, *, field: str | None = None, where: str | None = None
) -> dict[str, Any]:
    """An `ErrorBody` as plain data."""
    assert kind in TYPES, kind
    more = {"field": field, "where": where}
    return {
        "type": kind,
        "message": message,
        **{name: value for name, value in more.items() if value is not None},
    }


def input_error_data(error: InputError, *, at: str | None = None) -> dict[str, Any]:
    """An error of the PRM or of the reader of solutions.

    Args:
        error: it.
        at: where its fields stand in the request: "solutions.3".
    """
    kind = "input"
    if isinstance(error, MarkerInTextError):
        kind = "marker_in_text"
    elif isinstance(error, TooLongError):
        kind = "too_long"
    elif isinstance(error, SessionFullError):
        kind = "session_full"
    inside = re.sub(r"\[(\d+)\]", r".\1", error.field or "")
    field = ".".join(part for part in (at, inside) if part) or None
    return error_data(kind, error.message, field=field, where=error.where or None)


def retry(seconds: float) -> dict[str, str]:
    """The header that says when to come again: whole seconds, at least 1."""
    return {"retry-after": str(max(1, round(seconds + 0.499)))}


def read_body(model: type[Body], body: bytes) -> Body:
    """A request's body, read strictly.

    Raises:
        Refused: no JSON in UTF-8, no object, a key that stands twice, or a field that is not what it must be: 400, with the field.
    """
    try:
        read = model.model_validate_json(body)
    except ValidationError as error:
        # By JSON's own order a misspelt field would be reported as a missing one.
        errors = error.errors(include_url=False, include_context=False)
        first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
        raise _refused(model, first, body) from None
    if (twice := _key_twice(body)) is not None:
        raise Refused(
            "invalid_request", "the key stands twice in one object; expected once", field=".".join(twice)
        )
    return read


class _TwiceError(Exception):
    """A key stands twice."""


def _key_twice(body: bytes) -> list[str] | None:
    """Where a key stands twice in one object, of which the parser has taken the last; None: nowhere."""

    def count(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) != len(pairs):
            raise _TwiceError

    text = body.decode()
    try:
        json.loads(text, object_pairs_hook=count, parse_int=str, parse_float=str)
    except _TwiceError:
        return _place(json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str))
    return None


def _place(value: Any) -> list[str] | None:
    """The same in a value whose objects are tuples of pairs."""
    if isinstance(value, tuple):
        seen: set[str] = set()
        for key, inside in value:
            if key in seen:
                return [key]
            seen.add(key)
            if (found := _place(inside)) is not None:
                return [key, *found]
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            if (found := _place(inside)) is not None:
                return [str(index), *found]
    return None


def _refused(model: type[BaseModel], error: ErrorDetails, body: bytes) -> Refused:
    kind, place = error["type"], ".".join(map(str, error["loc"])) or None
    if kind == "json_invalid":
        if not body.strip():
            return Refused(
                "invalid_request", f"expected a JSON object ({model.__name__}), found an empty body"
            )
        return Refused(
            "invalid_request", f"expected JSON in UTF-8: {error['msg'].removeprefix('Invalid JSON: ')}"
        )
    if kind == "extra_forbidden":
        known = _fields(model, error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return Refused("invalid_request", f"unknown field.{hint} Known: {', '.join(known)}", field=place)
    if kind == "missing":
        return Refused("invalid_request", "expected this field, found none", field=place)
    expected = _EXPECTED.get(kind, error["msg"].removeprefix("Input should be "))
    expected = expected.replace("less than or equal to", "at most")
    return Refused("invalid_request", f"expected {expected}, found {_shown(error['input'])}", field=place)


_EXPECTED = {
    "string_type": "a string",
    "string_pattern_mismatch": "a text that is not blank",
    "list_type": "a list",
    "too_short": "at least one entry",
    "model_type": "an object",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "greater_than": "more than 0",
    "greater_than_equal": "0 or more",
}
"""What pydantic's kinds of errors expect, in our words; bounds from below are 0 wherever there are any."""


def _fields(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The fields of the object that stands at a place of a request."""
    from typing import get_args

    for part in place:
        if isinstance(part, int):
            continue
        waiting: list[Any] = [model.model_fields[part].annotation]
        while waiting:
            one = waiting.pop()
            if isinstance(one, type) and issubclass(one, BaseModel):
                model = one
                break
            waiting.extend(get_args(one))
    return list(model.model_fields)


def _shown(value: Any) -> str:
    """A value as an error names it: its kind, and itself where that is short."""
    if isinstance(value, bool) or value is None:
        return json_type(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of many digits"
    if value == []:
        return "an empty list"
    if isinstance(value, float) or (isinstance(value, str) and len(value) <= 40):
        return repr(value)
    return json_type(value)
