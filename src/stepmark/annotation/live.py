"""The running project: what is in memory, made again from the database at every start.

Active order: what people should label first, from what a PRM says and from disputes.

1. **Convincing wrong answers**: the final answer is wrong and the PRM finds no error (no score under the threshold), the highest product of scores
   first: the PRM has most to learn there (Lightman et al. 2023, section 4.2, "convincing wrong-answer" solutions).
2. **Uncertain**: the score of a step up to the first one under the threshold lies near the threshold; the nearest first.
3. **Disputed**: annotators disagree; the worst first.
4. The rest: by uncertainty, then as given.

Deviation from Lightman et al.: there, 80 % are convincing wrong answers and 20 % the most convincing of the rest; with `convincing=0.8` the 20 %
here come from 2 to 4 in that order.

Changes as they come in: checked, added to their log, on disk, and only then acknowledged.

Each log that is in use is folded in memory, so that a change costs what it alters. A change is taken over in memory before it is on disk, that
the next one of the same log can follow in the same transaction; if it cannot be stored, the log in memory is thrown away and read again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from sqlalchemy import Connection, func, select

from stepmark.annotation import tables
from stepmark.annotation.accounts import Account, Accounts, Refused, audit
from stepmark.annotation.assigning import Assigning, Assignment, ItemFacts
from stepmark.annotation.database import Writer
from stepmark.annotation.disputes import disputes
from stepmark.annotation.items import Item, view
from stepmark.annotation.marks import Change, ChangeKind, Folding, Marks, agrees, read_change
from stepmark.annotation.project import check_change
from stepmark.annotation.security import Buckets
from stepmark.annotation.stored import (
    answers_of,
    decisions_of,
    item_facts,
    items_of,
    read_item,
    store_items,
    titles_of,
)
from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.metrics.aggregate import aggregate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepmark.annotation.database import AssignmentRow, ChangeRow, Database, Writer
    from stepmark.annotation.project import Project


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
    """As `items.unverified`, of an item whose texts are not loaded."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveOrder:
    """How items are ordered.

    Raises:
        UsageError: a setting out of its range.
    """

    convincing: float = 1.0
    """Share of convincing wrong answers among those handed out, as long as there are any, in (0, 1]. 1: all of them first; 0.8: PRM800K's mix."""
    threshold: float = 0.5
    """A score strictly under it is an error, in (0, 1): the PRM's own."""
    uncertain: float = 0.5
    """From which uncertainty on an item is uncertain, in (0, 1]: 1 is a score at the threshold, 0 a score of 0 or 1."""

    def __post_init__(self) -> None:
        for name in ("convincing", "uncertain"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UsageError(f"{name}: expected a number over 0 and at most 1, found {value!r}")
        if not 0 < self.threshold < 1:
            raise UsageError(f"threshold: expected a number between 0 and 1, found {self.threshold!r}")


def active_order(
    items: Sequence[Item],
    settings: ActiveOrder = ActiveOrder(),
    *,
    disputed: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """For each item's id its `order`: whole numbers from the number of items down to 1, the higher the earlier.

    Args:
        items: the scores are those of their suggestions. Equal inputs give equal orders; ties stay as given.
        settings: the mix.
        disputed: severity of disputed items (`annotation.disputes`).
    """
    worst = disputed or {}
    convincing: list[tuple[float, str]] = []
    rest: list[tuple[tuple[float, float], str]] = []
    for item in items:
        scores = [None if one is None else one.score for one in item.suggestions]
        wrong = item.outcome is False and bool(scores)
        if wrong and all(score is not None and score >= settings.threshold for score in scores):
            convincing.append((-aggregate(scores, "product"), item.id))
            continue
        doubt = uncertainty(scores, settings.threshold)
        if doubt is not None and doubt >= settings.uncertain:
            rest.append(((0, -doubt), item.id))
        elif item.id in worst:
            rest.append(((1, -worst[item.id]), item.id))
        else:
            rest.append(((2, -(doubt or 0.0)), item.id))
    # The key alone: sorting is stable, so that ties keep the order given and not that of their names.
    first = [name for _, name in sorted(convincing, key=lambda entry: entry[0])]
    others = [name for _, name in sorted(rest, key=lambda entry: entry[0])]
    ordered = _mixed(first, others, settings.convincing)
    return {name: float(len(ordered) - place) for place, name in enumerate(ordered)}


def uncertainty(scores: Sequence[float | None], threshold: float = 0.5) -> float | None:
    """How near to the threshold a solution's scores come.

    Args:
        scores: probabilities, one a step; a step without one says nothing.
        threshold: between 0 and 1.

    Returns:
        The largest over the steps up to the first one under the threshold: 1 at the threshold, falling linearly to 0 at scores of 0 and 1. None
        without scores.
    """
    found: float | None = None
    for score in scores:
        if score is None:
            continue
        near = score / threshold if score < threshold else (1 - score) / (1 - threshold)
        found = near if found is None else max(found, near)
        if score < threshold:
            break
    return found


def _mixed(first: Sequence[str], others: Sequence[str], share: float) -> list[str]:
    """Of any n at the head, the n * share rounded up are of `first`, as long as both last."""
    ordered: list[str] = []
    waiting, rest = list(reversed(first)), list(reversed(others))
    taken = 0
    while waiting and rest:
        # Half a millionth off: 0.8 * 5 must not be a little over 4.
        if taken < (len(ordered) + 1) * share - 5e-7:
            ordered.append(waiting.pop())
            taken += 1
        else:
            ordered.append(rest.pop())
    return ordered + waiting[::-1] + rest[::-1]


MOST_SHOWN_BYTES = 64 * 1024 * 1024
"""Of items kept ready to be sent."""

FIGURES_SECONDS = 15.0
"""How old progress and agreement may be."""
REORDER_SECONDS = 60.0
"""How often active order takes new answers into account."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """An item as it is sent, ready as JSON."""

    view: bytes
    suggestions: bytes


class Live:
    """A project that is being served.

    Args:
        project: its settings.
        database: where its facts are.
        clock: gives Unix time.
    """

    def __init__(
        self, project: Project, database: Database, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.project = project
        self.database = database
        self.clock = clock
        self.accounts = Accounts(clock)
        self.assigning = Assigning(project, clock)
        self.labelling = Labelling(project, database, self.assigning, clock)
        per_minute = project.limits.logins_per_minute
        self.failed_logins = Buckets(per_minute / 60, float(per_minute))
        self._writer: Writer | None = None
        self._figuring = asyncio.Lock()
        self._figures: dict[str, tuple[float, bytes]] = {}
        self._orders: asyncio.Task[None] | None = None
        self._shown: OrderedDict[str, Shown] = OrderedDict()
        self._shown_bytes = 0

    @property
    def writer(self) -> Writer:
        """The one who writes; there while the server runs."""
        assert self._writer is not None
        return self._writer

    async def start(self) -> None:
        """Load everything and begin to write."""
        await asyncio.to_thread(self._load)
        self._writer = self.labelling.writer = Writer(self.database, refused=self.labelling.forget)
        if self.project.order == "active":
            await self.reorder()
            self._orders = asyncio.create_task(self._reordering())

    async def stop(self) -> None:
        """Write what waits."""
        if self._orders is not None:
            self._orders.cancel()
        if self._writer is not None:
            await self._writer.close()

    async def add_items(self, items: Sequence[Item], by: Account, source: str) -> int:
        """Take in items that an admin has sent. Gives how many are new or changed."""

        def write(connection: Connection) -> int:
            changed = store_items(connection, items)
            audit(connection, self.clock(), by.name, "upload", {"file": source, "items": changed})
            return changed

        changed = await self.writer.call(write)
        self.assigning.add_items(await asyncio.to_thread(self._facts))
        if self.project.order == "active":
            await self.reorder()
        self._shown.clear()
        self._shown_bytes = 0
        return changed

    async def record(self, account: str | None, action: str, detail: dict[str, Any]) -> None:
        """Write a line of the audit log."""
        await self.writer.call(lambda connection: audit(connection, self.clock(), account, action, detail))

    async def shown(self, item: str) -> Shown:
        """An item as annotators see it."""
        found = self._shown.get(item)
        if found is None:
            found = await asyncio.to_thread(self._show, item)
            self._shown[item] = found
            self._shown_bytes += len(found.view) + len(found.suggestions)
            while self._shown_bytes > MOST_SHOWN_BYTES and len(self._shown) > 1:
                _, old = self._shown.popitem(last=False)
                self._shown_bytes -= len(old.view) + len(old.suggestions)
        return found

    async def mine(self, account: Account) -> list[dict[str, Any]]:
        """The items that an account has changed, the newest first."""

        def read() -> list[dict[str, Any]]:
            with self.database.reading() as connection:
                answers = answers_of(connection, self.project, account=account.id)
                titles = titles_of(connection, [answer.item for answer in answers])
            answers.sort(key=lambda answer: -(answer.at or 0.0))
            return [
                {
                    "id": answer.item,
                    "title": titles[answer.item],
                    "submitted": answer.marks.submitted,
                    "unsure": bool(answer.marks.unsure),
                    "at": answer.at,
                }
                for answer in answers
            ]

        return await asyncio.to_thread(read)

    async def figures(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Figures over all answers: made in another thread, one at a time, and not again for a while, since they take the processor
        from those who label."""
        async with self._figuring:
            at, data = self._figures.get(name, (0.0, b""))
            if not 0 <= self.clock() - at < FIGURES_SECONDS:
                data = await asyncio.to_thread(make)
                self._figures[name] = (self.clock(), data)
            return data

    async def reorder(self) -> None:
        """Put the items in active order again, now that there are other answers."""

        def read() -> dict[str, float]:
            with self.database.reading() as connection:
                items, answers = items_of(connection), answers_of(connection, self.project)
                found = disputes(items, answers, decisions_of(connection))
            return active_order(items, disputed={one.item: one.severity for one in found})

        self.assigning.set_orders(await asyncio.to_thread(read))

    async def _reordering(self) -> None:
        while True:
            await asyncio.sleep(REORDER_SECONDS)
            try:
                await self.reorder()
            except Exception:  # the old order is good too; the next round may do
                _LOG.exception("the items could not be put in order")

    def _show(self, item: str) -> Shown:
        with self.database.reading() as connection:
            data = connection.execute(
                select(tables.items.c.data).where(tables.items.c.id == item)
            ).scalar_one()
        one = read_item(data)
        suggestions = [None if s is None else asdict(s) for s in one.suggestions]
        return Shown(view=_json(view(one, self.project)), suggestions=_json(suggestions))

    def _facts(self) -> list[Any]:
        with self.database.reading() as connection:
            return list(item_facts(connection))

    def _load(self) -> None:
        t, c = tables.assignments, tables.changes
        with self.database.reading() as connection:
            self.accounts.load(connection)
            self.assigning.add_items(item_facts(connection))
            last = select(c.c.item, c.c.account, func.max(c.c.at).label("at")).group_by(c.c.item, c.c.account)
            changed = {(row.item, row.account): row.at for row in connection.execute(last)}
            lease = self.project.lease_minutes * 60
            self.assigning.load(
                Assignment(
                    item=row.item,
                    account=row.account,
                    shown_at=row.shown_at,
                    # Leases run on in memory alone; the log tells how far.
                    until=max(row.leased_until, changed.get((row.item, row.account), 0.0) + lease),
                    state=row.state,
                )
                for row in connection.execute(t.select().order_by(t.c.shown_at))
                if row.item in self.assigning.items
            )
            self._restore(connection)

    def _restore(self, connection: Connection) -> None:
        t, c = tables.assignments, tables.changes
        joined = t.join(c, (t.c.item == c.c.item) & (t.c.account == c.c.account))
        spent = (
            select(t.c.item, t.c.account, func.sum(c.c.seconds).label("seconds"))
            .select_from(joined)
            .where(t.c.state == "submitted")
            .group_by(t.c.item, t.c.account)
        )
        screening = [item.id for item in self.assigning.items.values() if item.role == "screening"]
        marks = {
            (answer.item, answer.account): answer.marks
            for answer in answers_of(connection, self.project, only=screening)
        }
        for row in connection.execute(spent):
            item = self.assigning.items.get(row.item)
            if item is None:
                continue
            said = marks.get((row.item, self.accounts.name_of(row.account)))
            correct = None if said is None else self.labelling.restored(item, said)
            self.assigning.restore(row.account, row.item, seconds=row.seconds or 0.0, correct=correct)


def _json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
