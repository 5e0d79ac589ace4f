"""The page of a search: one HTML file in which the tree of each problem is drawn, walked and read, with no network.

It is built like the report page (`stepmark.show.page`): nothing is loaded, and the scripts in it are ours, each allowed
by its hash. Each problem's tree is a block of JSON, which nothing runs, and which is parsed when that problem is shown.
Texts in it are marked up here, by `stepmark.show.html`. Without a script the page is a list: of each problem the chosen
solution and the candidates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepmark.show import colour
from stepmark.show.card import level_class
from stepmark.show.frame import asset, foot, formula_scripts, head, settings_html
from stepmark.show.html import esc, text_html
from stepmark.show.search import CandidateView, NodeView, SearchView, rounds
from stepmark.show.tables import ABSENT, Table
from stepmark.show.text import number, one_line, spelled

_SCRIPTS = ("search_tree.js", "search_path.js", "search.js")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPage:
    """All that the page shows."""

    title: str
    searches: tuple[SearchView, ...]
    facts: tuple[str, ...] = ()
    """Sentences under the title: by what was searched, what is left out."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Name to value, shown on demand: what all searches have in common."""


def search_html(page: SearchPage) -> Iterator[str]:
    """The page in chunks; equal pages give equal files. One problem is in memory at a time."""
    texts = (text for view in page.searches for text in (view.problem, *(node.text for node in view.nodes)))
    # The first formula settles it, so this does not mark up everything twice.
    scripts = (*formula_scripts(map(text_html, texts)), *map(asset, _SCRIPTS)) if page.searches else ()
    yield head(page.title, style=asset("page.css") + asset("search.css"), scripts=scripts)
    yield _header(page)
    several = len(page.searches) > 1
    yield f'<main class="wrap work{" several" if several else ""}">\n'
    if several:
        yield _list(page.searches)
    if page.searches:
        yield _stage(page.searches)
        yield "<noscript>\n"
        for at, view in enumerate(page.searches, start=1):
            yield _plain(at, view)
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


def _header(page: SearchPage) -> str:
    facts = "".join(f"<p>{esc(fact)}</p>" for fact in page.facts)
    right = [view.choice.right for view in page.searches if view.choice is not None]
    tiles = [("problems", f"{len(page.searches):,}", "")]
    if any(one is not None for one in right):
        tiles += [("right", f"{right.count(True):,}", "good"), ("wrong", f"{right.count(False):,}", "bad")]
        if unknown := len(page.searches) - right.count(True) - right.count(False):
            tiles.append(("not known", f"{unknown:,}", ""))
    tiles.append(("nodes", f"{sum(len(view.nodes) for view in page.searches):,}", ""))
    tokens = [view.tokens for view in page.searches]
    if tokens and None not in tokens:
        tiles.append(("tokens", f"{sum(one for one in tokens if one is not None):,}", ""))
    figures = "".join(f'<div class="tile {sort}"><b>{value}</b><span>{name}</span></div>' for name, value, sort in tiles)  # fmt: skip
    return (
        f'<header class="wrap top"><div class="about"><h1>{esc(one_line(page.title))}</h1>{facts}'
        f'{settings_html(page.settings)}</div><div class="figures"><div class="tiles">{figures}</div></div></header>\n'
    )


def _list(views: tuple[SearchView, ...]) -> str:
    """Every problem with its outcome and its cost."""
    rows = []
    for at, view in enumerate(views, start=1):
        cost = " · ".join(
            [f"{len(view.nodes):,} nodes", *([f"{view.tokens:,} tokens"] if view.tokens is not None else [])]
        )
        method = f'<span class="note">{esc(one_line(view.method))}</span>' if view.method else ""
        rows.append(
            f'<li><a href="#p{at}"><span class="name">{esc(one_line(view.name))}</span>{method}{_outcome(view)}'
            f'<span class="note cost">{cost}</span></a></li>'
        )
    return f'<nav class="runs" aria-label="Problems"><h2>Problems</h2><ol>{"".join(rows)}</ol></nav>\n'


def _outcome(view: SearchView) -> str:
    choice = view.choice
    if choice is None:
        return '<span class="out odd">nothing was chosen</span>'
    sort, sign = {True: (" good", "✓ right: "), False: (" bad", "✗ wrong: "), None: ("", "")}[choice.right]
    answer = "no answer" if choice.answer is None else one_line(choice.answer)
    return f'<span class="out{sort}">{sign}{esc(answer)}</span>'


def _stage(views: tuple[SearchView, ...]) -> str:
    """Where a tree is drawn, empty; the script fills it."""
    swatches = "".join(f'<i class="l{at}"></i>' for at in range(colour.LEVELS + 1))
    low, high = "low", "high"
    if (kinds := {view.kind for view in views}) in ({"probability"}, {"margin"}):
        low, high = ("0" if kinds == {"probability"} else "−1"), "1"
    legend = (
        f'<div class="legend"><span>Step score</span><span>{low}</span><span class="scale">{swatches}</span><span>{high}</span>'
        '<span class="grey"><i class="l-"></i>not scored</span></div>'
        '<ul class="signs"><li><i class="sign kept"></i>kept</li><li><i class="sign pruned">✗</i>pruned</li>'
        '<li><i class="sign finished">■</i>finished</li><li><i class="sign chosen">★</i>chosen</li></ul>'
    )
    return (
        '<div class="shown" id="shown" hidden>\n<section id="about"></section>\n'
        '<div class="tools" role="group" aria-label="What the tree shows">'
        '<label class="find">Search <input type="search" id="find" autocomplete="off" spellcheck="false" placeholder="text of a step"></label>'
        '<span class="between">Scores <label><span class="unseen">at least</span><input type="number" id="least" step="any" placeholder="from"></label>'
        ' to <label><span class="unseen">at most</span><input type="number" id="most" step="any" placeholder="to"></label></span>'
        '<button type="button" id="next" disabled>Next</button><output id="found"></output>'
        '<span class="growth"><button type="button" id="play" aria-label="Show the tree growing">▶</button>'
        '<label>After round <input type="range" id="upto" min="0" step="1"></label><output id="grown" for="upto"></output></span>'
        '<label class="folding"><input type="checkbox" id="fold"> Fold pruned branches</label>'
        '<span class="zoom" role="group" aria-label="Size"><button type="button" id="smaller" aria-label="Smaller">−</button>'
        '<button type="button" id="whole">Fit</button><button type="button" id="larger" aria-label="Larger">+</button></span>'
        f'<button type="button" id="best">★ Chosen</button></div>\n<div class="key">{legend}</div>\n'
        '<div class="stage" id="stage"><div class="drawn" id="drawn"><div class="heads" aria-hidden="true"><div id="heads"></div></div><div class="view" id="view"><div id="sizer"><div class="ground" id="ground">'
        '<svg id="edges" aria-hidden="true"><path class="edge pruned"/><path class="edge kept"/><path class="edge chosen"/>'
        '<path class="edge picked"/></svg><div id="tree" role="tree" aria-label="Tree of steps" aria-describedby="keys"></div></div></div></div></div>\n'
        '<aside class="panel" id="panel" aria-label="The way to the step"></aside></div>\n'
        '<p class="note keys" id="keys">In the tree: → to the best next step, ← to the step before, ↑ ↓ within a column, '
        "Home to the problem, End to the chosen solution, Space folds or unfolds pruned branches. Drag to move, Ctrl and "
        'wheel for the size.</p>\n<section id="after"></section>\n</div>\n'
    )


def _data(at: int, view: SearchView) -> dict[str, Any]:
    """What the script draws a problem from: absent keys are absent facts."""
    places = {node.number: index for index, node in enumerate(view.nodes)}
    found: dict[str, Any] = {
        "name": one_line(view.name),
        "about": _about(at, view),
        "after": _after(at, view, linked=True),
        "aggregate": one_line(view.aggregate),
        "nodes": [_node(node, places, view) for node in view.nodes],
        "rounds": {one.first: one.counts for one in rounds(view)},
    }
    if view.chosen is not None:
        found["chosen"] = places[view.chosen]
    return found


def _node(node: NodeView, places: Mapping[int, int], view: SearchView) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": node.number,
        "text": spelled(node.text).strip(),
        "level": level_class(view.place(node.score)),
        "state": node.state,
        "round": node.round,
    }
    marked = text_html(node.text)
    if marked != esc(node.text):
        found["html"] = marked
    if node.parent is not None:
        found["up"] = places[node.parent]
    if node.score is not None and (width := view.width(node.score)) is not None:
        found.update(score=node.score, said=number(node.score), at=round(width, 4))
    if node.aggregate is not None:
        found.update(sumSaid=number(node.aggregate), sumLevel=level_class(view.aggregate_place(node.aggregate)))  # fmt: skip
    if node.why:
        found["why"] = one_line(node.why)
    if node.value is not None:
        found["value"] = number(node.value)
    for name, count in (("policy", node.policy_tokens), ("prm", node.prm_tokens), ("visits", node.visits)):
        if count is not None:
            found[name] = count
    return found


def _about(at: int, view: SearchView) -> str:
    note = " · ".join(one_line(part) for part in (view.method, view.note) if part.strip())
    shown = f'<span class="note">{esc(note)}</span>' if note else ""
    return (
        f'<div class="ask"><h2>{esc(one_line(view.name)) or f"Problem {at}"}{shown}</h2>'
        f'<div class="txt" dir="auto">{text_html(view.problem)}</div></div>'
        f'<p class="came">{_outcome(view)}<span>Stopped: {esc(one_line(view.stopped))}</span></p>{settings_html(view.settings)}'
    )


def _after(at: int, view: SearchView, *, linked: bool) -> str:
    cost = "" if view.cost is None else _table(view.cost)
    return f'<div class="ends">{_candidates(at, view, linked=linked)}{cost}</div>'


def _candidates(at: int, view: SearchView, *, linked: bool) -> str:
    if not view.candidates:
        return '<figure class="ending"><figcaption>Candidates</figcaption><p>No solution was finished.</p></figure>'
    with_votes = any(one.votes is not None for one in view.candidates)
    columns = ["Answer", view.aggregate, *(["Votes"] if with_votes else []), "Steps", ""]
    heads = "".join(f'<th scope="col">{esc(one_line(name))}</th>' for name in columns)
    rows = "".join(_candidate(at, view, one, linked=linked, with_votes=with_votes) for one in view.candidates)
    return (
        f'<figure class="ending candidates"><figcaption>{len(view.candidates):,} candidates</figcaption><div class="scroll" tabindex="0">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _candidate(at: int, view: SearchView, one: CandidateView, *, linked: bool, with_votes: bool) -> str:
    answer = "no answer" if one.answer is None else esc(one_line(one.answer))
    if linked:
        answer = f'<a href="#p{at}n{one.node}">{answer}</a>'
    value = ABSENT if one.aggregate is None else f'<span class="tint {level_class(view.aggregate_place(one.aggregate))}" title="{one.aggregate!r}">{number(one.aggregate)}</span>'  # fmt: skip
    votes = "" if not with_votes else f"<td>{ABSENT if one.votes is None else f'{one.votes:.6g}'}</td>"
    words = [
        *(["★ chosen"] if one.node == view.chosen else []),
        *([] if one.right is None else ["✓ right" if one.right else "✗ wrong"]),
        *([esc(one_line(one.note))] if one.note.strip() else []),
    ]
    mark = ' class="winner"' if one.node == view.chosen else ""
    return f'<tr{mark}><th scope="row">{answer}</th><td>{value}</td>{votes}<td>{len(view.path(one.node))}</td><td class="left">{" · ".join(words)}</td></tr>'


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col" class="{side}">{esc(one_line(name))}</th>' for name, side in zip(table.columns, table.alignment, strict=True))  # fmt: skip
    rows = []
    for row in table.rows:
        first, *others = (esc(one_line(cell)) for cell in row)
        cells = "".join(f'<td class="{side}">{cell}</td>' for cell, side in zip(others, table.alignment[1:], strict=True))  # fmt: skip
        rows.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    title = f"<figcaption>{esc(one_line(table.title))}</figcaption>" if table.title.strip() else ""
    note = f'<p class="note">{esc(one_line(table.note))}</p>' if table.note.strip() else ""
    return (
        f'<figure class="ending">{title}<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}</figure>"
    )


def _plain(at: int, view: SearchView) -> str:
    """A problem without a script: the chosen solution and the candidates as a nested list."""
    if view.chosen is None:
        steps = "<p>Nothing was chosen.</p>"
    else:
        rows = "".join(
            f'<li class="step {level_class(view.place(node.score))}"><span class="n">{n}</span><div class="said">'
            f'<div class="txt" dir="auto">{text_html(node.text)}</div></div>'
            f'<span class="val">{"not scored" if node.score is None else number(node.score)}</span></li>'
            for n, node in enumerate(view.path(view.chosen), start=1)
        )
        steps = f"<ol>{rows}</ol>"
    return (
        f'<section class="plain" id="p{at}">{_about(at, view)}<ul><li><b>Chosen solution</b>{steps}</li>'
        f"<li><b>Candidates and cost</b>{_after(at, view, linked=False)}</li></ul></section>\n"
    )
