"""The annotation server on both databases: what is acknowledged is there, once, after any restart."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from annotation_worlds import (
    Clock,
    Person,
    World,
    an_item,
    anyio_backend,
    database_url,
    gold_item,
    said,
    serving,
    suggestions,
)
from stepmark.annotation import tables
from stepmark.annotation.project import Help, Project
from stepmark.annotation.stored import answers_of, decisions_of

__all__ = ["anyio_backend", "database_url"]
pytestmark = pytest.mark.anyio

TWO = [an_item("one"), an_item("two")]


def stored(world: World):
    with world.live.database.reading() as connection:
        return answers_of(connection, world.live.project)


async def test_join_label_look_back(database_url):
    async with serving(database_url, TWO) as world:
        ada = await world.join("ada")
        me = (await ada.get("/api/me")).json()
        assert me["name"] == "ada" and me["role"] == "annotator"
        assert me["project"]["mode"] == "first_error" and me["screening"] is None
        assert me["progress"] == {"submitted": 0, "of": 2, "seconds_each": None}
        first = await ada.next()
        assert first["item"]["id"] == "one"
        assert [step["text"] for step in first["item"]["steps"]] == [f"step {k} of one" for k in range(3)]
        assert first["version"] == 0 and first["changes"] == [] and first["suggestions"] is None
        world.clock.now += 10
        answer = await ada.change("one", 0, "first_error", step=1, seconds=7.5)
        assert answer.json() == {"version": 1, "submitted": False}
        world.clock.now += 10
        answer = await ada.change("one", 1, "submit", seconds=500)  # more than the clock says: capped
        assert answer.json() == {"version": 2, "submitted": True}
        assert (await ada.get("/api/me")).json()["progress"] == {
            "submitted": 1, "of": 2, "seconds_each": 17.5,
        }  # fmt: skip
        assert (await ada.next(after="one"))["item"]["id"] == "two"
        assert await ada.next(after="two") == (await ada.next())  # skipped, and the only one left
        mine = (await ada.get("/api/mine")).json()
        assert [(row["id"], row["submitted"], row["title"]) for row in mine] == [("one", True, "problem one")]
        again = (await ada.get("/api/items/one")).json()
        assert again["version"] == 2 and again["submitted"]
        assert [change["kind"] for change in again["changes"]] == ["first_error", "submit"]
        (answer,) = stored(world)
        assert (answer.item, answer.account, answer.marks.first_error) == ("one", "ada", 1)
        assert answer.marks.ratings == (1, -1, None)
        assert answer.seconds == 17.5


async def test_all_is_there_after_a_restart(database_url):
    clock = Clock()

    async def before() -> tuple[Person, str]:
        async with serving(database_url, TWO, clock=clock) as world:
            ada = await world.join("ada")
            await ada.next()
            await ada.label("one", 2)
            await ada.next(after="one")
            id = str(uuid.uuid4())
            assert (await ada.change("two", 0, "first_error", step=0, id=id)).status_code == 200
            return ada, id

    async def after(old: Person, id: str) -> None:
        async with serving(database_url, TWO, clock=clock) as world:
            bob = await world.join("bob")
            assert (await bob.next())["reason"] == "waiting"  # ada's lease still holds
            client = world.stranger(cookies=old.client.cookies)
            ada = Person(client, "ada")
            ada.csrf = (await client.get("/api/me")).json()["csrf"]
            assert ada.csrf == old.csrf
            found = await ada.next()
            assert found["item"]["id"] == "two" and found["version"] == 1
            # The acknowledgement was lost on the way, so the page sends the same change again.
            answer = await ada.change("two", 0, "first_error", step=0, id=id)
            assert answer.json() == {"version": 1, "submitted": False}
            assert (await ada.change("two", 1, "submit")).json()["submitted"]
            assert [a.marks.first_error for a in stored(world)] == [2, 0]
            assert (await ada.next())["reason"] == "done"
            assert (await ada.get("/api/me")).json()["progress"]["submitted"] == 2

    await after(*(await before()))


async def test_the_same_id_is_stored_once(database_url):
    async with serving(database_url, TWO) as world:
        ada = await world.join("ada")
        await ada.next()
        id = str(uuid.uuid4())
        answers = await asyncio.gather(
            *(ada.change("one", 0, "first_error", step=1, id=id) for _ in range(20))
        )
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.text for answer in answers} == {'{"version":1,"submitted":false}'}
        with world.live.database.reading() as connection:
            assert len(connection.execute(tables.changes.select()).all()) == 1
        other = await ada.change("one", 1, "first_error", step=2, id=id)
        assert other.status_code == 400 and other.json()["field"] == "id"


async def test_a_queue_of_unsent_changes(database_url):
    async with serving(database_url, TWO) as world:
        ada = await world.join("ada")
        await ada.next()

        def change(version, **change):
            return {
                "item": "one",
                "id": str(uuid.uuid4()),
                "version": version,
                "change": change,
                "seconds": 1,
            }

        queue = [
            change(0, kind="first_error", step=1),
            change(1, kind="note", step=1, text="a sign is lost"),
            change(7, kind="submit"),
            {**change(2, kind="submit"), "item": "two"},
            change(2, kind="submit"),
        ]
        results = (await ada.post("/api/changes", {"changes": queue})).json()["results"]
        assert [row.get("version") for row in results] == [1, 2, 2, None, 3]
        assert ["error" in row for row in results] == [False, False, True, True, False]
        assert results[4]["submitted"]
        again = (await ada.post("/api/changes", {"changes": queue})).json()["results"]
        assert again[:2] == results[:2] and again[4] == results[4]
        (answer,) = stored(world)
        assert answer.marks.notes == ((1, "a sign is lost"),)


async def test_another_process_cannot_fork_a_log(database_url):
    """A second server that does not know of the first one's change is refused by the database, and then sees it."""

    async with serving(database_url, TWO) as first:
        ada = await first.join("ada")
        await ada.next()
        async with serving(database_url, project=first.live.project, clock=first.clock) as second:
            elsewhere = Person(second.stranger(cookies=ada.client.cookies), "ada")
            elsewhere.csrf = ada.csrf
            assert (await elsewhere.get("/api/items/one")).json()["version"] == 0
            assert (await ada.change("one", 0, "first_error", step=1)).status_code == 200
            # Two changes of this log and one of another in a batch: only the log that is behind suffers.
            bob = await second.join("bob")
            assert (await bob.next())["item"]["id"] == "two"
            refused, also, fine = await asyncio.gather(
                elsewhere.change("one", 0, "first_error", step=2),
                elsewhere.change("one", 1, "submit"),
                bob.change("two", 0, "first_error", step=0),
            )
            assert (refused.status_code, also.status_code, fine.status_code) == (409, 409, 200)
            assert [c["step"] for c in refused.json()["changes"]] == [1]
            conflict = await elsewhere.change("one", 0, "first_error", step=2)
            assert conflict.status_code == 409
            assert [c["step"] for c in conflict.json()["changes"]] == [1]
        assert [(a.item, a.marks.first_error, a.marks.submitted) for a in stored(first)] == [
            ("one", 1, False), ("two", 0, False),
        ]  # fmt: skip


async def test_help_after_the_first_pass_and_verification(database_url):
    items = [an_item("one", suggestions=suggestions(1, -1, -1))]
    project = Project(help=Help(show="after", require_verification=True))
    async with serving(database_url, items, project) as world:
        ada = await world.join("ada")
        assert (await ada.next())["suggestions"] is None
        await ada.label("one", -1)
        found = await ada.next(after=None)
        assert found["item"]["id"] == "one", "a first pass does not count before suggestions are verified"
        assert [s["rating"] for s in found["suggestions"]] == [1, -1, -1]
        assert (await ada.change("one", 2, "reopen")).status_code == 200
        refused = await ada.change("one", 3, "submit")
        assert refused.status_code == 400 and refused.json()["unverified"] == [0, 1, 2]
        answer = await ada.change("one", 3, "first_error", step=1, on=True)
        assert answer.status_code == 200, answer.text
        assert (await ada.change("one", 4, "submit")).json()["submitted"]
        assert (await ada.next())["reason"] == "done"
        (answer,) = stored(world)
        assert answer.marks.first_error == 1
        assert answer.first_pass is not None and answer.first_pass.first_error == -1


async def test_a_disagreement_and_its_decision(database_url):
    async with serving(database_url, TWO[:1], Project(overlap=2)) as world:
        people = [await world.join(name) for name in ("ada", "bob")]
        judge = await world.join("judy", "adjudicator")
        for person, step in zip(people, (0, 2), strict=True):
            await person.next()
            await person.label("one", step)
        queue = (await judge.get("/api/disputes")).json()
        assert queue["total"] == 1
        (row,) = queue["disputes"]
        assert row["item"] == "one" and sorted(row["annotators"]) == ["A", "B"] and not row["decided"]
        page = (await judge.get("/api/disputes/one")).json()
        assert page["decision"] is None and page["differing"] == [0]
        assert "ada" not in str(page) and "bob" not in str(page), "blind"
        right = next(a for a in page["answers"] if a["marks"]["first_error"] == 2)
        marks = {"mode": "first_error", "steps": 3, "first_error": 2}
        body = {
            "item": "one",
            "marks": marks,
            "chosen": right["account"],
            "reason": "the sum",
            "version": page["version"],
        }
        stale = await judge.post("/api/decisions", {**body, "version": "0000"})
        assert stale.status_code == 409
        for wrong in (
            {**marks, "steps": 10**9}, {**marks, "first_error": 3}, {"mode": "per_step", "steps": 3, "ratings": [1, 1, 1]},
            {**marks, "first_error": None},
        ):  # fmt: skip
            assert (await judge.post("/api/decisions", {**body, "marks": wrong})).status_code == 400
        assert (await judge.post("/api/decisions", {**body, "chosen": "Z"})).status_code == 400
        assert (await judge.post("/api/decisions", body)).status_code == 200
        with world.live.database.reading() as connection:
            (decision,) = decisions_of(connection)
        assert (decision.account, decision.chosen, decision.over) == ("judy", "bob", ("ada", "bob"))
        assert decision.marks == said(2)
        (row,) = (await judge.get("/api/disputes")).json()["disputes"]
        assert row["decided"]
        decided = (await judge.get("/api/disputes/one")).json()["decision"]
        assert (decided["chosen"], decided["reason"]) == (right["account"], "the sum")


async def test_administration(database_url):
    async with serving(database_url, [*TWO, gold_item("g", 1)], Project(overlap=2)) as world:
        root, ada = await world.join("root", "admin"), await world.join("ada")
        for _ in range(2):
            item = (await ada.next())["item"]["id"]
            await ada.label(item, 1)
        progress = (await root.get("/api/admin/progress")).json()
        assert [row["account"] for row in progress["annotators"]] == ["ada"]
        assert (await root.get("/api/admin/agreement")).json()["items"] == 0
        link = (
            await root.post("/api/admin/invitations", {"role": "adjudicator", "uses": 1, "hours": 2})
        ).json()["link"]
        assert link.startswith("http://127.0.0.1:8000/join#")
        code = link.partition("#")[2]
        judge = world.stranger()
        assert (await judge.post("/api/join", json={"code": code, "name": "judy"})).json()[
            "role"
        ] == "adjudicator"
        used = await world.stranger().post("/api/join", json={"code": code, "name": "eve"})
        assert used.status_code == 403 and "used up" in used.json()["error"]

        changed = await root.post("/api/admin/accounts", {"name": "ada", "role": "adjudicator"})
        assert changed.json()["role"] == "adjudicator"
        assert (await ada.get("/api/disputes")).status_code == 200
        fresh = (await root.post("/api/admin/accounts", {"name": "ada", "new_token": True})).json()["token"]
        assert (await ada.get("/api/me")).status_code == 401, "a new token ends the sessions of the old"
        client = world.stranger()
        assert (await client.post("/api/login", json={"token": ada.token})).status_code == 403
        assert (await client.post("/api/login", json={"token": fresh})).json()["name"] == "ada"
        await root.post("/api/admin/accounts", {"name": "ada", "disabled": True})
        assert (await client.get("/api/me")).status_code == 401
        assert (await client.post("/api/login", json={"token": fresh})).status_code == 403
        last = await root.post("/api/admin/accounts", {"name": "root", "role": "annotator"})
        assert last.status_code == 400 and "at least one admin" in last.json()["error"]
        assert (await root.get("/api/me")).json()["role"] == "admin"

        exported = await root.get("/api/admin/export", params={"format": "potato"})
        rows = [line for line in exported.text.splitlines() if line]
        assert exported.headers["content-disposition"] == 'attachment; filename="potato.jsonl"'
        assert rows and all('"annotator": "ada"' in row for row in rows)
        bad = await root.get("/api/admin/export", params={"format": "potatoes"})
        assert bad.status_code == 400 and "Did you mean 'potato'" in bad.json()["error"]

        log = (await root.get("/api/admin/audit")).json()["entries"]
        actions = [entry["action"] for entry in log]
        assert {"join", "invite", "login", "account", "export"} <= set(actions)
        assert [entry["id"] for entry in log] == sorted((e["id"] for e in log), reverse=True)
        everything = str(log)
        for secret in (code, fresh, ada.token, root.csrf):
            assert secret not in everything


async def test_sessions_end(tmp_path):
    async with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = await world.join("ada")
        assert (await ada.post("/api/logout")).status_code == 200
        assert (await ada.get("/api/me")).status_code == 401
        client = world.stranger()
        login = await client.post("/api/login", json={"token": ada.token})
        flags = login.headers["set-cookie"].lower()
        assert "httponly" in flags and "samesite=strict" in flags and "token" not in login.json()
        world.clock.now += 7 * 86400 - 1
        assert (await client.get("/api/me")).status_code == 200
        world.clock.now += 2
        assert (await client.get("/api/me")).status_code == 401
