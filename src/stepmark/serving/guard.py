"""What stands before every route: keys, hosts, the size of a body, clients that disconnect, and the log.

A plain ASGI middleware, because only there the bytes of a body are seen as they come. While a route works, the connection is watched: when the client
disconnects, the route is cancelled, and what waits of it leaves the queue. Slow clients and headers are the business of a reverse proxy.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import traceback
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepmark.data.json_rows import parse_value
from stepmark.errors import InputError, UsageError
from stepmark.hosting import is_over
from stepmark.serving.errors import Refused, invalid, retry
from stepmark.serving.metrics import Metrics
from stepmark.serving.service import ARRIVED

_LARGE = 1 << 18
"""Bytes of a body from which reading it would hold up other requests."""

PUBLIC = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
"""Answered without a key: nothing in them is secret, and load balancers and browsers send none."""
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Counted, and not logged."""
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
    """What is sent for one request, and how far it is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.finished = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
        else:
            self.finished = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Send a refusal, if nothing has been sent."""
        if self.started:
            return
        headers = {"content-type": "application/json", **(refused.headers or {})}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refused.status_code, "headers": raw})
        await self({"type": "http.response.body", "body": refused.body})


@final
class Guard:
    """The middleware.

    Args:
        app: what is guarded.
        metrics: where requests are counted, with the service.
        keys: whose requests are answered; None: everybody's.
        hosts: what the Host header may be, without a port; None: anything. Without keys, a page of another site could otherwise have its name point
            to this machine and ask from a browser here.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, *, keys: Keys | None = None, hosts: frozenset[str] | None = None
    ) -> None:
        self.app, self.metrics, self.service = app, metrics, metrics.service
        self._keys, self._hosts = keys, hosts
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        service, metrics, began = self.service, self.metrics, time.monotonic()
        scope[ARRIVED] = service.clock()
        reply = _Reply(send)
        metrics.open.inc()
        try:
            await self._serve(scope, receive, reply)
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
            metrics.add(_route(scope), _method(scope), reply.status, seconds)
            if service.log_requests and scope["path"] not in PROBES:
                service.log(_log_line(scope, reply.status, seconds))

    async def _serve(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            # Of two keys, two hosts or two lengths neither can be trusted.
            headers[name] = value if name not in headers else b","
        self._admit(scope, headers)
        if scope["method"] != "POST":
            await self.app(scope, receive, reply)
            return
        try:
            self.service.check_open()
            body = await self._body(headers, receive)
            if body:
                _check_content(headers)
                # As files are read, and unlike FastAPI's reader: no key twice, no half of a surrogate pair.
                if len(body) > _LARGE:
                    await asyncio.to_thread(parse_value, body.decode())
                else:
                    parse_value(body.decode())
        except InputError as error:
            raise invalid(error.message, field=error.field) from None
        except UnicodeDecodeError as error:
            raise invalid(f"expected JSON in UTF-8: {error}") from None
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

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        most = self.service.settings.max_body
        too_large = Refused(
            "too_large", f"expected at most {most} bytes, found more; send less at once (`max_body_mb`)"
        )
        if is_over(headers.get(b"content-length"), most):
            raise too_large
        body = bytearray()
        try:
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
                    busy = "too many large requests arrive at once; try again"
                    raise Refused("busy", busy, headers=retry(1.0))
                if not message.get("more_body", False):
                    return bytes(body)
        finally:
            self._held -= len(body)

    async def _watched(self, scope: Scope, body: bytes, receive: Receive, reply: _Reply) -> None:
        """Run the app, and cancel it if the client disconnects first."""
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            if not waiting:
                await asyncio.Event().wait()  # the guard watches for the disconnect
            return waiting.pop()

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
    """Refuse a body that is not plain JSON: unpacked, a small one could have any size; without the type, browsers send it from any site's page."""
    packed = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if packed != "identity" or kind != "application/json":
        raise Refused(
            "unsupported_media_type",
            f"expected Content-Type: application/json and no Content-Encoding, found {kind[:80]!r} and {packed[:80]!r}; with curl: "
            "-H 'Content-Type: application/json'",
        )


def _method(scope: Scope) -> str:
    """The method as a label of metrics, of which clients must not make new ones."""
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH") else "other"


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)  # set by the router
    return path if isinstance(path, str) else "other"


def _log_line(scope: Scope, status: int, seconds: float) -> str:
    path = _route(scope)  # a session's id is its key
    if path == "other":
        path = "".join(c if c.isprintable() else "?" for c in scope["path"][:200])
    client = scope.get("client")
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    who = f"{client[0] if client else '-'} {scope.get('stepmark.key', '-')}"
    return f"{now}Z {who} {_method(scope)} {path} {status} {1000 * seconds:.1f} ms"
