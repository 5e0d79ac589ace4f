"""What stands before every route: host, body size, session, forged requests, and the headers of every answer.

A plain ASGI middleware: nothing behind it needs to remember any of this. Only what is listed in `PUBLIC` is served without a session; which role a
route needs is declared beside the route (`routes.need`). Rates and connections are the reverse proxy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepmark.annotation.accounts import RequestError

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Accounts, Session
    from stepmark.annotation.project import Limits

COOKIE = "stepmark_session"
PUBLIC = frozenset({"/", "/join", "/health", "/favicon.ico", "/api/join", "/api/login"})
"""Served without a session; so is all under /static/."""
UPLOADS = "/api/admin/items"
"""The one path whose body may be as large as `Limits.upload_bytes`."""

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where the server is reached."""

    hosts: frozenset[str]
    """What the Host header may be, with the port unless it is the scheme's own: a page of a rebound name has another."""
    link: str
    """What links begin with: "http://127.0.0.1:8010"."""

    @property
    def secure(self) -> bool:
        """Whether browsers reach it by https, so that the cookie is kept to that."""
        return self.link.startswith("https://")


class SecurityMiddleware:
    """Refuses what no route may see, and adds the security headers."""

    def __init__(self, app: ASGIApp, *, accounts: Accounts, limits: Limits, site: Site) -> None:
        self._app = app
        self._accounts = accounts
        self._limits = limits
        self._site = site
        self._origins = frozenset(f"{scheme}://{host}" for host in site.hosts for scheme in ("http", "https"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["cache-control"] = "no-store" if scope["path"].startswith("/api/") else "no-cache"
            await send(message)

        try:
            limit = self._check(scope)
            await self._app(scope, _limited(receive, limit), sending)
        except RequestError as error:
            if started:
                raise
            await JSONResponse(error.body, error.status_code, error.headers)(scope, receive, sending)

    def _check(self, scope: Scope) -> int:
        """Check the headers and put the session into the scope. Gives how many bytes the body may have."""
        headers, path = Headers(scope=scope), scope["path"]
        if len(headers.getlist("host")) != 1 or headers["host"] not in self._site.hosts:
            message = "expected a Host header with this server's address; open the link that was printed"
            raise RequestError(400, message)
        session = scope["stepmark.session"] = self._session(headers)
        public = path in PUBLIC or path.startswith("/static/")
        if session is None and not public:
            raise RequestError(
                401, "expected a session: log in with your token, or open your invitation link"
            )
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            if foreign or headers.get("origin", next(iter(self._origins))) not in self._origins:
                raise RequestError(403, "this request comes from another site's page")
            # Logging in and joining have no session to be forged; their answer is of no use to another site.
            csrf = headers.get("x-csrf-token", "").encode()
            if not public and (session is None or not compare_digest(csrf, session.csrf.encode())):
                raise RequestError(
                    403, "expected the header X-CSRF-Token with the value that /api/me gives; reload the page"
                )
        limit = self._limits.upload_bytes if path == UPLOADS else self._limits.body_bytes
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > limit:
            raise too_large(limit)
        return limit

    def _session(self, headers: Headers) -> Session | None:
        cookie = cookie_parser("; ".join(headers.getlist("cookie"))).get(COOKIE)
        return None if cookie is None else self._accounts.session(cookie)


def too_large(limit: int) -> RequestError:
    """The body is over its limit."""
    return RequestError(413, f"expected at most {limit} bytes, found more; send less at once")


def _limited(receive: Receive, limit: int) -> Receive:
    taken = 0  # the header of the length may be absent or wrong

    async def receiving() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise too_large(limit)
        return message

    return receiving


def host_names(host: str, port: int, url: str | None) -> frozenset[str]:
    """What the Host header may be when the server listens on `host`:`port` and, if given, is reached at `url`."""
    names = {host, "localhost", "127.0.0.1", "[::1]"} if is_loopback(host) else {host}
    hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    return frozenset(hosts if url is None else {*hosts, urlsplit(url).netloc})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    return host in ("127.0.0.1", "localhost", "::1", "[::1]")
