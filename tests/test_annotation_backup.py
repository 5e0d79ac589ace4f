"""Backup and restore, the command's other errands, and the start of a project."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
from contextlib import asynccontextmanager

import pytest

from annotation_worlds import an_item, anyio_backend, database_url, serving
from stepmark.annotation import tables
from stepmark.annotation.database import Database, backup, restore
from stepmark.annotation.project import Project
from stepmark.annotation.run import backup_labels, export_labels
from stepmark.annotation.stored import first_code, prepare
from stepmark.cli import main
from stepmark.errors import InputError, UsageError

__all__ = ["anyio_backend", "database_url"]
pytestmark = pytest.mark.anyio


def everything(url):
    with Database(str(url), create=False) as database, database.reading() as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(table.select())), key=repr)
            for table in tables.metadata.sorted_tables
        }


@asynccontextmanager
async def labelled(url):
    """A project with people and labels, served."""
    async with serving(url, [an_item("one"), an_item("two")]) as world:
        ada = await world.join("ada")
        await ada.next()
        await ada.label("one", 1)
        yield world, ada


async def test_there_and_back(database_url, tmp_path):
    async with labelled(database_url):
        pass
    before = everything(database_url)
    assert len(before["changes"]) == 2 and before["accounts"] and before["audit"]
    copy = tmp_path / "copy.sqlite"
    with Database(database_url) as database:
        backup(database, copy)
    assert everything(copy) == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".", "copy"))) == ["copy.sqlite"]
    other = tmp_path / "restored.sqlite"
    restore(copy, str(other))
    assert everything(other) == before

    async def on():
        """The restored project goes on: the session holds, numbers go on where they were."""
        async with serving(other) as world:
            bob = await world.join("bob")
            assert (await bob.next())["item"]["id"] == "two"
            await bob.label("two", 0)

    await on()


async def test_a_backup_of_a_running_project_is_consistent(database_url, tmp_path):
    async with labelled(database_url) as (world, ada):
        root = await world.join("root", "admin")
        await ada.next(after="one")
        stop = False

        async def click():
            version = 0
            while not stop:
                answer = await ada.change("two", version, "first_error", step=version % 3)
                assert answer.status_code == 200
                version += 1
                world.clock.now += 0.1  # else who clicks while backups take long clicks too often
                await asyncio.sleep(0.02)
            return version

        clicking = asyncio.create_task(click())
        copies = []
        for _ in range(3):
            await asyncio.sleep(0.02)
            answer = await root.get("/api/admin/backup")
            assert answer.status_code == 200
            copies.append(answer.content)
        stop = True
        last = await clicking
        lengths = []
        for number, content in enumerate(copies):
            file = tmp_path / f"{number}.sqlite"
            file.write_bytes(content)
            rows = everything(file)["changes"]
            versions = sorted(row[3] for row in rows if row[1] == "two")
            assert versions == list(range(1, len(versions) + 1)), "a log without gaps"
            lengths.append(len(versions))
        assert lengths == sorted(lengths) and lengths[-1] <= last


async def test_what_is_there_is_not_overwritten(tmp_path):
    here, there, copy = tmp_path / "a.sqlite", tmp_path / "b.sqlite", tmp_path / "copy.sqlite"
    async with labelled(here):
        pass
    async with labelled(there):
        pass
    kept = everything(there)
    with Database(str(here)) as database:
        backup(database, copy)
        with pytest.raises(UsageError, match="`force`"):
            backup(database, copy)
        backup(database, copy, force=True)
    with pytest.raises(UsageError, match="`force`"):
        restore(copy, str(there))
    assert everything(there) == kept
    restore(copy, str(there), force=True)
    assert everything(there) == everything(here) != kept


def test_a_backup_that_is_none(tmp_path):
    for content in (b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 4000):
        file = tmp_path / "bad"
        file.write_bytes(content)
        with pytest.raises((InputError, UsageError)):
            restore(file, str(tmp_path / "new.sqlite"))
    with pytest.raises(InputError, match="no file"):
        restore(tmp_path / "absent", str(tmp_path / "new.sqlite"))
    sqlite3.connect(tmp_path / "other.sqlite").close()
    other = tmp_path / "strange.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    with pytest.raises(UsageError, match="none of its tables"):
        restore(other, str(tmp_path / "new.sqlite"))


@pytest.fixture
def project(tmp_path):
    file = tmp_path / "items.jsonl"
    rows = [{"id": f"i{k}", "problem": f"p{k}", "steps": ["a", "b"]} for k in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


async def test_errands_of_the_command(project, tmp_path, capsys):
    database = project.with_suffix(".annotations.sqlite")
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    assert main(["annotate", "invite", str(database)]) == 2
    assert "found no file" in capsys.readouterr().err
    assert not database.exists(), "an errand makes no project"
    settings = Project(items=(project,))
    with Database(str(database)) as opened:
        assert prepare(settings, opened) == 3
        assert first_code(opened) is not None
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    await labelled_one(database)

    words = ["--role", "adjudicator", "--url", "http://127.0.0.1:9000"]
    assert main(["annotate", "invite", str(database), *words]) == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:9000/join#")
    export = ["annotate", "export", str(database), "--format", "potato", "--out", str(out)]
    assert main(export) == 0
    row = {
        "instance_id": "i0",
        "annotator": "ada",
        "mode": "first_error",
        "steps": [{"index": 0, "reward": 1}, {"index": 1, "reward": -1}],
    }
    assert [json.loads(line) for line in out.read_text().splitlines()] == [row]
    assert main(export) == 2
    assert "--force" in capsys.readouterr().err
    rows = export_labels(database, format="potato", out=again)
    assert again.read_bytes() == out.read_bytes()
    assert list(rows) == list(export_labels(database, format="potato")) == [row]
    with pytest.raises(UsageError, match="overwrite it with `force`"):
        export_labels(database, format="potato", out=again)
    assert main(["annotate", "backup", str(database), "--out", str(tmp_path / "b")]) == 0
    with pytest.raises(UsageError, match="`force`"):
        backup_labels(database, out=tmp_path / "b")
    restore = ["annotate", "restore", str(tmp_path / "b"), "--database", str(database)]
    assert main(restore) == 2
    assert "--force puts the backup in its place" in capsys.readouterr().err
    assert main([*restore, "--force"]) == 0
    with Database(str(database)) as opened, opened.reading() as connection:
        actions = [
            row.action for row in connection.execute(tables.audit.select().order_by(tables.audit.c.id))
        ]
    assert actions == ["items", "invite", "invite", "join", "invite", "export", "export", "export", "restore"]


async def labelled_one(database):
    async with serving(database) as world:
        ada = await world.join("ada")
        await ada.label((await ada.next())["item"]["id"], 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--url"),  # noqa: S104
        (["--host", "192.168.0.1", "--port", "1"], "--url"),
        (["--url", "ftp://x"], "--url ftp://x"),
        (["--url", "http://x/path"], "--url"),
        (["--port", "0"], "--port 0"),
        (["--threshold", "0.5"], "--suggest"),
        (["--database", "mysql://x"], "mysql"),
        (["--database", "/nowhere/at/all/x.sqlite"], "cannot be made"),
        (["--allow-neutral"], "allow_neutral"),
    ],
)  # fmt: skip
def test_flags_that_cannot_work(project, capsys, words, said):
    assert main(["annotate", str(project), *words]) == 2
    assert said in capsys.readouterr().err


async def test_starting_again_changes_nothing(project, database_url):
    settings = Project(items=(project,))
    with Database(database_url) as database:
        prepare(settings, database)
        with database.reading() as connection:
            first = connection.execute(tables.items.select()).all()
        prepare(settings, database)
        with database.reading() as connection:
            assert connection.execute(tables.items.select()).all() == first
            assert len(connection.execute(tables.audit.select()).all()) == 1
    await labelled_one(database_url)
    with Database(database_url) as database:
        with pytest.raises(UsageError, match="put the settings back"):
            prepare(Project(items=(project,), mode="per_step"), database)
        project.write_text('{"id": "i0", "problem": "another", "steps": ["a", "b"]}\n')
        with pytest.raises(InputError, match="another solution"):
            prepare(settings, database)
