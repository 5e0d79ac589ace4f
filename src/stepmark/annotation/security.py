"""What stands before every route: host, size, session, forged requests, rates, and the headers of every answer.

A plain ASGI middleware: it costs microseconds, and nothing behind it needs to remember any of this. Only what is listed in `PUBLIC` is served
without a session; which role a route needs is declared beside the route (`routes.need`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepmark.annotation.accounts import Refused

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Account, Accounts, Session
    from stepmark.annotation.project import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Hot = Callable[["Account", Scope, bytes], Awaitable[bytes]]
"""Gives the body of a JSON answer to an account's request with this body."""

COOKIE = "stepmark_session"
PUBLIC = frozenset({"/", "/join", "/health", "/favicon.ico", "/api/join", "/api/login"})
"""Served without a session; so is all under /static/."""
UPLOADS = "/api/admin/items"
"""The one path whose body may be as large as `Limits.upload_bytes`."""
MOST_ADDRESSES = 50_000

CSP = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")
_HOT_HEADERS = ((b"content-type", b"application/json"), HEADERS[0], HEADERS[1], _NO_STORE)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where the server is reached."""

    hosts: frozenset[str]
    """What the Host header may be, with the port unless it is the scheme's own. A page of a name that was bent to this address has another."""
    link: str
    """What links begin with: "http://127.0.0.1:8010"."""

    @property
    def secure(self) -> bool:
        """Whether browsers reach it by https, so that the cookie is kept to that."""
        return self.link.startswith("https://")


class Bucket:
    """A token bucket: a rate that may be exceeded for a while."""

    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate, self._most, self._left, self._at = rate, most, most, now

    def wait(self, now: float) -> float:
        """Seconds until there is one to take; 0 now."""
        self._left = min(self._most, self._left + max(now - self._at, 0.0) * self._rate)
        self._at = now
        return 0.0 if self._left >= 1.0 else (1.0 - self._left) / self._rate

    def take(self, now: float) -> float:
        """The same, and takes it if there is one."""
        wait = self.wait(now)
        if wait == 0.0:
            self._left -= 1.0
        return wait


class Buckets:
    """Token buckets by name; the oldest are forgotten when there are very many."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate, self._most = rate, most
        self._buckets: dict[Any, Bucket] = {}

    def take(self, name: Any, now: float) -> None:
        """Let one through.

        Raises:
            Refused: 429, with Retry-After.
        """
        if (wait := self._bucket(name, now).take(now)) > 0:
            raise _too_often(wait)

    def look(self, name: Any, now: float) -> None:
        """Whether one would be let through.

        Raises:
            Refused: 429, with Retry-After.
        """
        if (wait := self._bucket(name, now).wait(now)) > 0:
            raise _too_often(wait)

    def _bucket(self, name: Any, now: float) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= MOST_ADDRESSES:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[name] = Bucket(self._rate, self._most, now)
        return bucket


def _too_often(wait: float) -> Refused:
    seconds = int(wait) + 1
    return Refused(429, f"too many requests; try again in {seconds} s", headers={"retry-after": str(seconds)})


class Guard:
    """The middleware.

    Args:
        app: what is guarded.
        accounts: whose sessions count.
        limits: sizes and rates.
        site: where the server is reached.
        clock: gives Unix time.
        hot: (method, path) of the requests that are answered here, without the routing of `app`, which costs more than all else together.
            They need a session.
    """

    def __init__(
        self,
        app: App,
        *,
        accounts: Accounts,
        limits: Limits,
        site: Site,
        clock: Callable[[], float],
        hot: Mapping[tuple[str, str], Hot] | None = None,
    ) -> None:
        self._app = app
        self._hot = hot or {}
        self._accounts = accounts
        self._limits = limits
        self._hosts = frozenset(host.encode("latin-1") for host in site.hosts)
        self._origins = frozenset(
            f"{scheme}://{host}".encode("latin-1") for host in site.hosts for scheme in ("http", "https")
        )
        self._clock = clock
        rate = limits.requests_per_second
        self._rates = Buckets(rate, rate * 4)
        self._strangers = Buckets(rate, rate * 4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        started = False
        path: str = scope["path"]
        extra = (*HEADERS, _NO_STORE) if path.startswith("/api/") else HEADERS

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            limit = self._admit(scope, path)
            hot = self._hot.get((scope["method"], path))
            if hot is not None:
                account = self._accounts.by_id[scope["stepmark.session"].account]
                body = await hot(account, scope, await _body(receive, limit))
                head = [*_HOT_HEADERS, (b"content-length", b"%d" % len(body))]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                await send({"type": "http.response.body", "body": body})
                return
            await self._app(scope, _limited(receive, limit), sending)
        except Refused as refused:
            if started:
                raise
            await answer_refusal(sending, refused)

    def _admit(self, scope: Scope, path: str) -> int:
        """Check what the headers tell and put the session into the scope. Gives how many bytes the body may have."""
        host = cookie = origin = csrf = length = site = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value if host is None else b""  # two are none
            elif name == b"cookie":
                cookie = value if cookie is None else cookie + b"; " + value
            elif name == b"origin":
                origin = value
            elif name == b"x-csrf-token":
                csrf = value
            elif name == b"content-length":
                length = value
            elif name == b"sec-fetch-site":
                site = value
        if host not in self._hosts:
            raise Refused(
                400, "expected a Host header with this server's address; open the link that was printed"
            )
        session = None if cookie is None else self._session(cookie)
        scope["stepmark.session"] = session
        now = self._clock()
        if session is None:
            if path.startswith("/api/"):
                client = scope.get("client")
                self._strangers.take(client[0] if client else None, now)
            if path not in PUBLIC and not path.startswith("/static/"):
                raise Refused(401, "expected a session: log in with your token, or open your invitation link")
        else:
            self._rates.take(session.account, now)
        if scope["method"] not in _SAFE:
            if (origin is not None and origin not in self._origins) or site in (b"cross-site", b"same-site"):
                raise Refused(403, "this request comes from another site's page")
            # Logging in and joining have no session to be forged; their answer is of no use to another site.
            if path not in PUBLIC and (
                session is None or csrf is None or not compare_digest(csrf, session.csrf.encode())
            ):
                raise Refused(
                    403, "expected the header X-CSRF-Token with the value that /api/me gives; reload the page"
                )
        limit = self._limits.upload_bytes if path == UPLOADS else self._limits.body_bytes
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > limit):
            raise too_large(limit)
        return limit

    def _session(self, cookie: bytes) -> Session | None:
        text = cookie.decode("latin-1")
        prefix = f"{COOKIE}="
        if text.startswith(prefix) and ";" not in text:
            return self._accounts.session(text[len(prefix) :])
        try:
            found = SimpleCookie(text).get(COOKIE)
        except CookieError:
            return None
        return None if found is None else self._accounts.session(found.value)


def too_large(limit: int) -> Refused:
    """The body is over its limit."""
    return Refused(413, f"expected at most {limit} bytes, found more; send less at once")


def _limited(receive: Receive, limit: int) -> Receive:
    # What a sender says of the length need not be so.
    taken = 0

    async def receiving() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > limit:
                raise too_large(limit)
        return message

    return receiving


async def _body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    taken = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(400, "the connection was closed before the request was complete")
        part = message.get("body", b"")
        taken += len(part)
        if taken > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return b"".join((*parts, part)) if parts else part
        parts.append(part)


async def answer_refusal(send: Send, refused: Refused) -> None:
    """Send a refusal as JSON."""
    body = json.dumps(refused.body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in (refused.headers or {}).items()),
    ]
    await send({"type": "http.response.start", "status": refused.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def host_names(host: str, port: int, url: str | None) -> frozenset[str]:
    """What the Host header may be when the server listens on `host`:`port` and, if given, is reached at `url`."""
    names = {host, "localhost", "127.0.0.1", "[::1]"} if is_loopback(host) else {host}
    found = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    if url is not None:
        found.add(urlsplit(url).netloc)
    return frozenset(found)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    return host in ("127.0.0.1", "localhost", "::1", "[::1]")
