"""What all `stepmark evaluate` commands share: their options, the grading pass that resumes, and what they write."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from stepmark.cli.flags import Flag
from stepmark.cli.prm_flags import PRMFlags
from stepmark.cli.progress import Progress
from stepmark.errors import BackendError, StepmarkError, UsageError
from stepmark.store import check_readable, fingerprint, hold

if TYPE_CHECKING:
    from stepmark.evaluation.cases import Case
    from stepmark.evaluation.result import Result
    from stepmark.evaluation.scores import Sheet
    from stepmark.models.prm import PRM


class _Reading(TypedDict):
    """How every evaluation has its PRM read."""

    truncate: bool
    outcome: bool
    also: Collection[str]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateOptions(PRMFlags):
    """What every evaluation takes. What decides the scores is kept in their manifest."""

    scores: str | None = None
    """Measure the scores of this file instead of grading: what an earlier run, stepmark grade or others wrote."""
    model_name: str | None = None
    """Which model's scores, where the file holds several; with --scores, the name in the report."""
    out: Path | None = None
    """Folder for the scores, the result (JSON) and the report (HTML). Left out: evaluation/NAME."""
    limit: int | None = None
    """Take only so many problems, evenly spaced over the data. The report says so."""
    resamples: int = 1000
    """Bootstrap resamples of the intervals."""
    seed: int = 0
    """Of the resamples, of random changes, and of a generative PRM's critiques."""
    neutral: Literal["positive", "negative"] = "positive"
    """What the neutral class of a three-class PRM, and a neutral human rating, count as."""
    refuse_long: Flag = False
    """Refuse solutions beyond the model's length whole, instead of leaving only the steps past it without a score."""


Data = Annotated[tuple[str, ...], Parameter(name="--data", consume_multiple=True, negative="")]
"""Files, folders, or "hub"."""

DEFAULTS = EvaluateOptions()
"""Every option left out."""

_SCORING = (
    *(field.name for field in fields(PRMFlags) if field.name not in ("token_budget", "seed")),
    "refuse_long",
)
"""The options that decide the scores."""


RATINGS = ("neutral",)
"""The PRM's settings that mean something for ratings of people too."""

_EVERYWHERE = ("truncate", "seed")
"""The PRM's settings that every evaluation sets, or that mean something else too."""


def of_model(name: str) -> set[str]:
    """The flags of the PRM that an outcome model of this name beside it is loaded with too."""
    from stepmark.models.named import SHARED, idle_settings

    return set(SHARED) - set(idle_settings(name))


def of_policy(address: str | None) -> set[str]:
    """The flags of the PRM that a policy beside it is loaded with too; None: there is none."""
    from stepmark.models.policies import in_process

    return {"dtype", "device"} if address is not None and in_process(address) else set()


def _scoring(options: EvaluateOptions) -> dict[str, Any]:
    # The seed too where critiques may be sampled: generative families are always named.
    return {key: getattr(options, key) for key in (*_SCORING, *(("seed",) if options.family else ()))}


def folder_of(name: str, options: EvaluateOptions) -> Path:
    """The folder that a run writes to, made if need be.

    Raises:
        UsageError: it is a file, or cannot be made.
    """
    folder = options.out or Path("evaluation") / name
    _make(folder)
    return folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror or error}; expected a folder") from error


def provenance(files: Sequence[str]) -> list[dict[str, Any]]:
    """Name, size and hash of each file.

    Raises:
        InputError: one cannot be read.
        UsageError: one is a pipe, which can be read only once.
    """
    found = []
    for file in files:
        check_readable(file)
        known = fingerprint(file)
        if known is None:
            raise UsageError(f"--data {file}: expected a file; what is read must be named by its hash")
        found.append({"name": Path(file).name, "bytes": known.bytes, "sha256": known.sha256})
    return found


def limited(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """The cases of `limit` problems, evenly spaced in the order of the data; all of them for None.

    Raises:
        UsageError: not a positive number.
    """
    if limit is None:
        return list(cases)
    if limit < 1:
        raise UsageError(f"--limit {limit}: expected 1 or more")
    problems = list(dict.fromkeys((case.group, case.problem) for case in cases))
    if limit >= len(problems):
        return list(cases)
    kept = {problems[at * len(problems) // limit] for at in range(limit)}
    return [case for case in cases if (case.group, case.problem) in kept]


def scored(
    name: str,
    cases: Sequence[Case],
    files: Sequence[str],
    options: EvaluateOptions,
    *,
    outcome: bool = False,
    also: Collection[str] = (),
    **extra: Any,
) -> Sheet:
    """The cases with scores: from `--scores`, from an earlier run with the same settings, or graded now.

    Args:
        name: of the evaluation.
        cases: what to score; solutions of one problem are brought together for grading.
        files: the data, for the manifest.
        options: the flags.
        outcome: read only the last step: the model as an outcome reward model, with a file of its own.
        also: as for `check`.
        extra: further settings that decide what the cases are.

    Raises:
        UsageError: a finished file of scores made with other settings.
    """
    from stepmark.evaluation.scores import grade_cases, read_scores

    if not cases:
        raise UsageError("there is nothing to evaluate in the data")
    check(options, also=also)
    if options.scores is not None:
        return read_scores(options.scores, cases, model=options.model_name)
    path = folder_of(name, options) / ("outcomes.jsonl" if outcome else "scores.jsonl")
    manifest = json.loads(
        json.dumps(
            {
                "command": f"evaluate {name}",
                "data": provenance(files),
                "limit": options.limit,
                # The texts themselves: how they are cut, changed or read may differ between versions.
                "cases": _digest(cases),
                **extra,
                "settings": _scoring(options),
            }
        )
    )
    if path.exists():
        check_same(path, manifest)
        try:
            identity = options.identity(**_reading(options, outcome=outcome, also=also))
        except StepmarkError as error:
            error.add_note(f"{path} has scores of an earlier run; --scores {path} measures them as they are")
            raise
        check_same(path, manifest | {"models": {"prm": identity}})
        print(f"{path} has the scores of an earlier run with these settings, by {identity}", file=sys.stderr)
        return read_scores(path, cases)
    together: dict[str, list[Case]] = {}
    for case in cases:
        together.setdefault(case.problem, []).append(case)
    ordered = [case for group in together.values() for case in group]
    try:
        with hold(path.parent):
            prm = load(options, outcome=outcome, also=also)
            progress = Progress(len(ordered), done=_done(path), tokens=lambda: prm.ledger.tokens_computed)
            with progress:
                grade_cases(ordered, prm, path, manifest, advance=progress.advance)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"the scores so far are kept in {path}.part; the same command continues"
        ) from None
    except BackendError as error:
        error.add_note(f"the scores so far are kept in {path}.part; the same command continues")
        raise
    return read_scores(path, cases)  # in the order of the data, and exactly what is on disk


def _digest(cases: Sequence[Case]) -> str:
    digest = hashlib.sha256()
    for case in cases:
        solution = case.solution
        text = json.dumps(
            [case.id, solution.problem.text, *((step.text, step.observation) for step in solution.steps)]
        )
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def _done(path: Path) -> int:
    part = path.with_name(path.name + ".part")
    return part.read_bytes().count(b"\n") if part.exists() else 0


def check_same(path: Path, manifest: dict[str, Any]) -> None:
    """Refuse to take a finished file for what another manifest would make.

    Raises:
        UsageError: they differ; the message says in what.
    """
    beside = path.with_name(path.name + ".manifest.json")
    old = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    differing = list(_differing(old, manifest))
    if differing:
        said = ", ".join(
            f"{key} was {json.dumps(was)[:200]} and is now {json.dumps(now)[:200]}"
            for key, was, now in differing
        )
        raise UsageError(
            f"{path} was made otherwise: {said}. Choose another --out, delete it, or measure it as it is with "
            f"--scores {path}"
        )


def _differing(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What `new` has otherwise; of settings each by its own name."""
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            yield from ((f"{key}.{name}", was, now) for name, was, now in _differing(before, value))
        elif before != value:
            yield key, before, value


def load(options: EvaluateOptions, *, outcome: bool = False, also: Collection[str] = ()) -> PRM:
    """The PRM that the options name; `also` as for `check`."""
    if sys.stderr.isatty():
        print(f"loading {options.prm} ...", file=sys.stderr, flush=True)
    return options.load(**_reading(options, outcome=outcome, also=also))


def _reading(options: EvaluateOptions, *, outcome: bool, also: Collection[str]) -> _Reading:
    return {"truncate": not options.refuse_long, "outcome": outcome, "also": (*_EVERYWHERE, *also)}


def check(options: EvaluateOptions, *, also: Collection[str] = (), asked: bool = True) -> None:
    """Refuse options that cannot work, before anything is read or loaded.

    Args:
        options: the flags.
        also: fields that mean something beside the PRM in this evaluation; see `PRMFlags.check_meant`.
        asked: whether the evaluation asks the PRM where --scores does not stand for it.

    Raises:
        UsageError: one cannot be, or means nothing for this PRM.
    """
    options.check_device()
    if options.scores is not None or not asked:
        why = "no PRM is asked here" if options.scores is None else "with --scores no PRM is asked"
        options.check_unasked(f"{why}: leave it out", also=(*_EVERYWHERE, *also))
    else:
        options.check_meant(also=(*_EVERYWHERE, *also))
    options.check_least([("token_budget", 1), ("samples", 1), ("limit", 1), ("resamples", 100), ("seed", 0)])
    if options.scores is not None:
        check_readable(options.scores)


def settings_of(options: EvaluateOptions, sheet: Sheet | None = None) -> dict[str, Any]:
    """The options as the result's provenance keeps them; of a PRM that was not asked (`--scores`) none.

    Args:
        options: the flags.
        sheet: the scores, whose PRM's identity is kept too where it is known.
    """
    whose = {} if sheet is None or sheet.identity is None else {"prm_identity": sheet.identity}
    idle = set(_SCORING) - {"seed"} if options.scores is not None else ()
    return {
        key: None if key in idle else str(value) if isinstance(value, Path) else value
        for key, value in asdict(options).items()
    } | whose


def finish(result: Result, options: EvaluateOptions) -> int:
    """Write a result to the run's folder; see `write_result`."""
    return write_result(result, folder_of(result.evaluation, options))


def write_result(result: Result, folder: Path) -> int:
    """Write the report, the result and its Markdown; print the tables of the first section.

    Raises:
        UsageError: the folder cannot be made or written to.
    """
    from rich.console import Console

    from stepmark.evaluation.result import write_html, write_json, write_markdown
    from stepmark.show.tables import Table, terminal

    _make(folder)
    write_json(result, folder / "result.json")
    write_markdown(result, folder / "result.md")
    write_html(result, folder / "report.html")
    # Where no one looks, the width of no terminal: a table that is wrapped there helps nobody.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(result.title, style="bold", markup=False, highlight=False)
    for fact in result.facts:
        console.print(fact, markup=False, highlight=False)
    for item in result.sections[0].items:
        if isinstance(item, Table):
            console.print()
            console.print(terminal(item))
    print(
        f"wrote {folder / 'report.html'}, {folder / 'result.json'} and {folder / 'result.md'}",
        file=sys.stderr,
    )
    return 0


def sampled(kept: int, of: int) -> Sequence[str]:
    """The sentence that says that only a part of the data was taken."""
    return (
        ()
        if kept == of
        else (f"Only {kept:,} of the data's {of:,} solutions were taken (--limit), evenly spaced.",)
    )
