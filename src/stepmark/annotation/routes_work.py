"""What annotators do: take the next item, change it, look back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import from_json
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from stepmark.annotation.access import account_of, live_of, need
from stepmark.annotation.assigning import Assignment
from stepmark.annotation.labelling import Taken, conflict, entries_data
from stepmark.annotation.refusals import Refused
from stepmark.annotation.routes_session import progress_of, screens

if TYPE_CHECKING:
    from stepmark.annotation.accounts import Account
    from stepmark.annotation.live import Live

router = APIRouter(tags=["work"], dependencies=[need("annotator")])

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


@router.get("/api/next")
async def next_item(request: Request, after: str | None = None) -> Response:
    """The item to label now, leased to this account; `after`: the one that is left, which gives its lease back if it is not submitted."""
    return _json(await answer_next(live_of(request), account_of(request), after))


@router.get("/api/items/{id:path}")
async def one_item(request: Request, id: str) -> Response:
    """An item that was given to this account before."""
    live, account = live_of(request), account_of(request)
    return _json(await _answer(live, account, _item(live, account, id)))


@router.get("/api/mine")
async def mine(request: Request) -> list[dict[str, Any]]:
    """The items that this account has changed, newest first."""
    live, account = live_of(request), account_of(request)
    return await live.mine(account)


@router.post(
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
