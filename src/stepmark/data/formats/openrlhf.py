"""OpenRLHF's rows: `input`, a question and steps that each end in a marker, and `value` (or `label`), a list with one label a marker.

A label is "+" or "-", 1 or 0, or a float, which is the share of rollouts that succeeded. The marker is Math-Shepherd's "ки", or the one that stands as often in
the text as there are labels. The question stands before "Step 1:", else it is the first line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepmark.data.formats import rows
from stepmark.data.formats.math_shepherd import MARKER
from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row
from stepmark.data.solutions import text_of
from stepmark.records import Judgement, Problem, Solution

ABOUT = "OpenRLHF: input with markers, and a list of labels"

_MARKERS = (MARKER, "<|reserved_special_token_0|>", "<extra_0>", "<PRM>", "\n\n\n\n\n")


def _column(data: Mapping[str, Any]) -> str | None:
    names = ("value", "values", "label", "labels")
    return next((name for name in names if isinstance(data.get(name), list)), None)


def sniff(data: Mapping[str, Any]) -> bool:
    """Whether a row has an input and a list of labels."""
    return isinstance(data.get("input"), str) and _column(data) is not None and "output" not in data


def read(row: Row, _settings: rows.ReaderSettings, _counts: rows.Counts) -> Iterator[rows.LabelledRow]:
    """One row."""
    text, column = text_of(row.data, "input", row.where), _column(row.data)
    if column is None:
        raise row.error("expected a list of labels under 'value', found none", "value")
    labels = row.data[column]
    marker = next((marker for marker in _MARKERS if text.count(marker) == len(labels)), None)
    if marker is None or not labels:
        raise row.error(
            f"expected one label a marker {MARKER!r} in the input ({text.count(MARKER)}), found {len(labels)}",
            column,
        )
    start = rows.FIRST_STEP.search(text)
    at = start.start() if start else len(text.split("\n", 1)[0])
    question, (*pieces, _rest) = text[:at].strip(), text[at:].split(marker)
    if not question or len(pieces) != len(labels):
        raise row.error('expected a question, "Step 1:" and the steps, each with its marker', "input")
    steps = rows.steps_of(row, pieces, "input", marker)
    solution = Solution(problem=Problem(text=question), steps=steps, id=row.place)
    judgements = [(_judgement(row, label, column),) for label in labels]
    meta = rows.origin(row, "openrlhf", rows.other_columns(row, ("input", column)))
    yield rows.labelled(row, solution, judgements, meta)


def _judgement(row: Row, label: object, column: str) -> Judgement:
    sign = label.strip() if isinstance(label, str) else label
    if sign in ("+", "-") or (isinstance(sign, int) and sign in (0, 1)):
        return Judgement(kind="value", judge="rollouts", rating=1 if sign in (1, "+") else -1)
    if isinstance(sign, float) and 0 <= sign <= 1:
        return Judgement(kind="value", judge="rollouts", share=float(sign))
    shown = repr(label) if isinstance(label, str | int | float) else json_type(label)
    raise row.error(f"expected '+', '-' or a number from 0 to 1, found {shown}", column)
