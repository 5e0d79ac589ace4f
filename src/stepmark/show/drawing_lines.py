"""How lines are drawn: their marks and intervals, and an x axis of numbers, of powers or of names."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from stepmark.show.plot_words import exact, places_of, short, span
from stepmark.show.plots import Lines
from stepmark.show.sketch import (
    LETTER,
    MARKED,
    MARKERS,
    SMALL,
    WIDTH,
    Sketch,
    cells,
    cut,
    dash,
    ends_of,
    floats,
    hue_of,
    name_axes,
    names_below,
    say_nothing,
    shown,
)
from stepmark.show.vector import role

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_lines(plot: Lines, sketch: Sketch) -> None:
    """Draw them on a sketch that is still empty."""
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
