"""The server: the database is brought up to the project's files, and the app is built from its routes.

Labels of a Potato project become changes of accounts. Read are `user_state.json`, `annotations.jsonl` and JSON lines exports, anywhere in the
folder, in this order; the first answer of a person to an item counts. `solutions.interchange.potato` says what a reward means: in mode
`first_error` only the first -1 counts, and an unverified label of an AI is dropped. Potato has no `submit`: a complete answer is submitted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
from sqlalchemy import Connection, select
from starlette.exceptions import HTTPException

from stepmark.annotation import routes, routes_admin, tables
from stepmark.annotation.accounts import Refused, audit, count_admins, hashed, invite, new_secret
from stepmark.annotation.database import Database, check_settings
from stepmark.annotation.items import Item
from stepmark.annotation.marks import Change, Folding, Rating, change_data, marks_of_ratings
from stepmark.annotation.project import Project
from stepmark.annotation.reading import read_items
from stepmark.annotation.security import Guard, Scope, Site
from stepmark.annotation.stored import items_of, store_items
from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.solutions.interchange import LabelledRow, Losses, Reading
from stepmark.solutions.interchange.potato import AI, Shown, read_with
from stepmark.store import read_rows

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Account
    from stepmark.annotation.live import Live


_NAMES = ("user_state.json", "annotations.jsonl", "prm_training_data.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """What one person did to one item, as if it had been done here."""

    item: str
    account: str
    changes: tuple[Change, ...]


def resumed(
    folder: str | Path, project: Project, items: Sequence[Item], losses: Losses | None = None
) -> list[Resumed]:
    """The labels in a folder of Potato's (its `output_annotation_dir`), or in one of its files.

    Args:
        folder: where they are.
        project: says the mode, and whether a 0 is neutral.
        items: those of the project.
        losses: takes note of what is not taken over.

    Raises:
        InputError: with `FILE:LINE`: not Potato's, an item that the project has not, a step that the item has not; with the folder, no file.
    """
    path = Path(folder)
    files = [path] if path.is_file() else [file for name in _NAMES for file in sorted(path.rglob(name))]
    if not files:
        raise InputError(
            f"expected {', '.join(_NAMES[:-1])} or {_NAMES[-1]} in the folder, found none", where=str(path)
        )
    counted = losses or Losses()
    shown = {item.id: _shown(item) for item in items}
    reading = Reading(zero="neutral" if project.allow_neutral else "unjudged")
    found: dict[tuple[str, str], Resumed] = {}
    for file in files:
        for row in read_rows(file):
            for labelled in read_with(row, shown, reading, counted, "the project"):
                one = _resumed(labelled, project, counted)
                if one is not None:
                    found.setdefault((one.item, one.account), one)
    return list(found.values())


def _shown(item: Item) -> Shown:
    index = item.potato_index or range(len(item.solution.steps))
    return Shown(
        solution=item.solution,
        step_of={turn: step for step, turn in enumerate(index)},
        listed=len(item.trace) or len(item.solution.steps),
    )


def _resumed(row: LabelledRow, project: Project, losses: Losses) -> Resumed | None:
    people = [
        judgement.judge for step in row.labelled.judgements for judgement in step if judgement.judge != AI
    ]
    if not people:
        losses.drop("labels of Potato's AI that nobody verified", row.where)
        return None
    ratings: list[Rating | None] = []
    verified: list[int] = []
    for number, step in enumerate(row.labelled.judgements):
        own = next((judgement.rating for judgement in step if judgement.judge == people[0]), None)
        ratings.append(own)
        if own is not None and len(step) > 1:
            verified.append(number)
    changes: list[Change] = []
    if project.mode == "first_error":
        first = marks_of_ratings(ratings).first_wrong
        if first is None:
            losses.drop("marks that do not tell the first error", row.where)
            return None
        changes.append(Change(kind="first_error", step=first))
    else:
        changes += [
            Change(kind="rate", step=number, rating=rating)
            for number, rating in enumerate(ratings)
            if rating is not None
        ]
    changes += [Change(kind="verify", step=number, on=True) for number in verified]
    folding = Folding(project.mode, len(ratings), allow_neutral=project.allow_neutral)
    for change in changes:
        folding.take(change)
    if folding.marks().complete:
        changes.append(Change(kind="submit"))
    return Resumed(
        item=row.solution.id or row.origin,
        account=people[0].removeprefix("human:"),
        changes=tuple(changes),
    )


FIRST_HOURS = 24.0
"""How long the first admin's link holds; every start makes another as long as there is no admin."""
_PROJECT = TypeAdapter(Project)
_NAMESPACE = uuid.UUID("5d3c1f0e-7a41-4c8e-9a55-2f1b0c9d6e77")
"""Of the ids of changes that are taken over: the same ones at every start, so that none is stored twice."""


def prepare(
    project: Project,
    database: Database,
    *,
    suggest: Callable[[Sequence[Item]], Sequence[Item]] | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Bring the database up to the project's files. Doing it again changes nothing.

    Args:
        project: its settings.
        database: where to.
        suggest: puts pre-labels beside the items.
        clock: gives Unix time.

    Returns:
        How many items there are now.

    Raises:
        InputError: a file of items is not what it should be, or has another solution under an id that is labelled already.
        UsageError: the database has labels of another mode.
    """
    check_settings(database, project)
    _note(database, "project", _PROJECT.dump_json(project).decode())
    items: Sequence[Item] = read_items(project)
    if suggest is not None:
        items = suggest(items)
    with database.writing() as connection:
        changed = store_items(connection, items)
        if changed:
            audit(connection, clock(), None, "items", {"items": changed})
        stored = items_of(connection)
        if project.resume is not None:
            _take_over(connection, project, resumed(project.resume, project, stored), clock())
    return len(stored)


def first_code(database: Database, *, clock: Callable[[], float] = time.time) -> str | None:
    """The code of an invitation for the first admin; None when there is an admin already."""
    with database.writing() as connection:
        if count_admins(connection):
            return None
        return invite(connection, "admin", uses=1, hours=FIRST_HOURS, by=None, at=clock())


def note_link(database: Database, link: str) -> None:
    """Write down where the project is reached, for links that another process prints."""
    _note(database, "link", link)


def noted_link(connection: Connection) -> str | None:
    """What `note_link` wrote last; None before the first start."""
    return _noted(connection, "link")


def noted_project(connection: Connection, shown: str) -> Project:
    """The settings of the project at its last start.

    Args:
        connection: to the database.
        shown: its name, for the message.

    Raises:
        UsageError: none are stored.
    """
    stored = _noted(connection, "project")
    if stored is None:
        raise UsageError(
            f"{shown}: it does not hold its project's settings, as those of earlier versions: serve it once with this version"
        )
    return _PROJECT.validate_json(stored)


def _note(database: Database, key: str, value: str) -> None:
    with database.writing() as connection:
        connection.execute(tables.meta.delete().where(tables.meta.c.key == key))
        connection.execute(tables.meta.insert(), {"key": key, "value": value})


def _noted(connection: Connection, key: str) -> str | None:
    value: str | None = connection.execute(
        select(tables.meta.c.value).where(tables.meta.c.key == key)
    ).scalar()
    return value


def _take_over(connection: Connection, project: Project, answers: Sequence[Resumed], now: float) -> None:
    known = {row.id for row in connection.execute(select(tables.changes.c.id))}
    steps = {row.id: row.steps for row in connection.execute(select(tables.items.c.id, tables.items.c.steps))}
    taken = 0
    for answer in answers:
        first = str(uuid.uuid5(_NAMESPACE, json.dumps([answer.item, answer.account, 1])))
        if first in known or not answer.changes:
            continue
        account = _account(connection, answer.account, now)
        folding = Folding(project.mode, steps[answer.item], allow_neutral=project.allow_neutral)
        rows = []
        for number, change in enumerate(answer.changes, start=1):
            folding.take(change)
            rows.append(
                {
                    "id": str(uuid.uuid5(_NAMESPACE, json.dumps([answer.item, answer.account, number]))),
                    "item": answer.item,
                    "account": account,
                    "version": number,
                    "data": json.dumps(change_data(change)),
                    "seconds": None,
                    "at": now,
                }
            )
        connection.execute(tables.changes.insert(), rows)
        state = "submitted" if folding.submitted else "open"
        row = {"item": answer.item, "account": account, "shown_at": now, "leased_until": now, "state": state}
        connection.execute(tables.assignments.insert(), row)
        taken += 1
    if taken:
        audit(connection, now, None, "resume", {"from": str(project.resume), "answers": taken})


def _account(connection: Connection, name: str, now: float) -> int:
    """The account of this name; a new one has a token that nobody knows, and an admin gives it another."""
    t = tables.accounts
    account = connection.execute(select(t.c.id).where(t.c.name == name)).scalar()
    if account is None:
        row = {
            "name": name,
            "role": "annotator",
            "token_hash": hashed(new_secret()),
            "disabled": False,
            "created": now,
        }
        key = connection.execute(t.insert(), row).inserted_primary_key
        assert key is not None
        account = key[0]
    return int(account)


ROUTERS = (
    routes.work,
    routes.session,
    routes_admin.disputes_router,
    routes_admin.admin,
    routes.pages,
)


def build_app(live: Live, site: Site, *, started: Callable[[], None] | None = None) -> FastAPI:
    """The app of a project, as any ASGI server runs it. It must run in one process: what is hot is in memory.

    Args:
        live: the project.
        site: where it is reached.
        started: called once all is loaded.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await live.start()
        if started is not None:
            started()
        try:
            yield
        finally:
            await live.stop()

    app = FastAPI(
        title="stepmark annotate",
        version=version("stepmark"),
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.live = live
    app.state.site = site
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _refusal)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StepmarkError, _stepmark_error)
    app.add_exception_handler(Exception, _failure)
    return app


def guarded(app: FastAPI, live: Live, site: Site) -> Guard:
    """The app behind its guard: what is served."""

    async def changes(account: Account, _scope: Scope, body: bytes) -> bytes:
        return await routes.answer_changes(live, account, body)

    async def next_item(account: Account, scope: Scope, _body: bytes) -> bytes:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        return await routes.answer_next(live, account, query.get("after", [None])[-1])

    return Guard(
        app,
        accounts=live.accounts,
        limits=live.project.limits,
        site=site,
        clock=live.clock,
        hot={("POST", "/api/changes"): changes, ("GET", "/api/next"): next_item},
    )


async def _refusal(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = error.body if isinstance(error, Refused) else {"error": _words(error)}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": first["msg"], "field": field}, status_code=400)


async def _stepmark_error(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, InputError | UsageError):
        field = {"field": error.field} if isinstance(error, InputError) and error.field else {}
        return JSONResponse({"error": str(error), **field}, status_code=400)
    return JSONResponse({"error": str(error)}, status_code=503)


def _words(error: HTTPException) -> str:
    known = {404: "there is no such page", 405: "this address does not take that method"}
    return known.get(error.status_code, error.detail)


async def _failure(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed at this request; its log says why"}, status_code=500)
