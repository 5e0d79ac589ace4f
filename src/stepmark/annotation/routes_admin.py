"""What adjudicators and admins do: decide, see progress and agreement, let people in, add items, export, back up."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy import Connection
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from stepmark.annotation import accounts, tables
from stepmark.annotation.accounts import RequestError, Role
from stepmark.annotation.database import backup
from stepmark.annotation.disputes import SideBySide, disputes, side_by_side
from stepmark.annotation.exporting import Exporting, export
from stepmark.annotation.items import Item, view
from stepmark.annotation.marks import Change, Decision, Marks, marks_data, read_marks
from stepmark.annotation.project import Project, check_change
from stepmark.annotation.quality import annotator_quality, project_progress, step_agreement
from stepmark.annotation.reading import read_upload
from stepmark.annotation.routes import StrictModel, account_of, live_of, need, progress_data
from stepmark.annotation.stored import (
    answers_of,
    check_text,
    decisions_of,
    items_of,
    store_decision,
    titles_of,
)
from stepmark.errors import InputError, StepmarkError
from stepmark.store import atomic_rows

disputes_router = APIRouter(tags=["disputes"], dependencies=[need("adjudicator")])


class SentDecision(StrictModel):
    """An adjudicator's decision on an item."""

    item: str
    marks: dict[str, Any]
    chosen: str | None = None
    """The annotator whose marks these are, as the page called them."""
    reason: str = Field(default="", max_length=4000)
    version: str | None = None
    """Of the answers that were on the page."""


@disputes_router.get("/api/disputes")
async def queue(request: Request) -> dict[str, Any]:
    """The items on which annotators disagree, worst first; decided ones at the end."""
    project = live_of(request).project

    def read(connection: Connection) -> list[dict[str, Any]]:
        answers = answers_of(connection, project)
        items = items_of(connection, only={answer.item for answer in answers})
        queue = disputes(items, answers, decisions_of(connection), blind=project.blind, decided=True)
        titles = titles_of(connection, {dispute.item for dispute in queue})
        shared = ("item", "severity", "why", "annotators", "state")
        return [
            {
                **{name: getattr(dispute, name) for name in shared},
                "title": titles[dispute.item],
                "decided": dispute.state == "decided",
            }
            for dispute in queue
        ]

    rows = await live_of(request).read(read)
    return {"disputes": rows, "total": len(rows)}


@disputes_router.get("/api/disputes/{item:path}")
async def one_dispute(request: Request, item: str) -> dict[str, Any]:
    """An item with all submitted answers side by side."""
    live = live_of(request)
    page: dict[str, Any] = await live.read(
        lambda connection: _page(live.project, *_side_by_side(connection, live.project, item))
    )
    return page


@disputes_router.post("/api/decisions")
async def decide(request: Request, body: SentDecision) -> dict[str, Any]:
    """Decide on an item. Earlier decisions stay in the database; the newest holds."""
    live, account = live_of(request), account_of(request)

    def write(connection: Connection) -> None:
        item, table = _side_by_side(connection, live.project, body.item)
        if body.version not in (None, table.version):
            raise RequestError(
                409,
                "an answer was changed meanwhile; look at the answers again",
                field="version",
                more={"version": table.version},
            )
        names = dict(zip(table.labels, (answer.account for answer in table.answers), strict=True))
        if body.chosen is not None and body.chosen not in names:
            message = f"expected one of {', '.join(names)}, or null; found {body.chosen!r}"
            raise RequestError(400, message, field="chosen")
        at = live.clock()
        decision = Decision(
            item=item.id,
            account=account.name,
            marks=_marks(live.project, item, body.marks),
            chosen=None if body.chosen is None else names[body.chosen],
            reason=check_text(body.reason),
            over=tuple(sorted(names.values())),
            at=at,
        )
        store_decision(connection, decision, account=account.id, at=at)
        detail = {"item": item.id, "chosen": decision.chosen}
        accounts.audit(connection, at, account.name, "decision", detail)

    await live.writer.call(write)
    return {"item": body.item}


def _side_by_side(connection: Connection, project: Project, id: str) -> tuple[Item, SideBySide]:
    items = items_of(connection, only={id})
    if not items:
        raise RequestError(404, "there is no such item", field="item")
    answers = answers_of(connection, project, only=[id])
    try:
        table = side_by_side(items[0], answers, decisions_of(connection, item=id), blind=project.blind)
    except InputError as error:
        raise RequestError(404, error.message, field="item") from None
    return items[0], table


def _page(project: Project, item: Item, table: SideBySide) -> dict[str, Any]:
    called = {answer.account: label for answer, label in zip(table.answers, table.labels, strict=True)}
    decision = table.decision
    return {
        **view(item, project),
        "answers": [
            {"account": called[answer.account], "marks": marks_data(answer.marks), "seconds": answer.seconds}
            for answer in table.answers
        ],
        "first_errors": table.first_errors,
        "differing": table.differing,
        "why": table.why,
        "version": table.version,
        "decision": None
        if decision is None
        else {
            "account": decision.account,
            "marks": marks_data(decision.marks),
            "chosen": called.get(decision.chosen or ""),
            "reason": decision.reason,
            "at": decision.at,
        },
    }


def _marks(project: Project, item: Item, data: dict[str, Any]) -> Marks:
    steps, mode = len(item.solution.steps), project.mode
    try:
        # The number of steps first: marks of a made-up one would be built at that length.
        if data.get("steps") != steps or data.get("mode") != mode:
            raise InputError(
                f"expected marks in mode {mode} on {steps} steps, found {data.get('mode')} on {data.get('steps')}"
            )
        marks = replace(read_marks(data), submitted=True)
        for step, text in marks.notes:
            check_change(project, Change(kind="note", step=step, text=text))
        for place, name in marks.error_types:
            check_change(project, Change(kind="error_type", step=place, text=name))
        if 0 in marks.ratings and not project.allow_neutral:
            raise InputError("expected 1, -1 or null: this project does not allow neutral ratings")
        if not marks.complete or marks.unsure:
            raise InputError("a decision gives the first error, or rates every step, and is not unsure")
    except StepmarkError as error:
        raise RequestError(400, str(error), field="marks") from None
    return marks


admin = APIRouter(tags=["admin"], dependencies=[need("admin")])

_EXPORTING = TypeAdapter(Exporting)
RowId = Annotated[int, Query(ge=0, le=2**63 - 1)]
"""A number of a row, as large as databases have them."""


class NewInvitation(StrictModel):
    """Whom an invitation lets in."""

    role: Role = "annotator"
    uses: int = Field(default=1, ge=1, le=1000)
    hours: float = Field(default=72.0, gt=0, le=24 * 90)


class AccountChange(StrictModel):
    """A change of an account; what is left out stays."""

    name: str
    role: Role | None = None
    disabled: bool | None = None
    new_token: bool = False
    """A new token in the place of a lost one; it is in the answer and nowhere else."""


@admin.get("/api/admin/progress")
async def progress(request: Request) -> Response:
    """How far all are, and each annotator's pace, accuracy and overrides."""
    live = live_of(request)
    project = live.project
    own = {account.name: progress_data(live, account) for account in live.accounts.by_id.values()}

    def read(connection: Connection) -> bytes:
        items, answers = items_of(connection), answers_of(connection, project)
        pass_mark, shown = project.screening.pass_mark, project.help.show != "never"
        annotators = [
            asdict(annotator_quality(name, items, answers, pass_mark=pass_mark, shown=shown))
            | {"progress": own[name]}
            for name in sorted({answer.account for answer in answers})
        ]
        whole = project_progress(items, answers, overlap=project.overlap, now=live.clock())
        return to_json({"project": whole, "annotators": annotators}, inf_nan_mode="null")

    return Response(await live.figures("progress", read), media_type="application/json")


@admin.get("/api/admin/agreement")
async def agreement(request: Request) -> Response:
    """Agreement on steps: Krippendorff's alpha, first errors exact and within one, with intervals."""
    live = live_of(request)

    def read(connection: Connection) -> bytes:
        figures = step_agreement(items_of(connection), answers_of(connection, live.project))
        return to_json(figures, inf_nan_mode="null")

    return Response(await live.figures("agreement", read), media_type="application/json")


@admin.get("/api/admin/accounts")
async def list_accounts(request: Request) -> list[dict[str, Any]]:
    """All accounts."""
    everyone = live_of(request).accounts.by_id.values()
    return [asdict(account) for account in sorted(everyone, key=lambda account: account.name)]


@admin.post("/api/admin/accounts")
async def change_account(request: Request, body: AccountChange) -> dict[str, Any]:
    """Give another role, lock out or let in again, or give a new token."""
    live, by = live_of(request), account_of(request).name
    account = next((one for one in live.accounts.by_id.values() if one.name == body.name), None)
    if account is None:
        raise RequestError(404, f"there is no account {body.name!r}", field="name")
    changes = body.model_dump(exclude={"name"})
    token = await live.writer.call(
        lambda connection: accounts.change_account(connection, account, **changes, by=by, now=live.clock())
    )
    await live.writer.call(live.accounts.load)
    return {**asdict(live.accounts.by_id[account.id]), **({} if token is None else {"token": token})}


@admin.post("/api/admin/invitations")
async def make_invitation(request: Request, body: NewInvitation) -> dict[str, str]:
    """A link that lets people in. Its code is in this answer and nowhere else."""
    live, by = live_of(request), account_of(request).name
    code = await live.writer.call(
        lambda connection: accounts.invite(
            connection, body.role, uses=body.uses, hours=body.hours, by=by, at=live.clock()
        )
    )
    return {"link": f"{request.app.state.site.link}/join#{code}"}


@admin.post("/api/admin/items")
async def upload(request: Request, name: str = "") -> dict[str, int]:
    """Add items: the body is a file in any format that `stepmark convert` reads; `name` is for the audit log alone."""
    live = live_of(request)
    items = await read_upload(request, live.project)
    changed = await live.add_items(items, account_of(request), name[:200])
    return {"items": len(items), "changed": changed}


@admin.get("/api/admin/export")
async def export_file(request: Request) -> Response:
    """The labels as JSON lines, in a format that trains; the query has the settings of `Exporting`."""
    live = live_of(request)
    try:
        settings = _EXPORTING.validate_strings(dict(request.query_params))
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(400, first["msg"], field=".".join(map(str, first["loc"]))) from None

    def write(path: Path) -> int:
        with live.database.reading() as connection:
            items, answers = items_of(connection), answers_of(connection, live.project)
            decisions = decisions_of(connection)
        rows = list(export(live.project, items, answers, decisions, settings))
        with atomic_rows(path) as add:
            for row in rows:
                if not isinstance(row, InputError):
                    add(row)
        return sum(isinstance(row, InputError) for row in rows)

    path, left_out = await run_in_threadpool(_temporary, write)
    await _audit(request, "export", {"format": settings.format, "left_out": left_out})
    return _download(path, f"{settings.format}.jsonl", {"x-stepmark-left-out": str(left_out)})


@admin.get("/api/admin/audit")
async def audit_log(request: Request, before: RowId | None = None, limit: int = 200) -> dict[str, Any]:
    """Who did what, newest first."""
    table = tables.audit

    def read(connection: Connection) -> list[dict[str, Any]]:
        query = table.select().order_by(table.c.id.desc()).limit(min(max(limit, 1), 1000))
        if before is not None:
            query = query.where(table.c.id < before)
        return [{**row._mapping, "detail": json.loads(row.detail)} for row in connection.execute(query)]

    return {"entries": await live_of(request).read(read)}


@admin.get("/api/admin/backup")
async def download_backup(request: Request) -> Response:
    """A consistent copy of everything, as one SQLite file that `run.restore_labels` reads."""
    database = live_of(request).database
    path, _ = await run_in_threadpool(_temporary, lambda path: backup(database, path, force=True))
    await _audit(request, "backup", {})
    return _download(path, "annotations.sqlite", {})


async def _audit(request: Request, action: str, detail: dict[str, Any]) -> None:
    live, name = live_of(request), account_of(request).name
    await live.writer.call(lambda connection: accounts.audit(connection, live.clock(), name, action, detail))


def _temporary(write: Callable[[Path], Any]) -> tuple[Path, Any]:
    handle, name = tempfile.mkstemp(suffix=".stepmark")
    os.close(handle)
    try:
        return Path(name), write(Path(name))
    except BaseException:
        Path(name).unlink()
        raise


def _download(path: Path, name: str, headers: dict[str, str]) -> Response:
    return FileResponse(
        path,
        media_type="application/octet-stream",
        filename=name,
        headers=headers,
        background=BackgroundTask(path.unlink),
    )
