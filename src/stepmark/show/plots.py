"""Plots as plain records of names and numbers, and their pictures as SVG.

A missing number is None: it is left out of the picture, never drawn as 0, and shown as a dash in its table (`stepmark.show.plot_words`). The
pictures need matplotlib (extra "evaluate"); the records do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stepmark.errors import InputError


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
        if (self.low is None) != (self.high is None):
            raise InputError("expected both ends of the intervals or neither, found one", where=where)
        for field, values in (("x", self.x), ("low", self.low), ("high", self.high)):
            if values and len(values) != len(self.y):
                raise InputError(
                    f"expected one value for each of {len(self.y)} y values, found {len(values)}",
                    where=where,
                    field=field,
                )
        if len({isinstance(value, str) for value in self.x}) > 1:
            raise InputError("expected numbers or names, found both", where=where, field="x")
        for field, values in (("x", self.x), ("y", self.y), ("low", self.low), ("high", self.high)):
            _check_finite(values or (), where, field)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """An upright line in `Lines`, with its name at the top."""

    x: float
    name: str

    def __post_init__(self) -> None:
        _check_finite((self.x,), f"mark {self.name!r}", "x")


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

    def __post_init__(self) -> None:
        if not self.series:
            raise InputError("expected at least one series, found none", where=f"plot {self.title!r}")
        for series in self.series:
            if len(series.x) != len(series.y):
                raise InputError(
                    f"expected one x for each of {len(series.y)} y values, found {len(series.x)}",
                    where=f"plot {self.title!r}, series {series.name!r}",
                    field="x",
                )
            if self.log_x and any(isinstance(x, str) or x <= 0 for x in series.x):
                raise InputError(
                    "expected positive numbers for a logarithmic axis",
                    where=f"plot {self.title!r}, series {series.name!r}",
                    field="x",
                )
        sorts = {isinstance(x, str) for series in self.series for x in series.x}
        if len(sorts) > 1:
            raise InputError(
                "expected numbers as x or names, found series of both", where=f"plot {self.title!r}"
            )
        if self.marks and True in sorts:
            raise InputError("marks need numbers as x, found names", where=f"plot {self.title!r}")
        if self.diagonal and True in sorts:
            raise InputError("a diagonal needs numbers as x, found names", where=f"plot {self.title!r}")


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

    def __post_init__(self) -> None:
        if not self.series:
            raise InputError("expected at least one series, found none", where=f"plot {self.title!r}")
        for series in self.series:
            if len(series.y) != len(self.labels) or series.x not in ((), self.labels):
                raise InputError(
                    f"expected one value for each of {len(self.labels)} labels and no x of its own, "
                    f"found {len(series.y)} values",
                    where=f"plot {self.title!r}, series {series.name!r}",
                )


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

    def __post_init__(self) -> None:
        _check_finite(
            (self.low, self.high, self.mean_score, self.share_right, self.share_low, self.share_high),
            "a bin",
            None,
        )
        if self.count < 0 or (self.count == 0) != (self.share_right is None):
            raise InputError(
                f"expected a share exactly where there are items, found {self.share_right!r} for {self.count} items",
                where=f"bin [{self.low:g}, {self.high:g})",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """A reliability diagram: how often items of a score are right, and how many items have it."""

    title: str
    bins: tuple[Bin, ...]
    x_label: str = "Mean score in the bin"
    y_label: str = "Share that is right"
    note: str = ""

    def __post_init__(self) -> None:
        if not self.bins:
            raise InputError("expected at least one bin, found none", where=f"plot {self.title!r}")


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
    centre: float | None = None
    """Values under it have one hue and those over it another: for differences; None: one hue."""
    note: str = ""

    def __post_init__(self) -> None:
        for field, rows in (("values", self.values), ("counts", self.counts)):
            if rows is None:
                continue
            if len(rows) != len(self.y_names) or any(len(row) != len(self.x_names) for row in rows):
                raise InputError(
                    f"expected {len(self.y_names)} rows of {len(self.x_names)}, found rows of {[len(row) for row in rows]}",
                    where=f"plot {self.title!r}",
                    field=field,
                )
            for row in rows:
                _check_finite(row, f"plot {self.title!r}", field)
        if not self.x_names or not self.y_names:
            raise InputError("expected at least one cell, found none", where=f"plot {self.title!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """One outline of a `Histogram`."""

    name: str
    edges: tuple[float, ...]
    """Ascending; one more than `counts`."""
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        where = f"series {self.name!r}"
        _check_finite(self.edges, where, "edges")
        if (
            len(self.edges) != len(self.counts) + 1
            or not self.counts
            or list(self.edges) != sorted(set(self.edges))
        ):
            raise InputError(
                f"expected ascending edges, one more than the {len(self.counts)} counts, found {self.edges}",
                where=where,
                field="edges",
            )
        if min(self.counts) < 0:
            raise InputError(f"expected counts, found {min(self.counts)}", where=where, field="counts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """How many items lie in each bin, one outline a series."""

    title: str
    x_label: str
    series: tuple[Counts, ...]
    y_label: str = "Count"
    note: str = ""

    def __post_init__(self) -> None:
        if not self.series:
            raise InputError("expected at least one series, found none", where=f"plot {self.title!r}")


Plot = Lines | Bars | Reliability | Heat | Histogram


def svg(plot: Plot) -> str:
    """The picture as one `<svg>` element, as wide as its place; the title and the note are not drawn in it.

    Colours are CSS variables with the light colours as fallback, so the picture follows the page's mode. Points and
    bars say their numbers under the pointer. Equal plots give equal text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    from stepmark.show.drawing import drawn

    return drawn(plot)


def _check_finite(values: Iterable[float | str | None], where: str, field: str | None) -> None:
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"expected a finite number, found {value!r}; what is not known is None",
                where=where,
                field=field,
            )
