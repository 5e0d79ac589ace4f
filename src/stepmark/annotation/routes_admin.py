"""What admins do: see how it goes, let people in, bring items, take labels out."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_json

from stepmark.annotation import tables
from stepmark.annotation.access import account_of, live_of, need, read_body
from stepmark.annotation.accounts import audit, invite
from stepmark.annotation.backup import backup
from stepmark.annotation.exporting import Exporting, export
from stepmark.annotation.progress import project_progress
from stepmark.annotation.quality import annotator_quality, step_agreement
from stepmark.annotation.refusals import Refused
from stepmark.annotation.routes_session import documented
from stepmark.annotation.stored import answers_of, decisions_of, items_of
from stepmark.annotation.uploads import read_upload
from stepmark.errors import InputError
from stepmark.store.writing import encode_row

router = APIRouter(tags=["admin"], dependencies=[need("admin")])

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


@router.get("/api/admin/progress")
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


@router.get("/api/admin/agreement")
async def agreement(request: Request) -> Response:
    """Agreement on steps: Krippendorff's alpha, first errors exact and within one, with intervals."""
    live = live_of(request)

    def read() -> bytes:
        with live.database.reading() as connection:
            return _json(step_agreement(items_of(connection), answers_of(connection, live.project)))

    return _data(await live.figures("agreement", read))


@router.get("/api/admin/accounts")
async def accounts(request: Request) -> list[dict[str, Any]]:
    """All accounts."""
    found = sorted(live_of(request).accounts.by_id.values(), key=lambda account: account.name)
    return [asdict(account) for account in found]


@router.post("/api/admin/accounts", openapi_extra=documented(AccountChange))
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


@router.post("/api/admin/invitations", openapi_extra=documented(Invitation))
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


@router.post(
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


@router.get("/api/admin/export")
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


@router.get("/api/admin/audit")
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


@router.get("/api/admin/backup")
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
