"""Units of measurement and of money, as answers use them: what they measure and how they convert.

A unit that is not in the table is no unit but a word ("12 apples"); words after a number are left out of the comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A unit that may stand after (or, for money, before) a number."""

    kind: str
    """What it measures: "length", "US money". Two kinds are never equal."""
    factor: Fraction
    """How many of the kind's base unit it is, exactly: 1/100 for cm, where the base is m."""
    name: str
    """As it is written here."""


_TABLE: dict[str, dict[str, str]] = {
    # kind: {names: how many of the base unit}
    "length": {
        "m metre meter": "1", "km kilometre kilometer": "1000", "dm decimetre decimeter": "1/10",
        "cm centimetre centimeter": "1/100", "mm millimetre millimeter": "1/1000",
        "in inch inches": "127/5000", "ft foot feet": "381/1250", "yd yard": "1143/1250", "mi mile": "201168/125",
    },
    "mass": {
        "kg kilogram kilo": "1", "g gram gm": "1/1000", "mg milligram": "1/1000000", "tonne": "1000",
        "lb lbs pound": "45359237/100000000", "oz ounce": "45359237/1600000000",
    },
    "time": {
        "s sec second": "1", "ms millisecond": "1/1000", "min minute": "60", "h hr hour": "3600", "day": "86400",
        "week": "604800",
    },
    "calendar time": {"month": "1", "year yr": "12"},
    "volume": {
        "L l litre liter": "1", "mL ml millilitre milliliter": "1/1000", "gal gallon": "473176473/125000000",
        "qt quart": "473176473/500000000", "pint": "473176473/1000000000",
    },
    "speed": {"mph": "201168/125", "kph kmph": "1000"},
    "angle": {"^\\circ ° degree deg": "1"},
    "US money": {"$ US$ USD dollar buck": "1", "¢ cent": "1/100"},
    "euro": {"€ EUR euro": "1"},
    "sterling": {"£ GBP": "1"},
    "yen or yuan": {"¥": "1"},
    "yen": {"JPY yen": "1"},
    "rupee": {"₹ Rs INR rupee": "1"},
}  # fmt: skip

_LENGTHS = [(names, Fraction(factor)) for names, factor in _TABLE["length"].items()]
_IRREGULAR = {"in", "ft", "feet", "foot", "inches", "lbs"}
_SIGNS = "$€£¥₹¢°^"


def _build() -> dict[str, Unit]:
    table: dict[str, Unit] = {}

    def add(name: str, kind: str, factor: Fraction) -> None:
        unit = Unit(kind=kind, factor=factor, name=name)
        table[name] = unit
        if len(name) > 2 and name[0] not in _SIGNS and name not in _IRREGULAR:
            table[name + "s"] = unit

    for kind, units in _TABLE.items():
        for names, factor in units.items():
            for name in names.split():
                add(name, kind, Fraction(factor))
    for names, length in _LENGTHS:
        for name in names.split():
            for power, kind, before, after in (
                (2, "area", ("sq ", "sq. ", "square "), ("^2", "^{2}", "2")),
                (3, "volume", ("cu ", "cu. ", "cubic "), ("^3", "^{3}", "3")),
            ):
                # A litre is the base of volumes: a thousandth of a cubic metre.
                size = length**power * (1000 if kind == "volume" else 1)
                for word in before:
                    add(word + name, kind, size)
                for sign in after:
                    table[name + sign] = Unit(kind=kind, factor=size, name=name + sign)
    return table


_UNITS = _build()
_LOWER = {name.lower(): unit for name, unit in reversed(_UNITS.items()) if len(name) > 2}
_LOOSE = re.compile(r"\s+(?=\^)|(?<=\s)\s+")
_PER = re.compile(r"\s?/\s?|\s(?:per|an?)\s")


def unit_of(text: str) -> Unit | None:
    """The unit that a text names, or None. Short names keep their case ("m" and "M" differ); long ones do not.

    "km/h" and "dollars per day" are units too, where both halves are.
    """
    text = _LOOSE.sub("", text).strip()
    unit = _UNITS.get(text) or _UNITS.get(text.rstrip(".")) or _LOWER.get(text.lower())
    if unit is not None:
        return unit
    halves = _PER.split(text.rstrip("."))
    if len(halves) != 2:
        return None
    above, below = (_UNITS.get(half) or _LOWER.get(half.lower()) for half in halves)
    if above is None or below is None:
        return None
    if (above.kind, below.kind) == ("length", "time"):  # mph and kmph are in metres an hour
        return Unit(kind="speed", factor=above.factor * 3600 / below.factor, name=text)
    return Unit(kind=f"{above.kind} per {below.kind}", factor=above.factor / below.factor, name=text)


_DAYS = frozenset(Fraction(n) for n in (7, 12, 30, 52, 365))


def conversions(unit: Unit) -> frozenset[Fraction]:
    """How many of one unit another of the same kind is, where that is over two: 12 inches, 36 inches. Days and weeks have months and years too."""
    factors = {other.factor for other in _UNITS.values() if other.kind == unit.kind}
    ratios = frozenset(a / b for a in factors for b in factors if a > 2 * b)
    return ratios | _DAYS if unit.kind in ("time", "calendar time") else ratios
