"""`stepmark label consensus`: what several labelled files of the same solutions agree on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stepmark.cli.flags import ColumnsFlag, columns_of
from stepmark.cli.label_report import write_beside
from stepmark.cli.paths import check_out, checked_input
from stepmark.errors import InputError, UsageError
from stepmark.labels.consensus import VIEW, Consensus, View, side_by_side, tally
from stepmark.records import LabelledSolution
from stepmark.solutions.interchange import read_labelled
from stepmark.solutions.interchange.labels import to_row
from stepmark.solutions.interchange.rows import LabelledRow
from stepmark.store import fingerprint, open_rows

ConsensusFlags = Annotated[Consensus, Parameter(name="*")]
_CONSENSUS = Consensus()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class ConsensusOptions:
    """What one run takes."""

    out: str
    """Write the solutions that are kept to this file (format stepmark-labels), packed if it ends in .gz."""
    columns: ColumnsFlag = None
    """Which column of FILES is what, where the names differ: problem=question,solution=response (docs: files)."""
    same_names: Literal["together", "apart"] | None = None
    """Judges of one name in several files are one source, or one a file (NAME:FILE). Needed only where there are such."""


def consensus_command(*files: str, labeller: ConsensusFlags = _CONSENSUS, options: ConsensusOptions) -> int:
    """Keep the solutions for which several sources of labels agree, and say why each other one is dropped.

    Args:
        files: labelled solutions, of stepmark label or in any format that stepmark convert reads. Rows are of the same solution
            if problem and steps read the same.
        labeller: the rule's flags.
        options: the run's flags.
    """
    if not files:
        raise UsageError(
            "expected files of labelled solutions: stepmark label consensus A.jsonl B.jsonl --out O.jsonl"
        )
    for file in files:
        checked_input(file)
    check_out(options.out, *files)
    read = [list(read_labelled(file, columns=columns_of(options.columns))) for file in files]
    outcomes = _outcomes(read)
    renamed = _sources(files, read, options.same_names)
    views = list(labeller.views(side_by_side(*renamed)))
    counts = tally(views)
    sources = Counter(name for view in views for name in view.places)
    dropped = [view for view in views if not view.kept]
    with closing(open_rows(options.out, _manifest(files, labeller, options), resumable=False)) as out:
        for view in views:
            if view.kept:
                meta = {**_facts(view), "first_error": view.first_error}
                out.write(to_row(view.with_view(), outcome=outcomes.get(_key(view.labelled)), meta=meta))
        out.finish({"sources": dict(sources), "kept": counts.kept, "dropped": dict(counts.dropped)})
    beside = write_beside(
        options.out,
        "dropped",
        [
            to_row(
                view.labelled,
                outcome=outcomes.get(_key(view.labelled)),
                meta={**_facts(view), "why": view.why, "reason": view.reason},
            )
            for view in dropped
        ],
    )
    at_error = sum(view.kept and view.first_error not in (None, -1) for view in views)
    clean = sum(view.kept and view.first_error == -1 for view in views)
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    said = [
        f"{len(views):,} solutions in {count}; sources: "
        + (", ".join(f"{name} ({count:,})" for name, count in sorted(sources.items())) or "none"),
        f"kept {counts.kept:,} by {labeller.rule}: {at_error:,} with a first error, {clean:,} without"
        + (
            f", {counts.kept - at_error - clean:,} where steps before it are open"
            if counts.kept > at_error + clean
            else ""
        ),
    ]
    if dropped:
        said.append(f"dropped {len(dropped):,}, each with its reason in {beside}:")
        said += [f"  {count:,} x {why}" for why, count in counts.dropped.items()]
    print("\n".join([*said, f"wrote {options.out}"]), file=sys.stderr)
    return 0


def _key(labelled: LabelledSolution) -> tuple[str, ...]:
    return (labelled.solution.problem.text, *labelled.solution.texts)


def _outcomes(read: Sequence[Sequence[LabelledRow]]) -> dict[tuple[str, ...], bool]:
    found: dict[tuple[str, ...], bool] = {}
    for rows in read:
        for row in rows:
            if row.outcome is not None and found.setdefault(_key(row.labelled), row.outcome) != row.outcome:
                raise InputError(
                    "another file says otherwise of this solution", where=row.where, field="outcome"
                )
    return found


def _facts(view: View) -> dict[str, Any]:
    return {"method": f"{VIEW}:{view.rule}", "places": dict(view.places)}


def _sources(
    files: Sequence[str], read: Sequence[Sequence[LabelledRow]], same: str | None
) -> list[list[LabelledSolution]]:
    """The files' solutions; judges whose name stands in several files are renamed where they are sources apart.

    Raises:
        UsageError: there are such, and nobody says whether they are one source; or files cannot be told by name.
    """
    names = [
        {j.judge for row in rows for step in row.labelled.judgements for j in step if _is_source(j.judge)}
        for rows in read
    ]
    shared = sorted(
        name for name, files_with in Counter(n for own in names for n in own).items() if files_with > 1
    )
    plain = [[row.labelled for row in rows] for rows in read]
    if not shared or same == "together":
        return plain
    where = [Path(file).name for file, own in zip(files, names, strict=True) if shared[0] in own]
    if same is None:
        raise UsageError(
            f"the judge {shared[0]!r} is in {' and in '.join(where)}: say whether that is one source "
            "(--same-names together) or one a file (--same-names apart)"
        )
    stems = [Path(file).name.partition(".")[0] for file in files]
    if len(set(stems)) < len(stems):
        raise UsageError(f"--same-names apart: files need different names, found {', '.join(stems)}")
    return [
        [_renamed(labelled, {name: f"{name}:{stem}" for name in shared}) for labelled in own]
        for own, stem in zip(plain, stems, strict=True)
    ]


def _is_source(judge: str) -> bool:
    return judge.partition(":")[0] != VIEW


def _renamed(labelled: LabelledSolution, names: Mapping[str, str]) -> LabelledSolution:
    steps = tuple(
        tuple(replace(j, judge=names.get(j.judge, j.judge)) for j in step) for step in labelled.judgements
    )
    root = tuple(replace(j, judge=names.get(j.judge, j.judge)) for j in labelled.root)
    return replace(labelled, judgements=steps, root=root)


def _manifest(files: Sequence[str], labeller: Consensus, options: ConsensusOptions) -> dict[str, Any]:
    known = [(Path(file).name, fingerprint(file)) for file in files]
    return {
        "command": "label consensus",
        "input": [
            {"name": name, "bytes": one.bytes, "sha256": one.sha256} for name, one in known if one is not None
        ],
        "method": asdict(labeller),
        "settings": {"same_names": options.same_names, "columns": options.columns},
    }
