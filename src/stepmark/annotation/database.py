"""The database: opening it, its pragmas, who may write, and how records are read back.

SQLite runs in WAL mode with `synchronous=FULL`: a commit that has returned is on disk. One server process may write (`lock`); exports, backups
and invitations from other processes read or add single rows beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepmark.annotation import tables
from stepmark.errors import InputError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from stepmark.annotation.project import Project

Dialect = Literal["sqlite", "postgresql"]

_LOCK_KEY = 0x57E9_3A2C
"""PostgreSQL's advisory lock of the writing server: any constant that no other program uses."""


class Database:
    """An open database with its tables made.

    Args:
        url: an SQLAlchemy URL of SQLite or PostgreSQL, or the path of an SQLite file.
        create: make the file and the tables where they are absent.

    Raises:
        UsageError: a URL of another kind of database, a missing driver, tables of another version, or nothing there and `create` is false.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = database_url(url)
        self.dialect: Dialect = "sqlite" if self.url.startswith("sqlite") else "postgresql"
        self.path = Path(self.url.partition(":///")[2]) if self.dialect == "sqlite" else None
        """The file, on SQLite."""
        if self.path is not None and not create and not self.path.is_file():
            raise UsageError(f"{self.path}: expected a database of annotations, found no file")
        self._new = self.path is not None and not self.path.exists()
        if self.path is not None and self._new:
            try:
                self.path.touch(mode=0o600)  # it holds what people said, and hashes of their tokens
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be made: {error.strerror}") from None
        self.engine = _engine(self.url, self.dialect)
        try:
            self._prepare(create)
        except BaseException:
            self.engine.dispose()
            raise

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()

    def abandon(self) -> None:
        """Remove the file if this object made it and no item is stored: a refused start leaves nothing."""
        from sqlalchemy import select

        if self.path is None or not self._new:
            return
        with self.reading() as connection:
            if connection.execute(select(tables.items.c.id).limit(1)).first() is not None:
                return
        self.close()
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database for as long as it is open."""
        with self.engine.connect() as connection:
            if self.dialect == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all of it or nothing. Not for the server's own traffic, which goes through `Writer`."""
        with self.engine.connect() as connection, immediate(connection).begin():
            yield connection

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only server on this database.

        Raises:
            UsageError: another process is.
        """
        taken = UsageError(
            f"{self.shown}: another stepmark serves this database; stop it, or give another `database`"
        )
        if self.path is not None:
            with _locked(Path(f"{self.path}.lock"), taken):
                yield
            return
        from sqlalchemy import text

        with self.engine.connect() as connection:
            held = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}).scalar()
            connection.commit()
            if not held:
                raise taken
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK_KEY})
                connection.commit()

    @property
    def shown(self) -> str:
        """The database's name for messages, without a password."""
        from sqlalchemy import make_url

        return (
            str(self.path)
            if self.path is not None
            else make_url(self.url).render_as_string(hide_password=True)
        )

    def _prepare(self, create: bool) -> None:
        from sqlalchemy import inspect, select
        from sqlalchemy.exc import DBAPIError

        try:
            there = "meta" in inspect(self.engine).get_table_names()
            if not there and not create:
                raise UsageError(
                    f"{self.shown}: expected a database of annotations, found none of its tables"
                )
            if not there:
                with self.writing() as connection:
                    tables.metadata.create_all(connection)
                    connection.execute(tables.meta.insert(), {"key": "schema", "value": str(tables.SCHEMA)})
            with self.reading() as connection:
                found = connection.execute(
                    select(tables.meta.c.value).where(tables.meta.c.key == "schema")
                ).scalar()
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()[0] if error.orig else "unknown"
            raise UsageError(f"{self.shown}: cannot be opened as a database: {reason}") from None
        if found != str(tables.SCHEMA):
            raise UsageError(
                f"{self.shown}: expected tables of version {tables.SCHEMA}, found {found}; use the stepmark that made them"
            )


@contextmanager
def _locked(file: Path, taken: UsageError) -> Iterator[None]:
    """Hold a file that is there only while it is held.

    Raises:
        UsageError: `taken`, where another process holds it.
    """
    import fcntl

    while True:
        with file.open("a", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise taken from None
            # Its last holder may have removed it after it was opened here: then it keeps nobody out.
            try:
                same = os.path.samestat(os.fstat(handle.fileno()), file.stat())
            except FileNotFoundError:
                same = False
            if not same:
                continue
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
            return


def database_url(url: str) -> str:
    """A path or a URL as SQLAlchemy wants it.

    Raises:
        UsageError: not SQLite and not PostgreSQL.
    """
    if "://" not in url:
        return f"sqlite:///{Path(url).absolute()}"
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        return "postgresql+psycopg://" + url.partition("://")[2]
    if scheme not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(
            f"`database` {scheme}://…: expected a file for SQLite, sqlite:///FILE, or postgresql+psycopg://USER@HOST/NAME"
        )
    return url


def immediate(connection: Connection) -> Connection:
    """The connection, set to take SQLite's write lock at once: a later upgrade could fail half-way."""
    return connection.execution_options(stepmark_immediate=True)


def _engine(url: str, dialect: Dialect) -> Engine:
    from sqlalchemy import create_engine, event

    if dialect == "postgresql":
        try:
            return create_engine(url, pool_pre_ping=True)
        except ModuleNotFoundError:
            from stepmark.errors import MissingExtraError

            raise MissingExtraError(
                "PostgreSQL needs the package psycopg: pip install 'stepmark[annotate,postgres]'"
            ) from None
    engine = create_engine(url, connect_args={"timeout": 30})

    # The driver's own idea of when a transaction begins is too late for a consistent read.
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "busy_timeout=30000",
            "trusted_schema=OFF",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        now = connection.get_execution_options().get("stepmark_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if now else "BEGIN")

    return engine


def check_settings(database: Database, project: Project) -> None:
    """Hold the database to the settings that its log was made with.

    Args:
        database: where the log is.
        project: the settings now.

    Raises:
        UsageError: labels were made in another mode: they would mean something else now.
    """
    from sqlalchemy import select

    now = {"mode": project.mode, "allow_neutral": project.allow_neutral}
    with database.writing() as connection:
        stored = connection.execute(
            select(tables.meta.c.value).where(tables.meta.c.key == "settings")
        ).scalar()
        labelled = connection.execute(select(tables.changes.c.version).limit(1)).first() is not None
        if stored is not None and labelled and json.loads(stored) != now:
            before = json.loads(stored)
            raise UsageError(
                f"{database.shown}: its labels were made with mode {before['mode']!r} and allow_neutral "
                f"{before['allow_neutral']}, the project says {now['mode']!r} and {now['allow_neutral']}; "
                "put the settings back, or give another `database`"
            )
        connection.execute(tables.meta.delete().where(tables.meta.c.key == "settings"))
        connection.execute(tables.meta.insert(), {"key": "settings", "value": json.dumps(now)})


def check_text(text: str, *, what: str, where: str | None = None) -> str:
    """The same text, if both databases can hold it.

    Raises:
        InputError: it has a NUL character or half a surrogate pair.
    """
    if "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise InputError(
            f"{what}: expected text, found a NUL character or half a surrogate pair", where=where
        )
    return text
