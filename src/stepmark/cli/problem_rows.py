"""Rows of problems for a search, which needs no reference answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepmark.errors import InputError
from stepmark.records import Problem, Refusal
from stepmark.store import Row, json_type, read_rows

_QUESTIONS = ("problem", "question")
_ANSWERS = ("answer", "gold", "target")
_IDS = ("id", "unique_id")
_GSM8K_END = re.compile(r"(?:\A|\n)#### *(\S.*?)\s*\Z")


def problems_of(file: str, *, keep_going: bool) -> Iterator[Problem | InputError]:
    """The problems of a file, read as `problems.sources.read_problems` reads them, but with or without a reference answer.

    Args:
        file: JSON lines.
        keep_going: give the error of a row that is no problem, instead of raising it.

    Raises:
        InputError: with `FILE:LINE`: a row that is no problem, unless `keep_going`.
    """
    for row in read_rows(file, keep_going=keep_going):
        try:
            if isinstance(row, Refusal):
                raise row.error
            yield _problem(row)
        except InputError as error:
            if not keep_going:
                raise
            yield error


def _problem(row: Row) -> Problem:
    question = next((key for key in _QUESTIONS if key in row.data), None)
    if question is None:
        raise InputError(
            f"expected a problem: one of the keys {', '.join(_QUESTIONS)}; found {', '.join(map(repr, row.data))}",
            where=row.where,
        )
    text = row.data[question]
    if not isinstance(text, str) or not text.strip():
        found = "only white space" if isinstance(text, str) else json_type(text)
        raise InputError(f"expected a text, found {found}", where=row.where, field=question)
    name = next((row.data[key] for key in _IDS if isinstance(row.data.get(key), str | int)), row.where)
    key = next((key for key in _ANSWERS if row.data.get(key) is not None), None)
    if key is None:
        return Problem(text=text, id=str(name))
    answer = row.data[key]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise InputError(
            f"expected a text or a number, found {json_type(answer)}", where=row.where, field=key
        )
    written = f"{answer:g}" if isinstance(answer, float) and answer.is_integer() else str(answer)
    end = _GSM8K_END.search(written)
    return Problem(text=text, answer=end.group(1) if end else written, id=str(name))
