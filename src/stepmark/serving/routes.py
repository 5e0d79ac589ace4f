"""The addresses of a score server: scores, ranks, rows of a head, and what the server says of itself.

One function a route. A body is read by FastAPI into a model of `models.remote.wire`, its solutions are read and graded by the functions of
`stepmark grade`, and the answer is plain data; the models of answers are in the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel

from stepmark.data.solutions import read_solution
from stepmark.data.steps.splitting import split
from stepmark.errors import InputError, SettingError, UnknownNameError, UsageError
from stepmark.metrics.aggregate import rank_key
from stepmark.models.prm import PRM, Grade, graded, to_row
from stepmark.models.remote.wire import (
    ClassifyRequest,
    ErrorResponse,
    ModelsResponse,
    PoolingRequest,
    RankRequest,
    RankResponse,
    RewardsRequest,
    RewardsResponse,
    ScoreResponse,
    ScoreSolutionsRequest,
    SolutionFields,
    SolutionToScore,
)
from stepmark.records import Refusal, Solution, StepScores
from stepmark.serving.backend import Rows
from stepmark.serving.errors import Refused, invalid, refused_input
from stepmark.serving.metrics import CONTENT_TYPE
from stepmark.serving.service import Service, within

_numbers = itertools.count(1)
_ALWAYS = ("scores", "score", "first_error", "first_error_step")
_MAYBE = ("findings", "first_error_by", "steps", "classes", "critiques")

Read = Solution | InputError
"""A solution of a request, or why it is none."""

router = APIRouter()


def described(model: type[BaseModel] | None) -> dict[str, Any]:
    """What a route declares for the OpenAPI document: its answer, and the body of every error."""
    responses: dict[int | str, dict[str, Any]] = {
        "default": {"model": ErrorResponse, "description": "An error; its `type` says which."}
    }
    if model is not None:
        responses[200] = {"model": model, "description": "Done."}
    return {"responses": responses, "response_model": None}


def service_of(request: Request) -> Service:
    """The server that a request came to."""
    service: Service = request.app.state.service
    return service


def check_model(name: str, asked: str | None) -> None:
    """Refuse (404) a request for another model."""
    if asked is not None and asked != name:
        raise Refused("not_found", f"no model {asked[:80]!r} answers here; {name!r} does", field="model")


def check_grade(
    prm: PRM, default: Grade, aggregate: str | None, threshold: float | None = None, checks: str | None = None
) -> Grade:
    """A request's own settings over the server's.

    Raises:
        Refused: 400, with the field: no such aggregate, or one without meaning for these scores; a threshold out of their range; no such check.
    """
    field = "checks"
    try:
        grade = replace(default, checks=default.checks if checks is None else checks).of(prm)
        field = "aggregate"
        if aggregate is not None:
            grade = replace(grade, aggregate=aggregate).of(prm)
        field = "threshold"
        return grade if threshold is None else replace(grade, threshold=threshold).of(prm)
    except (SettingError, UsageError) as error:
        raise invalid(str(error), field=field) from None


# Scores.


@router.post("/v1/score", tags=["scores"], summary="Score solutions", **described(ScoreResponse))
async def score(request: Request, body: ScoreSolutionsRequest) -> Response:
    """Scores of every step of some solutions, one number for each, and where the first error is.

    A solution that the PRM cannot read has an `error` in its result; the others have their scores. A single solution that stands beside the
    settings, not in `solutions`, is answered by that error itself.
    """
    service = service_of(request)
    check_model(service.name, body.model)
    single = body.solutions is None
    at = None if single else "solutions"
    asked = _asked(body)
    for index, item in enumerate(asked):
        _check_split(item.split, item.marker, None if single else f"solutions.{index}")
    above, results = await _scored(
        request, body, asked, at, lambda item: solution_of(item.problem, item, item.split, item.marker)
    )
    if single and "error" in results[0]:
        error = results[0]["error"]
        raise Refused(error["type"], error["message"], field=error.get("field"), where=error.get("where"))
    return JSONResponse({"object": "scores", **above, "results": results})


@router.post("/v1/rank", tags=["scores"], summary="Rank solutions", **described(RankResponse))
async def rank(request: Request, body: RankRequest) -> Response:
    """Solutions of one problem, the best first: what best-of-N takes is `results[0].index`.

    One with a step that an exact check proves to be wrong comes after all others; one that the PRM cannot read stands at the end with its `error`.
    """
    service = service_of(request)
    check_model(service.name, body.model)
    _check_split(body.split, body.marker, None)
    above, results = await _scored(
        request,
        body,
        body.solutions,
        "solutions",
        lambda item: solution_of(body.problem, item, body.split, body.marker),
    )
    return JSONResponse({"object": "ranking", **above, "results": best_first(results)})


@router.post("/v1/rewards", tags=["scores"], summary="Reward turns", **described(RewardsResponse))
async def rewards(request: Request, body: RewardsRequest) -> Response:
    """One number for each turn of some conversations, for a trainer: the score (the last turn's with the outcome), or an advantage by a credit method.

    A conversation that the PRM cannot read says so in `refused`; its turns have no scores.
    """
    from stepmark.rl.adapters.any_trainer import read_turns, rewarded

    service = service_of(request)
    check_model(service.name, body.model)
    _check_count(service, "messages", body.messages)

    def compute(results: Sequence[StepScores | Refusal]) -> list[dict[str, Any]]:
        made = rewarded(
            turns,
            results,
            service.prm,
            outcome=body.outcome,
            credit=body.credit,
            groups=body.groups,
            masks=body.masks,
        )
        facts = [
            {"turns": one.turns, "scores": one.scores, "refused": one.refused, "tokens": one.tokens}
            for one in made
        ]
        return [
            {"index": index, **{name: value for name, value in fact.items() if value is not None}}
            for index, fact in enumerate(facts)
        ]

    loop = asyncio.get_running_loop()
    async with within(body.timeout or service.settings.timeout):
        turns = await loop.run_in_executor(
            service.threads,
            lambda: [read_turns(one, at, body.reasoning) for at, one in enumerate(body.messages)],
        )
        scores = await service.batcher.score([one.solution for one in turns])
        results = await loop.run_in_executor(service.threads, compute, scores)
    return JSONResponse({"object": "rewards", "model": service.name, "results": results})


@router.post("/pooling", tags=["scores"], summary="Rows of the head (vLLM)", **described(None))
async def pooling(request: Request, body: PoolingRequest) -> Response:
    """What vLLM answers for a token classifier that pools step marks: rows of the head, a row a mark.

    For PRMs with a head of their own that run in the server's process.
    """
    service, rows = await _rows(request, body)
    data = [
        {"index": index, "object": "pooling", "data": [list(row) for row in one.rows]}
        for index, one in enumerate(rows)
    ]
    return _listed("pool", service, data, rows)


@router.post("/classify", tags=["scores"], summary="Labels at the last token (vLLM)", **described(None))
async def classify(request: Request, body: ClassifyRequest) -> Response:
    """What vLLM answers for a classifier: the probability of each label at the last token of a text or of token ids.

    Texts are tokenized as they stand, control tokens included: the client renders the chat template. For PRMs with a head of their own that run in
    the server's process.
    """
    service, rows = await _rows(request, body, last=True)
    names = service.batcher.backend.labels
    data = []
    for index, one in enumerate(rows):
        [probs] = one.rows
        best = max(range(len(probs)), key=probs.__getitem__)
        label = names[best] if names else f"LABEL_{best}"
        data.append({"index": index, "label": label, "probs": list(probs), "num_classes": len(probs)})
    return _listed("classify", service, data, rows)


async def _rows(
    request: Request, body: PoolingRequest | ClassifyRequest, *, last: bool = False
) -> tuple[Service, list[Rows]]:
    """The head's rows for the sequences of a request."""
    service = service_of(request)
    check_model(service.name, body.model)
    if not service.batcher.backend.pooling:
        raise invalid(
            f"{service.name!r} has no head whose rows could be given; ask /v1/score, which answers for every PRM"
        )
    _check_count(service, "input", body.input)
    activation = body.use_activation is not False
    async with within(body.timeout or service.settings.timeout):
        results = await service.batcher.rows(body.input, activation=activation, last=last)
    rows: list[Rows] = []
    for index, result in enumerate(results):
        if isinstance(result, InputError):
            raise refused_input(type(result)(result.message, field=f"input.{index}"))
        rows.append(result)
    return service, rows


def _listed(kind: str, service: Service, data: list[dict[str, Any]], rows: Sequence[Rows]) -> Response:
    tokens = sum(one.tokens for one in rows)
    return JSONResponse(
        {
            "id": f"{kind}-{next(_numbers)}",
            "object": "list",
            "created": int(time.time()),
            "model": service.name,
            "data": data,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
        }
    )


# The server itself.


@router.get("/v1/models", tags=["server"], summary="The models", **described(ModelsResponse))
async def models(request: Request) -> Response:
    """What is served, in OpenAI's shape; `stepmark` says what a client must know of a PRM."""
    data = []
    for entry in service_of(request).models:
        facts = {} if entry.stepmark is None else {"stepmark": entry.stepmark.model_dump(mode="json")}
        data.append(entry.model_dump(mode="json", exclude_none=True, exclude={"stepmark"}) | facts)
    return JSONResponse({"object": "list", "data": data})


@router.get("/health", tags=["server"], summary="Ready", **described(None))
async def health(request: Request) -> Response:
    """Whether requests are accepted: 503 while the server shuts down. Needs no key."""
    if service_of(request).draining:
        raise Refused("unavailable", "the server is shutting down", retry_after=2.0)
    return JSONResponse({"status": "ok"})


@router.get("/metrics", tags=["server"], summary="Metrics", response_class=Response, **described(None))
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus's text format."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get("/", include_in_schema=False)
async def index() -> Response:
    """The documentation."""
    return RedirectResponse("/docs")


# From requests to solutions, and from scores to results.


def solution_of(
    problem: str, item: SolutionToScore | SolutionFields, how: str | None, marker: str | None
) -> Read:
    """What `stepmark grade` would read of a row with these fields."""
    row: dict[str, Any] = {"problem": problem}
    row |= {"steps": item.steps} if item.steps is not None else {"solution": item.solution}
    if item.id is not None:
        row["id"] = item.id
    try:
        solution = read_solution(row, where=item.id or "", how=how or "auto", marker=marker).solution
        if item.observations is None:
            return solution
        if item.steps is None or len(item.observations) != len(item.steps):
            raise InputError("expected one observation a step, beside `steps`", field="observations")
        pairs = zip(solution.steps, item.observations, strict=True)
        return replace(solution, steps=tuple(replace(step, observation=back) for step, back in pairs))
    except InputError as error:
        return error


def verdicts(
    asked: Sequence[Read], scores: Iterable[StepScores | Refusal], prm: PRM, grade: Grade, *, at: str | None
) -> list[dict[str, Any]]:
    """The results of a request, in its order, as `stepmark grade` makes its rows.

    Args:
        asked: its solutions.
        scores: of those that are solutions, in order.
        prm: whose scores they are.
        grade: how step scores become verdicts.
        at: the field that holds the solutions; None for a single one.

    Raises:
        BackendError: the PRM gave a wrong number of scores, or one out of range.
    """
    rest = iter(scores)
    results: list[dict[str, Any]] = []
    for index, item in enumerate(asked):
        name = {"id": item.id} if isinstance(item, Solution) and item.id is not None else {}
        try:
            if isinstance(item, InputError):
                raise item
            given = next(rest)
            if isinstance(given, Refusal):
                raise given.error
            verdict = graded(item, given, prm, grade)
            row = to_row(verdict, {})
            if item.split is None:  # steps that were sent are not sent back
                del row["steps"]
        except InputError as error:
            name = {"id": error.where} if error.where else name
            place = None if at is None else f"{at}.{index}"
            results.append({"index": index, **name, "error": refused_input(error, at=place).error})
            continue
        fields = {key: row[key] for key in (*_ALWAYS, *_MAYBE) if key in _ALWAYS or row.get(key) is not None}
        results.append({"index": index, **name, **fields, **_tokens(verdict.step_scores)})
    return results


def _tokens(scores: StepScores) -> dict[str, Any]:
    """What the PRM read, as far as it counts."""
    if scores.problem_tokens is None or scores.solution_tokens is None:
        return {"tokens": None}
    each = {} if scores.step_tokens is None else {"step_tokens": list(scores.step_tokens)}
    problem = {"problem_tokens": scores.problem_tokens}
    return {"tokens": scores.problem_tokens + scores.solution_tokens, **problem, **each}


def best_first(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As `PRM.rank` sorts, equal ones by index; then those with an error."""

    def key(result: Mapping[str, Any]) -> tuple[Any, ...]:
        if "error" in result:
            return True, (), result["index"]
        return False, rank_key(result["score"], refuted=bool(result.get("findings"))), result["index"]

    return sorted(results, key=key)


async def _scored(
    request: Request,
    body: ScoreSolutionsRequest | RankRequest,
    asked: Sequence[Any],
    at: str | None,
    read: Callable[[Any], Read],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields above the results, and the results."""
    service = service_of(request)
    grade = check_grade(service.prm, service.grade, body.aggregate, body.threshold, body.checks)
    if at is not None:
        _check_count(service, at, asked)
    _check_shape(asked, at)

    def split_all() -> list[Read]:
        return [read(item) for item in asked]

    loop = asyncio.get_running_loop()
    async with within(body.timeout or service.settings.timeout):
        texts = any(item.solution for item in asked)
        solutions = await loop.run_in_executor(service.threads, split_all) if texts else split_all()
        scores = await service.batcher.score([item for item in solutions if isinstance(item, Solution)])
        grade_all = partial(verdicts, solutions, scores, service.prm, grade, at=at)
        none = grade.checks == "none"
        results = grade_all() if none else await loop.run_in_executor(service.threads, grade_all)
    fine = [result for result in results if "error" not in result]
    tokens = [result["tokens"] for result in fine]
    names = next(
        (item.class_names for item in scores if isinstance(item, StepScores) and item.class_names), None
    )
    above = {
        "model": service.name,
        "score_kind": service.prm.score_kind,
        "aggregate": grade.aggregate,
        "threshold": grade.threshold,
        **({} if names is None else {"class_names": list(names)}),
        "usage": {
            "solutions": len(fine),
            "steps": sum(len(result["scores"]) for result in fine),
            "tokens": None if None in tokens else sum(tokens),
        },
    }
    return above, results


def _asked(body: ScoreSolutionsRequest) -> list[SolutionToScore]:
    """The solutions of a request, or the single one beside its settings."""
    own = {name: getattr(body, name) for name in ("problem", "steps", "solution", "split", "marker", "id")}
    if body.solutions is None:
        if body.problem is None:
            message = "expected solutions, or problem and steps (or solution), found neither"
            raise invalid(message, field="solutions")
        return [SolutionToScore.model_construct(**own)]
    for name, value in own.items():
        if value is not None:
            message = f"found solutions and {name}: expected {name} inside of the solutions"
            raise invalid(message, field=name)
    return body.solutions


def _check_split(how: str | None, marker: str | None, at: str | None) -> None:
    """Refuse an unknown way to split, or a marker that it cannot use."""
    place = "" if at is None else f"{at}."
    if how == "agent":
        message = "a text has no turns to split by 'agent'; send its steps"
        raise invalid(message, field=f"{place}split")
    try:
        split("-", how or "auto", marker=marker)
    except InputError:  # a marker of one dash leaves nothing of this text; another text may have more
        return
    except UsageError as error:
        field = "split" if isinstance(error, UnknownNameError) or marker is None else "marker"
        raise invalid(str(error), field=place + field) from None


def _check_count(service: Service, field: str, given: Sequence[object]) -> None:
    """Refuse a list that is longer than one request may have."""
    most = service.settings.max_solutions
    if len(given) > most:
        message = f"expected at most {most} {field}, found {len(given)}; send fewer at once (`max_solutions`)"
        raise Refused("too_long", message, field=field)


def _check_shape(asked: Sequence[SolutionToScore | SolutionFields], at: str | None) -> None:
    """Either steps or a text of each."""
    for index, item in enumerate(asked):
        place = "" if at is None else f"{at}.{index}."
        if (item.steps is None) == (item.solution is None):
            what_came = "neither" if item.steps is None else "both"
            raise invalid(f"expected steps or solution, found {what_came}", field=f"{place}steps")
