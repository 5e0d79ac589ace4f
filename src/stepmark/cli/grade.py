"""`stepmark grade`: the command of `stepmark.grade`."""

from __future__ import annotations

import sys
from itertools import count

from stepmark.backends.cluster import Cluster
from stepmark.cli.twin import Call, Model, command, report
from stepmark.errors import UsageError
from stepmark.models.families import full_name
from stepmark.models.load import check_arguments, load_prm
from stepmark.records import GradedSolution
from stepmark.scoring.run import grade
from stepmark.store import is_stream

SHOWN = 5
"""Solutions shown in full on a terminal."""


def _display(*, show: int | None = None) -> None:
    """Settings of the command alone.

    Args:
        show: print this many graded solutions for people, in colour on a terminal (5 there unless --out is given).
    """


def _run(call: Call) -> int:
    settings = dict(call.settings)
    show, out = settings.pop("show"), settings.pop("out")
    if show and out is not None and is_stream(out):
        raise UsageError(f"`show` prints where `out` {out} puts the rows; give `out` a file's name")
    for_people = show if show is not None else SHOWN if out is None and sys.stdout.isatty() else 0
    if show is not None and show < 0:
        raise UsageError(f"`show` {show}: expected 0 or more")
    numbers = count()

    def print_first(scored: GradedSolution, where: str) -> None:
        if next(numbers) < for_people:
            scored.show(where)
            print()

    prm = call.models["prm"]
    assert prm is not None
    results = grade(
        call.inputs[0],
        prm,
        out=out if out is not None or for_people else "-",
        on_result=print_first,
        **settings,
    )
    report(results.summary)
    return 0


grade_command = command(
    grade,
    _run,
    file='solutions: JSON lines, CSV, TSV, Parquet or a JSON list, or a folder of them, gzipped if the name ends in .gz; "-" for standard input',
    models={"prm": Model(load=load_prm, check=check_arguments, full_name=full_name, drop=("outcome",))},
    methods={"cluster": Cluster},
    common=("prm", "out", "report", "threshold", "aggregate", "checks", "split", "columns", "keep_going"),
    drop=("progress", "on_result"),
    also=_display,
)
