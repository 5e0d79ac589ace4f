"""What stands before every route: keys, hosts, the size and time of a body, clients that disconnect, the log, and the headers of every answer.

A plain ASGI middleware, so that it costs microseconds and sees the bytes as they come. While a route works, the connection is watched: when the client
disconnects, the route is cancelled, and what waits of it leaves the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from typing import Any, final

from stepmark.errors import InputError, UsageError
from stepmark.serving.errors import Refused, retry
from stepmark.serving.metrics import Metrics
from stepmark.serving.service import ARRIVED

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUBLIC = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
"""Answered without a key: nothing in them is secret, and load balancers and browsers send none."""
PAGES = frozenset({"/", "/docs"})
"""FastAPI's page of documentation, which loads its script from a content delivery network."""
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Counted, and not logged."""
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_CSP = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
BODIES_AT_ONCE = 16
"""Bodies of the largest size that may be in memory while they arrive; more are refused with 429."""
GONE = 499
"""The status that is counted and logged where the client disconnected before its answer."""
SHORTEST_KEY = 16
"""Characters of a key: a shorter one could be guessed."""
_CLOSE = {"connection": "close"}


class GoneError(Exception):
    """The client has disconnected."""


@final
class Keys:
    """Who may ask; of the keys only digests are held.

    Args:
        keys: name: key.

    Raises:
        UsageError: no keys at all, or one that is too short, has white space or no ASCII, or is another one's too.
    """

    def __init__(self, keys: dict[str, str]) -> None:
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
                count = f"{len(words)} word{'s' * (len(words) > 1)}"
                raise InputError(f"expected NAME KEY, found {count}", where=where)
            if words[0] in keys:
                raise InputError(f"the name {words[0]!r} has a key already", where=where)
            keys[words[0]] = words[1]
        try:
            return cls(keys)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def name_of(self, header: bytes | None) -> str | None:
        """Whose key an Authorization header has; None for an unknown one. Takes as long for a wrong key as for a right one."""
        scheme, _, key = (header or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        asked, name = _digest(key.strip()), None
        for digest, owner in self._digests.items():
            if compare_digest(digest, asked):
                name = owner
        return name


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class _Reply:
    """What is sent for one request: with the headers of every answer, and how far it is."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send, self._scope = send, scope
        self.started = self.finished = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            csp = () if self._scope["path"] in PAGES and self.status == 200 else (_CSP,)
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS, *csp]}
        else:
            self.finished = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Send a refusal, if nothing has been sent."""
        if self.started:
            return
        body = refused.body
        headers = {"content-type": "application/json", "content-length": str(len(body))} | dict(
            refused.headers or {}
        )
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refused.status_code, "headers": raw})
        await self({"type": "http.response.body", "body": b"" if self._scope["method"] == "HEAD" else body})


@final
class Guard:
    """The middleware.

    Args:
        app: what is guarded.
        metrics: where requests are counted, with the service.
        keys: whose requests are answered; None: everybody's.
        hosts: what the Host header may be, without a port; None: anything. Without keys, pages of other sites could otherwise send requests from a
            browser on this machine.
    """

    def __init__(
        self, app: App, metrics: Metrics, *, keys: Keys | None = None, hosts: frozenset[str] | None = None
    ) -> None:
        self.app, self.metrics, self.service = app, metrics, metrics.service
        self._keys, self._hosts = keys, hosts
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        service, metrics, began = self.service, self.metrics, time.monotonic()
        scope[ARRIVED] = service.clock()
        # HEAD is GET; uvicorn leaves the body out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        reply = _Reply(send, scope)
        metrics.open.inc()
        try:
            try:
                await self._serve(inner, receive, reply)
            except Refused as refused:
                await reply.refuse(refused)
        except GoneError:
            reply.status = GONE
        except asyncio.CancelledError:
            reply.status = GONE
            raise
        except Exception:
            # Already answered with 500 by the app.
            service.log(traceback.format_exc().rstrip())
            await reply.refuse(Refused("failed", "the server failed at this request; its log says why"))
        finally:
            metrics.open.dec()
            seconds = time.monotonic() - began
            metrics.add(_route(inner), _method(scope), reply.status, seconds)
            if service.log_requests and inner["path"] not in PROBES:
                service.log(_log_line(inner, _method(scope), reply.status, seconds))

    async def _serve(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            # Of two keys, two hosts or two lengths neither can be trusted.
            headers[name] = value if name not in headers else b","
        if b"content-type" not in headers:
            headers[b"content-type"] = b"application/json"
            scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]
        self._admit(scope, headers)
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            await self.app(scope, receive, reply)
            return
        try:
            self.service.need()
            _check_content(headers)
            body = await self._body(headers, receive)
        except Refused as refused:
            # The rest of the body is not read, so the connection cannot be used again.
            refused.headers = {**(refused.headers or {}), **_CLOSE}
            raise
        await self._watched(scope, body, receive, reply)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if self._keys is not None:
            if scope["path"] in PUBLIC:
                return
            name = self._keys.name_of(headers.get(b"authorization"))
            if name is None:
                raise Refused(
                    "unauthorized",
                    "expected the header Authorization: Bearer KEY with a key that this server knows",
                    headers={"www-authenticate": "Bearer", **_CLOSE},
                )
            scope["stepmark.key"] = name
            return
        host = headers.get(b"host", b"").decode("latin-1")
        name, colon, port = host.rpartition(":")
        bare = (name if colon and port.isdigit() else host).lower()
        if self._hosts is not None and bare not in self._hosts:
            raise Refused(
                "forbidden",
                f"expected a request to this machine's own name, found one to {host[:80]!r}; behind a proxy, start the server with "
                "`keys` or `open`",
                headers=_CLOSE,
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        other = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") or (
            origin and origin.partition("://")[2] != host
        )
        if other and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            raise Refused("forbidden", "this request comes from another site's page", headers=_CLOSE)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        settings = self.service.settings
        most = settings.max_body
        too_large = Refused(
            "too_large", f"expected at most {most} bytes, found more; send less at once (`max_body_mb`)"
        )
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > most):
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise GoneError
                    part = message.get("body", b"")
                    body += part
                    self._held += len(part)
                    if len(body) > most:
                        raise too_large
                    if self._held > BODIES_AT_ONCE * most:
                        raise Refused(
                            "busy", "too many large requests arrive at once; try again", headers=retry(1.0)
                        )
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refused(
                "slow_body",
                f"the body did not arrive within {settings.body_timeout:g} s (`body_timeout`); {len(body)} bytes did",
            ) from None
        finally:
            self._held -= len(body)

    async def _watched(self, scope: Scope, body: bytes, receive: Receive, reply: _Reply) -> None:
        """Run the app, and cancel it if the client disconnects first."""
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                await asyncio.Event().wait()  # the guard watches for the disconnect
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        work = asyncio.ensure_future(self.app(scope, replay, reply))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not work.done() and not reply.finished:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                if not reply.finished:
                    reply.status = GONE
                return
            await work
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_content(headers: dict[bytes, bytes]) -> None:
    """Refuse what is not plain JSON; unpacked, a small body could have any size."""
    packed = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if packed != "identity":
        raise Refused(
            "unsupported_media_type",
            f"expected a body as it is, found Content-Encoding: {packed[:80]}; send it unpacked, without that header",
        )
    kind = headers[b"content-type"].decode("latin-1").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(
            "unsupported_media_type",
            f"expected Content-Type: application/json, found {kind[:80]!r}; with curl: -H 'Content-Type: application/json'",
        )


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH") else "other"


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)  # set by the router
    return path if isinstance(path, str) else "other"


def _log_line(scope: Scope, method: str, status: int, seconds: float) -> str:
    path = _route(scope)  # a session's id is its key
    if path == "other":
        path = "".join(c if c.isprintable() else "?" for c in scope["path"][:200])
    client = scope.get("client")
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    who = f"{client[0] if client else '-'} {scope.get('stepmark.key', '-')}"
    return f"{now}Z {who} {method} {path} {status} {1000 * seconds:.1f} ms"
