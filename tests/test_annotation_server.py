"""The annotation server on both databases: what is acknowledged is there, once, after any restart; what cannot be is refused."""

from __future__ import annotations

import json
import sqlite3
import unicodedata
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from annotation_worlds import Clock, an_item, database_url, postgres, serving, suggestions
from stepmark.annotation.app import BODY_BYTES
from stepmark.annotation.items import Item
from stepmark.annotation.project import Help, Project
from stepmark.annotation.run import export_labels
from stepmark.annotation.store import HELD_SECONDS, Store
from stepmark.annotation.store import changes as change_table
from stepmark.errors import InputError, UsageError
from stepmark.records import Solution

__all__ = ["database_url"]
TWO = [an_item("one"), an_item("two")]


def test_label_and_look_back(database_url):
    with serving(database_url, TWO) as world:
        ada = world.person("ada")
        me = ada.get("/api/me").json()
        assert (me["name"], me["admin"], me["project"]["mode"]) == ("ada", False, "first_error")
        assert me["progress"] == {"submitted": 0, "of": 2}
        first = ada.next()
        assert first["item"]["id"] == "one"
        assert [step["parts"][0]["html"] for step in first["item"]["steps"]] == [
            f"step {k} of one" for k in range(3)
        ]
        assert (first["version"], first["suggestions"]) == (0, None)
        answer = ada.change("one", "first_error", step=1, seconds=7.5).json()
        assert (answer["version"], answer["marks"]["ratings"]) == (1, [1, -1, None])
        world.clock.now += 10
        answer = ada.change("one", "submit", seconds=500).json()  # more than the clock says: capped
        assert (answer["version"], answer["marks"]["submitted"]) == (2, True)
        assert ada.get("/api/me").json()["progress"] == {"submitted": 1, "of": 2}
        assert ada.next(after="one")["item"]["id"] == "two"
        assert ada.next(after="two")["item"]["id"] == "two"  # skipped, and the only one left
        rows = ada.get("/api/mine").json()
        assert [(row["id"], row["submitted"], row["title"]) for row in rows] == [("one", True, "problem one")]
        again = ada.get("/api/item?id=one").json()
        assert (again["version"], again["marks"]["submitted"]) == (2, True)
        (answer,) = world.store.answers(world.project)
        assert (answer.item, answer.account, answer.marks.first_error) == ("one", "ada", 1)
        assert answer.seconds == 17.5


def test_all_is_there_after_a_restart(database_url):
    clock, id = Clock(), uuid.uuid4().hex
    with serving(database_url, TWO, clock=clock) as world:
        ada = world.person("ada")
        ada.next()
        ada.label("one", 2)
        ada.next(after="one")
        assert ada.change("two", "first_error", step=0, id=id).status_code == 200
        token = ada.token
    with serving(database_url, TWO, clock=clock) as world:
        assert world.person("bob").next()["reason"] == "waiting"  # ada has it open
        ada = world.person("ada")
        assert ada.token == token
        found = ada.next()
        assert (found["item"]["id"], found["version"], found["can_undo"]) == ("two", 1, True)
        # The acknowledgement was lost on the way, so the page sends the same change again.
        assert ada.change("two", "first_error", step=0, id=id).json()["version"] == 1
        assert ada.change("two", "undo").json()["marks"]["first_error"] is None
        assert ada.change("two", "redo").json()["marks"]["first_error"] == 0
        assert ada.change("two", "submit").json()["marks"]["submitted"]
        assert [a.marks.first_error for a in world.store.answers(world.project)] == [2, 0]
        assert ada.next()["reason"] == "done"


def test_the_same_id_is_stored_once(database_url):
    with serving(database_url, TWO) as world:
        ada = world.person("ada")
        ada.next()
        id = uuid.uuid4().hex
        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(ada.change, "one", "first_error", step=1, id=id) for _ in range(20)]
        assert {answer.result().status_code for answer in sent} == {200}
        with world.store.reading() as connection:
            assert len(connection.execute(change_table.select()).all()) == 1
        other = ada.change("one", "first_error", step=2, id=id)
        assert (other.status_code, other.json()["field"]) == (400, "id")


def test_changes_that_come_at_once_make_one_log(database_url):
    with serving(database_url, [an_item("one", 20)], Project(mode="per_step")) as world:
        ada = world.person("ada")
        ada.next()
        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(ada.change, "one", "rate", step=k, rating=1) for k in range(20)]
        assert sorted(answer.result().json()["version"] for answer in sent) == list(range(1, 21))
        (answer,) = world.store.answers(world.project)
        assert answer.marks.ratings == (1,) * 20


def test_who_gets_which_item(database_url):
    with serving(database_url, [*TWO, an_item("three")], Project(overlap=2)) as world:
        ada, bob, cid = (world.person(name) for name in ("ada", "bob", "cid"))
        assert [p.next()["item"]["id"] for p in (ada, bob, cid)] == ["one", "one", "two"]
        # Of an overlap of two, one place is free when one of the two leaves the item.
        assert bob.next(after="one")["item"]["id"] == "two"
        assert cid.next(after="two")["item"]["id"] == "one"
        # Who has one open for too long loses the place, not the click: it is stored all the same.
        world.clock.now += HELD_SECONDS + 1
        assert bob.next(after="two")["item"]["id"] == "three"
        assert ada.change("one", "first_error", step=0).status_code == 200
        # A submitted place is kept.
        ada.change("one", "submit")
        cid.next()
        cid.label("one", 2)
        assert bob.next(after="three")["item"]["id"] == "two"
        assert world.person("dan").next()["item"]["id"] == "two"


def test_the_last_place_is_given_once(database_url):
    people = [f"p{k}" for k in range(8)]
    with serving(database_url, [an_item("one")]) as world:
        with ThreadPoolExecutor(8) as pool:
            given = list(pool.map(lambda name: world.person(name).next(), people))
        assert sum(answer["item"] is not None for answer in given) == 1
        assert {answer["reason"] for answer in given if answer["item"] is None} == {"waiting"}


def test_suggestions_after_the_first_pass(database_url):
    items = [an_item("one", suggestions=suggestions(1, -1, -1))]
    project = Project(help=Help(show="after"))
    with serving(database_url, items, project) as world:
        ada = world.person("ada")
        assert ada.next()["suggestions"] is None
        ada.change("one", "first_error", step=-1)
        answer = ada.change("one", "submit").json()
        assert [s["rating"] for s in answer["suggestions"]] == [1, -1, -1]
        assert ada.change("one", "reopen").status_code == 200
        ada.change("one", "first_error", step=1)
        assert ada.change("one", "submit").json()["marks"]["submitted"]
        assert ada.next()["reason"] == "done"
        (answer,) = world.store.answers(world.project)
        assert answer.marks.first_error == 1
        assert answer.first_pass is not None
        assert answer.first_pass.first_error == -1


def test_a_disagreement_and_its_decision(database_url):
    with serving(database_url, TWO[:1], Project(overlap=2, error_types=("slip",))) as world:
        ada, bob, admin = world.person("ada"), world.person("bob"), world.admin()
        for person, step in ((ada, 0), (bob, 2)):
            person.next()
            person.change("one", "first_error", step=step)
            person.change("one", "error_type", step=step, text="slip")
            person.change("one", "submit")
        (row,) = admin.get("/api/disputes").json()
        assert (row["item"], row["annotators"], row["state"]) == ("one", ["ada", "bob"], "open")
        page = admin.get("/api/dispute?id=one").json()
        assert (page["decision"], page["differing"]) == (None, [0])
        body = {"item": "one", "reason": "the sum", "version": page["answers_version"]}
        assert admin.post("/api/decisions", body).status_code == 400, "nothing is marked yet"
        assert admin.post("/api/take-over", {"item": "one", "account": "zoe"}).status_code == 400
        taken = admin.post("/api/take-over", {"item": "one", "account": "ada"}).json()
        assert taken["marks"]["error_types"] == [[0, "slip"]]
        taken = admin.post("/api/take-over", {"item": "one", "account": "bob"}).json()
        assert (taken["marks"]["first_error"], taken["marks"]["error_types"]) == (2, [[2, "slip"]])
        note = admin.change("one", "note", step=2, text="half", deciding=True).json()
        assert note["marks"]["notes"] == [[2, "half"]]
        assert admin.post("/api/decisions", {**body, "version": "0000"}).status_code == 409
        assert admin.post("/api/decisions", body).status_code == 200
        (decision,) = world.store.decisions()
        assert (decision.account, decision.over) == ("admin", ("ada", "bob"))
        assert (decision.marks.first_error, decision.marks.notes) == (2, ((2, "half"),))
        assert [row["state"] for row in admin.get("/api/disputes").json()] == ["decided"]
        admin.change("one", "first_error", step=1, deciding=True)
        admin.post("/api/decisions", body)
        (decision,) = world.store.decisions()
        assert decision.marks.first_error == 1
        # An answer that disagrees and is changed afterwards brings it back.
        world.clock.now += 1
        ada.change("one", "reopen")
        ada.change("one", "note", text="hm")
        ada.change("one", "submit")
        assert [row["state"] for row in admin.get("/api/disputes").json()] == ["reopened"]
        assert [a.account for a in world.store.answers(world.project)] == ["ada", "bob"]


def test_the_project_page_and_exports(database_url):
    with serving(database_url, TWO, Project(overlap=2)) as world:
        admin, ada = world.admin(), world.person("ada")
        for _ in range(2):
            ada.label(ada.next()["item"]["id"], 1)
        made = admin.post("/api/people", {"name": "Bob"}).json()
        assert made["link"].startswith("http://127.0.0.1:8000/#")
        data = admin.get("/api/project").json()
        assert data["progress"] == {"submitted": 2, "of": 4}
        assert [(one["name"], one["submitted"]) for one in data["people"]] == [
            ("admin", 0),
            ("ada", 2),
            ("Bob", 0),
        ]
        assert data["agreement"]["items"] == 0
        exported = admin.get("/api/export", params={"format": "prm800k"})
        rows = [json.loads(line) for line in exported.text.splitlines()]
        assert exported.headers["content-disposition"] == 'attachment; filename="prm800k.jsonl"'
        assert [row["labeler"] for row in rows] == ["ada", "ada"]
        assert admin.get("/api/export", params={"format": "prm900k"}).status_code == 400
        assert admin.get("/api/export", params={"neutral": "maybe"}).json()["field"] == "neutral"


def test_names_that_differ_in_form_or_case_alone_are_one_annotator(database_url):
    with serving(database_url, TWO) as world:
        composed = world.store.person("José Straße")
        for name in ("Jose\u0301 Straße", "JOSÉ STRASSE", " josé  straße "):
            assert world.store.person(name) == composed
        assert unicodedata.is_normalized("NFC", world.store.person("Zoe\u0308").name)
        assert [one.name for one in world.store.people()] == ["José Straße", "Zoë"]
        for name in ("", "  ", "x" * 61, "a\x00b", "a\u202eb"):
            with pytest.raises(InputError):
                world.store.person(name)
        # A new link ends the one of before.
        renewed = world.store.person("josé straße", new=True)
        assert (renewed.id, renewed.name) == (composed.id, composed.name)
        assert world.store.person_of(composed.token) is None
        assert world.store.person_of(renewed.token) == renewed


def test_settings_that_labels_depend_on(tmp_path):
    file = tmp_path / "x.sqlite"
    with serving(file, TWO) as world:
        world.person("ada").next()
        world.person("ada").label("one", 1)
    with Store(str(file)) as store:
        with pytest.raises(UsageError, match="mode"):
            store.prepare(Project(mode="per_step"), TWO, "")
        with pytest.raises(InputError, match="another solution"):
            store.prepare(Project(), [an_item("one", 4)], "")
        assert store.prepare(Project(), [*TWO, an_item("three")], "") == 3
    with pytest.raises(UsageError, match="no file"):
        Store(str(tmp_path / "none.sqlite"), create=False)
    pytest.importorskip("psycopg")
    with pytest.raises(UsageError, match="cannot be opened") as caught:
        Store(f"postgresql+psycopg://me:secret@/x?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_an_export_before_anything_is_submitted_says_so(tmp_path):
    file = tmp_path / "x.sqlite"
    with serving(file, TWO) as world:
        ada = world.person("ada")
        ada.next()
        ada.change("one", "first_error", step=1)
        world.clock.now += 10
    begun = export_labels(file)
    assert len(begun) == 0 and "1 answer begun" in begun.summary and "unfinished" in begun.summary
    whole = export_labels(file, unfinished=True)
    assert len(whole) == 1 and "unfinished" not in whole.summary


# What nobody's page sends.

OPEN = {("GET", "/"), ("GET", "/health")}
ADMINS = {
    ("GET", "/api/disputes"),
    ("GET", "/api/dispute"),
    ("POST", "/api/take-over"),
    ("POST", "/api/decisions"),
    ("GET", "/api/project"),
    ("POST", "/api/people"),
    ("GET", "/api/export"),
}


def test_every_route_asks_who_it_is(tmp_path):
    with serving(tmp_path / "x.sqlite", TWO) as world:
        spec = world.client.get("/api/openapi.json").json()["paths"]
        routes = {(method.upper(), path) for path, of in spec.items() for method in of}
        assert routes > ADMINS | OPEN
        ada = world.person("ada")
        ada.next()
        tokens = ["", "x", ada.token[:-1], ada.token + "x", ada.token.swapcase(), "é"]
        for method, path in routes:
            for token in tokens:
                headers = {"authorization": f"Bearer {token}".encode()}
                status = world.client.request(method, path, headers=headers).status_code
                assert status == (200 if (method, path) in OPEN else 401), (method, path, token)
            status = world.client.request(method, path, headers=ada.headers).status_code
            assert (status == 403) == ((method, path) in ADMINS), (method, path)
        assert ada.change("one", "first_error", step=1, deciding=True).status_code == 403
        # Another's item, and one that is not there.
        bob = world.person("bob")
        assert bob.next()["item"]["id"] == "two"
        assert (bob.get("/api/item?id=one").status_code, bob.get("/api/item?id=none").status_code) == (
            403,
            404,
        )
        assert bob.change("one", "first_error", step=1).status_code == 403


GOOD = {"item": "one", "id": "12345678-abcd", "change": {"kind": "first_error", "step": 1}, "seconds": 1}
BODIES = [
    b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff\xfe\x00", b"{'a': 1}", b'{"item": "one"', b"[" * 100_000,
    b'{"item": "\\ud800"}', b'{"seconds": NaN}', json.dumps(GOOD).encode().replace(b'"seconds"', b'"item": "two", "seconds"'),
    json.dumps(GOOD).encode().replace(b'"step"', b'"step": 0, "step"'),
]  # fmt: skip
FIELDS = [
    ("item", None), ("item", 1), ("item", ["one"]),
    ("id", None), ("id", ""), ("id", "short"), ("id", "x" * 65), ("id", "a b c d e f g"), ("id", 12345678), ("id", "é" * 20),
    ("seconds", -1), ("seconds", "1"), ("seconds", True), ("seconds", []), ("deciding", 1), ("extra", 1),
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


def test_malformed_bodies(tmp_path):
    with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = world.person("ada")
        ada.next()
        for body in BODIES:
            answer = ada.post("/api/changes", content=body)
            assert answer.status_code == 400, (body[:60], answer.text)
            assert answer.json()["error"]
        for field, value in FIELDS:
            answer = ada.post("/api/changes", {**GOOD, field: value})
            assert answer.status_code == 400, (field, value, answer.text)
            assert answer.json()["field"].startswith(field), (field, value, answer.text)
        assert ada.post("/api/changes", content=b" " * (BODY_BYTES + 1)).status_code == 413
        assert ada.post("/api/changes", content=(b" " * 10_000 for _ in range(1000))).status_code == 413
        assert ada.get("/api/item?id=one").json()["version"] == 0
        assert ada.post("/api/changes", GOOD).json()["version"] == 1


def test_text_comes_back_as_it_was(database_url):
    texts = ["<script>", "\x00 and \\u0000", "'; DROP TABLE changes; --", "\u202e \U0001f600 é", "%s $[0] {}"]
    problem = "<img src=x onerror=alert(1)>"
    with serving(database_url, [Item(id="it\"'é %s", solution=Solution.of(problem, ["a"]))]) as world:
        ada = world.person("ada")
        found = ada.next()["item"]
        assert found["problem"]["html"] == "&lt;img src=x onerror=alert(1)&gt;"
        for text in texts:
            assert ada.change(found["id"], "note", step=0, text=text).status_code == 200
            (answer,) = world.store.answers(world.project)
            assert answer.marks.notes == ((0, text),)


PATHS = [
    "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/__init__.py", "/static//etc/passwd",
    "/static/katex/../../../../records.py", "/static/", "/static/.", "/server.py",
]  # fmt: skip


def test_paths_do_not_escape(tmp_path):
    with serving(tmp_path / "x.sqlite", TWO) as world:
        for path in PATHS:
            answer = world.client.get(path)
            assert answer.status_code == 404, path
            assert "import" not in answer.text
            assert "root:" not in answer.text
        assert "'self'" in world.client.get("/").headers["content-security-policy"]


# A database that is away.


def test_postgresql_goes_away_and_comes_back():
    server = postgres()
    with serving(server.new(), TWO) as world:
        ada = world.person("ada")
        ada.next()
        server.stop()
        try:
            for answer in (ada.change("one", "first_error", step=1), ada.get("/api/me")):
                assert answer.status_code == 503
                assert answer.json()["error"]
                assert answer.headers["retry-after"] == "1"
        finally:
            server.start()
        assert ada.change("one", "first_error", step=1).json()["version"] == 1


def test_a_database_that_cannot_write(tmp_path):
    with serving(tmp_path / "x.sqlite", TWO) as world:
        ada = world.person("ada")
        ada.next()
        other = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with world.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout=50")  # of the one connection in the pool
        answer = ada.change("one", "first_error", step=1)
        assert answer.status_code == 503
        assert answer.json()["error"]
        other.execute("ROLLBACK")
        other.close()
        assert ada.change("one", "first_error", step=1).json()["version"] == 1
