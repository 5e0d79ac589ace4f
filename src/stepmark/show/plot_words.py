"""What a plot shows, in words and as a table: for those who do not see it and for those who want the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from stepmark.show.plots import Bars, Counts, Heat, Histogram, Lines, Plot, Reliability, Series
from stepmark.show.tables import ABSENT, Table

_TOLD = 6
"""Series that a sentence tells of one by one."""


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
            told = [_line_words(series) for series in plot.series]
            told += [f"{mark.name} at {exact(mark.x)}" for mark in plot.marks]
        case Bars():
            kind = f"Bars of {plot.y_label} for {_several(len(plot.labels), 'label')}"
            told = [_line_words(series) for series in plot.series]
        case Reliability():
            kind = f"Reliability diagram: {plot.y_label} over {plot.x_label}"
            told = [f"{sum(one.count for one in plot.bins):,} items in {_several(len(plot.bins), 'bin')}"]
        case Heat():
            kind = f"Table of tinted cells, {plot.y_label} by {plot.x_label}"
            told = [_range([value for row in plot.values for value in row])]
        case Histogram():
            kind = f"Histogram of {plot.x_label}"
            told = [f"{one.name or 'all'}: {sum(one.counts):,}" for one in plot.series]
        case _:
            assert_never(plot)
    more = "" if len(told) <= _TOLD else f"; and {len(told) - _TOLD} more"
    return f"{plot.title}. {kind}: {'; '.join(told[:_TOLD])}{more}."


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
                (series.name, _place(x), cell)
                for series in plot.series
                for x, cell in zip(places_of(series), _cells(series), strict=True)
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
        case Histogram():
            return _counts(plot.x_label, plot.series)
        case _:
            assert_never(plot)


def _several(count: int, name: str) -> str:
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def places_of(series: Series) -> tuple[float | str, ...]:
    """The x of each value."""
    return series.x


def _place(x: float | str) -> str:
    return x if isinstance(x, str) else exact(x)


def _range(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no value is known"
    return f"from {exact(min(known))} to {exact(max(known))}"


def _line_words(series: Series) -> str:
    told = exact(series.y[0]) if len(series.y) == 1 and series.y[0] is not None else _range(series.y)
    return f"{series.name} {told}" if series.name else told


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


def _counts(name: str, series: tuple[Counts, ...]) -> Table:
    bins = [
        [f"{exact(low)} to {exact(high)}" for low, high in zip(one.edges, one.edges[1:], strict=False)]
        for one in series
    ]
    if len({one.edges for one in series}) == 1:
        columns = [[f"{count:,}" for count in one.counts] for one in series]
        rows = tuple((place, *cells) for place, *cells in zip(bins[0], *columns, strict=True))
        return Table(title="", columns=(name, *(one.name or "Count" for one in series)), rows=rows)
    long = tuple(
        (one.name, place, f"{count:,}")
        for one, places in zip(series, bins, strict=True)
        for place, count in zip(places, one.counts, strict=True)
    )
    return Table(title="", columns=("Series", name, "Count"), rows=long)
