"""Formats of step-labelled rows, one a file: a module of this folder but `rows`, added by adding it.

A module says what its format is (`ABOUT`), whether a row is of it (`sniff`), how a row is read (`read`), and where it can be written how a
labelled solution is (`write`). Its name is the file's, with dashes, or `NAME`; `OVER` names formats whose keys
its rows have too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from stepmark.data.formats.rows import Format, declared


@cache
def formats() -> Mapping[str, Format]:
    """The formats of this folder by name."""
    return declared(Format, __name__, "rows")
