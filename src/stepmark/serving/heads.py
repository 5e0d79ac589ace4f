"""What comes before a request's body: its first line and its headers, bounded in bytes and in time.

The parser below keeps the beginning of a line until its end comes, however much that is, and joins its pieces anew with each one that
arrives: a header of a hundred megabytes keeps everybody waiting for half a minute. Nor does it mind a connection that never says anything.
And where a client offers to speak HTTP/2 from here on (`Upgrade: h2c`, as Java's and `curl --http2` do), it passes over the body.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast, final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stepmark.serving.refusals import MOST_HEADERS, Refused, headers_too_large

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState


_UPGRADE = re.compile(rb"^upgrade(?=[ \t]*:)", re.I | re.M)
"""A header that says what else the client would speak: an offer, which a server may leave aside (RFC 9110, section 7.8)."""


def bounded(timeout: float) -> type[asyncio.Protocol]:
    """The protocol of a server, for `uvicorn.Config(http=…)`.

    Args:
        timeout: seconds that the headers of a request may take to arrive, counted from their first byte, and on a new connection from its
            beginning.
    """
    # It is only called, and a partial call is as good; by its type, it would have to be a class.
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, timeout=timeout))


@final
class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, and what has no end is refused: by an answer, or where another one is on its way, by ending the connection.

    Args:
        config: uvicorn's.
        server_state: uvicorn's.
        app_state: uvicorn's.
        _loop: uvicorn's.
        timeout: see `bounded`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        timeout: float,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timeout = timeout
        self._unused = 0
        """Bytes of which the parser has made nothing yet: of a header, of a chunk's first line, of what follows the last chunk."""
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first request has to come."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless too many have come to nothing."""
        if self._between and self._waiting is None:
            self._wait()
        if self._between and not self._unused:
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"x-offered", head) + end + rest
        self._unused += len(data)
        super().data_received(data)
        if self._unused > MOST_HEADERS and not self.transport.is_closing():
            self._refuse(headers_too_large())

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the words of every other refusal."""
        self._refuse(Refused("invalid_request", f"expected a request in HTTP/1.1, found none: {msg}"))

    def on_headers_complete(self) -> None:
        """All headers are there."""
        self._unused = 0
        self._arrived()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        self._unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of a request, which may have been answered before: then the rest of it was no beginning of another one."""
        self._unused = 0
        self._arrived()
        super().on_message_complete()

    @property
    def _between(self) -> bool:
        """Whether no request is being served."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self._timeout, self._too_slow)

    def _arrived(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._waiting = None
        if self.transport.is_closing():
            return
        if not self._unused:
            self.transport.close()
            return
        self._refuse(
            Refused(
                "slow_body",
                f"the request's headers did not arrive within {self._timeout:g} s (`body_timeout`)",
            )
        )

    def _refuse(self, refused: Refused) -> None:
        self._arrived()
        if not self._between:
            self.transport.abort()
            return
        status, body = HTTPStatus(refused.status_code), refused.body
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
