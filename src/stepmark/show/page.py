"""The report page: one HTML file with everything inside it, drawn from plain strings and numbers by `templates/`.

The page loads nothing and runs nothing but two scripts of ours (KaTeX and the one that calls it), each allowed by its
hash in a content security policy; a page without formulas holds no script at all. Filters are CSS. The order of
the chunks from `page_html` is the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepmark.show import colour
from stepmark.show.frame import asset, foot, formula_scripts, head
from stepmark.show.html import template
from stepmark.show.text import ABSENT, check_solution, first_error_words, number
from stepmark.show.views import CardView, ProblemView, Summary


def page_html(summary: Summary, problems: Sequence[ProblemView]) -> Iterator[str]:
    """The page in chunks.

    Raises:
        InputError: a card without one score a step, or with a score out of the range of its kind.
        ScoreKindError: no such kind.
    """
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
    """A problem and its solutions, side by side where the window is wide enough.

    Raises:
        InputError: a card without one score a step, or with a score out of the range of its kind.
        ScoreKindError: no such kind.
    """
    sorts = {sort for card in problem.cards for sort in _sorts(card).split()}
    return template("macros").problem_section(
        problem, [_card(card) for card in problem.cards], "".join(f" {sort}" for sort in sorted(sorts))
    )


def _sorts(card: CardView) -> str:
    """The classes that the filters look for, each after a space."""
    error = " err" if card.first_error is not None and card.first_error >= 0 else ""
    return error + (" dis" if card.disagreement else "")


def _card(card: CardView) -> dict[str, Any]:
    """A solution with what follows from its scores."""
    check_solution([step.text for step in card.steps], [step.score for step in card.steps], card.first_error)
    verdict = first_error_words(card.first_error)
    rows = [
        {
            "n": at + 1,
            "step": step,
            "place": colour.position(step.score, card.kind, card.threshold),
            "width": colour.extent(step.score, card.kind, card.threshold),
            "is_error": at == card.first_error,
        }
        for at, step in enumerate(card.steps)
    ]
    return {
        "card": card,
        "rows": rows,
        "sorts": _sorts(card),
        "verdict": verdict[0].upper() + verdict[1:],
        "sort": "" if card.first_error is None else (" bad" if card.first_error >= 0 else " good"),
        "tick": None if card.threshold is None else colour.extent(card.threshold, card.kind, card.threshold),
    }


def _tiles(summary: Summary) -> list[tuple[str, int, str]]:
    tiles = [
        ("solutions", summary.solutions, ""),
        ("problems", summary.problems, ""),
        ("with an error", summary.with_error, "bad"),
        ("no error", summary.without_error, "good"),
    ]
    if summary.unknown:
        tiles.append(("not known", summary.unknown, ""))
    if summary.disagreements is not None:
        tiles.append(("disagreements", summary.disagreements, "odd"))
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
        "sorts": _sorts(card),
        "words": f"{card.title}: {card.aggregate} {score}, {first_error_words(card.first_error)}",
        "sign": sign,
    }
