"""What adjudicators do: see where annotators disagree, and decide."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from stepmark.annotation import accounts as who
from stepmark.annotation.access import account_of, live_of, need, read_body
from stepmark.annotation.answers import Decision
from stepmark.annotation.disputes import SideBySide, disputes, side_by_side
from stepmark.annotation.items import Item, view
from stepmark.annotation.marks import Change, Marks
from stepmark.annotation.project import check_change
from stepmark.annotation.refusals import Refused
from stepmark.annotation.routes_session import documented
from stepmark.annotation.stored import answers_of, decisions_of, items_of, store_decision, titles_of
from stepmark.annotation.wire import marks_data, read_marks
from stepmark.errors import InputError, StepmarkError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from stepmark.annotation.project import Project

router = APIRouter(tags=["disputes"], dependencies=[need("adjudicator")])

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


@router.get("/api/disputes")
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


@router.get("/api/disputes/{item:path}")
async def one_dispute(request: Request, item: str) -> dict[str, Any]:
    """An item with all submitted answers side by side."""
    live = live_of(request)

    def read() -> dict[str, Any]:
        with live.database.reading() as connection:
            one, table = _side_by_side(connection, live.project, item)
        return _page(live.project, one, table)

    return await asyncio.to_thread(read)


@router.post("/api/decisions", openapi_extra=documented(Decided))
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
