"""A small server on this machine that answers as the Hugging Face hub does, for the real client (`HF_ENDPOINT`).

What it answers was read off huggingface.co: the metadata of a repository, its tree, files by `resolve` (a small one by way of a relative
redirect, a weights file by way of a redirect to storage that takes ranges), ETags, X-Repo-Commit, X-Linked-Size, and X-Error-Code.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".pt", ".pth")
REFUSALS: Mapping[str, tuple[int, dict[str, str]]] = {
    "missing": (404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    # The hub does not tell strangers whether a repository is private or absent.
    "private": (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."}),
    "gated": (401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}),
    "not granted": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "You are not in the list."}),
    "bad token": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "forbidden": (403, {"X-Error-Message": "Your token lacks the permission to read this repository"}),
}


@dataclass
class Asked:
    """A request: its method, path and headers, and the bytes of content that were sent back."""

    method: str
    path: str
    headers: Message
    sent: int = 0


@dataclass
class HubServer:
    """The hub, in a thread: folders of this machine by repository name."""

    repos: dict[str, Path]
    refusals: dict[str, str] = field(default_factory=dict)
    """Why a repository is refused, by its name; a gated one shows its metadata and none of its files."""
    cut: dict[str, int] = field(default_factory=dict)
    """File name to the bytes after which its next transfer breaks off, once."""
    held: dict[str, int] = field(default_factory=dict)
    """File name to the bytes after which its transfers stand still, until `release` is set."""

    def __post_init__(self) -> None:
        self.log: list[Asked] = []
        self.release, self.holding = threading.Event(), threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))

    def __enter__(self) -> HubServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def downloaded(self) -> set[tuple[str, str]]:
        """Repository and file name of every file of which content was sent."""
        paths = [re.fullmatch(r"/(?:storage|cached)/(.+?/.+?)/(.+)", a.path) for a in self.log if a.sent]
        return {(found[1], found[2]) for found in paths if found}

    def transfers(self, file: str) -> list[Asked]:
        """The requests for the content of a file."""
        return [a for a in self.log if a.method == "GET" and a.path.endswith(f"/{file}") and a.sent]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = Asked(request.command, request.path.partition("?")[0], request.headers)
        self.log.append(asked)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/tree/.+|/revision/.+)?", asked.path):
            self._metadata(request, found[1], tree=(found[2] or "").startswith("/tree/"))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", asked.path):
            self._resolve(request, found[1], found[2])
        elif found := re.fullmatch(r"/(?:storage|cached)/([^/]+/[^/]+)/(.+)", asked.path):
            self._content(request, asked, self.repos[found[1]] / found[2])
        else:
            self._send(request, 404)

    def _refused(self, request: BaseHTTPRequestHandler, repo: str, *, files: bool) -> bool:
        why = self.refusals.get(repo, "" if repo in self.repos else "missing")
        if why and (files or why not in ("gated", "not granted")):
            self._send(request, *REFUSALS[why])
            return True
        return False

    def _metadata(self, request: BaseHTTPRequestHandler, repo: str, *, tree: bool) -> None:
        if self._refused(request, repo, files=False):
            return
        files = sorted(file for file in self.repos[repo].rglob("*") if file.is_file())
        names = [file.relative_to(self.repos[repo]).as_posix() for file in files]
        reply: Any = {
            "id": repo,
            "modelId": repo,
            "sha": COMMIT,
            "private": False,
            "gated": False,
            "tags": [],
        }
        reply["siblings"] = [{"rfilename": name} for name in names]
        if tree:
            reply = [_entry(file, name) for file, name in zip(files, names, strict=True)]
        self._send(request, 200, {"Content-Type": "application/json"}, json.dumps(reply).encode())

    def _resolve(self, request: BaseHTTPRequestHandler, repo: str, name: str) -> None:
        if self._refused(request, repo, files=True):
            return
        file = self.repos[repo] / name
        if not file.is_file():
            self._send(request, 404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if name.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{_sha256(file)}"', "X-Linked-Size": str(file.stat().st_size)}
            self._send(request, 302, headers | {"Location": f"{self.url}/storage/{repo}/{name}"})
        else:
            self._send(request, 307, headers | {"Location": f"/cached/{repo}/{name}"})

    def _content(self, request: BaseHTTPRequestHandler, asked: Asked, file: Path) -> None:
        content = file.read_bytes()
        etag = _sha256(file) if file.name.endswith(LARGE) else _oid(file)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        status = 200
        if asked.headers.get("Range"):
            start = int(asked.headers["Range"].removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status, content = 206, content[start:]
        if asked.method == "HEAD":
            self._send(request, status, headers | {"Content-Length": str(len(content))})
            return
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(name, value)
        request.end_headers()
        stop = self.cut.pop(file.name, self.held.get(file.name))
        asked.sent = len(content) if stop is None else stop
        request.wfile.write(content[: asked.sent])
        if stop is not None:
            request.wfile.flush()
            if file.name in self.held:
                self.holding.set()
                self.release.wait(60)
            request.close_connection = True

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def _entry(file: Path, name: str) -> dict[str, Any]:
    size = file.stat().st_size
    entry = {"type": "file", "oid": _oid(file), "size": size, "path": name}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": _sha256(file), "size": size, "pointerSize": 135}
    return entry


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _oid(file: Path) -> str:
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
