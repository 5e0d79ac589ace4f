"""What every plot is drawn with: sizes, colours and signs, the legend, the words under the pointer.

Lengths are in units of the picture, which is `WIDTH` units wide whatever its place: at 340 pixels letters of 11
units are 10 pixels high. Nothing is read from a style file of the user's.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from stepmark.show.plots import Series
from stepmark.show.text import one_line
from stepmark.show.vector import SERIES, role

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 380
FONT = 12.0
SMALL = 11.0
MARKERS = "osD^vPX"
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1), (9, 2), (1, 3))
MARKED = 40
"""A line of more points has no markers."""
LETTER = 0.62
"""A letter's width in font sizes, on the generous side."""


STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stepmark",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.unicode_minus": False,  # as in the numbers that we write
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "text.color": role("ink"),
    "axes.labelcolor": role("ink"),
    "axes.labelsize": FONT,
    "axes.edgecolor": role("muted"),
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": role("line"),
    "grid.linewidth": 0.8,
    "xtick.color": role("muted"),
    "ytick.color": role("muted"),
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.05,
}


@dataclass(kw_only=True, slots=True)
class Sketch:
    """A figure that is being drawn, with its legend and what it says under the pointer."""

    figure: Figure
    hovers: dict[str, str] = field(default_factory=dict)
    """By the id of an element, what it says under the pointer."""
    handles: list[Artist] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def tall(self, units: float) -> None:
        """Set the height, without that of the legend; call it after the last `entry`."""
        self.figure.set_size_inches(WIDTH / 72, (units + self._legend_height()) / 72)

    def hover(self, artist: Artist, says: str) -> None:
        """Let an artist say something under the pointer."""
        name = f"hover{len(self.hovers)}"
        artist.set_gid(name)
        self.hovers[name] = shown(says)

    def entry(self, handle: Artist, name: str) -> None:
        """One more line of the legend."""
        self.handles.append(handle)
        self.names.append("\n".join(wrapped(shown(name), 46)))

    def legend(self) -> None:
        """Above the plot, in as many columns as fit."""
        if not any(self.names):
            return
        legend = self.figure.legend(
            self.handles,
            [str(at) for at in range(len(self.names))],
            loc="outside upper left",
            ncols=self._columns(),
            fontsize=SMALL,
            handlelength=2.6,
            columnspacing=1.4,
            borderpad=0,
            labelspacing=0.35,
        )
        # Set afterwards: matplotlib leaves out a label that begins with an underscore.
        for text, name in zip(legend.get_texts(), self.names, strict=True):
            text.set_text(name)

    def _columns(self) -> int:
        """As many as fit; matplotlib fills them one after the other, the first ones with one more."""
        widths = [
            max(cells(line) for line in [*name.split("\n"), ""]) * SMALL * LETTER + 42 for name in self.names
        ]
        for columns in range(len(widths), 1, -1):
            least, more = divmod(len(widths), columns)
            ends = [at * least + min(at, more) for at in range(columns + 1)]
            if sum(max(widths[first:end]) for first, end in pairwise(ends)) <= WIDTH - 10:
                return columns
        return 1

    def _legend_height(self) -> float:
        if not any(self.names):
            return 0
        rows = math.ceil(len(self.names) / self._columns())
        return 8 + rows * max(name.count("\n") + 1 for name in self.names) * SMALL * 1.5


def shown(text: str) -> str:
    """A text as one line that XML can hold."""
    return re.sub("[\ufffe\uffff]", "\ufffd", one_line(text))


def cells(text: str) -> int:
    """How wide a text is, in letters: a Chinese sign is as wide as two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def cut(text: str, room: int) -> str:
    """A text of at most so many cells; an ellipsis says that there is more."""
    if cells(text) <= room:
        return text
    while text and cells(text) > room - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def wrapped(text: str, room: int, most: int = 3) -> list[str]:
    """A text in lines of at most so many cells; an ellipsis ends the last line where there is more."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if cells(longer) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > most:
        lines[most - 1 :] = [" ".join(lines[most - 1 :])]
    return [cut(line, room) for line in lines if line]


def hue_of(at: int) -> str:
    """The colour of the series at this place."""
    return role(f"plot-{at % len(SERIES['light'])}")


def hatch(at: int) -> str:
    """The hatching of bars of the series at this place: a sign besides the colour."""
    return ("", "////", "\\\\\\\\", "xxx", "---", "|||", "+++")[at % 7]


def dash(at: int) -> tuple[float, tuple[float, ...]] | str:
    """The dashes of the series at this place; they and the colours come round at different places."""
    dashes = _DASHES[(at + at // len(_DASHES)) % len(_DASHES)]
    return (0, dashes) if dashes else "-"


def name_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Write what the axes are."""
    axes.set_xlabel("\n".join(wrapped(shown(x_label), 46)))
    axes.set_ylabel("\n".join(wrapped(shown(y_label), 30)))


def say_nothing(axes: Axes) -> None:
    """For a plot all of whose values are None."""
    axes.text(
        0.5, 0.5, "No value is known", transform=axes.transAxes, ha="center", va="center", color=role("muted")
    )


def floats(values: Sequence[float | None]) -> list[float]:
    """With NaN for what is not known: matplotlib leaves a gap there."""
    return [math.nan if value is None else float(value) for value in values]


def ends_of(series: Series) -> Iterator[tuple[float | None, float | None]]:
    """The interval of each value."""
    none = (None,) * len(series.y)
    return zip(series.low or none, series.high or none, strict=True)


def names_below(axes: Axes, names: Sequence[str], room: float) -> float:
    """Names of even distance under an axis, level where they fit, else aslant; the height that they take for that."""
    said = [cut(shown(name), 28) for name in names]
    fits = max(map(cells, said)) * SMALL * LETTER <= room / len(said)
    axes.set_xticks(range(len(said)))
    if fits:
        axes.set_xticklabels(said)
        return 0
    axes.set_xticklabels(said, rotation=35, ha="right", rotation_mode="anchor")
    return max(map(cells, said)) * SMALL * LETTER * math.sin(math.radians(35))
