"""What admins do: see how it goes, let people in, bring items, take labels out."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_json
from sqlalchemy import Connection

from stepmark.annotation import accounts as who
from stepmark.annotation import tables
from stepmark.annotation.accounts import Refused, audit, invite
from stepmark.annotation.database import backup
from stepmark.annotation.disputes import SideBySide, disputes, side_by_side
from stepmark.annotation.exporting import Exporting, export
from stepmark.annotation.items import Item, view
from stepmark.annotation.marks import Change, Decision, Marks, marks_data, read_marks
from stepmark.annotation.project import check_change
from stepmark.annotation.quality import annotator_quality, project_progress, step_agreement
from stepmark.annotation.reading import read_upload
from stepmark.annotation.routes import account_of, documented, live_of, need, read_body
from stepmark.annotation.stored import answers_of, decisions_of, items_of, store_decision, titles_of
from stepmark.errors import InputError, StepmarkError
from stepmark.store.writing import encode_row

if TYPE_CHECKING:
    from stepmark.annotation.project import Project

disputes_router = APIRouter(tags=["disputes"], dependencies=[need("adjudicator")])

MOST_REASON = 4000


class Decided(BaseModel):
    """What an adjudicator says of an item."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "item": "gsm8k-17",
                    "marks": {"mode": "first_error", "steps": 5, "first_error": 2},
                    "chosen": "A",
                    "reason": "Step 3 divides by the wrong number.",
                    "version": "…",
                }
            ]
        },
    )
    item: str
    marks: dict[str, Any]
    chosen: str | None = None
    """The annotator whose marks these are, as the page called them."""
    reason: str = Field(default="", max_length=MOST_REASON)
    version: str | None = None
    """Of the answers that were on the page."""


_DECIDED = TypeAdapter(Decided)


@disputes_router.get("/api/disputes")
async def queue(request: Request) -> dict[str, Any]:
    """The items on which annotators disagree, worst first; decided ones at the end."""
    live = live_of(request)

    def read() -> list[dict[str, Any]]:
        with live.database.reading() as connection:
            answers = answers_of(connection, live.project)
            items = items_of(connection, only={answer.item for answer in answers})
            found = disputes(items, answers, decisions_of(connection), blind=live.project.blind, decided=True)
            titles = titles_of(connection, [one.item for one in found])
        return [
            {
                "item": one.item,
                "title": titles[one.item],
                "severity": one.severity,
                "why": one.why,
                "annotators": list(one.annotators),
                "state": one.state,
                "decided": one.state == "decided",
            }
            for one in found
        ]

    rows = await asyncio.to_thread(read)
    return {"disputes": rows, "total": len(rows)}


@disputes_router.get("/api/disputes/{item:path}")
async def one_dispute(request: Request, item: str) -> dict[str, Any]:
    """An item with all submitted answers side by side."""
    live = live_of(request)

    def read() -> dict[str, Any]:
        with live.database.reading() as connection:
            one, table = _side_by_side(connection, live.project, item)
        return _page(live.project, one, table)

    return await asyncio.to_thread(read)


@disputes_router.post("/api/decisions", openapi_extra=documented(Decided))
async def decide(request: Request) -> dict[str, Any]:
    """Decide on an item. Earlier decisions stay in the database; the newest holds."""
    live, account = live_of(request), account_of(request)
    body = await read_body(request, _DECIDED)

    def write(connection: Connection) -> None:
        one, table = _side_by_side(connection, live.project, body.item)
        if body.version is not None and body.version != table.version:
            raise Refused(
                409,
                "an answer was changed meanwhile; look at the answers again",
                field="version",
                more={"version": table.version},
            )
        names = dict(zip(table.labels, (answer.account for answer in table.answers), strict=True))
        if body.chosen is not None and body.chosen not in names:
            known = ", ".join(names)
            raise Refused(400, f"expected one of {known}, or null; found {body.chosen!r}", field="chosen")
        at = live.clock()
        decision = Decision(
            item=one.id,
            account=account.name,
            marks=_marks(live.project, one, body.marks),
            chosen=None if body.chosen is None else names[body.chosen],
            reason=who.checked_note(body.reason),
            over=tuple(sorted(names.values())),
            at=at,
        )
        store_decision(connection, decision, account=account.id, at=at)
        who.audit(connection, at, account.name, "decision", {"item": one.id, "chosen": decision.chosen})

    await live.writer.call(write)
    return {"item": body.item}


def _side_by_side(connection: Connection, project: Project, item: str) -> tuple[Item, SideBySide]:
    found = items_of(connection, only={item})
    if not found:
        raise Refused(404, "there is no such item", field="item")
    answers = answers_of(connection, project, only=[item])
    try:
        table = side_by_side(found[0], answers, decisions_of(connection, item=item), blind=project.blind)
    except InputError as error:
        raise Refused(404, error.message, field="item") from None
    return found[0], table


def _page(project: Project, item: Item, table: SideBySide) -> dict[str, Any]:
    called = dict(zip((answer.account for answer in table.answers), table.labels, strict=True))
    decision = table.decision
    return {
        **view(item, project),
        "answers": [
            {
                "account": label,
                "marks": marks_data(answer.marks),
                "notes": [list(note) for note in answer.marks.notes],
                "seconds": answer.seconds,
            }
            for label, answer in zip(table.labels, table.answers, strict=True)
        ],
        "first_errors": list(table.first_errors),
        "differing": list(table.differing),
        "why": list(table.why),
        "version": table.version,
        "decision": None
        if decision is None
        else {
            "account": decision.account,
            "marks": marks_data(decision.marks),
            "chosen": None if decision.chosen is None else called.get(decision.chosen),
            "reason": decision.reason,
            "at": decision.at,
        },
    }


def _marks(project: Project, item: Item, data: dict[str, Any]) -> Marks:
    steps = len(item.solution.steps)
    try:
        # The number of steps first: marks of a made-up one would be built at that length.
        if data.get("steps") != steps or data.get("mode") != project.mode:
            raise InputError(
                f"expected marks in mode {project.mode} on {steps} steps, found {data.get('mode')} on {data.get('steps')}"
            )
        marks = replace(read_marks(data), submitted=True)
        for step, text in marks.notes:
            check_change(project, Change(kind="note", step=step, text=text))
        for place, name in marks.error_types:
            check_change(project, Change(kind="error_type", step=place, text=name))
    except StepmarkError as error:
        raise Refused(400, str(error), field="marks") from None
    if 0 in marks.ratings and not project.allow_neutral:
        raise Refused(
            400, "expected 1, -1 or null: this project does not allow neutral ratings", field="marks"
        )
    if not marks.complete or marks.unsure:
        raise Refused(
            400, "a decision says the first error, or rates every step, and is not unsure", field="marks"
        )
    return marks


admin = APIRouter(tags=["admin"], dependencies=[need("admin")])

RowId = Annotated[int, Query(ge=0, le=2**63 - 1)]
"""A number of a row, as large as databases have them."""
MOST_HOURS = 24.0 * 90
_CHUNK = 1 << 18


class Invitation(BaseModel):
    """Whom an invitation lets in."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"role": "annotator", "uses": 10, "hours": 72}]}
    )
    role: Literal["annotator", "adjudicator", "admin"] = "annotator"
    uses: int = Field(default=1, ge=1, le=1000)
    hours: float = Field(default=72.0, gt=0, le=MOST_HOURS)


class AccountChange(BaseModel):
    """What becomes of an account; what is left out stays."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "ada", "role": "adjudicator"}]}
    )
    name: str
    role: Literal["annotator", "adjudicator", "admin"] | None = None
    disabled: bool | None = None
    new_token: bool = False
    """A new token in the place of a lost one; it is in the answer and nowhere else."""


_INVITATION = TypeAdapter(Invitation)
_CHANGE = TypeAdapter(AccountChange)


@admin.get("/api/admin/progress")
async def progress(request: Request) -> Response:
    """How far all are, and each annotator's pace, accuracy and overrides."""
    live = live_of(request)

    def read() -> bytes:
        project = live.project
        with live.database.reading() as connection:
            items, answers = items_of(connection), answers_of(connection, project)
        people = sorted({answer.account for answer in answers})
        return _json(
            {
                "project": project_progress(items, answers, overlap=project.overlap, now=live.clock()),
                "annotators": [
                    annotator_quality(
                        name,
                        items,
                        answers,
                        overlap=project.overlap,
                        pass_mark=project.screening.pass_mark,
                        shown=project.help.show != "never",
                    )
                    for name in people
                ],
            }
        )

    return _data(await live.figures("progress", read))


@admin.get("/api/admin/agreement")
async def agreement(request: Request) -> Response:
    """Agreement on steps: Krippendorff's alpha, first errors exact and within one, with intervals."""
    live = live_of(request)

    def read() -> bytes:
        with live.database.reading() as connection:
            return _json(step_agreement(items_of(connection), answers_of(connection, live.project)))

    return _data(await live.figures("agreement", read))


@admin.get("/api/admin/accounts")
async def accounts(request: Request) -> list[dict[str, Any]]:
    """All accounts."""
    found = sorted(live_of(request).accounts.by_id.values(), key=lambda account: account.name)
    return [asdict(account) for account in found]


@admin.post("/api/admin/accounts", openapi_extra=documented(AccountChange))
async def change_account(request: Request) -> dict[str, Any]:
    """Give another role, lock out or let in again, or give a new token."""
    live, by = live_of(request), account_of(request)
    body = await read_body(request, _CHANGE)
    account = next((one for one in live.accounts.by_id.values() if one.name == body.name), None)
    if account is None:
        raise Refused(404, f"there is no account {body.name!r}", field="name")
    changed, token = await live.writer.call(
        lambda connection: live.accounts.change(
            connection,
            account,
            role=body.role,
            disabled=body.disabled,
            new_token=body.new_token,
            by=by.name,
        )
    )
    live.accounts.changed(changed, end_sessions=changed.disabled or body.new_token)
    return {**asdict(changed), **({} if token is None else {"token": token})}


@admin.post("/api/admin/invitations", openapi_extra=documented(Invitation))
async def make_invitation(request: Request) -> dict[str, str]:
    """A link that lets people in. Its code is in this answer and nowhere else."""
    live, by = live_of(request), account_of(request)
    body = await read_body(request, _INVITATION)
    code = await live.writer.call(
        lambda connection: invite(
            connection, body.role, uses=body.uses, hours=body.hours, by=by.name, at=live.clock()
        )
    )
    return {"link": f"{request.app.state.site.link}/join#{code}"}


@admin.post(
    "/api/admin/items",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "properties": {"file": {"type": "string", "format": "binary"}},
                    }
                },
            },
        }
    },
)
async def upload(request: Request) -> dict[str, int]:
    """Bring items: a file in any format that `stepmark convert` reads, as the body itself or as one file of a form."""
    live, by = live_of(request), account_of(request)
    found = await read_upload(request, live.project)
    try:
        changed = await live.add_items(found.items, by, found.name)
    except InputError as error:
        raise Refused(400, str(error)) from None
    return {"items": len(found.items), "changed": changed}


@admin.get("/api/admin/export")
async def take_out(
    request: Request,
    format: str = "stepmark",
    view: Literal["together", "annotators", "decided"] | None = None,
    agreement: str | None = None,
    neutral: Literal["positive", "negative", "drop"] | None = None,
    drop_unsure: bool = False,
    unfinished: bool = False,
    control: bool = False,
) -> Response:
    """The labels as JSON lines, in a format that trains."""
    live, by = live_of(request), account_of(request)
    settings = Exporting(
        format=format,
        view=view,
        agreement=agreement,  # type: ignore[arg-type]  # checked by Exporting, which names the nearest
        neutral=neutral,
        drop_unsure=drop_unsure,
        unfinished=unfinished,
        control=control,
    )

    def write(file: IO[bytes]) -> int:
        left_out = 0
        with live.database.reading() as connection:
            items, answers = items_of(connection), answers_of(connection, live.project)
            decisions = decisions_of(connection)
        for row in export(live.project, items, answers, decisions, settings):
            if isinstance(row, InputError):
                left_out += 1
            else:
                file.write(encode_row(row))
        return left_out

    file, left_out = await asyncio.to_thread(_spooled, write)
    await live.record(by.name, "export", {"format": format, "left_out": left_out})
    return _attachment(file, f"{format}.jsonl", {"x-stepmark-left-out": str(left_out)})


@admin.get("/api/admin/audit")
async def audit_log(request: Request, before: RowId | None = None, limit: int = 200) -> dict[str, Any]:
    """What was done by whom, newest first."""
    live, table = live_of(request), tables.audit

    def read() -> list[dict[str, Any]]:
        query = table.select().order_by(table.c.id.desc()).limit(min(max(limit, 1), 1000))
        if before is not None:
            query = query.where(table.c.id < before)
        with live.database.reading() as connection:
            return [{**row._mapping, "detail": json.loads(row.detail)} for row in connection.execute(query)]

    return {"entries": await asyncio.to_thread(read)}


@admin.get("/api/admin/backup")
async def take_backup(request: Request) -> Response:
    """A consistent copy of everything, as one SQLite file that `run.restore_labels` reads."""
    live, by = live_of(request), account_of(request)

    def make() -> IO[bytes]:
        handle, name = tempfile.mkstemp(suffix=".sqlite")
        os.close(handle)
        try:
            backup(live.database, Path(name), force=True)
            return Path(name).open("rb")
        finally:
            Path(name).unlink(missing_ok=True)  # the open file stays until it is closed

    file = await asyncio.to_thread(make)
    await live.writer.call(lambda connection: audit(connection, live.clock(), by.name, "backup", {}))
    return _attachment(file, "annotations.sqlite", {})


def _spooled(write: Callable[[IO[bytes]], int]) -> tuple[IO[bytes], int]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has been sent
    try:
        count = write(file)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file, count


def _attachment(file: IO[bytes], name: str, headers: dict[str, str]) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        with file:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk

    return StreamingResponse(
        chunks(),
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{name}"', **headers},
    )


def _json(data: Any) -> bytes:
    return to_json(data, inf_nan_mode="null")


def _data(body: bytes) -> Response:
    return Response(body, media_type="application/json")
