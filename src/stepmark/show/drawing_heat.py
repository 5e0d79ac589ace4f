"""How a table of numbers is drawn as tinted cells."""

from __future__ import annotations

from stepmark.show.plot_words import alike, span
from stepmark.show.plots import Heat
from stepmark.show.sketch import (
    FONT,
    LETTER,
    SMALL,
    WIDTH,
    Sketch,
    cells,
    cut,
    hue_of,
    name_axes,
    names_below,
    shown,
)
from stepmark.show.vector import role

TINTS = (0.06, 0.5)
"""The opacity of the faintest and of the strongest cell of a `Heat`."""


def draw_heat(plot: Heat, sketch: Sketch) -> None:
    """Draw it on a sketch that is still empty."""
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
