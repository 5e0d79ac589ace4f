"""What torch keeps of every shape that it has computed on a CPU, bounded."""

from __future__ import annotations

import os

KEPT = 128
"""Shapes: those of a pass are there again in the next layer, and hardly any is there again in the next pass."""
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN's compiled products, and those of ideep, which is between it and torch. Each keeps 1024 if nothing is said."""


def bound_kernels() -> None:
    """Have torch keep less of the shapes that it has computed: in bfloat16 a compiled matrix product has half a megabyte.

    Packed trees have another shape in nearly every pass, so a process that scores for long would keep a gigabyte of what is never used again. It is said by
    environment variables, which are read at the first product; one that is set already stays as it is.
    """
    for name in CACHES:
        os.environ.setdefault(name, str(KEPT))
