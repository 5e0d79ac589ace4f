"""What the server answers when it does not do what was asked."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException


class Refused(HTTPException):  # FastAPI lets these pass where it reads bodies
    """A request that is refused: its status and what the answer says.

    Args:
        status: 400 malformed, 401 no session, 403 not allowed, 404 not there, 409 another version, 413 too large, 429 too often,
            503 not stored.
        error: what was expected, what was found, what to do.
        field: the field that it is about.
        headers: more headers of the answer.
        more: what else the answer's body holds.
    """

    def __init__(
        self,
        status: int,
        error: str,
        *,
        field: str | None = None,
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(status, error, headers)
        self.body: dict[str, Any] = {
            "error": error,
            **({} if field is None else {"field": field}),
            **(more or {}),
        }
