"""How what is counted in bins is drawn: scores against shares that are right, and plain histograms."""

from __future__ import annotations

from stepmark.show.plot_words import exact, span
from stepmark.show.plots import Bin, Histogram, Reliability
from stepmark.show.sketch import Sketch, dash, floats, hue_of, name_axes, say_nothing
from stepmark.show.vector import role


def draw_reliability(plot: Reliability, sketch: Sketch) -> None:
    """Draw it on a sketch that is still empty."""
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


def draw_histogram(plot: Histogram, sketch: Sketch) -> None:
    """Draw it on a sketch that is still empty."""
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
