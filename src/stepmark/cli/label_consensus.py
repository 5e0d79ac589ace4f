"""`stepmark label consensus`: the command of `stepmark.labels.consensus.consensus`."""

from __future__ import annotations

from stepmark.cli.twin import Call, command, report
from stepmark.labels.consensus import consensus, parse_source_kinds


def _run(call: Call) -> int:
    settings = dict(call.settings)
    if settings["source_kinds"] is not None:
        settings["source_kinds"] = parse_source_kinds(settings["source_kinds"])
    report(consensus(call.inputs, out=settings.pop("out") or "-", **settings).summary)
    return 0


consensus_command = command(
    consensus,
    _run,
    file="labelled solutions, of stepmark label or in any format that stepmark convert reads",
    many=True,
    common=("out", "rule", "sources", "least", "values", "same_names", "columns"),
)
