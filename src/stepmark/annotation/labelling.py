"""Changes as they come in: checked, added to their log, on disk, and only then acknowledged.

Each log that is in use is folded in memory, so that a change costs what it alters. A change is taken over in memory before it is on disk, so
that the next one of the same log can follow in the same transaction; if it cannot be stored, the log in memory is discarded and read again.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, with_config
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from stepmark.annotation import tables
from stepmark.annotation.accounts import RequestError
from stepmark.annotation.assigning import Assigning, Assignment, ItemFacts
from stepmark.annotation.marks import Change, Folding, Marks, agrees, change_data, read_change
from stepmark.annotation.project import check_change
from stepmark.errors import InputError, StepmarkError

if TYPE_CHECKING:
    from stepmark.annotation.database import ChangeRow, Database, Writer
    from stepmark.annotation.project import Project

MOST_LOGS = 20_000
"""Logs kept in memory; the oldest are dropped first and read again on demand."""
MOST_CHANGES = 20_000
"""Changes in one log: a bound on what one account can make the server read."""


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, kw_only=True, slots=True)
class SentChange:
    """A change as the page sends it."""

    item: str
    id: Annotated[str, Field(pattern=r"\A[0-9A-Za-z_-]{8,64}\z")]
    """Made by the page, so that sending it twice stores it once."""
    version: int
    """Of the log that it builds on."""
    change: Change
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Since the last change, with the page in view."""


@dataclass(slots=True)
class Log:
    """All changes of one annotator on one item, folded."""

    folding: Folding
    changes: list[tuple[str, Change, bool]] = field(default_factory=list)
    """(id, change, whether the item was submitted after it)."""
    versions: dict[str, int] = field(default_factory=dict)
    """Version after the change of this id."""
    seconds: float = 0.0
    last_at: float | None = None
    pending: asyncio.Future[None] | None = None
    """Done when the newest change is on disk."""
    submits: int = 0

    @property
    def version(self) -> int:
        """How many changes it holds."""
        return len(self.changes)

    @property
    def data(self) -> dict[str, Any]:
        """The log as the page reads it."""
        changes = [{"id": id, **change_data(change)} for id, change, _ in self.changes]
        return {"version": self.version, "changes": changes, "submitted": self.folding.submitted}

    def take(self, id: str, change: Change, seconds: float | None, at: float) -> None:
        """Add a change.

        Raises:
            InputError: it cannot be here.
        """
        self.folding.take(change)
        self.changes.append((id, change, self.folding.submitted))
        self.versions[id] = len(self.changes)
        self.seconds += seconds or 0.0
        self.last_at = at
        self.submits += change.kind == "submit"


@dataclass(frozen=True, slots=True)
class Taken:
    """A change that is taken; its acknowledgement may be sent once `stored` is done."""

    item: ItemFacts
    version: int
    submitted: bool
    stored: asyncio.Future[None] | None
    """None: it was on disk already."""


class Labelling:
    """The logs in use, read from the database on demand; `clock` gives Unix time."""

    def __init__(
        self, project: Project, database: Database, assigning: Assigning, clock: Callable[[], float]
    ) -> None:
        self._project = project
        self._database = database
        self._assigning = assigning
        self._clock = clock
        self._logs: OrderedDict[tuple[str, int], Log] = OrderedDict()
        self._reading: dict[tuple[str, int], asyncio.Task[Log]] = {}
        self.writer: Writer | None = None
        """Set when the server's loop runs."""

    def forget(self, row: ChangeRow) -> None:
        """Discard what is in memory of a log, of which a change could not be stored."""
        self._logs.pop((row[1], row[2]), None)
        assignment = self._assigning.of(row[2], row[1])
        if assignment is not None and assignment.state == "submitted":
            self._assigning.reopen(assignment)

    def begin(self, account: int, item: ItemFacts) -> None:
        """Keep the empty log of an item that was never shown to this account before."""
        self._keep((item.id, account), self._empty(item))

    async def log(self, account: int, item: ItemFacts) -> Log:
        """The log, read from the database where it is not in memory."""
        key = (item.id, account)
        if (log := self._logs.get(key)) is not None:
            return log
        # Two requests at once share one reading: two copies of a log would each give out the next version.
        if key not in self._reading:
            self._reading[key] = asyncio.ensure_future(self._read(key, item))
        return await asyncio.shield(self._reading[key])

    async def take(self, account: int, sent: SentChange) -> Taken:
        """Take over a change.

        Raises:
            RequestError: it cannot be made (400), not this annotator's any more (403), no such item (404), built on another version (409).
        """
        assignment = self.assignment(account, sent.item)
        item = self._assigning.items[sent.item]
        log = await self.log(account, item)
        if (version := log.versions.get(sent.id)) is not None:
            _, change, submitted = log.changes[version - 1]
            if change != sent.change:
                raise RequestError(
                    400, f"the id {sent.id} was used for another change; every change has its own", field="id"
                )
            return Taken(item, version, submitted, log.pending)
        if sent.version != log.version:
            raise _conflict(log, sent.version)
        if log.version >= MOST_CHANGES:
            raise RequestError(403, f"this item has {MOST_CHANGES} changes already; ask an admin")
        self._check(sent.change, item, assignment, log)
        lease = self._assigning.renew(assignment)
        if lease is None:
            raise RequestError(
                403,
                "your lease expired and the item was reassigned; go to the next item",
                more={"reason": "lease"},
            )
        now = self._clock()
        since = max(now - (log.last_at or assignment.shown_at), 0.0)
        seconds = None if sent.seconds is None else round(min(sent.seconds, since), 3)
        try:
            log.take(sent.id, sent.change, seconds, now)
        except InputError as error:
            raise RequestError(400, error.message, field=f"change.{error.field or 'kind'}") from None
        row = None if lease is True else lease
        if sent.change.kind in ("submit", "reopen"):
            self._set_state(item, assignment, log)
            row = assignment.row
        assert self.writer is not None
        data = json.dumps(change_data(sent.change))
        log.pending = self.writer.change((sent.id, item.id, account, log.version, data, seconds, now), row)
        return Taken(item, log.version, log.folding.submitted, log.pending)

    async def stored(self, account: int, change: Taken) -> dict[str, Any]:
        """Wait until a change is on disk; gives its acknowledgement.

        Raises:
            RequestError: another process went on with this log (409), the database cannot write (503).
        """
        try:
            if change.stored is not None:
                await asyncio.shield(change.stored)  # another request may wait for the same change
        except IntegrityError:
            log = await self.log(account, change.item)  # as it is on disk
            raise _conflict(log, change.version - 1) from None
        except SQLAlchemyError as error:
            message = "the server could not store this change; it will be sent again"
            raise RequestError(503, message, headers={"retry-after": "1"}) from error
        return {"version": change.version, "submitted": change.submitted}

    def assignment(self, account: int, item: str) -> Assignment:
        """The assignment of an item to an account.

        Raises:
            RequestError: it was never given to them (403), there is no such item (404).
        """
        if item not in self._assigning.items:
            raise RequestError(404, "there is no such item", field="item")
        assignment = self._assigning.of(account, item)
        if assignment is None:
            message = "this item is not assigned to you: choose Label for your next one"
            raise RequestError(403, message, field="item")
        return assignment

    def shows_suggestions(self, item: ItemFacts, log: Log) -> bool:
        """Whether this annotator may see the suggestions of the item now."""
        show = self._project.help.show
        return bool(item.suggested) and (show == "before" or (show == "after" and log.submits > 0))

    def _check(self, change: Change, item: ItemFacts, assignment: Assignment, log: Log) -> None:
        try:
            check_change(self._project, change)
        except StepmarkError as error:
            raise RequestError(400, str(error), field="change.text") from None
        if item.role == "screening" and assignment.state == "submitted":
            raise RequestError(403, "an item of the screening set is final once it is submitted")
        required = self._project.help.require_verification and self.shows_suggestions(item, log)
        if change.kind == "submit" and required and (missing := _unverified(item, log.folding.marks())):
            raise RequestError(
                400,
                f"every suggestion must be accepted or overridden first: step {missing[0]} is not ({len(missing)} in all)",
                field="change.kind",
                more={"unverified": missing},
            )

    def _set_state(self, item: ItemFacts, assignment: Assignment, log: Log) -> None:
        if not log.folding.submitted:
            if assignment.state == "submitted":
                self._assigning.reopen(assignment)
            return
        help, marks = self._project.help, log.folding.marks()
        # A first pass before suggestions are shown does not count yet where they must be verified.
        if help.show != "after" or not help.require_verification or not _unverified(item, marks):
            correct = agrees(marks, item.gold) if item.role == "screening" and item.gold else None
            self._assigning.submit(assignment, seconds=log.seconds, correct=correct)

    def _empty(self, item: ItemFacts) -> Log:
        return Log(Folding(self._project.mode, item.steps, allow_neutral=self._project.allow_neutral))

    def _keep(self, key: tuple[str, int], log: Log) -> Log:
        self._logs[key] = log
        if len(self._logs) > MOST_LOGS:
            for old in list(self._logs)[: MOST_LOGS // 10]:
                pending = self._logs[old].pending
                if pending is None or pending.done():
                    del self._logs[old]
        return log

    async def _read(self, key: tuple[str, int], item: ItemFacts) -> Log:
        try:
            log = self._empty(item)
            for row in await asyncio.to_thread(self._rows, key):
                log.take(row.id, read_change(json.loads(row.data)), row.seconds, row.at)
            return self._keep(key, log)
        finally:
            del self._reading[key]

    def _rows(self, key: tuple[str, int]) -> list[Any]:
        t = tables.changes
        query = select(t.c.id, t.c.data, t.c.seconds, t.c.at).order_by(t.c.version)
        with self._database.reading() as connection:
            rows = connection.execute(query.where((t.c.item == key[0]) & (t.c.account == key[1])))
            return list(rows)


def _unverified(item: ItemFacts, marks: Marks) -> list[int]:
    """As `items.unverified`, of an item whose texts are not loaded."""
    return [
        step
        for step in sorted(item.suggested)
        if marks.ratings[step] is not None and step not in marks.verified
    ]


def _conflict(log: Log, version: int) -> RequestError:
    return RequestError(
        409,
        f"expected version {log.version}, found {version}: the item was changed elsewhere, perhaps in another tab",
        field="version",
        more=log.data,
    )
