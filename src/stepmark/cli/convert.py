"""`stepmark convert`: the command of `stepmark.convert`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.data.labelled import convert
from stepmark.records import DEFAULT_AXIS


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
    push: Annotated[bool, opt.in_common("--push")] = False,
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
    """Convert labelled solutions from one format to another.

    Args:
        to: the format to write: stepmark-labels, prm800k, prm800k-flat, math-shepherd, trl, rlhflow, processbench, potato or who-and-when; of conversations chat or otel; of graded traces langfuse-scores, langsmith-feedback, phoenix-annotations or otel-evaluations.
        out: write the rows to this file, gzipped if its name ends in .gz; "-" for standard output.
        push: send the scores to the tracer that the traces are from (to: langfuse-scores and the like), instead of writing them; with out, do both.
        from_format: the format of the source: one of those, solutions, prmbench, openrlhf, inspect, or a trace (messages, sharegpt, chat-calls, responses, swe-agent, mini-swe-agent, openhands, claude-code, codex, gemini-cli, langsmith, langfuse, who-and-when). Default: recognised by the first row of each file.
        neutral: what a neutral rating becomes where a format has only right and wrong; drop leaves the step unjudged.
        hard: make hard labels of shares of rollouts: right above this number in [0, 1), or "any" for at least one success.
        judge: whose judgements count, where a step has several: a judge's name, or the part of it before ":" ("human").
        marker: the text that ends each step, for split marker.
        kind: which judgements count. Default: conclusions about correctness where a row has any, else values.
        axis: which axis is written, where a format holds one label a step: the name of a criterion. Default: whether the step is right.
        consensus: how several judges decide together; where they do not agree, the step is unjudged.
        items: the data file that Potato's annotators were shown: Potato's own files hold no text.
        zero: what a 0 means in Potato's per_step mode, or in TRL's labels of -1, 0 and 1, where the file does not say.
        quality_control: keep PRM800K's screening and quality-control questions, which every labeller was served.
    """
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
