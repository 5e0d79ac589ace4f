"""`stepmark-labels`: one JSON line a labelled solution with all its judgements; it loses nothing.

==============  ================================================================================================
key             what
==============  ================================================================================================
`solution`      a `Solution` record: `problem` {`text`, `id`, `answer`, `source`}, `steps` [{`text`, `lead`, `tail`,
                `observation`, `start`}], `id`, `split`, `source`
`judgements`    one list a step, possibly empty, of `Judgement` records: `kind`, `judge`, `rating`, `successes`, `trials`,
                `share`, `confidence`, `note`
`root`          optional: `Judgement` records of the kind `value` of the problem alone, before any step
`outcome`       optional: whether the final answer is right: true, false or null
`repeated`      optional: the judgements of this many first steps stand in another row too (a branch's)
`meta`          optional: an object of the writer's own; `from` and `format` say where the row was first read. Other columns are read into it
==============  ================================================================================================

Fields that have their default are left out when written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepmark.errors import InputError
from stepmark.records import Judgement, LabelledSolution, compact, read_record
from stepmark.solutions.interchange.rows import (
    LabelledRow,
    Losses,
    Reading,
    Writing,
    need,
    other_columns,
    with_columns,
)
from stepmark.store import Row, json_type

NAME = "stepmark-labels"
KEYS = ("solution", "judgements")
_MAY = ("root", "outcome", "repeated", "meta")


def to_row(
    labelled: LabelledSolution,
    *,
    outcome: bool | None = None,
    repeated: int = 0,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A labelled solution as a row of this format, ready for `store.encode_row`."""
    row: dict[str, Any] = {
        "solution": compact(labelled.solution),
        "judgements": [[compact(judgement) for judgement in step] for step in labelled.judgements],
    }
    if labelled.root:
        row["root"] = [compact(judgement) for judgement in labelled.root]
    if outcome is not None:
        row["outcome"] = outcome
    if repeated:
        row["repeated"] = repeated
    if meta:
        row["meta"] = dict(meta)
    return row


def from_row(row: Row) -> LabelledRow:
    """A row of this format.

    Raises:
        InputError: with `FILE:LINE` and the field: an unknown or missing key, a wrong type, not one list of judgements a step,
            a blank problem or step, more successes than trials, a share or a confidence outside [0, 1].
    """
    need(row, KEYS, NAME)
    kept = {key: row.data[key] for key in (*KEYS, "root") if key in row.data}
    labelled = read_record(LabelledSolution, kept, where=row.where)
    _check(labelled, row.where)
    outcome, repeated, meta = (row.data.get(key) for key in _MAY[1:])
    if not isinstance(outcome, bool | None):
        raise InputError(
            f"expected true, false or null, found {json_type(outcome)}", where=row.where, field="outcome"
        )
    repeated = 0 if repeated is None else repeated
    steps = len(labelled.judgements)
    if isinstance(repeated, bool) or not isinstance(repeated, int) or not 0 <= repeated < steps:
        raise InputError(
            f"expected a number of steps from 0 to {steps - 1}, found {repeated!r}",
            where=row.where,
            field="repeated",
        )
    if not isinstance(meta, dict | None):
        raise InputError(f"expected an object, found {json_type(meta)}", where=row.where, field="meta")
    return LabelledRow(
        labelled=labelled,
        where=row.where,
        outcome=outcome,
        repeated=repeated,
        meta=with_columns(dict(meta or {}), other_columns(row, KEYS, _MAY)),
    )


def _check(labelled: LabelledSolution, where: str) -> None:
    steps = labelled.solution.steps
    if not labelled.solution.problem.text.strip():
        raise InputError("expected a text, found a blank one", where=where, field="solution.problem.text")
    if not steps:
        raise InputError("expected at least one step, found none", where=where, field="solution.steps")
    if len(labelled.judgements) != len(steps):
        raise InputError(
            f"expected one list of judgements a step ({len(steps)}), found {len(labelled.judgements)}",
            where=where,
            field="judgements",
        )
    for number, (step, judgements) in enumerate(zip(steps, labelled.judgements, strict=True)):
        if not step.text.strip():
            raise InputError(
                "expected a text, found a blank one", where=where, field=f"solution.steps.{number}.text"
            )
        for at, judgement in enumerate(judgements):
            _check_numbers(judgement, where, f"judgements.{number}.{at}")
    for at, judgement in enumerate(labelled.root):
        if judgement.kind != "value":
            raise InputError(
                f"expected a value, for there is no step to be right or wrong; found {judgement.kind!r}",
                where=where,
                field=f"root.{at}.kind",
            )
        _check_numbers(judgement, where, f"root.{at}")


def _check_numbers(judgement: Judgement, where: str, field: str) -> None:
    done, tried = judgement.successes, judgement.trials
    if (done is None) != (tried is None) or (
        done is not None and tried is not None and not 0 <= done <= tried
    ):
        raise InputError(
            f"expected 0 <= successes <= trials, or neither, found {done} of {tried}",
            where=where,
            field=field,
        )
    for name, value in (("share", judgement.share), ("confidence", judgement.confidence)):
        if value is not None and not 0 <= value <= 1:
            raise InputError(
                f"expected a number from 0 to 1, found {value!r}", where=where, field=f"{field}.{name}"
            )


def read(row: Row, _settings: Reading, _losses: Losses) -> Iterator[LabelledRow]:
    """See `from_row`."""
    yield from_row(row)


def write(row: LabelledRow, _settings: Writing, _losses: Losses) -> Iterator[dict[str, Any]]:
    """See `to_row`."""
    meta = {"from": row.origin, **row.meta}
    yield to_row(row.labelled, outcome=row.outcome, repeated=row.repeated, meta=meta)
