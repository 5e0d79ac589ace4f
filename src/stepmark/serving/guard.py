"""What stands before every route: keys, hosts, the size of a body and the time for it, clients that disconnect, and the log.

A plain ASGI middleware: only there the bytes of a body are seen as they come, and the connection while a route works. When the client
disconnects, the route is cancelled, and what waits of it leaves the queue. Slow headers and many connections are the business of a reverse proxy.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepmark.errors import InputError, UsageError
from stepmark.hosting import is_over
from stepmark.serving.errors import Refused
from stepmark.serving.service import Service
from stepmark.words import amount

PUBLIC = frozenset({"/", "/health", "/docs", "/openapi.json"})
"""Answered without a key: nothing in them is secret, and load balancers and browsers send none."""
PROBES = frozenset({"/health", "/metrics"})
"""Counted, and not logged."""
GONE = 499
"""The status that is counted and logged where the client disconnected before its answer."""
SHORTEST_KEY = 16
"""Characters of a key: a shorter one could be guessed."""
_CLOSE = {"connection": "close"}


@final
class Keys:
    """Who may ask; of the keys only digests are held.

    Args:
        keys: name: key.

    Raises:
        UsageError: no keys at all, or one that is too short, has white space or no ASCII, or is another one's too.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        if not keys:
            raise UsageError("expected at least one key, found none")
        self._digests: dict[bytes, str] = {}
        for name, key in keys.items():
            if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError(
                    f"the key of {name!r}: expected {SHORTEST_KEY} or more visible ASCII characters; make one with "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
            other = self._digests.setdefault(_digest(key.encode()), name)
            if other != name:
                raise UsageError(f"{other!r} and {name!r} have the same key: give each its own")

    @classmethod
    def read(cls, path: str | Path) -> Keys:
        """Keys of a file: a line each, NAME KEY; blank lines and those that begin with # are skipped.

        Raises:
            InputError: no such file, or a line that is no name and key; the key itself is never shown.
            UsageError: see the class.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin files with a mark
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(f"the file of keys cannot be read: {why}", where=str(path)) from None
        keys: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{path}:{number}"
            if len(words) != 2:
                raise InputError(f"expected NAME KEY, found {amount(len(words), 'word')}", where=where)
            if words[0] in keys:
                raise InputError(f"the name {words[0]!r} has a key already", where=where)
            keys[words[0]] = words[1]
        try:
            return cls(keys)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def name_of(self, header: bytes) -> str | None:
        """Whose key an Authorization header has; None for an unknown one. Takes as long for a wrong key as for a right one."""
        scheme, _, key = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        asked, name = _digest(key.strip()), None
        for digest, owner in self._digests.items():
            if compare_digest(digest, asked):
                name = owner
        return name


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@final
class Guard:
    """The middleware.

    Args:
        app: what is guarded.
        service: whose limits, log and metrics these are.
        keys: whose requests are answered; None: everybody's.
        hosts: what the Host header may be, without a port; None: anything. Without keys, a page of another site could otherwise have its name point
            to this machine and ask from a browser here.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: Service,
        keys: Keys | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app, self._service, self._keys, self._hosts = app, service, keys, hosts
        self._held = 0
        """Bytes of the bodies of all requests that are being received or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, began, status, who = self._service.metrics, time.monotonic(), GONE, "-"

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics.open.inc()
        try:
            try:
                who = self._admitted(scope)
                await self._served(scope, receive, sent)
            except Refused as refused:
                await refused.response(scope, receive, sent)
        except Exception:
            status = 500
            raise
        finally:
            metrics.open.dec()
            seconds, path = time.monotonic() - began, getattr(scope.get("route"), "path", None)
            # Clients must not make new labels.
            route = path if isinstance(path, str) else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "other"
            metrics.answers.labels(route, method, str(status)).inc()
            metrics.seconds.labels(route).observe(seconds)
            if self._service.log_requests and scope["path"] not in PROBES:
                shown = "".join(c if c.isprintable() else "?" for c in scope["path"][:200])
                client = scope["client"][0] if scope.get("client") else "-"
                now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
                self._service.log(f"{now}Z {client} {who} {method} {shown} {status} {1000 * seconds:.1f} ms")

    def _admitted(self, scope: Scope) -> str:
        """The name of the key, "-" for none.

        Raises:
            Refused: no known key, or another host's name.
        """
        # Of two keys or two hosts neither can be trusted.
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = value if name not in headers else b","
        if self._keys is not None and scope["path"] not in PUBLIC:
            who = self._keys.name_of(headers.get(b"authorization", b""))
            if who is None:
                raise Refused(
                    "unauthorized",
                    "expected the header Authorization: Bearer KEY with a key that this server knows",
                    headers={"www-authenticate": "Bearer", **_CLOSE},
                )
            return who
        host = headers.get(b"host", b"").decode("latin-1")
        name, colon, port = host.rpartition(":")
        bare = (name if colon and port.isdigit() else host).lower()
        if self._hosts is not None and bare not in self._hosts:
            raise Refused(
                "invalid_request",
                f"expected a request to this machine's own name, found one to {host[:80]!r}; behind a proxy, start the server with "
                "`keys` or `open`",
                headers=_CLOSE,
            )
        return "-"

    async def _served(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and cancel it if the client disconnects first."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            if await self._read(body, dict(scope["headers"]).get(b"content-length"), receive):
                await self._answered(scope, bytes(body), receive, send)
        finally:
            self._held -= len(body)

    async def _answered(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        finished = False

        async def sent(message: Message) -> None:
            nonlocal finished
            finished = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        work = asyncio.ensure_future(self._app(scope, messages.get, sent))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not finished:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                return
            await work
        finally:
            work.cancel()
            gone.cancel()

    async def _read(self, body: bytearray, length: bytes | None, receive: Receive) -> bool:
        """Read a request's body; False where the client disconnected.

        Raises:
            Refused: it is too large, or with all others too large, or does not come in time. The rest is not read, so the connection cannot be
                used again.
        """
        settings = self._service.settings
        too_long = Refused(
            "too_long",
            f"expected at most {settings.max_body} bytes, found more; send less at once (`max_body_mb`)",
            headers=_CLOSE,
        )
        if is_over(length, settings.max_body):
            raise too_long
        try:
            async with asyncio.timeout(settings.timeout):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return False
                    piece = message.get("body", b"")
                    body += piece
                    self._held += len(piece)
                    if len(body) > settings.max_body:
                        raise too_long
                    if self._held > settings.queue_mb * (1 << 20):
                        full = f"requests hold {settings.queue_mb:g} MB (`queue_mb`); try again later"
                        raise Refused("busy", full, retry_after=1.0, headers=_CLOSE)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            message_ = f"the body was not there within {settings.timeout:g} s"
            raise Refused("deadline", message_, headers=_CLOSE) from None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
