"""What stands before every route: hosts, keys, sizes, slow bodies, clients that went away, and the headers of every answer.

A plain ASGI middleware, so that it costs microseconds and sees the bytes as they come. The body is read here, whole, within its limits of
size and time; routes have it at once. While a route works, the connection is watched: when the client goes away, the route is
cancelled, and what waits of it leaves the queue.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, final

from stepmark.serving.refusals import MOST_HEADERS, Refused, headers_too_large, retry
from stepmark.serving.routing import ARRIVED
from stepmark.serving.sending import Answer, GoneError, Message, Scope, Send

if TYPE_CHECKING:
    from stepmark.serving.keys import Keys
    from stepmark.serving.service import Service

Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUBLIC = frozenset({"/", "/health", "/ready", "/docs", "/openapi.json"})
"""Answered without a key: they say nothing that is secret, and a balancer and a browser have none."""
BODIES_AT_ONCE = 16
"""Bodies of the largest size that may be in memory while they arrive; more are sent away with 429."""
GONE = 499
"""What is counted and logged where the client went away before its answer, or did not read it."""
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds by whatever watches a server; counted, and not logged."""

_CLOSE = {"connection": "close"}


@final
class Guard:
    """The middleware.

    Args:
        app: what is guarded.
        service: what it serves.
        keys: whose requests are answered; None: everybody's.
        hosts: what the Host header may be, without a port; None: anything. Where anybody may ask, pages of other sites could: in a
            browser on this machine, by a name that was bent to this address.
    """

    def __init__(
        self, app: App, service: Service, *, keys: Keys | None = None, hosts: frozenset[str] | None = None
    ) -> None:
        self.app, self.service = app, service
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
        traffic, began = self.service.traffic, time.monotonic()
        scope[ARRIVED] = self.service.clock()
        # HEAD is GET; the server itself leaves the body out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = Answer(send, scope, timeout=self.service.settings.write_timeout)
        traffic.open += 1
        try:
            try:
                await self._serve(inner, receive, answer)
            except Refused as refused:
                await answer.refuse(refused)
        except GoneError:
            answer.status = GONE
        except asyncio.CancelledError:
            answer.status = GONE
            raise
        except Exception:
            # Already answered with 500 by the app, whose handler cannot tell the operator.
            self.service.log("".join(traceback.format_exc()).rstrip())
            with suppress(GoneError):
                await answer.refuse(Refused("failed", "the server failed at this request; its log says why"))
        finally:
            traffic.open -= 1
            seconds = time.monotonic() - began
            route = _route(inner)
            traffic.add(route, _method(scope), answer.status, seconds)
            if self.service.log_requests and inner["path"] not in PROBES:
                self.service.log(_log_line(inner, _method(scope), answer.status, seconds))

    async def _serve(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        if _head_size(scope) > MOST_HEADERS:
            raise headers_too_large()
        headers = _headers(scope)
        self._admit(scope, headers)
        if scope["method"] in ("POST", "PUT", "PATCH"):
            try:
                self.service.need()
                body = await self._body(headers, receive)
                if not body and b"upgrade" in headers and headers.get(b"content-length") != b"0":
                    # Of a request that came in pieces; see `heads`.
                    raise Refused(
                        "invalid_request",
                        "expected a request in HTTP/1.1, found one with the header Upgrade; leave that out (curl without --http2, "
                        "Java's HttpClient with version(HTTP_1_1))",
                    )
            except Refused as refused:
                # The rest of the body is not read, so nothing else can come over this connection.
                refused.headers = {**(refused.headers or {}), **_CLOSE}
                raise
            await self._watched(scope, body, receive, answer)
        else:
            await self.app(scope, receive, answer)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path: str = scope["path"]
        if self._keys is not None:
            if path in PUBLIC:
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
        if self._hosts is not None and _bare(host) not in self._hosts:
            raise Refused(
                "forbidden",
                f"expected a request to this machine's own name, found one to {host[:80]!r}; behind a proxy, start the server with "
                "`keys` or `open`",
                headers=_CLOSE,
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        site = headers.get(b"sec-fetch-site")
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and (
            site in (b"cross-site", b"same-site") or (origin and origin.partition("://")[2] != host)
        ):
            raise Refused("forbidden", "this request comes from another site's page", headers=_CLOSE)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        settings = self.service.settings
        most = settings.max_body
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > most):
            raise _too_large(most)
        parts: list[bytes] = []
        taken = 0
        try:
            async with asyncio.timeout(settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise GoneError
                    part = message.get("body", b"")
                    taken += len(part)
                    self._held += len(part)
                    parts.append(part)
                    if taken > most:
                        raise _too_large(most)
                    if self._held > BODIES_AT_ONCE * most:
                        raise Refused(
                            "busy", "too many large requests arrive at once; try again", headers=retry(1.0)
                        )
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(
                "slow_body",
                f"the body did not arrive within {settings.body_timeout:g} s (`body_timeout`); {taken} bytes did",
            ) from None
        finally:
            self._held -= taken

    async def _watched(self, scope: Scope, body: bytes, receive: Receive, answer: Answer) -> None:
        """Run the app, and cancel it if the client goes away first."""
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # who asks for more waits for the end, which the guard looks for
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        work = asyncio.ensure_future(self.app(scope, replay, answer))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not work.done() and not answer.finished:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                if not answer.finished:
                    answer.status = GONE
                return
            await work
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _head_size(scope: Scope) -> int:
    """Bytes of a request's address and headers, as far as they say something."""
    address = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    return address + sum(len(name) + len(value) for name, value in scope["headers"])


def _headers(scope: Scope) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        # Two keys, two hosts, two lengths: neither can be believed.
        found[name] = value if name not in found else b","
    return found


def _too_large(most: int) -> Refused:
    return Refused(
        "too_large", f"expected at most {most} bytes, found more; send less at once (`max_body_mb`)"
    )


def _bare(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH") else "other"


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)  # there once the router has found it
    return path if isinstance(path, str) else "other"


def _log_line(scope: Scope, method: str, status: int, seconds: float) -> str:
    path = _route(scope)  # a session's id is its key
    if path == "other":
        # What anybody may write into a log.
        path = "".join(c if c.isprintable() else "?" for c in scope["path"][:200])
    client = scope.get("client")
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    who = f"{client[0] if client else '-'} {scope.get('stepmark.key', '-')}"
    return f"{now}Z {who} {method} {path} {status} {1000 * seconds:.1f} ms"
