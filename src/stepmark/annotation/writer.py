"""The server's writes: what arrives while one transaction is on its way to disk is written by the next one, together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from stepmark.annotation.database import Database, immediate

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
