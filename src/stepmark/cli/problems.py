"""`stepmark problems`: files of problems, made with known truth or read from others' files."""

from __future__ import annotations

from cyclopts import App

from stepmark.cli.twin import Call, command, report
from stepmark.problems.arithmetic import make_problems
from stepmark.problems.sources import load_problems

app = App(name="problems", help="Make or read problems.", help_format="plaintext")


def _make(call: Call) -> int:
    settings = dict(call.settings)
    report(make_problems(out=settings.pop("out") or "-", **settings).summary)
    return 0


def _read(call: Call) -> int:
    settings = dict(call.settings)
    report(load_problems(call.inputs, out=settings.pop("out") or "-", **settings).summary)
    return 0


app.command(
    command(make_problems, _make, file=None, common=("out", "count", "steps", "seed")), name="arithmetic"
)
app.command(
    command(load_problems, _read, file="files of problems", many=True, common=("out", "limit", "columns")),
    name="read",
)
