"""`stepmark convert`: the command of `stepmark.convert`."""

from __future__ import annotations

from stepmark.cli.twin import Call, command, report
from stepmark.data.labelled import convert


def _run(call: Call) -> int:
    settings = dict(call.settings)
    report(convert(call.inputs[0], settings.pop("to"), out=settings.pop("out") or "-", **settings).summary)
    return 0


convert_command = command(
    convert,
    _run,
    file="labelled solutions: JSON lines, CSV, TSV, Parquet, a JSON list or document, a log (.eval), or a folder of them, gzipped if the name ends in .gz; "
    '"-" for standard input',
    flags=("to",),
    common=("to", "out", "from_format", "neutral", "hard", "judge", "columns", "keep_going"),
)
