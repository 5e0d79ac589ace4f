"""Plots: what is drawn stands where the numbers say, what is not known is not drawn, and any page can hold it."""

from __future__ import annotations

import functools
import re
import sys
from xml.etree import ElementTree as ET

import pytest

from html_tree import contrast
from stepmark.errors import MissingExtraError
from stepmark.report import colour
from stepmark.report.colour import SERIES
from stepmark.report.plots import (
    Bars,
    Bin,
    Lines,
    Plot,
    Reliability,
    Series,
    alike,
    numbers,
    picture_html,
    svg,
)

LINES = Lines(
    title="F1 over the threshold",
    x_label="Threshold",
    y_label="F1 (%)",
    series=(
        Series(
            name="GSM8K",
            x=(0.1, 0.3, 0.5),
            y=(10.0, 20.0, 40.0),
            low=(8.0, 19.0, 38.0),
            high=(12.0, 21.0, 43.5),
        ),
        Series(name="MATH", x=(0.1, 0.3, 0.5), y=(5.0, None, 15.0)),
    ),
)
BARS = Bars(
    title="By category",
    y_label="PRMScore (%)",
    x_label="Category",
    labels=("step", "domain"),
    series=(
        Series(name="ours", y=(40.0, 20.0), low=(35.0, 10.0), high=(45.0, 30.0)),
        Series(name="length", y=(10.0, None)),
    ),
)
RELIABILITY = Reliability(
    title="Reliability",
    bins=(
        Bin(low=0.0, high=0.5, count=30, mean_score=0.25, share_right=0.5, share_low=0.4, share_high=0.625),
        Bin(low=0.5, high=0.75, count=0, mean_score=None, share_right=None),
        Bin(low=0.75, high=1.0, count=60, mean_score=0.875, share_right=0.75),
    ),
)
PLOTS: tuple[Plot, ...] = (LINES, BARS, RELIABILITY)
every_plot = pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: type(plot).__name__)

SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def drawn(plot: Plot) -> ET.Element:
    return ET.fromstring(svg(plot))  # noqa: S314


def element(plot: Plot, name: str) -> ET.Element:
    (found,) = [one for one in drawn(plot).iter() if one.get("id") == name]
    return found


def has(plot: Plot, name: str) -> bool:
    return any(one.get("id") == name for one in drawn(plot).iter())


def texts(plot: Plot) -> list[str]:
    return ["".join(one.itertext()).removeprefix("\u200b") for one in drawn(plot).iter(f"{SVG}text")]


def place(plot: Plot, name: str) -> tuple[float, float]:
    """Where a marker stands."""
    use = element(plot, name).find(f".//{SVG}use")
    assert use is not None
    return float(use.attrib["x"]), float(use.attrib["y"])


def box(plot: Plot, name: str) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the one path in an element."""
    path = element(plot, name).find(f".//{SVG}path")
    assert path is not None
    points = [float(part) for part in re.findall(r"-?[\d.]+", path.attrib["d"])]
    return min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])


# Where things stand


def test_points_of_lines_stand_by_their_numbers() -> None:
    (x1, y10), (x3, y20), (x5, y40) = (place(LINES, f"s0-{at}") for at in range(3))
    (m1, y5), (m5, y15) = place(LINES, "s1-0"), place(LINES, "s1-2")
    assert x3 - x1 == pytest.approx(x5 - x3, abs=0.1) and (m1, m5) == (x1, x5)
    unit = (y10 - y40) / 30  # down the page is less
    assert unit > 0
    for y, value in ((y20, 20), (y5, 5), (y15, 15)):
        assert y10 - y == pytest.approx((value - 10) * unit, abs=0.1)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors() -> None:
    plot = Lines(
        title="", x_label="N", y_label="y", log_x=True, series=(Series(name="", x=(1, 4, 16), y=(1, 2, 3)),)
    )
    (first, _), (four, _), (sixteen, _) = (place(plot, f"s0-{at}") for at in range(3))
    assert four - first == pytest.approx(sixteen - four, abs=0.1) and four > first
    assert {"1", "4", "16"} <= set(texts(plot))


def test_bars_are_as_long_as_their_numbers() -> None:
    bars = [box(BARS, name) for name in ("s0-0", "s1-0", "s0-1")]
    forty, ten, twenty = (right - left for left, _, right, _ in bars)
    assert forty == pytest.approx(4 * ten, abs=0.1) and forty == pytest.approx(2 * twenty, abs=0.1)
    assert len({left for left, *_ in bars}) == 1
    tops = [top for _, top, _, _ in bars]
    assert tops == sorted(tops)  # the first label is on top, its series in order


def test_bars_of_differences_go_both_ways_from_zero() -> None:
    plot = Bars(
        title="", y_label="d", labels=("up", "down"), series=(Series(name="", y=(2.0, -4.0)),), zero_line=True
    )
    (left, _, right, _), (far, _, zero, _) = box(plot, "s0-0"), box(plot, "s0-1")
    assert zero == pytest.approx(left, abs=0.1) and zero - far == pytest.approx(2 * (right - left), abs=0.1)


def test_whiskers_reach_from_end_to_end() -> None:
    plot = Bars(
        title="", y_label="y", labels=("a",), series=(Series(name="", y=(40.0,), low=(20.0,), high=(50.0,)),)
    )
    left, _, right, _ = box(plot, "s0-0")
    unit = (right - left) / 40
    path = element(plot, "i0-0").find(f"{SVG}path")
    assert path is not None
    ends = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path.attrib["d"])]
    assert ends == pytest.approx([left + 20 * unit, left + 50 * unit], abs=0.1)


def test_reliability_points_stand_at_score_and_share() -> None:
    left, _, middle, half = box(RELIABILITY, "count-0")
    right = box(RELIABILITY, "count-2")[2]
    width = right - left
    assert middle - left == pytest.approx(width / 2, abs=0.1)
    (x1, y50), (x2, y75) = place(RELIABILITY, "s0-0"), place(RELIABILITY, "s0-2")
    assert [x1 - left, x2 - left] == pytest.approx([width * 0.25, width * 0.875], abs=0.1)
    heights = [bottom - top for _, top, _, bottom in (box(RELIABILITY, f"count-{at}") for at in range(3))]
    assert heights[2] == pytest.approx(2 * heights[0], abs=0.1) and heights[1] == 0
    # The gap goes from the mean score to the share.
    unit = (y50 - y75) / 0.25
    for name, score, share, y in (("gap-0", 0.25, 0.5, y50), ("gap-2", 0.875, 0.75, y75)):
        _, top, _, bottom = box(RELIABILITY, name)
        assert [top, bottom] == pytest.approx(sorted((y, y + (share - score) * unit)), abs=0.15)
    assert not has(RELIABILITY, "gap-1") and half > 0


# What is not known


def test_none_breaks_a_line_and_has_no_point() -> None:
    plot = Lines(
        title="", x_label="x", y_label="y",
        series=(Series(name="s", x=(1, 2, 3, 4, 5), y=(1.0, 2.0, None, 4.0, 5.0)),),
    )  # fmt: skip
    assert has(plot, "s0-1") and not has(plot, "s0-2")
    curve = element(plot, "s0").find(f"{SVG}path")
    assert curve is not None
    assert curve.attrib["d"].count("M") == 2 and curve.attrib["d"].count("L") == 2


@pytest.mark.parametrize(
    "plot",
    [
        Lines(title="", x_label="", y_label="", series=(Series(name="", x=(1.0, 2.0), y=(None, None)),)),
        Lines(title="", x_label="", y_label="", series=(Series(name="", x=(), y=()),)),
        Reliability(title="", bins=(Bin(low=0, high=1, count=0, mean_score=None, share_right=None),)),
    ],
)
def test_a_plot_of_nothing_says_so(plot: Plot) -> None:
    assert "No value is known" in texts(plot)


# Numbers and words


def test_numbers_of_lines() -> None:
    table = numbers(LINES)
    assert table.columns == ("Threshold", "GSM8K", "MATH")
    assert table.rows == (
        ("0.1", "10 [8, 12]", "5"),
        ("0.3", "20 [19, 21]", "–"),
        ("0.5", "40 [38, 43.5]", "15"),
    )


def test_numbers_of_the_others() -> None:
    assert numbers(BARS).rows == (("step", "40 [35, 45]", "10"), ("domain", "20 [10, 30]", "–"))
    assert numbers(RELIABILITY).rows == (
        ("0 to 0.5", "30", "0.25", "0.5 [0.4, 0.625]"),
        ("0.5 to 0.75", "0", "–", "–"),
        ("0.75 to 1", "60", "0.875", "0.75"),
    )


def test_numbers_that_stand_together_are_written_alike() -> None:
    def written(*values: float) -> list[str]:
        return [alike(values)(value) for value in values]

    assert written(0.7, 0.62) == ["0.70", "0.62"]
    assert written(40.0, 7.0) == ["40", "7"]
    assert written(47.91, 7.0) == ["47.9", "7.0"]
    assert written(0.12345, -0.00001) == ["0.123", "0.000"]
    assert written(2500.0, 0.5) == ["2,500", "0"]
    assert written(0.00012, 0.0) == ["0.00012", "0"]


# The file


@every_plot
def test_it_loads_nothing_and_follows_the_mode(plot: Plot) -> None:
    light, dark = svg(plot, "light"), svg(plot, "dark")
    assert light != dark
    for drawing in (light, dark):
        assert drawing.startswith("<svg ")
        assert not re.search(r"(href|src)=\"(?!#)|url\((?!#)|@import|font-face|<script", drawing)
    page = picture_html(plot)
    assert page.count("data:image/svg+xml;base64,") == 2 and "prefers-color-scheme:dark" in page


# Names of others


# Colours


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_series_stand_out_from_the_page(mode: colour.Mode) -> None:
    assert all(contrast(one, colour.PAGE[mode]) >= 3 for one in SERIES[mode])
    assert len(set(SERIES[mode])) == 7


# How three forms of colour blindness see (Machado, Oliveira and Fernandes 2009, severity 1.0, linear RGB).
SEEN = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def lab(shade: colour.Rgb, form: str | None) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of what is seen."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in shade]
    if form is not None:
        linear = [
            min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in SEEN[form]
        ]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, linear, strict=True)) for row in to_xyz]
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (value / white for value, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("form", [None, *SEEN])
def test_the_first_four_series_differ_for_every_eye(mode: colour.Mode, form: str | None) -> None:
    seen = [lab(shade, form) for shade in SERIES[mode][:4]]
    for at, one in enumerate(seen):
        for other in seen[at + 1 :]:
            # A difference of 2.3 is just noticeable; eight times that is plain.
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 18


# Without matplotlib


def test_without_matplotlib_the_line_to_type_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=re.escape('pip install "stepmark[evaluate]"')):
        svg(LINES)
    assert numbers(LINES).rows
