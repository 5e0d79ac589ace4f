"""How a setting that cannot be is named: by its flag of `stepmark rl`, and by its field where that is another word."""

from __future__ import annotations

from stepmark.errors import said as said
