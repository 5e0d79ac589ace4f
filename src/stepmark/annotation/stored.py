"""Items, answers, decisions and the project's settings in the database; `prepare` brings it up to the project's files at every start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import fields
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, select

from stepmark.annotation import tables
from stepmark.annotation.accounts import audit, count_admins, invite
from stepmark.annotation.assigning import ItemFacts
from stepmark.annotation.database import Database
from stepmark.annotation.items import Item
from stepmark.annotation.marks import (
    Answer,
    Decision,
    Folding,
    Marks,
    read_change,
)
from stepmark.annotation.project import Project
from stepmark.annotation.reading import read_items
from stepmark.errors import InputError, UsageError

_ITEM = TypeAdapter(Item)
_DECISION = TypeAdapter(Decision)
_PROJECT = TypeAdapter(Project)


def read_item(data: str) -> Item:
    """An item from its column `data`."""
    return _ITEM.validate_json(data)


def check_text(text: str) -> str:
    """The same text, if both databases can hold it.

    Raises:
        InputError: it has a NUL character or half a surrogate pair.
    """
    if "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise InputError("expected text, found a NUL character or half a surrogate pair")
    return text


def store_items(connection: Connection, items: Sequence[Item]) -> int:
    """Add items, and replace those that have no labels yet. Gives how many are new or changed.

    Raises:
        InputError: an id stands for another solution now, and there are labels of the old one; or a text that no database holds.
    """
    t, c = tables.items, tables.changes
    stored = {row.id: row.data for row in connection.execute(select(t.c.id, t.c.data))}
    position = connection.execute(select(func.coalesce(func.max(t.c.position), -1))).scalar_one()
    changed = 0
    for item in items:
        check_text(item.id)
        data, before = _ITEM.dump_json(item).decode(), stored.get(item.id)
        if before == data:
            continue
        row = {"role": item.role, "steps": len(item.solution.steps), "order": item.order, "data": data}
        if before is None:
            position += 1
            connection.execute(t.insert(), {"id": item.id, "position": position, **row})
        else:
            labelled = select(c.c.version).where(c.c.item == item.id).limit(1)
            if (
                read_item(before).solution != item.solution
                and connection.execute(labelled).first() is not None
            ):
                raise InputError(
                    "this id stands for another solution than before, and there are labels of that one; "
                    "give the new solution another id",
                    where=item.id,
                )
            connection.execute(t.update().where(t.c.id == item.id).values(**row))
        stored[item.id] = data
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
            suggested=frozenset(k for k, suggestion in enumerate(item.suggestions) if suggestion is not None),
            gold=item.gold,
        )


def items_of(connection: Connection, *, only: Set[str] | None = None) -> list[Item]:
    """Items in their order: all, or those whose ids are in `only`."""
    query = tables.items.select().order_by(tables.items.c.position)
    if only is not None and len(only) < 500:
        query = query.where(tables.items.c.id.in_(only))
    rows = connection.execute(query)
    return [read_item(row.data) for row in rows if only is None or row.id in only]


def titles_of(connection: Connection, items: Set[str]) -> dict[str, str]:
    """The beginning of each item's problem, to recognise it by."""
    titles = {}
    for item in items_of(connection, only=items) if items else ():
        title = " ".join(item.solution.problem.text.split())
        titles[item.id] = title if len(title) <= 80 else title[:79] + "…"
    return titles


def answers_of(
    connection: Connection, project: Project, *, only: Sequence[str] | None = None, account: int | None = None
) -> list[Answer]:
    """Every annotator's marks on every item that they changed (`only` these items, of this `account`), folded from the log."""
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
    logs = groupby(connection.execute(query), lambda row: (row.item, row.name))
    return [_answer(list(log), project) for _, log in logs]


def _answer(log: Sequence[Any], project: Project) -> Answer:
    item, account = log[0].item, log[0].name
    folding = Folding(project.mode, log[0].steps, allow_neutral=project.allow_neutral)
    first: Marks | None = None
    for row in log:
        folding.take(read_change(json.loads(row.data), where=f"item {item}, {account}"))
        if first is None and folding.submitted:
            first = folding.marks()
    marks = folding.marks()
    return Answer(
        item=item,
        account=account,
        marks=marks,
        first_pass=None if first == marks else first,
        seconds=sum(row.seconds or 0.0 for row in log),
        at=log[-1].at,
    )


def store_decision(connection: Connection, decision: Decision, *, account: int, at: float) -> None:
    """Add a decision; an earlier decision on the item stays in the table."""
    data = _DECISION.dump_json(decision).decode()
    connection.execute(
        tables.decisions.insert(), {"item": decision.item, "account": account, "at": at, "data": data}
    )


def decisions_of(connection: Connection, *, item: str | None = None) -> list[Decision]:
    """The newest decision on each item (or on one)."""
    t = tables.decisions
    query = select(t.c.item, t.c.data).order_by(t.c.id)
    rows = connection.execute(query if item is None else query.where(t.c.item == item))
    return list({row.item: _DECISION.validate_json(row.data) for row in rows}.values())


def store_setting(connection: Connection, key: str, value: str) -> None:
    """Set a key of the table `meta`."""
    connection.execute(tables.meta.delete().where(tables.meta.c.key == key))
    connection.execute(tables.meta.insert(), {"key": key, "value": value})


def setting(connection: Connection, key: str) -> str | None:
    """What `store_setting` stored last; None before."""
    value: str | None = connection.execute(
        select(tables.meta.c.value).where(tables.meta.c.key == key)
    ).scalar()
    return value


def store_project(connection: Connection, project: Project, shown: str) -> None:
    """Store the project's settings, which labels are read with; `shown` is the database's name, for the message.

    Raises:
        UsageError: there are labels of another mode: they would mean something else now.
    """
    now = {"mode": project.mode, "allow_neutral": project.allow_neutral}
    stored = json.loads(setting(connection, "settings") or "null")
    labelled = connection.execute(select(tables.changes.c.version).limit(1)).first() is not None
    if labelled and stored not in (None, now):
        raise UsageError(
            f"{shown}: its labels were made with mode {stored['mode']!r} and allow_neutral {stored['allow_neutral']}, the project "
            f"says {now['mode']!r} and {now['allow_neutral']}; put the settings back, or give another `database`"
        )
    store_setting(connection, "settings", json.dumps(now))
    store_setting(connection, "project", _PROJECT.dump_json(project).decode())


def stored_project(connection: Connection, shown: str) -> Project:
    """The settings of the project at its last start.

    Raises:
        UsageError: none are stored.
    """
    stored = setting(connection, "project")
    if stored is None:
        raise UsageError(
            f"{shown}: it does not hold its project's settings, as those of earlier versions: serve it once with this version"
        )
    # Earlier versions had more settings.
    names = {field.name for field in fields(Project)}
    known = {key: value for key, value in json.loads(stored).items() if key in names}
    return _PROJECT.validate_json(json.dumps(known))


FIRST_HOURS = 24.0
"""How long the first admin's link is valid; every start makes another as long as there is no admin."""


def prepare(
    project: Project,
    database: Database,
    *,
    suggest: Callable[[Sequence[Item]], Sequence[Item]] | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Bring the database up to the project's files; `suggest` puts pre-labels beside the items. Gives how many items there are now.

    Raises:
        InputError: a file of items is not what it should be, or has another solution under an id that is labelled already.
        UsageError: the database has labels of another mode.
    """
    with database.writing() as connection:
        store_project(connection, project, database.shown)
    items: Sequence[Item] = read_items(project)
    if suggest is not None:
        items = suggest(items)
    with database.writing() as connection:
        if changed := store_items(connection, items):
            audit(connection, clock(), None, "items", {"items": changed})
        return len(items_of(connection))


def first_code(database: Database, *, clock: Callable[[], float] = time.time) -> str | None:
    """The code of an invitation for the first admin; None when there is an admin already."""
    with database.writing() as connection:
        if count_admins(connection):
            return None
        return invite(connection, "admin", uses=1, hours=FIRST_HOURS, by=None, at=clock())
