"""What stands before every route: host, body size, session, forged requests, and the headers of every answer.

A plain ASGI middleware: nothing behind it needs to remember any of this. Only what is listed in `PUBLIC` is served without a session; which role a
route needs is declared beside the route (`routes.need`). Rates and connections are the reverse proxy's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from stepmark.annotation.accounts import RequestError
from stepmark.hosting import is_loopback, is_over

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Accounts, Session
    from stepmark.annotation.project import Limits

COOKIE = "stepmark_session"
PUBLIC = frozenset({"/", "/join", "/health", "/favicon.ico", "/api/join", "/api/login"})
"""Served without a session; so is all under /static/."""
UPLOADS = "/api/admin/items"
"""The one path whose body may be as large as `Limits.upload_bytes`."""

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


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
    """Refuses what no route may see, and adds the security headers.

    Requests in `direct`, by (method, path), go to their endpoint at once: every click is one of them, and the routing of the app costs more
    than all that they do. They need a session, of whatever role.
    """

    def __init__(
        self,
        app: Starlette,
        *,
        accounts: Accounts,
        limits: Limits,
        site: Site,
        direct: Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]],
    ) -> None:
        self._app = app
        self._accounts = accounts
        self._limits = limits
        self._hosts = frozenset(host.encode() for host in site.hosts)
        self._origins = {
            b"%b://%b" % (scheme, host) for scheme in (b"http", b"https") for host in self._hosts
        }
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        cache = b"no-store" if scope["path"].startswith("/api/") else b"no-cache"

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *HEADERS, (b"cache-control", cache)]
            await send(message)

        try:
            receiving = _limited(receive, self._check(scope))
            endpoint = self._direct.get((scope["method"], scope["path"]))
            if endpoint is None:
                await self._app(scope, receiving, sending)
            else:
                scope["app"] = self._app
                response = await endpoint(Request(scope, receiving))
                await response(scope, receive, sending)
        except RequestError as error:
            if started:
                raise
            await JSONResponse(error.body, error.status_code, error.headers)(scope, receive, sending)

    def _check(self, scope: Scope) -> int:
        """Check the headers and put the session into the scope. Gives how many bytes the body may have."""
        headers, path = dict(scope["headers"]), scope["path"]
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            message = "expected a Host header with this server's address; open the link that was printed"
            raise RequestError(400, message)
        session = scope["stepmark.session"] = self._session(headers.get(b"cookie"))
        public = path in PUBLIC or path.startswith("/static/")
        if session is None and not public:
            raise RequestError(
                401, "expected a session: log in with your token, or open your invitation link"
            )
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            foreign = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
            if foreign or (b"origin" in headers and headers[b"origin"] not in self._origins):
                raise RequestError(403, "this request comes from another site's page")
            # Logging in and joining have no session to be forged; their answer is of no use to another site.
            csrf = headers.get(b"x-csrf-token", b"")
            if not public and (session is None or not compare_digest(csrf, session.csrf.encode())):
                raise RequestError(
                    403, "expected the header X-CSRF-Token with the value that /api/me gives; reload the page"
                )
        limit = self._limits.upload_bytes if path == UPLOADS else self._limits.body_bytes
        if is_over(headers.get(b"content-length"), limit):
            raise too_large(limit)
        return limit

    def _session(self, cookie: bytes | None) -> Session | None:
        token = None if cookie is None else cookie_parser(cookie.decode("latin-1")).get(COOKIE)
        return None if token is None else self._accounts.session(token)


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
