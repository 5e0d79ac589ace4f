"""Labelled solutions in the formats of others: each has a module that reads it and, where that makes sense, writes it.

What travels is a `LabelledRow`. What a format cannot hold is refused or counted (`Losses`) and never silently turned into
something else: neutral and unjudged are never wrong.
"""

from stepmark.solutions.interchange.formats import (
    FORMATS,
    Format,
    convert,
    detect,
    read_labelled,
    write_labelled,
)
from stepmark.solutions.interchange.labels import from_row, to_row
from stepmark.solutions.interchange.rows import LabelledRow, Losses, Reading, Writing

__all__ = [
    "FORMATS",
    "Format",
    "LabelledRow",
    "Losses",
    "Reading",
    "Writing",
    "convert",
    "detect",
    "from_row",
    "read_labelled",
    "to_row",
    "write_labelled",
]
