"""The running project: what is in memory, made again from the database at every start, and the active order of the items.

Active order, what people should label first:

1. **Convincing wrong answers**: the final answer is wrong and the PRM finds no error (no score under 0.5), the highest product of scores
   first: the PRM has most to learn there (Lightman et al. 2023, section 4.2, "convincing wrong-answer" solutions).
2. **Uncertain**: the score of a step up to the first one under 0.5 lies near it; the nearest first.
3. **Disputed**: annotators disagree; the worst first.
4. The rest: by uncertainty, then as given.

Deviation from Lightman et al.: there, 80 % are convincing wrong answers and 20 % the most convincing of the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from stepmark.annotation import tables
from stepmark.annotation.accounts import Account, Accounts, audit
from stepmark.annotation.agreement import disputes
from stepmark.annotation.assigning import Assigning, Assignment
from stepmark.annotation.database import Writer
from stepmark.annotation.items import Item, view
from stepmark.annotation.labelling import Labelling
from stepmark.annotation.marks import agrees
from stepmark.annotation.stored import (
    answers_of,
    decisions_of,
    item_facts,
    items_of,
    read_item,
    store_items,
    titles_of,
)
from stepmark.metrics.aggregate import aggregate

if TYPE_CHECKING:
    from stepmark.annotation.database import Database
    from stepmark.annotation.project import Project

THRESHOLD = 0.5
"""A score strictly under it is an error."""
UNCERTAIN = 0.5
"""From which uncertainty on an item is uncertain: 1 is a score at the threshold, 0 a score of 0 or 1."""
MOST_VIEWS = 1000
"""Items kept ready to be sent."""
FIGURES_SECONDS = 15.0
"""How old progress and agreement may be."""
REORDER_SECONDS = 60.0
"""How often active order takes new answers into account."""
_LOG = logging.getLogger(__name__)


def active_order(items: Sequence[Item], disputed: Mapping[str, float] | None = None) -> dict[str, float]:
    """For each item's id its `order`: whole numbers from the number of items down to 1, the higher the earlier; ties stay as given.

    The scores are those of the items' suggestions; `disputed` holds the severity of disputed items (`annotation.agreement`).
    """
    worst = disputed or {}

    def rank(item: Item) -> tuple[int, float]:
        scores = [None if suggestion is None else suggestion.score for suggestion in item.suggestions]
        right = [score is not None and score >= THRESHOLD for score in scores]
        if item.outcome is False and scores and all(right):
            return 0, -aggregate(scores, "product")
        doubt = uncertainty(scores) or 0.0
        if doubt >= UNCERTAIN:
            return 1, -doubt
        return (2, -worst[item.id]) if item.id in worst else (3, -doubt)

    ordered = sorted(items, key=rank)
    return {item.id: float(len(ordered) - place) for place, item in enumerate(ordered)}


def uncertainty(scores: Sequence[float | None]) -> float | None:
    """How near to the threshold the scores come, up to the first one under it: 1 at the threshold, falling linearly to 0 at scores of 0 and 1.

    Args:
        scores: probabilities, one a step; a step without one is passed over. None without any.
    """
    nearest: float | None = None
    for score in scores:
        if score is None:
            continue
        near = score / THRESHOLD if score < THRESHOLD else (1 - score) / (1 - THRESHOLD)
        nearest = near if nearest is None else max(nearest, near)
        if score < THRESHOLD:
            break
    return nearest


class Live:
    """A project that is being served; `clock` gives Unix time."""

    def __init__(
        self, project: Project, database: Database, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.project = project
        self.database = database
        self.clock = clock
        self.accounts = Accounts(clock)
        self.assigning = Assigning(project, clock)
        self.labelling = Labelling(project, database, self.assigning, clock)
        self._figuring = asyncio.Lock()
        self._figures: dict[str, tuple[float, bytes]] = {}
        self._orders: asyncio.Task[None] | None = None
        self._views: dict[str, tuple[bytes, bytes]] = {}

    @property
    def writer(self) -> Writer:
        """What writes; there while the server runs."""
        assert self.labelling.writer is not None
        return self.labelling.writer

    async def start(self) -> None:
        """Load everything and begin to write."""
        await asyncio.to_thread(self._load)
        self.labelling.writer = Writer(self.database, refused=self.labelling.forget)
        if self.project.order == "active":
            await self.reorder()
            self._orders = asyncio.create_task(self._reordering())

    async def stop(self) -> None:
        """Write what waits."""
        if self._orders is not None:
            self._orders.cancel()
        if self.labelling.writer is not None:
            await self.writer.close()

    async def add_items(self, items: Sequence[Item], by: Account, source: str) -> int:
        """Take in items that an admin has sent. Gives how many are new or changed."""

        def write(connection: Connection) -> int:
            changed = store_items(connection, items)
            audit(connection, self.clock(), by.name, "upload", {"file": source, "items": changed})
            return changed

        changed = await self.writer.call(write)
        self.assigning.add_items(await self.read(lambda connection: list(item_facts(connection))))
        if self.project.order == "active":
            await self.reorder()
        self._views.clear()
        return changed

    async def read(self, function: Callable[[Connection], Any]) -> Any:
        """Run a function on one state of the database, in another thread."""

        def run() -> Any:
            with self.database.reading() as connection:
                return function(connection)

        return await asyncio.to_thread(run)

    async def view(self, item: str) -> tuple[bytes, bytes]:
        """An item as annotators see it, and its suggestions, both as JSON."""

        def read(connection: Connection) -> tuple[bytes, bytes]:
            query = select(tables.items.c.data).where(tables.items.c.id == item)
            stored = read_item(connection.execute(query).scalar_one())
            suggestions = [
                None if suggestion is None else asdict(suggestion) for suggestion in stored.suggestions
            ]
            return to_json(view(stored, self.project)), to_json(suggestions)

        if item not in self._views:
            if len(self._views) >= MOST_VIEWS:
                del self._views[next(iter(self._views))]
            self._views[item] = await self.read(read)
        return self._views[item]

    async def mine(self, account: Account) -> list[dict[str, Any]]:
        """The items that an account has changed, the newest first."""

        def read(connection: Connection) -> list[dict[str, Any]]:
            answers = answers_of(connection, self.project, account=account.id)
            titles = titles_of(connection, {answer.item for answer in answers})
            return [
                {
                    "id": answer.item,
                    "title": titles[answer.item],
                    "submitted": answer.marks.submitted,
                    "unsure": bool(answer.marks.unsure),
                    "at": answer.at,
                }
                for answer in sorted(answers, key=lambda answer: -(answer.at or 0.0))
            ]

        rows: list[dict[str, Any]] = await self.read(read)
        return rows

    async def figures(self, name: str, make: Callable[[Connection], bytes]) -> bytes:
        """Figures over all answers: made one at a time, and not again for a while, since they take the processor from those who label."""
        async with self._figuring:
            at, data = self._figures.get(name, (0.0, b""))
            if not 0 <= self.clock() - at < FIGURES_SECONDS:
                data = await self.read(make)
                self._figures[name] = (self.clock(), data)
            return data

    async def reorder(self) -> None:
        """Put the items in active order again, now that there are other answers."""

        def read(connection: Connection) -> dict[str, float]:
            items, answers = items_of(connection), answers_of(connection, self.project)
            queue = disputes(items, answers, decisions_of(connection))
            return active_order(items, {dispute.item: dispute.severity for dispute in queue})

        self.assigning.set_orders(await self.read(read))

    async def _reordering(self) -> None:
        while True:
            await asyncio.sleep(REORDER_SECONDS)
            try:
                await self.reorder()
            except Exception:  # the old order is good too; the next round may do
                _LOG.exception("the items could not be put in order")

    def _load(self) -> None:
        t, c = tables.assignments, tables.changes
        with self.database.reading() as connection:
            self.accounts.load(connection)
            self.assigning.add_items(item_facts(connection))
            items, lease = self.assigning.items, self.project.lease_minutes * 60
            sums = select(
                c.c.item, c.c.account, func.max(c.c.at).label("at"), func.sum(c.c.seconds).label("seconds")
            ).group_by(c.c.item, c.c.account)
            logs = {(row.item, row.account): row for row in connection.execute(sums)}
            screening = [item.id for item in items.values() if item.role == "screening"]
            marks = {
                (answer.item, answer.account): answer.marks
                for answer in answers_of(connection, self.project, only=screening)
            }
            for row in connection.execute(t.select().order_by(t.c.shown_at)):
                item, log = items.get(row.item), logs.get((row.item, row.account))
                if item is None:
                    continue
                assignment = Assignment(
                    item=row.item,
                    account=row.account,
                    shown_at=row.shown_at,
                    # Leases are renewed in memory alone; the log tells how far.
                    until=max(row.leased_until, log.at + lease if log else 0.0),
                    state=row.state,
                )
                self.assigning.load(assignment)
                if row.state == "submitted" and log is not None:
                    own = marks.get((row.item, self.accounts.by_id[row.account].name))
                    correct = agrees(own, item.gold) if own and item.gold else None
                    self.assigning.submit(assignment, seconds=log.seconds or 0.0, correct=correct)
            self.assigning.add_items(())


def to_json(data: Any) -> bytes:
    """Compact JSON; half a surrogate pair becomes a question mark."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
