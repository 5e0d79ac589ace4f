"""An annotation server without a network, its people, and a throw-away PostgreSQL."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

import httpx
from fastapi.testclient import TestClient

from stepmark.annotation.app import build_app
from stepmark.annotation.items import Item, Suggestion
from stepmark.annotation.project import Project
from stepmark.annotation.store import ADMIN, Store
from stepmark.records import Solution

LINK = "http://127.0.0.1:8000"


def an_item(id: str, steps: int = 3, **more: Any) -> Item:
    texts = [f"step {k} of {id}" for k in range(steps)]
    return Item(id=id, solution=Solution.of(f"problem {id}", texts), **more)


def suggestions(*ratings: int | None) -> tuple[Suggestion | None, ...]:
    return tuple(None if r is None else Suggestion(judge="prm", rating=r) for r in ratings)  # type: ignore[arg-type]


@dataclass
class Clock:
    """Time that passes when it is told to."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Person:
    """Who asks with the token of a link."""

    def __init__(self, client: TestClient, token: str) -> None:
        self.client, self.token = client, token
        self.headers = {"authorization": f"Bearer {token}"}

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(path, headers=self.headers, **more)

    def post(self, path: str, data: Any = None, **more: Any) -> httpx.Response:
        if data is not None:
            more["json"] = data
        return self.client.post(path, headers=self.headers, **more)

    def next(self, after: str | None = None) -> dict[str, Any]:
        answer = self.get("/api/next", params={} if after is None else {"after": after})
        assert answer.status_code == 200, answer.text
        data: dict[str, Any] = answer.json()
        return data

    def change(
        self, item: str, kind: str, *, id: str | None = None, seconds: float = 1.0, **more: Any
    ) -> httpx.Response:
        deciding = {"deciding": True} if more.pop("deciding", False) else {}
        body = {"item": item, "id": id or uuid.uuid4().hex, "seconds": seconds, **deciding}
        return self.post("/api/changes", {**body, "change": {"kind": kind, **more}})

    def label(self, item: str, first_error: int) -> None:
        """Mark the first error and submit."""
        for change in ({"kind": "first_error", "step": first_error}, {"kind": "submit"}):
            answer = self.change(item, **change)
            assert answer.status_code == 200, answer.text


@dataclass
class World:
    """A server that is running."""

    store: Store
    project: Project
    client: TestClient
    clock: Clock

    def person(self, name: str) -> Person:
        return Person(self.client, self.store.person(name).token)

    def admin(self) -> Person:
        return self.person(ADMIN)


@contextmanager
def serving(
    url: str | Path, items: Sequence[Item] = (), project: Project | None = None, clock: Clock | None = None
) -> Iterator[World]:
    """A running server on a database that may hold a project already."""
    time, chosen = clock or Clock(), project or Project()
    with Store(str(url), clock=time) as store:
        store.prepare(chosen, items, LINK)
        with TestClient(build_app(store, chosen), LINK, raise_server_exceptions=False) as client:
            yield World(store, chosen, client, time)


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


class Postgres:
    """A PostgreSQL of our own on a socket in a new folder; it can go away and come back."""

    def __init__(self, binaries: Path) -> None:
        self._binaries, self.folder = binaries, tempfile.mkdtemp(prefix="stepmark-pg-")
        self._unprivileged: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to be root
            self._unprivileged = {"user": "nobody", "group": "nogroup"}
            shutil.chown(self.folder, "nobody", "nogroup")
        words = ("-U", "stepmark", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        self._run("initdb", *words)
        self.start()
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        atexit.register(self.stop)

    def _run(self, name: str, *words: str) -> None:
        command = [str(self._binaries / name), "-D", f"{self.folder}/data", *words]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **self._unprivileged)

    def start(self) -> None:
        places = f"-c listen_addresses='' -c unix_socket_directories={self.folder}"
        options = f"{places} -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-w", "-l", f"{self.folder}/log", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "stop")

    def new(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"test_{uuid.uuid4().hex}"
        server = f"host={self.folder} user=stepmark dbname=postgres"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql+psycopg://stepmark@/{name}?host={self.folder}"


@cache
def _cluster() -> Postgres | None:
    binaries = _binaries()
    return None if binaries is None else Postgres(binaries)


def postgres() -> Postgres:
    """The PostgreSQL of this test process."""
    pytest.importorskip("psycopg")
    cluster = _cluster()
    if cluster is None:
        pytest.skip("no PostgreSQL here: initdb and pg_ctl are not installed")
    return cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    return str(tmp_path / "labels.sqlite") if request.param == "sqlite" else postgres().new()
