"""How bars are drawn: groups of them, each with its number and its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepmark.show.plot_words import alike, span
from stepmark.show.plots import Bars
from stepmark.show.sketch import SMALL, Sketch, cells, cut, ends_of, hatch, hue_of, name_axes, shown
from stepmark.show.vector import role

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes


def draw_bars(plot: Bars, sketch: Sketch) -> None:
    """Draw them on a sketch that is still empty."""
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
