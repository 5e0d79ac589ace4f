"""Changes as they come in: checked, added to their log, on disk, and only then acknowledged.

Each log that is in use is folded in memory, so that a change costs what it alters. A change is taken over in memory before it is on disk, that
the next one of the same log can follow in the same transaction; if it cannot be stored, the log in memory is thrown away and read again.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from stepmark.annotation import tables
from stepmark.annotation.assigning import Assigning, Assignment, ItemFacts
from stepmark.annotation.marks import Change, ChangeKind, Folding, Marks, agrees
from stepmark.annotation.project import check_change
from stepmark.annotation.refusals import Refused
from stepmark.annotation.wire import read_change
from stepmark.errors import InputError, StepmarkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepmark.annotation.database import Database
    from stepmark.annotation.project import Project
    from stepmark.annotation.writer import AssignmentRow, ChangeRow, Writer

MOST_LOGS = 20_000
"""Logs kept in memory; the oldest go first and are read again when they are wanted."""
MOST_CHANGES = 20_000
"""Changes in one log: more than anybody clicks, less than hurts to read."""

_KINDS = frozenset(get_args(ChangeKind))
_FIELDS = frozenset({"kind", "step", "rating", "text", "on"})
_ID = re.compile(r"[0-9A-Za-z_-]{8,64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A change in a log."""

    id: str
    change: Change
    data: str
    """The change as JSON, as it is stored."""
    submitted: bool
    """Whether the item was submitted after it."""


class Log:
    """All changes of one annotator on one item, folded."""

    __slots__ = ("entries", "folding", "ids", "last_at", "pending", "seconds", "submits")

    def __init__(self, project: Project, steps: int) -> None:
        self.folding = Folding(project.mode, steps, allow_neutral=project.allow_neutral)
        self.entries: list[Entry] = []
        self.ids: dict[str, int] = {}
        """Version after the change of this id."""
        self.seconds = 0.0
        self.last_at: float | None = None
        self.pending: asyncio.Future[None] | None = None
        """Done when the newest change is on disk."""
        self.submits = 0

    @property
    def version(self) -> int:
        """How many changes it holds."""
        return len(self.entries)

    def take(self, id: str, change: Change, data: str, seconds: float | None, at: float) -> Entry:
        """Add a change.

        Raises:
            InputError: it cannot be here.
        """
        self.folding.take(change)
        entry = Entry(id, change, data, self.folding.submitted)
        self.entries.append(entry)
        self.ids[id] = len(self.entries)
        self.seconds += seconds or 0.0
        self.last_at = at
        self.submits += change.kind == "submit"
        return entry


@dataclass(frozen=True, slots=True)
class Taken:
    """A change that is taken; its acknowledgement may be sent once `stored` is done."""

    version: int
    submitted: bool
    stored: asyncio.Future[None] | None
    """None: it was on disk already."""


class Labelling:
    """The logs in use.

    Args:
        project: its mode, error types, limits and help.
        database: where logs are read from.
        assigning: who may change what.
        clock: gives Unix time.
    """

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
        """A change could not be stored: what is in memory of its log is not so."""
        self._logs.pop((row[1], row[2]), None)
        one = self._assigning.of(row[2], row[1])
        if one is not None and one.state == "submitted":
            self._assigning.reopen(one)

    def known(self, account: int, item: str) -> Log | None:
        """The log if it is in memory."""
        return self._logs.get((item, account))

    def begin(self, account: int, item: ItemFacts) -> Log:
        """The empty log of an item that was never shown to this account before."""
        return self._keep((item.id, account), Log(self._project, item.steps))

    async def log(self, account: int, item: ItemFacts) -> Log:
        """The log, read from the database where it is not in memory."""
        key = (item.id, account)
        log = self._logs.get(key)
        if log is not None:
            return log
        # Two requests at once share one reading: two copies of a log would each give out the next version.
        task = self._reading.get(key)
        if task is None:
            task = asyncio.ensure_future(self._read(key, item))
            self._reading[key] = task
        return await asyncio.shield(task)

    def take(
        self, account: int, log: Log, item: ItemFacts, one: Assignment, data: Mapping[str, Any]
    ) -> Taken:
        """One change as the page sent it.

        Raises:
            Refused: malformed (400), not this annotator's any more (403), or built on another version (409).
        """
        id = data.get("id")
        if not isinstance(id, str) or not _ID.fullmatch(id):
            raise Refused(
                400, "expected an id of 8 to 64 letters, digits, - or _, made by the page", field="id"
            )
        change, raw = self._change(data.get("change"))
        version = log.ids.get(id)
        if version is not None:
            entry = log.entries[version - 1]
            if entry.change != change:
                raise Refused(
                    400, f"the id {id} was used for another change; every change has its own", field="id"
                )
            return Taken(version, entry.submitted, log.pending)
        if data.get("version") != len(log.entries) or type(data.get("version")) is not int:
            raise conflict(log, data.get("version"))
        if len(log.entries) >= MOST_CHANGES:
            raise Refused(403, f"this item has {MOST_CHANGES} changes already; ask an admin")
        now = self._clock()
        seconds = _seconds(data.get("seconds"), now - (log.last_at or one.shown_at))
        self._allowed(item, one, log, change)
        row = self._assigning.renew(one)
        if row is None:
            raise Refused(
                403,
                "your time on this item is over and others have taken its places; go on to the next item",
                more={"reason": "lease"},
            )
        try:
            log.take(id, change, raw, seconds, now)
        except InputError as error:
            raise Refused(400, error.message, field=f"change.{error.field or 'kind'}") from None
        assignment = None if row is True else row
        if change.kind in ("submit", "reopen"):
            assignment = self._state(item, one, log, change.kind)
        assert self.writer is not None
        log.pending = self.writer.change(
            (id, item.id, account, len(log.entries), raw, seconds, now), assignment
        )
        return Taken(len(log.entries), log.folding.submitted, log.pending)

    def shows_suggestions(self, item: ItemFacts, log: Log) -> bool:
        """Whether this annotator may see what machines say of the item now."""
        show = self._project.help.show
        return bool(item.suggested) and (show == "before" or (show == "after" and log.submits > 0))

    def restored(self, item: ItemFacts, marks: Marks) -> bool | None:
        """Of a screening item: whether the marks are right."""
        return agrees(marks, item.gold) if item.role == "screening" and item.gold is not None else None

    def _change(self, data: Any) -> tuple[Change, str]:
        if not isinstance(data, dict):
            raise Refused(400, f"expected an object, found {_kind(data)}", field="change")
        change = _plain(data)
        if change is None:
            try:
                change = read_change(data)
            except InputError as error:
                raise Refused(400, error.message, field=f"change.{error.field}") from None
        try:
            check_change(self._project, change)
        except StepmarkError as error:
            raise Refused(400, str(error), field="change.text") from None
        return change, json.dumps({key: value for key, value in data.items() if value is not None})

    def _allowed(self, item: ItemFacts, one: Assignment, log: Log, change: Change) -> None:
        if item.role == "screening" and one.state == "submitted":
            raise Refused(403, "an item of the screening set is final once it is submitted")
        if (
            change.kind == "submit"
            and self._project.help.require_verification
            and self.shows_suggestions(item, log)
        ):
            missing = _unverified(item, log.folding.marks())
            if missing:
                raise Refused(
                    400,
                    f"every suggestion must be accepted or overridden first: step {missing[0]} is not "
                    f"({len(missing)} in all)",
                    field="change.kind",
                    more={"unverified": missing},
                )

    def _state(
        self, item: ItemFacts, one: Assignment, log: Log, kind: Literal["submit", "reopen"]
    ) -> AssignmentRow:
        if kind == "reopen":
            if one.state == "submitted":
                self._assigning.reopen(one)
        elif self._counts(item, log):
            correct = self.restored(item, log.folding.marks())
            self._assigning.submit(one, seconds=log.seconds, correct=correct)
        return one.row

    def _counts(self, item: ItemFacts, log: Log) -> bool:
        """A first pass before suggestions are shown does not count yet where they must be verified."""
        help = self._project.help
        if help.show != "after" or not help.require_verification or not item.suggested:
            return True
        return not _unverified(item, log.folding.marks())

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
            rows = await asyncio.to_thread(self._rows, key)
            log = Log(self._project, item.steps)
            for id, data, seconds, at in rows:
                log.take(id, read_change(json.loads(data)), data, seconds, at)
            return self._keep(key, log)
        finally:
            del self._reading[key]

    def _rows(self, key: tuple[str, int]) -> Iterable[tuple[str, str, float | None, float]]:
        from sqlalchemy import select

        t = tables.changes
        query = (
            select(t.c.id, t.c.data, t.c.seconds, t.c.at)
            .where((t.c.item == key[0]) & (t.c.account == key[1]))
            .order_by(t.c.version)
        )
        with self._database.reading() as connection:
            return [(row.id, row.data, row.seconds, row.at) for row in connection.execute(query)]


def entries_data(log: Log) -> list[dict[str, Any]]:
    """A log as the page reads it."""
    return [{"id": entry.id, **json.loads(entry.data)} for entry in log.entries]


def _plain(data: dict[str, Any]) -> Change | None:
    """As `read_change`, at a tenth of its cost; None for what that shall refuse in words."""
    kind, step, rating = data.get("kind"), data.get("step"), data.get("rating")
    text, on = data.get("text"), data.get("on")
    if (
        type(kind) is str
        and kind in _KINDS
        and data.keys() <= _FIELDS
        and (step is None or type(step) is int)
        and (rating is None or (type(rating) is int and -1 <= rating <= 1))
        and (text is None or type(text) is str)
        and (on is None or type(on) is bool)
    ):
        return Change(kind=kind, step=step, rating=rating, text=text, on=on)  # type: ignore[arg-type]
    return None


def _unverified(item: ItemFacts, marks: Marks) -> list[int]:
    """As `items.unverified`, of an item whose texts are not at hand."""
    return [
        step
        for step in sorted(item.suggested)
        if marks.ratings[step] is not None and step not in marks.verified
    ]


def _seconds(value: Any, since: float) -> float | None:
    """What the page reports, capped by the clock; None when it reports nothing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise Refused(400, "expected seconds since the last change, 0 or more", field="seconds")
    return round(min(float(value), max(since, 0.0)), 3)


def conflict(log: Log, found: Any) -> Refused:
    """The refusal of a change that builds on another version; it holds the log."""
    if type(found) is not int:
        return Refused(400, f"expected a whole number, found {_kind(found)}", field="version")
    return Refused(
        409,
        f"expected version {log.version}, found {found}: the item was changed elsewhere, perhaps in another tab",
        field="version",
        more={
            "version": log.version,
            "submitted": log.folding.submitted,
            "changes": entries_data(log),
        },
    )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
