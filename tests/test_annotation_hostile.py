"""Requests that nobody's page sends."""

from __future__ import annotations

import gzip
import json
import tempfile
import uuid

import pytest

from annotation_worlds import an_item, anyio_backend, serving
from stepmark.annotation.items import Item
from stepmark.annotation.project import Limits, Project
from stepmark.records import Solution

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio
TWO = [an_item("one"), an_item("two")]


def change(item="one", version=0, **more):
    kind = more or {"kind": "first_error", "step": 1}
    return {"item": item, "id": str(uuid.uuid4()), "version": version, "change": kind, "seconds": 1}


async def test_the_hash_of_a_token_is_no_token(tmp_path):
    """Who has read the database cannot log in with what stands there."""

    async with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = await world.join("ada")
        from stepmark.annotation import tables

        with world.live.database.reading() as connection:
            session = connection.execute(tables.sessions.select()).one()
            account = connection.execute(tables.accounts.select()).one()
            everything = str([connection.execute(t.select()).all() for t in tables.metadata.sorted_tables])
        cookie = ada.client.cookies["stepmark_session"]
        assert cookie not in everything and ada.token not in everything
        client = world.stranger()
        headers = {"cookie": f"stepmark_session={session.token_hash}"}
        assert (await client.get("/api/me", headers=headers)).status_code == 401
        assert (await client.post("/api/login", json={"token": account.token_hash})).status_code == 403


async def test_anothers_item(tmp_path):
    async with serving(tmp_path / "x.sqlite", TWO) as world:
        ada, bob = await world.join("ada"), await world.join("bob")
        assert (await ada.next())["item"]["id"] == "one"
        assert (await bob.next())["item"]["id"] == "two"
        for path in ("/api/items/one", "/api/items/ONE", "/api/items/none"):
            answer = await bob.get(path)
            assert answer.status_code == (403 if path.endswith("/one") else 404)
            assert "problem" not in answer.text
        answer = await bob.post("/api/changes", change("one"))
        assert answer.status_code == 403 and answer.json()["field"] == "item"
        assert (await ada.get("/api/items/one")).json()["version"] == 0


GOOD = {
    "item": "one",
    "id": "12345678-abcd",
    "version": 0,
    "change": {"kind": "first_error", "step": 1},
    "seconds": 1,
}


BODIES = [
    b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff\xfe\x00", b"{'a': 1}", b'{"item": "one"', b"[" * 100_000,
    b'{"item": "\\ud800"}', b'{"seconds": NaN}', b'{"changes": 1}', b'{"changes": {}}',
    json.dumps({"changes": [GOOD] * 501}).encode(),
]  # fmt: skip


async def test_malformed_bodies(tmp_path):
    async with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = await world.join("ada")
        await ada.next()
        for body in BODIES:
            answer = await ada.post("/api/changes", content=body)
            assert answer.status_code == 400, (body[:40], answer.text)
            assert answer.json()["error"]
        assert (await ada.get("/api/items/one")).json()["version"] == 0


FIELDS = [
    ("item", None), ("item", 1), ("item", ["one"]),
    ("id", None), ("id", ""), ("id", "short"), ("id", "x" * 65), ("id", "a b c d e f g"), ("id", 12345678), ("id", "é" * 20),
    ("version", None), ("version", "0"), ("version", 0.0), ("version", True), ("version", False),
    ("seconds", -1), ("seconds", "1"), ("seconds", True), ("seconds", []),
    ("change", None), ("change", []), ("change", {}), ("change", {"kind": "drop table"}),
    ("change", {"kind": "rate", "step": 0, "rating": 1}),
    ("change", {"kind": "first_error", "step": 3}), ("change", {"kind": "first_error", "step": -2}),
    ("change", {"kind": "first_error", "step": 10**30}), ("change", {"kind": "first_error", "step": "1"}),
    ("change", {"kind": "first_error", "step": 1.0}), ("change", {"kind": "first_error", "step": True}),
    ("change", {"kind": "first_error", "step": 1, "extra": 1}),
    ("change", {"kind": "submit"}), ("change", {"kind": "undo"}), ("change", {"kind": "reopen"}),
    ("change", {"kind": "note", "step": 0, "text": "x" * 4001}),
    ("change", {"kind": "error_type", "step": 0, "text": "unheard of"}),
]  # fmt: skip


async def test_malformed_fields(tmp_path):
    async with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = await world.join("ada")
        await ada.next()
        for field, value in FIELDS:
            answer = await ada.post("/api/changes", {**GOOD, field: value})
            assert answer.status_code == 400, (field, value, answer.text)
            assert answer.json()["field"].startswith(field), (field, value, answer.text)
        assert (await ada.post("/api/changes", GOOD)).json() == {"version": 1, "submitted": False}


async def test_text_comes_back_as_it_was(tmp_path):
    texts = [
        "<script>alert(1)</script>",
        "\x00 and \\u0000",
        "'; DROP TABLE changes; --",
        "\u202e \U0001f600 é",
        "%s $[0] {}",
    ]

    item = Item(id="one", solution=Solution.of("<img src=x onerror=alert(1)>", ["a", "b"]))
    async with serving(tmp_path / "x.sqlite", [item]) as world:
        ada = await world.join("ada")
        found = await ada.next()
        assert found["item"]["problem"] == "<img src=x onerror=alert(1)>"
        for version, text in enumerate(texts):
            answer = await ada.change("one", version, "note", step=0, text=text)
            assert answer.status_code == 200, answer.text
        kept = (await ada.get("/api/items/one")).json()["changes"]
        assert [c["text"] for c in kept] == texts
        world.live.labelling._logs.clear()
        read = (await ada.get("/api/items/one")).json()["changes"]
        assert read == kept, "from the database as from memory"


async def test_a_body_that_is_larger_than_it_says(tmp_path):
    async with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = await world.join("ada")
        await ada.next()
        big = json.dumps({**GOOD, "padding": "x" * 300_000}).encode()
        answer = await ada.post("/api/changes", content=big)
        assert answer.status_code == 413

        sent = 0

        async def endless():
            nonlocal sent
            for _ in range(1000):
                sent += 10_000
                yield b"x" * 10_000

        for path in ("/api/changes", "/api/decisions", "/api/admin/accounts"):
            root = ada if path == "/api/changes" else await world.join(f"root of {path}"[-50:], "admin")
            sent = 0
            answer = await root.post(path, content=endless())
            assert answer.status_code == 413
            assert sent < 400_000, "reading stops at the limit"


async def test_uploads_that_are_no_items(tmp_path):
    small = Project(limits=Limits(upload_bytes=100_000))
    bomb = gzip.compress(b'{"id": "x", "problem": "p", "steps": ["' + b"x" * 1_000_000 + b'"]}')
    good = b'{"id": "new", "problem": "p", "steps": ["s"]}\n'

    async with serving(tmp_path / "x.sqlite", TWO, project=small) as world:
        root = await world.join("root", "admin")
        for body, status in (
            (b"", 400), (b"\x00\x01\x02", 400), (b"not json", 400), (b"[" * 90_000, 400), (b"{" * 90_000, 400),
            (b'[{"a": ' + b"[" * 90_000, 400), (b'{"a": ' + b"[" * 90_000, 400), (b'{"a":\n' + b"[" * 90_000, 400), (b"[]", 400), (b'{"a": 1}', 400),
            (gzip.compress(good)[:-10], 400), (b"\x1f\x8b and no gzip", 400), (bomb, 413), (b"x" * 100_001, 413),
            (b'{"id": "one", "problem": "another", "steps": ["s"]}\n{"id": "one", "problem": "p", "steps": ["s"]}\n', 400),
        ):  # fmt: skip
            answer = await root.post("/api/admin/items", content=body)
            assert answer.status_code == status, (body[:40], answer.text)
            assert tempfile.gettempdir() not in answer.text
        assert (await root.post("/api/admin/items", content=gzip.compress(good))).json()["items"] == 1


PATHS = [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/__init__.py", "/static//etc/passwd",
        "/static/katex/../../../../records.py", "/static/", "/static/.", "/static/app.js%00.html", "/server.py",
]  # fmt: skip


async def test_paths_do_not_escape(tmp_path):
    async with serving(tmp_path / "x.sqlite", TWO) as world:
        stranger = world.stranger()
        for path in PATHS:
            answer = await stranger.get(path)
            assert answer.status_code in (401, 404), path
            assert "import" not in answer.text and "root:" not in answer.text
