"""Backup and restore: one SQLite file with everything, whichever database the project is on."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from stepmark.annotation import tables
from stepmark.annotation.database import Database
from stepmark.errors import InputError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_MANY = 1000


def backup(database: Database, to: Path, *, force: bool = False) -> None:
    """Copy everything as it is at this moment; the project may go on meanwhile. The file is finished or absent.

    Args:
        database: what is copied.
        to: an SQLite file.
        force: overwrite it.

    Raises:
        UsageError: there is a file already.
    """
    if to.exists() and not force:
        raise UsageError(f"{to}: there is a file already; give another name, or overwrite it with `force`")
    part = to.with_name(f".{to.name}.part")
    part.unlink(missing_ok=True)
    try:
        if database.path is not None:
            with closing(sqlite3.connect(database.path)) as source, closing(sqlite3.connect(part)) as target:
                source.backup(target)
                # One file, so that nobody forgets the others.
                target.execute("PRAGMA journal_mode=DELETE")
        else:
            with (
                Database(f"sqlite:///{part.absolute()}") as copy,
                database.reading() as source_rows,
                copy.writing() as target_rows,
            ):
                _copy(source_rows, target_rows)
            with closing(sqlite3.connect(part)) as target:
                target.execute("PRAGMA journal_mode=DELETE")
        _check(part)
        _sync(part)
        part.replace(to)
        _sync(to.parent)
    finally:
        for end in ("", "-wal", "-shm"):
            part.with_name(part.name + end).unlink(missing_ok=True)


def restore(source: Path, url: str, *, force: bool = False) -> None:
    """Put a backup in the place of a database. No server may run on it.

    Args:
        source: what `backup` wrote.
        url: the database, as `Database` takes it.
        force: overwrite what is there.

    Raises:
        InputError: the file is no backup, or damaged.
        UsageError: the database holds something and `force` is false, or is being served.
    """
    _check(source)
    with (
        Database(f"sqlite:///{source.absolute()}", create=False) as old,
        Database(url) as new,
        new.lock(),
        old.reading() as source_rows,
        new.writing() as target_rows,
    ):
        if not force and any(
            target_rows.execute(table.select().limit(1)).first()
            for table in (tables.accounts, tables.items, tables.changes)
        ):
            raise UsageError(
                f"{new.shown}: holds a project already; `force` puts the backup in its place, and what is there is lost"
            )
        _copy(source_rows, target_rows)


def _copy(source: Connection, target: Connection) -> None:
    from sqlalchemy import text

    for table in tables.metadata.sorted_tables:
        target.execute(table.delete())
        rows = source.execute(table.select().execution_options(yield_per=_MANY))
        for part in rows.mappings().partitions(_MANY):
            target.execute(table.insert(), [dict(row) for row in part])
        if target.dialect.name == "postgresql" and table.c.get("id") is not None and table.name in _NUMBERED:
            # Rows came with their numbers, of which the sequence knows nothing.
            target.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "  # noqa: S608 - our own names
                    f"COALESCE((SELECT MAX(id) FROM {table.name}), 0) + 1, false)"
                )
            )


_NUMBERED = ("accounts", "decisions", "audit")


def _check(file: Path) -> None:
    if not file.is_file():
        raise InputError("expected a backup, found no file", where=str(file))
    try:
        with closing(sqlite3.connect(f"file:{file.absolute()}?mode=ro", uri=True)) as connection:
            verdict = connection.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise InputError(f"expected a backup, found {error}", where=str(file)) from None
    if verdict != "ok":
        raise InputError(f"the backup is damaged: {verdict}", where=str(file))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
