"""`stepmark convert`: the command of `stepmark.convert`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.data.labelled import convert
from stepmark.records import DEFAULT_AXIS


@opt.documented_by(convert)
def convert_command(
    file: Annotated[
        opt.FileOrDash,
        Parameter(
            help="labelled solutions: JSON lines, CSV, TSV, Parquet, a JSON list or document, a log (.eval), or a folder of them, "
            'gzipped if the name ends in .gz; "-" for standard input'
        ),
    ],
    /,
    *,
    to: Annotated[str, opt.in_common("--to")],
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    push: Annotated[
        bool,
        opt.in_common(
            "--push",
            help="Send the scores to the tracer that the traces are from (to: langfuse-scores and the like), instead of writing them; with out, do both.",
        ),
    ] = False,
    from_format: Annotated[str | None, opt.in_common("--from")] = None,
    neutral: Annotated[Literal["positive", "negative", "drop"] | None, opt.in_common("--neutral")] = None,
    hard: Annotated[float | Literal["any"] | None, opt.in_common("--hard")] = None,
    judge: Annotated[str | None, opt.in_common("--judge")] = None,
    columns: opt.Columns | None = None,
    keep_going: opt.KeepGoing = False,
    split: opt.Split = "auto",
    marker: Annotated[str | None, opt.in_data("--marker")] = None,
    reasoning: opt.Reasoning = "keep",
    kind: Annotated[Literal["correctness", "value"] | None, opt.in_method("--kind")] = None,
    axis: Annotated[str, opt.in_method("--axis")] = DEFAULT_AXIS,
    consensus: Annotated[Literal["agree", "majority"] | None, opt.in_method("--consensus")] = None,
    items: Annotated[opt.FileOrDash | None, opt.in_method("--items")] = None,
    zero: Annotated[Literal["neutral", "unjudged"] | None, opt.in_method("--zero")] = None,
    quality_control: Annotated[bool, opt.in_method("--quality-control")] = False,
) -> int:
    """See `stepmark.convert`."""
    if push:
        from stepmark.integrations.push import push_scores

        print(push_scores(file, to), file=sys.stderr)
        if out == "-":
            return 0
    converted = convert(
        file,
        to,
        out=out,
        from_format=from_format,
        neutral=neutral,
        hard=hard,
        judge=judge,
        columns=columns,
        keep_going=keep_going,
        split=split,
        marker=marker,
        reasoning=reasoning,
        kind=kind,
        axis=axis,
        consensus=consensus,
        items=items,
        zero=zero,
        quality_control=quality_control,
    )
    print_note(converted.summary)
    return 0
