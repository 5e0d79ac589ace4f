"""Records as a 🤗 `datasets.Dataset` with typed columns, and back; data sets of others as a stream of records.

Columns have fixed types and lose nothing: `from_dataset` gives equal records back. `datasets` is needed to make
a data set and to open one, and not to read rows.

Records as flat rows with columns of fixed types, and back. Pure: `integrations.hub_datasets` makes data sets of them.

The columns, all of them always there, null where there is nothing:

==================  =================================================================================================
record              columns
==================  =================================================================================================
`Problem`           `problem`, `id`, `answer`, `source`
`Solution`          `problem`, `steps` (texts), `id`, `problem_id`, `answer`, `source`, `problem_source`, `split`, `layout` (what
                    stands around each step: `lead`, `tail`, `observation`, `start`)
`LabelledSolution`  those, and `judgements` (a list a step: `kind`, `judge`, `rating`, `successes`, `trials`, `share`, `confidence`,
                    `note`), `root` (the same, of the problem alone)
`ScoredSolution`    those of a solution, and `scores`, `score`, `aggregate`, `first_error`, `first_error_step`, `threshold`, `prm`, `score_kind`, `classes`,
                    `class_names`, `critiques`, `outcome`, `outcome_model`, `problem_tokens`, `solution_tokens`, `findings`
==================  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from stepmark.errors import InputError, MissingExtraError, UsageError
from stepmark.metrics.aggregate import check_score
from stepmark.records import LabelledSolution, Problem, ScoredSolution, Solution, Step, read_record
from stepmark.solutions.interchange.formats import detect, items_of_rows
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading
from stepmark.solutions.segmentation import split as split_text
from stepmark.store import json_type, read_rows

Kind = type[Problem] | type[Solution] | type[LabelledSolution] | type[ScoredSolution]
R = TypeVar("R", Problem, Solution, LabelledSolution, ScoredSolution)
Shape = str | list["Shape"] | dict[str, "Shape"]
"""A column's type: "string", "float64", "int64"; a list of one for a list; a dict for a structure."""

_PROBLEM: dict[str, Shape] = {"problem": "string", "id": "string", "answer": "string", "source": "string"}
_LAYOUT: dict[str, Shape] = {
    "lead": "string",
    "tail": "string",
    "observation": "string",
    "start": "int64",
    "speaker": "string",
}
_SOLUTION: dict[str, Shape] = {
    "problem": "string",
    "steps": ["string"],
    "id": "string",
    "problem_id": "string",
    "answer": "string",
    "source": "string",
    "problem_source": "string",
    "split": "string",
    "layout": [_LAYOUT],
}
_JUDGEMENT: dict[str, Shape] = {
    "kind": "string",
    "judge": "string",
    "rating": "int64",
    "successes": "int64",
    "trials": "int64",
    "share": "float64",
    "confidence": "float64",
    "note": "string",
}
_FINDING: dict[str, Shape] = {
    "step": "int64",
    "check": "string",
    "written": "string",
    "right": "string",
    "start": "int64",
    "end": "int64",
}
_SCORED: dict[str, Shape] = {
    "scores": ["float64"],
    "score": "float64",
    "aggregate": "string",
    "first_error": "int64",
    "first_error_step": "int64",
    "threshold": "float64",
    "prm": "string",
    "score_kind": "string",
    "classes": [["float64"]],
    "class_names": ["string"],
    "critiques": [["string"]],
    "outcome": "float64",
    "outcome_model": "string",
    "problem_tokens": "int64",
    "solution_tokens": "int64",
    "findings": [_FINDING],
}
COLUMNS: dict[Kind, dict[str, Shape]] = {
    Problem: _PROBLEM,
    Solution: _SOLUTION,
    LabelledSolution: {**_SOLUTION, "judgements": [[_JUDGEMENT]], "root": [_JUDGEMENT]},
    ScoredSolution: {**_SOLUTION, **_SCORED},
}
"""The columns of each kind of record, and their types."""

_NEEDED: dict[Kind, tuple[str, ...]] = {
    Problem: ("problem",),
    Solution: ("problem", "steps"),
    LabelledSolution: ("problem", "steps", "judgements"),
    ScoredSolution: (
        "problem",
        "steps",
        "scores",
        "score",
        "aggregate",
        "first_error",
        "threshold",
        "prm",
        "score_kind",
    ),
}


def to_columns(record: Problem | Solution | LabelledSolution | ScoredSolution) -> dict[str, Any]:
    """One record as a row with the columns of its kind; plain data."""
    if isinstance(record, Problem):
        return {"problem": record.text, "id": record.id, "answer": record.answer, "source": record.source}
    if isinstance(record, Solution):
        return _solution_columns(record)
    if isinstance(record, LabelledSolution):
        return {
            **_solution_columns(record.solution),
            "judgements": [[asdict(one) for one in step] for step in record.judgements],
            "root": [asdict(one) for one in record.root],
        }
    steps = record.steps
    return {
        **_solution_columns(record.solution),
        "scores": list(steps.scores),
        "score": record.score,
        "aggregate": record.aggregate,
        "first_error": record.first_error,
        "first_error_step": record.first_error_step,
        "threshold": record.threshold,
        "prm": record.prm,
        "score_kind": steps.kind,
        "classes": None if steps.classes is None else [None if c is None else list(c) for c in steps.classes],
        "class_names": None if steps.class_names is None else list(steps.class_names),
        "critiques": None if steps.critiques is None else [list(written) for written in steps.critiques],
        "outcome": record.outcome,
        "outcome_model": record.outcome_model,
        "problem_tokens": steps.problem_tokens,
        "solution_tokens": steps.solution_tokens,
        "findings": None if record.findings is None else [asdict(one) for one in record.findings],
    }


def _solution_columns(solution: Solution) -> dict[str, Any]:
    plain = all(step == Step(text=step.text) for step in solution.steps)
    return {
        "problem": solution.problem.text,
        "steps": list(solution.texts),
        "id": solution.id,
        "problem_id": solution.problem.id,
        "answer": solution.problem.answer,
        "source": solution.source,
        "problem_source": solution.problem.source,
        "split": solution.split,
        "layout": None if plain else [{name: getattr(s, name) for name in _LAYOUT} for s in solution.steps],
    }


Others = Literal["refuse", "ignore"]
"""What becomes of columns that have no meaning."""


def named(row: Mapping[str, Any], kind: Kind, mapping: Mapping[str, str], others: Others) -> dict[str, Any]:
    """A foreign row under our names.

    Args:
        row: as it was read.
        kind: of the record that it shall be.
        mapping: our name to theirs, where they differ.
        others: see `Others`.

    Raises:
        InputError: a column that is missing, or has no meaning; the field is as the row calls it.
    """
    ours: dict[str, Any] = {}
    for name, theirs in mapping.items():
        if theirs not in row:
            raise InputError(f"no such column; found {', '.join(map(repr, row))}", field=theirs)
        ours[name] = row[theirs]
    taken = set(mapping.values())
    for name in known_columns(kind):
        if (
            name not in mapping
            and name not in taken
            and name in row
            and not (name == "solution" and "steps" in ours)
        ):
            ours[name] = row[name]
    used = {mapping.get(name, name) for name in ours}
    strange = [name for name in row if name not in used]
    if strange and others == "refuse":
        raise InputError(
            f"{', '.join(map(repr, strange))}: no columns of a {kind.__name__}. Say what they are with `columns`, or leave them with "
            'others="ignore"',
            field=strange[0],
        )
    for name in _NEEDED[kind]:
        if name not in ours and not (name == "steps" and "solution" in ours):
            raise InputError(
                f"a {kind.__name__} needs this column; found {', '.join(map(repr, row))}",
                field=mapping.get(name, name),
            )
    return ours


def known_columns(kind: Kind) -> tuple[str, ...]:
    """The columns that a row may have: those of `COLUMNS`, and for solutions "solution", a text that is cut into steps."""
    return (*COLUMNS[kind], *(() if kind is Problem else ("solution",)))


def from_columns(
    row: Mapping[str, Any], kind: type[R], *, split: str = "auto", marker: str | None = None
) -> R:
    """A row under our names as a record; the inverse of `to_columns`.

    Args:
        row: with the columns of the kind, as `named` gives it; those that are not needed may be left out.
        kind: of the record.
        split: how a "solution" is cut; see `stepmark.split`.
        marker: as there.

    Raises:
        InputError: a value of another type, a blank problem or step, no steps, not one list of judgements or one score a step.
    """
    if kind is Problem:
        data: dict[str, Any] = _problem(row, "id", "source")
    else:
        data = _solution(row, split, marker)
    if kind is LabelledSolution:
        data = {"solution": data, "judgements": row["judgements"], "root": row.get("root") or []}
    elif kind is ScoredSolution:
        steps = {"kind": row["score_kind"], **_given(row, _STEP_SCORES)}
        data = {"solution": data, "steps": steps, **_given(row, _WHOLE)}
    try:
        record = read_record(kind, data)
        _check(record)
        if isinstance(record, ScoredSolution) and row.get("first_error_step", record.first_error_step) != (
            record.first_error_step
        ):
            raise InputError(
                f"expected {record.first_error_step}, one more than first_error", field="first_error_step"
            )
    except InputError as error:
        raise InputError(error.message, field=_column(error.field, kind)) from None
    return record


_STEP_SCORES = ("scores", "classes", "class_names", "critiques", "problem_tokens", "solution_tokens")
_WHOLE = ("score", "aggregate", "first_error", "threshold", "prm", "outcome", "outcome_model", "findings")


def _given(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def _problem(row: Mapping[str, Any], id_: str, source: str) -> dict[str, Any]:
    return {
        "text": row["problem"],
        "id": _as_text(row.get(id_)),
        "answer": _as_text(row.get("answer")),
        "source": row.get(source),
    }


def _as_text(value: Any) -> Any:
    """Ids and answers are numbers in many data sets."""
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _solution(row: Mapping[str, Any], split: str, marker: str | None) -> dict[str, Any]:
    how = row.get("split")
    if "steps" in row:
        texts, layout = row["steps"], row.get("layout")
        if not isinstance(texts, list):
            raise InputError(f"expected a list of texts, found {json_type(texts)}", field="steps")
        if layout is not None and (not isinstance(layout, list) or len(layout) != len(texts)):
            raise InputError(f"expected null, or one entry a step ({len(texts)})", field="layout")
        steps = [
            {"text": text, **around} for text, around in zip(texts, layout or [{}] * len(texts), strict=True)
        ]
    else:
        text = row["solution"]
        if not isinstance(text, str):
            raise InputError(f"expected a text, found {json_type(text)}", field="solution")
        cut = split_text(text, split, marker=marker)
        steps, how = [asdict(step) for step in cut], cut.how
    return {
        "problem": _problem(row, "problem_id", "problem_source"),
        "steps": steps,
        "id": _as_text(row.get("id")),
        "split": how,
        "source": row.get("source"),
    }


def _check(record: Problem | Solution | LabelledSolution | ScoredSolution) -> None:
    """What a record's types do not say."""
    if isinstance(record, Problem):
        if not record.text.strip():
            raise InputError("expected a text, found a blank one", field="problem")
        return
    if isinstance(record, Solution):
        _check(record.problem)
        if not record.steps:
            raise InputError("expected at least one step, found none", field="steps")
        for at, step in enumerate(record.steps):
            if not step.text.strip():
                raise InputError(f"step {at} (0-based) is blank", field="steps")
        return
    _check(record.solution)
    count = len(record.solution.steps)
    if isinstance(record, LabelledSolution):
        if len(record.judgements) != count:
            raise InputError(
                f"expected a list of judgements a step ({count}), found {len(record.judgements)}",
                field="judgements",
            )
        return
    if len(record.steps.scores) != count:
        raise InputError(
            f"expected {count} scores, one a step, found {len(record.steps.scores)}", field="scores"
        )
    for at, score in enumerate(record.steps.scores):
        if score is not None:
            check_score(score, record.steps.kind, step=at)


def _column(path: str | None, kind: Kind) -> str | None:
    """The column behind a record's field: "solution.steps.1.text" is "steps.1"."""
    if path is None or path in COLUMNS[kind]:
        return path
    if kind in (LabelledSolution, ScoredSolution):
        if path == "steps.kind":
            return "score_kind"
        if path.startswith("steps."):
            return path.removeprefix("steps.")
        if not path.startswith("solution."):
            return path
        path = path.removeprefix("solution.")
    if path in ("text", "problem.text"):
        return "problem"
    if path.startswith("problem."):
        name = path.removeprefix("problem.")
        return name if name == "answer" else f"problem_{name}"
    head, _, rest = path.partition(".")
    at, _, part = rest.partition(".")
    if head == "steps" and part:
        return f"steps.{at}" if part == "text" else f"layout.{at}.{part}"
    return path


def to_dataset(records: Iterable[Problem | Solution | LabelledSolution | ScoredSolution]) -> Any:
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
    columns = {name: [row[name] for row in rows] for name in COLUMNS[kind]}
    features = datasets.Features({name: _feature(datasets, of) for name, of in COLUMNS[kind].items()})
    return datasets.Dataset.from_dict(columns, features=features)


def from_dataset(
    dataset: Iterable[Mapping[str, Any]],
    kind: type[R],
    *,
    columns: Mapping[str, str] | None = None,
    others: Others = "refuse",
    split: str = "auto",
    marker: str | None = None,
) -> Iterator[R]:
    """Records of a data set's rows, as a stream in their order.

    Args:
        dataset: a `datasets.Dataset`, an `IterableDataset`, or any rows.
        kind: `Problem`, `Solution`, `LabelledSolution` or `ScoredSolution`.
        columns: where another name stands for one of this module's: {"problem": "question"}. A solution that is one text, to be cut into
            steps here, is the column "solution": {"solution": "response"}.
        others: `refuse` columns that have no meaning here, for they may be misspelt; or `ignore` them.
        split: how a "solution" is cut; see `stepmark.split`.
        marker: as there.

    Raises:
        UsageError: `columns` names what this kind does not have; raised at the call.
        InputError: with `row N` (from 0) and the column: one is missing, not known, or of another type; a blank step; as many judgements
            or scores as steps are not there.
    """
    if kind not in COLUMNS:
        raise UsageError(f"expected {_names()}, found {kind!r}")
    mapping = dict(columns or {})
    for ours in mapping:
        if ours not in known_columns(kind):
            raise UsageError(
                f"columns: a {kind.__name__} has no {ours!r}; known: {', '.join(known_columns(kind))} (ours first: "
                '{"problem": "question"})'
            )
    return _records(dataset, kind, mapping, others, split, marker)


def read_dataset(
    dataset: Iterable[Mapping[str, Any]], *, format: str | None = None, name: str = "data set"
) -> Iterator[LabelledRow]:
    """Labelled solutions of a data set in one of the formats that `stepmark convert` reads: TRL, Math-Shepherd, PRM800K and more.

    Args:
        dataset: a `datasets.Dataset`, an `IterableDataset`, or any rows.
        format: its name; None tells it from the first row.
        name: of the data set, for errors and for `meta`; rows are counted from 1 there, as lines are.

    Raises:
        InputError: a row that is not of the format, a format that cannot be told, no rows.
        UnknownNameError: no such format.
    """
    rows = (replace(row, file=name, by_line=True) for row in read_rows(dataset))
    first = next(rows)
    for item in items_of_rows(chain([first], rows), format or detect(first), Reading(), Losses()):
        assert isinstance(item, LabelledRow)  # without keep_going an error is raised
        yield item


def open_dataset(source: str, *, part: str = "train", config: str | None = None) -> Any:
    """Open a data set to be read once, as a stream, without fetching or holding all of it.

    Args:
        source: a folder that `Dataset.save_to_disk` wrote, a file (.parquet, .json, .jsonl, .csv), a folder of such files, or a hub name
            OWNER/NAME.
        part: its split, such as "train" or "test". Of a single data set that was saved to disk there is only one, and this is not looked at.
        config: its configuration, where it has several.

    Returns:
        A `datasets.IterableDataset`, or a memory-mapped `datasets.Dataset`.

    Raises:
        InputError: nothing there, or it cannot be read as a data set.
        MissingExtraError: `datasets` is not installed.
    """
    datasets = _datasets()
    path = Path(source).expanduser()
    try:
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(path))
            return found[part] if isinstance(found, datasets.DatasetDict) else found
        if path.is_file():
            builder = _BUILDERS.get(path.suffix.lower())
            if builder is None:
                raise InputError(
                    f"expected a name that ends in {', '.join(_BUILDERS)}, found {path.suffix or 'none'!r}",
                    where=source,
                )
            return datasets.load_dataset(builder, data_files={part: str(path)}, split=part, streaming=True)
        if not path.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
            raise InputError(
                "expected a folder, a file, or a hub name OWNER/NAME; there is nothing of that name",
                where=source,
            )
        return datasets.load_dataset(
            str(path) if path.is_dir() else source, config, split=part, streaming=True
        )
    except InputError:
        raise
    except Exception as error:  # of every kind: the hub's, Arrow's, a split that is not there
        raise InputError(
            f"no data set could be opened ({type(error).__name__}: {error})", where=source
        ) from error


_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}


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
        return {name: _feature(datasets, one) for name, one in of.items()}
    return datasets.List(_feature(datasets, of[0]))


def _records(
    dataset: Iterable[Mapping[str, Any]],
    kind: type[R],
    mapping: Mapping[str, str],
    others: Others,
    split: str,
    marker: str | None,
) -> Iterator[R]:
    for number, row in enumerate(dataset):
        where = f"row {number}"
        try:
            ours = named(row, kind, mapping, others)
        except InputError as error:
            raise error.at(where) from None
        try:
            yield from_columns(ours, kind, split=split, marker=marker)
        except InputError as error:
            field = error.field
            if field is not None:  # as the data set calls it
                head, dot, rest = field.partition(".")
                field = f"{mapping.get(head, head)}{dot}{rest}"
            raise InputError(error.message, where=where, field=field) from None
