"""The page of a search: what it shows is what was searched, and nothing in it acts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from chromium import Browser
from html_tree import Element, Tree
from stepmark.report.search import CandidateView, SearchPage, SearchView, TraceNode, merged, search_html
from stepmark.report.tables import Table


def node(
    number: int, parent: int | None, score: float | None, state: str, round: int, **more: object
) -> TraceNode:
    more.setdefault("step", f"Step of node {number}.")
    return TraceNode(number=number, parent=parent, score=score, state=state, round=round, **more)  # type: ignore[arg-type]


WHY = "not among the 2 best of the round"
NODES = (
    node(10, None, 0.875, "kept", 1, aggregate=0.875, policy_tokens=5, prm_tokens=12, step="She has $36$ pens."),
    node(11, None, 0.25, "pruned", 1, aggregate=0.25, policy_tokens=7, prm_tokens=9, why=WHY),
    node(12, None, 0.5, "kept", 1, aggregate=0.5, policy_tokens=6, prm_tokens=8),
    node(20, 10, 0.75, "chosen", 2, aggregate=0.75, policy_tokens=4, prm_tokens=6, step="So 30 are left: 36 - 6."),
    node(21, 10, None, "pruned", 2, why="the PRM read no step"),
    node(22, 12, 0.625, "finished", 2, aggregate=0.5, policy_tokens=3, prm_tokens=2),
    node(23, 12, 0.125, "pruned", 2, aggregate=0.125, policy_tokens=2, prm_tokens=2, why=WHY),
)  # fmt: skip
COST = Table(title="Cost", columns=("", "Prompt", "Decoded"), rows=(("policy", "1,234", "27"), ("PRM", "0", "39")))  # fmt: skip
VIEW = SearchView(
    name="gsm8k-7",
    problem="She has $36$ pens and gives 6 away. How many are left?",
    nodes=NODES,
    kind="probability",
    aggregate="min",
    stopped="every beam is finished",
    chosen=20,
    candidates=(
        CandidateView(node=20, aggregate=0.75, answer="30", right=True),
        CandidateView(node=22, aggregate=0.5, answer=None, note="no answer in it"),
    ),
    method="beam",
    cost=COST,
    tokens=66,
)
OTHER = SearchView(
    name="gsm8k-8",
    problem="What is 2 + 3?",
    nodes=(node(0, None, 0.5, "kept", 0, visits=3, value=0.375),),
    kind="probability",
    aggregate="mean",
    stopped="the budget of 10 tokens is spent",
    method="mcts",
)
PAGE = SearchPage(title="Search", searches=(VIEW, OTHER), facts=("By prm-a.",))


def page_of(page: SearchPage) -> Element:
    return Tree("".join(search_html(page))).root


def data_of(page: Element, number: int = 1) -> dict[str, object]:
    block = page.one(f"#d{number}")
    assert block.attributes["type"] == "application/json"
    found: dict[str, object] = json.loads(block.text)
    return found


@pytest.fixture(scope="module")
def page() -> Element:
    return page_of(PAGE)


# The record


def test_an_infinite_aggregate_and_an_end_without_text_are_shown() -> None:
    end = node(30, 10, None, "finished", 2, step="", aggregate=float("-inf"), why="the budget was spent")
    view = replace(
        VIEW, kind="unbounded", nodes=(*NODES, end), candidates=(*VIEW.candidates, CandidateView(node=30, aggregate=float("-inf"), answer=None))
    )  # fmt: skip
    data = data_of(page_of(SearchPage(title="t", searches=(view,))))
    assert isinstance(data["nodes"], list)
    assert data["nodes"][-1] == {
        "id": 30, "text": "", "level": "l-", "state": "finished", "round": 2, "up": 0, "why": "the budget was spent",
        "sumSaid": "-inf", "sumLevel": "l0",
    }  # fmt: skip


# The page


def test_the_top_says_how_many_were_right(page: Element) -> None:
    assert page.one("h1").text == page.one("head").one("title").text == "Search"
    tiles = [(one.one("b").text, one.one("span").text) for one in page.find(".tile")]
    assert tiles == [("2", "problems"), ("1", "right"), ("0", "wrong"), ("1", "not known"), ("8", "nodes")]
    alone = page_of(replace(PAGE, searches=(VIEW,)))
    assert ("66", "tokens") in [(one.one("b").text, one.one("span").text) for one in alone.find(".tile")]
    assert not alone.find(".runs")


def test_each_tree_is_a_block_of_data_with_every_fact_of_its_nodes(page: Element) -> None:
    data = data_of(page)
    nodes = data["nodes"]
    assert isinstance(nodes, list)
    assert nodes[0] == {
        "id": 10, "text": "She has $36$ pens.", "html": 'She has <span class="tex">36</span> pens.', "level": "l18", "state": "kept",
        "round": 1, "score": 0.875, "said": "0.875", "at": 0.875, "sumSaid": "0.875", "sumLevel": "l18",
        "policy": 5, "prm": 12,
    }  # fmt: skip
    assert nodes[4] == {
        "id": 21, "text": "Step of node 21.", "level": "l-", "state": "pruned", "round": 2, "up": 0, "why": "the PRM read no step",
    }  # fmt: skip
    assert [one.get("up") for one in nodes] == [None, None, None, 0, 0, 2, 2]
    assert (data["chosen"], data["aggregate"]) == (3, "min")
    other = data_of(page, 2)
    assert other["nodes"] == [
        {"id": 0, "text": "Step of node 0.", "level": "l10", "state": "kept", "round": 0, "score": 0.5, "said": "0.500", "at": 0.5,
         "value": "0.375", "visits": 3}
    ]  # fmt: skip
    assert "chosen" not in other


def test_equal_siblings_are_one_node_that_says_how_many() -> None:
    """Three samples begin with the same step; two go on alike and end, one of them is chosen; the third was cut off."""
    nodes = (
        node(0, None, 0.9, "kept", 0, step="First 2 + 2 = 4."),
        node(1, 0, 0.8, "finished", 0, step="So 4.", policy_tokens=9),
        node(2, None, 0.9, "chosen", 0, step="First  2 + 2 = 4."),
        node(3, 2, 0.8, "chosen", 0, step="So 4.", policy_tokens=9),
        node(4, None, 0.9, "pruned", 0, step="First 2 + 2 = 4.", why="cut off"),
        node(5, 4, None, "pruned", 0, step="So", why="cut off"),
        node(6, None, 0.1, "pruned", 0, step="Nothing.", why="cut off"),
    )
    assert [[one.number for one in group] for group in merged(nodes)] == [[2, 0, 4], [3, 1], [5], [6]]
    data = data_of(
        page_of(SearchPage(title="t", searches=(replace(VIEW, nodes=nodes, chosen=3, candidates=()),)))
    )
    assert [(one.get("times"), one.get("up"), one["state"]) for one in data["nodes"]] == [
        (3, None, "chosen"),
        (2, 0, "chosen"),
        (None, 0, "pruned"),
        (None, None, "pruned"),
    ]
    assert (data["chosen"], data["nodes"][1]["policy"], data["nodes"][0]["ids"]) == (1, 18, [0, 4])


def test_siblings_that_begin_alike_show_where_they_differ() -> None:
    start = "Therefore the total number of eggs in the boxes is "
    nodes = tuple(
        node(at, None, 0.5, "kept", 0, step=f"{start}{end}") for at, end in enumerate(("36.", "40."))
    )
    data = data_of(
        page_of(SearchPage(title="t", searches=(replace(VIEW, nodes=nodes, chosen=None, candidates=()),)))
    )
    assert [one["from"] for one in data["nodes"]] == [len(start)] * 2


def test_a_refuted_step_is_red() -> None:
    nodes = (node(0, None, None, "pruned", 0, refuted=True, why="refuted"), node(1, None, None, "pruned", 0))
    data = data_of(
        page_of(SearchPage(title="t", searches=(replace(VIEW, nodes=nodes, chosen=None, candidates=()),)))
    )
    assert [one["level"] for one in data["nodes"]] == ["l0", "l-"]


def test_without_a_script_it_is_a_list_of_the_chosen_solution_and_the_candidates(page: Element) -> None:
    first, second = page.one("noscript").find("section")
    assert [one.attributes["id"] for one in (first, second)] == ["p1", "p2"]
    assert [one.one(".txt").text for one in first.find("li") if "step" in one.attributes.get("class", "")] == [
        "She has 36 pens.", "So 30 are left: 36 - 6.",
    ]  # fmt: skip
    assert [one.text for one in first.find(".val")] == ["0.875", "0.750"]
    assert "no answer in it" in first.text and not first.find("a")
    assert "Nothing was chosen." in second.text and "No solution was finished." in second.text


def asset(name: str) -> str:
    return (files("stepmark.report") / name).read_text(encoding="utf-8")


OURS = ["search.js"]


@pytest.mark.parametrize(
    ("view", "names"), [(VIEW, ["vendor/katex/katex.min.js", "page.js", *OURS]), (OTHER, OURS)]
)
def test_only_our_scripts_run(view: SearchView, names: list[str]) -> None:
    found = page_of(SearchPage(title="t", searches=(view,)))
    scripts = [one.text for one in found.find("script") if "type" not in one.attributes]
    assert scripts == [asset(name) for name in names]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    rules = dict(
        rule.strip().split(" ", 1) for rule in found.find("meta")[1].attributes["content"].split(";")
    )
    assert rules["script-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert rules["default-src"] == "'none'"


ATTACKS = (
    "</script><script>document.title='hacked'</script>",
    "<!--<script>",
    "</noscript></style><img src=x onerror=\"document.title='hacked'\">",
    "\"><svg onload=document.title='hacked'>",
    "' onmouseover=document.title='hacked' x='",
    "$\\href{javascript:document.title='hacked'}{x}$",
    "nul \0 and \x1b[31m and \u202e and \u2028 and \ud800 and &lt;b&gt;",
    '","html":"<img src=x onerror=alert(1)>',
)


def attacked(text: str) -> SearchView:
    return SearchView(
        name=text,
        problem=text,
        nodes=(
            node(0, None, 0.5, "chosen", 0, step=text),
            node(1, None, 0.5, "pruned", 0, step=text, why=text),
        ),
        kind="probability",
        aggregate=text,
        stopped=text,
        chosen=0,
        candidates=(CandidateView(node=0, aggregate=0.5, answer=text, note=text),),
        method=text,
        cost=Table(title=text, columns=(text, text), rows=((text, text),), note=text),
    )


TAGS = {
    "root", "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "aside",
    "div", "span", "h1", "h2", "p", "b", "i", "a", "ul", "ol", "li", "dl", "dt", "dd", "details", "summary",
    "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "label", "input", "button",
    "output", "noscript", "script", "svg", "path", "bdi",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_texts_are_inert_and_shown(attack: str) -> None:
    whole = page_of(
        SearchPage(
            title=attack,
            searches=(attacked(attack), attacked(attack)),
            facts=(attack,),
        )
    )
    data = data_of(whole)
    raw = whole.one("#d1").text
    assert not re.search("[<>&\u2028\u2029\u202e\0]", raw)
    assert isinstance(data["nodes"], list)
    marked = [str(one["html"]) for one in data["nodes"] if "html" in one]
    for part in (whole, *(Tree(html).root for html in (str(data["about"]), str(data["after"]), *marked))):
        assert {one.tag for one in part.all()} <= TAGS
        for one in part.all():
            for name, value in one.attributes.items():
                assert not name.startswith("on") and name not in ("src", "srcset", "action")
                assert name != "href" or re.fullmatch(r"#p\d+(n\d+)?", value)
                assert "hacked" not in value or name == "title"
    if "\0" not in attack:
        assert whole.one("h1").text == data["name"] == data["nodes"][0]["text"] == attack


def wide(levels: int = 60, width: int = 17, keep: int = 4) -> SearchView:
    """A beam search of 1,020 nodes: of `width` steps a round the first `keep` are kept."""
    nodes = []
    for level in range(levels):
        for at in range(width):
            number = level * width + at
            state = "pruned" if at >= keep else "kept" if level < levels - 1 else "finished"
            if at == 0 and level == levels - 1:
                state = "chosen"
            parent = None if level == 0 else (level - 1) * width + at % keep
            text = f"We add $x_{{{number}}}$ to $\\frac{{{level}}}{{2}}$ and go on with the sum that we had before."
            nodes.append(node(number, parent, 1 - at / width, state, level + 1, aggregate=0.5, step=text))
    last = (levels - 1) * width
    return replace(
        VIEW, name="wide", nodes=tuple(nodes), chosen=last, candidates=(CandidateView(node=last, aggregate=0.5, answer="1"),)
    )  # fmt: skip


def test_a_thousand_nodes_make_a_page_of_half_a_megabyte_beside_the_formulas_fonts() -> None:
    view = wide()
    assert len(view.nodes) == 1020
    data = page_of(SearchPage(title="t", searches=(view,))).one("#d1").text
    assert len(data) < 600_000


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("search")
    (folder / "page.html").write_text(
        "".join(search_html(replace(PAGE, searches=(VIEW, OTHER, wide())))), encoding="utf-8"
    )
    with Browser(folder / "page.html", folder / "profile") as page:
        yield page
        assert page.log == []


@pytest.fixture
def shown(browser: Browser) -> Browser:
    """The page at its first problem, as it opens."""
    browser.go("#p2")
    browser.go("#p1")
    return browser


STEPS = "[...document.querySelectorAll('#panel .step')].map((one) => [one.querySelector('.n').textContent, one.querySelector('.val').textContent])"
PICKED = "document.querySelector('.node.picked').getAttribute('aria-label')"
FOCUSED = "document.activeElement.getAttribute('aria-label')"
LABELS = "[...document.querySelectorAll('#tree > .node')].map((one) => one.getAttribute('aria-label').split(':')[0])"


def test_the_tree_opens_with_the_chosen_solution_and_says_what_each_node_is(shown: Browser) -> None:
    assert shown.js("[document.querySelector('#shown').hidden, document.querySelectorAll('noscript *').length]") == [False, 0]  # fmt: skip
    assert shown.js(LABELS) == [
        "Problem",
        "Step 1, score 0.875, kept, round 1",
        "Step 2, score 0.750, chosen, round 2",
        "Step 2, not scored, pruned, round 2",
        "Step 1, score 0.250, pruned, round 1",
        "Step 1, score 0.500, kept, round 1",
        "Step 2, score 0.625, finished, round 2",
        "Step 2, score 0.125, pruned, round 2",
    ]
    assert shown.js(STEPS) == [["1", "0.875"], ["2", "0.750"]]
    assert shown.js("[...document.querySelectorAll('#tree > *')].every((one) => one.role === 'treeitem' && one.ariaLevel)")  # fmt: skip
    assert shown.js("[...document.querySelectorAll('#tree > .main')].length") == 3
    # The score stands in the box as a number, not as a colour alone.
    assert shown.js("[...document.querySelectorAll('#tree > .node b')].map((one) => one.textContent)") == [
        "0.875", "0.750", "–", "0.250", "0.500", "0.625", "0.125",
    ]  # fmt: skip
    # Formulas are set in what is put in later, too: one in the problem, one in the first step.
    shown.until(
        "document.querySelectorAll('#about .katex').length === 1 && document.querySelectorAll('#panel .katex').length === 1"
    )
    told = shown.js("document.querySelector('#panel .told').textContent")
    assert "★ chosen" in told and "written tokens9" in told and "graded tokens18" in told


def test_keys_walk_the_tree_and_the_panel_follows(shown: Browser) -> None:
    shown.js("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    assert "Step 2, score 0.750" in shown.js(FOCUSED)
    shown.press("ArrowLeft")
    assert "Step 1, score 0.875" in shown.js(FOCUSED) and shown.js(STEPS) == [["1", "0.875"]]
    shown.press("ArrowDown")
    assert "score 0.250, pruned" in shown.js(FOCUSED)
    assert WHY in shown.js("document.querySelector('#panel .told .odd').textContent")
    shown.press("ArrowDown", "ArrowRight")  # from the other kept step to the best after it
    assert "score 0.625, finished" in shown.js(FOCUSED) and shown.js(STEPS) == [["1", "0.500"], ["2", "0.625"]]  # fmt: skip
    shown.press("ArrowUp")
    assert "not scored, pruned" in shown.js(FOCUSED) and shown.js(STEPS)[-1] == ["2", "not scored"]
    shown.press("End")
    assert "score 0.750, chosen" in shown.js(FOCUSED)
    shown.press("Home")
    assert shown.js(FOCUSED).startswith("Problem: She has") and shown.js(STEPS) == []
    shown.press("ArrowLeft", "ArrowUp")  # there is nothing
    assert shown.js(FOCUSED).startswith("Problem")
    assert shown.js("document.querySelectorAll('#tree [tabindex=\"0\"]').length") == 1
    assert shown.js("document.querySelectorAll('#tree [aria-selected=true]').length") == 1


def test_a_key_leads_past_the_list_of_problems(shown: Browser) -> None:
    before = shown.js("location.hash")
    shown.js("document.querySelector('.skip').focus()")
    shown.press("Enter")
    assert shown.js("document.activeElement.getAttribute('role')") == "treeitem"
    assert shown.js("location.hash") == before


def test_pruned_branches_are_hidden_and_shown(shown: Browser) -> None:
    shown.js("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    shown.press("ArrowDown")
    assert "not scored, pruned" in shown.js(PICKED)
    shown.js("document.querySelector('#pruned').click()")
    assert shown.js(LABELS) == [
        "Problem",
        "Step 1, score 0.875, kept, round 1",
        "Step 2, score 0.750, chosen, round 2",
        "Step 1, score 0.500, kept, round 1",
        "Step 2, score 0.625, finished, round 2",
    ]
    assert "score 0.875" in shown.js(PICKED)  # the step before the one that is gone
    shown.js("document.querySelector('#pruned').click()")
    assert len(shown.js(LABELS)) == 8


def test_a_text_is_searched_in_hidden_branches_too(shown: Browser) -> None:
    shown.js("document.querySelector('#pruned').click(); document.querySelector('#find').focus()")
    shown.type("NODE 2")
    hits = "[document.querySelector('#found').textContent, document.querySelectorAll('.node.hit').length, document.querySelectorAll('.node.aside').length]"
    assert shown.js(hits) == ["3 of 7 nodes", 1, 3]
    shown.press("Enter")  # the tree comes after the chosen step: node 21, which is hidden
    assert "not scored, pruned" in shown.js(PICKED)
    assert shown.js(hits) == ["3 of 7 nodes", 3, 4]
    shown.press("Enter", "Enter", "Enter")  # nodes 22 and 23, then the first again
    assert "not scored, pruned" in shown.js(PICKED)
    shown.js(
        "document.querySelector('#find').value = ''; document.querySelector('#find').dispatchEvent(new Event('input'))"
    )
    assert shown.js(hits) == ["", 0, 0]


def test_a_thousand_nodes_stand_apart_and_the_chosen_path_is_a_line(shown: Browser) -> None:
    shown.go("#p3")
    assert not shown.js("document.querySelector('#pruned').checked")  # from 300 nodes
    assert shown.js("document.querySelectorAll('.node').length") == 1 + 60 * 4  # the problem and the kept
    shown.js("document.querySelector('#pruned').click()")
    places = shown.js("[...document.querySelectorAll('.node')].map((one) => [parseFloat(one.style.left), parseFloat(one.style.top), one.classList.contains('main')])")  # fmt: skip
    assert len(places) == 1021
    columns: dict[float, list[float]] = {}
    for left, top, _ in places:
        columns.setdefault(left, []).append(top)
    assert len(columns) == 61
    for tops in columns.values():
        ordered = sorted(tops)
        assert all(after - before >= 41.9 for before, after in pairwise(ordered))
    assert len({round(top) for _, top, main in places if main}) == 1
    shown.press("End")
    assert len(shown.js(STEPS)) == 60
    shown.js("document.querySelector('#whole').click()")  # the whole tree is in the window
    inside = "(() => { const frame = view.getBoundingClientRect(); return [...document.querySelectorAll('.node')].every((one) => { const box = one.getBoundingClientRect(); return box.left >= frame.left - 1 && box.right <= frame.right + 1 }) })()"
    assert shown.js(inside)
    shown.js("document.querySelector('#whole').click()")


def test_hostile_texts_do_nothing_in_a_browser(tmp_path: Path) -> None:
    page = SearchPage(title="still here", searches=tuple(attacked(one) for one in ATTACKS))
    (tmp_path / "page.html").write_text("".join(search_html(page)), encoding="utf-8")
    with Browser(tmp_path / "page.html", tmp_path / "profile") as browser:
        for at in range(1, len(ATTACKS) + 1):
            browser.go(f"#p{at}")
            browser.js("document.querySelectorAll('.node').forEach((one) => one.click())")
            assert browser.js("document.querySelectorAll('.node').length") == 3
            assert browser.js("document.querySelectorAll('img, iframe, [onload], [onerror], [onmouseover], a[href^=javascript]').length") == 0  # fmt: skip
        assert browser.js("document.title") == "still here"
        assert browser.log == []


def test_with_scripts_forbidden_the_list_is_shown(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("".join(search_html(PAGE)), encoding="utf-8")
    with Browser(tmp_path / "page.html", tmp_path / "profile", scripts=False) as browser:
        shot = browser.call("DOMSnapshot.captureSnapshot", computedStyles=[])
        laid_out = {shot["strings"][at] for at in shot["documents"][0]["layout"]["text"] if at >= 0}
        assert {"So 30 are left: 36 - 6.", "no answer in it", "Stopped: every beam is finished"} <= laid_out
        assert "Pruned branches" not in laid_out
