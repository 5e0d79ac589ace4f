"""The report page: one HTML file with everything inside it, drawn from plain strings and numbers.

The page loads nothing and runs nothing but two scripts of ours (KaTeX and the one that calls it), each allowed by its
hash in a content security policy; a page without formulas holds no script at all. Filters are CSS. The order of
the chunks from `page_html` is the order of the file.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from stepmark.show import colour
from stepmark.show.card import level_class, problem_html, sorts
from stepmark.show.html import CODE_NAMES, esc, has_formula
from stepmark.show.text import first_error_words, number, one_line
from stepmark.show.views import CardView, ProblemView, Summary


def page_html(summary: Summary, problems: Sequence[ProblemView]) -> Iterator[str]:
    """The page in chunks.

    Raises:
        InputError: a card without one score a step, or with a score out of the range of its kind.
        ScoreKindError: no such kind.
    """
    body = [problem_html(problem) for problem in problems]
    scripts = (_asset("vendor/katex/katex.min.js"), _asset("page.js")) if any(map(has_formula, body)) else ()
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts) or "'none'"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"script-src {allowed}; style-src 'unsafe-inline'; font-src data:; img-src data:; "
        "base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{esc(one_line(summary.title))}</title>\n"
        f"<style>{_katex_css() if scripts else ''}{_asset('page.css')}{_palette()}</style>\n</head>\n<body>\n"
    )
    yield _header(summary)
    yield _toolbar(summary)
    yield _map(problems)
    yield '<main class="wrap">\n'
    yield from body
    if not summary.solutions:
        yield '<p class="nothing">There is no solution in this report.</p>\n'
    yield "</main>\n"
    for script in scripts:
        yield f"<script>{script}</script>\n"
    yield "</body>\n</html>\n"


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
    rows = "".join(
        f"<dt>{esc(one_line(name))}</dt><dd>{esc(one_line(value))}</dd>"
        for name, value in summary.settings.items()
    )
    settings = (
        f'<details class="settings"><summary>Settings</summary><dl>{rows}</dl></details>' if rows else ""
    )
    return (
        f'<header class="wrap top"><div class="about"><h1>{esc(one_line(summary.title))}</h1>{facts}{settings}</div>'
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


def _toolbar(summary: Summary) -> str:
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
        f'<div class="legend"><span>Step score</span><span>{low}</span><span class="scale">{swatches}</span>'
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
            f".{level_class(place)}{{--t:{colour.hexa(shade.tint)};--s:{colour.hexa(shade.strong)}}}"
        )
    return "".join(rules)


@functools.cache
def _asset(name: str) -> str:
    return (files("stepmark.show") / name).read_text(encoding="utf-8")


@functools.cache
def _katex_css() -> str:
    """KaTeX's stylesheet with its woff2 fonts inside and the other formats left out."""
    fonts = files("stepmark.show") / "vendor/katex/fonts"

    def inlined(source: re.Match[str]) -> str:
        data = base64.b64encode((fonts / f"{source['name']}.woff2").read_bytes()).decode("ascii")
        return f'src:url(data:font/woff2;base64,{data}) format("woff2")'

    return re.sub(
        r"src:url\(fonts/(?P<name>[\w-]+)\.woff2\)[^;}]*", inlined, _asset("vendor/katex/katex.min.css")
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
