"""The page of an evaluation: figures, plots, tables and example solutions as one HTML file that needs no network.

It is built like the report page (`stepmark.show.page`): nothing is loaded, and the scripts in it are ours, each allowed
by its hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from stepmark.show.drawing import picture_html
from stepmark.show.frame import asset, foot, formula_scripts, head, settings_html
from stepmark.show.html import esc
from stepmark.show.page import problem_html
from stepmark.show.plots import Plot, numbers
from stepmark.show.tables import Table, table_html
from stepmark.show.text import one_line
from stepmark.show.views import ProblemView


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A headline number."""

    label: str
    """What it is: "F1"."""
    value: str
    """The number, already formatted: "47.9"."""
    detail: str = ""
    """What belongs beside it: its interval, the threshold and how it was chosen, the number of items."""
    sort: Literal["", "good", "bad", "odd"] = ""
    """A judgement shown as a colour; "" for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """A group of problems with graded solutions, folded until it is asked for."""

    title: str
    problems: tuple[ProblemView, ...]
    """Their numbers and those of their cards are made anew, in the order of the page, because they are names in links."""
    text: str = ""
    """What the group shows; "" for nothing to say."""


Item = Table | Plot | Examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page, with its place in the navigation."""

    title: str
    text: str = ""
    """What the reader sees here and how it was made; paragraphs are separated by empty lines."""
    items: tuple[Item, ...] = ()
    """In the order of the page; plots that follow each other stand side by side where there is room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationView:
    """All that the page shows."""

    title: str
    facts: tuple[str, ...] = ()
    """Sentences under the title: what was evaluated, on what data, what the intervals are."""
    tiles: tuple[Tile, ...] = ()
    sections: tuple[Section, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Name to value, shown on demand."""


def evaluation_html(view: EvaluationView) -> Iterator[str]:
    """The page in chunks; equal views give equal pages.

    Raises:
        InputError: a card without one score a step, or with a score out of the range of its kind.
        ScoreKindError: no such kind.
        MissingExtraError: there is a plot, and matplotlib is not installed.
    """
    numbered = _Numbered()
    body = [_section(at, section, numbered) for at, section in enumerate(view.sections, start=1)]
    copying = (asset("evaluation.js"),) if any('class="copy"' in part for part in body) else ()
    scripts = formula_scripts(body) + copying
    yield head(view.title, style=asset("page.css") + asset("evaluation.css"), scripts=scripts)
    yield _header(view)
    yield _navigation(view.sections)
    yield '<main class="wrap">\n'
    yield from body
    yield "</main>\n"
    yield foot(scripts)


def _header(view: EvaluationView) -> str:
    facts = "".join(f"<p>{esc(fact)}</p>" for fact in view.facts)
    tiles = "".join(map(_tile, view.tiles))
    tiles = f'<div class="headline">{tiles}</div>' if tiles else ""
    return (
        f'<header class="wrap"><div class="top"><div class="about"><h1>{esc(one_line(view.title))}</h1>{facts}'
        f"{settings_html(view.settings)}</div></div>"
        f"{tiles}</header>\n"
    )


def _tile(tile: Tile) -> str:
    detail = f"<small>{esc(tile.detail)}</small>" if tile.detail else ""
    return (
        f'<div class="{" ".join(filter(None, ("tile", tile.sort)))}"><span>{esc(one_line(tile.label))}</span>'
        f"<b>{esc(one_line(tile.value))}</b>{detail}</div>"
    )


def _navigation(sections: tuple[Section, ...]) -> str:
    if len(sections) < 2:
        return ""
    links = "".join(
        f'<a href="#part{at}">{esc(one_line(section.title))}</a>'
        for at, section in enumerate(sections, start=1)
    )
    return f'<nav class="bar parts" aria-label="Sections"><div class="wrap">{links}</div></nav>\n'


class _Numbered:
    """Gives problems and cards their numbers, which are names in links, over the whole page."""

    def __init__(self) -> None:
        self.problems = 0
        self.cards = 0

    def problem(self, problem: ProblemView) -> ProblemView:
        self.problems += 1
        first = self.cards + 1
        self.cards += len(problem.cards)
        cards = tuple(replace(card, number=first + at) for at, card in enumerate(problem.cards))
        return replace(problem, number=self.problems, cards=cards)


def _section(at: int, section: Section, numbered: _Numbered) -> str:
    paragraphs = "".join(
        f"<p>{esc(one_line(part))}</p>" for part in section.text.split("\n\n") if part.strip()
    )
    rows = []
    for sort, items in groupby(section.items, key=_sort):
        inside = "".join(_item(item, numbered) for item in items)
        rows.append(f'<div class="{sort}">{inside}</div>\n')
    return (
        f'<section class="part" id="part{at}"><h2>{esc(one_line(section.title))}</h2>'
        f"{paragraphs}\n{''.join(rows)}</section>\n"
    )


def _sort(item: Item) -> str:
    """The class of the row that an item stands in, with those like it beside it."""
    if isinstance(item, Table):
        return "tables"
    return "groups" if isinstance(item, Examples) else "pictures"


def _item(item: Item, numbered: _Numbered) -> str:
    if isinstance(item, Table):
        return table_html(item)
    return _examples(item, numbered) if isinstance(item, Examples) else _picture(item)


def _picture(plot: Plot) -> str:
    note = f'<p class="remark">{esc(one_line(plot.note))}</p>' if plot.note.strip() else ""
    return (
        f'<figure class="picture"><figcaption>{esc(one_line(plot.title))}</figcaption>{picture_html(plot)}{note}'
        f'<details class="numbers"><summary>Numbers</summary>{table_html(numbers(plot))}</details></figure>\n'
    )


def _examples(group: Examples, numbered: _Numbered) -> str:
    cards = sum(len(problem.cards) for problem in group.problems)
    count = f"{cards:,} solution" if cards == 1 else f"{cards:,} solutions"
    text = f"<p>{esc(one_line(group.text))}</p>" if group.text.strip() else ""
    problems = "".join(problem_html(numbered.problem(problem)) for problem in group.problems)
    return (
        f'<details class="examples"><summary><b>{esc(one_line(group.title))}</b><span class="note">{count}</span></summary>'
        f"{text}\n{problems}</details>\n"
    )
