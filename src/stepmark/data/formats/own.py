"""`stepmark-labels`: one JSON line a labelled solution with all its judgements; it loses nothing (docs: convert).

`solution` is a `Solution` record and `judgements` a list of `Judgement` records for each step; `root`, `outcome`, `repeated` and `meta` are
optional. Other columns are read into `meta`. Fields that have their default are left out when written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.records import Judgement, LabelledSolution, compact, read_record

NAME = "stepmark-labels"
ABOUT = "every judgement of every step; loses nothing"

KEYS = ("solution", "judgements")
sniff = rows.has(*KEYS)
_MAY = ("root", "outcome", "repeated", "meta")


def to_row(
    labelled: LabelledSolution,
    *,
    outcome: bool | None = None,
    repeated: int = 0,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A labelled solution as a row of this format, ready for `store.encode_row`."""
    row = {
        "solution": compact(labelled.solution),
        "judgements": [[compact(judgement) for judgement in step] for step in labelled.judgements],
    }
    optional = {
        "root": [compact(judgement) for judgement in labelled.root] or None,
        "outcome": outcome,
        "repeated": repeated or None,
        "meta": dict(meta or {}) or None,
    }
    return row | {key: value for key, value in optional.items() if value is not None}


def from_row(row: Row) -> rows.LabelledRow:
    """A row of this format.

    Raises:
        InputError: with the place and the field: another shape, not one list of judgements a step, a blank text, a number out of its range.
    """
    rows.need(row, KEYS, "stepmark-labels")
    record = {key: row.data[key] for key in (*KEYS, "root") if key in row.data}
    labelled = read_record(LabelledSolution, record, where=row.where)
    _check(labelled, row)
    outcome, repeated, meta = (row.data.get(key) for key in _MAY[1:])
    if not isinstance(outcome, bool | None):
        raise row.error(f"expected true, false or null, found {json_type(outcome)}", "outcome")
    repeated = 0 if repeated is None else repeated
    steps = len(labelled.judgements)
    if isinstance(repeated, bool) or not isinstance(repeated, int) or not 0 <= repeated < steps:
        raise row.error(f"expected a number of steps from 0 to {steps - 1}, found {repeated!r}", "repeated")
    if not isinstance(meta, dict | None):
        raise row.error(f"expected an object, found {json_type(meta)}", "meta")
    return rows.LabelledRow(
        labelled=labelled,
        where=row.where,
        outcome=outcome,
        repeated=repeated,
        meta=rows.with_columns(dict(meta or {}), rows.other_columns(row, (*KEYS, *_MAY))),
    )


def _check(labelled: LabelledSolution, row: Row) -> None:
    steps, judgements = labelled.solution.steps, labelled.judgements
    if not steps:
        raise row.error("expected at least one step, found none", "solution.steps")
    if len(judgements) != len(steps):
        raise row.error(
            f"expected one list of judgements a step ({len(steps)}), found {len(judgements)}", "judgements"
        )
    texts = {"solution.problem.text": labelled.solution.problem.text}
    texts |= {f"solution.steps.{number}.text": step.text for number, step in enumerate(steps)}
    for field, text in texts.items():
        if not text.strip():
            raise row.error("expected a text, found a blank one", field)
    for field, listed in (
        *((f"judgements.{n}", step) for n, step in enumerate(judgements)),
        ("root", labelled.root),
    ):
        for at, judgement in enumerate(listed):
            _check_numbers(judgement, row, f"{field}.{at}")
            if field == "root" and judgement.kind != "value":
                raise row.error(
                    f"expected a value, for there is no step to be right or wrong; found {judgement.kind!r}",
                    f"root.{at}.kind",
                )


def _check_numbers(judgement: Judgement, row: Row, field: str) -> None:
    successes, trials = judgement.successes, judgement.trials
    if (successes is None) != (trials is None) or (
        successes is not None and trials is not None and not 0 <= successes <= trials
    ):
        raise row.error(
            f"expected 0 <= successes <= trials, or neither, found {successes} of {trials}", field
        )
    for name in ("share", "confidence"):
        value = getattr(judgement, name)
        if value is not None and not 0 <= value <= 1:
            raise row.error(f"expected a number from 0 to 1, found {value!r}", f"{field}.{name}")


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """See `from_row`."""
    yield from_row(row)


def write(row: rows.LabelledRow, _settings: rows.Writing) -> Iterator[dict[str, Any]]:
    """See `to_row`."""
    meta = {"from": row.origin, **row.meta}
    yield to_row(row.labelled, outcome=row.outcome, repeated=row.repeated, meta=meta)
