"""Records as a 🤗 `datasets.Dataset` with columns of fixed types, and back; nothing is lost.

`datasets` is needed to make a data set, not to read rows. Data sets of others are read by `load_problems`, `grade`, `read_labelled` and
all else that takes a source of rows.

Every column of `COLUMNS` is always there, null where there is nothing. `layout` is what stands around each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from itertools import chain
from typing import Any, TypeVar

from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.metrics.aggregate import check_score
from stepmark.records import (
    GradedSolution,
    LabelledSolution,
    Problem,
    Solution,
    Step,
    StepScores,
    read_record,
    to_data,
)
from stepmark.show.text import amount
from stepmark.store import json_type

AnyRecord = Problem | Solution | LabelledSolution | GradedSolution
Kind = type[AnyRecord]
R = TypeVar("R", Problem, Solution, LabelledSolution, GradedSolution)
Shape = str | list["Shape"] | dict[str, "Shape"]
"""A column's type: "string", "float64", "int64"; a list of one for a list; a dict for a structure."""


def _typed(**names: str) -> dict[str, Shape]:
    return {name: kind for kind, listed in names.items() for name in listed.split()}


_LAYOUT = _typed(string="lead tail observation speaker", int64="start")
_SOLUTION: dict[str, Shape] = {
    **_typed(string="problem"),
    "steps": ["string"],
    **_typed(string="id problem_id answer source problem_source split"),
    "layout": [_LAYOUT],
}
_JUDGEMENT = _typed(string="kind judge", int64="rating successes trials", float64="share confidence")
_JUDGEMENT["note"] = "string"
COLUMNS: dict[Kind, dict[str, Shape]] = {
    Problem: _typed(string="problem id answer source"),
    Solution: _SOLUTION,
    LabelledSolution: {**_SOLUTION, "judgements": [[_JUDGEMENT]], "root": [_JUDGEMENT]},
    GradedSolution: {
        **_SOLUTION,
        "scores": ["float64"],
        **_typed(float64="score", string="aggregate", int64="first_error first_error_step"),
        **_typed(float64="threshold", string="prm score_kind"),
        "classes": [["float64"]],
        "class_names": ["string"],
        "critiques": [["string"]],
        **_typed(float64="outcome", string="outcome_model", int64="problem_tokens solution_tokens"),
        "findings": [{**_typed(int64="step"), **_typed(string="check written right", int64="start end")}],
    },
}
"""The columns of each kind of record, and their types."""

_STEP_SCORES = tuple(own.name for own in fields(StepScores) if own.name != "kind")
_OF_THE_WHOLE = tuple(
    own.name for own in fields(GradedSolution) if own.name not in ("solution", "step_scores")
)


def to_columns(record: AnyRecord) -> dict[str, Any]:
    """One record as a row with the columns of its kind; plain data."""
    if isinstance(record, Problem):
        return {"problem": record.text, "id": record.id, "answer": record.answer, "source": record.source}
    solution = record if isinstance(record, Solution) else record.solution
    plain = all(step == Step(text=step.text) for step in solution.steps)
    row: dict[str, Any] = {
        "problem": solution.problem.text,
        "steps": list(solution.texts),
        "id": solution.id,
        "problem_id": solution.problem.id,
        "answer": solution.problem.answer,
        "source": solution.source,
        "problem_source": solution.problem.source,
        "split": solution.split,
        "layout": None if plain else [_layout(step) for step in solution.steps],
    }
    if isinstance(record, LabelledSolution):
        row["judgements"] = [[asdict(item) for item in step] for step in record.judgements]
        row["root"] = [asdict(item) for item in record.root]
    elif isinstance(record, GradedSolution):
        values = {
            **to_data(record),
            **to_data(record.step_scores),
            "first_error_step": record.first_error_step,
        }
        values["score_kind"] = record.score_kind
        row |= {name: values[name] for name in COLUMNS[GradedSolution] if name not in row}
    return row


def _layout(step: Step) -> dict[str, Any]:
    return {name: value for name, value in asdict(step).items() if name != "text"}


def from_columns(row: Mapping[str, Any], kind: type[R]) -> R:
    """The record of a row; the inverse of `to_columns`. Columns that are null may be left out.

    Raises:
        InputError: a column that is missing or not known, a value of another type, a blank problem or step, no steps, not one list of
            judgements or one score a step.
    """
    if strange := [name for name in row if name not in COLUMNS[kind]]:
        raise InputError(
            f"{', '.join(map(repr, strange))}: no columns of a {kind.__name__}; expected {', '.join(COLUMNS[kind])}",
            field=strange[0],
        )
    given = {name: value for name, value in row.items() if value is not None}
    if kind is Problem:
        data: dict[str, Any] = {("text" if name == "problem" else name): given[name] for name in given}
    else:
        data = _solution(given)
    if kind is LabelledSolution:
        data = {"solution": data, **_some(given, ("judgements", "root"))}
    elif kind is GradedSolution:
        steps = {"kind": given.get("score_kind"), **_some(given, _STEP_SCORES)}
        data = {"solution": data, "step_scores": steps, "score": None, "first_error": None, "threshold": None}
        data |= _some(given, _OF_THE_WHOLE)
    record: R = read_record(kind, data)
    _check(record)
    return record


def _some(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def _solution(row: Mapping[str, Any]) -> dict[str, Any]:
    texts, layout = row.get("steps"), row.get("layout")
    if not isinstance(texts, list):
        raise InputError(f"expected a list of texts, found {json_type(texts)}", field="steps")
    if layout is not None and (not isinstance(layout, list) or len(layout) != len(texts)):
        raise InputError(f"expected null, or one entry a step ({len(texts)})", field="layout")
    problem = {"text": row.get("problem"), "id": row.get("problem_id"), "answer": row.get("answer")}
    return {
        "problem": {**problem, "source": row.get("problem_source")},
        "steps": [
            {"text": text, **around} for text, around in zip(texts, layout or [{}] * len(texts), strict=True)
        ],
        **_some(row, ("id", "split", "source")),
    }


def _check(record: AnyRecord) -> None:
    """What a record's types do not say."""
    if isinstance(record, Problem):
        if not record.text.strip():
            raise InputError("expected a text, found a blank one", field="problem")
        return
    solution = record if isinstance(record, Solution) else record.solution
    _check(solution.problem)
    if not solution.steps:
        raise InputError("expected at least one step, found none", field="steps")
    for at, step in enumerate(solution.steps):
        if not step.text.strip():
            raise InputError(f"step {at} (0-based) is blank", field="steps")
    count = len(solution.steps)
    if isinstance(record, LabelledSolution) and len(record.judgements) != count:
        raise InputError(
            f"expected a list of judgements a step ({count}), found {len(record.judgements)}",
            field="judgements",
        )
    if isinstance(record, GradedSolution):
        scores = record.scores
        if len(scores) != count:
            raise InputError(
                f"expected {amount(count, 'score')}, one a step, found {len(scores)}", field="scores"
            )
        for at, score in enumerate(scores):
            if score is not None:
                check_score(score, record.score_kind, step=at)


def to_dataset(records: Iterable[AnyRecord]) -> Any:
    """A `datasets.Dataset` of records, all of one kind, with the columns of this module.

    Args:
        records: at least one; read once. Their rows are held in memory: write parts of very many.

    Raises:
        InputError: no records, or records of several kinds; it says at which.
        MissingExtraError: `datasets` is not installed.
    """
    datasets = _datasets()
    each = iter(records)
    first = next(each, None)
    if first is None:
        raise InputError("expected at least one record: a data set of none would have no columns")
    kind = type(first)
    if kind not in COLUMNS:
        raise InputError(f"expected {_names()}, found {kind.__name__}", where="record 0")
    rows = []
    for number, record in enumerate(chain([first], each)):
        if type(record) is not kind:
            raise InputError(
                f"expected a {kind.__name__}, as record 0 is, found a {type(record).__name__}",
                where=f"record {number}",
            )
        rows.append(to_columns(record))
    features = datasets.Features({name: _feature(datasets, of) for name, of in COLUMNS[kind].items()})
    return datasets.Dataset.from_list(rows, features=features)


def from_dataset(dataset: Iterable[Mapping[str, Any]], kind: type[R]) -> Iterator[R]:
    """The records of a data set that `to_dataset` made, as a stream in their order.

    Args:
        dataset: a `datasets.Dataset`, an `IterableDataset`, or any rows with those columns.
        kind: `Problem`, `Solution`, `LabelledSolution` or `GradedSolution`.

    Raises:
        UsageError: another kind; raised at the call.
        InputError: with `row N` (from 0): a column is missing, not known, or of another type; a blank step; as many judgements or scores as
            steps are not there.
    """
    if kind not in COLUMNS:
        raise UsageError(f"expected {_names()}, found {kind!r}")
    return _records(dataset, kind)


def _records(dataset: Iterable[Mapping[str, Any]], kind: type[R]) -> Iterator[R]:
    for number, row in enumerate(dataset):
        try:
            yield from_columns(row, kind)
        except InputError as error:
            raise error.at(f"row {number}") from None


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            "data sets of the hub need `datasets`: pip install 'stepmark[hub]'"
        ) from error
    return datasets


def _names() -> str:
    return ", ".join(kind.__name__ for kind in COLUMNS)


def _feature(datasets: Any, of: Shape) -> Any:
    if isinstance(of, str):
        return datasets.Value(of)
    if isinstance(of, dict):
        return {name: _feature(datasets, item) for name, item in of.items()}
    return datasets.List(_feature(datasets, of[0]))
