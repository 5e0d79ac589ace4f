"""Formats of step-labelled rows, one a file.

Each module of this folder but `rows` holds one format as `FORMAT`; a format is added by adding its module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from stepmark.data.formats.rows import Format


def _formats() -> Iterator[Format]:
    for module in pkgutil.iter_modules(__path__):
        if module.name != "rows":
            yield importlib.import_module(f"{__name__}.{module.name}").FORMAT


def formats() -> Mapping[str, Format]:
    """The formats of this folder by name."""
    return {format.name: format for format in _formats()}
