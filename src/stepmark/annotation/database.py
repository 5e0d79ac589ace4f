"""The database: opening it, its pragmas, who may write, and how records are read back.

SQLite runs in WAL mode with `synchronous=FULL`: a commit that has returned is on disk. One server process may write (`lock`); exports, backups
and invitations from other processes read or add single rows beside it.

Backups are one SQLite file, whichever database the project is on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from stepmark.annotation import tables
from stepmark.errors import InputError, UsageError

if TYPE_CHECKING:
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
        return (
            str(self.path)
            if self.path is not None
            else make_url(self.url).render_as_string(hide_password=True)
        )

    def _prepare(self, create: bool) -> None:
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


Result = TypeVar("Result")

ChangeRow = tuple[str, str, int, int, str, float | None, float]
"""id, item, account, version, data, seconds, at."""
AssignmentRow = tuple[str, int, float, float, str]
"""item, account, shown_at, leased_until, state."""

_CHANGES = "id, item, account, version, data, seconds, at"
_ASSIGNMENTS = "item, account, shown_at, leased_until, state"
_UPSERT = (
    " ON CONFLICT (item, account) DO UPDATE SET shown_at = excluded.shown_at, "
    "leased_until = excluded.leased_until, state = excluded.state"
)


def _fields(dialect: str, kinds: Sequence[str]) -> str:
    if dialect == "sqlite":
        return (
            ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(kinds)))
            + " FROM json_each(?) WHERE true"
        )
    return (
        ", ".join(f"(r ->> {i})::{kind}" for i, kind in enumerate(kinds))
        + " FROM json_array_elements(%s::json) AS r WHERE true"
    )


def _statements(dialect: str) -> tuple[str, str]:
    changes = _fields(dialect, ("text", "text", "bigint", "int", "text", "float8", "float8"))
    assignments = _fields(dialect, ("text", "bigint", "float8", "float8", "text"))
    return (
        f"INSERT INTO changes ({_CHANGES}) SELECT {changes}",
        f"INSERT INTO assignments ({_ASSIGNMENTS}) SELECT {assignments}{_UPSERT}",
    )


@dataclass(slots=True)
class _Batch:
    changes: list[tuple[ChangeRow, AssignmentRow | None, asyncio.Future[None]]] = field(default_factory=list)
    leases: list[tuple[AssignmentRow, asyncio.Future[None]]] = field(default_factory=list)
    calls: list[tuple[Callable[[Connection], Any], asyncio.Future[Any]]] = field(default_factory=list)


@dataclass(slots=True)
class _Outcome:
    changes: list[Exception | None]
    leases: list[Exception | None]
    calls: list[tuple[Any, Exception | None]]


class Writer:
    """The one who writes, from one event loop.

    Args:
        database: where to.
        refused: called in the loop with the row of each change that could not be stored, before its future fails and before any later batch
            is begun: what was built on it in memory must go.
    """

    def __init__(self, database: Database, *, refused: Callable[[ChangeRow], None]) -> None:
        self._database = database
        self._refused = refused
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stepmark-writer")
        self._connection: Connection | None = None
        self._insert, self._upsert = _statements(database.dialect)
        self._loop = asyncio.get_running_loop()
        self._next = _Batch()
        self._busy = False
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def change(self, row: ChangeRow, assignment: AssignmentRow | None = None) -> asyncio.Future[None]:
        """Add a change to the log, and set the assignment's state in the same transaction. The future is done when both are on disk.

        The future fails with `sqlalchemy.exc.IntegrityError` when the id or the version is there already, with another
        `sqlalchemy.exc.SQLAlchemyError` when the database could not write.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._next.changes.append((row, assignment, future))
        self._wake()
        return future

    def assignment(self, row: AssignmentRow) -> asyncio.Future[None]:
        """Set an assignment's state."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._next.leases.append((row, future))
        self._wake()
        return future

    def call(self, function: Callable[[Connection], Result]) -> asyncio.Future[Result]:
        """Run a function on the connection, in a transaction of its own inside the batch; its result, or its exception, is the future's."""
        future: asyncio.Future[Result] = self._loop.create_future()
        self._next.calls.append((function, future))
        self._wake()
        return future

    async def close(self) -> None:
        """Write what waits, then let the connection go."""
        await self._idle.wait()
        await self._loop.run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _wake(self) -> None:
        if not self._busy and not self._scheduled:
            self._scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._start)  # after the other requests of this turn of the loop

    def _start(self) -> None:
        self._scheduled = False
        batch, self._next = self._next, _Batch()
        self._busy = True
        self._thread.submit(self._run, batch)

    def _run(self, batch: _Batch) -> None:
        try:
            outcome = self._write(batch)
        except Exception as error:
            outcome = _all(batch, error)
        except BaseException as error:  # nobody may wait for ever
            outcome = _all(batch, RuntimeError(f"the writer was stopped: {error!r}"))
        self._loop.call_soon_threadsafe(self._finish, batch, outcome)

    def _write(self, batch: _Batch) -> _Outcome:
        connection = self._connect()
        try:
            try:
                with connection.begin():
                    outcome = self._rows(connection, batch)
            except IntegrityError:
                with connection.begin():
                    outcome = self._one_by_one(connection, batch)
        except SQLAlchemyError:
            self._disconnect()  # a server that was restarted is found again by the next batch
            raise
        return outcome

    def _rows(self, connection: Connection, batch: _Batch) -> _Outcome:
        assignments = {row[:2]: row for row, _ in batch.leases}
        if batch.changes:
            rows = [row for row, _, _ in batch.changes]
            connection.exec_driver_sql(self._insert, (json.dumps(rows),))
            assignments |= {row[:2]: row for _, row, _ in batch.changes if row is not None}
        if assignments:
            connection.exec_driver_sql(self._upsert, (json.dumps(list(assignments.values())),))
        return _Outcome(
            changes=[None] * len(batch.changes),
            leases=[None] * len(batch.leases),
            calls=self._calls(connection, batch),
        )

    def _one_by_one(self, connection: Connection, batch: _Batch) -> _Outcome:
        outcome = _Outcome(changes=[], leases=[None] * len(batch.leases), calls=[])
        if batch.leases:
            last = {row[:2]: row for row, _ in batch.leases}
            connection.exec_driver_sql(self._upsert, (json.dumps(list(last.values())),))
        broken: dict[tuple[str, int], Exception] = {}
        for row, assignment, _ in batch.changes:
            error = broken.get(row[1:3])
            if error is None:
                try:
                    with connection.begin_nested():
                        connection.exec_driver_sql(self._insert, (json.dumps([row]),))
                        if assignment is not None:
                            connection.exec_driver_sql(self._upsert, (json.dumps([assignment]),))
                except IntegrityError as found:
                    error = broken[row[1:3]] = found
            outcome.changes.append(error)
        outcome.calls = self._calls(connection, batch)
        return outcome

    def _calls(self, connection: Connection, batch: _Batch) -> list[tuple[Any, Exception | None]]:
        results: list[tuple[Any, Exception | None]] = []
        for function, _ in batch.calls:
            try:
                with connection.begin_nested():
                    results.append((function(connection), None))
            except Exception as error:  # the caller's, who awaits it
                results.append((None, error))
        return results

    def _finish(self, batch: _Batch, outcome: _Outcome) -> None:
        failed: dict[tuple[str, int], Exception] = {}
        for (row, _, _), error in zip(batch.changes, outcome.changes, strict=True):
            if error is not None:
                failed[row[1:3]] = error
                self._refused(row)
        if failed:
            # Later changes of the same log stand on one that is not there.
            kept = []
            for entry in self._next.changes:
                if (error := failed.get(entry[0][1:3])) is None:
                    kept.append(entry)
                else:
                    _settle(entry[2], None, error)
            self._next.changes = kept
        for (_, _, future), error in zip(batch.changes, outcome.changes, strict=True):
            _settle(future, None, error)
        for (_, future), error in zip(batch.leases, outcome.leases, strict=True):
            _settle(future, None, error)
        for (_, future), (result, error) in zip(batch.calls, outcome.calls, strict=True):
            _settle(future, result, error)
        self._busy = False
        if self._next.changes or self._next.leases or self._next.calls:
            self._wake()
        else:
            self._idle.set()

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = immediate(self._database.engine.connect())
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.invalidate()
            connection.close()


def _all(batch: _Batch, error: Exception) -> _Outcome:
    return _Outcome(
        changes=[error] * len(batch.changes),
        leases=[error] * len(batch.leases),
        calls=[(None, error)] * len(batch.calls),
    )


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # its request was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


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
