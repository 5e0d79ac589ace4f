"""Is a judge any good: labels of one source against those of another, step by step.

The first file is the reference (people, mostly), the others are the judge's: several are repeats of it. A PRM with a threshold stands for a
judge where no other file is given. Where the reference has several raters of a step, its rating is the nearest to their mean, and their own
agreement stands beside the judge's: nobody can agree with people more than they do with each other.

- agreement on steps that both rated: the share of equal ratings, Cohen's kappa (Cohen 1960), Krippendorff's alpha, nominal and ordinal;
- wrong steps: precision and recall of the rating -1, over all steps, by type of error, and by the step's number;
- first errors: ProcessBench's error accuracy, correct accuracy and F1, and the share within one step;
- stability: over pairs of repeats, the share of equal ratings and of equal first errors.

Where both sources judge several axes, each is measured apart, as a part of its own; "all" is over all of them.

Types of errors are notes "error type: NAME", as `stepmark annotate export` writes them, or the classification of a row of PRMBench. Recall by
type is of the reference's types, precision of the judge's own, where it names any. Figures of repeats are means over them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.data.reading import Source
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import INTERVALS, Evaluation, Run
from stepmark.evaluation.benchmark import Ratings, places, ratings_of
from stepmark.evaluation.cases import Case, unique
from stepmark.evaluation.first_errors import harmonic
from stepmark.evaluation.result import EvaluationResult, Figure, Item, shown
from stepmark.evaluation.scores import CaseScores
from stepmark.evaluation.thresholds import check_asked, policies
from stepmark.evaluation.views import (
    Cell,
    Column,
    Kind,
    card,
    examples_of,
    problem,
    table_of,
    tiles_of,
    written,
)
from stepmark.labels.consensus import side_by_side
from stepmark.metrics.agreement import alphas
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Floats, Statistic, of_parts, ratio_statistic, shares
from stepmark.records import DEFAULT_AXIS, StepScores
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.settings import settings
from stepmark.words import amount

_TYPE = re.compile(r"error type: ([^;]+)")
_RATINGS = (-1, 0, 1)
_PLACES = (1, 2, 3, 4, 5, 9)
"""Where the groups of steps by number begin: 1, 2, 3, 4, 5 to 8, 9 on."""
Judged = tuple[Ratings, tuple[str, ...], tuple[str, ...]]
"""A source's ratings of the steps of a solution, the types of error that it names, and its reasons where it says wrong."""
_NONE: tuple[str, ...] = ()
_WORDS = {1: "right", 0: "neutral", -1: "wrong", None: "not rated"}


@settings
class LabelAgreement(Evaluation):
    """Whether a judge's labels can be trusted: kappa and alpha, first errors, precision and recall by type of error and by step, stability.

    The data are labelled solutions of any format, the reference: people's, mostly. The judge's labels are other files (several are repeats),
    or a PRM's scores under a threshold.
    """

    name: ClassVar[str] = "labels"
    labels: Sequence[str] = ()
    """The judge's files of labels; several are repeats of one judge. Default: the PRM is the judge."""
    threshold: str | None = None
    """Of a PRM: a step whose score is under it is wrong: a number, argmax, tuned:GROUP or oracle. Default: the PRM's own."""

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and not self.labels

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.labels and (run.scores is not None or self.threshold is not None):
            raise UsageError(
                "files of labels and a PRM's scores both judge the steps: leave out `scores` and `threshold`"
            )

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        rows: dict[tuple[str, tuple[str, ...]], LabelledRow] = {}
        for file in run.data:
            for row in read_labelled(file, columns=run.columns):
                key = (row.solution.problem.text, row.solution.texts)
                if key not in rows:
                    rows[key] = row
                else:  # labels of another axis, or of another rater
                    (labelled,) = side_by_side([rows[key].labelled], [row.labelled])
                    rows[key] = replace(rows[key], labelled=labelled)
        cases = unique(
            Case(
                id=row.solution.id or row.origin,
                labelled=row.labelled,
                where=row.where,
                group=row.solution.problem.source or "",
                policy=str(row.meta.get("classification") or "") or None,
            )
            for row in rows.values()
        )
        check_asked(self.threshold, list(dict.fromkeys(case.group for case in cases)))
        return cases

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        if not self.labels:
            axis = run.axis or DEFAULT_AXIS
            known = list(dict.fromkeys(name for case in cases for name in case.labelled.axes))
            if axis not in known:
                raise InputError(
                    f"expected judgements on the axis {axis!r}, found the axes: {', '.join(known) or 'none'}"
                )
            cases = [replace(case, labelled=case.labelled.on_axis(axis)) for case in cases]
            sheet = run.grade(cases)
            truth = {case.id: first_wrong(ratings_of(case.labelled)) for case in cases}
            chosen = policies(self.threshold, sheet, sheet.groups, truth)
            rated = [(row.case, [(chosen[row.case.group].ratings(row), _NONE, _NONE)]) for row in sheet.rows]
            return self._result(rated, run, sheet.prm)
        repeats = [_by_texts(run.add_input(file)) for file in self.labels]
        found = [
            (case, [one[key] for one in repeats if key in one]) for case in cases for key in [_key(case)]
        ]
        if not any(rows for _, rows in found):
            raise InputError(
                "expected labels of the same solutions (the same problem and steps), found none in common",
                where=", ".join(self.labels),
            )
        axes = self._axes(run, cases, [row for _, rows in found for row in rows])
        pairs = [
            (
                replace(
                    case, labelled=case.labelled.on_axis(axis), group=axis if len(axes) > 1 else case.group
                ),
                [
                    (ratings_of(own.labelled), _types(own), _reasons(own))
                    for own in (row.on_axis(axis) for row in rows)
                ],
            )
            for axis in axes
            for case, rows in found
            if rows and (len(axes) == 1 or axis in case.labelled.axes)
        ]
        if left := sum(not rows for _, rows in found):
            run.facts.append(
                f"{amount(left, 'solution')} of the reference without labels of the judge: left out."
            )
        return self._result(pairs, run, "labels", axes)

    def _axes(self, run: Run, cases: Sequence[Case], rows: Sequence[LabelledRow]) -> list[str]:
        """The axes that both judge, in the reference's order."""
        reference, judged = (
            list(dict.fromkeys(axis for one in side for axis in one.labelled.axes)) for side in (cases, rows)
        )
        if not reference or not judged:  # nothing is rated: the figures say so
            return [run.axis or DEFAULT_AXIS]
        axes = [axis for axis in reference if axis in judged and run.axis in (None, axis)]
        if not axes:
            wanted = "an axis that both judge" if run.axis is None else f"judgements on the axis {run.axis!r}"
            raise InputError(
                f"expected {wanted}, found {', '.join(reference)} in the reference and {', '.join(judged)} in the labels",
                where=", ".join(map(str, self.labels)),
            )
        if run.axis is None and (alone := sorted({*reference, *judged} - {*axes})):
            run.facts.append(f"Judged by one side alone and left out: {', '.join(alone)}.")
        return axes

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """The figures of each group and of all, and those by type of error and by the step's number."""
        groups = places(items)
        parts = {**(groups if len(groups) > 1 else {}), "all": list(range(len(items)))}
        compute = of_parts({name: (at, _one([items[i] for i in at])) for name, at in parts.items()})
        by_step = ratio_statistic(_by_step(items))
        return lambda weights: {**compute(weights), **by_step(weights)}

    def _result(
        self,
        pairs: Sequence[tuple[Case, Sequence[Judged]]],
        run: Run,
        name: str,
        axes: Sequence[str] = (),
    ) -> EvaluationResult:
        items = [_item(case, judged) for case, judged in pairs]
        if len(axes) == 1 and axes[0] != DEFAULT_AXIS:
            run.facts.append(f"The axis is {axes[0]}.")
        figures = run.figures(items, self.statistic(items))
        names = [*dict.fromkeys(item["group"] for item in items), "all"]
        names = names if len(names) > 2 else ["all"]
        rated = sum(rating is not None for item in items for rating in item["truth"])
        repeats = max(len(item["named"]) for item in items)
        tables = []
        for title, kind, columns, note in _TABLES:
            cells: dict[str, Column] = {
                column: (kind, f"{{}}/{what}") for column, what in columns.items() if f"all/{what}" in figures
            }
            tables += [table_of(title, "Part", names, cells, figures, note=note)] if cells else []
        parts = [
            table_of(
                f"Wrong steps by {what} (%)",
                what.capitalize(),
                keys,
                {
                    "Steps": _counted(items, what),
                    "Recall": f"{what}/{{}}/recall",
                    "Precision": f"{what}/{{}}/precision",
                },
                figures,
                note="Steps: those that the reference calls wrong.",
            )
            for what in ("error type", "step")
            if (keys := _keys(figures, what))
        ]
        report = Report(
            title=f"Labels: {name} against the reference",
            verdict=_verdict(figures, axes if len(axes) > 1 else ()),
            facts=(
                f"{amount(len(items), 'solution')}, {amount(rated, 'step')} rated by the reference"
                f"{f', {repeats} repeats' if repeats > 1 else ''}.",
                INTERVALS,
            ),
            tiles=tiles_of(
                figures,
                {
                    "Kappa": ("coefficient", "all/kappa"),
                    "First errors, F1": "all/f1",
                    "Wrong steps found": "all/recall",
                    "Right of those called wrong": "all/precision",
                },
            ),
            sections=(
                Section(title="Figures", items=tuple(tables)),
                Section(title="By part", items=tuple(parts)),
                Section(title="Where they differ", items=_examples([case for case, _ in pairs], items)),
            ),
        )
        return run.result(self, report, figures, items, prm=name)


_TABLES: tuple[tuple[str, Kind, Mapping[str, str], str], ...] = (
    (
        "Agreement",
        "coefficient",
        {
            "Kappa": "kappa",
            "Alpha": "alpha",
            "Alpha, ordinal": "alpha, ordinal",
            "Equal": "equal",
            "Alpha among the reference's raters": "reference/alpha",
        },
        "Kappa and alpha: 1 is full agreement, 0 is chance. Equal: the share of equal ratings.",
    ),
    (
        "Wrong steps and first errors (%)",
        "share",
        {
            "Precision": "precision",
            "Recall": "recall",
            "First errors found": "error",
            "Within one": "within one",
            "Right ones left alone": "correct",
            "F1": "f1",
        },
        "F1: of first errors found and right solutions left alone.",
    ),
    (
        "Stability over repeats (%)",
        "share",
        {"Equal ratings": "stability/step", "Equal first errors": "stability/first error"},
        "Over pairs of repeats.",
    ),
)
"""Title, kind, column to figure, note."""


def _key(case: Case) -> tuple[str, tuple[str, ...]]:
    return case.solution.problem.text, case.solution.texts


def _by_texts(source: Source) -> dict[tuple[str, tuple[str, ...]], LabelledRow]:
    return {(row.solution.problem.text, row.solution.texts): row for row in read_labelled(source)}


def _types(row: LabelledRow) -> tuple[str, ...]:
    """The type of error of each step that is called wrong; "" for none."""
    return _named_types(row.labelled.judgements, str(row.meta.get("classification") or ""))


def _reasons(row: LabelledRow) -> tuple[str, ...]:
    return tuple(
        next((j.note for j in step if j.rating == -1 and j.note), "") for step in row.labelled.judgements
    )


def _named_types(judgements: Sequence[Sequence[Any]], otherwise: str) -> tuple[str, ...]:
    results = []
    for step in judgements:
        found = [match[1].strip() for j in step if (match := _TYPE.search(j.note or ""))]
        results.append(found[0] if found else otherwise)
    return tuple(results)


def _item(case: Case, judged: Sequence[Judged]) -> Item:
    raters = [[j.rating for j in step if j.rating is not None] for step in case.labelled.judgements]
    return {
        "id": case.id,
        "problem": case.problem,
        "group": case.group,
        "truth": list(ratings_of(case.labelled)),
        "types": list(_named_types(case.labelled.judgements, case.policy or "")),
        "raters": [given if len(given) > 1 else [] for given in raters],
        "named": [list(ratings) for ratings, _, _ in judged],
        "named types": [list(types) for _, types, _ in judged],
        "reasons": list(judged[0][2]),
    }


def _table(pairs: Sequence[tuple[int | None, int | None]]) -> Floats:
    """Counts of pairs of ratings, flat: 3 x 3."""
    table = np.zeros((3, 3))
    for a, b in pairs:
        if a is not None and b is not None:
            table[_RATINGS.index(a), _RATINGS.index(b)] += 1
    return table.reshape(-1)


def _one(items: Sequence[Item]) -> Statistic:
    """The figures of one group."""
    tables = np.array(
        [sum((_table(list(zip(i["truth"], n, strict=True))) for n in i["named"]), np.zeros(9)) for i in items]
    )
    among = np.array(
        [
            sum(
                (_table(list(combinations(given, 2))) / (len(given) - 1) for given in i["raters"] if given),
                np.zeros(9),
            )
            for i in items
        ]
    )
    ratios = ratio_statistic(_firsts(items) | _stability(items))

    def figures(weights: Floats) -> Mapping[str, Floats]:
        matrices = (weights @ tables).reshape(-1, 3, 3)
        total = matrices.sum(axis=(1, 2))
        equal = shares(np.trace(matrices, axis1=1, axis2=2), total)
        chance = shares((matrices.sum(axis=2) * matrices.sum(axis=1)).sum(axis=1), total**2)
        hits = matrices[:, 0, 0]
        values = {
            "kappa": shares(equal - chance, 1 - chance),
            "equal": equal,
            "precision": shares(hits, matrices[:, :, 0].sum(axis=1)),
            "recall": shares(hits, matrices[:, 0, :].sum(axis=1)),
        }
        coincidences = matrices + matrices.transpose(0, 2, 1)
        values["alpha"] = alphas(coincidences, "nominal")
        values["alpha, ordinal"] = alphas(coincidences, "ordinal")
        values |= dict(ratios(weights))
        values["f1"] = harmonic(values["error"], values["correct"])
        if among.any():
            matrices = (weights @ among).reshape(-1, 3, 3)
            values["reference/alpha"] = alphas(matrices + matrices.transpose(0, 2, 1), "nominal")
        return values

    return figures


def _firsts(items: Sequence[Item]) -> dict[str, tuple[list[float], list[float]]]:
    """First errors: found among the wrong, left alone among the right, and within one step among the wrong; means over repeats."""
    of: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in ("error", "correct", "within one")
    }
    for item in items:
        truth, named = first_wrong(item["truth"]), [first_wrong(one) for one in item["named"]]
        exact = sum(one == truth for one in named) / len(named)
        near = sum(one not in (None, -1) and abs(one - (truth or 0)) <= 1 for one in named) / len(named)
        for name, hit, counts in (
            ("error", exact, truth not in (None, -1)),
            ("correct", exact, truth == -1),
            ("within one", near, truth not in (None, -1)),
        ):
            of[name][0].append(hit if counts else 0.0)
            of[name][1].append(float(counts))
    return of


def _stability(items: Sequence[Item]) -> dict[str, tuple[list[float], list[float]]]:
    if all(len(item["named"]) < 2 for item in items):
        return {}
    steps: tuple[list[float], list[float]] = ([], [])
    firsts: tuple[list[float], list[float]] = ([], [])
    for item in items:
        pairs = list(combinations(item["named"], 2))
        rated = [both for pair in pairs for both in zip(*pair, strict=True) if None not in both]
        steps[0].append(sum(a == b for a, b in rated))
        steps[1].append(len(rated))
        firsts[0].append(sum(first_wrong(a) == first_wrong(b) for a, b in pairs))
        firsts[1].append(len(pairs))
    return {"stability/step": steps, "stability/first error": firsts}


def _place(step: int) -> str:
    """The group of a 0-based step by its number."""
    begin = max(at for at in _PLACES if at <= step + 1)
    end = next((at - 1 for at in _PLACES if at > begin), None)
    return f"{begin} on" if end is None else str(begin) if end == begin else f"{begin} to {end}"


def _by_step(items: Sequence[Item]) -> dict[str, tuple[Floats, Floats]]:
    """`error type/NAME/recall` and so on, and `step/NUMBER/recall`: numerators and denominators of each item."""
    result: dict[str, tuple[Floats, Floats]] = {}

    def add(name: str, at: int, hit: bool) -> None:
        top, bottom = result.setdefault(name, (np.zeros(len(items)), np.zeros(len(items))))
        top[at] += hit
        bottom[at] += 1

    for at, item in enumerate(items):
        for named, types in zip(item["named"], item["named types"], strict=True):
            for step, (true, judged) in enumerate(zip(item["truth"], named, strict=True)):
                if true is None or judged is None:
                    continue
                if true == -1:
                    add(f"step/{_place(step)}/recall", at, judged == -1)
                    if item["types"][step]:
                        add(f"error type/{item['types'][step]}/recall", at, judged == -1)
                if judged == -1:
                    add(f"step/{_place(step)}/precision", at, true == -1)
                    if types and types[step]:
                        add(f"error type/{types[step]}/precision", at, true == -1)
    return result


def _keys(figures: Mapping[str, Figure], what: str) -> list[str]:
    keys = dict.fromkeys(
        name.removeprefix(f"{what}/").rpartition("/")[0] for name in figures if name.startswith(f"{what}/")
    )
    return sorted(keys, key=(lambda key: int(key.split()[0])) if what == "step" else str)


def _counted(items: Sequence[Item], what: str) -> Cell:
    counts = Counter(
        _place(step) if what == "step" else item["types"][step]
        for item in items
        for step, rating in enumerate(item["truth"])
        if rating == -1
    )
    return counts.__getitem__


def _verdict(figures: Mapping[str, Figure], parts: Sequence[str]) -> str:
    if parts:
        kappas = (f"{part} {written(figures[f'{part}/kappa'], 'coefficient')}" for part in parts)
        return f"Kappa by part: {'; '.join(kappas)}."
    kappa, people = figures["all/kappa"], figures.get("all/reference/alpha")
    if kappa.value is None:
        return (
            "Nothing can be told of the agreement: no two sources rated a step, or all ratings are the same."
        )
    beside = ""
    if people is not None and people.value is not None:
        beside = f"; the reference's raters among themselves: alpha {written(people, 'coefficient')}"
    return (
        f"Kappa {written(kappa, 'coefficient')}{beside}. The judge finds {shown(figures['all/recall'])} % of the wrong steps, and "
        f"{shown(figures['all/precision'])} % of the steps that it calls wrong are. It names the first error exactly in "
        f"{shown(figures['all/error'])} % of the wrong solutions."
    )


def _examples(cases: Sequence[Case], items: Sequence[Item]) -> tuple[Examples, ...]:
    sorts: dict[str, list[tuple[Case, Item]]] = {}
    for case, item in zip(cases, items, strict=True):
        true, named = first_wrong(item["truth"]), first_wrong(item["named"][0])
        steps = [a != b for a, b in zip(item["truth"], item["named"][0], strict=True) if None not in (a, b)]
        if true is not None and named is not None and true != named:
            kind = "missed" if named == -1 else "blamed" if true == -1 else "elsewhere"
        elif any(steps):
            kind = "steps"
        else:
            continue
        sorts.setdefault(_SORTS[kind], []).append((case, item))

    def show(pair: tuple[Case, Item]) -> Any:
        case, item = pair
        named = item["named"][0]
        value = {1: 1.0, 0: 0.5, -1: 0.0, None: None}
        row = CaseScores(
            case=replace(case, policy=None),
            steps=StepScores(scores=tuple(value[rating] for rating in named), kind="probability"),
        )
        differ = [
            f"step {step + 1}: the reference {_WORDS[true]}, the judge {_WORDS[judged]}{_because(item['reasons'], step)}"
            for step, (true, judged) in enumerate(zip(item["truth"], named, strict=True))
            if true != judged and true is not None
        ]
        return problem(row, card(row, None, "; ".join(differ), first_error=first_wrong(named)))

    return examples_of(sorts, show, text="Steps are coloured by the judge's ratings.")


def _because(reasons: Sequence[str], step: int) -> str:
    return f" ({reasons[step]})" if reasons and reasons[step] else ""


_SORTS = {
    "missed": "The reference has a first error, the judge has none",
    "blamed": "The judge has a first error, the reference has none",
    "elsewhere": "Their first errors differ",
    "steps": "The same first error, other ratings",
}
