"""Who asks, and whether they may: said beside each route, checked before it runs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from stepmark.annotation.refusals import Refused

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
