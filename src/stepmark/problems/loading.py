"""Rows of problems: a question, its reference answer, a name; and GSM8K's worked solutions.

GSM8K (Cobbe et al. 2021): a row has `question` and `answer`, whose lines hold `<<48/2=24>>` before each result and which ends in `#### 24`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stepmark.data.columns import (
    ALIASES,
    Columns,
    identifier,
    problem_column,
    reference_answer,
    riding,
)
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row, Source, read_rows
from stepmark.data.solutions import text_of
from stepmark.errors import InputError, UsageError
from stepmark.records import Problem, Refusal, record_row
from stepmark.settings import checked
from stepmark.store import Results, atomic_rows, check_outputs, evenly, is_stream
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemRow:
    """A problem, and what else its row says."""

    problem: Problem
    where: str
    """`Row.where`."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The row's `meta`, and the columns that mean nothing here."""


@checked
def load_problems(
    source: Source | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    limit: Annotated[int, Field(ge=1)] | None = None,
    columns: Mapping[str, str] | None = None,
) -> Results[Problem]:
    """Read problems of any known layout.

    Known are `problem`, `question` or `prompt`; `answer`, `gold` or `target`; GSM8K's worked answers, whose reference answer follows
    "####"; and ids. Other columns are kept under `meta`.

    Args:
        source: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list), several files, dicts, records, a data set or a data frame.
        out: write the problems to this file: {"problem", "answer", "id", "meta"} a line, gzipped if its name ends in .gz; "-" for standard
            output.
        limit: take only this many problems, evenly spaced over the data.
        columns: names of columns, where they differ: problem=task,answer=result.

    Returns:
        The problems, in the order of the rows.

    Raises:
        InputError: with the place: no question, a blank one, no reference answer, one that is neither text nor number.
        UsageError: an output that is an input or cannot be written.
    """
    files: list[Source] = [source]
    if isinstance(source, Sequence) and not isinstance(source, str):
        names = [name for name in source if isinstance(name, str | Path)]
        files = [*names] if len(names) == len(source) else files
    if not files:
        raise UsageError("expected a file of problems, or several")
    check_outputs({"out": out}, *files)
    rows = evenly([row for file in files for row in _read(file, columns)], limit)
    if out is not None:
        with atomic_rows(out) as write:
            for row in rows:
                write({**record_row(row.problem), **({"meta": dict(row.meta)} if row.meta else {})})
    written = Path(out) if out is not None and not is_stream(out) else None
    return Results(
        lambda: (row.problem for row in rows),
        len(rows),
        out=written,
        summary=amount(len(rows), "problem") + ("" if written is None else f" in {written}"),
    )


def read_problems(
    source: Source, *, columns: Columns | None = None, need_answer: bool = True
) -> Iterator[Problem]:
    """Problems as a stream: rows with `problem`, `answer` and `id`, or their common names (`data.columns`).

    An answer that ends in "#### x", as GSM8K's worked ones do, is x. A row without an id is named by its place.

    Raises:
        InputError: with the place: no question, a blank one, no reference answer (with `need_answer`), one that is neither text nor number.
    """
    return (row.problem for row in _read(source, columns, need_answer=need_answer))


def _read(source: Source, columns: Columns | None, *, need_answer: bool = True) -> Iterator[ProblemRow]:
    for row in problem_rows(source, columns=columns, need_answer=need_answer):
        if isinstance(row, InputError):
            raise row
        yield row


def problem_rows(
    source: Source, *, columns: Columns | None = None, need_answer: bool = True
) -> Iterator[ProblemRow | InputError]:
    """As `read_problems`, each problem with what else its row says, and the error of a row that is no problem in its place."""
    for row in read_rows(source, columns=columns, keep_going=True):
        try:
            yield row.error if isinstance(row, Refusal) else _problem(row, need_answer=need_answer)
        except InputError as error:
            yield row.about(error, "problem").at(row.where) if isinstance(row, Row) else error


def _problem(row: Row, *, need_answer: bool) -> ProblemRow:
    if isinstance(row.record, Problem):
        problem = row.record
        if need_answer and problem.answer is None:
            raise InputError("expected a reference answer", field="answer")
        return ProblemRow(problem=replace(problem, id=problem.id or row.where), where=row.where)
    data = row.data
    asked = problem_column(data)
    text = text_of(data, asked)
    answer, answered = reference_answer(data)
    if answer is None and need_answer:
        aliases = ("answer", *ALIASES["answer"])
        raise InputError(
            f"expected a reference answer under one of {', '.join(aliases)}; say which column it is with `columns` (answer=COLUMN)",
            field="answer",
        )
    name, named = identifier(data)
    source, meta = data.get("source"), data.get("meta")
    if not isinstance(meta, dict | None):
        raise InputError(f"expected an object, found {json_type(meta)}", field="meta")
    used = {column for column in (asked, answered, named, "meta") if column is not None}
    if isinstance(source, str):
        used.add("source")
    rest = riding(data, used)
    return ProblemRow(
        problem=Problem(
            text=text, answer=answer, id=name or row.where, source=source if isinstance(source, str) else None
        ),
        where=row.where,
        meta={**rest, **(meta or {})},
    )


_END = re.compile(r"\n?#### *(\S.*?)\s*\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worked:
    """A problem and its worked solution, a line a step, the calculations still marked `<<…>>`."""

    problem: Problem
    lines: tuple[str, ...]


def read_gsm8k(source: Source, *, columns: Columns | None = None) -> Iterator[Worked]:
    """The worked problems of a GSM8K file; `InputError` for a row that is not of this form."""
    for row in read_rows(source, columns=columns):
        yield worked_row(row)


def worked_row(row: Row) -> Worked:
    """The worked problem of one row of a GSM8K file."""
    question, answer = (text_of(row.data, key, row.where) for key in ("question", "answer"))
    end = _END.search(answer)
    if end is None:
        raise InputError("the answer should end in '#### RESULT'", where=row.where, field="answer")
    lines = tuple(line.strip() for line in answer[: end.start()].split("\n") if line.strip())
    if not lines:
        raise InputError("the answer has no step before '####'", where=row.where, field="answer")
    return Worked(
        problem=Problem(text=question, answer=end.group(1), id=row.where, source="GSM8K"), lines=lines
    )
