"""Plots as plain records of names and numbers, with what they show in words and as a table, drawn with matplotlib.

A missing number is None: it is left out of the picture, never drawn as 0, and shown as a dash in the table. Each plot is drawn as two
SVG images, one for light pages and one for dark ones. A page holds the files as images, so that their ids, styles and texts cannot
meet those of the page. Equal plots give equal text.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, assert_never

from stepmark.errors import InputError, MissingExtraError
from stepmark.report import colour
from stepmark.report.html import template
from stepmark.report.tables import ABSENT, Table
from stepmark.words import amount, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of `Lines` or one set of `Bars`."""

    name: str
    y: tuple[float | None, ...]
    """None: not known; a gap in the line, no bar."""
    x: tuple[float, ...] | tuple[str, ...] = ()
    """One a value: numbers, or names that stand at even distances. For `Bars` it is empty: their labels say it."""
    low: tuple[float | None, ...] | None = None
    """The lower ends of the intervals, one a value; None for no intervals."""
    high: tuple[float | None, ...] | None = None
    """The upper ends."""

    def __post_init__(self) -> None:
        for field, values in (("x", self.x), ("y", self.y), ("low", self.low), ("high", self.high)):
            known = [value for value in values or () if isinstance(value, float)]
            if (values and len(values) != len(self.y)) or not all(map(math.isfinite, known)):
                raise InputError(
                    f"expected {amount(len(self.y), 'finite number')}, one for each y value and None where one is not known, found {values!r:.200}",
                    where=f"series {self.name!r}",
                    field=field,
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """An upright line in `Lines`, with its name at the top."""

    x: float
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Lines over an axis of numbers or names, each with a band where it has intervals."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    """A logarithmic x axis, with ticks at the x values, or at round numbers where those would crowd; they must be positive."""
    y_range: tuple[float, float] | None = None
    marks: tuple[Mark, ...] = ()
    """Places on an axis of numbers that are pointed out."""
    note: str = ""
    """A sentence under the plot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Grouped horizontal bars with interval whiskers: a group for each label, a bar for each series in it."""

    title: str
    y_label: str
    """What the length of a bar means, with its unit."""
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    """Each with one value a label, and with no x."""
    x_label: str = ""
    """What the labels are ("category"); "" for nothing to say."""
    note: str = ""
    zero_line: bool = False
    """Draw a line at 0: for differences, which go both ways."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """One bin of a reliability diagram: the scores in (`low`, `high`], and 0 in the first."""

    low: float
    high: float
    count: int
    mean_score: float | None
    """None for an empty bin."""
    share_right: float | None
    """Of the items in the bin, how many are right, 0 to 1; None for an empty bin."""
    share_low: float | None = None
    """The interval of `share_right`; None for none."""
    share_high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """A reliability diagram: how often items of a score are right, and how many items have it."""

    title: str
    bins: tuple[Bin, ...]
    x_label: str = "Mean score in the bin"
    y_label: str = "Share that is right"
    note: str = ""


Plot = Lines | Bars | Reliability


def exact(value: float) -> str:
    """A number with up to five significant digits: the most that a figure of an evaluation is worth."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.5g}"


def short(value: float) -> str:
    """The same with three, to be written in a picture."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def alike(values: Iterable[float | None]) -> Callable[[float], str]:
    """How to write numbers that stand together in a picture: all with as many decimals, and no more than they need."""
    known = [value for value in values if value is not None]
    most = max(map(abs, known), default=0.0)
    if most >= 1e6 or 0 < most < 0.01:
        return short
    digits = 0 if most >= 1000 else 1 if most >= 10 else 2 if most > 1 else 3
    while digits and all(round(value, digits) == round(value, digits - 1) for value in known):
        digits -= 1

    def write(value: float) -> str:
        written = f"{value:,.{digits}f}"
        return written if written.strip("-0.") else written.removeprefix("-")  # no "-0.0"

    return write


def span(value: float | None, low: float | None, high: float | None) -> str:
    """A number with its interval, where there is one."""
    if value is None:
        return "not known"
    if low is None and high is None:
        return exact(value)
    return (
        f"{exact(value)} [{ABSENT if low is None else exact(low)}, {ABSENT if high is None else exact(high)}]"
    )


def words(plot: Plot) -> str:
    """What the picture is, in a sentence; its numbers stand in the table beside it."""
    if isinstance(plot, Reliability):
        return (
            f"{plot.title}. Reliability diagram of {amount(sum(item.count for item in plot.bins), 'item')}."
        )
    kind = (
        f"Lines of {plot.y_label} over {plot.x_label}"
        if isinstance(plot, Lines)
        else f"Bars of {plot.y_label} for {amount(len(plot.labels), 'label')}"
    )
    marks = plot.marks if isinstance(plot, Lines) else ()
    names = [series.name for series in plot.series if series.name]
    named = ", ".join([*names, *(f"{mark.name} at {exact(mark.x)}" for mark in marks)])
    return f"{plot.title}. {kind}{f': {named}' if named else ''}."


def numbers(plot: Plot) -> Table:
    """What the picture shows, as a table of numbers with up to five significant digits."""
    title = ""
    match plot:
        case Lines():
            axes = {series.x for series in plot.series}
            if len(axes) == 1 and len(set(plot.series[0].x)) == len(plot.series[0].x):
                return _side_by_side(
                    plot.x_label, [_place(x) for x in plot.series[0].x], plot.series, plot.y_label
                )
            rows = [
                (series.name, place, cell)
                for series in plot.series
                for place, cell in zip(map(_place, series.x), _cells(series), strict=True)
            ]
            return Table(title=title, columns=("Series", plot.x_label, plot.y_label), rows=tuple(rows))
        case Bars():
            return _side_by_side(plot.x_label, plot.labels, plot.series, plot.y_label)
        case Reliability():
            rows_ = tuple(
                (
                    f"{exact(item.low)} to {exact(item.high)}",
                    f"{item.count:,}",
                    ABSENT if item.mean_score is None else exact(item.mean_score),
                    ABSENT
                    if item.share_right is None
                    else span(item.share_right, item.share_low, item.share_high),
                )
                for item in plot.bins
            )
            return Table(title=title, columns=("Bin", "Items", plot.x_label, plot.y_label), rows=rows_)
        case _:
            assert_never(plot)


def _place(x: float | str) -> str:
    return x if isinstance(x, str) else exact(x)


def _cells(series: Series) -> list[str]:
    none = (None,) * len(series.y)
    return [
        ABSENT if value is None else span(value, low, high)
        for value, low, high in zip(series.y, series.low or none, series.high or none, strict=True)
    ]


def _side_by_side(name: str, places: Iterable[str], series: tuple[Series, ...], y_label: str) -> Table:
    columns = [_cells(sery) for sery in series]
    return Table(
        title="",
        columns=(name, *(sery.name or y_label for sery in series)),
        rows=tuple((place, *cells) for place, *cells in zip(places, *columns, strict=True)),
        note="" if len(series) == 1 and not series[0].name else f"{y_label}.",
    )


# -- Pictures ------------------------------------------------------------------------------------------------

WIDTH = 5.3
"""Of a picture, in inches; it is scaled to its place."""
_MARKED = 40
"""A line of more points has no markers."""
_MARKERS = "osD^vPX"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1)), (0, (9, 2)), (0, (1, 3)))  # fmt: skip
_HATCHES = ("", "////", "\\\\\\\\", "xxx", "---", "|||", "+++")


def picture_html(plot: Plot) -> str:
    """The picture as a `<picture>` that follows the reader's mode, with `words` as its text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    light, dark = (base64.b64encode(svg(plot, mode).encode()).decode("ascii") for mode in ("light", "dark"))
    return template("macros").picture(_clean(words(plot)), light, dark)


def svg(plot: Plot, mode: colour.Mode = "light") -> str:
    """The picture as an SVG file; the title and the note are not drawn in it.

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
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph")  # the browser has fonts of its own
        warnings.filterwarnings("ignore", message=r"(?s).*constrained_layout not applied")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_style(mode))
        figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
        match plot:
            case Lines():
                _lines(plot, figure, mode)
            case Bars():
                _bars(plot, figure, mode)
            case Reliability():
                _reliability(plot, figure, mode)
            case _:
                assert_never(plot)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    drawing = file.getvalue()
    return drawing[drawing.index("<svg") :]  # a page needs neither the XML declaration nor the DTD


def _style(mode: colour.Mode) -> dict[str, Any]:
    ink, muted, line = (colour.hexa(table[mode]) for table in (colour.INK, colour.MUTED, colour.LINE))
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "stepmark",
        "text.parse_math": False,  # a dollar in a name is a dollar
        "axes.unicode_minus": False,  # as in the numbers that we write
        "font.size": 11,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": muted,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": line,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "hatch.linewidth": 0.7,
        "legend.frameon": False,
        "legend.fontsize": 10,
    }


def _hue(at: int, mode: colour.Mode) -> str:
    return colour.hexa(colour.SERIES[mode][at % len(colour.SERIES[mode])])


def _clean(text: str) -> str:
    """A text as one line that XML can hold."""
    return re.sub("[\ufffe\uffff]", "\ufffd", one_line(text))


def _label(text: str, room: int = 46) -> str:
    """A name in at most three lines, with an ellipsis where there is more."""
    return textwrap.fill(_clean(text), room, max_lines=3, placeholder=" …")


def _floats(values: Sequence[float | None] | None) -> list[float]:
    """With NaN for what is not known: matplotlib leaves a gap there."""
    return [math.nan if value is None else float(value) for value in values or ()]


def _finish(figure: Figure, axes: Axes, x_label: str, y_label: str, height: float) -> None:
    """Name the axes, put the legend above, and make the picture as high as it needs."""
    axes.set_xlabel(_label(x_label))
    axes.set_ylabel(_label(y_label, 30))
    handles, names = axes.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    rows = 0.0
    if unique:
        longest = max(len(line) for name in unique for line in name.split("\n"))
        columns = max(1, min(len(unique), 52 // (longest + 5)))
        figure.legend(
            list(unique.values()), list(unique), loc="outside upper left", ncols=columns, borderpad=0
        )
        rows = math.ceil(len(unique) / columns) * max(name.count("\n") + 1 for name in unique)
    figure.set_size_inches(WIDTH, height + 0.23 * rows)


def _name(name: str) -> str:
    """The name of a series in the legend, in which matplotlib leaves out a label that begins with an underscore."""
    shown = _label(name)
    return f"\u200b{shown}" if shown.startswith("_") else shown


def _say_nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "No value is known", transform=axes.transAxes, ha="center", va="center")


def _lines(plot: Lines, figure: Figure, mode: colour.Mode) -> None:
    axes = figure.add_subplot()
    names = list(dict.fromkeys(x for series in plot.series for x in series.x if isinstance(x, str)))
    for k, series in enumerate(plot.series):
        hue, marker = _hue(k, mode), _MARKERS[k % len(_MARKERS)]
        aside = (k - (len(plot.series) - 1) / 2) * 0.12 if names else 0.0
        xs = [names.index(x) + aside if isinstance(x, str) else float(x) for x in series.x]
        ys, low, high = _floats(series.y), _floats(series.low), _floats(series.high)
        axes.plot(
            xs, ys, color=hue, linestyle=_DASHES[k % len(_DASHES)], marker=marker if len(xs) <= _MARKED else "",
            markersize=5, label=_name(series.name) or None, gid=f"s{k}",
        )  # fmt: skip
        if low and names:
            axes.vlines(xs, low, high, color=hue, linewidth=1.2)
        elif low:
            axes.fill_between(xs, low, high, color=hue, alpha=0.16, linewidth=0)
        for at, y in enumerate(series.y):
            alone = all(series.y[n] is None for n in (at - 1, at + 1) if 0 <= n < len(series.y))
            if y is not None and (len(xs) <= _MARKED or alone):
                axes.plot(
                    [xs[at]], [y], color=hue, marker=marker, markersize=5, clip_on=False, gid=f"s{k}-{at}"
                )
    if names:
        slanted = sum(map(len, names)) > 44
        axes.set_xticks(
            range(len(names)), [_label(name, 28) for name in names], rotation=35 if slanted else 0,
            ha="right" if slanted else "center", rotation_mode="anchor",
        )  # fmt: skip
    elif plot.log_x:
        axes.set_xscale("log")
        ticks = sorted({float(x) for series in plot.series for x in series.x if not isinstance(x, str)})
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.minorticks_off()
        if len(ticks) <= 7 and all(after >= 1.4 * before for before, after in pairwise(ticks)):
            axes.set_xticks(ticks)
    if plot.y_range is not None:
        axes.set_ylim(*plot.y_range)
    for mark in plot.marks:
        axes.axvline(mark.x, color=colour.hexa(colour.INK[mode]), linewidth=1.2, linestyle=(0, (4, 2)))
        axes.annotate(_label(mark.name, 24), (mark.x, 1), xycoords=("data", "axes fraction"), va="top")
    if all(y is None for series in plot.series for y in series.y):
        _say_nothing(axes)
    _finish(figure, axes, plot.x_label, plot.y_label, 3.4)


def _bars(plot: Bars, figure: Figure, mode: colour.Mode) -> None:
    axes = figure.add_subplot()
    many = len(plot.series)
    write = alike(value for series in plot.series for value in series.y)
    ink = colour.hexa(colour.INK[mode])
    for k, series in enumerate(plot.series):
        middles = [at + (k + 0.5) / many * 0.8 - 0.4 for at in range(len(plot.labels))]
        lows, highs = _floats(series.low or series.y), _floats(series.high or series.y)
        bars = axes.barh(
            middles, _floats(series.y), height=0.7 / many, color=_hue(k, mode), hatch=_HATCHES[k % len(_HATCHES)],
            edgecolor=colour.hexa(colour.PAGE[mode]), linewidth=0, label=_name(series.name) or None,
        )  # fmt: skip
        for at, (bar, middle, value) in enumerate(zip(bars, middles, series.y, strict=True)):
            if value is None:
                bar.remove()
                axes.text(0, middle, " not known", va="center", fontsize=9)
                continue
            bar.set_gid(f"s{k}-{at}")
            ends = [value, *(item for item in (lows[at], highs[at]) if not math.isnan(item))]
            if series.low is not None and len(ends) == 3:
                axes.plot(
                    [lows[at], highs[at]],
                    [middle] * 2,
                    color=ink,
                    linewidth=1.2,
                    marker="|",
                    gid=f"i{k}-{at}",
                )
            end, side = (min(ends), "right") if value < 0 else (max(ends), "left")
            axes.annotate(
                write(value), (end, middle), xytext=(4 if side == "left" else -4, 0), textcoords="offset points",
                va="center", ha=side, fontsize=9.5,
            )  # fmt: skip
    axes.set_yticks(range(len(plot.labels)), [_label(name, 24) for name in plot.labels])
    axes.set_ylim(max(1, len(plot.labels)) - 0.5, -0.5)
    axes.margins(x=0.14)
    axes.grid(False, axis="y")
    if plot.zero_line:
        axes.axvline(0, color=ink, linewidth=1)
    _finish(figure, axes, plot.y_label, plot.x_label, 0.7 + len(plot.labels) * (0.13 + 0.21 * many))


def _reliability(plot: Reliability, figure: Figure, mode: colour.Mode) -> None:
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    ink = colour.hexa(colour.INK[mode])
    full = [item for item in plot.bins if item.mean_score is not None and item.share_right is not None]
    axes.plot([entry.mean_score for entry in full], [entry.share_right for entry in full], color=ink, linewidth=1.2, label="observed")  # fmt: skip
    axes.plot(
        [0, 1], [0, 1], color=colour.hexa(colour.MUTED[mode]), linewidth=1, linestyle=":", label="perfect"
    )
    for at, item in enumerate(plot.bins):
        width = item.high - item.low
        below.bar([item.low], [item.count], width=width, align="edge", color=_hue(6, mode), gid=f"count-{at}")
        if item.mean_score is None or item.share_right is None:
            continue
        under = item.share_right > item.mean_score
        axes.bar(
            [item.low], [item.share_right - item.mean_score], bottom=item.mean_score, width=width, align="edge",
            color=_hue(0 if under else 1, mode), alpha=0.22, label="under-confident" if under else "over-confident",
        )[0].set_gid(f"gap-{at}")  # fmt: skip
        if item.share_low is not None and item.share_high is not None:
            axes.vlines([item.mean_score], item.share_low, item.share_high, color=ink, linewidth=1.2)
        axes.plot([item.mean_score], [item.share_right], color=ink, marker="o", clip_on=False, gid=f"s0-{at}")
    if not full:
        _say_nothing(axes)
    axes.set_xlim(min(0.0, *(item.low for item in plot.bins)), max(1.0, *(item.high for item in plot.bins)))
    axes.set_ylim(0, 1)
    below.set_xlabel(_label(plot.x_label))
    below.set_ylabel("Items")
    below.locator_params(axis="y", nbins=2)
    _finish(figure, axes, "", plot.y_label, 4.6)
