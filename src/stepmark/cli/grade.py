"""`stepmark grade`: the command of `stepmark.grade`."""

from __future__ import annotations

import sys
from itertools import count
from typing import Annotated

from cyclopts import Parameter

from stepmark.backends.cluster import Cluster
from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.errors import UsageError
from stepmark.records import GradedSolution
from stepmark.scoring.run import grade
from stepmark.store import is_stream

SHOWN = 5
"""Solutions shown in full on a terminal."""


@opt.documented_by(grade)
def grade_command(
    file: Annotated[
        opt.FileOrDash,
        Parameter(help=f'solutions: {opt.ROWS}, gzipped if the name ends in .gz; "-" for standard input'),
    ],
    /,
    *,
    prm: opt.PRMOptions = opt.PRMOptions(),
    out: Annotated[opt.FileOrDash | None, opt.in_common("--out")] = None,
    report: Annotated[opt.FileOrDash | None, opt.in_common("--report")] = None,
    threshold: Annotated[float | None, opt.in_common("--threshold")] = None,
    aggregate: Annotated[str | None, opt.in_common("--aggregate")] = None,
    checks: Annotated[str, opt.in_common("--checks")] = "auto",
    split: opt.Split = "auto",
    columns: opt.Columns | None = None,
    keep_going: opt.KeepGoing = False,
    marker: Annotated[str | None, opt.in_data("--marker")] = None,
    reasoning: opt.Reasoning = "keep",
    orm: Annotated[str | None, opt.in_model("--orm")] = None,
    truncate: Annotated[bool, opt.in_model("--truncate", help=opt.TRUNCATE)] = False,
    seed: Annotated[int, opt.in_model("--seed", help=opt.SEED)] = 0,
    show: Annotated[
        int | None,
        opt.in_output(
            "--show",
            help="Print this many graded solutions for people, in colour on a terminal (5 there unless --out is given).",
        ),
    ] = None,
    push: Annotated[
        str | None,
        opt.in_output(
            "--push",
            help="Send the scores to the tracer that the traces are from, when they stand in --out: langfuse-scores, langsmith-feedback or phoenix-annotations. Address and keys are those of its own environment variables.",
        ),
    ] = None,
    place: opt.BatchDevice = opt.BatchDevice(),
    cluster: Annotated[Cluster, opt.CLUSTER] = Cluster(),
) -> int:
    """See `stepmark.grade`."""
    if show and out is not None and is_stream(out):
        raise UsageError(f"`show` prints where `out` {out} puts the rows; give `out` a file's name")
    if push is not None:
        from stepmark.integrations.push import endpoint

        endpoint(push)  # a key that is missing, before anything is graded
        if out is None or is_stream(out):
            raise UsageError(
                "--push needs --out with a file's name: scores that could not be sent are sent from there"
            )
    for_people = show if show is not None else SHOWN if out is None and sys.stdout.isatty() else 0
    if show is not None and show < 0:
        raise UsageError(f"`show` {show}: expected 0 or more")
    numbers = count()

    def print_first(scored: GradedSolution, where: str) -> None:
        if next(numbers) < for_people:
            scored.show(where)
            print()

    results = grade(
        file,
        prm.lazy(truncate=truncate, seed=seed, **vars(place)),
        out=out if out is not None or for_people else "-",
        report=report,
        threshold=threshold,
        aggregate=aggregate,
        checks=checks,
        orm=orm,
        split=split,
        marker=marker,
        reasoning=reasoning,
        columns=columns,
        keep_going=keep_going,
        cluster=cluster,
        on_result=print_first,
    )
    print_note(results.summary)
    if push is not None and out is not None:
        from stepmark.integrations.push import push_scores

        print(push_scores(out, push), file=sys.stderr)
    return 0
