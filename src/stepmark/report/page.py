"""What every page has around it, and the report page: one HTML file with everything inside it.

A page loads nothing, and nothing runs in it but scripts of ours, each allowed by its hash in a content security
policy; a page without formulas holds no script at all. Formulas are rendered by KaTeX, which is in the page only where
there is a formula. Filters are CSS. The report page is drawn from plain strings and numbers by `templates/`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from stepmark.report import colour
from stepmark.report.html import CODE_NAMES, has_formula, template
from stepmark.words import ABSENT, check_solution, first_error_words, number


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgementView:
    """One judgement of a step."""

    axis: str
    words: str
    """What it comes to: "wrong", "3 of 8"; "" where the reason says it."""
    failed: bool
    reason: str = ""
    """In words; "" for none."""
    after: bool = False
    """It is about what is missing after the step, and is shown there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepView:
    """One step of a card."""

    text: str
    score: float | None
    """None: not read."""
    language: str | None = None
    """The whole step is code of this language ("" for not known); None when it is not code."""
    observation: str = ""
    """What the world answered after it; shown, not rated."""
    speaker: str | None = None
    classes: tuple[tuple[str, float], ...] = ()
    """Class names and their probabilities."""
    critiques: tuple[str, ...] = ()
    """What a generative PRM wrote of it."""
    findings: tuple[str, ...] = ()
    """What exact checks prove of it: "60 * 2.5 = 120: it is 150"."""
    judgements: tuple[JudgementView, ...] = ()
    """What people and judges say of it. A step that has some, and no score, is shown with them alone."""
    label: float | None = None
    """What they come to, from 0 (wrong) to 1 (right), where there is no score; None for not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """One graded solution."""

    number: int
    """Its place in the report, from 1: its name in links."""
    title: str
    note: str
    """Who wrote it, who graded it; "" for nothing to say."""
    kind: str
    """The kind of its step scores (`stepmark.report.colour.KINDS`)."""
    threshold: float | None
    score: float | None
    aggregate: str
    """How the score is made; "" for a card of labels, which has none."""
    place: float | None
    """Where `score` stands from 0 (bad) to 1 (good); None for no such scale."""
    aggregates: tuple[tuple[str, float | None], ...]
    """Each aggregate's name and value; None where it has no meaning for these scores."""
    first_error: int | None
    """0-based; -1 for none; None for not known."""
    steps: tuple[StepView, ...]
    best: str = ""
    """The words of its mark where it is the best of its problem: "best by score"; "" elsewhere."""
    outcome: float | None = None
    outcome_model: str | None = None
    axes: tuple[tuple[str, tuple[int, ...] | None], ...] = ()
    """Each axis of its labels, with the numbers of the steps that fail it, from 1; None where no step fails it and one is open."""

    @property
    def refuted(self) -> bool:
        """Whether an exact check proves that a step is wrong."""
        return any(step.findings for step in self.steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemView:
    """One problem and its solutions side by side."""

    number: int
    text: str
    note: str
    """Its id and where it comes from; "" for nothing to say."""
    cards: tuple[CardView, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What the top of the page says of all solutions, those not shown included."""

    title: str
    facts: tuple[str, ...]
    """Sentences under the title: by what it was graded, what the numbers are, what is left out."""
    settings: Mapping[str, str]
    solutions: int
    problems: int
    with_error: int
    without_error: int
    unknown: int
    """Solutions of which it is not known whether a step is an error."""
    positions: Mapping[int, int]
    """How many solutions have their first error at this 0-based step."""
    kinds: tuple[str, ...]
    """The kinds of their step scores, each once."""


def head(title: str, *, style: str, scripts: Sequence[str]) -> str:
    """Everything before the content of the body.

    `style` is its stylesheet, to which the colours and, where there are formulas, KaTeX's are added; `scripts` are those of `foot`.
    """
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts) or "'none'"
    formulas = _katex_css() if asset(_KATEX) in scripts else ""
    return template("frame").head(title, allowed, formulas + style + _palette())


def foot(scripts: Sequence[str]) -> str:
    """Everything after the content of the body."""
    return template("frame").foot(scripts)


def formula_scripts(body: Iterable[str]) -> tuple[str, ...]:
    """The scripts that a body of marked-up texts needs; none where it has no formula."""
    return (asset(_KATEX), asset("page.js")) if any(map(has_formula, body)) else ()


def settings_html(settings: Mapping[str, str]) -> str:
    """Names and values, folded; "" for none."""
    return template("macros").settings_list(settings)


_KATEX = "vendor/katex/katex.min.js"


@functools.cache
def _palette() -> str:
    """The colours of the scale and of the text in both modes, as CSS variables."""
    return (
        f":root{{{_variables('light')}}}{_levels('light')}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables('dark')}}}{_levels('dark')}}}"
        # On paper the light colours are the right ones, whatever the screen likes.
        f"@media print{{:root{{{_variables('light')}}}{_levels('light')}}}"
    )


def _variables(mode: colour.Mode) -> str:
    named = {"ink": colour.INK, "muted": colour.MUTED, "panel": colour.PAGE}
    ends = {"bad": 0.0, "warn": 0.5, "good": 1.0}
    return (
        "".join(f"--{name}:{colour.hexa(table[mode])};" for name, table in named.items())
        + "".join(
            f"--{name}:{colour.hexa(colour.shade(place, mode).strong)};"
            f"--{name}-tint:{colour.hexa(colour.shade(place, mode).tint)};"
            for name, place in ends.items()
        )
        + "".join(f"--hl-{name}:{colour.hexa(colour.CODE[mode][name])};" for name in CODE_NAMES)
    )


def _levels(mode: colour.Mode) -> str:
    places: list[float | None] = [None, *(at / colour.LEVELS for at in range(colour.LEVELS + 1))]
    rules = []
    for place in places:
        shade = colour.shade(place, mode)
        rules.append(
            f".{colour.level_class(place)}{{--t:{colour.hexa(shade.tint)};--s:{colour.hexa(shade.strong)}}}"
        )
    return "".join(rules)


@functools.cache
def asset(name: str) -> str:
    """A text file that lies beside this module."""
    return (files("stepmark.report") / name).read_text(encoding="utf-8")


@functools.cache
def _katex_css() -> str:
    """KaTeX's stylesheet with its woff2 fonts inside and the other formats left out."""
    fonts = files("stepmark.report") / "vendor/katex/fonts"

    def inlined(source: re.Match[str]) -> str:
        data = base64.b64encode((fonts / f"{source['name']}.woff2").read_bytes()).decode("ascii")
        return f'src:url(data:font/woff2;base64,{data}) format("woff2")'

    return re.sub(
        r"src:url\(fonts/(?P<name>[\w-]+)\.woff2\)[^;}]*", inlined, asset("vendor/katex/katex.min.css")
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def page_html(summary: Summary, problems: Sequence[ProblemView]) -> Iterator[str]:
    """The page in chunks."""
    body = [problem_html(problem) for problem in problems]
    scripts = formula_scripts(body)
    report = template("report")
    cards = [card for problem in problems for card in problem.cards]
    yield head(summary.title, style=asset("page.css"), scripts=scripts)
    yield report.top(summary, _tiles(summary), _bars(summary.positions))
    yield report.toolbar(summary, any(card.threshold is not None for card in cards))
    if len(cards) > 1:
        yield report.solution_map(
            [(problem, [_cell(card) for card in problem.cards]) for problem in problems]
        )
    yield '<main class="wrap">\n'
    yield from body
    if not summary.solutions:
        yield '<p class="nothing">There is no solution in this report.</p>\n'
    yield "</main>\n"
    yield foot(scripts)


def problem_html(problem: ProblemView) -> str:
    """A problem and its solutions, side by side where the window is wide enough."""
    sorts = {sort for card in problem.cards for sort in _sorts(card).split()}
    return template("macros").problem_section(
        problem, [_card(card) for card in problem.cards], "".join(f" {sort}" for sort in sorted(sorts))
    )


def _sorts(card: CardView) -> str:
    """The classes that the filters look for, each after a space."""
    return " err" if card.first_error is not None and card.first_error >= 0 else ""


def _card(card: CardView) -> dict[str, Any]:
    """A solution with what follows from its scores."""
    check_solution([step.text for step in card.steps], [step.score for step in card.steps], card.first_error)
    verdict = first_error_words(card.first_error)
    rows = [
        {
            "n": at + 1,
            "step": step,
            # A proof outranks a score: what is refuted is red, however high its score.
            "place": 0.0
            if step.findings
            else step.label
            if step.score is None
            else colour.position(step.score, card.kind, card.threshold),
            "width": colour.extent(step.score, card.kind, card.threshold),
            "is_error": at == card.first_error,
        }
        for at, step in enumerate(card.steps)
    ]
    return {
        "card": card,
        "place": 0.0 if card.refuted else card.place,
        "rows": rows,
        "sorts": _sorts(card),
        "verdict": verdict[0].upper() + verdict[1:],
        "sort": "" if card.first_error is None else (" bad" if card.first_error >= 0 else " good"),
        "tick": None if card.threshold is None else colour.extent(card.threshold, card.kind, card.threshold),
    }


def _tiles(summary: Summary) -> list[tuple[str, int, str]]:
    tiles = [
        ("solution" if summary.solutions == 1 else "solutions", summary.solutions, ""),
        ("problem" if summary.problems == 1 else "problems", summary.problems, ""),
        ("with an error", summary.with_error, "bad"),
        ("no error", summary.without_error, "good"),
    ]
    if summary.unknown:
        tiles.append(("not known", summary.unknown, ""))
    return tiles


def _bars(positions: Mapping[int, int]) -> list[dict[str, Any]]:
    """First-error positions as bars, at most 56 high; what lies beyond the last bar is counted in it."""
    if not positions:
        return []
    last = min(max(positions), 11)
    counts = [positions.get(at, 0) for at in range(last + 1)]
    counts[last] += sum(count for at, count in positions.items() if at > last)
    more = "+" if max(positions) > last else ""
    return [
        {
            "name": f"{at + 1}{more if at == last else ''}",
            "count": count,
            "height": round(count / max(counts) * 56, 1),
        }
        for at, count in enumerate(counts)
    ]


def _cell(card: CardView) -> dict[str, Any]:
    """A solution as a small cell of the map: its colour is its score, its sign the step of its first error."""
    score = ABSENT if card.score is None else number(card.score)
    sign = "?" if card.first_error is None else "✓" if card.first_error < 0 else str(card.first_error + 1)
    return {
        "card": card,
        "place": 0.0 if card.refuted else card.place,
        "sorts": _sorts(card),
        "words": f"{card.title}: {f'{card.aggregate} {score}, ' if card.aggregate else ''}{first_error_words(card.first_error)}",
        "sign": sign,
    }
