"""An answer on its way: the headers of every answer, and an end to waiting for a client that does not read it.

A server hands an answer to the connection, which keeps what the client has not read. Left alone, it would keep it for as long as the client
likes. So an answer goes out in pieces, and each of them, the last one too, has to be through within a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol, final, runtime_checkable

from stepmark.serving.refusals import Refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

HEADERS: Headers = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
PIECE = 1 << 16
"""Bytes of an answer that are handed over at a time."""
_CSP = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_MORE: Message = {"type": "http.response.body", "body": b"", "more_body": True}


_NOTICED = 1.0
"""Seconds within which a server notices the end of a connection: a turn of its loop."""


class GoneError(Exception):
    """Nobody is there to be answered."""


@runtime_checkable
class Connection(Protocol):
    """What is used of a connection; an `asyncio.Transport` is one."""

    def abort(self) -> None:
        """End it at once, with what it still holds."""

    def is_closing(self) -> bool:
        """Whether it has ended, or is about to."""

    def get_write_buffer_size(self) -> int:
        """Bytes that it holds."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From how many on it asks to wait, and until how few."""


@final
class Answer:
    """What is sent for one request, and how far it is.

    Args:
        send: the server's.
        scope: the request's.
        timeout: seconds that each piece may take to be through.
        headers: beside `HEADERS`.
    """

    def __init__(self, send: Send, scope: Scope, *, timeout: float, headers: Headers = ()) -> None:
        self._send, self._timeout, self._headers = send, timeout, headers
        self._head = scope["method"] == "HEAD"
        self._connection = _connection(send)
        self.started = self.finished = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        """Send a part of it.

        Raises:
            GoneError: the client did not read it in time; the connection is ended.
        """
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = list(message.get("headers", ()))
            # A page says itself what it may load.
            own = any(name == b"content-security-policy" for name, _ in headers)
            headers += [*HEADERS, *self._headers, *(() if own else (_CSP,))]
            await self._pass({**message, "headers": headers})
            return
        body: bytes = message.get("body", b"")
        for start in range(0, len(body), PIECE):
            await self._pass({**_MORE, "body": body[start : start + PIECE]})
        if message.get("more_body", False):
            return
        if self._connection is not None and not self._connection.is_closing() and self._holds():
            # After the end of an answer nobody waits for the client any more: what is left goes before.
            self._connection.set_write_buffer_limits(high=0)
            await self._pass(_MORE)
        self.finished = True
        await self._pass({**_MORE, "more_body": False})

    async def refuse(self, refused: Refused) -> None:
        """Send a refusal, if nothing has been sent.

        Raises:
            GoneError: as above.
        """
        if self.started:
            return
        body = refused.body
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **(refused.headers or {}),
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refused.status_code, "headers": raw})
        await self({"type": "http.response.body", "body": b"" if self._head else body})

    def _holds(self) -> bool:
        """Whether something of it has not left this process; where that cannot be seen, it may be."""
        return self._connection is None or self._connection.get_write_buffer_size() > 0

    async def _pass(self, message: Message) -> None:
        if not self._holds():  # then nothing is to be waited for, and a clock would only cost time
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(message)
        except TimeoutError:
            if self._connection is not None:
                self._connection.abort()
                # Passed over as soon as the server has noticed; before, it would complain of an answer without an end.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_NOTICED):
                        await self._send(message)
            raise GoneError from None


def _connection(send: Send) -> Connection | None:
    """The connection behind uvicorn's `send`, which is a method of what holds it; None behind any other.

    ASGI has no word for it: a server that is told of a failure closes the connection, and with that goes on waiting for the client.
    """
    found = getattr(getattr(send, "__self__", None), "transport", None)
    # Not `asyncio.Transport`: uvloop's is none.
    return found if isinstance(found, Connection) else None
