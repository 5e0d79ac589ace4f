"""The page of an evaluation: figures, plots, tables and example solutions as one HTML file that needs no network.

It is built like the report page (`stepmark.report.page`): nothing is loaded, and no script runs but KaTeX where there is a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import Any, Literal

from stepmark.errors import MissingExtraError
from stepmark.report.html import template
from stepmark.report.page import ProblemView, asset, foot, formula_scripts, head, problem_html, settings_html
from stepmark.report.plots import Plot, numbers, picture_html
from stepmark.report.tables import Table, table_html


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


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured, as plain records: the page, the terminal and the notebook show the same."""

    title: str
    verdict: str = ""
    """The answer in one sentence, in larger type; "" for none."""
    facts: Sequence[str] = ()
    """Sentences that a reader needs to read the numbers correctly: on what data, what was left out, what the intervals are."""
    tiles: Sequence[Tile] = ()
    """Headline numbers."""
    sections: Sequence[Section] = ()
    """Tables, plots and examples; a section without any is left out. The tables of the first one are printed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Name to value, shown on demand; None for a setting that was not given."""


def evaluation_html(view: Report) -> Iterator[str]:
    """The page in chunks; equal reports give equal pages. Without matplotlib plots are their numbers."""
    problems, cards = count(1), count(1)  # names in links, so they are made over the whole page

    def numbered(problem: ProblemView) -> str:
        own = tuple(replace(card, number=next(cards)) for card in problem.cards)
        return problem_html(replace(problem, number=next(problems), cards=own))

    page = template("evaluation")
    body = []
    # What a score looks like says more than a table of them: examples stand first, folded.
    sections = sorted(
        (section for section in view.sections if section.items),
        key=lambda section: not _only_examples(section),
    )
    view = replace(view, sections=sections)
    main = next((section for section in sections if not _only_examples(section)), None)
    for at, section in enumerate(sections, start=1):
        rows = [
            (kind, [_item(item, numbered, fold=section is not main) for item in items])
            for kind, items in groupby(
                section.items, key=lambda item: "groups" if isinstance(item, Examples) else "tables"
            )
        ]
        paragraphs = [part for part in section.text.split("\n\n") if part.strip()]
        body.append(page.section(at, section.title, paragraphs, rows))
    scripts = formula_scripts(body)
    yield head(view.title, style=asset("page.css") + asset("evaluation.css"), scripts=scripts)
    yield page.header(
        view, settings_html({key: str(value) for key, value in view.settings.items() if value is not None})
    )
    yield '<main class="wrap">\n'
    yield from body
    yield "</main>\n"
    yield foot(scripts)


def _only_examples(section: Section) -> bool:
    return all(isinstance(item, Examples) for item in section.items)


def _item(item: Item, numbered: Callable[[ProblemView], str], *, fold: bool) -> str:
    page = template("evaluation")
    if isinstance(item, Table):
        return table_html(item, fold=fold)
    if isinstance(item, Examples):
        cards = sum(len(problem.cards) for problem in item.problems)
        return page.examples(item, cards, [numbered(problem) for problem in item.problems])
    try:
        picture = picture_html(item)
    except MissingExtraError as error:
        picture = template("macros").missing(str(error))
    return page.plot(item, picture, table_html(numbers(item)), "<img" not in picture)
