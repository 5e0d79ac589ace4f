"""The scores that an evaluation measures: from a PRM, kept as they come, or from a file; joined to the cases by id, or by problem and steps.

A row of scores is `{"id": …, "scores": […], "score_kind": …, "prm": …, "threshold": …, "aggregate": …}`, with
`classes`, `problem_tokens` and `solution_tokens` where they are known; a solution that the PRM could not read has
`"scores": null` and `"refused"`, why. What `stepmark grade` writes is read too, and the two layouts of published score files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from stepmark.data.json_rows import json_type
from stepmark.data.reading import Row, read_rows
from stepmark.data.solutions import solutions_of
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Case
from stepmark.metrics.aggregate import AGGREGATES, aggregate, check_aggregate, check_score
from stepmark.models.prm import PRM, checked_scores
from stepmark.progress import Progress
from stepmark.records import Refusal, ScoreKind, Solution, StepScores, compact, read_record, record_row
from stepmark.store import PartFile, resumed, row_key
from stepmark.words import amount

T = TypeVar("T")
_R_PRM = "step_level_validity_scores"
"""Under this key R-PRM's file has its scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseScores:
    """What a PRM says of one case."""

    case: Case
    steps: StepScores | None
    """None when the PRM could not read the solution."""
    refused: str | None = None
    """Why not."""

    @property
    def scores(self) -> tuple[float | None, ...]:
        """One entry a step; all None when the solution was refused."""
        return (None,) * len(self.case.solution.steps) if self.steps is None else self.steps.scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """All cases with their scores, and whose they are."""

    prm: str
    """The PRM's name."""
    kind: ScoreKind
    rows: tuple[CaseScores, ...]
    """In the order of the cases."""
    threshold: float | None = None
    """The PRM's own; None when it has none or the file does not say."""
    aggregate: str | None = None
    """The PRM's own; None when the file does not say."""
    identity: str | None = None
    """The PRM's (`PRM.identity`); None when no manifest beside the file says it."""
    checks: str = "none"
    """The exact checks that belong to the PRM (`PRM.default_checks`); "none" when the file does not say."""

    @property
    def refused(self) -> tuple[CaseScores, ...]:
        """The cases that the PRM could not read."""
        return tuple(row for row in self.rows if row.steps is None)

    @property
    def groups(self) -> dict[str, list[CaseScores]]:
        """The cases of each group (of ProcessBench its subsets), in the order of the cases."""
        results: dict[str, list[CaseScores]] = {}
        for row in self.rows:
            results.setdefault(row.case.group, []).append(row)
        return results

    @property
    def unread_steps(self) -> int:
        """Steps without a score, in cases that were read: cut off, or past where the PRM stopped."""
        return sum(row.scores.count(None) for row in self.rows if row.steps is not None)


def grade_cases(
    cases: Sequence[Case],
    prm: PRM,
    path: str | Path,
    manifest: Mapping[str, Any],
    *,
    shown: bool = False,
) -> None:
    """Score every case, one row each in `path`; a run that was stopped goes on with what the same command and settings (of the manifest) have
    scored of the same cases. `shown`: show the progress.
    """
    about = {
        "score_kind": prm.score_kind,
        "prm": prm.name,
        "threshold": prm.default_threshold,
        "aggregate": prm.default_aggregate,
        **({} if prm.default_checks == "none" else {"checks": prm.default_checks}),
    }

    def scored(waiting: Iterator[Case]) -> Iterator[StepScores | Refusal]:
        for _, result in checked_scores((case.solution for case in waiting), prm, keep_going=True):
            yield result

    def kept(case: Case, result: StepScores | Refusal) -> dict[str, Any]:
        if isinstance(result, Refusal):
            return {"id": case.id, "scores": None, "refused": str(result.error), **about}
        data = compact(result)
        del data["kind"]
        return {"id": case.id, **data, **about}

    run = {name: manifest[name] for name in ("command", "settings") if name in manifest}
    progress = Progress(len(cases), tokens=lambda: prm.ledger.tokens_computed, shown=shown)
    with PartFile(path, run) as part, progress:
        part.identify({"prm": prm.identity})
        for _, _, fresh in resumed(part, cases, _key, scored, kept):
            progress.advance(fresh=fresh is not None)
        part.finish({**manifest, "prm": prm.name}, {path: lambda row: [row]})


def _key(case: Case) -> str:
    return row_key({"id": case.id, "solution": record_row(case.solution)})


def read_scores(
    path: str | Path,
    cases: Sequence[Case],
    *,
    model: str | None = None,
    rows_of_file: Sequence[Row] | None = None,
) -> Sheet:
    """A file of scores, joined to the cases by id, or by problem and steps; other rows are left aside.

    A row of the file is one of this module, of `stepmark grade`, {"id", "scores": {MODEL: […]}}, or R-PRM's {"idx", "scores":
    {"step_level_validity_scores": […]}}; `model` chooses in a file that holds several, and `rows_of_file` are its rows where they have been read.
    """
    result = _joined(list(read_rows(path)) if rows_of_file is None else rows_of_file, cases)
    missing = [case for case in cases if case.id not in result]
    if missing:
        more = f" and for {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(
            f"there are no scores for {missing[0].id!r} ({missing[0].where}){more}: no row has this id, or this problem and these steps; "
            "were they made on this data?",
            where=str(path),
        )
    rows = tuple(_row(case, result[case.id], model) for case in cases)
    if not rows:
        raise UsageError("there are no cases to join scores to")
    used = [result[case.id] for case in cases]
    kind = next((row.steps.kind for row in rows if row.steps is not None), None)
    if kind is None:
        raise InputError(
            f"the PRM refused every solution ({len(rows):,}); the first because: {rows[0].refused}",
            where=str(path),
        )
    for data, row in zip(used, rows, strict=True):
        if row.steps is not None and row.steps.kind != kind:
            raise InputError(
                f"expected scores of one kind, found {kind} and here {row.steps.kind}",
                where=data.where,
                field="score_kind",
            )
    name = model or _only(used, "prm") or _only_model(used) or Path(path).name.split(".")[0]
    return Sheet(
        prm=str(name),
        kind=kind,
        rows=rows,
        threshold=_own(
            used, "threshold", f"a threshold of {kind} scores", lambda value: check_score(value, kind, step=0)
        ),
        aggregate=_own(
            used,
            "aggregate",
            f"one of {', '.join(AGGREGATES)}",
            lambda value: AGGREGATES[AGGREGATES.index(value)],
        ),
        identity=_identity(path),
        checks=str(used[0].data.get("checks") or "none"),
    )


def _identity(path: str | Path) -> str | None:
    """The identity of the PRM in the manifest beside a file of scores; None where there is no manifest, or it names no PRM."""
    file = Path(f"{path}.manifest.json")
    if not file.exists():
        return None
    try:
        identity = dict(json.loads(file.read_bytes())).get("models", {}).get("prm")
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"expected the manifest of a run, found none that can be read ({error}). It says whose the scores in {path} are: delete it to "
            "measure them without",
            where=str(file),
        ) from None
    return identity if isinstance(identity, str) else None


def _only(rows: Sequence[Row], key: str) -> Any:
    """The value that all rows have under a key; files that mix PRMs are refused."""
    value = rows[0].data.get(key)
    for row in rows:
        if row.data.get(key) != value:
            raise InputError(
                f"expected the scores of one PRM, found {value!r} ({rows[0].where}) and here {row.data.get(key)!r}",
                where=row.where,
                field=key,
            )
    return value


def _own(rows: Sequence[Row], key: str, expected: str, check: Callable[[Any], T]) -> T | None:
    """A setting of the PRM that all rows have; None where they do not say it."""
    value = _only(rows, key)
    try:
        return None if value is None else check(value)
    except ValueError:
        raise InputError(
            f"expected {expected} or null, found {value!r}", where=rows[0].where, field=key
        ) from None


def _only_model(rows: Sequence[Row]) -> str | None:
    names: set[str] = {name for row in rows if isinstance(of := row.data.get("scores"), dict) for name in of}
    if _R_PRM in names or not names:
        return None
    if len(names) > 1:
        raise UsageError(f"{rows[0].file}: scores of {', '.join(sorted(names))}; name one with `model_name`")
    return names.pop()


def score_lengths(rows: Iterable[Row], *, model: str | None = None) -> dict[str, int]:
    """How many scores the rows of a file have for each id; an id without a list of scores is left out."""
    lengths = {}
    for id_, row in _by_id(rows).items():
        scores = row.data.get("scores")
        scores = _of_model(scores, row, model) if isinstance(scores, dict) else scores
        if isinstance(scores, list):
            lengths[id_] = len(scores)
    return lengths


def _by_id(rows: Iterable[Row]) -> dict[str, Row]:
    """The rows that have ids. Where an `idx` of a published file stands twice the first row counts, as PRMBench's script has it."""
    result: dict[str, Row] = {}
    for row in rows:
        key = row.data.get("id", row.data.get("idx"))
        if isinstance(key, bool) or not isinstance(key, str | int | None):
            raise row.error(f"expected an id, a text or a whole number, found {json_type(key)}", "id")
        if key is not None and "id" in row.data and str(key) in result:
            raise row.error(
                f"the id {key!r} stands at {result[str(key)].where} already; expected every id once", "id"
            )
        if key is not None:
            result.setdefault(str(key), row)
    return result


def _joined(listed: Sequence[Row], cases: Sequence[Case]) -> dict[str, Row]:
    """The row of each case that has one, by ids; where those differ, by the texts of problem and steps."""
    result = _by_id(listed)
    others: dict[tuple[str, ...], list[str]] = {}
    for case in cases:
        if case.id not in result:
            others.setdefault(_texts(case.solution), []).append(case.id)
    rows: dict[tuple[str, ...], list[Row]] = {}
    bare: set[str] = set()
    for row in listed if others else ():
        # Grading names candidates in its own way, and rows may have no ids at all.
        try:
            for read in solutions_of(replace(row, data={"prm": None, **row.data})):
                rows.setdefault(_texts(read.solution), []).append(row)
        except InputError:
            id_ = row.data.get("id", row.data.get("idx"))
            bare.add(str(id_))
            if id_ is None:
                raise row.error(
                    "expected an id, or a problem and its steps, by which scores are joined; give the rows ids before they are graded",
                    "id",
                ) from None
    for texts, ids in others.items():
        own = rows.get(texts, [])
        if len(own) != len(ids) and any(row.data.get("scores") != own[0].data.get("scores") for row in own):
            raise own[1].error(
                f"{len(own)} rows have this problem and these steps, with different scores, and {amount(len(ids), 'solution')} of the data: give "
                "the rows ids before they are graded",
                "id",
            )
        result |= zip(ids, own if len(own) == len(ids) else own[:1] * len(ids), strict=False)
    for id_ in (case.id for case in cases if case.id not in result):
        problem, _, number = id_.rpartition("/")
        if (graded := f"{problem}#{number}") in bare:  # a candidate's name where solutions are graded
            result[id_] = result[graded]
    return result


def _texts(solution: Solution) -> tuple[str, ...]:
    return (solution.problem.text, *solution.texts)


def _row(case: Case, row: Row, model: str | None = None) -> CaseScores:
    data = row.data
    scores = data.get("scores")
    if scores is None and isinstance(data.get("refused"), str):
        return CaseScores(case=case, steps=None, refused=data["refused"])
    if isinstance(scores, dict):
        scores = _of_model(scores, row, model)
    if not isinstance(scores, list):
        raise InputError(
            f"expected a list of scores, found {json_type(scores)}", where=row.where, field="scores"
        )
    if len(scores) != len(case.solution.steps):
        raise wrong_count(case, len(scores), row.where)
    more = ("classes", "class_names", "critiques", "problem_tokens", "solution_tokens")
    given = {key: data[key] for key in more if data.get(key) is not None}
    kind = data.get("score_kind", "probability")
    steps = read_record(StepScores, {"scores": scores, "kind": kind, **given}, where=row.where)
    for step, score in enumerate(steps.scores):
        try:
            if score is not None:
                check_score(score, steps.kind, step=step)
        except InputError as error:
            hint = "" if "score_kind" in data else '; scores of another kind say so: "score_kind": "margin"'
            raise InputError(f"{error.message}{hint}", where=row.where, field="scores") from None
    names = len(steps.class_names or ())
    if steps.classes is not None and not (
        len(steps.classes) == len(scores)
        and all(
            item is None or (len(item) == names and all(0 <= p <= 1 for p in item)) for item in steps.classes
        )
    ):
        raise InputError(
            f"expected for each of the {amount(len(scores), 'step')} null or one probability for each of the class_names",
            where=row.where,
            field="classes",
        )
    return CaseScores(case=case, steps=steps)


def wrong_count(case: Case, scores: int, where: str) -> InputError:
    """The error where a file has another number of scores than a solution has steps."""
    steps = len(case.solution.steps)
    # Ready-made steps have no place in a text.
    cut = any(step.start is not None for step in case.solution.steps)
    hint = (
        f"; its text was cut into {amount(steps, 'step')} here: give the steps that were scored as a list `steps`, in the place of the text"
        if cut
        else ""
    )
    return InputError(
        f"expected {amount(steps, 'score')}, one a step of {case.id!r} ({case.where}), found {scores}{hint}",
        where=where,
        field="scores",
    )


def check_how(how: str | None, sheet: Sheet) -> str:
    """The aggregate that stands for a solution: the one asked for, else the PRM's own, else "min"."""
    if how == "sum-logit":
        raise UsageError(
            "`aggregate` sum-logit is not on the scale of the scores and may be infinite; use product"
        )
    chosen = how or sheet.aggregate or "min"
    return check_aggregate("product" if chosen == "sum-logit" else chosen, sheet.kind)


def solution_score(row: CaseScores, how: str) -> float | None:
    """The aggregate of a case; None when it was not read, or a step that the aggregate needs has no score."""
    if row.steps is None or (None in (row.scores[-1:] if how == "last" else row.scores)) or not row.scores:
        return None
    return aggregate(row.scores, how, kind=row.steps.kind)


def _of_model(scores: dict[str, Any], row: Row, model: str | None) -> Any:
    if _R_PRM in scores:
        return scores[_R_PRM]
    if model is None and len(scores) == 1:
        return next(iter(scores.values()))
    if model is None and not scores:
        raise InputError("expected scores, found an empty object", where=row.where, field="scores")
    if model is None:
        raise UsageError(f"{row.where}: scores of {', '.join(scores)}; name one with `model_name`")
    if model not in scores:
        raise InputError(
            f"there are no scores of {model!r}; known: {', '.join(scores)}", where=row.where, field="scores"
        )
    return scores[model]
