"""An annotation server without a network, its people, and a throw-away PostgreSQL."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from stepmark.annotation.accounts import Role, invite
from stepmark.annotation.app import build_app, secured
from stepmark.annotation.database import Database
from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.live import Live
from stepmark.annotation.marks import Marks, marks_of_first_error
from stepmark.annotation.project import Project
from stepmark.annotation.security import Site
from stepmark.annotation.stored import store_items
from stepmark.records import Solution

BASE = "http://127.0.0.1:8000"


def an_item(id: str, steps: int = 3, **more: Any) -> Item:
    texts = [f"step {k} of {id}" for k in range(steps)]
    return Item(id=id, solution=Solution.of(f"problem {id}", texts), **more)


def gold_item(id: str, first_error: int, role: Any = "gold", steps: int = 3) -> Item:
    return an_item(id, steps, role=role, gold=marks_of_first_error(first_error, steps))


def suggestions(*ratings: int | None) -> tuple[Suggestion | None, ...]:
    return tuple(None if r is None else Suggestion(judge="prm", rating=r) for r in ratings)  # type: ignore[arg-type]


def said(first_error: int, steps: int = 3) -> Marks:
    return marks_of_first_error(first_error, steps)


@dataclass
class Clock:
    """Time that passes when it is told to."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Person:
    """A browser: its cookie, its CSRF token."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self.client, self.name, self.csrf, self.token = client, name, "", ""

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.get(path, **more)

    async def post(self, path: str, data: Any = None, **more: Any) -> httpx.Response:
        headers = {"x-csrf-token": self.csrf, **more.pop("headers", {})}
        if data is not None:
            more["json"] = data
        return await self.client.post(path, headers=headers, **more)

    async def next(self, after: str | None = None) -> dict[str, Any]:
        answer = await self.get("/api/next", params={} if after is None else {"after": after})
        assert answer.status_code == 200, answer.text
        data: dict[str, Any] = answer.json()
        return data

    async def change(
        self,
        item: str,
        version: int,
        kind: str,
        *,
        id: str | None = None,
        seconds: float = 1.0,
        **change: Any,
    ) -> httpx.Response:
        body = {
            "item": item,
            "id": id or str(uuid.uuid4()),
            "version": version,
            "change": {"kind": kind, **change},
            "seconds": seconds,
        }
        return await self.post("/api/changes", body)

    async def label(self, item: str, first_error: int, version: int = 0) -> None:
        """Mark the first error and submit."""
        for at, change in enumerate(({"kind": "first_error", "step": first_error}, {"kind": "submit"})):
            answer = await self.change(item, version + at, **change)
            assert answer.status_code == 200, answer.text


@dataclass
class World:
    """A server that is running."""

    live: Live
    app: Any
    asgi: Any
    clock: Clock
    people: list[Person] = field(default_factory=list)

    def stranger(self, **more: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.asgi, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url=BASE, **more)
        self.people.append(Person(client, ""))
        return client

    async def code(self, role: Role, uses: int = 1, hours: float = 1.0) -> str:
        return await self.live.writer.call(
            lambda connection: invite(connection, role, uses=uses, hours=hours, by=None, at=self.clock())
        )

    async def join(self, name: str, role: Role = "annotator") -> Person:
        client = self.stranger()
        person = Person(client, name)
        answer = await client.post("/api/join", json={"code": await self.code(role), "name": name})
        assert answer.status_code == 200, answer.text
        person.token = answer.json()["token"]
        person.csrf = (await client.get("/api/me")).json()["csrf"]
        return person


@asynccontextmanager
async def serving(
    url: str | Path, items: Sequence[Item] = (), project: Project | None = None, clock: Clock | None = None
) -> AsyncIterator[World]:
    """A running server on a database that may hold a project already."""
    time, chosen = clock or Clock(), project or Project()
    with Database(str(url)) as database:
        with database.writing() as connection:
            store_items(connection, items)
        live = Live(chosen, database, clock=time)
        site = Site(hosts=frozenset({"127.0.0.1:8000"}), link=BASE)
        app = build_app(live, site)
        world = World(live, app, secured(app, live, site), time)
        await live.start()
        try:
            yield world
        finally:
            for person in world.people:
                await person.client.aclose()
            await live.stop()


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@cache
def _cluster() -> str | None:
    """A PostgreSQL of our own on a socket in a new folder: the URL of its server; None without the binaries."""
    binaries = _binaries()
    if binaries is None:
        return None
    folder = tempfile.mkdtemp(prefix="stepmark-pg-")
    unprivileged: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to be root
        unprivileged = {"user": "nobody", "group": "nogroup"}
        shutil.chown(folder, "nobody", "nogroup")

    def run(name: str, *words: str) -> None:
        subprocess.run(
            [str(binaries / name), *words], check=True, cwd=folder, stdout=subprocess.DEVNULL, **unprivileged
        )

    data = f"{folder}/data"
    run("initdb", "-D", data, "-U", "stepmark", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
    options = (
        f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c shared_buffers=16MB"
    )
    run("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")

    def stop() -> None:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return f"postgresql+psycopg://stepmark@/{{}}?host={folder}"


def postgres_url() -> str:
    """A new, empty PostgreSQL database."""
    pytest.importorskip("psycopg")
    cluster = _cluster()
    if cluster is None:
        pytest.skip("no PostgreSQL here: initdb and pg_ctl are not installed")
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    host = cluster.partition("host=")[2]
    with psycopg.connect(f"host={host} user=stepmark dbname=postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return cluster.format(name)


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests (`pytest.mark.anyio`) run in asyncio."""
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    return str(tmp_path / "labels.sqlite") if request.param == "sqlite" else postgres_url()
