"""ProcessBench: is the first wrong step found, and are right solutions left alone.

Source: Zheng et al. 2024, "ProcessBench: identifying process errors in mathematical reasoning", section 3. Per subset: the
share of wrong solutions whose first error is named exactly, the share of right ones in which none is named, and their
harmonic mean F1; over the subsets their unweighted average.

Deviations from the authors' script: F1 is 0 and not NaN where both shares are 0; a solution that could not be read to
the point of decision counts as not found, and how many there are is reported; intervals are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from stepmark.errors import InputError
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.evaluation import Evaluation, Run, Views
from stepmark.evaluation.examples import card, percent_tile, problem, spread, unreadable
from stepmark.evaluation.published import PROCESSBENCH, published_table
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.sources import read_processbench
from stepmark.evaluation.thresholds import Policy, check_asked, check_neutral, policies
from stepmark.metrics.first_error import harmonic_mean
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section
from stepmark.show.plots import Bars, Heat, Series
from stepmark.show.tables import Table
from stepmark.solutions.checks import check, check_names


def items_of(sheet: Sheet, chosen: Mapping[str, Policy], checks: str = "none") -> list[Item]:
    """One item a case: its true first error, and the earlier of those that the PRM and the exact checks name.

    Raises:
        InputError: a case whose first error is not known.
    """
    items = []
    names = check_names(checks)
    for row in sheet.rows:
        case = row.case
        truth = first_error(case.labelled)
        if truth is None:
            raise InputError("the first error of this solution is not known", where=case.where, field="label")
        found = chosen[case.group].found(row)
        steps = [step.text for step in case.solution.steps]
        proven = [finding.step for finding in check(case.problem, steps, names=names)] if names else []
        if proven and found is not None and (found < 0 or proven[0] < found):
            found = proven[0]
        items.append(
            {
                "id": case.id,
                "problem": case.problem,
                "group": case.group,
                "label": truth,
                "found": found,
                "steps": len(case.solution.steps),
                "policy": case.policy,
                "outcome": case.outcome,
            }
        )
    return items


def statistic(items: Sequence[Item]) -> Statistic:
    """Per group `error`, `correct` and `f1`, and their unweighted averages, as functions of the items' weights."""
    groups = list(dict.fromkeys(item["group"] for item in items))
    wrong = np.array([item["label"] != -1 for item in items])
    hit = np.array([item["found"] == item["label"] for item in items])
    member = {group: np.array([item["group"] == group for item in items]) for group in groups}

    def figures(weights: Floats) -> Mapping[str, Floats]:
        found: dict[str, Floats] = {}
        for group in groups:
            parts = []
            for name, of in (("error", member[group] & wrong), ("correct", member[group] & ~wrong)):
                parts.append(shares(weights @ (of & hit).astype(float), weights @ of.astype(float)))
                found[f"{group}/{name}"] = parts[-1]
            found[f"{group}/f1"] = harmonic(*parts)
        if len(groups) > 1:
            for name in ("error", "correct", "f1"):
                found[f"average/{name}"] = np.mean([found[f"{group}/{name}"] for group in groups], axis=0)
        return found

    return figures


def harmonic(a: Floats, b: Floats) -> Floats:
    """2ab / (a + b), elementwise; 0 where both are 0, nan where one is."""
    total = a + b
    return np.where(total == 0, 0.0, 2 * a * b / np.where(total == 0, 1.0, total))


@settings
class ProcessBench(Evaluation):
    """First-error accuracy and F1 on ProcessBench, per subset and on average, with intervals.

    The data are ProcessBench files (JSON lines or its own .json), a folder of them, or "hub" to download the four.
    """

    name: ClassVar[str] = "processbench"
    dataset: ClassVar[str | None] = "processbench"
    threshold: str | None = None
    """A step whose score is under it is an error: a number, argmax, tuned:SUBSET (the best on that subset, used on all), or oracle (the best of each subset on itself: a bound, not a result). Default: the PRM's own."""

    checks: str = "none"
    """Exact checks beside the PRM (`stepmark.check`): all, none, or names with commas between them. The first error is then the earlier of the two; a tuned threshold is tuned without them."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        check_names(self.checks)
        check_neutral(self.threshold, run)

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        cases = read_processbench(run.data, columns=run.columns)
        check_asked(self.threshold, list(dict.fromkeys(case.group for case in cases)))
        return cases

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def of_sheet(self, sheet: Sheet, run: Run) -> Result:
        """The result of cases whose first error is known.

        Raises:
            InputError: a first error that is not known.
            UsageError: a threshold that cannot be applied.
        """
        groups = sheet.groups
        truth = {row.case.id: first_error(row.case.labelled) for row in sheet.rows}
        chosen = policies(self.threshold, sheet, groups, truth)
        items = items_of(sheet, chosen, self.checks)
        words = {name: policy.words for name, policy in chosen.items()}
        words["average"] = "; ".join(dict.fromkeys(words.values()))
        figures = run.figures(items, statistic(items), words)
        names = [*groups, *(["average"] if len(groups) > 1 else [])]
        beside = "" if self.checks == "none" else f" with the exact checks {self.checks}"
        views = Views(
            title=f"ProcessBench: {sheet.prm}{beside}",
            facts=(
                f"{len(items):,} solutions of {len({item['problem'] for item in items}):,} problems. A step under the threshold is an "
                "error; the first one is compared with the one that people found. F1 is the harmonic mean of the two accuracies.",
                *_left_out(sheet, items),
            ),
            remarks=(_INTERVALS,),
            tiles=[percent_tile(f"F1, {name}", figures[f"{name}/f1"]) for name in names],
            sections=(
                Section(
                    title="Figures",
                    text="The threshold and how it was chosen stand beside every number: numbers of different policies are "
                    "not comparable.",
                    items=(accuracy_table(names, figures, items), accuracy_bars(names, figures)),
                ),
                Section(
                    title="Where errors are named",
                    text="Of the wrong solutions: how far the step that is named lies from the first wrong one.",
                    items=(distance_table(items, list(groups)), position_table(items), position_heat(items)),
                ),
                Section(title="By who wrote the solution", items=(writer_table(items),)),
                Section(
                    title="Published results",
                    text="On the full 3,400 rows; each with its authors' threshold policy. Ours above are on the data named there.",
                    items=(published_table(PROCESSBENCH),),
                ),
                Section(title="Examples", items=_examples(sheet, chosen, items)),
            ),
        )
        return run.result(self, views, figures, items, prm=sheet.prm, identity=sheet.identity)


_INTERVALS = "In brackets: 95 % bootstrap intervals over problems at the stated threshold; they do not include the uncertainty of its tuning."


def _left_out(sheet: Sheet, items: Sequence[Item]) -> list[str]:
    said = unreadable(sheet, "and count as not found")
    undecided = sum(item["found"] is None for item in items) - len(sheet.refused)
    if undecided:
        said.append(
            f"In {undecided:,} more a step without a score came before any error; they count as not found."
        )
    if sheet.unread_steps:
        said.append(f"{sheet.unread_steps:,} steps have no score.")
    return said


def _examples(sheet: Sheet, chosen: Mapping[str, Policy], items: Sequence[Item]) -> tuple[Examples, ...]:
    sorts: dict[str, tuple[str, list[CaseScores]]] = {
        "found": ("The first wrong step is named", []),
        "early": ("An earlier step is blamed", []),
        "late": ("The first wrong step is passed over, a later one named", []),
        "missed": ("Wrong, and no step is named", []),
        "alarm": ("Right, and a step is blamed all the same", []),
        "clean": ("Right, and left alone", []),
    }
    found_of = {}
    for row, item in zip(sheet.rows, items, strict=True):
        found, label = item["found"], item["label"]
        if found is None:
            continue
        found_of[row.case.id] = (found, label)
        if label == -1:
            sort = "clean" if found == -1 else "alarm"
        else:
            sort = (
                "missed"
                if found == -1
                else "found"
                if found == label
                else "early"
                if found < label
                else "late"
            )
        sorts[sort][1].append(row)
    groups = []
    for title, rows in sorts.values():
        views = []
        for row in spread(rows):
            found, label = found_of[row.case.id]
            note = (
                "truth: no wrong step" if label == -1 else f"truth: step {label + 1} is the first wrong one"
            )
            policy = chosen[row.case.group]
            view = card(row, how=sheet.aggregate or "min", threshold=policy.threshold, found=found, note=note)
            views.append(problem(row, view))
        groups.append(
            Examples(
                title=f"{title} ({len(rows):,})",
                problems=tuple(views),
                text=f"{len(views)} of {len(rows):,}.",
            )
        )
    return tuple(groups)


def accuracy_table(names: Sequence[str], figures: Mapping[str, Figure], items: Sequence[Item]) -> Table:
    """Error accuracy, correct accuracy and F1 of each subset, with the threshold beside them."""
    counts = Counter((item["group"], item["label"] != -1) for item in items)
    rows = []
    for name in names:
        of = ("", "") if name == "average" else (f"{counts[name, True]:,}", f"{counts[name, False]:,}")
        rows.append(
            (
                name,
                figures[f"{name}/f1"].policy,
                *of,
                shown(figures[f"{name}/error"]),
                shown(figures[f"{name}/correct"]),
                shown(figures[f"{name}/f1"]),
            )
        )
    return Table(
        title="First-error accuracy (%)",
        columns=("Subset", "Threshold", "Wrong", "Right", "Error accuracy", "Correct accuracy", "F1"),
        rows=tuple(rows),
        align=("left", "left", "right", "right", "right", "right", "right"),
        note="Average: unweighted over the subsets.",
    )


def accuracy_bars(names: Sequence[str], figures: Mapping[str, Figure]) -> Bars:
    """The same as bars."""

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    def series(what: str, label: str) -> Series:
        of = [figures[f"{name}/{what}"] for name in names]
        return Series(
            name=label,
            y=tuple(percent(f.value) for f in of),
            low=tuple(percent(f.low) for f in of),
            high=tuple(percent(f.high) for f in of),
        )

    return Bars(
        title="Finding errors and leaving right steps alone",
        y_label="%",
        labels=tuple(names),
        series=(series("error", "Error accuracy"), series("correct", "Correct accuracy"), series("f1", "F1")),
    )


_FAR = 3


def _distance(item: Item) -> str:
    if item["found"] is None:
        return "not read"
    if item["found"] == -1:
        return "none named"
    off = item["found"] - item["label"]
    if abs(off) >= _FAR:
        return f"{_FAR} or more {'early' if off < 0 else 'late'}"
    return "exact" if off == 0 else f"{abs(off)} {'early' if off < 0 else 'late'}"


_DISTANCES = (
    "3 or more early",
    "2 early",
    "1 early",
    "exact",
    "1 late",
    "2 late",
    "3 or more late",
    "none named",
    "not read",
)


def distance_table(items: Sequence[Item], groups: Sequence[str]) -> Table:
    """How far the named step lies from the first wrong one, per subset."""
    rows = []
    for group in groups:
        wrong = [_distance(item) for item in items if item["group"] == group and item["label"] != -1]
        counts = Counter(wrong)
        rows.append(
            (
                group,
                *(
                    f"{counts[name]:,} ({100 * counts[name] / max(len(wrong), 1):.0f} %)"
                    for name in _DISTANCES
                ),
            )
        )
    return Table(
        title="Distance of the named step from the first wrong one (wrong solutions)",
        columns=("Subset", *_DISTANCES),
        rows=tuple(rows),
    )


def _bucket(step: int) -> str:
    return str(step + 1) if step < 6 else "7–9" if step < 9 else "10+"


_BUCKETS = ("1", "2", "3", "4", "5", "6", "7–9", "10+")


def position_table(items: Sequence[Item]) -> Table:
    """How that goes with the position of the first wrong step."""
    rows = []
    for name in _BUCKETS:
        wrong = [item for item in items if item["label"] != -1 and _bucket(item["label"]) == name]
        if not wrong:
            continue
        kinds = Counter(
            "unread"
            if item["found"] is None
            else "none"
            if item["found"] == -1
            else "exact"
            if item["found"] == item["label"]
            else "early"
            if item["found"] < item["label"]
            else "late"
            for item in wrong
        )
        rows.append(
            (
                name,
                f"{len(wrong):,}",
                *(f"{100 * kinds[k] / len(wrong):.0f}" for k in ("exact", "early", "late", "none")),
            )
        )
    return Table(
        title="By the position of the first wrong step (%)",
        columns=("Step", "Solutions", "Exact", "Earlier", "Later", "None named"),
        rows=tuple(rows),
    )


def position_heat(items: Sequence[Item]) -> Heat:
    """The true first error against the named one."""
    columns = (*_BUCKETS, "none")
    true_names = (*_BUCKETS, "none")
    counts = Counter(
        (
            "none" if item["label"] == -1 else _bucket(item["label"]),
            "none" if item["found"] == -1 else _bucket(item["found"]),
        )
        for item in items
        if item["found"] is not None
    )
    table = tuple(tuple(counts[true, named] for named in columns) for true in true_names)
    totals = [sum(row) for row in table]
    return Heat(
        title="True first error against the named one",
        x_label="Named step",
        y_label="First wrong step",
        x_names=columns,
        y_names=true_names,
        values=tuple(
            tuple(count / total if total else None for count in row)
            for row, total in zip(table, totals, strict=True)
        ),
        counts=table,
        value_range=(0.0, 1.0),
        note="Each row adds up to 1: of the solutions whose first wrong step is there, the share in which each step is named.",
    )


def writer_table(items: Sequence[Item]) -> Table:
    """The accuracies by who wrote the solution."""
    rows = []
    for writer in sorted({item["policy"] or "" for item in items}):
        own = [item for item in items if (item["policy"] or "") == writer]
        wrong = [item for item in own if item["label"] != -1]
        right = [item for item in own if item["label"] == -1]
        hits = [sum(item["found"] == item["label"] for item in part) for part in (wrong, right)]
        accuracies = [
            hit / len(part) if part else None for hit, part in zip(hits, (wrong, right), strict=True)
        ]
        f1 = None
        if accuracies[0] is not None and accuracies[1] is not None:
            f1 = harmonic_mean(accuracies[0], accuracies[1])
        rows.append(
            (
                writer or "not named",
                f"{len(wrong):,}",
                f"{len(right):,}",
                *("–" if a is None else f"{100 * a:.1f}" for a in (*accuracies, f1)),
            )
        )
    return Table(
        title="By who wrote the solution (%; all subsets together)",
        columns=("Writer", "Wrong", "Right", "Error accuracy", "Correct accuracy", "F1"),
        rows=tuple(rows),
        note="Few solutions each: read the differences with care.",
    )
