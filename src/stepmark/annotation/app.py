"""The HTTP app: joining and logging in, labelling, deciding, administration, the pages, and errors as answers.

A route names the role that it needs (`need`); what every request must pass stands in `security`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import to_json as figures_json
from sqlalchemy import Connection
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from stepmark.annotation import accounts, tables
from stepmark.annotation.accounts import SESSION_DAYS, Account, RequestError, Role
from stepmark.annotation.agreement import (
    SideBySide,
    annotator_quality,
    disputes,
    project_progress,
    side_by_side,
    step_agreement,
)
from stepmark.annotation.assigning import Assignment
from stepmark.annotation.database import backup
from stepmark.annotation.exporting import Exporting, export
from stepmark.annotation.items import Item, view
from stepmark.annotation.labelling import SentChange, Taken
from stepmark.annotation.live import Live, to_json
from stepmark.annotation.marks import Change, Decision, Marks, marks_data, read_marks
from stepmark.annotation.project import Project, check_change
from stepmark.annotation.reading import read_upload
from stepmark.annotation.security import COOKIE, SecurityMiddleware, Site
from stepmark.annotation.stored import (
    answers_of,
    check_text,
    decisions_of,
    items_of,
    store_decision,
    titles_of,
)
from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.show.text import amount
from stepmark.store import atomic_rows
from stepmark.version import __version__

Body = TypeVar("Body")

MOST_AT_ONCE = 500
"""Changes in one request."""
WEB = resources.files("stepmark.annotation") / "web"
KATEX = resources.files("stepmark.show") / "vendor" / "katex"


class StrictModel(BaseModel):
    """A request's body: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


def live_of(request: Request) -> Live:
    """The project that the server serves."""
    return cast("Live", request.app.state.live)


def account_of(request: Request) -> Account:
    """The session's account. Only behind `need`."""
    return live_of(request).accounts.by_id[request.scope["stepmark.session"].account]


def need(role: Role) -> Any:
    """A dependency: the session's account has this role or one above it."""

    async def check(request: Request) -> None:
        account = account_of(request)
        if not account.may(role):
            raise RequestError(403, f"expected the role {role}, found {account.role}; ask an admin")

    check.__name__ = role
    return Depends(check)


def read_body(adapter: TypeAdapter[Body], body: bytes) -> Body:
    """A body that FastAPI does not read.

    Raises:
        RequestError: not JSON, or a field that is missing, unknown or of a wrong type (400); the answer names it.
    """
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise _malformed_field(error.errors(include_url=False, include_input=False)[0]) from None


def _malformed_field(first: Any, skip: int = 0) -> RequestError:
    """The first error of pydantic's; `skip` parts of its place are not the sender's."""
    return RequestError(400, first["msg"], field=".".join(map(str, first["loc"][skip:])))


session = APIRouter(tags=["session"])


class Join(StrictModel):
    """The code of an invitation, and the name that the new account shall have."""

    code: str = Field(max_length=200)
    name: str = Field(max_length=200)


class Token(StrictModel):
    """The token that joining gave."""

    token: str = Field(max_length=200)


@session.post("/api/join")
async def join(request: Request, body: Join) -> JSONResponse:
    """Use an invitation: a new account, logged in. Its token is in this answer and nowhere else."""
    live = live_of(request)
    login = await live.writer.call(
        lambda connection: accounts.join(connection, body.code, body.name, live.clock())
    )
    return await _logged_in(request, login)


@session.post("/api/login")
async def login(request: Request, body: Token) -> JSONResponse:
    """Log in with the account's token."""
    live = live_of(request)
    login = await live.writer.call(lambda connection: accounts.login(connection, body.token, live.clock()))
    return await _logged_in(request, login)


async def _logged_in(request: Request, login: accounts.Login) -> JSONResponse:
    live = live_of(request)
    await live.writer.call(live.accounts.load)
    token = {} if login.token is None else {"token": login.token}
    answer = JSONResponse({"name": login.name, "role": login.role, **token})
    answer.set_cookie(
        COOKIE,
        login.cookie,
        max_age=int(SESSION_DAYS * 86400),
        httponly=True,
        samesite="strict",
        secure=request.app.state.site.secure,
    )
    return answer


@session.post("/api/logout", dependencies=[need("annotator")])
async def logout(request: Request) -> JSONResponse:
    """End this session."""
    live, name, session = live_of(request), account_of(request).name, request.scope["stepmark.session"]
    await live.writer.call(lambda connection: accounts.logout(connection, session, name, live.clock()))
    await live.writer.call(live.accounts.load)
    answer = JSONResponse({})
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@session.get("/api/me", dependencies=[need("annotator")])
async def me(request: Request) -> dict[str, Any]:
    """Name and role, whether there is no other account, the project's settings that the page needs, and progress."""
    live, account = live_of(request), account_of(request)
    project = live.project
    screened = live.assigning.screened(account.id) if _screens(account) else None
    shared = ("mode", "allow_neutral", "show_answer", "blind")
    return {
        "name": account.name,
        "role": account.role,
        "alone": len(live.accounts.by_id) == 1,
        "csrf": request.scope["stepmark.session"].csrf,
        "project": {
            "name": project.title,
            "description": project.task,
            "reward_labels": asdict(project.reward_labels),
            "error_types": list(project.error_types),
            "help": asdict(project.help),
            **{name: getattr(project, name) for name in shared},
        },
        "screening": None if screened is None else asdict(screened),
        "progress": progress_data(live, account),
    }


def progress_data(live: Live, account: Account) -> dict[str, Any]:
    """How far an account is, for its page."""
    submitted, of, each = live.assigning.progress(account.id)
    return {"submitted": submitted, "of": of, "seconds_each": each}


def _screens(account: Account) -> bool:
    """Whether this account has to pass the screening set: adjudicators and admins need not."""
    return account.role == "annotator"


work = APIRouter(tags=["work"], dependencies=[need("annotator")])


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True, kw_only=True, slots=True)
class SentChanges:
    """Several changes in one request."""

    changes: Annotated[list[SentChange], Field(max_length=MOST_AT_ONCE)]


_CHANGE, _CHANGES = TypeAdapter(SentChange), TypeAdapter(SentChanges)


@work.get("/api/next")
async def next_item(request: Request) -> Response:
    """The item to label now, leased to this account. `?after=ITEM` names the one that is left: its lease ends if it is not submitted."""
    live, account = live_of(request), account_of(request)
    before = len(live.assigning.all_of(account.id))
    assignment, touched = live.assigning.next(
        account.id, after=request.query_params.get("after"), screens=_screens(account)
    )
    # The item is read while its lease is being written.
    leased = [live.writer.assignment(lease.row) for lease in touched]
    try:
        if not isinstance(assignment, Assignment):
            return JSONResponse(
                {"item": None, "reason": assignment, "progress": progress_data(live, account)}
            )
        if len(live.assigning.all_of(account.id)) > before:
            live.labelling.begin(account.id, live.assigning.items[assignment.item])
        return await _item(live, account, assignment.item)
    finally:
        await asyncio.gather(*leased)


@work.get("/api/items/{id:path}")
async def one_item(request: Request, id: str) -> Response:
    """An item that was given to this account before."""
    live, account = live_of(request), account_of(request)
    return await _item(live, account, live.labelling.assignment(account.id, id).item)


async def _item(live: Live, account: Account, id: str) -> Response:
    item = live.assigning.items[id]
    log = await live.labelling.log(account.id, item)
    view, suggestions = await live.view(id)
    shown = suggestions if live.labelling.shows_suggestions(item, log) else b"null"
    return _json(b'{"item":%b,"suggestions":%b,%b' % (view, shown, to_json(log.data)[1:]))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


@work.get("/api/mine")
async def mine(request: Request) -> list[dict[str, Any]]:
    """The items that this account has changed, newest first."""
    return await live_of(request).mine(account_of(request))


@work.post("/api/changes")
async def changes(request: Request) -> Response:
    """Add a change `{item, id, version, change, seconds}`, or several `{changes: […]}`, to their logs.

    The answer comes when they are on disk; the same id again gives the same answer.
    """
    live, account, body = live_of(request), account_of(request).id, await request.body()
    if b'"changes"' not in body[:16]:
        change = await live.labelling.take(account, read_body(_CHANGE, body))
        return _json(to_json(await live.labelling.stored(account, change)))
    # All are taken before any is waited for, so that they share a commit.
    outcomes: list[Taken | RequestError] = []
    for sent in read_body(_CHANGES, body).changes:
        try:
            outcomes.append(await live.labelling.take(account, sent))
        except RequestError as error:
            outcomes.append(error)
    results: list[dict[str, Any]] = []
    for outcome in outcomes:
        try:
            if isinstance(outcome, RequestError):
                raise outcome
            results.append(await live.labelling.stored(account, outcome))
        except RequestError as error:
            results.append({**error.body, "status": error.status_code})
    return JSONResponse({"results": results})


pages = APIRouter(include_in_schema=False)


@pages.get("/")
@pages.get("/join")
async def home() -> Response:
    """The page; it shows what the session's role may see, or reads an invitation's code from the fragment, which browsers do not send."""
    return FileResponse(str(WEB / "index.html"))


@pages.get("/favicon.ico")
async def icon() -> Response:
    """The icon."""
    return FileResponse(str(WEB / "icon.svg"))


@pages.get("/health")
async def health() -> dict[str, str]:
    """Whether the server runs."""
    return {"status": "ok"}


class _Files(StaticFiles):
    """Older Starlettes answer 500 to a NUL in a path."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if "\0" in path else super().lookup_path(path)


STATIC = (
    Mount("/static/katex", _Files(directory=str(KATEX))),
    Mount("/static", _Files(directory=str(WEB))),
)
"""The files of the pages."""


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
        return [
            asdict(dispute) | {"title": titles[dispute.item], "decided": dispute.state == "decided"}
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
                f"expected marks in mode {mode} on {amount(steps, 'step')}, found {data.get('mode')} on {data.get('steps')}"
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
        whole = project_progress(items, answers, overlap=project.overlap)
        return figures_json({"project": whole, "annotators": annotators}, inf_nan_mode="null")

    return Response(await live.figures("progress", read), media_type="application/json")


@admin.get("/api/admin/agreement")
async def agreement(request: Request) -> Response:
    """Agreement on steps: Krippendorff's alpha, first errors exact and within one, with intervals."""
    live = live_of(request)

    def read(connection: Connection) -> bytes:
        figures = step_agreement(items_of(connection), answers_of(connection, live.project))
        return figures_json(figures, inf_nan_mode="null")

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
    account = next((known for known in live.accounts.by_id.values() if known.name == body.name), None)
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
        raise _malformed_field(error.errors()[0]) from None

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


ROUTERS = (work, session, disputes_router, admin, pages)


def build_app(live: Live, site: Site, *, started: Callable[[], None] | None = None) -> FastAPI:
    """The app of a project, for one process of any ASGI server: logs in use are in memory. `started` is called once all is loaded."""

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
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            HTTPException: _refused,
            RequestValidationError: _malformed,
            StepmarkError: _stepmark_error,
            Exception: _failed,
        },
    )
    app.state.live, app.state.site = live, site
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes += STATIC
    return app


def secured(app: FastAPI, live: Live, site: Site) -> SecurityMiddleware:
    """The app behind its security middleware, as it is served."""
    direct = {("POST", "/api/changes"): changes, ("GET", "/api/next"): next_item}
    limits = live.project.limits
    return SecurityMiddleware(app, accounts=live.accounts, limits=limits, site=site, direct=direct)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such page", 405: "this address does not take that method"}
    body = {"error": words.get(error.status_code, error.detail)}
    body = error.body if isinstance(error, RequestError) else body
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse(_malformed_field(error.errors()[0], 1).body, status_code=400)


async def _stepmark_error(_request: Request, error: Exception) -> JSONResponse:
    field = {"field": error.field} if isinstance(error, InputError) and error.field else {}
    status = 400 if isinstance(error, InputError | UsageError) else 503
    return JSONResponse({"error": str(error), **field}, status_code=status)


async def _failed(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed at this request; its log says why"}, status_code=500)
