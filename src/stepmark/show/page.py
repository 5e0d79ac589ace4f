"""The report page: one HTML file with everything inside it, drawn from plain strings and numbers.

The page loads nothing and runs nothing but two scripts of ours (KaTeX and the one that calls it), each allowed by its
hash in a content security policy; a page without formulas holds no script at all. Filters are CSS. The order of
the chunks from `page_html` is the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stepmark.show import colour
from stepmark.show.card import level_class, problem_html, sorts
from stepmark.show.frame import asset, foot, formula_scripts, head, settings_html
from stepmark.show.html import esc
from stepmark.show.text import first_error_words, number, one_line
from stepmark.show.views import CardView, ProblemView, Summary


def page_html(summary: Summary, problems: Sequence[ProblemView]) -> Iterator[str]:
    """The page in chunks.

    Raises:
        InputError: a card without one score a step, or with a score out of the range of its kind.
        ScoreKindError: no such kind.
    """
    body = [problem_html(problem) for problem in problems]
    scripts = formula_scripts(body)
    yield head(summary.title, style=asset("page.css"), scripts=scripts)
    yield _header(summary)
    anchored = any(card.threshold is not None for problem in problems for card in problem.cards)
    yield _toolbar(summary, anchored=anchored)
    yield _map(problems)
    yield '<main class="wrap">\n'
    yield from body
    if not summary.solutions:
        yield '<p class="nothing">There is no solution in this report.</p>\n'
    yield "</main>\n"
    yield foot(scripts)


def _header(summary: Summary) -> str:
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
    figures = "".join(
        f'<div class="tile {sort}"><b>{count:,}</b><span>{name}</span></div>' for name, count, sort in tiles
    )
    facts = "".join(f"<p>{esc(fact)}</p>" for fact in summary.facts)
    return (
        f'<header class="wrap top"><div class="about"><h1>{esc(one_line(summary.title))}</h1>{facts}{settings_html(summary.settings)}</div>'
        f'<div class="figures"><div class="tiles">{figures}</div>{_histogram(summary.positions)}</div></header>\n'
    )


def _histogram(positions: Mapping[int, int]) -> str:
    """First-error positions as bars; what lies beyond the last bar is counted in it."""
    if not positions:
        return ""
    last = min(max(positions), 11)
    counts = [positions.get(at, 0) for at in range(last + 1)]
    counts[last] += sum(count for at, count in positions.items() if at > last)
    names = [str(at + 1) for at in range(last + 1)]
    names[last] += "+" if max(positions) > last else ""
    top = max(counts)
    width, height, slot = 24, 56, 30
    bars = []
    for at, (count, name) in enumerate(zip(counts, names, strict=True)):
        tall = round(count / top * height, 1)
        left = at * slot + (slot - width) / 2
        bars.append(
            f'<g><title>{count:,} with the first error at step {name}</title><rect x="{left:g}" '
            f'y="{16 + height - tall:g}" width="{width}" height="{tall:g}" rx="2"/>'
            f'<text x="{left + width / 2:g}" y="{12 + height - tall:g}">{count or ""}</text>'
            f'<text class="axis" x="{left + width / 2:g}" y="{height + 30}">{name}</text></g>'
        )
    across = slot * (last + 1)
    words = ", ".join(f"step {name}: {count}" for name, count in zip(names, counts, strict=True))
    return (
        f'<figure class="histogram"><figcaption>First error at step</figcaption><svg role="img" aria-label="{words}" '
        f'viewBox="0 0 {across} {height + 34}" width="{across}" height="{height + 34}">'
        f'<line x1="0" x2="{across}" y1="{16.5 + height:g}" y2="{16.5 + height:g}"/>{"".join(bars)}</svg></figure>'
    )


def _toolbar(summary: Summary, *, anchored: bool) -> str:
    choices = {"all": "All", "err": "With an error"}
    if summary.disagreements is not None:
        choices["dis"] = "Disagreement"
    controls = "".join(
        f'<label><input type="radio" name="filter" id="f-{key}"{" checked" if key == "all" else ""}>{name}</label>'
        for key, name in choices.items()
    )
    low, high = ("low", "high")
    if summary.kinds in (("probability",), ("margin",)):
        low, high = ("0" if summary.kinds == ("probability",) else "−1"), "1"
    swatches = "".join(f'<i class="l{at}"></i>' for at in range(colour.LEVELS + 1))
    return (
        f'<nav class="bar"><div class="wrap"><fieldset class="filter"><legend>Show</legend>{controls}</fieldset>'
        f'<div class="legend"><span>Step score{", amber at the threshold" if anchored else ""}</span><span>{low}</span><span class="scale">{swatches}</span>'
        f'<span>{high}</span><span class="grey"><i class="l-"></i>not read</span></div></div></nav>\n'
    )


def _map(problems: Sequence[ProblemView]) -> str:
    """Every solution as a small cell: its colour is its score, its sign the step of its first error."""
    if sum(len(problem.cards) for problem in problems) < 2:
        return ""
    groups = []
    for problem in problems:
        cells = "".join(
            f'<a href="#s{card.number}" class="{level_class(card.place)}{sorts(card)}" title="{esc(_cell_words(card))}">'
            f"{_sign(card.first_error)}</a>"
            for card in problem.cards
        )
        groups.append(f'<li><a class="to" href="#p{problem.number}">{problem.number}</a>{cells}</li>')
    is_open = " open" if len(problems) <= 40 else ""
    return (
        f'<details class="map wrap"{is_open}><summary>Map: every solution by its score, with the step of its first '
        f"error</summary><ol>{''.join(groups)}</ol></details>\n"
    )


def _cell_words(card: CardView) -> str:
    score = "–" if card.score is None else number(card.score)
    return f"{card.title}: {card.aggregate} {score}, {first_error_words(card.first_error)}"


def _sign(first_error: int | None) -> str:
    if first_error is None:
        return "?"
    return "✓" if first_error < 0 else str(first_error + 1)
