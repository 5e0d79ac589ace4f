"""`kill -9` at any moment: every acknowledged click is on disk, once, and the log has no gap."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import httpx
import pytest

from annotation_worlds import database_url
from ports import lasting_port
from stepmark.annotation.run import annotator_link
from stepmark.annotation.store import Store, changes

__all__ = ["database_url"]
PEOPLE, ITEMS = 6, 200


class Server:
    """The command itself, in a process of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.items = folder / "items.jsonl"
        rows = [{"id": f"i{k}", "problem": "p", "steps": ["a", "b"]} for k in range(ITEMS)]
        self.items.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.port = lasting_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Gives what it wrote."""
        words = ["annotate", str(self.items), "--port", str(self.port), "--database", self.database]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "stepmark", *words], stderr=log)
        for _ in range(600):
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=30).status_code == 200:
                    return (self.folder / "log").read_text()
            except httpx.TransportError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def end(self, how: int) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(60)


def client_of(server: Server, token: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, headers=headers)


async def labeller(server: Server, token: str, acknowledged: set[str], unsure: list, until: asyncio.Event):
    """Clicks as quickly as it can. What it sent without an answer when the server went is in `unsure`."""
    body = None
    async with client_of(server, token) as client:
        try:
            after = None
            while not until.is_set():
                found = (await client.get("/api/next", params={"after": after} if after else {})).json()
                after = found["item"]["id"]
                for change in (
                    {"kind": "first_error", "step": 1},
                    {"kind": "note", "text": "n"},
                    {"kind": "submit"},
                ):
                    body = {"item": after, "id": uuid.uuid4().hex, "change": change}
                    answer = await client.post("/api/changes", json=body)
                    assert answer.status_code == 200, answer.text
                    acknowledged.add(body["id"])
                    body = None
        except httpx.TransportError:
            if body is not None:
                unsure.append((token, body))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_acknowledged_is_lost_or_doubled(how, database_url, tmp_path):
    if how == signal.SIGTERM and database_url.startswith("postgresql"):
        pytest.skip("as on SQLite")
    server = Server(tmp_path, database_url)
    acknowledged: set[str] = set()
    unsure: list[tuple[str, dict]] = []

    async def under_load(tokens: list[str]) -> None:
        until = asyncio.Event()
        tasks = [asyncio.create_task(labeller(server, t, acknowledged, unsure, until)) for t in tokens]
        while len(acknowledged) < 60:
            await asyncio.sleep(0.005)
            assert not any(task.done() for task in tasks), [t.exception() for t in tasks if t.done()]
        assert await asyncio.to_thread(server.end, how) == -how
        until.set()
        await asyncio.gather(*tasks)

    async def again() -> None:
        for token, body in unsure:  # as the page does: the same change again
            async with client_of(server, token) as client:
                answer = await client.post("/api/changes", json=body)
                assert answer.status_code == 200, answer.text

    said = server.start()
    try:
        assert re.search(rf"http://127\.0\.0\.1:{server.port}/#\S+", said)
        links = [annotator_link(database_url, f"p{k}") for k in range(PEOPLE)]
        asyncio.run(under_load([link.partition("#")[2] for link in links]))
        with Store(database_url, create=False) as store, store.reading() as connection:
            kept = {row.id for row in connection.execute(changes.select())}
        assert acknowledged <= kept
        assert server.start() == said, "the same link for the admin"
        asyncio.run(again())
    finally:
        server.end(signal.SIGKILL)
    with Store(database_url, create=False) as store, store.reading() as connection:
        log = list(connection.execute(changes.select().order_by(changes.c.version)))
    ids = [row.id for row in log]
    assert len(ids) == len(set(ids))
    assert set(ids) >= acknowledged | {body["id"] for _, body in unsure}
    versions: dict[tuple[str, int], list[int]] = {}
    for row in log:
        versions.setdefault((row.item, row.annotator), []).append(row.version)
    assert all(found == list(range(1, len(found) + 1)) for found in versions.values())
    assert len({item for item, _ in versions}) == len(versions), "overlap 1: no item has two annotators"
