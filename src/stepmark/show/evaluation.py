"""The page of an evaluation: figures, plots, tables and example solutions as one HTML file that needs no network.

It is built like the report page (`stepmark.show.page`): nothing is loaded, and the scripts in it are ours, each allowed
by its hash.

Draw plots with matplotlib: one SVG file that follows the reader's light or dark mode.

What matplotlib writes stays as it is, except that each colour of the palette becomes a CSS variable, whose two values stand in one
`<style>`. A page holds the file as an image (`picture_html`), so that its ids, styles and texts cannot meet those of the page.
"""

from __future__ import annotations

import base64
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal, assert_never

from stepmark.errors import MissingExtraError
from stepmark.show import colour
from stepmark.show.frame import asset, foot, formula_scripts, head, settings_html
from stepmark.show.html import esc
from stepmark.show.page import problem_html
from stepmark.show.plots import (
    Bars,
    Heat,
    Histogram,
    Lines,
    Plot,
    Reliability,
    alike,
    numbers,
    short,
    words,
)
from stepmark.show.tables import Table, table_html
from stepmark.show.text import one_line
from stepmark.show.views import ProblemView

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 380
"""Of a picture, in points; it is scaled to its place."""
FONT, SMALL = 12.0, 11.0
TINTS = (0.06, 0.5)
"""The opacity of the faintest and of the strongest cell of a `Heat`."""
_MARKED = 40
"""A line of more points has no markers."""
_LETTER = 0.62
"""The width of a letter in font sizes, on the generous side."""
_MARKERS = "osD^vPX"
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1), (9, 2), (1, 3))
_HATCHES = ("", "////", "\\\\\\\\", "xxx", "---", "|||", "+++")

_THEME = {"ink": colour.INK, "muted": colour.MUTED, "panel": colour.PAGE, "line": colour.LINE}
_INK, _MUTED, _PANEL, _LINE = (colour.hexa(table["light"]) for table in _THEME.values())
_HUES = [colour.hexa(shade) for shade in colour.SERIES["light"]]
_VARIABLES = {
    **{colour.hexa(table["light"]): name for name, table in _THEME.items()},
    **{hue: f"plot-{at}" for at, hue in enumerate(_HUES)},
}

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stepmark",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.unicode_minus": False,  # as in the numbers that we write
    "font.family": ["sans-serif"],
    "font.size": FONT,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
}


def svg(plot: Plot) -> str:
    """The picture as an SVG file; the title and the note are not drawn in it. Equal plots give equal text.

    The element that shows value `at` of series `k` has the id `s{k}-{at}`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            'plots need matplotlib, which is not installed: pip install "stepmark[evaluate]"'
        ) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A script that the measuring font lacks is drawn by the browser's fonts.
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph")
        warnings.filterwarnings("ignore", message=r"(?s).*constrained_layout not applied")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH / 72, 250 / 72), layout="constrained")
        match plot:
            case Lines():
                height = _lines(plot, figure)
            case Bars():
                height = _bars(plot, figure)
            case Reliability():
                height = _reliability(plot, figure)
            case Heat():
                height = _heat(plot, figure)
            case Histogram():
                height = _histogram(plot, figure)
            case _:
                assert_never(plot)
        figure.set_size_inches(WIDTH / 72, (height + _legend(figure)) / 72)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return _themed(file.getvalue())


def picture_html(plot: Plot) -> str:
    """The picture as an `<img>` that holds the whole file, with `words` as its text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    data = base64.b64encode(svg(plot).encode()).decode("ascii")
    return f'<img class="plot" alt="{esc(_shown(words(plot)))}" src="data:image/svg+xml;base64,{data}">'


def theme_css(mode: colour.Mode) -> str:
    """The colours of pictures as CSS variables."""
    return "".join(f"--{name}:{colour.hexa(table[mode])};" for name, table in _THEME.items()) + "".join(
        f"--plot-{at}:{colour.hexa(shade)};" for at, shade in enumerate(colour.SERIES[mode])
    )


def _themed(drawing: str) -> str:
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", drawing)
    # A variable has no meaning in an attribute.
    drawing = re.sub(r'(fill|stroke)="(#[0-9a-f]{6})"', r'style="\1:\2"', drawing)
    drawing = re.sub(
        r"#[0-9a-f]{6}\b",
        lambda found: f"var(--{_VARIABLES[found[0]]})" if found[0] in _VARIABLES else found[0],
        drawing,
    )
    style = (
        f"<style>svg{{{theme_css('light')}}}"
        f"@media screen and (prefers-color-scheme:dark){{svg{{{theme_css('dark')}}}}}</style>"
    )
    return re.sub(r"(<svg[^>]*>)", lambda found: found[0] + style, drawing, count=1)


def _lines(plot: Lines, figure: Figure) -> float:
    axes = figure.add_subplot()
    names = list(dict.fromkeys(x for series in plot.series for x in series.x if isinstance(x, str)))
    for k, series in enumerate(plot.series):
        hue, dashes = _hue(k), _dashes(k)
        aside = (k - (len(plot.series) - 1) / 2) * 0.12 if names else 0.0
        xs = [names.index(x) + aside if isinstance(x, str) else float(x) for x in series.x]
        ys, low, high = _floats(series.y), _floats(series.low or ()), _floats(series.high or ())
        marker = _MARKERS[k % len(_MARKERS)] if len(xs) <= _MARKED else ""
        axes.plot(
            xs, ys, color=hue, linestyle=dashes, linewidth=1.8, marker=marker, markersize=5,
            label=_legend_name(series.name), gid=f"s{k}",
        )  # fmt: skip
        if low and names:
            axes.vlines(xs, low, high, color=hue, linewidth=1.2)
        elif low:
            axes.fill_between(xs, low, high, color=hue, alpha=0.16, linewidth=0)
        for at, y in enumerate(series.y):
            alone = all(series.y[n] is None for n in (at - 1, at + 1) if 0 <= n < len(series.y))
            if y is not None and (marker or alone):
                axes.plot([xs[at]], [y], color=hue, marker=marker or "o", markersize=5, clip_on=False, gid=f"s{k}-{at}")  # fmt: skip
    _name_axes(axes, plot.x_label, plot.y_label)
    if plot.y_range is not None:
        axes.set_ylim(*plot.y_range)
    more = _x_axis(axes, plot, names)
    for mark in plot.marks:
        axes.axvline(mark.x, color=_INK, linewidth=1.2, linestyle=(0, (4, 2)))
        late = mark.x > sum(axes.get_xlim()) / 2  # the name stands on the side with more room
        axes.annotate(
            _cut(_shown(mark.name), 24), (mark.x, 1), xycoords=("data", "axes fraction"), xytext=(-4 if late else 4, -3),
            textcoords="offset points", ha="right" if late else "left", va="top", fontsize=SMALL,
        )  # fmt: skip
    if all(y is None for series in plot.series for y in series.y):
        _say_nothing(axes)
    if plot.diagonal:
        limits = axes.axis()
        ends = max(limits[0], limits[2]), min(limits[1], limits[3])
        axes.plot(ends, ends, color=_MUTED, linewidth=1, linestyle=(0, (2, 2)), gid="diagonal")
        axes.axis(limits)
    return 255 + more


def _x_axis(axes: Axes, plot: Lines, names: list[str]) -> float:
    """Set the ticks of the x axis; the height that they need beyond the usual one."""
    from matplotlib.ticker import NullLocator

    if names:
        axes.set_xlim(-0.5, len(names) - 0.5)
        return _names_below(axes, names, WIDTH - 60)
    values = sorted({float(x) for series in plot.series for x in series.x})
    if plot.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        if _crowded(values):
            values = _round_ticks(values[0], values[-1])
    if plot.log_x or len(values) <= 7:
        axes.set_xticks(values, [short(value) for value in values])
    return 0


def _crowded(ticks: Sequence[float]) -> bool:
    """Whether two labels on a logarithmic axis would touch."""
    if len(ticks) < 2:
        return False
    unit = (WIDTH - 70) / math.log(ticks[-1] / ticks[0])
    return any(
        unit * math.log(after / before) < len(short(before) + short(after)) / 2 * SMALL * _LETTER + 3
        for before, after in pairwise(ticks)
    )


def _round_ticks(low: float, high: float) -> list[float]:
    """As many round numbers between two as have room; the two themselves where there are less than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1, 2, 5), (1, 3), (1,)):
        ticks = [
            lead * 10.0**power for power in powers for lead in leads if low <= lead * 10.0**power <= high
        ]
        if len(ticks) > 1 and not _crowded(ticks):
            return ticks
    return [low, high]


def _bars(plot: Bars, figure: Figure) -> float:
    axes = figure.add_subplot()
    labels = [_shown(label) for label in plot.labels]
    above = max(map(_cells, labels), default=0) > 16
    """Long labels stand over their bars and take no width from them."""
    group, top = len(plot.series) * 15 + (20 if above else 9), 17 if above else 4
    known = [
        value
        for series in plot.series
        for value in (*series.y, *(series.low or ()), *(series.high or ()))
        if value is not None
    ]
    least, most = min([0.0, *known]), max([0.0, *known])
    width = (most - least) or 1.0
    write = alike(value for series in plot.series for value in series.y)
    for k, series in enumerate(plot.series):
        middles = [at * group + top + k * 15 + 7.5 for at in range(len(labels))]
        lows, highs = _floats(series.low or series.y), _floats(series.high or series.y)
        bars = axes.barh(
            middles, _floats(series.y), height=12, color=_hue(k), edgecolor=_PANEL, hatch=_HATCHES[k % 7], linewidth=0,
            label=_legend_name(series.name),
        )  # fmt: skip
        for at, (bar, middle, value) in enumerate(zip(bars, middles, series.y, strict=True)):
            if value is None:
                bar.remove()
                axes.text(width * 0.01, middle, "not known", va="center", fontsize=SMALL - 1, color=_MUTED)
                continue
            bar.set_gid(f"s{k}-{at}")
            if series.low is not None and lows[at] <= highs[at]:
                axes.plot(
                    [lows[at], highs[at]], [middle] * 2, color=_INK, linewidth=1.2, marker="|", markersize=5, gid=f"i{k}-{at}"
                )  # fmt: skip
            end, side = (min(value, lows[at]), "right") if value < 0 else (max(value, highs[at]), "left")
            end = value if math.isnan(end) else end
            axes.text(
                end + width * (0.015 if side == "left" else -0.015), middle, write(value), va="center", ha=side,
                fontsize=SMALL - 0.5,
            )  # fmt: skip
    axes.set_ylim(max(1, len(labels)) * group, 0)
    axes.set_xlim(
        least - (0.16 * width if least < 0 else 0), most + (0.16 * width if most > 0 or least == 0 else 0)
    )
    if above:
        for at, label in enumerate(labels):
            axes.annotate(
                _cut(label, 52), (0, at * group + 9), xycoords=("axes fraction", "data"), xytext=(3, 0),
                textcoords="offset points", va="center", fontsize=SMALL,
            )  # fmt: skip
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    else:
        centres = [at * group + top + len(plot.series) * 7.5 for at in range(len(labels))]
        axes.set_yticks(centres, labels, color=_INK)
    axes.grid(False, axis="y")
    if plot.zero_line or least < 0 or above:
        axes.axvline(0, color=_INK, linewidth=1)
    _name_axes(axes, plot.y_label, plot.x_label)
    return max(1, len(labels)) * group + 50


def _reliability(plot: Reliability, figure: Figure) -> float:
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    full = [item for item in plot.bins if item.mean_score is not None and item.share_right is not None]
    scores, shares = _floats([item.mean_score for item in full]), _floats([item.share_right for item in full])
    axes.plot(
        scores, shares, color=_INK, linewidth=1.2, marker="o", markersize=5.5, clip_on=False, label="observed"
    )
    axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1, linestyle=(0, (2, 2)), label="perfect")
    for at, item in enumerate(plot.bins):
        below.bar(
            [item.low],
            [item.count],
            width=item.high - item.low,
            align="edge",
            color=_hue(6),
            edgecolor=_PANEL,
        )[0].set_gid(f"count-{at}")
        if item.mean_score is None or item.share_right is None:
            continue
        under = item.share_right > item.mean_score
        name = "under-confident" if under else "over-confident"
        axes.bar(
            [item.low], [item.share_right - item.mean_score], bottom=item.mean_score, width=item.high - item.low, align="edge",
            color=_hue(0 if under else 1), alpha=0.22, edgecolor=_hue(0 if under else 1),  linewidth=0, label=name,
        )[0].set_gid(f"gap-{at}")  # fmt: skip
        if item.share_low is not None and item.share_high is not None:
            axes.vlines([item.mean_score], item.share_low, item.share_high, color=_INK, linewidth=1.2)
        axes.plot([item.mean_score], [item.share_right], color=_INK, marker="o", markersize=5.5, clip_on=False, gid=f"s0-{at}")  # fmt: skip
    if not full:
        _say_nothing(axes)
    axes.set_xlim(min(0.0, *(item.low for item in plot.bins)), max(1.0, *(item.high for item in plot.bins)))
    axes.set_ylim(0, 1)
    _name_axes(axes, "", plot.y_label)
    _name_axes(below, plot.x_label, "Items")
    below.grid(False, axis="x")
    below.locator_params(axis="y", nbins=2)
    return 360


def _heat(plot: Heat, figure: Figure) -> float:
    from matplotlib.patches import Rectangle

    axes = figure.add_subplot()
    left = min(28, max(_cells(_shown(name)) for name in plot.y_names)) * SMALL * _LETTER
    width = (WIDTH - left - 40) / len(plot.x_names)
    write = alike((value for values in plot.values for value in values), 3 if width > 36 else 2)
    size = max(6.5, min(FONT, width / (5 * _LETTER)))
    for row, values in enumerate(plot.values):
        for column, value in enumerate(values):
            hue, strength = _tint(plot, value)
            axes.add_patch(
                Rectangle(
                    (column - 0.5, row - 0.5),
                    1,
                    1,
                    facecolor=_hue(hue),
                    alpha=strength,
                    edgecolor=_PANEL,
                    linewidth=1,
                    gid=f"s{row}-{column}",
                )
            )
            count = None if plot.counts is None else plot.counts[row][column]
            text = "–" if value is None else write(value)
            axes.text(
                column,
                row - (0.12 if count is not None else 0),
                text,
                ha="center",
                va="center",
                fontsize=size,
            )
            if count is not None:
                axes.text(column, row + 0.25, f"n={count:,}", ha="center", va="center", fontsize=size * 0.8)
    axes.set_xlim(-0.5, len(plot.x_names) - 0.5)
    axes.set_ylim(len(plot.y_names) - 0.5, -0.5)
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_yticks(range(len(plot.y_names)), [_cut(_shown(name), 28) for name in plot.y_names])
    more = _names_below(axes, plot.x_names, width * len(plot.x_names))
    _name_axes(axes, plot.x_label, plot.y_label)
    return len(plot.y_names) * (28 if plot.counts is None else 38) + 60 + more


def _tint(plot: Heat, value: float | None) -> tuple[int, float]:
    """The hue and the strength of a cell's tint; text on the strongest is still legible."""
    if value is None:
        return 0, 0.0
    known = [cell for row in plot.values for cell in row if cell is not None]
    low, high = plot.value_range or (min(known), max(known))
    if plot.centre is not None:
        reach = max(abs(low - plot.centre), abs(high - plot.centre)) or 1.0
        share = min(1.0, abs(value - plot.centre) / reach)
        return (0 if value >= plot.centre else 1), TINTS[1] * share
    share = min(1.0, max(0.0, (value - low) / ((high - low) or 1.0)))
    return 0, TINTS[0] + (TINTS[1] - TINTS[0]) * share


def _histogram(plot: Histogram, figure: Figure) -> float:
    axes = figure.add_subplot()
    for k, series in enumerate(plot.series):
        axes.stairs(series.counts, series.edges, color=_hue(k), fill=True, alpha=0.14, linewidth=0)
        axes.stairs(
            series.counts, series.edges, color=_hue(k), linewidth=1.7, linestyle=_dashes(k),
            label=_legend_name(series.name), gid=f"s{k}",
        )  # fmt: skip
    axes.set_ylim(0, None if any(count for series in plot.series for count in series.counts) else 1)
    axes.margins(x=0)
    _name_axes(axes, plot.x_label, plot.y_label)
    return 225


def _legend(figure: Figure) -> float:
    """Put the legend above the plot; the height that it needs."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name.removeprefix(_VISIBLE), handle)
    names = list(entries)
    if not any(names):
        return 0
    room = max(max(map(_cells, name.split("\n"))) for name in names) * SMALL * _LETTER + 46
    columns = max(1, min(len(names), int(WIDTH // room)))
    legend = figure.legend(
        list(entries.values()),
        names,
        loc="outside upper left",
        ncols=columns,
        handlelength=2.6,
        borderpad=0,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)
    rows = math.ceil(len(names) / columns)
    return 8 + rows * max(name.count("\n") + 1 for name in names) * SMALL * 1.5


_VISIBLE = "\u200b"
"""Before each name in a legend: matplotlib leaves out one that begins with an underscore."""


def _legend_name(name: str) -> str:
    return _VISIBLE + "\n".join(_wrapped(_shown(name), 46)) if name.strip() else ""


def _name_axes(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel("\n".join(_wrapped(_shown(x_label), 46)))
    axes.set_ylabel("\n".join(_wrapped(_shown(y_label), 30)))


def _names_below(axes: Axes, names: Sequence[str], room: float) -> float:
    """Names at even distances under an axis, level where they fit, else aslant; the height that they need for that."""
    shown = [_cut(_shown(name), 28) for name in names]
    length = max(map(_cells, shown)) * SMALL * _LETTER
    if length <= room / len(shown):
        axes.set_xticks(range(len(shown)), shown)
        return 0
    axes.set_xticks(range(len(shown)), shown, rotation=35, ha="right", rotation_mode="anchor")
    return length * math.sin(math.radians(35))


def _say_nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "No value is known", transform=axes.transAxes, ha="center", va="center", color=_MUTED)


def _hue(at: int) -> str:
    return _HUES[at % len(_HUES)]


def _dashes(at: int) -> tuple[float, tuple[float, ...]] | str:
    """The dashes of a series; they and the colours come round at different places."""
    dashes = _DASHES[(at + at // len(_DASHES)) % len(_DASHES)]
    return (0, dashes) if dashes else "-"


def _floats(values: Sequence[float | None]) -> list[float]:
    """With NaN for what is not known: matplotlib leaves a gap there."""
    return [math.nan if value is None else float(value) for value in values]


def _shown(text: str) -> str:
    """A text as one line that XML can hold."""
    return re.sub("[\ufffe\uffff]", "\ufffd", one_line(text))


def _cells(text: str) -> int:
    """The width of a text in letters; a Chinese character has the width of two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _cut(text: str, room: int) -> str:
    """A text of at most so many cells, with an ellipsis where there is more."""
    if _cells(text) <= room:
        return text
    while text and _cells(text) > room - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def _wrapped(text: str, room: int, most: int = 3) -> list[str]:
    """A text in lines of at most so many cells, with an ellipsis at the end of the last line where there is more."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if _cells(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > most:
        lines[most - 1 :] = [" ".join(lines[most - 1 :])]
    return [_cut(line, room) for line in lines if line]


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
