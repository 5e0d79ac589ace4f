"""A database brought up to the project's files, at every start; doing it again changes nothing.

Labels of a Potato project become changes of accounts. Read are `user_state.json`, `annotations.jsonl` and JSON lines exports, anywhere in the
folder, in this order; the first answer of a person to an item counts. `solutions.interchange.potato` says what a reward means: in mode
`first_error` only the first -1 counts, and an unverified label of an AI is dropped. Potato has no `submit`: a complete answer is submitted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from stepmark.annotation import tables
from stepmark.annotation.accounts import add_account, audit, count_admins, invite, new_secret
from stepmark.annotation.database import Database
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Change, Rating, change_data, fold, marks_of_ratings
from stepmark.annotation.project import Project
from stepmark.annotation.reading import read_items
from stepmark.annotation.stored import items_of, store_items, store_project
from stepmark.errors import InputError
from stepmark.solutions.interchange import LabelledRow, Losses, Reading
from stepmark.solutions.interchange.potato import AI, Shown, read_with
from stepmark.store import read_rows

FIRST_HOURS = 24.0
"""How long the first admin's link is valid; every start makes another as long as there is no admin."""
_NAMES = ("user_state.json", "annotations.jsonl", "prm_training_data.jsonl")
_NAMESPACE = uuid.UUID("5d3c1f0e-7a41-4c8e-9a55-2f1b0c9d6e77")
"""Of the ids of imported changes: the same ones at every start, so that none is stored twice."""


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
        stored = items_of(connection)
        if project.resume is not None:
            imported = _store(connection, read_potato(project.resume, project, stored), clock())
            if imported:
                detail = {"from": str(project.resume), "answers": imported}
                audit(connection, clock(), None, "resume", detail)
    return len(stored)


def first_code(database: Database, *, clock: Callable[[], float] = time.time) -> str | None:
    """The code of an invitation for the first admin; None when there is an admin already."""
    with database.writing() as connection:
        if count_admins(connection):
            return None
        return invite(connection, "admin", uses=1, hours=FIRST_HOURS, by=None, at=clock())


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedAnswer:
    """One person's work on one item in another tool, as changes."""

    item: str
    account: str
    changes: tuple[Change, ...]


def read_potato(
    folder: str | Path, project: Project, items: Sequence[Item], losses: Losses | None = None
) -> list[ImportedAnswer]:
    """The labels in a folder of Potato's (its `output_annotation_dir`), or in one of its files; `losses` counts what is not imported.

    Raises:
        InputError: with `FILE:LINE`: not Potato's, an item that the project has not, a step that the item has not; with the folder, no file.
    """
    path = Path(folder)
    files = [path] if path.is_file() else [file for name in _NAMES for file in sorted(path.rglob(name))]
    if not files:
        raise InputError(f"expected one of {', '.join(_NAMES)} in the folder, found none", where=str(path))
    counted = losses or Losses()
    shown = {
        item.id: Shown(
            solution=item.solution,
            step_of={
                turn: step for step, turn in enumerate(item.potato_index or range(len(item.solution.steps)))
            },
            listed=len(item.trace) or len(item.solution.steps),
        )
        for item in items
    }
    reading = Reading(zero="neutral" if project.allow_neutral else "unjudged")
    answers: dict[tuple[str, str], ImportedAnswer] = {}
    for file in files:
        for row in read_rows(file):
            for labelled in read_with(row, shown, reading, counted, "the project"):
                if (answer := _answer(labelled, project, counted)) is not None:
                    answers.setdefault((answer.item, answer.account), answer)
    return list(answers.values())


def _answer(row: LabelledRow, project: Project, losses: Losses) -> ImportedAnswer | None:
    steps = row.labelled.judgements
    person = next((one.judge for step in steps for one in step if one.judge != AI), None)
    if person is None:
        losses.drop("labels of Potato's AI that nobody verified", row.where)
        return None
    ratings: list[Rating | None] = [
        next((one.rating for one in step if one.judge == person), None) for step in steps
    ]
    rated = [(step, rating) for step, rating in enumerate(ratings) if rating is not None]
    if project.mode == "first_error":
        first = marks_of_ratings(ratings).first_wrong
        if first is None:
            losses.drop("marks that leave the first error open", row.where)
            return None
        changes = [Change(kind="first_error", step=first)]
    else:
        changes = [Change(kind="rate", step=step, rating=rating) for step, rating in rated]
    changes += [Change(kind="verify", step=step, on=True) for step, _ in rated if len(steps[step]) > 1]
    if fold(project.mode, len(ratings), changes, allow_neutral=project.allow_neutral).complete:
        changes.append(Change(kind="submit"))
    account = person.removeprefix("human:")
    return ImportedAnswer(item=row.solution.id or row.origin, account=account, changes=tuple(changes))


def _store(connection: Connection, answers: Sequence[ImportedAnswer], now: float) -> int:
    """Add the changes that are not there yet; gives of how many answers."""
    t = tables.accounts
    known = {row.id for row in connection.execute(select(tables.changes.c.id))}
    stored = 0
    for answer in answers:
        ids = [
            str(uuid.uuid5(_NAMESPACE, json.dumps([answer.item, answer.account, version])))
            for version in range(1, len(answer.changes) + 1)
        ]
        if not ids or ids[0] in known:
            continue
        account = connection.execute(select(t.c.id).where(t.c.name == answer.account)).scalar()
        if account is None:  # nobody knows its token; an admin gives it another
            account = add_account(connection, answer.account, "annotator", new_secret(), now)
        of_log = {"item": answer.item, "account": account}
        rows = [
            {
                **of_log,
                "id": id,
                "version": version,
                "data": json.dumps(change_data(change)),
                "seconds": None,
                "at": now,
            }
            for version, (id, change) in enumerate(zip(ids, answer.changes, strict=True), start=1)
        ]
        connection.execute(tables.changes.insert(), rows)
        state = "submitted" if answer.changes[-1].kind == "submit" else "open"
        row = {**of_log, "shown_at": now, "leased_until": now, "state": state}
        connection.execute(tables.assignments.insert(), row)
        stored += 1
    return stored
