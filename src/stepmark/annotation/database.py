"""The database: opening it, its lock, backups, and the server's writes.

SQLite runs in WAL mode with `synchronous=FULL`: a commit that has returned is on disk. One server process may write (`lock`); exports, backups
and invitations from other processes read or add single rows beside it. What arrives at the server while one transaction is on its way to disk is
written by the next one, together (`Writer`). A backup is one SQLite file, whichever database the project is on.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from stepmark.annotation import tables
from stepmark.errors import InputError, MissingExtraError, UsageError

_LOCK_KEY = 0x57E9_3A2C
"""PostgreSQL's advisory lock of the writing server: any constant that no other program uses."""
_ROWS_AT_ONCE = 1000
_NUMBERED = ("accounts", "decisions", "audit")
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "busy_timeout=30000",
    "trusted_schema=OFF",
)


class Database:
    """An open database with its tables made, at an SQLAlchemy URL of SQLite or PostgreSQL, or the path of an SQLite file.

    Raises:
        UsageError: another kind of database, tables of another version, or nothing there and `create` is false.
        MissingExtraError: PostgreSQL without its driver.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = database_url(url)
        self.dialect: Literal["sqlite", "postgresql"] = (
            "sqlite" if self.url.startswith("sqlite") else "postgresql"
        )
        self.path = Path(self.url.partition(":///")[2]) if self.dialect == "sqlite" else None
        """The file, on SQLite."""
        if self.path is not None and not create and not self.path.is_file():
            raise UsageError(f"{self.path}: expected a database of annotations, found no file")
        if self.path is not None and not self.path.exists():
            try:
                self.path.touch(mode=0o600)  # it holds what people said, and hashes of their tokens
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be made: {error.strerror}") from None
        self.engine = _sqlite_engine(self.url) if self.path is not None else _postgresql_engine(self.url)
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

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
        """A transaction: all of it or nothing. The server's own traffic goes through `Writer` instead."""
        with self.engine.connect() as connection, immediate(connection).begin():
            yield connection

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only server on this database.

        Raises:
            UsageError: another process serves it.
        """
        refusal = UsageError(
            f"{self.shown}: another stepmark serves this database; stop it, or give another `database`"
        )
        if self.path is not None:
            import fcntl

            with Path(f"{self.path}.lock").open("a") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise refusal from None
                yield
            return
        with self.engine.connect() as connection:  # closing it gives the lock back
            connection.detach()
            if not connection.execute(text(f"SELECT pg_try_advisory_lock({_LOCK_KEY})")).scalar():
                raise refusal
            connection.commit()
            yield

    @property
    def shown(self) -> str:
        """The database's name for messages, without a password."""
        return str(self.path or make_url(self.url).render_as_string(hide_password=True))

    def _prepare(self, create: bool) -> None:
        try:
            if "meta" not in inspect(self.engine).get_table_names():
                if not create:
                    raise UsageError(
                        f"{self.shown}: expected a database of annotations, found none of its tables"
                    )
                with self.writing() as connection:
                    tables.metadata.create_all(connection)
                    connection.execute(tables.meta.insert(), {"key": "schema", "value": str(tables.SCHEMA)})
            with self.reading() as connection:
                version = connection.execute(
                    select(tables.meta.c.value).where(tables.meta.c.key == "schema")
                ).scalar()
        except DBAPIError as error:
            reason = str(error.orig).strip().splitlines()[0] if error.orig else "unknown"
            raise UsageError(f"{self.shown}: cannot be opened as a database: {reason}") from None
        if version != str(tables.SCHEMA):
            raise UsageError(
                f"{self.shown}: expected tables of version {tables.SCHEMA}, found {version}; use the stepmark that made them"
            )


def database_url(url: str) -> str:
    """A path or a URL as SQLAlchemy takes it.

    Raises:
        UsageError: not SQLite and not PostgreSQL.
    """
    if "://" not in url:
        return f"sqlite:///{Path(url).absolute()}"
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    if scheme not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(
            f"`database` {scheme}://…: expected a file for SQLite, sqlite:///FILE, or postgresql+psycopg://USER@HOST/NAME"
        )
    return url


def immediate(connection: Connection) -> Connection:
    """The connection, set to take SQLite's write lock at once: a later upgrade could fail half-way."""
    return connection.execution_options(stepmark_immediate=True)


def _postgresql_engine(url: str) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError:
        raise MissingExtraError(
            "PostgreSQL needs the package psycopg: pip install 'stepmark[annotate,postgres]'"
        ) from None


def _sqlite_engine(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": 30})

    # The driver by itself begins a transaction too late for a consistent read.
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        now = connection.get_execution_options().get("stepmark_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if now else "BEGIN")

    return engine


def backup(database: Database, to: Path, *, force: bool = False) -> None:
    """Copy everything as it is at this moment; the project may go on meanwhile. The file is finished or absent.

    Raises:
        UsageError: there is a file already, and `force` is false.
    """
    if to.exists() and not force:
        raise UsageError(f"{to}: there is a file already; give another name, or overwrite it with `force`")
    part = to.with_name(f".{to.name}.part")
    part.unlink(missing_ok=True)
    try:
        if database.path is not None:
            with closing(sqlite3.connect(database.path)) as source, closing(sqlite3.connect(part)) as target:
                source.backup(target)
        else:
            with (
                Database(f"sqlite:///{part.absolute()}") as copy,
                database.reading() as rows,
                copy.writing() as copied,
            ):
                _copy(rows, copied)
        with closing(sqlite3.connect(part)) as target:
            target.execute("PRAGMA journal_mode=DELETE")  # one file, so that nobody forgets the others
        _check(part)
        _sync(part)
        part.replace(to)
        _sync(to.parent)
    finally:
        for end in ("", "-wal", "-shm"):
            part.with_name(part.name + end).unlink(missing_ok=True)


def restore(source: Path, url: str, *, force: bool = False) -> None:
    """Put a backup in the place of a database. No server may run on it.

    Raises:
        InputError: the file is no backup, or damaged.
        UsageError: the database holds something and `force` is false, or is being served.
    """
    _check(source)
    with (
        Database(f"sqlite:///{source.absolute()}", create=False) as old,
        Database(url) as new,
        new.lock(),
        old.reading() as rows,
        new.writing() as target,
    ):
        stored = (tables.accounts, tables.items, tables.changes)
        if not force and any(target.execute(table.select().limit(1)).first() for table in stored):
            raise UsageError(
                f"{new.shown}: holds a project already; `force` puts the backup in its place, and what is there is lost"
            )
        _copy(rows, target)


def _copy(source: Connection, target: Connection) -> None:
    for table in tables.metadata.sorted_tables:
        target.execute(table.delete())
        rows = source.execute(table.select().execution_options(yield_per=_ROWS_AT_ONCE))
        for part in rows.mappings().partitions(_ROWS_AT_ONCE):
            target.execute(table.insert(), [dict(row) for row in part])
        if target.dialect.name == "postgresql" and table.name in _NUMBERED:
            # Rows came with their numbers, which do not advance the sequence.
            target.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "  # noqa: S608 - our own names
                    f"COALESCE((SELECT MAX(id) FROM {table.name}), 0) + 1, false)"
                )
            )


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


Result = TypeVar("Result")

ChangeRow = tuple[str, str, int, int, str, float | None, float]
"""id, item, account, version, data, seconds, at."""
AssignmentRow = tuple[str, int, float, float, str]
"""item, account, shown_at, leased_until, state."""

_ROWS_AT_ONCE = 1000  # SQLite takes at most 32,766 values in one statement
_CHANGES = "INSERT INTO changes (id, item, account, version, data, seconds, at) VALUES "
_ASSIGNMENTS = "INSERT INTO assignments (item, account, shown_at, leased_until, state) VALUES "
_UPSERT = (
    " ON CONFLICT (item, account) DO UPDATE SET shown_at = excluded.shown_at, "
    "leased_until = excluded.leased_until, state = excluded.state"
)


@dataclass(slots=True)
class _Job:
    future: asyncio.Future[Any]
    change: ChangeRow | None = None
    assignment: AssignmentRow | None = None
    function: Callable[[Connection], Any] | None = None


class Writer:
    """Groups the writes of one event loop into transactions, in a thread of its own.

    `refused` is called in the loop with the row of each change that could not be stored, before its future fails and before any later batch
    begins: what was built on it in memory must go.
    """

    def __init__(self, database: Database, *, refused: Callable[[ChangeRow], None]) -> None:
        self._database = database
        self._refused = refused
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stepmark-writer")
        self._connection: Connection | None = None
        self._mark = "?" if database.dialect == "sqlite" else "%s"
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Job] = []
        self._task: asyncio.Task[None] | None = None

    def change(self, row: ChangeRow, assignment: AssignmentRow | None = None) -> asyncio.Future[None]:
        """Add a change to the log, and set the assignment's state in the same transaction. The future is done when both are on disk.

        It fails with `sqlalchemy.exc.IntegrityError` when the version is there already, with another `SQLAlchemyError` when the
        database could not write.
        """
        return self._add(_Job(self._loop.create_future(), change=row, assignment=assignment))

    def assignment(self, row: AssignmentRow) -> asyncio.Future[None]:
        """Set an assignment's state."""
        return self._add(_Job(self._loop.create_future(), assignment=row))

    def call(self, function: Callable[[Connection], Result]) -> asyncio.Future[Result]:
        """Run a function in a savepoint of the transaction; its result, or its exception, is the future's."""
        return self._add(_Job(self._loop.create_future(), function=function))

    async def close(self) -> None:
        """Write what waits, then close the connection."""
        while self._task is not None:
            await self._task
        await self._loop.run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _add(self, job: _Job) -> asyncio.Future[Any]:
        self._waiting.append(job)
        if self._task is None:  # it starts after the other requests of this turn of the loop
            self._task = self._loop.create_task(self._run())
        return job.future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            outcomes = await self._loop.run_in_executor(self._thread, self._write, batch)
            self._finish(batch, outcomes)
        self._task = None

    def _finish(self, batch: list[_Job], outcomes: Sequence[Any]) -> None:
        failed: dict[tuple[str, int], Exception] = {}
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.change is not None and isinstance(outcome, Exception):
                failed[job.change[1:3]] = outcome
                self._refused(job.change)
        # Later changes of the same log build on one that is not there.
        doomed = [job for job in self._waiting if job.change is not None and job.change[1:3] in failed]
        self._waiting = [job for job in self._waiting if job not in doomed]
        late = [failed[job.change[1:3]] for job in doomed if job.change is not None]
        for job, outcome in chain(zip(doomed, late, strict=True), zip(batch, outcomes, strict=True)):
            if job.future.done():  # its request was cancelled
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _write(self, batch: list[_Job]) -> Sequence[Any]:
        """What each job gives: its result, or an exception."""
        try:
            if self._connection is None:
                self._connection = immediate(self._database.engine.connect())
            try:
                with self._connection.begin():
                    return self._together(self._connection, batch)
            except IntegrityError:
                with self._connection.begin():
                    return self._singly(self._connection, batch)
        except SQLAlchemyError as error:
            self._disconnect()  # the next batch connects again, as after a restart of the database
            return [error] * len(batch)
        except Exception as error:
            return [error] * len(batch)

    def _together(self, connection: Connection, batch: list[_Job]) -> list[Any]:
        self._insert(connection, _CHANGES, [job.change for job in batch if job.change is not None])
        last = {job.assignment[:2]: job.assignment for job in batch if job.assignment is not None}
        self._insert(connection, _ASSIGNMENTS, list(last.values()), _UPSERT)
        return [None if job.function is None else _called(connection, job.function) for job in batch]

    def _singly(self, connection: Connection, batch: list[_Job]) -> list[Any]:
        outcomes: list[Any] = []
        broken: dict[tuple[str, int], Exception] = {}
        for job in batch:
            log = None if job.change is None else job.change[1:3]
            if log in broken:
                outcomes.append(broken[log])
                continue
            outcome = _called(connection, lambda inner, job=job: self._together(inner, [job])[0])  # type: ignore[misc]
            if log is not None and isinstance(outcome, Exception):
                broken[log] = outcome
            outcomes.append(outcome)
        return outcomes

    def _insert(self, connection: Connection, head: str, rows: Sequence[Any], tail: str = "") -> None:
        # One statement for many rows: a driver's `executemany` hands the interpreter to the event loop at each row.
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[at : at + _ROWS_AT_ONCE]
            marks = f"({', '.join([self._mark] * len(part[0]))})"
            connection.exec_driver_sql(head + ", ".join([marks] * len(part)) + tail, tuple(chain(*part)))

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.invalidate()
            connection.close()


def _called(connection: Connection, function: Callable[[Connection], Any]) -> Any:
    try:
        with connection.begin_nested():
            return function(connection)
    except Exception as error:  # the caller's, who awaits it
        return error
