"""How each plot is drawn, by matplotlib."""

from __future__ import annotations

import io
import math
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, assert_never

from stepmark.errors import MissingExtraError
from stepmark.show.plot_words import alike, exact, places_of, short, span, words
from stepmark.show.plots import Bars, Bin, Heat, Histogram, Lines, Plot, Reliability
from stepmark.show.sketch import (
    FONT,
    LETTER,
    MARKED,
    MARKERS,
    SMALL,
    STYLE,
    WIDTH,
    Sketch,
    cells,
    cut,
    dash,
    ends_of,
    floats,
    hatch,
    hue_of,
    name_axes,
    names_below,
    say_nothing,
    shown,
)
from stepmark.show.vector import cleaned, role

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes


def drawn(plot: Plot) -> str:
    """See `stepmark.show.plots.svg`."""
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
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(WIDTH / 72, 250 / 72), layout="constrained")
        sketch = Sketch(figure=figure)
        match plot:
            case Lines():
                _lines(plot, sketch)
            case Bars():
                _bars(plot, sketch)
            case Reliability():
                _reliability(plot, sketch)
            case Heat():
                _heat(plot, sketch)
            case Histogram():
                _histogram(plot, sketch)
            case _:
                assert_never(plot)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return cleaned(file.getvalue(), sentence=shown(words(plot)), hovers=sketch.hovers)


def _lines(plot: Lines, sketch: Sketch) -> None:
    from matplotlib.lines import Line2D

    axes = sketch.figure.add_subplot()
    names = list(dict.fromkeys(x for series in plot.series for x in series.x if isinstance(x, str)))
    places = {name: at for at, name in enumerate(names)}
    for at, series in enumerate(plot.series):
        hue = hue_of(at)
        aside = (at - (len(plot.series) - 1) / 2) * 0.12 if names else 0.0
        xs = [places[x] + aside if isinstance(x, str) else float(x) for x in series.x]
        ys = floats(series.y)
        low, high = (floats([ends[end] for ends in ends_of(series)]) for end in (0, 1))
        marker = MARKERS[at % len(MARKERS)]
        axes.plot(xs, ys, color=hue, linestyle=dash(at), linewidth=1.8)
        if series.low is not None and names:
            axes.vlines(xs, low, high, color=hue, linewidth=1.2)
        elif series.low is not None:
            axes.fill_between(xs, low, high, color=hue, alpha=0.16, linewidth=0)
        for k, (x, y, ends) in enumerate(zip(places_of(series), series.y, ends_of(series), strict=True)):
            alone = all(series.y[n] is None for n in (k - 1, k + 1) if 0 <= n < len(series.y))
            if y is None or (len(xs) > MARKED and not alone):
                continue
            (point,) = axes.plot([xs[k]], [y], color=hue, marker=marker, markersize=5, clip_on=False)
            place = x if isinstance(x, str) else f"{plot.x_label} {exact(x)}"
            said = f"{place}: {plot.y_label} {span(y, *ends)}"
            sketch.hover(point, f"{series.name}, {said}" if series.name else said)
        marked = marker if len(xs) <= MARKED else ""
        sketch.entry(
            Line2D([], [], color=hue, linestyle=dash(at), linewidth=1.8, marker=marked, markersize=5),
            series.name,
        )
    name_axes(axes, plot.x_label, plot.y_label)
    if plot.y_range is not None:
        axes.set_ylim(*plot.y_range)
    below = _x_axis(axes, plot, names)
    for mark in plot.marks:
        axes.axvline(mark.x, color=role("ink"), linewidth=1.2, linestyle=(0, (4, 2)))
        # On the side where there is more room.
        left, right = axes.get_xlim()
        late = mark.x > (left + right) / 2
        axes.annotate(
            cut(shown(mark.name), 24),
            (mark.x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if late else 4, -3),
            textcoords="offset points",
            ha="right" if late else "left",
            va="top",
            fontsize=SMALL,
            color=role("ink"),
        )
    if not any(y is not None for series in plot.series for y in series.y):
        say_nothing(axes)
    if plot.diagonal:
        (low_x, high_x), (low_y, high_y) = axes.get_xlim(), axes.get_ylim()
        ends = max(low_x, low_y), min(high_x, high_y)
        axes.plot(ends, ends, color=role("muted"), linewidth=1, linestyle=(0, (2, 2)))
        axes.set_xlim(low_x, high_x)
        axes.set_ylim(low_y, high_y)
    sketch.tall(255 + below)
    sketch.legend()


def _x_axis(axes: Axes, plot: Lines, names: list[str]) -> float:
    """Ticks of the x axis, and the height that they take beyond the usual one."""
    from matplotlib.ticker import NullLocator

    if names:
        axes.set_xlim(-0.5, len(names) - 0.5)
        return names_below(axes, names, WIDTH - 60)
    values = sorted({float(x) for series in plot.series for x in series.x})
    if plot.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if plot.log_x or len(values) <= 7:
        ticks = values[:: math.ceil(len(values) / 9)] if values else []
        if plot.log_x and _crowded(ticks):
            ticks = _round_ticks(values[0], values[-1])
        axes.set_xticks(ticks, [short(tick) for tick in ticks])
    return 0


def _crowded(ticks: list[float]) -> bool:
    """Whether two labels on a logarithmic axis would touch."""
    if len(ticks) < 2:
        return False
    unit = (WIDTH - 70) / math.log(ticks[-1] / ticks[0])
    return any(
        unit * math.log(after / before)
        < (cells(short(before)) + cells(short(after))) / 2 * SMALL * LETTER + 3
        for before, after in pairwise(ticks)
    )


def _round_ticks(low: float, high: float) -> list[float]:
    """As many round numbers between two as have room; the two themselves where there are less than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1, 2, 5), (1, 3), (1,)):
        found = [
            lead * 10.0**power for power in powers for lead in leads if low <= lead * 10.0**power <= high
        ]
        if len(found) > 1 and not _crowded(found):
            return found
    return [low, high]


def _bars(plot: Bars, sketch: Sketch) -> None:
    from matplotlib.patches import Patch

    axes = sketch.figure.add_subplot()
    labels = [shown(label) for label in plot.labels]
    above = max(map(cells, labels), default=0) > 16
    """Long labels stand over their bars and take no width from them."""
    group = len(plot.series) * 15 + (20 if above else 9)
    known = [
        value
        for series in plot.series
        for values in (series.y, series.low or (), series.high or ())
        for value in values
        if value is not None
    ]
    least, most = min([0.0, *known]), max([0.0, *known])
    wide = (most - least) or 1.0
    write = alike(value for series in plot.series for value in series.y)
    for at, label in enumerate(labels):
        top = at * group
        if above:
            axes.annotate(
                cut(label, 52),
                (0, top + 9),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
            )
        for k in range(len(plot.series)):
            middle = top + (17 if above else 4) + k * 15 + 7.5
            _bar(plot, sketch, axes, k, at, middle, wide, write)
    for k, series in enumerate(plot.series):
        sketch.entry(
            Patch(facecolor=hue_of(k), edgecolor=role("panel"), hatch=hatch(k), linewidth=0), series.name
        )
    axes.set_ylim(max(1, len(labels)) * group, 0)
    axes.set_xlim(
        least - (0.16 * wide if least < 0 else 0), most + (0.16 * wide if most > 0 or least == 0 else 0)
    )
    if above:
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    else:
        centres = [at * group + 4 + len(plot.series) * 7.5 for at in range(len(labels))]
        axes.set_yticks(centres, labels, color=role("ink"))
    axes.grid(False, axis="y")
    if plot.zero_line or least < 0 or above:
        axes.axvline(0, color=role("ink"), linewidth=1)
    name_axes(axes, plot.y_label, plot.x_label)
    sketch.tall(max(1, len(labels)) * group + 50)
    sketch.legend()


def _bar(
    plot: Bars,
    sketch: Sketch,
    axes: Axes,
    k: int,
    at: int,
    middle: float,
    wide: float,
    write: Callable[[float], str],
) -> None:
    value, (low, high) = plot.series[k].y[at], list(ends_of(plot.series[k]))[at]
    if value is None:
        axes.text(wide * 0.01, middle, "not known", va="center", fontsize=SMALL - 1, color=role("muted"))
        return
    (bar,) = axes.barh(
        [middle], [value], height=12, color=hue_of(k), edgecolor=role("panel"), hatch=hatch(k), linewidth=0
    )
    name = f"{plot.series[k].name}, " if plot.series[k].name else ""
    sketch.hover(bar, f"{name}{plot.labels[at]}: {plot.y_label} {span(value, low, high)}")
    if low is not None and high is not None:
        axes.plot([low, high], [middle] * 2, color=role("ink"), linewidth=1.2, marker="|", markersize=5)
    if value < 0:
        end = value if low is None else min(value, low)
        axes.text(end - wide * 0.015, middle, write(value), va="center", ha="right", fontsize=SMALL - 0.5)
    else:
        end = value if high is None else max(value, high)
        axes.text(end + wide * 0.015, middle, write(value), va="center", fontsize=SMALL - 0.5)


def _reliability(plot: Reliability, sketch: Sketch) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes, below = sketch.figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    low = min(0.0, *(one.low for one in plot.bins))
    high = max(1.0, *(one.high for one in plot.bins))
    axes.plot([0, 1], [0, 1], color=role("muted"), linewidth=1, linestyle=(0, (2, 2)))
    sorts = {"over-confident": (1, "////"), "under-confident": (0, "\\\\\\\\")}
    for one in plot.bins:
        wide = one.high - one.low
        column = below.bar(
            [one.low], [one.count], width=wide, align="edge", color=hue_of(6), edgecolor=role("panel")
        )
        sketch.hover(column[0], _bin_words(one))
        if one.mean_score is None or one.share_right is None:
            continue
        hue, hatch = sorts["under-confident" if one.share_right > one.mean_score else "over-confident"]
        gap = one.share_right - one.mean_score
        axes.bar([one.low], [gap], bottom=one.mean_score, width=wide, align="edge", color=hue_of(hue), alpha=0.22,
                 edgecolor=hue_of(hue), hatch=hatch, linewidth=0)  # fmt: skip
        if one.share_low is not None and one.share_high is not None:
            axes.vlines([one.mean_score], one.share_low, one.share_high, color=role("ink"), linewidth=1.2)
    full = [one for one in plot.bins if one.mean_score is not None]
    axes.plot(
        floats([one.mean_score for one in full]),
        floats([one.share_right for one in full]),
        color=role("ink"),
        linewidth=1.2,
    )
    for one in full:
        point = axes.plot(
            [one.mean_score], [one.share_right], color=role("ink"), marker="o", markersize=5.5, clip_on=False
        )
        sketch.hover(point[0], _bin_words(one))
    if not full:
        say_nothing(axes)
    axes.set_xlim(low, high)
    axes.set_ylim(0, 1)
    name_axes(axes, "", plot.y_label)
    name_axes(below, plot.x_label, "Items")
    below.grid(False, axis="x")
    below.locator_params(axis="y", nbins=2)
    sketch.entry(Line2D([], [], color=role("ink"), linewidth=1.2, marker="o", markersize=5.5), "observed")
    sketch.entry(Line2D([], [], color=role("muted"), linewidth=1, linestyle=(0, (2, 2))), "perfect")
    for name, (hue, hatch) in sorts.items():
        patch = Patch(facecolor=hue_of(hue), edgecolor=hue_of(hue), hatch=hatch, alpha=0.22, linewidth=0)
        sketch.entry(patch, name)
    sketch.tall(360)
    sketch.legend()


def _bin_words(one: Bin) -> str:
    scores = f"scores {exact(one.low)} to {exact(one.high)}: {one.count:,} items"
    if one.mean_score is None or one.share_right is None:
        return scores
    share = span(one.share_right, one.share_low, one.share_high)
    return f"{scores}, mean score {exact(one.mean_score)}, share right {share}"


def _heat(plot: Heat, sketch: Sketch) -> None:
    from matplotlib.patches import Rectangle

    axes = sketch.figure.add_subplot()
    left = min(28, max(cells(shown(name)) for name in plot.y_names)) * SMALL * LETTER
    wide = (WIDTH - left - 40) / len(plot.x_names)
    write = alike((value for values in plot.values for value in values), 3 if wide > 36 else 2)
    size = max(6.5, min(FONT, wide / (5 * LETTER)))
    for row, values in enumerate(plot.values):
        for column, value in enumerate(values):
            hue, strength = _tint(plot, value)
            cell = Rectangle(
                (column - 0.5, row - 0.5), 1, 1, facecolor=hue_of(hue), alpha=strength, linewidth=0
            )
            if value is None:
                cell = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="none", linewidth=0)
            axes.add_patch(cell)
            count = None if plot.counts is None else plot.counts[row][column]
            said = f"{plot.y_names[row]}, {plot.x_names[column]}: {span(value, None, None)}"
            sketch.hover(cell, said if count is None else f"{said} (n = {count:,})")
            up = 0.0 if count is None else -0.12
            text = "–" if value is None else write(value)
            axes.text(column, row + up, text, ha="center", va="center", fontsize=size)
            if count is not None:
                axes.text(column, row + 0.25, f"n={count:,}", ha="center", va="center", fontsize=size * 0.8)
    axes.set_xlim(-0.5, len(plot.x_names) - 0.5)
    axes.set_ylim(len(plot.y_names) - 0.5, -0.5)
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.vlines(
        [at + 0.5 for at in range(len(plot.x_names) - 1)], -0.5, len(plot.y_names) - 0.5, color=role("panel")
    )
    axes.hlines(
        [at + 0.5 for at in range(len(plot.y_names) - 1)], -0.5, len(plot.x_names) - 0.5, color=role("panel")
    )
    names = [cut(shown(name), 28) for name in plot.y_names]
    axes.set_yticks(range(len(names)), names)
    below = names_below(axes, plot.x_names, wide * len(plot.x_names))
    name_axes(axes, plot.x_label, plot.y_label)
    sketch.tall(len(plot.y_names) * (28 if plot.counts is None else 38) + 60 + below)


def _tint(plot: Heat, value: float | None) -> tuple[int, float]:
    """The hue and the strength of a cell's tint; text on the strongest is still legible."""
    known = [one for row in plot.values for one in row if one is not None]
    if value is None:
        return 0, 0.0
    low, high = plot.value_range or (min(known), max(known))
    if plot.centre is not None:
        reach = max(abs(low - plot.centre), abs(high - plot.centre)) or 1.0
        share = min(1.0, abs(value - plot.centre) / reach)
        return (0 if value >= plot.centre else 1), TINTS[1] * share
    share = min(1.0, max(0.0, (value - low) / ((high - low) or 1.0)))
    return 0, TINTS[0] + (TINTS[1] - TINTS[0]) * share


TINTS = (0.06, 0.5)
"""The opacity of the faintest and of the strongest cell of a `Heat`."""


def _histogram(plot: Histogram, sketch: Sketch) -> None:
    from matplotlib.lines import Line2D

    axes = sketch.figure.add_subplot()
    for at, series in enumerate(plot.series):
        hue = hue_of(at)
        axes.stairs(series.counts, series.edges, color=hue, fill=True, alpha=0.14, linewidth=0)
        axes.stairs(series.counts, series.edges, color=hue, linewidth=1.7, linestyle=dash(at))
        for count, low, high in zip(series.counts, series.edges, series.edges[1:], strict=False):
            (bar,) = axes.bar([low], [count], width=high - low, align="edge", facecolor="none", linewidth=0)
            said = f"{exact(low)} to {exact(high)}: {count:,}"
            sketch.hover(bar, f"{series.name}, {said}" if series.name else said)
        sketch.entry(Line2D([], [], color=hue, linestyle=dash(at), linewidth=1.7), series.name)
    axes.set_ylim(bottom=0)
    if not any(count for series in plot.series for count in series.counts):
        axes.set_ylim(0, 1)
    axes.margins(x=0)
    name_axes(axes, plot.x_label, plot.y_label)
    sketch.tall(225)
    sketch.legend()
