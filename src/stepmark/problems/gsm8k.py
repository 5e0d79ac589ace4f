"""GSM8K: problems with worked solutions whose calculations are written out.

Source: Cobbe et al. 2021; a row has `question` and `answer`, whose lines hold `<<48/2=24>>` before each result
and which ends in `#### 24`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Problem, read_record
from stepmark.store import Columns, Row, Source, read_rows

_END = re.compile(r"\n?#### *(\S.*?)\s*\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Worked:
    """A problem and its worked solution, a line a step, the calculations still marked `<<…>>`."""

    problem: Problem
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    question: str
    answer: str


def read_gsm8k(source: Source, *, columns: Columns | None = None) -> Iterator[Worked]:
    """The worked problems of a GSM8K file.

    Raises:
        InputError: a row that is not of this form, with file, line and field.
    """
    for row in read_rows(source, columns=columns):
        yield worked_row(row)


def worked_row(row: Row) -> Worked:
    """The worked problem of one row of a GSM8K file.

    Raises:
        InputError: as `read_gsm8k`.
    """
    # Other columns ride along with GSM8K's rows as with any.
    known: dict[str, Any] = {name: row.data[name] for name in ("question", "answer") if name in row.data}
    found = read_record(_Row, known, where=row.where)
    if not found.question.strip():
        raise InputError("the question is empty", where=row.where, field="question")
    end = _END.search(found.answer)
    if end is None:
        raise InputError("the answer should end in '#### RESULT'", where=row.where, field="answer")
    lines = tuple(line.strip() for line in found.answer[: end.start()].split("\n") if line.strip())
    if not lines:
        raise InputError("the answer has no step before '####'", where=row.where, field="answer")
    return Worked(
        problem=Problem(text=found.question, answer=end.group(1), id=row.where, source="GSM8K"), lines=lines
    )
