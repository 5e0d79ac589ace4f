"""Results of a search as rows of files, and as what the page and the terminal show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepmark.data.reading import read_rows
from stepmark.errors import InputError
from stepmark.records import read_record
from stepmark.report.search import CandidateView, SearchPage, SearchView, TraceNode, search_html
from stepmark.report.tables import Table
from stepmark.searches.base import SearchCost, SearchResult
from stepmark.store import atomic_write
from stepmark.verifiers.base import Verifier

_FOLLOWS = ("tokens", "cached", "prm_cached")
"""What is computed from the counts of a cost."""


def cost_row(cost: SearchCost) -> dict[str, Any]:
    """A `SearchCost` as one JSON object: what was counted, and what follows from it."""
    follows = {name: getattr(cost, name) for name in _FOLLOWS}
    return {**asdict(cost), **follows}


def found_row(result: SearchResult) -> dict[str, Any]:
    """A `SearchResult` as one JSON object, without its trace."""
    row = asdict(result)
    del row["trace"]
    row["problem"] = {key: value for key, value in row["problem"].items() if value is not None}
    row["cost"] = cost_row(result.cost)
    # JSON has no infinity, and a sum of logits may be one.
    for item in row["candidates"]:
        for key in ("aggregate", "votes"):
            item[key] = _number(item[key])
    return {
        "id": result.problem.id,
        **row,
        "solution": None if result.solution is None else result.solution.text,
        "answer": None if result.solution is None else result.solution.answer,
    }


def trace_row(result: SearchResult) -> dict[str, Any]:
    """The trace of a `SearchResult` as one JSON object, with what it takes to read it."""
    row = asdict(result.trace)
    for node in row["nodes"]:
        for key in ("aggregate", "value"):
            node[key] = _number(node[key])
    solution = result.solution
    return {
        "id": result.problem.id,
        "problem": result.problem.text,
        **row,
        "chosen": None if solution is None else solution.node,
        "stopped": result.stopped,
        "note": result.note,
        "cost": cost_row(result.cost),
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else "inf" if value > 0 else "-inf"


def read_found(path: str | Path) -> Iterator[SearchResult]:
    """What was found, from a file that `stepmark.search` wrote; the trees are in another file, so that `trace` has no nodes.

    Raises:
        InputError: a row that is none.
    """
    for row in read_rows(path):
        data = {key: value for key, value in row.data.items() if key not in ("id", "solution", "answer")}
        try:
            data["cost"] = {key: value for key, value in data["cost"].items() if key not in _FOLLOWS}
            data["candidates"] = [
                {**datum, "aggregate": _float(datum["aggregate"]), "votes": _float(datum["votes"])}
                for datum in data["candidates"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"expected a row of stepmark search: {error!r}", where=row.where) from None
        trace = {"method": data.get("method"), "aggregate": "", "kind": "unbounded"}
        yield read_record(SearchResult, {**data, "trace": trace}, where=row.where)


def _float(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, str) else value


Judge = Callable[[str, str], bool | None]
"""Whether a solution's text is right by a reference answer; None where that is not known."""

_STOPPED = {
    "done": "the search is complete",
    "budget": "the budget is spent",
    "dead end": "no step can be continued",
}


def row_view(
    result: Mapping[str, Any],
    trace: Mapping[str, Any],
    *,
    threshold: float | None = None,
    judge: Judge | None = None,
) -> SearchView:
    """What one problem is shown from: its rows in the output and in the file of traces (`found_row`, `trace_row`).

    `threshold` is where "log-ratio" and "unbounded" scores turn from bad to good, for the colours; `judge` says which candidates are right.
    """
    gold = result["problem"].get("answer")

    def right(text: str) -> bool | None:
        return None if judge is None or gold is None else judge(text, gold)

    candidates = [
        CandidateView(
            node=item["node"],
            aggregate=_float(item["aggregate"]),
            answer=item["answer"],
            right=right(item["text"]),
            votes=_float(item["votes"]),
            note="refuted by a check" if item.get("refuted") else "" if item["finished"] else "unfinished",
        )
        for item in result["candidates"]
    ]
    candidates.sort(
        key=lambda candidate: -(candidate.aggregate if candidate.aggregate is not None else float("-inf"))
    )
    stopped = _STOPPED[result["stopped"]]
    return SearchView(
        name=result["id"] or "problem",
        problem=result["problem"]["text"],
        nodes=tuple(_node(node) for node in trace["nodes"]),
        kind=trace["kind"],
        aggregate=trace["aggregate"],
        stopped=f"{stopped}: {result['note']}" if result["note"] else stopped,
        chosen=trace["chosen"],
        candidates=tuple(candidates),
        threshold=threshold,
        method=result["method"],
        cost=_cost(result["cost"]),
        tokens=result["cost"]["tokens"],
    )


def _node(node: Mapping[str, Any]) -> TraceNode:
    return TraceNode(**{**node, "aggregate": _float(node["aggregate"]), "value": _float(node["value"])})


def _cost(cost: Mapping[str, Any]) -> Table:
    def words(name: str) -> str:
        value = cost.get(name)  # rows of older versions have fewer
        return "not known" if value is None else f"{value:,}"

    rows = (
        ("policy: prompt tokens", words("prompt")),
        ("policy: prompt tokens, cached", words("cached")),
        ("policy: prompt tokens, computed", words("new")),
        ("policy: tokens written", words("decoded")),
        ("PRM: prefix tokens", words("prm_prompt")),
        ("PRM: prefix tokens, cached", words("prm_cached")),
        ("PRM: prefix tokens, computed", words("prm")),
        ("requests to the policy", words("writes")),
        ("texts written", words("samples")),
        ("prefixes scored", words("scores")),
    )
    return Table(title="Cost", columns=("", "amount"), rows=rows)


def write_page(
    path: str | Path,
    rows: Iterable[Mapping[str, Any]],
    name: str,
    prm: str | None,
    threshold: float | None,
    verifier: Verifier,
) -> None:
    """Draw the trees of a run on one HTML page.

    `rows` have `found` and `trace` of each problem, both None for one that was left out; `prm` is None where none was asked; `threshold` is the
    score under which a step is an error, None for no such point.
    """
    views = tuple(
        row_view(
            row["found"],
            row["trace"],
            threshold=threshold,
            judge=lambda text, gold: verifier.verify(text or None, gold).correct,
        )
        for row in rows
        if row["found"] is not None
    )
    facts = () if prm is None else (f"Each step is scored by the PRM {prm}.",)
    page = SearchPage(
        title=f"Search{f' by {views[0].method}' if views else ''}: {Path(name).name}",
        searches=views,
        facts=facts,
    )
    with atomic_write(path) as handle:
        handle.writelines(search_html(page))
