"""The running project: what is in memory, made again from the database at every start.

Active order: what people should label first, from what a PRM says and from disputes.

1. **Convincing wrong answers**: the final answer is wrong and the PRM finds no error (no score under the threshold), the highest product of scores
   first: the PRM has most to learn there (Lightman et al. 2023, section 4.2, "convincing wrong-answer" solutions).
2. **Uncertain**: the score of a step up to the first one under the threshold lies near the threshold; the nearest first.
3. **Disputed**: annotators disagree; the worst first.
4. The rest: by uncertainty, then as given.

Deviation from Lightman et al.: there, 80 % are convincing wrong answers and 20 % the most convincing of the rest; with `convincing=0.8` the 20 %
here come from 2 to 4 in that order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stepmark.annotation import tables
from stepmark.annotation.accounts import Account, Accounts, audit
from stepmark.annotation.assigning import Assigning, Assignment
from stepmark.annotation.disputes import disputes
from stepmark.annotation.items import Item, view
from stepmark.annotation.labelling import Labelling
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
from stepmark.annotation.writer import Writer
from stepmark.errors import UsageError
from stepmark.metrics.aggregate import aggregate

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from stepmark.annotation.database import Database
    from stepmark.annotation.items import Item
    from stepmark.annotation.project import Project


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
        from sqlalchemy import select

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
        from sqlalchemy import func, select

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
        from sqlalchemy import func, select

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
