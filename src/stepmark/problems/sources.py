"""Files of problems: a question, its reference answer, a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stepmark.errors import InputError
from stepmark.records import Problem, Refusal
from stepmark.store import Row, json_type, read_rows

_QUESTIONS = ("problem", "question")
_ANSWERS = ("answer", "gold", "target")
_IDS = ("id", "unique_id")
_GSM8K_END = re.compile(r"(?:\A|\n)#### *(\S.*?)\s*\Z")


def read_problems(path: str | Path, *, need_answer: bool = True) -> Iterator[Problem]:
    """Problems as a stream: rows with `problem` or `question`; `answer`, `gold` or `target`; `id` or `unique_id`.

    An answer that ends in "#### x", as GSM8K's worked ones do, is x. A row without an id is named FILE:LINE. Other keys
    are left alone: sets of problems carry many.

    Args:
        path: JSON lines, plain or packed.
        need_answer: refuse a row without a reference answer.

    Raises:
        InputError: with `FILE:LINE`: no question, a blank one, no reference answer, one that is neither text nor number.
    """
    for one in problems_or_errors(path, need_answer=need_answer):
        if isinstance(one, InputError):
            raise one
        yield one


def problems_or_errors(path: str | Path, *, need_answer: bool = True) -> Iterator[Problem | InputError]:
    """As `read_problems`, with the error of a row that is no problem in its place."""
    for row in read_rows(path, keep_going=True):
        try:
            yield row.error if isinstance(row, Refusal) else _problem(row, need_answer=need_answer)
        except InputError as error:
            yield error


def _problem(row: Row, *, need_answer: bool) -> Problem:
    question = next((key for key in _QUESTIONS if key in row.data), None)
    if question is None:
        raise InputError(
            f"expected a problem: one of the keys {', '.join(_QUESTIONS)}; found {', '.join(map(repr, row.data))}",
            where=row.where,
        )
    text = row.data[question]
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"expected a text, found {json_type(text) if not isinstance(text, str) else 'only white space'}",
            where=row.where,
            field=question,
        )
    name = next((row.data[key] for key in _IDS if isinstance(row.data.get(key), str | int)), row.where)
    key = next((key for key in _ANSWERS if row.data.get(key) is not None), None)
    if key is None:
        if need_answer:
            raise InputError(
                f"expected a reference answer under one of {', '.join(_ANSWERS)}",
                where=row.where,
                field="answer",
            )
        return Problem(text=text, id=str(name))
    answer = row.data[key]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise InputError(
            f"expected a text or a number, found {json_type(answer)}", where=row.where, field=key
        )
    written = f"{answer:g}" if isinstance(answer, float) and answer.is_integer() else str(answer)
    end = _GSM8K_END.search(written)
    return Problem(text=text, answer=end.group(1) if end else written, id=str(name))
