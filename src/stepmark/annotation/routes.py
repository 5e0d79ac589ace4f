"""Routes for annotators: joining, logging in, the next item and its changes; the roles that routes need; the pages."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from stepmark.annotation.accounts import SESSION_DAYS, Entered, Refused, checked_name
from stepmark.annotation.assigning import Assignment
from stepmark.annotation.live import Taken, conflict, entries_data
from stepmark.annotation.security import COOKIE

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Account, Role, Session
    from stepmark.annotation.live import Live


Body = TypeVar("Body")

_ATTRIBUTE = "stepmark_role"


def live_of(request: Request) -> Live:
    """The project that the server serves."""
    return cast("Live", request.app.state.live)


def account_of(request: Request) -> Account:
    """Who asks. Only behind `need`."""
    session: Session = request.scope["stepmark.session"]
    return live_of(request).accounts.by_id[session.account]


def need(role: Role) -> Any:
    """A dependency: the session's account has this role or one above it."""

    async def check(request: Request) -> None:
        if request.scope["stepmark.session"] is None:
            raise Refused(401, "expected a session: log in with your token, or open your invitation link")
        account = account_of(request)
        if not account.may(role):
            raise Refused(403, f"expected the role {role}, found {account.role}; ask an admin")

    setattr(check, _ATTRIBUTE, role)
    return Depends(check)


def needed(routers: Iterable[APIRouter]) -> dict[tuple[str, str], Role | None]:
    """The role that each route needs, by (method, path); None for those that anybody may ask."""
    found: dict[tuple[str, str], Role | None] = {}
    for route in chain.from_iterable(router.routes for router in routers):
        if isinstance(route, APIRoute):
            roles = [getattr(d.dependency, _ATTRIBUTE, None) for d in route.dependencies]
            for method in route.methods or ():
                found[method, route.path] = next((role for role in roles if role is not None), None)
    return found


async def read_json(request: Request) -> Any:
    """The body as plain data.

    Raises:
        Refused: not JSON.
    """
    body = await request.body()
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, f"expected JSON: {error}") from None


async def read_body(request: Request, adapter: TypeAdapter[Body]) -> Body:
    """The body as a record, read strictly.

    Raises:
        Refused: not JSON, or a field that is missing, unknown or of a wrong type; the answer names it.
    """
    try:
        return adapter.validate_json(await request.body(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise Refused(400, first["msg"], field=path or None) from None
    except ValueError as error:
        raise Refused(400, f"expected JSON: {error}") from None


session = APIRouter(tags=["session"])


class Join(BaseModel):
    """A code of an invitation and the name that one wants."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"code": "…", "name": "ada"}]})
    code: str = Field(max_length=200)
    name: str = Field(max_length=200)


class Login(BaseModel):
    """The token that joining gave."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"token": "…"}]})
    token: str = Field(max_length=200)


_JOIN = TypeAdapter(Join)
_LOGIN = TypeAdapter(Login)


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI document says of a body that the route reads itself."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": model.model_json_schema()}},
        }
    }


@session.post("/api/join", openapi_extra=documented(Join))
async def join(request: Request) -> JSONResponse:
    """Use an invitation: a new account, logged in. Its token is in this answer and nowhere else."""
    live = live_of(request)
    _slow(request)
    body = await read_body(request, _JOIN)
    name = checked_name(body.name)
    try:
        entered = await live.writer.call(lambda connection: live.accounts.join(connection, body.code, name))
    except Refused as refused:
        await _failed(request, "join", refused)
        raise
    return _entered(request, live, entered)


@session.post("/api/login", openapi_extra=documented(Login))
async def login(request: Request) -> JSONResponse:
    """Log in with the account's token."""
    live = live_of(request)
    _slow(request)
    body = await read_body(request, _LOGIN)
    try:
        entered = await live.writer.call(lambda connection: live.accounts.login(connection, body.token))
    except Refused as refused:
        await _failed(request, "login", refused)
        raise
    return _entered(request, live, entered)


@session.post("/api/logout", dependencies=[need("annotator")])
async def logout(request: Request) -> JSONResponse:
    """End this session."""
    live = live_of(request)
    session = request.scope["stepmark.session"]
    await live.writer.call(lambda connection: live.accounts.logout(connection, session))
    live.accounts.forget(session)
    answer = JSONResponse({})
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@session.get("/api/me", dependencies=[need("annotator")])
async def me(request: Request) -> dict[str, Any]:
    """Name and role, whether there is no other account, the project's settings that the page needs, and progress."""
    live, account = live_of(request), account_of(request)
    project = live.project
    screened = live.assigning.screened(account.id) if screens(account) else None
    return {
        "name": account.name,
        "role": account.role,
        "alone": len(live.accounts.by_id) == 1,
        "csrf": request.scope["stepmark.session"].csrf,
        "project": {
            "name": project.title,
            "description": project.task,
            "mode": project.mode,
            "allow_neutral": project.allow_neutral,
            "reward_labels": asdict(project.reward_labels),
            "error_types": list(project.error_types),
            "show_answer": project.show_answer,
            "inline_with_trace": project.inline_with_trace,
            "help": asdict(project.help),
            "blind": project.blind,
        },
        "screening": None if screened is None else asdict(screened),
        "progress": progress_of(live, account),
    }


def progress_of(live: Live, account: Account) -> dict[str, Any]:
    """How far an account is, for its page."""
    submitted, of, each = live.assigning.progress(account.id)
    return {"submitted": submitted, "of": of, "seconds_each": each}


def screens(account: Account) -> bool:
    """Whether this account has to pass the screening set: those who decide about others' answers have not."""
    return account.role == "annotator"


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _slow(request: Request) -> None:
    live = live_of(request)
    live.failed_logins.look(_address(request), live.clock())


async def _failed(request: Request, action: str, refused: Refused) -> None:
    if refused.status_code != 403:
        return
    live, address = live_of(request), _address(request)
    live.failed_logins.take(address, live.clock())
    await live.record(None, f"{action} refused", {"address": address})


def _entered(request: Request, live: Live, entered: Entered) -> JSONResponse:
    live.accounts.admit(entered)
    answer = JSONResponse(
        {"name": entered.account.name, "role": entered.account.role}
        | ({} if entered.token is None else {"token": entered.token})
    )
    answer.set_cookie(
        COOKIE,
        entered.cookie,
        max_age=int(SESSION_DAYS * 86400),
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.app.state.site.secure,
    )
    return answer


work = APIRouter(tags=["work"], dependencies=[need("annotator")])

_NOT_STORED = "the server could not store this change; it will be sent again"
MOST_AT_ONCE = 500
"""Changes in one request."""


def _item(live: Live, account: Account, item: Any) -> Assignment:
    if not isinstance(item, str):
        raise Refused(400, "expected the id of an item", field="item")
    one = live.assigning.of(account.id, item)
    if one is not None and item in live.assigning.items:
        return one
    if item in live.assigning.items:
        raise Refused(403, "this item is not assigned to you: choose Label for your next one", field="item")
    raise Refused(404, "there is no such item", field="item")


async def _answer(live: Live, account: Account, one: Assignment) -> bytes:
    item = live.assigning.items[one.item]
    log = await live.labelling.log(account.id, item)
    shown = await live.shown(one.item)
    suggestions = shown.suggestions if live.labelling.shows_suggestions(item, log) else b"null"
    state = json.dumps(
        {"version": log.version, "changes": entries_data(log), "submitted": log.folding.submitted}
    ).encode()
    return b'{"item":%b,"suggestions":%b,%b' % (shown.view, suggestions, state[1:])


async def answer_next(live: Live, account: Account, after: str | None) -> bytes:
    """The body of the answer to `/api/next`."""
    before = len(live.assigning.all_of(account.id))
    found, touched = live.assigning.next(account.id, after=after, screens=screens(account))
    if isinstance(found, Assignment) and len(live.assigning.all_of(account.id)) > before:
        live.labelling.begin(account.id, live.assigning.items[found.item])
    # The item is read while its lease is being written.
    leased = [live.writer.assignment(one.row) for one in touched]
    try:
        if isinstance(found, Assignment):
            return await _answer(live, account, found)
        return json.dumps({"item": None, "reason": found, "progress": progress_of(live, account)}).encode()
    finally:
        await asyncio.gather(*leased)


async def answer_changes(live: Live, account: Account, body: bytes) -> bytes:
    """The body of the answer to `/api/changes`, once what it acknowledges is on disk."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, f"expected JSON: {error}") from None
    if not isinstance(data, dict):
        raise Refused(400, "expected an object with item, id, version, change and seconds")
    several = data.get("changes")
    if several is None:
        taken = await _take(live, account, data)
        await _stored(live, account, data["item"], taken)
        return b'{"version":%d,"submitted":%b}' % (taken.version, b"true" if taken.submitted else b"false")
    if not isinstance(several, list) or len(several) > MOST_AT_ONCE:
        raise Refused(400, f"expected a list of at most {MOST_AT_ONCE} changes", field="changes")
    return json.dumps({"results": await _several(live, account, several)}).encode()


@work.get("/api/next")
async def next_item(request: Request, after: str | None = None) -> Response:
    """The item to label now, leased to this account; `after`: the one that is left, which gives its lease back if it is not submitted."""
    return _json(await answer_next(live_of(request), account_of(request), after))


@work.get("/api/items/{id:path}")
async def one_item(request: Request, id: str) -> Response:
    """An item that was given to this account before."""
    live, account = live_of(request), account_of(request)
    return _json(await _answer(live, account, _item(live, account, id)))


@work.get("/api/mine")
async def mine(request: Request) -> list[dict[str, Any]]:
    """The items that this account has changed, newest first."""
    live, account = live_of(request), account_of(request)
    return await live.mine(account)


@work.post(
    "/api/changes",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"type": "object"},
                    "examples": {
                        "one": {
                            "value": {
                                "item": "gsm8k-17",
                                "id": "0b9c2f7e-4d1a-4f57-9a55-0d5f4c9e8a11",
                                "version": 0,
                                "change": {"kind": "first_error", "step": 2},
                                "seconds": 12.5,
                            }
                        },
                        "several": {"value": {"changes": ["…"]}},
                    },
                }
            },
        }
    },
)
async def changes(request: Request) -> Response:
    """Add changes to their logs. The answer comes when they are on disk; the same id again gives the same answer."""
    return _json(await answer_changes(live_of(request), account_of(request), await request.body()))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _take(live: Live, account: Account, data: Any) -> Taken:
    if not isinstance(data, dict):
        raise Refused(400, "expected an object with item, id, version, change and seconds")
    one = _item(live, account, data.get("item"))
    item = live.assigning.items[one.item]
    log = live.labelling.known(account.id, one.item) or await live.labelling.log(account.id, item)
    return live.labelling.take(account.id, log, item, one, data)


async def _stored(live: Live, account: Account, item: Any, taken: Taken) -> None:
    if taken.stored is None:
        return
    try:
        # Shielded: another request may wait for the same change.
        await (taken.stored if taken.stored.done() else asyncio.shield(taken.stored))
    except IntegrityError as error:
        # Another process went on with this log, or the id is another log's. What is in memory was thrown away.
        log = await live.labelling.log(account.id, live.assigning.items[item])
        raise conflict(log, taken.version - 1) from error
    except SQLAlchemyError as error:
        raise Refused(503, _NOT_STORED, headers={"retry-after": "1"}) from error


async def _several(live: Live, account: Account, several: list[Any]) -> list[dict[str, Any]]:
    # All are taken before any is waited for, so that they share a commit.
    outcomes: list[Taken | Refused] = []
    for data in several:
        try:
            outcomes.append(await _take(live, account, data))
        except Refused as refused:
            outcomes.append(refused)
    results: list[dict[str, Any]] = []
    for data, outcome in zip(several, outcomes, strict=True):
        try:
            if isinstance(outcome, Refused):
                raise outcome
            await _stored(live, account, data["item"], outcome)
            results.append({"version": outcome.version, "submitted": outcome.submitted})
        except Refused as refused:
            results.append({**refused.body, "status": refused.status_code})
    return results


pages = APIRouter(include_in_schema=False)

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
}


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    type: str
    tag: str


@cache
def files() -> dict[str, _File]:
    """All that is served under /static/, by its path there."""
    found: dict[str, _File] = {}
    _collect(resources.files("stepmark.annotation") / "web", "", found)
    _collect(resources.files("stepmark.show") / "vendor" / "katex", "katex/", found)
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, _File]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
        elif (kind := _TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            data = entry.read_bytes()
            found[prefix + entry.name] = _File(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _send(request: Request, name: str) -> Response:
    file = files().get(name)
    if file is None:
        raise Refused(404, "there is no such file")
    headers = {"etag": file.tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.type, headers=headers)


@pages.get("/")
async def home(request: Request) -> Response:
    """The page; it shows what the session's role may see."""
    return _send(request, "index.html")


@pages.get("/join")
async def join_page(request: Request) -> Response:
    """The same page; it reads the invitation's code from the fragment, which browsers do not send."""
    return _send(request, "index.html")


@pages.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """The icon."""
    return _send(request, "icon.svg")


@pages.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    """A file of the pages."""
    return _send(request, name)


@pages.get("/health")
async def health() -> JSONResponse:
    """Whether the server runs."""
    return JSONResponse({"status": "ok"})
