"""Joining, logging in and out, and who one is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stepmark.annotation.access import account_of, live_of, need, read_body
from stepmark.annotation.accounts import SESSION_DAYS, Entered, checked_name
from stepmark.annotation.refusals import Refused
from stepmark.annotation.security import COOKIE

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Account
    from stepmark.annotation.live import Live

router = APIRouter(tags=["session"])


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


@router.post("/api/join", openapi_extra=documented(Join))
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


@router.post("/api/login", openapi_extra=documented(Login))
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


@router.post("/api/logout", dependencies=[need("annotator")])
async def logout(request: Request) -> JSONResponse:
    """End this session."""
    live = live_of(request)
    session = request.scope["stepmark.session"]
    await live.writer.call(lambda connection: live.accounts.logout(connection, session))
    live.accounts.forget(session)
    answer = JSONResponse({})
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@router.get("/api/me", dependencies=[need("annotator")])
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
