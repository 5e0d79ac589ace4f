"""`stepmark label exact`: the command of `stepmark.labels.variants.exact`."""

from __future__ import annotations

from stepmark.cli.twin import Call, command, report
from stepmark.labels.variants import exact


def _run(call: Call) -> int:
    settings = dict(call.settings)
    report(exact(call.inputs[0] if call.inputs else None, out=settings.pop("out") or "-", **settings).summary)
    return 0


exact_command = command(
    exact,
    _run,
    file="right solutions: JSON lines, CSV, TSV, Parquet or a JSON list",
    required=False,
    common=("out", "arithmetic", "wrong", "kinds", "seed", "split", "columns", "keep_going"),
)
