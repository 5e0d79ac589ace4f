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
from dataclasses import replace
from typing import ClassVar

import numpy as np

from stepmark.errors import InputError
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.evaluation import Evaluation, Run, Views
from stepmark.evaluation.published import PROCESSBENCH, published_table
from stepmark.evaluation.result import Figure, Item, Result
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.sources import read_cases, subset
from stepmark.evaluation.thresholds import Policy, check_asked, check_neutral, policies
from stepmark.evaluation.views import (
    Cell,
    Figures,
    bars_of,
    card,
    cell,
    examples_of,
    problem,
    table_of,
    tile,
    unreadable,
)
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section
from stepmark.show.page import ProblemView
from stepmark.show.tables import ABSENT, Table
from stepmark.show.text import amount
from stepmark.verifiers.checks import check, check_names


@settings
class ProcessBench(Evaluation):
    """First-error accuracy and F1 on ProcessBench, per subset and on average, with intervals.

    The data are ProcessBench files (JSON lines or its own .json), a folder of them, or "hub" to download the four; or labelled solutions of
    any other format, of which each file is a subset.
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
        cases = [
            case if case.group else replace(case, group=subset(case.id, case.where))
            for case in read_cases(run.data, columns=run.columns)
        ]
        for case in cases:
            _truth(case)
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
        counts = Counter((item["group"], item["label"] != -1) for item in items)
        beside = "" if self.checks == "none" else f" with the exact checks {self.checks}"
        views = Views(
            title=f"ProcessBench: {sheet.prm}{beside}",
            verdict=_verdict(figures, names[-1]),
            facts=(
                f"{amount(len(items), 'solution')} of {amount(len({item['problem'] for item in items}), 'problem')}. A step under the threshold is an "
                "error; the first one is compared with the one that people found. F1 is the harmonic mean of the two accuracies.",
                *_left_out(sheet, items),
            ),
            remarks=(
                "In brackets: 95 % bootstrap intervals over problems at the stated threshold; intervals do not include the uncertainty of threshold tuning.",
            ),
            tiles=[tile(f"F1, {name}", figures[f"{name}/f1"]) for name in names],
            sections=(
                Section(
                    title="Figures",
                    text="Compare figures only where the threshold was chosen in the same way.",
                    items=(
                        table_of(
                            "First-error accuracy (%)",
                            "Subset",
                            names,
                            {
                                "Threshold": lambda name: figures[f"{name}/f1"].policy,
                                "Wrong": lambda name: "" if name == "average" else f"{counts[name, True]:,}",
                                "Right": lambda name: "" if name == "average" else f"{counts[name, False]:,}",
                                "Error accuracy": cell(figures, "{}/error"),
                                "Correct accuracy": cell(figures, "{}/correct"),
                                "F1": cell(figures, "{}/f1"),
                            },
                            left=2,
                            note="Average: unweighted over the subsets.",
                        ),
                        bars_of(
                            "Finding errors and leaving right steps alone",
                            figures,
                            names,
                            {
                                "Error accuracy": "{}/error",
                                "Correct accuracy": "{}/correct",
                                "F1": "{}/f1",
                            },
                        ),
                    ),
                ),
                Section(
                    title="Where errors are named",
                    text="Of the wrong solutions: how far the step that is named lies from the first wrong one.",
                    items=(distance_table(items),),
                ),
                Section(
                    title="Published results",
                    text="On the full 3,400 rows; each with its authors' threshold policy. Ours above are on the data named there.",
                    items=(
                        published_table(
                            PROCESSBENCH,
                            sheet.prm,
                            _in_published_order(figures),
                        ),
                    ),
                ),
                Section(title="Examples", items=_examples(sheet, chosen, items)),
            ),
        )
        return run.result(self, views, figures, items, prm=sheet.prm, identity=sheet.identity)


def _in_published_order(figures: Figures) -> list[Figure | None]:
    """F1 by the columns of the published table; the average only where all four subsets are measured."""
    known = [figures.get(f"{name}/f1") for name in ("gsm8k", "math", "olympiadbench", "omnimath")]
    return [*known, None if None in known else figures["average/f1"]]


def _verdict(figures: Figures, name: str) -> str:
    error, correct, f1 = (figures[f"{name}/{what}"].value for what in ("error", "correct", "f1"))
    if error is None or correct is None or f1 is None:
        return ""
    where = "On average over the subsets the PRM" if name == "average" else f"On {name} the PRM"
    return (
        f"{where} names the first wrong step of {100 * error:.1f} % of the wrong solutions and leaves {100 * correct:.1f} % of the right "
        f"ones alone: F1 {100 * f1:.1f}."
    )


def _truth(case: Case) -> int:
    """The first error of a case, 0-based; -1: none. `InputError` where it is not known."""
    truth = first_error(case.labelled)
    if truth is None:
        raise InputError(
            "the first error of this solution is not known: every step up to it needs a label",
            where=case.where,
            field="label",
        )
    return truth


def items_of(sheet: Sheet, chosen: Mapping[str, Policy], checks: str = "none") -> list[Item]:
    """One item a case: its true first error, and the earlier of those that the PRM and the exact checks name.

    Raises:
        InputError: a case whose first error is not known.
    """
    items = []
    names = check_names(checks)
    for row in sheet.rows:
        case = row.case
        truth = _truth(case)
        named = chosen[case.group].found(row)
        steps = [step.text for step in case.solution.steps]
        proven = [finding.step for finding in check(case.problem, steps, names=names)] if names else []
        if proven and named is not None and (named < 0 or proven[0] < named):
            named = proven[0]
        items.append(
            {
                "id": case.id,
                "problem": case.problem,
                "group": case.group,
                "label": truth,
                "found": named,
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
        values: dict[str, Floats] = {}
        for group in groups:
            parts = []
            for name, of in (("error", member[group] & wrong), ("correct", member[group] & ~wrong)):
                parts.append(shares(weights @ (of & hit).astype(float), weights @ of.astype(float)))
                values[f"{group}/{name}"] = parts[-1]
            values[f"{group}/f1"] = harmonic(*parts)
        if len(groups) > 1:
            for name in ("error", "correct", "f1"):
                values[f"average/{name}"] = np.mean([values[f"{group}/{name}"] for group in groups], axis=0)
        return values

    return figures


def harmonic(a: Floats, b: Floats) -> Floats:
    """2ab / (a + b), elementwise; 0 where both are 0, nan where one is."""
    total = a + b
    return np.where(total == 0, 0.0, 2 * a * b / np.where(total == 0, 1.0, total))


def _left_out(sheet: Sheet, items: Sequence[Item]) -> list[str]:
    facts = unreadable(sheet, "(counted as not found)")
    undecided = sum(item["found"] is None for item in items) - len(sheet.refused)
    if undecided:
        facts.append(
            f"In {undecided:,} more a step without a score came before any error; they count as not found."
        )
    if sheet.unread_steps:
        facts.append(f"{amount(sheet.unread_steps, 'step has', 'steps have')} no score.")
    return facts


_KINDS = {
    "found": "The first wrong step is named",
    "early": "An earlier step is blamed",
    "late": "The first wrong step is passed over, a later one named",
    "missed": "Wrong, and no step is named",
    "alarm": "Right, and a step is blamed all the same",
    "clean": "Right, and left alone",
    "unread": "Not read",
}
"""What becomes of a solution."""


def kind_of(item: Item) -> str:
    """One of `_KINDS`."""
    named, label = item["found"], item["label"]
    if named is None:
        return "unread"
    if label == -1:
        return "clean" if named == -1 else "alarm"
    if named == -1:
        return "missed"
    return "found" if named == label else "early" if named < label else "late"


def distance_table(items: Sequence[Item]) -> Table:
    """How far the named step lies from the first wrong one, by group."""
    counts: dict[str, Counter[str]] = {item["group"]: Counter() for item in items}
    for item in items:
        if item["label"] != -1:
            counts[item["group"]][kind_of(item)] += 1
    kinds = {"found": "Exact", "early": "Early", "late": "Late", "missed": "None named", "unread": "Not read"}

    def percent(kind: str) -> Cell:
        def text(name: str) -> str:
            total = counts[name].total()
            return f"{100 * counts[name][kind] / total:.1f}" if total else ABSENT

        return text

    columns = {label: percent(kind) for kind, label in kinds.items()}
    title = "Distance of the named step from the first wrong one (wrong solutions, %)"
    return table_of(title, "Subset", list(counts), columns)


def _examples(sheet: Sheet, chosen: Mapping[str, Policy], items: Sequence[Item]) -> tuple[Examples, ...]:
    def show(pair: tuple[CaseScores, Item]) -> ProblemView:
        row, item = pair
        step = item["label"] + 1
        note = f"truth: step {step} is the first wrong one" if step else "truth: no wrong step"
        return problem(row, card(row, sheet, note, policy=chosen[row.case.group], first_error=item["found"]))

    pairs = list(zip(sheet.rows, items, strict=True))
    sorts = {
        title: [pair for pair in pairs if kind_of(pair[1]) == kind]
        for kind, title in _KINDS.items()
        if kind != "unread"
    }
    return examples_of(sorts, show)
