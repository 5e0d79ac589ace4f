"""The page of a search: one HTML file in which the tree of each problem is drawn, walked and read, with no network.

It is built like the report page (`stepmark.report.page`): nothing is loaded, and the script in it is ours, allowed by its hash. Each problem's tree is a block of JSON, which nothing runs, and which is parsed when that problem is shown.
Texts in it are marked up here, by `stepmark.report.html`. Without a script the page is a list: of each problem the chosen
solution and the candidates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Literal

from stepmark.report import colour
from stepmark.report.html import esc, template, text_html
from stepmark.report.page import asset, foot, formula_scripts, head
from stepmark.report.tables import Table
from stepmark.words import number, one_line, spelled

NodeState = Literal["kept", "pruned", "finished", "chosen"]
"""`kept`: the search went on from it, or could. `pruned`: given up; `TraceNode.why` says why. `finished`: a solution ends here.
`chosen`: a step of the chosen solution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceNode:
    """One step that a search wrote."""

    number: int
    """Its name in the trace: 0 or more, and no other node has it."""
    parent: int | None
    """The number of the step before it; None for a first step."""
    step: str
    """Its text; empty where the policy ended the solution without another step, or wrote nothing."""
    score: float | None
    """The PRM's; None where it was not scored."""
    aggregate: float | None = None
    """Of the scores from the first step to this one; None where one is missing."""
    state: NodeState
    why: str = ""
    """Why it was pruned; "" where it was not."""
    refuted: bool = False
    """An exact check proves that it is wrong."""
    round: int
    """In which round of the search it was written, from 0."""
    policy_tokens: int | None = None
    """Tokens decoded for it; None where they were not counted. Of a solution written in one go, all stand at its last step."""
    prm_tokens: int | None = None
    """Tokens that the PRM read for it and for no node before it (the problem's own at the first that was scored); None where they were
    not counted."""
    visits: int | None = None
    """How often a tree search went through it; None for searches that do not count."""
    value: float | None = None
    """A tree search's estimate at the end; None for searches without values, and where it was not visited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateView:
    """One solution that the search may choose."""

    node: int
    """The number of its last node."""
    aggregate: float | None
    """Of its step scores; None for none."""
    answer: str | None
    """Its final answer; None where none was found."""
    right: bool | None = None
    """Whether the answer is right; None where that is not known."""
    votes: float | None = None
    """The votes of its answer, weighted or not; None for a search without a vote."""
    note: str = ""
    """What else is to be said: "stopped by the budget"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchView:
    """One search on one problem. Scores out of the range of their kind are refused when they are drawn."""

    name: str
    """What the problem is called in a list: its id, its place in the file."""
    problem: str
    nodes: tuple[TraceNode, ...]
    """Parents before their children."""
    kind: str
    """The kind of the scores (`stepmark.report.colour.KINDS`)."""
    aggregate: str
    """The name of the aggregate: "min"."""
    stopped: str
    """Why the search ended: "every beam is finished", "the budget of 4,096 tokens is spent"."""
    chosen: int | None = None
    """The last node of the chosen candidate; None where nothing could be chosen."""
    candidates: tuple[CandidateView, ...] = ()
    """In the order in which they are to be shown, best first."""
    threshold: float | None = None
    """Where scores turn from bad to good, for the colours."""
    method: str = ""
    """The name of the search: "beam"; "" for nothing to say."""
    cost: Table | None = None
    """What was spent, on what."""
    tokens: int | None = None
    """All tokens that were computed, the policy's and the PRM's; None where they were not counted."""

    def path(self, number: int) -> tuple[TraceNode, ...]:
        """The nodes from a first step to this node."""
        by_number = {node.number: node for node in self.nodes}
        path: list[TraceNode] = []
        at: int | None = number
        while at is not None:
            path.append(by_number[at])
            at = by_number[at].parent
        return tuple(reversed(path))

    @property
    def choice(self) -> CandidateView | None:
        """The chosen candidate; None where nothing could be chosen."""
        return next((candidate for candidate in self.candidates if candidate.node == self.chosen), None)

    def place(self, score: float | None) -> float | None:
        """Where a score stands on the colour scale, from 0 (bad) to 1 (good); None for no score."""
        return colour.position(score, self.kind, self.threshold)

    def width(self, score: float | None) -> float | None:
        """How long the bar of a score is, from 0 to 1; None for no score."""
        return colour.extent(score, self.kind, self.threshold)

    def aggregate_place(self, value: float | None) -> float | None:
        """The same for an aggregate; None where it leaves the range of the scores, as a sum may."""
        return colour.aggregate_position(value, self.aggregate, self.kind, self.threshold)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPage:
    """All that the page shows."""

    title: str
    searches: tuple[SearchView, ...]
    facts: tuple[str, ...] = ()
    """Sentences under the title: by what was searched, what is left out."""


def search_html(page: SearchPage) -> Iterator[str]:
    """The page in chunks; equal pages give equal files. One problem is in memory at a time."""
    texts = (text for view in page.searches for text in (view.problem, *(node.step for node in view.nodes)))
    # The first formula settles it, so this does not mark up everything twice.
    scripts = (*formula_scripts(map(text_html, texts)), asset("search.js")) if page.searches else ()
    yield head(page.title, style=asset("page.css") + asset("search.css"), scripts=scripts)
    search = template("search")
    yield search.top(page, _tiles(page))
    several = len(page.searches) > 1
    yield f'<main class="wrap work{" several" if several else ""}">\n'
    if several:
        yield search.problem_list(page.searches)
    if page.searches:
        yield search.stage(sorted({view.kind for view in page.searches}))
        yield "<noscript>\n"
        for at, view in enumerate(page.searches, start=1):
            yield search.plain(at, view)
        yield "</noscript>\n"
    else:
        yield '<p class="nothing">There is no search on this page.</p>\n'
    yield "</main>\n"
    for at, view in enumerate(page.searches, start=1):
        yield f'<script type="application/json" id="d{at}">{_json(_data(at, view))}</script>\n'
    yield foot(scripts)


def _json(value: Mapping[str, Any]) -> str:
    """JSON that can stand in a `<script>`: no sign in it ends the element, opens a comment or ends a line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _data(at: int, view: SearchView) -> dict[str, Any]:
    """What the script draws a problem from: absent keys are absent facts."""
    search = template("search")
    groups = merged(view.nodes)
    places = {node.number: index for index, group in enumerate(groups) for node in group}
    starts = _starts(
        [(None if group[0].parent is None else places[group[0].parent], group[0].step) for group in groups]
    )
    result: dict[str, Any] = {
        "name": one_line(view.name),
        "about": search.about(at, view),
        "after": search.after(at, view, True),
        "aggregate": one_line(view.aggregate),
        "nodes": [
            _node(group, places, view) | ({"from": start} if start else {})
            for group, start in zip(groups, starts, strict=True)
        ],
    }
    if view.chosen is not None:
        result["chosen"] = places[view.chosen]
    return result


_STATES: tuple[NodeState, ...] = ("chosen", "finished", "kept", "pruned")
"""Which of several equal nodes stands for them: one in the first of these states."""


def merged(nodes: Sequence[TraceNode]) -> list[list[TraceNode]]:
    """Nodes that write the same after the same steps, together; the first of each group stands for it, and parents come first.

    The end of a solution is not together with the same step from which a search went on.
    """
    parents = {node.parent for node in nodes}
    order: dict[tuple[int, str, bool], list[TraceNode]] = {}
    places: dict[tuple[int, str, bool], int] = {}
    place: dict[int | None, int] = {None: -1}
    for node in nodes:
        ends = node.number not in parents and node.state in ("chosen", "finished")
        key = (place[node.parent], " ".join(node.step.split()), ends)
        place[node.number] = places.setdefault(key, len(places))
        order.setdefault(key, []).append(node)
    return [sorted(group, key=lambda node: _STATES.index(node.state)) for group in order.values()]


def _starts(steps: Sequence[tuple[int | None, str]]) -> list[int]:
    """For each (parent, text), where the text begins to differ from those of its siblings; 0 where that is near its beginning."""
    siblings: dict[int | None, list[str]] = {}
    for parent, text in steps:
        siblings.setdefault(parent, []).append(spelled(text).strip())
    # Of texts, character by character; there is no path here.
    common = {parent: commonprefix(texts) if len(texts) > 1 else "" for parent, texts in siblings.items()}  # noqa: RUF071
    starts = {parent: prefix.rfind(" ") + 1 for parent, prefix in common.items()}
    return [start if (start := starts[parent]) >= _ALIKE else 0 for parent, _ in steps]


_ALIKE = 24
"""Characters with which siblings begin alike, from which on only what differs is shown in the tree."""


def _node(group: Sequence[TraceNode], places: Mapping[int, int], view: SearchView) -> dict[str, Any]:
    node = group[0]
    result: dict[str, Any] = {
        "id": node.number,
        "text": spelled(node.step).strip(),
        # A proof is red, whatever a score would say.
        "level": colour.level_class(0.0 if node.refuted else view.place(node.score)),
        "state": node.state,
        "round": min(member.round for member in group),
    }
    if len(group) > 1:
        result.update(times=len(group), ids=[member.number for member in group[1:]])
    marked = text_html(node.step)
    if marked != esc(node.step):
        result["html"] = marked
    if node.parent is not None:
        result["up"] = places[node.parent]
    if node.score is not None and (width := view.width(node.score)) is not None:
        result.update(score=node.score, said=number(node.score), at=round(width, 4))
    if node.aggregate is not None:
        result.update(sumSaid=number(node.aggregate), sumLevel=colour.level_class(view.aggregate_place(node.aggregate)))  # fmt: skip
    if node.why:
        result["why"] = one_line(node.why)
    if node.value is not None:
        result["value"] = number(node.value)
    for name, key in (("policy", "policy_tokens"), ("prm", "prm_tokens"), ("visits", "visits")):
        counts = [getattr(member, key) for member in group]
        if None not in counts:
            result[name] = sum(counts)
    return result


def _tiles(page: SearchPage) -> list[tuple[str, str, str]]:
    right = [view.choice.right for view in page.searches if view.choice is not None]
    tiles = [("problems", f"{len(page.searches):,}", "")]
    if any(item is not None for item in right):
        tiles += [("right", f"{right.count(True):,}", "good"), ("wrong", f"{right.count(False):,}", "bad")]
        if unknown := len(page.searches) - right.count(True) - right.count(False):
            tiles.append(("not known", f"{unknown:,}", ""))
    tiles.append(("nodes", f"{sum(len(view.nodes) for view in page.searches):,}", ""))
    tokens = [view.tokens for view in page.searches]
    if tokens and None not in tokens:
        tiles.append(("tokens", f"{sum(token for token in tokens if token is not None):,}", ""))
    return tiles
