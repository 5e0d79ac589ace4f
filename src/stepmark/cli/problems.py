"""`stepmark problems`: files of problems: made with known truth, or read from others' files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from stepmark.cli.flags import ColumnsFlag, columns_of
from stepmark.cli.paths import check_out
from stepmark.errors import InputError, UsageError
from stepmark.records import record_row

if TYPE_CHECKING:
    from stepmark.records import Problem

app = App(name="problems", help="Make or read problems.", help_format="plaintext")
app.command(
    "stepmark.cli.problems:arithmetic_command",
    name="arithmetic",
    help="Make problems of the arithmetic world, whose true steps are known.",
)
app.command(
    "stepmark.cli.problems:read_command",
    name="read",
    help="Read problems of any known layout; write them in ours.",
)


def arithmetic_command(
    *,
    out: Path,
    count: int = 100,
    steps: tuple[int, int] = (4, 16),
    surface: Literal["formula", "story", "both"] = "both",
    distractors: int = 2,
    largest: int = 999,
    seed: int = 0,
    solutions: Path | None = None,
) -> int:
    """Make problems of the arithmetic world.

    Args:
        out: the file of problems: {"problem", "answer", "id"} a line, packed if it ends in .gz.
        count: how many.
        steps: least and most steps of the true solution.
        surface: bare operations, stories, or both.
        distractors: most numbers in a text that nothing depends on.
        largest: no quantity is larger; from 99 to 999.
        seed: another seed, other problems.
        solutions: write the true solutions too: {"problem", "steps", "answer", "id"} a line, which grading and labelling read.
    """
    from stepmark.problems.arithmetic import arithmetic_problems
    from stepmark.store import atomic_rows, check_writable

    if count < 1:
        raise UsageError(f"--count {count}: expected 1 or more")
    if solutions is not None:
        check_writable(solutions)
        if Path(solutions).resolve() == out.resolve():
            raise UsageError(f"--solutions {solutions} is --out too: it would be replaced; choose another")
    check_writable(out)
    made = list(
        arithmetic_problems(
            count, seed=seed, steps=steps, surface=surface, distractors=distractors, largest=largest
        )
    )
    if solutions is not None:
        with atomic_rows(solutions) as write:
            for one in made:
                problem = one.problem
                row = {
                    "problem": problem.text,
                    "steps": list(one.steps),
                    "answer": problem.answer,
                    "id": problem.id,
                }
                write(row)
    return _write(((one.problem, {}) for one in made), out)


def read_command(*files: Path, out: Path, limit: int | None = None, columns: ColumnsFlag = None) -> int:
    """Read problems of any known layout (problem or question; answer, gold or target; GSM8K's worked answers) and write them in ours.

    Args:
        files: by their endings .csv, .tsv, .parquet, .json, or else JSON lines; packed if they end in .gz.
        out: the file of problems: {"problem", "answer", "id", "meta"} a line, packed if it ends in .gz; meta holds the other columns.
        limit: take only so many, evenly spaced over the files.
        columns: which column is what, where the names differ: problem=task,answer=result (docs: files).
    """
    from stepmark.problems.sources import problem_rows

    if not files:
        raise UsageError("expected files of problems")
    check_out(str(out), *map(str, files), streams=True)
    found = []
    for file in files:
        for row in problem_rows(file, columns=columns_of(columns)):
            if isinstance(row, InputError):
                raise row
            found.append(row)
    if limit is not None:
        if limit < 1:
            raise UsageError(f"--limit {limit}: expected 1 or more")
        count = min(limit, len(found))
        found = [found[i * len(found) // count] for i in range(count)]
    return _write(((row.problem, row.meta) for row in found), out)


def _write(problems: Iterable[tuple[Problem, Mapping[str, Any]]], out: Path) -> int:
    from stepmark.store import atomic_rows, check_writable

    check_writable(out)
    count = 0
    with atomic_rows(out) as write:
        for problem, meta in problems:
            write({**record_row(problem), **({"meta": dict(meta)} if meta else {})})
            count += 1
    print(f"{count:,} problems in {out}", file=sys.stderr)
    return 0
