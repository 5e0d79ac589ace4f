"""Step benchmarks, one file each; this folder is the list of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def declared() -> Mapping[str, str]:
    """Name of each benchmark, and where its class is ("module:Class"); read from the sources without importing them."""
    result = {}
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        made = next(node for node in body if isinstance(node, ast.ClassDef))
        result[file.stem.replace("_", "-")] = f"{__name__}.{file.stem}:{made.name}"
    return result
