"""The version, for modules of the package: an import of `stepmark` itself would tie them to all of its public names."""

from __future__ import annotations

import sys

__version__: str = sys.modules["stepmark"].__version__
