"""Scores: of solutions, of candidates in order, and the bare rows of a head."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from stepmark.errors import InputError
from stepmark.models.grading import Grade
from stepmark.models.prm import PRM
from stepmark.records import Refusal, Solution, StepScores
from stepmark.serving.grading import (
    Asked,
    best_first,
    check_grade,
    check_split,
    head,
    solution_of,
    too_many,
    verdicts,
)
from stepmark.serving.jobs import LateError
from stepmark.serving.refusals import Refused, input_error_data
from stepmark.serving.routing import answer, body_of, check_model, deadline_of, described, service_of
from stepmark.serving.service import Live
from stepmark.serving.settings import ServerSettings
from stepmark.serving.wire import (
    CandidateFields,
    PoolingAnswer,
    PoolingRequest,
    RankAnswer,
    RankRequest,
    ScoreAnswer,
    ScoreRequest,
    SolutionToScore,
)
from stepmark.store import json_type

router = APIRouter(tags=["scores"])

_INLINE = 2_000
"""Characters of text that are cut into steps at once; more are cut in a thread, so that nobody waits for it."""
_PIECE = 16_000
"""Characters that are cut at a time there, so that requests take turns."""
_numbers = itertools.count(1)


@router.post(
    "/v1/score",
    summary="Score solutions",
    **described(ScoreAnswer, 404, 500, 504, body=ScoreRequest),
)
async def score(request: Request) -> Response:
    """Scores of every step of some solutions, one number for each, and where the first error is.

    A solution that the PRM cannot read has an `error` in its result; the others have their scores. A single solution that stands beside the
    settings, not in `solutions`, is answered by that error itself.
    """
    service = service_of(request)
    live = service.need()
    body = await body_of(request, ScoreRequest)
    check_model(live, body.model)
    settings = check_grade(live.prm, live.grade, body.aggregate, body.threshold, body.checks)
    single = body.solutions is None
    ones = _single(body) if body.solutions is None else _several(body, body.solutions)
    at = None if single else "solutions"
    for index, one in enumerate(ones):
        check_split(one.split, one.marker, at=None if single else f"solutions.{index}")
    _check_shape(ones, at, service.settings)
    deadline = deadline_of(request, body.timeout)
    asked = await _cut(
        request, ones, lambda one: solution_of(one.problem, one, one.split, one.marker), deadline
    )
    told = await _told(service.settings, live, asked, at, deadline)
    results = await _results(request, live.prm, asked, told, settings, at, deadline)
    if single and "error" in results[0]:
        raise _as_refused(results[0]["error"])
    return answer(
        {"object": "scores", **head(live.name, live.prm, settings, told, results), "results": results}
    )


@router.post("/v1/rank", summary="Rank candidates", **described(RankAnswer, 404, 500, 504, body=RankRequest))
async def rank(request: Request) -> Response:
    """Candidates of one problem, the best first: what best-of-N takes is `results[0].index`.

    A candidate that the PRM cannot read stands at the end with its `error`.
    """
    service = service_of(request)
    live = service.need()
    body = await body_of(request, RankRequest)
    check_model(live, body.model)
    settings = check_grade(live.prm, live.grade, body.aggregate, body.threshold, body.checks)
    check_split(body.split, body.marker)
    _check_shape(body.candidates, "candidates", service.settings)
    deadline = deadline_of(request, body.timeout)
    asked = await _cut(
        request,
        body.candidates,
        lambda one: solution_of(body.problem, one, body.split, body.marker),
        deadline,
    )
    told = await _told(service.settings, live, asked, "candidates", deadline)
    results = await _results(request, live.prm, asked, told, settings, "candidates", deadline)
    above = head(live.name, live.prm, settings, told, results)
    return answer({"object": "ranking", **above, "results": best_first(results)})


@router.post(
    "/pooling",
    summary="Rows of the head (vLLM)",
    **described(PoolingAnswer, 404, 500, 504, body=PoolingRequest),
)
async def pooling(request: Request) -> Response:
    """What vLLM answers for a token classifier that pools step marks: rows of the head, a row a mark.

    For PRMs with a head of their own that run in the server's process.
    """
    service = service_of(request)
    live = service.need()
    body = await body_of(request, PoolingRequest)
    check_model(live, body.model)
    if not live.batcher.backend.pooling:
        raise Refused(
            "invalid_request",
            f"{live.name!r} has no head whose rows could be given; ask /v1/score, which answers for every PRM",
        )
    sequences = _sequences(body.input)
    most = service.settings.max_solutions
    if len(sequences) > most:
        raise too_many("input", len(sequences), most, "sequences", "`max_solutions`")
    found = await live.batcher.rows(
        sequences,
        activation=body.use_activation is not False,
        special=body.add_special_tokens is not False,
        deadline=deadline_of(request, body.timeout),
    )
    data = []
    for index, rows in enumerate(found):
        if isinstance(rows, InputError):
            raise _as_refused(input_error_data(InputError(rows.message, field=f"input.{index}")))
        data.append({"index": index, "object": "pooling", "data": [list(row) for row in rows.rows]})
    tokens = sum(rows.tokens for rows in found if not isinstance(rows, InputError))
    return answer(
        {
            "id": f"pool-{next(_numbers)}",
            "object": "list",
            "created": int(time.time()),
            "model": live.name,
            "data": data,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
        }
    )


def _single(body: ScoreRequest) -> list[SolutionToScore]:
    if body.problem is None:
        raise Refused(
            "invalid_request",
            "expected solutions, or problem and steps (or solution), found neither",
            field="solutions",
        )
    return [
        SolutionToScore(
            problem=body.problem,
            steps=body.steps,
            solution=body.solution,
            split=body.split,
            marker=body.marker,
            id=body.id,
        )
    ]


def _several(body: ScoreRequest, solutions: list[SolutionToScore]) -> list[SolutionToScore]:
    for name in ("problem", "steps", "solution", "split", "marker", "id"):
        if getattr(body, name) is not None:
            raise Refused(
                "invalid_request",
                f"found solutions and {name}: expected {name} inside of the solutions",
                field=name,
            )
    return solutions


def _check_shape(
    ones: Sequence[SolutionToScore | CandidateFields], at: str | None, settings: ServerSettings
) -> None:
    """Either steps or a text of each, and no more than one request may have.

    Raises:
        Refused: 400 or 413, with the field.
    """
    if at is not None and len(ones) > settings.max_solutions:
        raise too_many(at, len(ones), settings.max_solutions, at, "`max_solutions`")
    for index, one in enumerate(ones):
        place = "" if at is None else f"{at}.{index}."
        if (one.steps is None) == (one.solution is None):
            found = "neither" if one.steps is None else "both"
            raise Refused(
                "invalid_request", f"expected steps or solution, found {found}", field=f"{place}steps"
            )
        if isinstance(one, SolutionToScore) and one.steps is not None:
            for name in ("split", "marker"):
                if getattr(one, name) is not None:
                    raise Refused(
                        "invalid_request",
                        f"{name} says how a text is cut, and the steps are given: leave it out",
                        field=f"{place}{name}",
                    )
        if one.steps is not None and len(one.steps) > settings.max_steps:
            raise too_many(f"{place}steps", len(one.steps), settings.max_steps, "steps", "`max_steps`")
        if len(one.solution or "") > settings.max_characters:
            length, most = len(one.solution or ""), settings.max_characters
            raise too_many(f"{place}solution", length, most, "characters", "`max_characters`")


async def _cut(
    request: Request,
    ones: Sequence[SolutionToScore] | Sequence[CandidateFields],
    read: Callable[[Any], Asked],
    deadline: float,
) -> list[Asked]:
    """Solutions of what was sent.

    Raises:
        LateError: the deadline passed.
    """
    if sum(len(one.solution or "") for one in ones) <= _INLINE:
        return [read(one) for one in ones]
    service, loop = service_of(request), asyncio.get_running_loop()
    found: list[Asked] = []
    while len(found) < len(ones):
        if service.clock() >= deadline:
            raise LateError("the deadline passed while texts were cut into steps")
        end, size = len(found), 0
        while end < len(ones) and (size == 0 or size + len(ones[end].solution or "") <= _PIECE):
            size += 1 + len(ones[end].solution or "")
            end += 1
        piece = ones[len(found) : end]
        found += await loop.run_in_executor(service.cutter, lambda some: [read(one) for one in some], piece)
    return found


async def _told(
    settings: ServerSettings, live: Live, asked: Sequence[Asked], at: str | None, deadline: float
) -> list[StepScores | Refusal]:
    most = settings.max_steps
    solutions = []
    for index, one in enumerate(asked):
        if isinstance(one, Solution):
            if len(one.steps) > most:
                place = "" if at is None else f"{at}.{index}."
                raise too_many(f"{place}solution", len(one.steps), most, "steps", "`max_steps`")
            solutions.append(one)
    return await live.batcher.score(solutions, deadline=deadline)


async def _results(
    request: Request,
    prm: PRM,
    asked: Sequence[Asked],
    scores: Sequence[StepScores | Refusal],
    settings: Grade,
    at: str | None,
    deadline: float,
) -> list[dict[str, Any]]:
    """The results of a request; exact checks run in a thread, some solutions at a time, so that no other request waits for them.

    Raises:
        LateError: the deadline passed.
    """
    service = service_of(request)
    if settings.checks == "none":
        return verdicts(asked, scores, prm, settings, at=at)
    loop, rest = asyncio.get_running_loop(), iter(scores)
    results: list[dict[str, Any]] = []
    while (start := len(results)) < len(asked):
        if service.clock() >= deadline:
            raise LateError("the deadline passed while the steps were checked")
        end, size = start, 0
        while end < len(asked) and (end == start or size + _characters(asked[end]) <= _PIECE):
            size += _characters(asked[end])
            end += 1
        piece = asked[start:end]
        answers = [next(rest) for solution in piece if isinstance(solution, Solution)]
        results += await loop.run_in_executor(
            service.cutter, partial(verdicts, piece, answers, prm, settings, at=at, start=start)
        )
    return results


def _characters(asked: Asked) -> int:
    return sum(map(len, asked.texts)) if isinstance(asked, Solution) else 0


def _as_refused(error: dict[str, Any]) -> Refused:
    return Refused(error["type"], error["message"], field=error.get("field"), where=error.get("where"))


def _sequences(found: Any) -> list[str | list[int]]:
    """One or several, texts or token ids, as a list.

    Raises:
        Refused: 400, with the field.
    """
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or not found:
        what = "an empty list" if found == [] else json_type(found)
        raise Refused("invalid_request", f"expected token ids or a text, found {what}", field="input")
    if type(found[0]) is int:
        return [_ids(found, "input")]
    return [
        _text(one, f"input.{index}") if isinstance(found[0], str) else _ids(one, f"input.{index}")
        for index, one in enumerate(found)
    ]


def _text(found: Any, field: str) -> str:
    if not isinstance(found, str) or not found:
        raise Refused("invalid_request", "expected a text that is not empty", field=field)
    return found


def _ids(found: Any, field: str) -> list[int]:
    if not isinstance(found, list) or not found:
        raise Refused("invalid_request", "expected a list of token ids, at least one", field=field)
    if any(type(one) is not int or not 0 <= one < 2**31 for one in found):
        raise Refused("invalid_request", "expected token ids: whole numbers from 0", field=field)
    return found
