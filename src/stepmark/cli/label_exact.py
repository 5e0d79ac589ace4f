"""`stepmark label exact`: wrong variants of right solutions, with true labels."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from stepmark.cli.flags import ColumnsFlag, Flag, columns_of
from stepmark.cli.label_report import write_beside
from stepmark.cli.paths import FileOrDash, check_out, checked_input, with_hint
from stepmark.errors import InputError, UsageError
from stepmark.labels.variants import ExactErrors, Variants, worked_of
from stepmark.problems.gsm8k import Worked, worked_row
from stepmark.records import LabelledSolution, Refusal
from stepmark.store import STDIO, fingerprint, open_rows, read_rows
from stepmark.store.columns import content_of

ExactFlags = Annotated[ExactErrors, Parameter(name="*")]
_EXACT = ExactErrors()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ExactOptions:
    """What one run takes."""

    out: str
    """Write the labelled solutions to this file (format stepmark-labels), packed if it ends in .gz."""
    arithmetic: int | None = None
    """Instead of FILE: right solutions of this many problems of the arithmetic world, made from --seed."""
    split: str = "auto"
    """How a text is cut into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole."""
    columns: ColumnsFlag = None
    """Which column of FILE is what, where the names differ: problem=question,solution=response (docs: files)."""
    keep_going: Flag = False
    """Leave out rows that are no solutions, and list them with those that no error could be put into."""


def exact_command(
    file: FileOrDash | None = None, /, *, labeller: ExactFlags = _EXACT, options: ExactOptions
) -> int:
    """Put errors into right solutions and carry them through the later steps: true labels, without any model.

    Args:
        file: right solutions, as JSON lines: GSM8K's rows ({"question", "answer"} with <<48/2=24>> and ####), or {"problem",
            "steps" or "solution", "answer"} whose steps write their calculations out (48 / 2 = 24).
        labeller: the method's flags.
        options: the run's flags.
    """
    check_out(options.out, file)
    if (file is None) == (options.arithmetic is None):
        raise UsageError("expected either FILE, right solutions as JSON lines, or --arithmetic COUNT")
    if options.arithmetic is not None and options.arithmetic < 1:
        raise UsageError(f"--arithmetic {options.arithmetic}: expected 1 or more")
    made: Counter[str] = Counter()
    nowhere: Counter[str] = Counter()
    refused: list[dict[str, Any]] = []
    with closing(open_rows(options.out, _manifest(file, labeller, options), resumable=False)) as out:
        for where, worked in _hinted(_sources(file, labeller, options), options):
            try:
                if isinstance(worked, Refusal):
                    raise worked.error
                variants = labeller.make(worked)
            except InputError as error:
                refused.append({"where": where, "why": error.message})
                continue
            made["right"] += 1
            made["twin"] += len(variants.twins)
            made.update(variants.kinds)
            nowhere.update(variants.without)
            for row in _rows(variants, where):
                out.write(row)
        if not made:
            why = f": {refused[0]['where']}: {refused[0]['why']}" if refused else ""
            raise InputError(f"no error could be put into any solution{why}", where=file)
        facts = {"made": made, "no_place": nowhere, "refused": Counter(one["why"] for one in refused)}
        out.finish({name: dict(counts.most_common()) for name, counts in facts.items()})
    beside = write_beside(options.out, "refused", refused)
    print(_said(made, nowhere, refused, beside, options.out), file=sys.stderr)
    return 0


_Sources = Iterator[tuple[str, Worked | Refusal]]


def _hinted(sources: _Sources, options: ExactOptions) -> _Sources:
    try:
        yield from sources
    except InputError as error:
        raise with_hint(error, keep_going=options.keep_going) from error.__cause__


def _sources(file: str | None, labeller: ExactErrors, options: ExactOptions) -> _Sources:
    """Right solutions, each with its name: NAME:LINE, or the world's own."""
    if file is None:
        from stepmark.problems.arithmetic import arithmetic_problems

        for number, problem in enumerate(arithmetic_problems(options.arithmetic or 0, seed=labeller.seed)):
            yield problem.id or f"arithmetic:{number}", problem.worked
        return
    if file == STDIO:
        raise UsageError("stepmark label exact reads its file more than once; give it a name, not -")
    columns = columns_of(options.columns)
    first = next(read_rows(checked_input(file, again=True), columns=columns, keep_going=options.keep_going))
    gsm8k = (
        not isinstance(first, Refusal)
        and {"question", "answer"} <= set(first.data)
        and not content_of(first.data, first.named)
    )
    rows = _gsm8k(file, options) if gsm8k else _solutions(file, options)
    for where, worked in rows:
        name = Path(where).name
        yield name, worked if isinstance(worked, Refusal) else _named(worked, where, name)


def _named(worked: Worked, where: str, name: str) -> Worked:
    # Without the folder: equal inputs give equal files wherever they lie.
    own = worked.problem.id
    return replace(worked, problem=replace(worked.problem, id=name if own in (None, where) else own))


def _gsm8k(file: str, options: ExactOptions) -> Iterator[tuple[str, Worked | Refusal]]:
    for row in read_rows(file, columns=columns_of(options.columns), keep_going=options.keep_going):
        if isinstance(row, Refusal):
            yield row.error.where or file, row
            continue
        try:
            yield row.where, worked_row(row)
        except InputError as error:
            if not options.keep_going:
                raise
            yield row.where, Refusal(solution=None, error=error)


def _solutions(file: str, options: ExactOptions) -> Iterator[tuple[str, Worked | Refusal]]:
    from stepmark.solutions.formats import read_solutions

    rows = read_solutions(
        file, columns=columns_of(options.columns), how=options.split, keep_going=options.keep_going
    )
    for row in rows:
        if isinstance(row, Refusal):
            yield row.error.where or file, row
            continue
        try:
            yield row.where, worked_of(row.solution)
        except InputError as error:
            # A solution that is not right is no broken row: it is left out and counted.
            yield row.where, Refusal(solution=row.solution, error=error)


def _rows(variants: Variants, where: str) -> Iterator[dict[str, Any]]:
    """The right solution, the wrong ones, each twin; ids say what was made of what."""
    from stepmark.solutions.interchange.labels import to_row

    base = variants.right.solution.problem.id or where

    def row(labelled: LabelledSolution, name: str, outcome: bool, **facts: Any) -> dict[str, Any]:
        named = replace(labelled, solution=replace(labelled.solution, id=f"{base}/{name}"))
        return to_row(named, outcome=outcome, meta={"method": "exact", "from": where, **facts})

    yield row(variants.right, "right", True, first_error=-1)
    for number, (wrong, kind) in enumerate(zip(variants.wrong, variants.kinds, strict=True), start=1):
        place = next(i for i, step in enumerate(wrong.judgements) if any(j.rating == -1 for j in step))
        # A wrong unit leaves the answer's number as it is.
        yield row(wrong, f"wrong-{number}", kind == "unit", first_error=place, kind=kind)
    for number, twin in enumerate(variants.twins, start=1):
        yield row(twin, f"twin-{number}", True, first_error=-1, kind="jump")


def _manifest(file: str | None, labeller: ExactErrors, options: ExactOptions) -> dict[str, Any]:
    known = None if file is None else fingerprint(file)
    source = (
        {"arithmetic": options.arithmetic}
        if file is None or known is None
        else {"name": Path(file).name, "bytes": known.bytes, "sha256": known.sha256}
    )
    return {
        "command": "label exact",
        "input": source,
        "method": {"name": "exact", **asdict(labeller)},
        "settings": {
            "split": options.split,
            "columns": options.columns,
            "keep_going": options.keep_going,
        },
    }


def _said(
    made: Counter[str], nowhere: Counter[str], refused: list[dict[str, Any]], beside: str | None, out: str
) -> str:
    kinds = {kind: count for kind, count in made.most_common() if kind not in ("right", "twin")}
    lines = [
        f"{made['right']:,} right solutions, {made['twin']:,} right twins of jumps, {sum(kinds.values()):,} wrong ones: "
        + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    ]
    if nowhere:
        lines.append("no place for " + ", ".join(f"{kind} in {n:,}" for kind, n in nowhere.most_common()))
    if refused:
        lines.append(f"left out {len(refused):,} solutions, listed in {beside}:")
        reasons: dict[str, list[str]] = {}
        for one in refused:
            # "step 3 is not right: …" tells of one row; the count is of the kind of reason.
            reasons.setdefault(one["why"].partition(":")[0], []).append(one["where"])
        for why, places in sorted(reasons.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {len(places):,} x {why} (first: {places[0]})")
    return "\n".join([*lines, f"wrote {out}"])
