"""Reading records back: items, answers and decisions, in the words of the other modules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, select

from stepmark.annotation import tables
from stepmark.annotation.assigning import ItemFacts
from stepmark.annotation.database import check_text
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Answer, Decision, Folding, Marks, read_change
from stepmark.errors import InputError

if TYPE_CHECKING:
    from stepmark.annotation.project import Project

_ITEM = TypeAdapter(Item)
_DECISION = TypeAdapter(Decision)


def write_item(item: Item) -> str:
    """An item as it is stored."""
    return _ITEM.dump_json(item).decode()


def read_item(data: str) -> Item:
    """What `write_item` wrote."""
    return _ITEM.validate_json(data)


def store_items(connection: Connection, items: Sequence[Item]) -> int:
    """Add items, and replace those that nobody has labelled yet.

    Returns:
        How many are new or changed.

    Raises:
        InputError: an id stands for another solution now, and there are labels of the old one; or a text that no database holds.
    """
    t = tables.items
    known = {row.id: row.data for row in connection.execute(select(t.c.id, t.c.data))}
    position = connection.execute(select(func.coalesce(func.max(t.c.position), -1))).scalar_one() + 1
    changed = 0
    for item in items:
        check_text(item.id, what="an item's id")
        data = write_item(item)
        before = known.get(item.id)
        if before == data:
            continue
        row = {"role": item.role, "steps": len(item.solution.steps), "order": item.order, "data": data}
        if before is None:
            connection.execute(t.insert(), {"id": item.id, "position": position, **row})
            position += 1
        else:
            if read_item(before).solution != item.solution and _labelled(connection, item.id):
                raise InputError(
                    "this id stands for another solution than before, and there are labels of that one; "
                    "give the new solution another id",
                    where=item.id,
                )
            connection.execute(t.update().where(t.c.id == item.id).values(**row))
        known[item.id] = data
        changed += 1
    return changed


def item_facts(connection: Connection) -> Iterator[ItemFacts]:
    """What assigning needs to know of each item."""
    for row in connection.execute(tables.items.select()):
        item = read_item(row.data)
        yield ItemFacts(
            id=row.id,
            position=row.position,
            role=row.role,
            steps=row.steps,
            order=row.order,
            suggested=frozenset(i for i, s in enumerate(item.suggestions) if s is not None),
            gold=item.gold,
        )


def items_of(connection: Connection, *, only: Set[str] | None = None) -> list[Item]:
    """Items in their order: all, or those whose ids are in `only`."""
    query = tables.items.select().order_by(tables.items.c.position)
    if only is not None and len(only) < 500:
        query = query.where(tables.items.c.id.in_(only))
    rows = connection.execute(query)
    return [read_item(row.data) for row in rows if only is None or row.id in only]


def titles_of(connection: Connection, items: Sequence[str]) -> dict[str, str]:
    """The beginning of each item's problem, to know it by."""
    wanted = set(items)
    if not wanted:
        return {}
    found = {}
    for item in items_of(connection, only=wanted):
        first = " ".join(item.solution.problem.text.split())
        found[item.id] = first if len(first) <= 80 else first[:79] + "…"
    return found


def answers_of(
    connection: Connection,
    project: Project,
    *,
    only: Sequence[str] | None = None,
    account: int | None = None,
) -> list[Answer]:
    """What every annotator says of every item that they changed, folded from the log.

    Args:
        connection: an open reading.
        project: the mode that the log is folded in.
        only: of these items; None for all.
        account: of this account; None for all.
    """
    if only is not None and not only:
        return []
    c, a, i = tables.changes, tables.accounts, tables.items
    query = (
        select(c.c.item, a.c.name, i.c.steps, c.c.data, c.c.seconds, c.c.at)
        .join_from(c, a, c.c.account == a.c.id)
        .join(i, c.c.item == i.c.id)
        .order_by(i.c.position, a.c.name, c.c.version)
    )
    if only is not None:
        query = query.where(c.c.item.in_(only))
    if account is not None:
        query = query.where(c.c.account == account)
    rows = connection.execute(query)
    return [_answer(key, list(log), project) for key, log in groupby(rows, lambda row: (row.item, row.name))]


def _answer(key: tuple[str, str], log: list[Any], project: Project) -> Answer:
    folding = Folding(project.mode, log[0].steps, allow_neutral=project.allow_neutral)
    first: Marks | None = None
    for row in log:
        folding.take(read_change(json.loads(row.data), where=f"item {key[0]}, {key[1]}"))
        if first is None and folding.submitted:
            first = folding.marks()
    marks = folding.marks()
    return Answer(
        item=key[0],
        account=key[1],
        marks=marks,
        first_pass=None if first == marks else first,
        seconds=sum(row.seconds or 0.0 for row in log),
        at=log[-1].at,
    )


def store_decision(connection: Connection, decision: Decision, *, account: int, at: float) -> None:
    """Add what an adjudicator decided; an earlier decision of the item stays in the table."""
    row = {"item": decision.item, "account": account, "at": at}
    connection.execute(tables.decisions.insert(), {**row, "data": _DECISION.dump_json(decision).decode()})


def decisions_of(connection: Connection, *, item: str | None = None) -> list[Decision]:
    """The decision that holds of each item (or of one): its newest."""
    t = tables.decisions
    found: dict[str, Decision] = {}
    query = t.select().order_by(t.c.id)
    for row in connection.execute(query if item is None else query.where(t.c.item == item)):
        found[row.item] = _DECISION.validate_json(row.data)
    return list(found.values())


def _labelled(connection: Connection, item: str) -> bool:
    c = tables.changes
    return connection.execute(select(c.c.version).where(c.c.item == item).limit(1)).first() is not None
