"""What both web servers (`stepmark serve`, `stepmark annotate`) need of a machine: an address to listen on, and uvicorn's settings."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal

from stepmark.errors import UsageError

if TYPE_CHECKING:
    import uvicorn


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def link_of(host: str, port: int) -> str:
    """What a browser or client on this machine connects to, for a server that listens there."""
    bare = host.strip("[]")
    bare = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)  # noqa: S104
    return f"http://{f'[{bare}]' if ':' in bare else bare}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free.

    Raises:
        UsageError: no such host, or a port that is taken.
    """
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        return socket.create_server((bare, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise UsageError(
            f"`host` {host}: {error.strerror}; give a name or an address of this machine"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on ({os.strerror(error.errno or 0)}); give another `port`"
        ) from None


def uvicorn_config(
    app: Any, *, grace: float, keep_alive: int = 5, http: Literal["auto", "h11"] = "auto"
) -> uvicorn.Config:
    """How uvicorn runs a server.

    Args:
        app: the ASGI app.
        grace: seconds that requests in progress have at the end.
        keep_alive: seconds that an idle connection stays open.
        http: its parser.
    """
    import uvicorn

    return uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        proxy_headers=False,  # a forwarded address is what anybody may write into a header
        server_header=False,
        date_header=False,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=int(grace),
    )


def is_over(length: bytes | None, limit: int) -> bool:
    """Whether a Content-Length header is over a limit of bytes, or no number."""
    return length is not None and (not length.isdigit() or len(length) > 18 or int(length) > limit)
