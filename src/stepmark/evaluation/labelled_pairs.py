"""Reading labelled pairs of answers, the truth for `evaluation.verifier`. The formats stand there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepmark.errors import InputError, UsageError
from stepmark.store import Columns, Row, Source, json_type, read_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPair:
    """Two answers, and whether they are equal."""

    gold: str
    """The reference."""
    answer: str | None
    """A bare answer or a whole solution; None when the solution named none."""
    equal: bool
    """The truth."""
    id: str
    """Its name; FILE:LINE when the file gives none."""
    problem: str
    """What it belongs to: pairs of one problem are not independent. Its own id for labelled pairs."""
    where: str
    """FILE:LINE."""
    why: str | None = None
    """Why they are equal or not, where the file says so."""


def read_pairs(
    files: Sequence[Source], *, part: str = "answer", columns: Columns | None = None
) -> Iterator[LabelledPair]:
    """Read labelled pairs or candidates; the two may not be mixed within a row.

    Args:
        files: as `store.read_rows` takes them.
        part: for candidates, what is checked: "answer" (their `answer`, and `text` where a candidate has no such key) or
            "text" (always the text, so that finding the answer is checked too).
        columns: as `store.read_rows`.

    Raises:
        InputError: with `FILE:LINE` and the field: a missing or unknown key, a wrong type, an id twice.
        UsageError: another `part`.
    """
    if part not in {"answer", "text"}:
        raise UsageError(f"part: expected 'answer' or 'text', found {part!r}")
    seen: dict[str, str] = {}
    for file in files:
        for row in read_rows(file, columns=columns):
            for pair in _candidates(row, part) if "candidates" in row.data else _pair(row):
                if pair.id in seen:
                    raise InputError(
                        f"the id {pair.id!r} stands at {seen[pair.id]} too", where=row.where, field="id"
                    )
                seen[pair.id] = row.where
                yield pair


def _text(data: Mapping[str, Any], key: str, where: str, *, null: bool = False) -> str | None:
    value = data.get(key)
    if (value is None and null and key in data) or (isinstance(value, str) and (value.strip() or null)):
        return value
    found = json_type(value) if key in data else "no such key"
    blank = isinstance(value, str)
    raise InputError(
        f"expected a string{' or null' if null else ''}, found {'a blank one' if blank else found}",
        where=where,
        field=key,
    )


def _truth(data: Mapping[str, Any], key: str, where: str) -> bool:
    value = data.get(key)
    if not isinstance(value, bool):
        found = json_type(value) if key in data else "no such key"
        raise InputError(f"expected true or false, found {found}", where=where, field=key)
    return value


def _pair(row: Row) -> Iterator[LabelledPair]:
    if ("answer" in row.data) == ("text" in row.data):
        raise InputError(
            "expected either `answer` (bare) or `text` (a solution)", where=row.where, field="answer"
        )
    gold = _text(row.data, "gold", row.where)
    assert gold is not None
    id_ = _text(row.data, "id", row.where) if "id" in row.data else row.where
    assert id_ is not None
    yield LabelledPair(
        gold=gold,
        answer=_text(row.data, "answer" if "answer" in row.data else "text", row.where, null=True),
        equal=_truth(row.data, "equal", row.where),
        id=id_,
        problem=id_,
        where=row.where,
        why=_text(row.data, "why", row.where) if "why" in row.data else None,
    )


def _candidates(row: Row, part: str) -> Iterator[LabelledPair]:
    gold = row.data.get("gold")
    if isinstance(gold, bool) or not isinstance(gold, str | int | float) or not str(gold).strip():
        raise InputError(
            f"expected the reference answer, found {json_type(gold)}", where=row.where, field="gold"
        )
    id_ = _text(row.data, "id", row.where)
    listed = row.data["candidates"]
    if not isinstance(listed, list):
        raise InputError(f"expected a list, found {json_type(listed)}", where=row.where, field="candidates")
    for number, candidate in enumerate(listed):
        place = f"{row.where}, candidate {number} (0-based)"
        if not isinstance(candidate, dict):
            raise InputError(f"expected an object, found {json_type(candidate)}", where=place)
        if "correct" in candidate and candidate["correct"] is None:
            continue
        key = "answer" if part == "answer" and "answer" in candidate else "text"
        yield LabelledPair(
            gold=str(gold),
            answer=_text(candidate, key, place, null=True),
            equal=_truth(candidate, "correct", place),
            id=f"{id_}/{number}",
            problem=str(id_),
            where=row.where,
        )
