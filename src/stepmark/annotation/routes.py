"""Routes for annotators: joining, logging in, the next item and its changes; the roles that routes need; the pages."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from stepmark.annotation import accounts
from stepmark.annotation.accounts import SESSION_DAYS, Account, RequestError, Role
from stepmark.annotation.assigning import Assignment
from stepmark.annotation.labelling import SentChange, Taken
from stepmark.annotation.live import Live, to_json
from stepmark.annotation.security import COOKIE

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
        if request.scope["stepmark.session"] is None:
            raise RequestError(
                401, "expected a session: log in with your token, or open your invitation link"
            )
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
        first = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(400, first["msg"], field=".".join(map(str, first["loc"]))) from None


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
    shared = ("mode", "allow_neutral", "show_answer", "inline_with_trace", "blind")
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
    leased = [live.writer.assignment(one.row) for one in touched]
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
        taken = await live.labelling.take(account, read_body(_CHANGE, body))
        return _json(to_json(await live.labelling.stored(account, taken)))
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


STATIC = (
    Mount("/static/katex", StaticFiles(directory=str(KATEX))),
    Mount("/static", StaticFiles(directory=str(WEB))),
)
"""The files of the pages."""
