"""Plots as plain records of names and numbers, with what they show in words and as a table.

A missing number is None: it is left out of the picture, never drawn as 0, and shown as a dash in the table. `stepmark.show.pictures` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from stepmark.errors import InputError
from stepmark.show.tables import ABSENT, Table


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
        where = f"series {self.name!r}"
        for field, values in (("x", self.x), ("y", self.y), ("low", self.low), ("high", self.high)):
            if values and len(values) != len(self.y):
                raise InputError(
                    f"expected one value for each of {len(self.y)} y values, found {len(values)}",
                    where=where,
                    field=field,
                )
            for value in values or ():
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(
                        f"expected a finite number, found {value!r}; what is not known is None",
                        where=where,
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
    diagonal: bool = False
    """Draw the line x = y."""
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
    """One bin of a reliability diagram: the scores in [`low`, `high`)."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """A table of cells, each tinted by its value and with the value written in it."""

    title: str
    x_label: str
    y_label: str
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    """One row for each of `y_names`, from the top down; None: not known."""
    counts: tuple[tuple[int, ...], ...] | None = None
    """How many items each value is made from; written under it."""
    value_range: tuple[float, float] | None = None
    """The values of the faintest and the strongest tint; None: those of the lowest and the highest value."""
    note: str = ""


Plot = Lines | Bars | Reliability | Heat

_MOST = 6
"""Series that a sentence names one by one."""


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


def alike(values: Iterable[float | None], decimals: int = 3) -> Callable[[float], str]:
    """How to write numbers that stand together in a picture: all with as many decimals, and no more than they need.

    Args:
        values: that stand together.
        decimals: no more than these, for where there is little room.
    """
    known = [value for value in values if value is not None]
    most = max(map(abs, known), default=0.0)
    if most >= 1e6 or 0 < most < 0.01:
        return short
    digits = 0 if most >= 1000 else 1 if most >= 10 else 2 if most > 1 else 3
    digits = min(digits, decimals)
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
    """One sentence: what the picture is, and the range of each of its first series."""
    match plot:
        case Lines():
            kind = f"Lines of {plot.y_label} over {plot.x_label}"
            parts = [_line_words(series) for series in plot.series]
            parts += [f"{mark.name} at {exact(mark.x)}" for mark in plot.marks]
        case Bars():
            kind = f"Bars of {plot.y_label} for {_several(len(plot.labels), 'label')}"
            parts = [_line_words(series) for series in plot.series]
        case Reliability():
            kind = f"Reliability diagram: {plot.y_label} over {plot.x_label}"
            parts = [f"{sum(one.count for one in plot.bins):,} items in {_several(len(plot.bins), 'bin')}"]
        case Heat():
            kind = f"Table of tinted cells, {plot.y_label} by {plot.x_label}"
            parts = [_range([value for row in plot.values for value in row])]
        case _:
            assert_never(plot)
    more = "" if len(parts) <= _MOST else f"; and {len(parts) - _MOST} more"
    return f"{plot.title}. {kind}: {'; '.join(parts[:_MOST])}{more}."


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
                    f"{exact(one.low)} to {exact(one.high)}",
                    f"{one.count:,}",
                    ABSENT if one.mean_score is None else exact(one.mean_score),
                    ABSENT
                    if one.share_right is None
                    else span(one.share_right, one.share_low, one.share_high),
                )
                for one in plot.bins
            )
            return Table(title=title, columns=("Bin", "Items", plot.x_label, plot.y_label), rows=rows_)
        case Heat():
            return Table(title=title, columns=(plot.y_label, *plot.x_names), rows=tuple(_heat_rows(plot)))
        case _:
            assert_never(plot)


def _several(count: int, name: str) -> str:
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def _place(x: float | str) -> str:
    return x if isinstance(x, str) else exact(x)


def _range(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no value is known"
    return f"from {exact(min(known))} to {exact(max(known))}"


def _line_words(series: Series) -> str:
    parts = exact(series.y[0]) if len(series.y) == 1 and series.y[0] is not None else _range(series.y)
    return f"{series.name} {parts}" if series.name else parts


def _cells(series: Series) -> list[str]:
    none = (None,) * len(series.y)
    return [
        ABSENT if value is None else span(value, low, high)
        for value, low, high in zip(series.y, series.low or none, series.high or none, strict=True)
    ]


def _side_by_side(name: str, places: Iterable[str], series: tuple[Series, ...], y_label: str) -> Table:
    columns = [_cells(one) for one in series]
    return Table(
        title="",
        columns=(name, *(one.name or y_label for one in series)),
        rows=tuple((place, *cells) for place, *cells in zip(places, *columns, strict=True)),
        note="" if len(series) == 1 and not series[0].name else f"{y_label}.",
    )


def _heat_rows(plot: Heat) -> Iterable[tuple[str, ...]]:
    for at, (name, values) in enumerate(zip(plot.y_names, plot.values, strict=True)):
        cells = [ABSENT if value is None else exact(value) for value in values]
        if plot.counts is not None:
            cells = [f"{cell} (n = {count:,})" for cell, count in zip(cells, plot.counts[at], strict=True)]
        yield (name, *cells)
