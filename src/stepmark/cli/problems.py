"""`stepmark problems`: files of problems, made with known truth or read from others' files."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from stepmark.cli import options as opt
from stepmark.cli import print_note
from stepmark.problems.arithmetic import make_problems
from stepmark.problems.loading import load_problems

app = App(name="problems", help="Make or read problems.", help_format="plaintext")


@app.command
@opt.documented_by(make_problems)
def arithmetic(
    *,
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    count: Annotated[int, opt.in_common("--count")] = 100,
    steps: Annotated[tuple[int, int], opt.in_common("--steps")] = (4, 16),
    seed: Annotated[int, opt.in_common("--seed")] = 0,
    solutions: Annotated[opt.FileOrDash | None, opt.in_method("--solutions")] = None,
    surface: Annotated[Literal["formula", "story", "both"], opt.in_method("--surface")] = "both",
    distractors: Annotated[int, opt.in_method("--distractors")] = 2,
    largest: Annotated[int, opt.in_method("--largest")] = 999,
) -> int:
    """See `problems.arithmetic.make_problems`."""
    made = make_problems(
        out=out,
        count=count,
        steps=steps,
        seed=seed,
        solutions=solutions,
        surface=surface,
        distractors=distractors,
        largest=largest,
    )
    print_note(made.summary)
    return 0


@app.command
@opt.documented_by(load_problems)
def read(
    *file: Annotated[opt.FileOrDash, Parameter(help="files of problems", required=True)],
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    limit: opt.Limit | None = None,
    columns: opt.Columns | None = None,
) -> int:
    """See `problems.loading.load_problems`."""
    print_note(load_problems(file, out=out, limit=limit, columns=columns).summary)
    return 0
