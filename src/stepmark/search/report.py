"""Searches as what the page and the terminal show (`show.search`): from a `Found`, or from the rows that stand in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stepmark.problems.answers import Verifier
from stepmark.search.rows import found_row, trace_row
from stepmark.search.searching import Found
from stepmark.show.search import CandidateView, NodeView, SearchView
from stepmark.show.search_page import SearchPage, search_html
from stepmark.show.tables import Table
from stepmark.store import atomic_write

Judge = Callable[[str, str], bool | None]
"""Whether a solution's text is right by a reference answer; None where that is not known."""

_STOPPED = {
    "done": "the search came to its end",
    "budget": "the budget is spent",
    "dead end": "nothing was left to go on from",
}


def view_of(found: Found, *, threshold: float | None = None, judge: Judge | None = None) -> SearchView:
    """What a search is shown from.

    Args:
        found: the result of a search.
        threshold: where "log-ratio" and "unbounded" scores turn from bad to good, for the colours.
        judge: says which candidates are right, where the problem has a reference answer.
    """
    return row_view(found_row(found), trace_row(found), threshold=threshold, judge=judge)


def row_view(
    found: Mapping[str, Any],
    trace: Mapping[str, Any],
    *,
    threshold: float | None = None,
    judge: Judge | None = None,
) -> SearchView:
    """The same from the rows of one problem in the output and in the file of traces (`found_row`, `trace_row`)."""
    gold = found["problem"].get("answer")

    def right(text: str) -> bool | None:
        return None if judge is None or gold is None else judge(text, gold)

    candidates = [
        CandidateView(
            node=one["node"],
            aggregate=_number(one["aggregate"]),
            answer=one["answer"],
            right=right(one["text"]),
            votes=_number(one["votes"]),
            note="" if one["finished"] else "unfinished",
        )
        for one in found["candidates"]
    ]
    candidates.sort(key=lambda one: -(one.aggregate if one.aggregate is not None else float("-inf")))
    stopped = _STOPPED[found["stopped"]]
    return SearchView(
        name=found["id"] or "problem",
        problem=found["problem"]["text"],
        nodes=tuple(_node(node) for node in trace["nodes"]),
        kind=trace["kind"],
        aggregate=trace["aggregate"],
        stopped=f"{stopped}: {found['note']}" if found["note"] else stopped,
        chosen=trace["chosen"],
        candidates=tuple(candidates),
        threshold=threshold,
        method=found["method"],
        cost=_cost(found["cost"]),
        tokens=found["cost"]["tokens"],
    )


def _node(node: Mapping[str, Any]) -> NodeView:
    return NodeView(
        number=node["number"],
        parent=node["parent"],
        text=node["step"],
        score=node["score"],
        state=node["state"],
        round=node["round"],
        aggregate=_number(node["aggregate"]),
        why=node["why"],
        policy_tokens=node["policy_tokens"],
        prm_tokens=node["prm_tokens"],
        visits=node["visits"],
        value=_number(node["value"]),
    )


def _cost(cost: Mapping[str, Any]) -> Table:
    def words(name: str) -> str:
        value = cost.get(name)  # rows of older versions have fewer
        return "not told" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"

    rows = (
        ("policy: prompts, each request's once", words("prompt")),
        ("policy: of those cached", words("cached")),
        ("policy: of those new", words("new")),
        ("policy: written", words("decoded")),
        ("PRM: prefixes, each whole", words("prm_prompt")),
        ("PRM: of those cached", words("prm_cached")),
        ("PRM: of those read", words("prm")),
        ("operations of the policy", words("policy_flops")),
        ("operations of the PRM", words("prm_flops")),
        ("requests to the policy", words("writes")),
        ("texts", words("samples")),
        ("prefixes scored", words("scores")),
    )
    return Table(
        title="Cost", columns=("", "tokens"), rows=rows, note="Requests, texts and prefixes are counts."
    )


def _number(value: float | str | None) -> float | None:
    return float(value) if value is not None else None


def write_page(
    path: str | Path,
    rows: Iterable[Mapping[str, Any]],
    name: str,
    prm: str | None,
    threshold: float | None,
    verifier: Verifier,
) -> None:
    """Draw the trees of a run on one HTML page.

    Args:
        path: of the page.
        rows: `found` and `trace` of each problem, both None for one that was left out.
        name: what was searched.
        prm: whose scores they are; None where none was asked.
        threshold: the score under which a step is an error; None for no such point.
        verifier: says which solutions are right, of problems with a reference answer.
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
    facts = () if prm is None else (f"Scores by {prm}.",)
    page = SearchPage(
        title=f"{views[0].method if views else 'Search'}: {Path(name).name}", searches=views, facts=facts
    )
    with atomic_write(path) as handle:
        handle.writelines(search_html(page))
