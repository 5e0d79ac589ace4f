"""What a search gives, as rows of files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepmark.errors import InputError
from stepmark.records import read_record
from stepmark.search.searching import Cost, Found
from stepmark.store import read_rows

_FOLLOWS = ("tokens", "cached", "prm_cached", "flops")
"""What is computed from the counts of a cost."""


def cost_row(cost: Cost) -> dict[str, Any]:
    """A `Cost` as one JSON object: what was counted, and what follows from it."""
    follows = {name: getattr(cost, name) for name in _FOLLOWS}
    return {**asdict(cost), **follows}


def found_row(found: Found) -> dict[str, Any]:
    """A `Found` as one JSON object, without its trace."""
    row = asdict(found)
    del row["trace"]
    row["problem"] = {key: value for key, value in row["problem"].items() if value is not None}
    row["cost"] = cost_row(found.cost)
    # JSON has no infinity, and a sum of logits may be one.
    for one in row["candidates"]:
        for key in ("aggregate", "votes"):
            one[key] = _number(one[key])
    return {
        "id": found.problem.id,
        **row,
        "solution": None if found.solution is None else found.solution.text,
        "answer": None if found.solution is None else found.solution.answer,
    }


def trace_row(found: Found) -> dict[str, Any]:
    """The trace of a `Found` as one JSON object, with what it takes to read it."""
    row = asdict(found.trace)
    for node in row["nodes"]:
        for key in ("aggregate", "value"):
            node[key] = _number(node[key])
    solution = found.solution
    return {
        "id": found.problem.id,
        "problem": found.problem.text,
        **row,
        "chosen": None if solution is None else solution.node,
        "stopped": found.stopped,
        "note": found.note,
        "cost": cost_row(found.cost),
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else "inf" if value > 0 else "-inf"


def read_found(path: str | Path) -> Iterator[Found]:
    """What was found, from a file that `stepmark.search` wrote; the trees are in another file, so that `trace` has no nodes.

    Raises:
        InputError: a row that is none.
    """
    for row in read_rows(path):
        data = {key: value for key, value in row.data.items() if key not in ("id", "solution", "answer")}
        try:
            data["cost"] = {key: value for key, value in data["cost"].items() if key not in _FOLLOWS}
            data["candidates"] = [
                {**one, "aggregate": _float(one["aggregate"]), "votes": _float(one["votes"])}
                for one in data["candidates"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"expected a row of stepmark search: {error!r}", where=row.where) from None
        trace = {"method": data.get("method"), "aggregate": "", "kind": "unbounded"}
        yield read_record(Found, {**data, "trace": trace}, where=row.where)


def _float(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, str) else value
