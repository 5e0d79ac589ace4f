"""The log on disk: group commit, what is refused, and `kill -9` at any moment."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from annotation_worlds import anyio_backend, database_url
from ports import lasting_port
from stepmark.annotation import tables
from stepmark.annotation.accounts import invite
from stepmark.annotation.database import Database, Writer
from stepmark.annotation.project import Project
from stepmark.annotation.stored import prepare
from stepmark.errors import UsageError

__all__ = ["anyio_backend", "database_url"]
pytestmark = pytest.mark.anyio


def row(item="i", account=1, version=1, id=None):
    return (id or str(uuid.uuid4()), item, account, version, '{"kind": "submit"}', 1.5, 1000.25)


def rows(database):
    with database.reading() as connection:
        return [
            tuple(r) for r in connection.execute(tables.changes.select().order_by(tables.changes.c.version))
        ]


@asynccontextmanager
async def writing(url):
    """A writer, its database, and the rows that it refused."""
    refused: list[tuple] = []
    with Database(str(url)) as database:
        writer = Writer(database, refused=refused.append)
        try:
            yield writer, database, refused
        finally:
            await writer.close()


async def test_rows_come_back_as_they_went_in(database_url):
    async with writing(database_url) as (writer, database, _):
        given = [
            (
                "id-1",
                "it\"em\\' é \U0001f600 $[0] %s",
                2**40,
                1,
                json.dumps({"text": "\x00 \\u0000 <>&"}),
                None,
                1795335109.1173298,
            ),
            ("id-2", "i", 1, 2, "{}", 0.125, 0.0),
        ]
        await asyncio.gather(*(writer.change(r) for r in given))
        assert rows(database) == given


async def test_a_batch_is_one_transaction(tmp_path):
    """All that waits while one commit runs is the next: a thousand changes are a handful of commits, not a thousand."""

    async with writing(str(tmp_path / "x.sqlite")) as (writer, database, _):
        from sqlalchemy import event

        commits = []
        event.listen(database.engine, "commit", lambda _connection: commits.append(1))
        futures = [writer.change(row(version=k + 1)) for k in range(1000)]
        await asyncio.gather(*futures)
        assert len(commits) <= 3
        assert [r[3] for r in rows(database)] == list(range(1, 1001))


async def test_a_refused_change_harms_only_its_own_log(database_url):
    async with writing(database_url) as (writer, database, refused):
        first = row()
        await writer.change(first)
        clash, after = row(), row(version=2)  # another change of version 1, and one that stands on it
        good = row("k")
        results = await asyncio.gather(
            *(writer.change(r) for r in (clash, after, good)), return_exceptions=True
        )
        assert [type(r) for r in results] == [IntegrityError, IntegrityError, type(None)]
        assert [r[1] for r in rows(database)] == ["i", "k"]
        assert refused == [clash, after]


async def test_what_stands_on_a_refused_change_is_refused_in_the_next_batch_too(tmp_path):
    async with writing(str(tmp_path / "x.sqlite")) as (writer, database, _):
        await writer.change(row())
        clash = writer.change(row())
        await asyncio.sleep(0)  # the batch with it begins
        await asyncio.sleep(0)
        later = writer.change(row(version=2))
        results = await asyncio.gather(clash, later, return_exceptions=True)
        assert [type(r) for r in results] == [IntegrityError, IntegrityError]
        assert [r[3] for r in rows(database)] == [1], "no log has a gap"


async def test_a_call_fails_alone(database_url):
    async with writing(database_url) as (writer, database, _):

        def good(connection):
            connection.execute(tables.meta.insert(), {"key": "a", "value": "1"})
            return 7

        def bad(connection):
            connection.execute(tables.meta.insert(), {"key": "b", "value": "1"})
            raise KeyError("half done")

        change = writer.change(row())
        results = await asyncio.gather(writer.call(good), writer.call(bad), change, return_exceptions=True)
        assert results[0] == 7 and isinstance(results[1], KeyError) and results[2] is None
        with database.reading() as connection:
            keys = {r.key for r in connection.execute(tables.meta.select())}
        assert "a" in keys and "b" not in keys


async def test_a_database_that_cannot_write(tmp_path):
    """Nothing is acknowledged, everything is refused, and it goes on when the trouble is over."""

    async with writing(str(tmp_path / "x.sqlite")) as (writer, database, refused):
        await writer.change(row())
        import sqlite3

        other = sqlite3.connect(database.path, isolation_level=None)
        writer._connection.exec_driver_sql("PRAGMA busy_timeout=50")
        writer._connection.rollback()
        other.execute("BEGIN IMMEDIATE")
        lost = row(version=2)
        with pytest.raises(OperationalError, match="locked"):
            await writer.change(lost)
        assert refused == [lost]
        other.execute("ROLLBACK")
        other.close()
        await writer.change(row(version=2))
        assert [r[3] for r in rows(database)] == [1, 2]


def test_a_password_is_not_shown(tmp_path):
    pytest.importorskip("psycopg")
    with pytest.raises(UsageError) as caught:
        Database(f"postgresql+psycopg://me:secret@/x?host={tmp_path}")
    assert "secret" not in str(caught.value) and "cannot be opened" in str(caught.value)


def test_one_server_at_a_time(database_url):
    with Database(database_url) as one, Database(database_url) as two:
        with one.lock(), pytest.raises(UsageError, match="another stepmark serves"), two.lock():
            pass
        with two.lock():
            pass


PEOPLE, ITEMS = 6, 200


class Server:
    """The command itself, in a process of its own."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.items = folder / "items.jsonl"
        self.items.write_text(
            "".join(
                json.dumps({"id": f"i{k}", "problem": "p", "steps": ["a", "b"]}) + "\n" for k in range(ITEMS)
            )
        )
        self.port = lasting_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["annotate", str(self.items), "--port", str(self.port), "--database", self.database]
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen([sys.executable, "-m", "stepmark", *words], stderr=log)
        for _ in range(600):
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=30).status_code == 200:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def end(self, how: int) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(60)


async def labeller(
    server: Server, code: str, name: str, acknowledged: list, unsure: list, until: asyncio.Event
):
    """Clicks as quickly as it can. What it sent without an answer when the server went is in `unsure`."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        token = (await client.post("/api/join", json={"code": code, "name": name})).json()["token"]
        csrf = {"x-csrf-token": (await client.get("/api/me")).json()["csrf"]}
        body = None
        try:
            after = None
            while not until.is_set():
                found = (await client.get("/api/next", params={"after": after} if after else {})).json()
                after, version = found["item"]["id"], found["version"]
                for change in (
                    {"kind": "first_error", "step": 1},
                    {"kind": "note", "text": name},
                    {"kind": "submit"},
                ):
                    body = {
                        "item": after,
                        "id": str(uuid.uuid4()),
                        "version": version,
                        "change": change,
                        "seconds": 0.1,
                    }
                    answer = await client.post("/api/changes", json=body, headers=csrf)
                    assert answer.status_code == 200, answer.text
                    acknowledged.append((body["id"], name, answer.json()["version"]))
                    version, body = version + 1, None
        except httpx.TransportError:
            if body is not None:
                unsure.append((name, body))
        return token


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_acknowledged_is_lost_or_doubled(how, database_url, tmp_path):
    if how == signal.SIGTERM and database_url.startswith("postgresql"):
        pytest.skip("as on SQLite")
    server = Server(tmp_path, database_url)
    with Database(database_url) as database:
        prepare(Project(items=(server.items,)), database)
        with database.writing() as connection:
            code = invite(connection, "annotator", uses=PEOPLE, hours=1, by=None, at=time.time())
    acknowledged: list[tuple[str, str, int]] = []
    unsure: list[tuple[str, dict]] = []

    async def under_load() -> list[str]:
        until = asyncio.Event()
        people = [
            asyncio.create_task(labeller(server, code, f"p{k}", acknowledged, unsure, until))
            for k in range(PEOPLE)
        ]
        while len(acknowledged) < 60:
            await asyncio.sleep(0.005)
            assert not any(task.done() for task in people), [t.exception() for t in people if t.done()]
        ended = await asyncio.to_thread(server.end, how)
        assert ended == -how
        until.set()
        return await asyncio.gather(*people)

    server.start()
    try:
        tokens = asyncio.run(under_load())
        with Database(database_url, create=False) as database:
            kept = {r[0]: r for r in rows(database)}
        assert {id for id, _, _ in acknowledged} <= set(kept)
        server.start()
        base = f"http://127.0.0.1:{server.port}"
        for name, body in unsure:  # as the page does: the same change again
            with httpx.Client(base_url=base, timeout=60) as client:
                client.post("/api/login", json={"token": tokens[int(name[1:])]}).raise_for_status()
                csrf = {"x-csrf-token": client.get("/api/me").json()["csrf"]}
                answer = client.post("/api/changes", json=body, headers=csrf)
                assert answer.status_code == 200, answer.text
                assert answer.json()["version"] == body["version"] + 1
    finally:
        server.end(signal.SIGKILL)
    with Database(database_url, create=False) as database:
        log = rows(database)
    ids = [r[0] for r in log]
    assert len(ids) == len(set(ids))
    assert set(ids) >= {id for id, _, _ in acknowledged} | {body["id"] for _, body in unsure}
    versions: dict[tuple[str, int], list[int]] = {}
    for r in log:
        versions.setdefault((r[1], r[2]), []).append(r[3])
    assert all(found == list(range(1, len(found) + 1)) for found in versions.values())
    assert len({item for item, _ in versions}) == len(versions), "overlap 1: no item has two annotators"
