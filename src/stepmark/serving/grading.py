"""Between what is asked over the network and what the PRM reads: solutions in, verdicts out, as `stepmark grade` reads and writes them.

The same functions do it (`solutions.formats.read_solution`, `models.grading.graded`), so an answer differs from a graded file only where the PRM's
own arithmetic does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepmark.errors import InputError, SettingError, UnknownNameError, UsageError
from stepmark.models.grading import Grade, graded, to_row
from stepmark.models.prm import PRM
from stepmark.records import Refusal, Solution, StepScores
from stepmark.serving.refusals import Refused, input_error_data
from stepmark.serving.wire import CandidateFields, SolutionToScore
from stepmark.solutions.formats import read_solution
from stepmark.solutions.segmentation import split

_ALWAYS = ("scores", "score", "first_error", "first_error_step")
Asked = Solution | InputError
"""A solution of a request, or why it is none."""


def check_split(how: str | None, marker: str | None, *, at: str | None = None) -> None:
    """Refuse a way to cut that there is not, or a marker that it cannot use.

    Args:
        at: where the fields stand in the request: "solutions.3".

    Raises:
        Refused: 400, with the field.
    """
    place = "" if at is None else f"{at}."
    if how == "agent":
        raise Refused(
            "invalid_request", "a text has no turns to cut by 'agent'; send its steps", field=f"{place}split"
        )
    try:
        split("-", how or "auto", marker=marker)
    except InputError:  # a marker of one dash leaves nothing of this text; another text may have more
        return
    except UsageError as error:
        field = "split" if isinstance(error, UnknownNameError) or marker is None else "marker"
        raise Refused("invalid_request", str(error), field=place + field) from None


def solution_of(
    problem: str, one: SolutionToScore | CandidateFields, how: str | None, marker: str | None
) -> Asked:
    """What `stepmark grade` would read of a row with these fields."""
    row: dict[str, Any] = {"problem": problem}
    if one.steps is not None:
        row["steps"] = one.steps
    else:
        row["solution"] = one.solution
    if one.id is not None:
        row["id"] = one.id
    try:
        return read_solution(row, where=one.id or "", how=how or "auto", marker=marker).solution
    except InputError as error:
        return error


def verdicts(
    asked: Sequence[Asked],
    told: Sequence[StepScores | Refusal],
    prm: PRM,
    settings: Grade,
    *,
    at: str | None,
    start: int = 0,
) -> list[dict[str, Any]]:
    """The results of a request, in its order.

    Args:
        asked: its solutions.
        told: what the PRM said of those that are solutions, one each, in order.
        prm: that PRM.
        settings: how step scores become verdicts.
        at: the field that holds the solutions; None for a single one.
        start: the index of the first of them in the request.

    Raises:
        BackendError: the PRM gave a wrong number of scores, or one out of range.
    """
    answered = iter(told)
    results = []
    for index, one in enumerate(asked, start):
        place = None if at is None else f"{at}.{index}"
        name = {} if not isinstance(one, Solution) or one.id is None else {"id": one.id}
        try:
            if isinstance(one, InputError):
                raise one
            said = next(answered)
            if isinstance(said, Refusal):
                raise said.error
            found = graded(one, said, prm, settings)
            # A row with steps of its own is not given them back.
            row = to_row(found, {} if one.split is not None else {"steps": None})
        except InputError as error:
            if error.where:
                name = {"id": error.where}
            results.append({"index": index, **name, "error": input_error_data(error, at=place)})
            continue
        scores = found.steps
        tokens = None
        if scores.problem_tokens is not None and scores.solution_tokens is not None:
            tokens = scores.problem_tokens + scores.solution_tokens
        kept = {
            key: row[key]
            for key in (*_ALWAYS, "findings", "first_error_by", "steps", "classes", "critiques")
            if row.get(key) is not None or key in _ALWAYS
        }
        results.append({"index": index, **name, **kept, "tokens": tokens})
    return results


def head(
    name: str,
    prm: PRM,
    settings: Grade,
    told: Iterable[StepScores | Refusal],
    results: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What stands above the results of an answer."""
    fine = [result for result in results if "error" not in result]
    tokens = [result["tokens"] for result in fine]
    names = next((one.class_names for one in told if isinstance(one, StepScores) and one.class_names), None)
    return {
        "model": name,
        "score_kind": prm.score_kind,
        "aggregate": settings.aggregate,
        "threshold": settings.threshold,
        **({} if names is None else {"class_names": list(names)}),
        "usage": {
            "solutions": len(fine),
            "steps": sum(len(result["scores"]) for result in fine),
            "tokens": None if None in tokens else sum(tokens),
        },
    }


def best_first(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By score, the highest first, equal ones by index; then those without a score, then those with an error."""

    def key(result: Mapping[str, Any]) -> tuple[int, float, int]:
        if "error" in result:
            return 2, 0.0, result["index"]
        score = result["score"]
        return (1, 0.0, result["index"]) if score is None else (0, -score, result["index"])

    return sorted(results, key=key)


def check_grade(
    prm: PRM, default: Grade, aggregate: str | None, threshold: float | None, checks: str | None
) -> Grade:
    """A request's own settings over the server's.

    Raises:
        Refused: 400, with the field: no such aggregate, or one that means nothing for these scores; a threshold out of their range; no
            such check.
    """
    try:
        default = replace(default, checks=default.checks if checks is None else checks).of(prm)
    except SettingError as error:
        raise Refused("invalid_request", str(error), field="checks") from None
    try:
        how = Grade(
            aggregate=default.aggregate if aggregate is None else aggregate,
            threshold=default.threshold,
            checks=default.checks,
        ).of(prm)
    except UsageError as error:
        raise Refused("invalid_request", str(error), field="aggregate") from None
    if threshold is None:
        return how
    try:
        return replace(how, threshold=threshold).of(prm)
    except UsageError as error:
        raise Refused("invalid_request", str(error), field="threshold") from None


def too_many(field: str, found: int, most: int, what: str, flag: str) -> Refused:
    """A list that is longer than one request may have."""
    return Refused(
        "too_large",
        f"expected at most {most} {what}, found {found}; send fewer at once ({flag})",
        field=field,
    )
