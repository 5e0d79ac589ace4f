"""What a search gives, as rows of files."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from stepmark.search.searching import Cost, Found


def cost_row(cost: Cost) -> dict[str, Any]:
    """A `Cost` as one JSON object: what was counted, and what follows from it."""
    follows = {name: getattr(cost, name) for name in ("tokens", "cached", "prm_cached", "flops")}
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
