"""The HTTP app: labelling, deciding, the project's figures and exports, the pages, and errors as answers.

The header `Authorization: Bearer TOKEN` names the annotator. No cookie is set, so another site's page cannot act in a person's name.
Every answer is made from the database; the page shows what it says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import resources
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from stepmark.annotation.disputes import SideBySide, disputes, project_progress, side_by_side, step_agreement
from stepmark.annotation.export import FORMATS, Exporting, export
from stepmark.annotation.items import Item, view
from stepmark.annotation.marks import Change, Decision, marks_data
from stepmark.annotation.project import NOTE_CHARACTERS, Project
from stepmark.annotation.store import DECIDING, Log, Person, RefusedError, Store, shows_suggestions
from stepmark.data.json_rows import parse_row
from stepmark.errors import InputError, StepmarkError
from stepmark.hosting import is_over
from stepmark.version import __version__

Body = TypeVar("Body", bound="_Strict")

BODY_BYTES = 256 * 1024
"""Of one request."""
WEB = resources.files("stepmark.annotation") / "web"
KATEX = resources.files("stepmark.report") / "vendor" / "katex"
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class _Strict(BaseModel):
    """A request's body: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SentChange(_Strict):
    """A change as the page sends it."""

    item: str
    id: str = Field(pattern=r"\A[0-9A-Za-z_-]{8,64}\z")
    """Made by the page, so that sending it twice stores it once."""
    change: Change
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Since the last change, with the page in view."""
    deciding: bool = False
    """It is about the admin's decision, not about an answer of their own."""


class TakeOver(_Strict):
    """Whose answer becomes the admin's decision, not recorded yet."""

    item: str
    account: str


class SentDecision(_Strict):
    """Record what the admin has marked on an item."""

    item: str
    reason: str = Field(default="", max_length=NOTE_CHARACTERS)
    version: str
    """Of the answers that were on the page."""


class NewPerson(_Strict):
    """An annotator's name."""

    name: str = Field(max_length=200)
    new: bool = False
    """A new link in the place of the one that there is."""


async def _data(request: Request) -> dict[str, Any]:
    """The JSON object that was sent, read as strictly as a row of a file: no key twice, no half characters."""
    if is_over(request.headers.get("content-length", "0").encode(), BODY_BYTES):
        raise _too_large()
    body = b""
    async for chunk in request.stream():  # the header may be absent or wrong
        body += chunk
        if len(body) > BODY_BYTES:
            raise _too_large()
    return parse_row(body)


def _too_large() -> RefusedError:
    return RefusedError(413, f"expected at most {BODY_BYTES} bytes, found more; send less at once")


def sent(kind: type[Body]) -> Any:
    """A dependency: the body as a record of this kind."""

    def read(data: Annotated[dict[str, Any], Depends(_data)]) -> Body:
        return read_body(kind, data)

    return Depends(read)


def read_body(kind: type[Body], data: Mapping[str, Any]) -> Body:
    """A body from plain data.

    Raises:
        RefusedError: a field that is missing, unknown or of a wrong type (400); the answer names it.
    """
    try:
        return kind.model_validate_json(
            json.dumps(data)
        )  # JSON's strictness: a list for a tuple, no "3" for 3
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> RefusedError:
    first = error.errors(include_url=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    return RefusedError(400, message, field=".".join(map(str, first["loc"])) or None)


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


def _project(request: Request) -> Project:
    project: Project = request.app.state.project
    return project


def _person(request: Request, store: Annotated[Store, Depends(_store)]) -> Person:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    person = store.person_of(token) if scheme.lower() == "bearer" else None
    if person is None:
        raise RefusedError(401, "this link is not valid any more; ask for another one")
    return person


def _admin(person: Annotated[Person, Depends(_person)]) -> Person:
    if not person.is_admin:
        raise RefusedError(403, "this is the admin's: open the admin's link")
    return person


TheStore = Annotated[Store, Depends(_store)]
TheProject = Annotated[Project, Depends(_project)]
Me = Annotated[Person, Depends(_person)]
Admin = Annotated[Person, Depends(_admin)]


def me(store: TheStore, project: TheProject, person: Me) -> dict[str, Any]:
    """Who this is, the project's settings that the page needs, and progress."""
    shared = ("mode", "allow_neutral", "inline_with_trace", "error_types")
    return {
        "name": person.name,
        "admin": person.is_admin,
        "project": {
            "name": project.title,
            "description": project.task,
            "reward_labels": asdict(project.reward_labels),
            "help": asdict(project.help),
            **{name: getattr(project, name) for name in shared},
        },
        "progress": store.progress(project, person.id),
    }


def next_item(store: TheStore, project: TheProject, person: Me, after: str | None = None) -> dict[str, Any]:
    """The item to label now. `?after=ITEM` names the one that is left, which others may have at once if it is not submitted."""
    item = store.next_item(project, person.id, after=after)
    progress = store.progress(project, person.id)
    if not isinstance(item, Item):
        return {"item": None, "reason": item, "progress": progress}
    return _shown(store, project, person, item) | {"progress": progress}


def one_item(store: TheStore, project: TheProject, person: Me, id: str) -> dict[str, Any]:
    """An item that was given to this annotator before."""
    return _shown(store, project, person, store.item(id))


def _shown(store: Store, project: Project, person: Person, item: Item) -> dict[str, Any]:
    log = store.log(project, person.id, item)
    return {"item": view(item, project), **_state(project, person.id, item, log)}


def _state(project: Project, me: int, item: Item, log: Log) -> dict[str, Any]:
    """What a log amounts to, as the page shows it."""
    folding, marks = log.folding, log.folding.marks()
    shown = shows_suggestions(project, me, item, log)
    return {
        "marks": marks_data(marks),
        "version": folding.version,
        "can_undo": folding.can_undo,
        "can_redo": folding.can_redo,
        "complete": marks.missing is None,
        "suggestions": [each and asdict(each) for each in item.suggestions] if shown else None,
    }


def mine(store: TheStore, project: TheProject, person: Me) -> list[dict[str, Any]]:
    """The items that this annotator has changed, the newest first."""
    answers = store.answers(project, annotator=person.id)
    titles = _titles(store, {answer.item for answer in answers})
    return [
        {
            "id": answer.item,
            "title": titles[answer.item],
            "submitted": answer.marks.submitted,
            "unsure": bool(answer.marks.unsure),
        }
        for answer in sorted(answers, key=lambda answer: -(answer.at or 0.0))
    ]


def _titles(store: Store, ids: set[str]) -> dict[str, str]:
    titles = {item.id: " ".join(item.solution.problem.text.split()) for item in store.items(only=ids)}
    return {id: title if len(title) <= 80 else title[:79] + "…" for id, title in titles.items()}


def change(
    store: TheStore, project: TheProject, person: Me, body: Annotated[SentChange, sent(SentChange)]
) -> dict[str, Any]:
    """Add a change to its log. The answer comes when it is on disk, and says what the log amounts to; the same id again changes nothing."""
    if body.deciding and not person.is_admin:
        raise RefusedError(403, "only the admin decides", field="deciding")
    me, item = DECIDING if body.deciding else person.id, store.item(body.item)
    log = store.take(project, me, item, body.id, body.change, body.seconds)
    return _state(project, me, item, log)


def list_disputes(store: TheStore, project: TheProject, _: Admin) -> list[dict[str, Any]]:
    """The items on which annotators disagree, worst first; decided ones at the end."""
    queue = disputes(store.items(), store.answers(project), store.decisions())
    titles = _titles(store, {dispute.item for dispute in queue})
    return [asdict(dispute) | {"title": titles[dispute.item]} for dispute in queue]


def _compared(store: Store, project: Project, id: str) -> tuple[Item, SideBySide]:
    item = store.item(id)
    try:
        return item, side_by_side(item, store.answers(project, item=id), store.decisions(id))
    except InputError as error:
        raise RefusedError(404, error.message, field="item") from None


def one_dispute(store: TheStore, project: TheProject, _: Admin, id: str) -> dict[str, Any]:
    """An item with all submitted answers side by side, and the decision as far as it is made."""
    item, table = _compared(store, project, id)
    decision = table.decision
    return {
        "item": view(item, project),
        **_state(project, DECIDING, item, store.deciding(project, item)),
        "answers": [
            {"account": answer.account, "marks": marks_data(answer.marks)} for answer in table.answers
        ],
        "differing": table.differing,
        "answers_version": table.version,
        "decision": decision and {"marks": marks_data(decision.marks), "reason": decision.reason},
    }


def take_over(
    store: TheStore, project: TheProject, _: Admin, body: Annotated[TakeOver, sent(TakeOver)]
) -> dict[str, Any]:
    """Put an annotator's ratings and error types into the decision."""
    item, table = _compared(store, project, body.item)
    answer = next((each for each in table.answers if each.account == body.account), None)
    if answer is None:
        names = ", ".join(each.account for each in table.answers)
        raise RefusedError(400, f"expected one of {names}; found {body.account!r}", field="account")
    return _state(project, DECIDING, item, store.take_over(project, item, answer.marks))


def decide(
    store: TheStore, project: TheProject, person: Admin, body: Annotated[SentDecision, sent(SentDecision)]
) -> dict[str, Any]:
    """Record the decision on an item. Earlier decisions stay in the database; the newest holds."""
    item, table = _compared(store, project, body.item)
    if body.version != table.version:
        raise RefusedError(409, "an answer was changed meanwhile; compare the answers again", field="version")
    marks = store.deciding(project, item).folding.marks()
    if marks.missing is not None or marks.unsure:
        raise RefusedError(
            400, "a decision gives the first error, or rates every step, and is not unsure", field="item"
        )
    store.decide(
        Decision(
            item=item.id,
            account=person.name,
            marks=marks,
            reason=body.reason,
            over=tuple(each.account for each in table.answers),
            at=store.clock(),
        )
    )
    return {"item": body.item}


def figures(store: TheStore, project: TheProject, _: Admin) -> Response:
    """How far the project is, everyone's link and submissions, and how well they agree."""
    items, answers, people = store.items(), store.answers(project), store.people()
    submitted = [answer.account for answer in answers if answer.marks.submitted]
    data = {
        "progress": project_progress(items, answers, overlap=project.overlap),
        "people": [
            {"name": person.name, "link": store.link_of(person), "submitted": submitted.count(person.name)}
            for person in people
        ],
        "agreement": step_agreement(items, answers),
        "formats": list(FORMATS),
    }
    return Response(to_json(data, inf_nan_mode="null"), media_type="application/json")


def add_person(store: TheStore, _: Admin, body: Annotated[NewPerson, sent(NewPerson)]) -> dict[str, str]:
    """The link of an annotator, who is made where there is none of this name."""
    person = store.person(body.name, new=body.new)
    return {"name": person.name, "link": store.link_of(person)}


def export_file(store: TheStore, project: TheProject, request: Request, _: Admin) -> Response:
    """The labels as JSON lines; the query has the settings of `Exporting`."""
    try:
        settings = TypeAdapter(Exporting).validate_strings(dict(request.query_params))
    except ValidationError as error:
        raise _invalid(error) from None
    rows = list(export(project, store.items(), store.answers(project), store.decisions(), settings))
    lines = [json.dumps(row, ensure_ascii=False) for row in rows if not isinstance(row, InputError)]
    return Response(
        "".join(f"{row}\n" for row in lines).encode("utf-8", "replace"),
        media_type="application/jsonl",
        headers={
            "content-disposition": f'attachment; filename="{settings.format}.jsonl"',
            "x-stepmark-left-out": str(len(rows) - len(lines)),
        },
    )


def home() -> Response:
    """The page; whose it is stands in the link's fragment, which browsers do not send."""
    return FileResponse(str(WEB / "index.html"))


def health() -> dict[str, str]:
    """Whether the server runs."""
    return {"status": "ok"}


ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("GET", "/", home),
    ("GET", "/health", health),
    ("GET", "/api/me", me),
    ("GET", "/api/next", next_item),
    ("GET", "/api/item", one_item),
    ("GET", "/api/mine", mine),
    ("POST", "/api/changes", change),
    ("GET", "/api/disputes", list_disputes),
    ("GET", "/api/dispute", one_dispute),
    ("POST", "/api/take-over", take_over),
    ("POST", "/api/decisions", decide),
    ("GET", "/api/project", figures),
    ("POST", "/api/people", add_person),
    ("GET", "/api/export", export_file),
)


def build_app(store: Store, project: Project, *, started: Callable[[], None] | None = None) -> FastAPI:
    """The app of a project, for any ASGI server, in as many processes as one likes. `started` is called once it answers."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if started is not None:
            started()
        yield

    app = FastAPI(
        title="stepmark annotate",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            HTTPException: _not_found,
            RequestValidationError: _malformed,
            StepmarkError: _refused,
            DBAPIError: _database_away,
            PoolTimeoutError: _database_away,
            Exception: _failed,
        },
    )
    app.state.store, app.state.project = store, project
    for method, path, endpoint in ROUTES:
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    app.mount("/static/katex", StaticFiles(directory=str(KATEX)))
    app.mount("/static", StaticFiles(directory=str(WEB)))

    @app.middleware("http")
    async def _headers(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        cache = "no-store" if request.url.path.startswith("/api/") else "no-cache"
        response.headers.update({**HEADERS, "cache-control": cache})
        return response

    return app


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RefusedError):
        return JSONResponse(error.body, error.status)
    field = {"field": error.field} if isinstance(error, InputError) and error.field else {}
    return JSONResponse({"error": str(error), **field}, 400)


async def _not_found(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such page", 405: "this address does not take that method"}
    return JSONResponse({"error": words.get(error.status_code, error.detail)}, error.status_code)


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"error": first["msg"], "field": ".".join(map(str, first["loc"][1:]))}, 400)


async def _database_away(_request: Request, error: Exception) -> JSONResponse:
    """The database does not answer, or another process was quicker: the page sends the same again."""
    why = (
        "another request was quicker" if isinstance(error, IntegrityError) else "the database does not answer"
    )
    return JSONResponse({"error": f"{why}; try again"}, 503, {"retry-after": "1"})


async def _failed(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed at this request; its log says why"}, 500)
