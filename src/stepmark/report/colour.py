"""From a score to a colour: red over amber to green, never the only sign.

A colour is always shown with the number and a bar, so nothing is lost in grey print or to a colour-blind
eye; the red leans to vermilion and the green to blue, which keeps them apart for the common forms of it. Text
on a tint has a contrast of at least 4.5:1 (WCAG 2.2, criterion 1.4.3, level AA) in both modes; bars have at
least 3:1 against the page (criterion 1.4.11). `tests/test_report_fragments.py` measures both over the whole scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stepmark.errors import InputError, ScoreKindError

Mode = Literal["light", "dark"]
Rgb = tuple[int, int, int]

KINDS = ("probability", "margin", "log-ratio", "unbounded")
"""The score kinds, as `stepmark.records.ScoreKind` spells them."""

_LOWEST = {"probability": 0.0, "margin": -1.0}
"""The kinds whose scores end at 1, and where they begin."""

LEVELS = 20
"""The scale is drawn in `LEVELS + 1` equal steps."""

_TINTS: dict[Mode, tuple[Rgb, Rgb, Rgb]] = {
    "light": ((254, 228, 223), (253, 241, 206), (219, 243, 230)),
    "dark": ((72, 32, 31), (64, 50, 18), (18, 57, 43)),
}
_STRONGS: dict[Mode, tuple[Rgb, Rgb, Rgb]] = {
    "light": ((201, 54, 43), (178, 116, 0), (18, 128, 88)),
    "dark": ((246, 110, 98), (222, 160, 36), (60, 186, 134)),
}
_GREY: dict[Mode, tuple[Rgb, Rgb]] = {
    "light": ((238, 240, 243), (122, 130, 139)),
    "dark": ((37, 43, 51), (125, 133, 144)),
}
INK: dict[Mode, Rgb] = {"light": (28, 33, 40), "dark": (230, 237, 243)}
"""The colour of text."""
MUTED: dict[Mode, Rgb] = {"light": (75, 83, 93), "dark": (174, 184, 195)}
"""The colour of less important text; as legible."""
PAGE: dict[Mode, Rgb] = {"light": (255, 255, 255), "dark": (22, 27, 34)}
"""What lies under cards and bars."""

SERIES: dict[Mode, tuple[Rgb, ...]] = {
    "light": (
        (0, 90, 180),
        (205, 85, 0),
        (0, 140, 110),
        (170, 60, 140),
        (140, 102, 0),
        (62, 134, 196),
        (92, 102, 114),
    ),
    "dark": (
        (70, 140, 235),
        (255, 143, 84),
        (120, 226, 170),
        (236, 160, 226),
        (222, 178, 64),
        (150, 206, 250),
        (160, 172, 184),
    ),
}
"""The colours of the series of a plot, in order: blue, vermilion, green, purple, ochre, sky, grey. At least 3:1 against the page
(WCAG 2.2, criterion 1.4.11); the first four are distinguishable with the common forms of colour blindness, and series
differ by marker and dashes besides."""

LINE: dict[Mode, Rgb] = {"light": (221, 225, 230), "dark": (48, 55, 64)}
"""The colour of grid lines, as `--line` in the stylesheets."""

CODE: dict[Mode, dict[str, Rgb]] = {
    "light": {
        "comment": (94, 103, 114),
        "keyword": (165, 28, 99),
        "string": (15, 100, 61),
        "number": (5, 80, 174),
        "name": (92, 49, 166),
        "builtin": (138, 75, 8),
    },
    "dark": {
        "comment": (147, 157, 168),
        "keyword": (255, 134, 175),
        "string": (126, 216, 163),
        "number": (121, 184, 255),
        "name": (205, 170, 255),
        "builtin": (245, 178, 105),
    },
}
"""The colours of code, on `PAGE`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shade:
    """The colours of one score."""

    tint: Rgb
    """Behind text."""
    strong: Rgb
    """Bars and edges."""


def position(score: float | None, kind: str, threshold: float | None = None) -> float | None:
    """Where a score stands on the colour scale from 0 (red) to 1 (green); None for a step that was not read.

    The threshold is in the middle, amber: what is under it is never green. Probabilities and margins are stretched to both ends of
    their range from there; without a threshold the middle of the range is in the middle. A log-ratio and an unbounded value go through
    the logistic function of their distance to the threshold (to 0 when there is none): there only the order of two positions means
    something, not the position.

    A step under the threshold is an error; a threshold outside of the range counts as that end.
    """
    place = extent(score, kind, threshold)
    if place is None or threshold is None or kind not in _LOWEST:
        return place
    middle = _share(min(max(threshold, _LOWEST[kind]), 1.0), kind)
    if place < middle:
        return 0.5 * place / middle
    return 1.0 if middle == 1 else 0.5 + 0.5 * (place - middle) / (1 - middle)


def aggregate_position(
    value: float | None, how: str, kind: str, threshold: float | None = None
) -> float | None:
    """Where an aggregate of step scores stands on their colour scale, as `position`; None for one that leaves their range.

    A step's threshold says nothing of a product, which is under every one of its factors: the middle of its scale is that of the range.
    """
    if how not in ("product", "min", "mean", "last", "max"):
        return None
    return position(value, kind, None if how == "product" else threshold)


def extent(score: float | None, kind: str, threshold: float | None = None) -> float | None:
    """How long the bar of a score is, from 0 to 1; None for a step that was not read.

    A probability stands for itself and a margin in [-1, 1] is moved to [0, 1]. Other kinds have no ends: their bar is as long as their
    `position`.

    `threshold` is read for "log-ratio" and "unbounded" only.
    """
    if kind not in KINDS:
        raise ScoreKindError(f"expected a score kind ({', '.join(KINDS)}), found {kind!r}")
    if score is None:
        return None
    if math.isnan(score):
        raise InputError("expected a score, found NaN; a step that was not read has the score None")
    if kind in _LOWEST:
        if not _LOWEST[kind] <= score <= 1:
            raise InputError(f"expected a {kind} in [{_LOWEST[kind]:g}, 1], found {score!r}")
        return _share(score, kind)
    distance = score - (0.0 if threshold is None else threshold)
    # Both branches are the logistic function; each is the one that does not overflow.
    return 1 / (1 + math.exp(-distance)) if distance >= 0 else math.exp(distance) / (1 + math.exp(distance))


def _share(score: float, kind: str) -> float:
    return (score - _LOWEST[kind]) / (1 - _LOWEST[kind])


def level(place: float) -> int:
    """The nearest of the `LEVELS + 1` steps of the scale to a position in [0, 1]."""
    return round(place * LEVELS)


def level_class(place: float | None) -> str:
    """The class in a stylesheet that holds the colours of a position on the scale."""
    return "l-" if place is None else f"l{level(place)}"


def shade(place: float | None, mode: Mode) -> Shade:
    """The colours of a position in [0, 1]; grey for None."""
    if place is None:
        tint, strong = _GREY[mode]
        return Shade(tint=tint, strong=strong)
    return Shade(tint=_between(_TINTS[mode], place), strong=_between(_STRONGS[mode], place))


def hexa(colour: Rgb) -> str:
    """A colour as CSS and rich write it: "#rrggbb"."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def over(colour: Rgb, alpha: float, ground: Rgb) -> Rgb:
    """What the eye sees of a translucent colour on an opaque one."""
    red, green, blue = (round(alpha * c + (1 - alpha) * g) for c, g in zip(colour, ground, strict=True))
    return red, green, blue


def _between(anchors: tuple[Rgb, Rgb, Rgb], place: float) -> Rgb:
    first, second = anchors[:2] if place <= 0.5 else anchors[1:]
    return over(second, place * 2 if place <= 0.5 else place * 2 - 1, first)
