"""The configurations of docs/annotate.md#behind-a-reverse-proxy before a label server, and what bounds headers where there is no proxy."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from ports import lasting_port

PAGE = (Path(__file__).parent.parent / "docs" / "annotate.md").read_text(encoding="utf-8")
PATIENCE = 60.0
LIMIT = 64 << 10
"""Bytes of a header that no configuration takes."""


def block(language):
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def until_answered(url, process):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, f"{process.args} ended"
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


@pytest.fixture
def processes():
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for process in reversed(begun):
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture
def serve(tmp_path, processes):
    pytest.importorskip("fastapi")
    (tmp_path / "items.jsonl").write_text('{"id": "a", "problem": "p", "steps": ["s"]}\n')

    def start(port, url, *more):
        words = ["annotate", str(tmp_path / "items.jsonl"), "--port", str(port), "--url", url, *more]
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "stepmark", *words], stderr=log)
        processes.append(process)
        return process

    return start


def nginx(folder, port, upstream):
    text = block("nginx").replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = re.sub(r" *ssl_.*\n", "", text).replace("127.0.0.1:8010", f"127.0.0.1:{upstream}")
    text = text.replace("client_header_timeout 10s", "client_header_timeout 1s")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    head = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{head}http {{ access_log off; {places}\n{text}}}\n")
    return [shutil.which("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def refused_header(port):
    """The first line of the answer to a header that is too long, or b"" where the connection was closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * LIMIT)
            return connection.recv(4096).partition(b"\r\n")[0]
        except ConnectionError:
            return b""


def test_the_proxy_of_the_page(tmp_path, processes, serve):
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx on the PATH: apt-get install nginx")
    port, upstream = lasting_port(), lasting_port()
    url = f"http://127.0.0.1:{port}"
    serve(upstream, url)
    folder = tmp_path / "proxy"
    folder.mkdir()
    with (folder / "log").open("ab") as log:
        command = nginx(folder, port, upstream)
        proxy = subprocess.Popen(command, stderr=log, env={**os.environ, "HOME": str(folder)})
    processes.append(proxy)
    until_answered(url, proxy)
    # People label through it.
    link = re.search(rf"{url}/#(\S+)", (tmp_path / "log").read_text())
    headers = {"authorization": f"Bearer {link[1]}"}
    with httpx.Client(base_url=url, timeout=PATIENCE, headers=headers) as client:
        assert client.get("/api/next").json()["item"]["id"] == "a"
        change = {"item": "a", "id": "12345678", "change": {"kind": "first_error", "step": 0}}
        assert client.post("/api/changes", json=change).status_code == 200
    # A header that is too long is refused, one that does not end is closed.
    first = refused_header(port)
    assert first == b"" or re.match(rb"HTTP/1\.1 4\d\d ", first), first
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ")
        began = time.monotonic()
        while slow.recv(4096):
            pass
        assert time.monotonic() - began < PATIENCE


def resident(process):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) << 10


def test_without_a_proxy_a_header_is_bounded_where_others_reach_it(serve):
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    port = lasting_port()
    process = serve(port, f"http://127.0.0.1:{port}", "--host", "0.0.0.0")  # noqa: S104
    until_answered(f"http://127.0.0.1:{port}", process)
    before = resident(process)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * (64 << 20))
    assert resident(process) - before < 4 << 20
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
