"""Group commit: one thread writes everything that waits in one transaction, and only then are the waiting answered.

The event loop collects rows while a commit runs; when it is done, all that came in meanwhile is the next one. So a commit's wait for
the disk is shared by as many clicks as arrive during it, and the more there are the less each costs.

Rows of one kind go in by one statement, as a JSON list that the database takes apart: the driver gives up Python's lock once per statement
and has to win it back from the busy event loop, which once per row would take milliseconds each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from stepmark.annotation.database import immediate

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from stepmark.annotation.database import Database

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
        from sqlalchemy.exc import IntegrityError, SQLAlchemyError

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
        from sqlalchemy.exc import IntegrityError

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
