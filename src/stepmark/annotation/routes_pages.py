"""The pages and what they load, read once at start: a request names an entry of a table and never a path."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from stepmark.annotation.refusals import Refused

router = APIRouter(include_in_schema=False)

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
}


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    type: str
    tag: str


@cache
def files() -> dict[str, _File]:
    """All that is served under /static/, by its path there."""
    found: dict[str, _File] = {}
    _collect(resources.files("stepmark.annotation") / "web", "", found)
    _collect(resources.files("stepmark.show") / "vendor" / "katex", "katex/", found)
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, _File]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
        elif (kind := _TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            data = entry.read_bytes()
            found[prefix + entry.name] = _File(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _send(request: Request, name: str) -> Response:
    file = files().get(name)
    if file is None:
        raise Refused(404, "there is no such file")
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.type, headers=headers)


@router.get("/")
async def home(request: Request) -> Response:
    """The page; it shows what the session's role may see."""
    return _send(request, "index.html")


@router.get("/join")
async def join_page(request: Request) -> Response:
    """The same page; it reads the invitation's code from the fragment, which browsers do not send."""
    return _send(request, "index.html")


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """The icon."""
    return _send(request, "icon.svg")


@router.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    """A file of the pages."""
    return _send(request, name)


@router.get("/health")
async def health() -> JSONResponse:
    """Whether the server runs."""
    return JSONResponse({"status": "ok"})
