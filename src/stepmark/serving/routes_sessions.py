"""Sessions: prefixes that grow by a step at a time and are never sent again."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from stepmark.errors import InputError
from stepmark.records import Problem
from stepmark.serving.grading import too_many
from stepmark.serving.refusals import input_error_data
from stepmark.serving.routing import answer, body_of, check_model, deadline_of, described, service_of
from stepmark.serving.sessions import Node
from stepmark.serving.wire import (
    ClosedAnswer,
    ReleaseAnswer,
    ReleaseRequest,
    SessionAnswer,
    SessionRequest,
    StepsAnswer,
    StepsRequest,
)

router = APIRouter(tags=["sessions"])
_ID = {"id": "The session's id."}


@router.post("/v1/sessions", summary="Open a session", **described(SessionAnswer, 404, body=SessionRequest))
async def open_session(request: Request) -> Response:
    """Begin with a problem; nothing is computed yet."""
    live = service_of(request).need()
    body = await body_of(request, SessionRequest)
    check_model(live, body.model)
    opened = live.sessions.open(Problem(text=body.problem))
    return answer({"id": opened.id, "expires_in": opened.expires_in})


@router.post(
    "/v1/sessions/{id}/steps",
    summary="Score more steps",
    **described(StepsAnswer, 404, 500, 504, body=StepsRequest, path=_ID),
)
async def add_steps(request: Request) -> Response:
    """Score steps, each after a prefix that the session has; only the new step is read, where the PRM allows it.

    A step that the PRM cannot read, or whose `after` is not there, has an `error` in its result. The same step after the same node is the same node
    again and costs nothing, so a request whose answer was lost can be repeated.
    """
    service = service_of(request)
    live = service.need()
    body = await body_of(request, StepsRequest)
    if len(body.steps) > service.settings.max_solutions:
        raise too_many("steps", len(body.steps), service.settings.max_solutions, "steps", "`max_solutions`")
    found = await live.sessions.extend(
        request.path_params["id"],
        [(one.after, one.text) for one in body.steps],
        deadline=deadline_of(request, body.timeout),
    )
    results = [_result(index, one) for index, one in enumerate(found)]
    return answer({"object": "steps", "model": live.name, "results": results})


@router.post(
    "/v1/sessions/{id}/release",
    summary="Release nodes",
    **described(ReleaseAnswer, 404, body=ReleaseRequest, path=_ID),
)
async def release(request: Request) -> Response:
    """Let go of prefixes that will not be continued, so that their memory can serve others. What continues them already stays."""
    live = service_of(request).need()
    body = await body_of(request, ReleaseRequest)
    return answer({"released": await live.sessions.release(request.path_params["id"], body.nodes)})


@router.delete("/v1/sessions/{id}", summary="Close a session", **described(ClosedAnswer, 404, 503, path=_ID))
async def close_session(request: Request) -> Response:
    """End a session and let go of all of it. Sessions that nobody asks for a while end by themselves."""
    live = service_of(request).need()
    await live.sessions.close(request.path_params["id"])
    return answer({"id": request.path_params["id"], "closed": True})


def _result(index: int, one: Node | InputError) -> dict[str, Any]:
    if isinstance(one, InputError):
        # The session names its own fields from the top; a PRM knows only the step.
        at = None if (one.field or "").startswith("steps[") else f"steps.{index}"
        field = one.field if at is None else None
        return {"error": input_error_data(type(one)(one.message, field=field), at=at)}
    classes = {} if one.classes is None else {"classes": list(one.classes)}
    return {"node": one.node, "score": one.score, **classes, "tokens": one.tokens, "root": one.root}
