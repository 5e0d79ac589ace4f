"""`stepmark grade`: a file of solutions in; scores, verdicts and a summary out."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from stepmark.cli.answering import RAY, check_ray, ray_workers
from stepmark.cli.flags import Flag
from stepmark.cli.grading import Run, summary
from stepmark.cli.paths import FileOrDash
from stepmark.cli.prm_flags import PRMFlags
from stepmark.cli.progress import Progress
from stepmark.errors import InputError, StepmarkError, UsageError
from stepmark.store import (
    STDIO,
    Fingerprint,
    RowWriter,
    check_readable,
    check_writable,
    fingerprint,
    is_stream,
    open_rows,
)

if TYPE_CHECKING:
    from stepmark.models.prm import PRM

SHOWN = 5
"""Solutions shown in full on a terminal."""

_COUNTED_UP_TO = 1 << 28
"""Bytes of a file that are read beforehand only to know how many rows there are."""

_MOST_WORKERS = 1024
"""On a cluster, where no flag says how many."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class GradeOptions(PRMFlags):
    """The settings of one run. What decides the numbers is kept in the output's manifest."""

    aggregate: str | None = None
    """How step scores become one number: product, min, mean, last, max, sum-logit or softmin. Left out: the PRM's own."""
    threshold: float | None = None
    """A step whose score is under this is an error. Left out: the PRM's own."""
    split: str = "auto"
    """How a text is cut into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole, token."""
    marker: str | None = None
    """The text that ends each step, for --split marker."""
    out: FileOrDash | None = None
    """Write the graded rows to this file, packed if it ends in .gz; "-" for standard output."""
    report: FileOrDash | None = None
    """Write an HTML report, which needs no network, to this file."""
    orm: str | None = None
    """An outcome reward model: its one verdict on the whole solution stands beside the steps."""
    truncate: Flag = False
    """Leave steps beyond the model's length without a score (null) instead of refusing the solution."""
    keep_going: Flag = False
    """Leave out rows that cannot be graded, and list them at the end."""
    show: int | None = None
    """Print this many graded solutions for people, in colour on a terminal (5 there unless --out is given)."""
    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: int | None = None
    """Workers on the cluster, each with its own PRM. Left out: as many as have room now, at most 1,024."""
    ray_cpus: float = 1
    """Processors that each worker is given, and threads of its models."""
    ray_gpus: float = 0
    """GPUs that each worker is given; 0.5 puts two on one."""


_NO_NUMBERS = ("out", "report", "keep_going", "token_budget", "show", *RAY)
"""The options that do not decide what a graded row is; a run may be continued with others."""

_OF_MODELS = (*(field.name for field in fields(PRMFlags)), "truncate", "orm")
"""The options that workers load their models by."""


def grade_command(file: FileOrDash, /, *, options: GradeOptions = GradeOptions()) -> int:
    """Grade solutions step by step with a PRM.

    FILE holds JSON lines, such as {"problem": "…", "steps": ["…", "…"]} or {"problem": "…", "solution": "…"}; TRL rows
    (prompt, completions), chat messages and ProcessBench rows are read too. Graded rows go to --out or, when
    standard output is no terminal, there. A run that is stopped continues when the same command is given again.

    Args:
        file: JSON lines, packed if it ends in .gz; "-" for standard input.
        options: the flags.
    """
    from stepmark.models.identity import identity_of
    from stepmark.scoring.grade import Grade
    from stepmark.solutions.formats import read_solutions

    _check(file, options)
    show = _shown(options)
    rows = read_solutions(file, how=options.split, marker=options.marker, keep_going=options.keep_going)
    # The first row before the model: a file that is no file of solutions is refused in no time.
    rows = chain([next(rows)], rows)
    known = _fingerprint(file, always=options.out is not None and not is_stream(options.out))
    for_people = options.out is None and show > 0
    target = os.devnull if for_people else options.out
    with ExitStack() as stack:
        writer = open_rows(target, _manifest(file, known, options), resumable=known is not None)
        out = stack.enter_context(closing(writer))
        prm, orm = _load(options, stack, left=None if known is None else max(1, known.lines - out.done))
        if not is_stream(target):
            out.identify({"prm": identity_of(prm)} | ({} if orm is None else {"orm": identity_of(orm)}))
        progress = Progress(
            None if known is None else known.lines, done=out.done, tokens=lambda: prm.ledger.tokens_computed
        )
        run = Run(
            file=file,
            rows=rows,
            out=out,
            prm=prm,
            orm=orm,
            settings=Grade(aggregate=options.aggregate, threshold=options.threshold).of(prm),
            options=options,
            show=show,
            progress=progress,
        )
        try:
            with progress:
                run.all()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_kept(out) or "nothing was kept") from None
        except StepmarkError as error:
            for note in (_kept(out), _way_out(error, options)):
                if note is not None:
                    error.add_note(note)
            raise
    print(summary(run), file=sys.stderr)
    return 0


def _load(options: GradeOptions, stack: ExitStack, *, left: int | None) -> tuple[PRM, PRM | None]:
    """The PRM and the outcome model: of this process, or of a cluster's workers for about so many solutions."""
    if options.ray is not None:
        return _on_cluster(options, stack, left=left)
    if sys.stderr.isatty():
        print(f"loading {options.prm} ...", file=sys.stderr, flush=True)
    of_orm = _of_orm(options)
    prm = options.load(truncate=options.truncate, also=of_orm)
    if options.orm is None:
        return prm, None
    from stepmark.models.load import load_prm

    return prm, load_prm(options.orm, outcome=True, **of_orm)


def _of_orm(options: GradeOptions) -> dict[str, Any]:
    """What the outcome model is loaded with, of the settings that the PRM is loaded with too."""
    from stepmark.models.named import SHARED, read_by

    if options.orm is None:
        return {}
    return read_by(options.orm, {name: getattr(options, name) for name in SHARED})


def _on_cluster(options: GradeOptions, stack: ExitStack, *, left: int | None) -> tuple[PRM, PRM | None]:
    from stepmark.scoring.workers import BUILD, SpreadPRM

    settings = {name: getattr(options, name) for name in _OF_MODELS}
    most = _MOST_WORKERS if left is None else min(left, _MOST_WORKERS)
    workers = stack.enter_context(ray_workers(options, BUILD, settings, most=most))
    prm = SpreadPRM(workers, expected=left)
    return prm, None if options.orm is None else SpreadPRM(workers, which="orm", expected=left)


def _check(file: str, options: GradeOptions) -> None:
    """Everything that can be known to be wrong before a file is read or a model loaded."""
    from stepmark.scoring.aggregate import check_aggregate
    from stepmark.solutions.segmentation import check_way, split

    if options.aggregate is not None:
        check_aggregate(options.aggregate, "probability")
    check_way(options.split)
    if options.marker is not None and options.split != "marker":
        raise UsageError(
            f"--marker {options.marker}: this is for --split marker, and --split is {options.split}"
        )
    if options.split != "agent":
        split("-", options.split, marker=options.marker)
    options.check_device()
    check_ray(options)
    options.check_least([("show", 0), ("token_budget", 1), ("samples", 1)])
    options.check_meant(truncate=options.truncate, also=_of_orm(options))
    if options.threshold is not None and options.threshold != options.threshold:
        raise UsageError("--threshold nan: expected a number")
    if options.show and options.out is not None and is_stream(options.out):
        raise UsageError(f"--show prints where --out {options.out} puts the rows; give --out a file's name")
    files = {"FILE": file, "--out": options.out, "--report": options.report}
    taken: dict[Path, str] = {}
    for name, path in files.items():
        if path is None or (path == STDIO and name != "--report"):
            continue
        if path == STDIO:
            raise UsageError("--report -: expected a file's name")
        (check_readable if name == "FILE" else check_writable)(path)
        if is_stream(path):
            continue
        place = Path(path).resolve()
        if place in taken:
            raise UsageError(f"{name} {path} is {taken[place]} too: it would be replaced; choose another")
        taken[place] = name


def _shown(options: GradeOptions) -> int:
    if options.show is not None:
        return options.show
    return SHOWN if options.out is None and sys.stdout.isatty() else 0


def _fingerprint(file: str, *, always: bool) -> Fingerprint | None:
    if file == STDIO or (not always and Path(file).is_file() and Path(file).stat().st_size > _COUNTED_UP_TO):
        return None
    return fingerprint(file)


def _manifest(file: str, known: Fingerprint | None, options: GradeOptions) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(options).items() if name not in _NO_NUMBERS}
    read = None if known is None else {"name": Path(file).name, "bytes": known.bytes, "sha256": known.sha256}
    return {"command": "grade", "input": read, "settings": settings}


def _kept(out: RowWriter) -> str | None:
    """What an unfinished run leaves, in words."""
    if out.part is None or not out.written:
        return None
    return f"{out.written} rows are kept in {out.part}; the same command continues from there"


def _way_out(error: StepmarkError, options: GradeOptions) -> str | None:
    of_a_row = isinstance(error, InputError) and re.search(r":\d+( \(.*\))?$", error.where or "")
    if of_a_row and not options.keep_going:
        return "with --keep-going, rows that cannot be graded are left out and listed"
    return None
