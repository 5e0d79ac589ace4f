"""Solutions as cases, strict, with `FILE:LINE`: labelled ones, and others whose answer is known or can be compared.

Every format of `stepmark.data.formats` is read, lists of candidates among them (`id`, `question`, `gold`, `candidates`, each with
`model`, `text`, `answer`, `correct`, `tokens`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

from stepmark.data.columns import Columns
from stepmark.data.formats import math_shepherd, own
from stepmark.data.formats.prmbench import KEYS as PRMBENCH_KEYS
from stepmark.data.formats.prmbench import prmbench_labelled, unnumbered
from stepmark.data.formats.rows import Counts, LabelledRow, ReaderSettings, need
from stepmark.data.labelled import detect, items_of_rows
from stepmark.data.reading import Row, Source, read_rows, row_files
from stepmark.data.solutions import candidates_of, solutions_of, ungraded
from stepmark.data.traces import TRACES, chat_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Case, unique
from stepmark.records import DEFAULT_AXIS, LabelledSolution, Step, read_record

_KEYS = {
    "processbench": ("final_answer_correct", "label"),
    "prmbench": ("modified_process", "error_steps"),
    "stepmark-labels": own.KEYS,
    "math-shepherd": math_shepherd.KEYS,
}
"""Format to the few columns that no other has, so that its reader says which of the others is missing."""


def _case(row: LabelledRow, format: str) -> Case:
    id, source = row.solution.id or row.origin, row.solution.problem.source or ""
    groups = {
        "processbench": subset(id, row.where),
        "stepmark-labels": source,
        "math-shepherd": source,
        "trl": "",
    }
    return Case(
        id=id,
        labelled=row.labelled,
        where=row.where,
        group=groups.get(format, format),
        outcome=row.outcome,
        policy=row.solution.source,
        answer=row.meta.get("answer") if format == "math-shepherd" else None,
        unchecked=row.outcome is None,
    )


def files_of(
    data: Sequence[str], *, dataset: str | None = None, names: Sequence[str] = ()
) -> tuple[str, ...]:
    """The files that `data` names: files as they are, of a folder all whose ending says that they hold rows, "hub"
    downloads those of a hub repository.
    """
    results: list[str] = []
    for name in data:
        if name == "hub":
            results += _downloaded(dataset, names)
        elif Path(name).is_dir():
            results += row_files(name)
        else:
            results.append(name)
    if not results:
        raise UsageError("expected `data`: a file, a folder or hub")
    return tuple(results)


def _downloaded(dataset: str | None, names: Sequence[str]) -> list[str]:
    if dataset is None:
        raise UsageError("`data` hub: this evaluation has no hub data; name a file")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UsageError("`data` hub needs huggingface_hub: pip install huggingface_hub") from None
    try:
        return [hf_hub_download(dataset, name, repo_type="dataset") for name in names]
    except Exception as error:  # of many kinds: no network, no such revision, a proxy's refusal
        raise UsageError(
            f"{dataset} could not be downloaded ({error}); fetch {', '.join(names)} yourself and give their folder as `data`"
        ) from error


_NUMBERED = re.compile(r"(.+)-[0-9]{1,7}")


def subset(id_: str, place: str) -> str:
    """The subset that an id names ("gsm8k-12"); of other ids the name of the file, of which `place` may be FILE:LINE."""
    named = _NUMBERED.fullmatch(id_)
    return named[1] if named else Path(place).name.split(".")[0].split(":")[0]


def read_prmbench(
    files: Sequence[Source],
    *,
    lengths: Mapping[str, int] | None = None,
    columns: Columns | None = None,
    numbered: bool = True,
) -> list[Case]:
    """PRMBench rows (Song et al. 2025): every step judged, wrong where `error_steps` (1-based) says so.

    As the benchmark's own loader and script have it: of rows with the same class and index the first counts; an
    error step past the last step says nothing (about one row in sixty of the published data has one). Step numbers
    and white space around a step are layout. A blank step stays; no PRM can read it, so that row will have no scores.

    Args:
        files: the data.
        lengths: id to the number of its scores, where scores are there already. Of rows with one id the first of that
            length then counts: R-PRM's published scores are of the later row of two different ones.
        columns: as `store.read_rows`.
        numbered: whether a number in front of a step ("3. ") is layout.
    """
    rows = (row for file in files for row in read_rows(file, columns=columns))
    return _prmbench_cases(rows, lengths or {}, numbered=numbered)


def _prmbench_cases(rows: Iterable[Row], lengths: Mapping[str, int], *, numbered: bool = True) -> list[Case]:
    kept: dict[str, Case] = {}
    for row in rows:
        case = _prmbench(row, numbered)
        before = kept.setdefault(case.id, case)
        length = lengths.get(case.id)
        if len(before.solution.steps) != length == len(case.solution.steps):
            kept[case.id] = case
    return list(kept.values())


def _prmbench(row: Row, numbered: bool) -> Case:
    need(row, PRMBENCH_KEYS, "PRMBench")
    texts = row.data["modified_process"]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError("expected a list of texts, one a step", where=row.where, field="modified_process")
    steps = tuple(unnumbered(text) if numbered else Step(text=text.strip()) for text in texts)
    labelled = prmbench_labelled(row, steps)
    kind, index = row.data["classification"], row.data["idx"]
    return Case(id=f"{kind}_{index}", labelled=labelled, where=row.where, group=kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What a solution's row, or its entry in a list of candidates, says of it beside its text."""

    correct: bool | None = None
    model: str | None = None
    tokens: int | None = None
    answer: str | int | float | None = None
    greedy: bool = False


def _solutions(rows: Iterable[Row], how: str) -> Iterator[Case]:
    """Solutions without labels, a case each; those of a row with several are named ID/NUMBER, without an id NAME:LINE/NUMBER.

    An entry of a list may have `correct` (true, false or null), `answer`, `tokens` and `greedy`; a row of one solution `correct`, and
    `outcome` and `tokens` under `meta`, as `stepmark sample` writes them.
    """
    for row in chat_rows(iter(rows)):
        assert isinstance(row, Row)  # without keep_going an error is raised
        listed = candidates_of(row)
        for number, read in enumerate(solutions_of(row, how=how)):
            solution, where = read.solution, read.where
            if listed is None:
                given, meta = {**read.own_meta, **read.columns}, read.own_meta
                id_, own = solution.id or row.place, {key: given[key] for key in ("correct",) if key in given}
                own |= {"tokens": meta["tokens"]} if isinstance(meta.get("tokens"), int) else {}
                own |= {} if "correct" in own or meta.get("outcome") is None else {"correct": meta["outcome"]}
            else:
                entry = listed[number] if isinstance(listed[number], dict) else {}
                own = {name.name: entry[name.name] for name in fields(_Facts) if name.name in entry}
                id_ = f"{(solution.id or '').rpartition('#')[0]}/{number}"
            facts = read_record(_Facts, own, where=where)
            yield Case(
                id=id_,
                labelled=LabelledSolution(
                    solution=replace(solution, id=id_), judgements=((),) * len(solution.steps)
                ),
                where=row.where,
                outcome=facts.correct,
                policy=solution.source,
                answer=None if facts.answer is None else str(facts.answer),
                tokens=facts.tokens,
                greedy=facts.greedy,
                unchecked="correct" not in own,
            )


def read_cases(
    files: Sequence[Source],
    *,
    columns: Columns | None = None,
    how: str = "auto",
    axis: str = DEFAULT_AXIS,
    check: Callable[[Case], None] | None = None,
) -> list[Case]:
    """Cases of files of any format that `stepmark convert` reads; the first row of a file says which.

    `how` cuts a text into steps; the judgements on `axis` are the truth; `check` is called with each case as it is read, and may raise: long
    before the last of many texts is cut.
    """
    cases = []
    for file in files:
        for every in _of_any_shape(read_rows(file, columns=columns), how):
            case = replace(every, labelled=every.labelled.on_axis(axis))
            if check is not None:
                check(case)
            cases.append(case)
    return unique(cases)


def _of_any_shape(rows: Iterable[Row], how: str) -> Iterable[Case]:
    rows = map(ungraded, rows)
    first = next(rows)
    rows = chain([first], rows)
    format = next((name for name, keys in _KEYS.items() if all(key in first.data for key in keys)), None)
    format = format or detect(first)
    if format == "prmbench":
        return _prmbench_cases(rows, {})
    if format in ("solutions", "chat", *TRACES):
        return _solutions(rows, how)
    labelled = items_of_rows(rows, format, ReaderSettings(how=how), Counts())
    return (_case(row, format) for row in labelled if isinstance(row, LabelledRow))
