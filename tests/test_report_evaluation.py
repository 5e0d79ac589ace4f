"""The evaluation page: every number of the view is in it, nothing in it acts, and Chromium draws it."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from dataclasses import replace
from importlib.resources import files

import pytest

from html_tree import Element, Tree
from stepmark.errors import InputError
from stepmark.report.evaluation import Examples, Report, Section, Tile, evaluation_html
from stepmark.report.page import CardView, ProblemView, StepView
from stepmark.report.plots import Bars, Bin, Lines, Reliability, Series
from stepmark.report.tables import Table


def page_of(view: Report) -> Element:
    return Tree("".join(evaluation_html(view))).root


def card(*texts: str, scores: tuple[float | None, ...] = (0.875, 0.125), **more: object) -> CardView:
    return CardView(
        number=1,
        title="Solution 1",
        note="policy-a",
        kind="probability",
        threshold=0.5,
        score=0.125,
        aggregate="min",
        place=0.125,
        aggregates=(("min", 0.125), ("mean", 0.5)),
        first_error=1,
        steps=tuple(StepView(text=text, score=score) for text, score in zip(texts, scores, strict=True)),
        **more,  # type: ignore[arg-type]
    )


def problem(*cards: CardView, text: str = "What is 2 + 3?") -> ProblemView:
    return ProblemView(number=1, text=text, note="gsm8k-7", cards=cards)


TABLE = Table(
    title="First error by subset",
    columns=("Subset", "F1", "Solutions"),
    rows=(("GSM8K", "47.9 [43.9, 51.9]", "400"), ("MATH", "40.1 [36.5, 44.0]", "1000")),
    note="In percent, with 95 % intervals.",
)
LINES = Lines(
    title="F1 over the threshold",
    x_label="Threshold",
    y_label="F1 (%)",
    series=(Series(name="GSM8K", x=(0.25, 0.5), y=(31.5, 47.875)), Series(name="MATH", x=(0.25, 0.5), y=(None, 40.125))),
    note="One value is not known.",
)  # fmt: skip
RELIABILITY = Reliability(
    title="Reliability",
    bins=(
        Bin(low=0, high=1, count=4321, mean_score=0.6125, share_right=0.59375, share_low=0.5, share_high=0.7),
    ),
)
BARS = Bars(
    title="Drop", y_label="Change", labels=("reword",), series=(Series(name="", y=(-3.25,)),), zero_line=True
)
VIEW = Report(
    title="ProcessBench: prm-a",
    verdict="It finds two errors in five.",
    facts=("Graded by prm-a, 1,400 solutions.", "Intervals are over problems."),
    tiles=(
        Tile(label="F1", value="44.0", detail="[41.2, 46.9], threshold 0.5"),
        Tile(label="Not read", value="12", detail="of 24,311 steps", sort="odd"),
    ),
    sections=(
        Section(
            title="First error",
            text="How often it is found.\n\nBy subset.",
            items=(TABLE, LINES, TABLE),
        ),
        Section(title="Calibration", items=(RELIABILITY, BARS)),
        Section(
            title="Examples",
            items=(
                Examples(
                    title="Missed errors",
                    text="A person found them.",
                    problems=(problem(card("a", "b"), card("c", "d")),),
                ),
                Examples(title="False alarms", problems=(problem(card("e", "f")), problem(card("g", "h")))),
            ),
        ),
    ),
    settings={"prm": "prm-a", "resamples": "1000", "data": "sha256 0a1b"},
)


@pytest.fixture(scope="module")
def page() -> Element:
    return page_of(VIEW)


# What it shows


def test_the_top_says_what_was_measured(page: Element) -> None:
    about = page.one(".about")
    assert page.one("head").one("title").text == page.one("h1").text == VIEW.title
    assert [one.text for one in about.find("p")] == [VIEW.verdict, *VIEW.facts]
    settings = about.one(".settings")
    assert settings.tag == "details" and "open" not in settings.attributes
    assert [one.text for one in settings.find("dt")] == list(VIEW.settings)
    assert [one.text for one in settings.find("dd")] == list(VIEW.settings.values())


def test_sections_are_named_and_linked(page: Element) -> None:
    links = page.one("nav").find("a")
    parts = page.find(".part")
    assert [one.text for one in links] == ["Examples", "First error", "Calibration"]
    assert [one.attributes["href"] for one in links] == [f"#{one.attributes['id']}" for one in parts]
    assert [one.find("h2")[0].text for one in parts] == ["Examples", "First error", "Calibration"]
    texts = [child.text for child in parts[1].children if isinstance(child, Element) and child.tag == "p"]
    assert texts == ["How often it is found.", "By subset."]


def test_tables_hold_every_cell(page: Element) -> None:
    table = page.find(".table")[0]
    assert [[cell.text for cell in row.find("th") + row.find("td")] for row in table.find("tr")] == [
        list(TABLE.columns),
        *map(list, TABLE.rows),
    ]
    assert table.one("figcaption").text == TABLE.title and table.one(".remark").text == TABLE.note


def test_plots_have_a_title_a_sentence_and_their_numbers(page: Element) -> None:
    pictures = page.find(".picture")
    assert [one.find("figcaption")[0].text for one in pictures] == [
        "F1 over the threshold", "Reliability", "Drop",
    ]  # fmt: skip
    first = pictures[0]
    assert first.find(".remark")[0].text == LINES.note
    assert first.one("img").attributes["alt"].startswith("F1 over the threshold. Lines of F1 (%)")
    folded = first.one(".numbers")
    assert folded.tag == "details" and "open" not in folded.attributes
    assert [[cell.text for cell in row.find("td")] for row in folded.one("tbody").find("tr")] == [["31.5", "–"], ["47.875", "40.125"]]  # fmt: skip


def test_examples_are_the_report_s_cards_folded_by_group(page: Element) -> None:
    groups = page.find(".examples")
    assert all(one.tag == "details" and "open" not in one.attributes for one in groups)
    assert [one.find("summary")[0].text for one in groups] == [
        "Missed errors2 solutions",
        "False alarms2 solutions",
    ]
    assert [
        child.text for child in groups[0].children if isinstance(child, Element) and child.tag == "p"
    ] == ["A person found them."]
    steps = [[step.one(".txt").text for step in group.find(".step")] for group in groups]
    assert steps == [["a", "b", "c", "d"], ["e", "f", "g", "h"]]
    values = [one.attributes["data-score"] for one in groups[0].find(".val")]
    assert values == ["0.875", "0.125"] * 2


def test_no_name_is_given_twice_and_every_link_leads_somewhere(page: Element) -> None:
    ids = [one.attributes["id"] for one in page.all() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)
    targets = [one.attributes["href"] for one in page.all() if "href" in one.attributes]
    targets += re.findall(r"url\((#[\w-]+)\)", "".join(evaluation_html(VIEW)))
    assert targets and {target[1:] for target in targets} <= set(ids)


def test_a_card_that_cannot_be_drawn_right_is_refused() -> None:
    broken = replace(card("a", "b"), first_error=2)
    with pytest.raises(InputError):
        page_of(Report(title="t", sections=(Section(title="s", items=(Examples(title="e", problems=(problem(broken),)),)),)))  # fmt: skip


def test_without_matplotlib_a_page_of_tables_is_still_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert page_of(Report(title="t", sections=(Section(title="s", items=(TABLE,)),))).find("table")
    page = page_of(VIEW)
    assert not page.find("img") and len(page.find(".picture")) == 3
    assert all("open" in one.one(".numbers").attributes for one in page.find(".picture"))


# The file


def scripts_and_policy(page: Element) -> tuple[list[str], dict[str, str]]:
    policy = page.one("head").find("meta")[1].attributes
    assert policy["http-equiv"] == "Content-Security-Policy"
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
    return [one.text for one in page.find("script")], rules


def hashes(scripts: list[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def asset(name: str) -> str:
    return (files("stepmark.report") / name).read_text(encoding="utf-8")


def test_no_script_runs_where_there_is_no_formula(page: Element) -> None:
    scripts, rules = scripts_and_policy(page)
    assert scripts == []
    assert rules == {
        "default-src": "'none'",
        "script-src": "'none'",
        "style-src": "'unsafe-inline'",
        "font-src": "data:",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_formulas_bring_katex() -> None:
    group = Examples(title="e", problems=(problem(card("$x<2$", "so $\\frac{1}{2}$"), text="Find $x$."),))
    page = page_of(Report(title="t", sections=(Section(title="s", items=(TABLE, group)),)))
    scripts, rules = scripts_and_policy(page)
    assert scripts == [asset("vendor/katex/katex.min.js"), asset("page.js")]
    assert rules["script-src"] == hashes(scripts)
    assert len(page.find(".tex")) == 3 and "data:font/woff2" in page.one("style").text


ATTACKS = (
    "</script><script>document.title='hacked'</script>",
    "</style></title><img src=x onerror=\"document.title='hacked'\">",
    "\"><svg onload=document.title='hacked'>",
    "' onmouseover=document.title='hacked' x='",
    "$\\href{javascript:document.title='hacked'}{x}$",
    "<!-- --> <![CDATA[ ]]> <link rel=stylesheet href=//example.org/x.css> url(http://example.org)",
    "</text></svg><foreignObject><script>document.title='hacked'</script>",
    "nul \0 and \x1b[31m and \u202e and \ud800 and \uffff and &lt;b&gt;",
    "</pre></details></button><a href=javascript:alert(1)>x</a> | `x` | **y**",
)


def attacked(text: str) -> Report:
    series = (Series(name=text, x=(text,), y=(0.5,)), Series(name="other", x=("b",), y=(None,)))
    return Report(
        title=text,
        facts=(text,),
        tiles=(Tile(label=text, value=text, detail=text),),
        settings={text: text},
        sections=(
            Section(
                title=text,
                text=text,
                items=(
                    Table(title=text, columns=(text, "b"), rows=((text, text),), note=text),
                    Lines(title=text, x_label=text, y_label=text, series=series, note=text),
                    Bars(
                        title=text,
                        x_label=text,
                        y_label=text,
                        labels=(text,),
                        series=(Series(name=text, y=(1.0,)),),
                    ),
                    Examples(title=text, text=text, problems=(problem(card(text, text), text=text),)),
                ),
            ),
            Section(title=text),
        ),
    )


TAGS = {
    "root", "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "article",
    "div", "span", "h1", "h2", "h3", "p", "b", "i", "a", "ol", "li", "dl", "dt", "dd", "details", "summary",
    "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "small", "pre", "code",
    "script", "img", "picture", "source",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_names_are_inert_and_shown(attack: str) -> None:
    page = page_of(attacked(attack))
    assert {one.tag for one in page.all()} <= TAGS
    for one in page.all():
        for name, value in one.attributes.items():
            assert not name.startswith("on") and name not in ("action", "xlink:href")
            if name in ("src", "srcset"):
                assert re.fullmatch(r"data:image/svg\+xml;base64,[\w+/=]+", value)
            if name == "href":
                assert re.fullmatch(r"#[\w-]+", value)
            if name == "style":
                assert "hacked" not in value and "url(" not in value
            if name == "class":
                assert "hacked" not in value
    scripts, rules = scripts_and_policy(page)
    assert rules["script-src"] == (hashes(scripts) or "'none'")
    assert len(page.find("style")) == 1
    if "\0" not in attack:
        assert page.one("h1").text == page.one("head").one("title").text == attack
        assert page.find(".table")[0].one("td").text == attack


# In a browser
