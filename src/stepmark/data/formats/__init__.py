"""Formats of step-labelled rows, one a file: a module of this folder but `rows`, added by adding it.

A module says what its format is (`ABOUT`), whether a row is of it (`sniff`), how a row is read (`read`), and where it can be written how a
labelled solution is (`write`; `write_all`, where a row of the format holds several). Its name is the file's, with dashes, or `NAME`; `OVER` names formats whose keys
its rows have too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from stepmark.data.formats.rows import Format, each


def _formats() -> Iterator[Format]:
    for found in pkgutil.iter_modules(__path__):
        if found.name != "rows":
            module: Any = importlib.import_module(f"{__name__}.{found.name}")
            yield Format(
                name=getattr(module, "NAME", found.name.replace("_", "-")),
                about=module.ABOUT,
                sniff=module.sniff,
                read=module.read,
                write=each(module.write) if hasattr(module, "write") else getattr(module, "write_all", None),
                over=getattr(module, "OVER", ()),
            )


def formats() -> Mapping[str, Format]:
    """The formats of this folder by name."""
    return {format.name: format for format in _formats()}
