"""Step benchmarks, one file each; this folder is the list of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def declared() -> Mapping[str, tuple[str, str]]:
    """Name of each benchmark: where its class is ("module:Class"), and the first line of its docstring.

    Read from the sources without importing them, so that help needs no NumPy.
    """
    result = {}
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        made = next(node for node in body if isinstance(node, ast.ClassDef))
        summary = (ast.get_docstring(made) or "").partition("\n")[0]
        result[file.stem.replace("_", "-")] = (f"{__name__}.{file.stem}:{made.name}", summary)
    return result
