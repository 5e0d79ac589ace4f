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
    """Make problems of the arithmetic world, whose true steps, answers and values are known.

    Args:
        out: write the problems to this file: {"problem", "answer", "id"} a line, gzipped if its name ends in .gz; "-" for standard output.
        count: number of problems.
        steps: least and most steps of the true solution, the answer among them; from 2 to 16.
        seed: another seed, other problems; equal seeds give equal problems.
        solutions: write the true solutions to this file: {"problem", "steps", "answer", "id"} a line, which grading and labelling read.
        surface: bare operations (formula), stories (story), or both.
        distractors: most numbers in a text that nothing depends on.
        largest: no quantity is larger; from 99 to 999.
    """
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
def read(
    *file: Annotated[opt.FileOrDash, Parameter(help="files of problems", required=True)],
    out: Annotated[opt.FileOrDash, opt.in_common("--out")] = "-",
    limit: opt.Limit | None = None,
    columns: opt.Columns | None = None,
) -> int:
    """Read problems of any known layout.

    Known are problem, question or prompt; answer, gold or target; GSM8K's worked answers, whose reference answer follows "####"; and ids.
    Other columns are kept under meta.

    Args:
        out: write the problems to this file: {"problem", "answer", "id", "meta"} a line, gzipped if its name ends in .gz; "-" for standard output.
    """
    print_note(load_problems(file, out=out, limit=limit, columns=columns).summary)
    return 0
