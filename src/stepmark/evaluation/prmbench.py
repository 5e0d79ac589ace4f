"""PRMBench: which kinds of wrong step does a PRM see.

Source: Song et al. 2025, "PRMBench: a fine-grained and challenging benchmark for process-level reward models", section 3.3, and
its evaluation script. A step is called right when its score is over the threshold (strictly, so a step at it is called
wrong). Right steps are the positives. From the confusion matrix of all steps of a class: F1 of the right steps, F1 of the wrong
ones, PRMScore = half their sum. `multi_solutions` has no wrong steps and counts by F1 alone. A category is the mean of its
classes; overall is PRMScore of the matrix of all classes together, save `correct` (unchanged originals, where a file has them).

Of rows with the same class and index the first counts; an error step past the end says nothing; a step without a score (cut off, or
in a solution that could not be read) is in no matrix, and how many there are is reported. The benchmark's `similarity` to
the 758 unchanged originals is not computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Case, first_error, step_labels
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.published import PRMBENCH, published_table
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import CaseScores, Sheet, score_lengths
from stepmark.evaluation.sources import read_prmbench
from stepmark.evaluation.thresholds import Policy, check_asked, check_neutral, policies
from stepmark.evaluation.views import bars_of, card, cell, examples_of, problem, table_of, tile, unreadable
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section
from stepmark.show.page import ProblemView
from stepmark.show.text import amount
from stepmark.verifiers.checks import check, check_names

CATEGORIES: dict[str, tuple[str, ...]] = {
    "simplicity": ("redundency", "circular"),
    "soundness": ("counterfactual", "step_contradiction", "domain_inconsistency", "confidence"),
    "sensitivity": ("missing_condition", "deception", "multi_solutions"),
}
"""Category to the classes that it is the mean of, in the benchmark's own spelling."""

SHORT = {
    "redundency": "NR, non-redundancy",
    "circular": "NCL, no circular logic",
    "counterfactual": "ES, empirical soundness",
    "step_contradiction": "SC, step consistency",
    "domain_inconsistency": "DC, domain consistency",
    "confidence": "CI, confidence invariance",
    "missing_condition": "PS, prerequisite sensitivity",
    "deception": "DR, deception resistance",
    "multi_solutions": "MS, multi-solution consistency",
}
"""Class to the benchmark's name for what it tests."""

_BY_F1_ALONE = "multi_solutions"
_ORIGINALS = "correct"
_PARTS = ("tp", "fp", "tn", "fn")


def items_of(sheet: Sheet, policy: Policy, checks: str = "none") -> list[Item]:
    """One item a case with its confusion matrix: `tp` right called right, `fp` wrong called right, `tn` wrong called wrong, `fn`
    right called wrong; `unread` steps without a score; `named` whether the first wrong step is called wrong (None without
    one). A step that the exact checks refute is called wrong where it has a score.

    Raises:
        InputError: a case with a step that nobody judged.
        UsageError: a policy without a threshold for scores without classes.
    """
    items = []
    names = check_names(checks)
    for row in sheet.rows:
        labels = step_labels(row.case.labelled)
        texts = [step.text for step in row.case.solution.steps]
        refuted = (
            {finding.step for finding in check(row.case.problem, texts, names=names)} if names else set()
        )
        calls = [
            call if call is None else call and step not in refuted
            for step, call in enumerate(_calls(row, policy))
        ]
        counts = Counter[str]()
        for step, (label, call) in enumerate(zip(labels, calls, strict=True)):
            if label is None:
                raise InputError(f"step {step} (0-based) is not judged", where=row.case.where)
            counts[
                "unread"
                if call is None
                else ("tp" if call else "fn")
                if label > 0.5
                else ("fp" if call else "tn")
            ] += 1
        first = first_error(row.case.labelled)
        named = None if first is None or first == -1 or calls[first] is None else not calls[first]
        items.append(
            {
                "id": row.case.id,
                "problem": row.case.problem,
                "group": row.case.group,
                **{part: counts[part] for part in _PARTS},
                "unread": counts["unread"],
                "named": named,
            }
        )
    return items


def _calls(row: CaseScores, policy: Policy) -> list[bool | None]:
    if policy.threshold is None:
        assert row.steps is None or (row.steps.classes is not None and row.steps.class_names is not None)
        if row.steps is None or row.steps.classes is None or row.steps.class_names is None:
            return [None] * len(row.scores)
        negative = row.steps.class_names.index("negative")
        return [
            None if kind is None else max(range(len(kind)), key=lambda at: (kind[at], at)) != negative
            for kind in row.steps.classes
        ]
    return [None if score is None else score > policy.threshold for score in row.scores]


def statistic(items: Sequence[Item]) -> Statistic:
    """Per class `f1`, `negative_f1`, `prmscore`; per category `prmscore`; `overall` all three; as functions of weights."""
    classes = list(dict.fromkeys(item["group"] for item in items))
    counts = np.array([[float(item[part]) for part in _PARTS] for item in items])
    member = {
        name: np.array([item["group"] == name for item in items], dtype=float)[:, None] for name in classes
    }
    whole = np.array([item["group"] != _ORIGINALS for item in items], dtype=float)[:, None]

    def figures(weights: Floats) -> Mapping[str, Floats]:
        result: dict[str, Floats] = {}
        for name in classes:
            f1, negative = f1s(weights @ (counts * member[name]))
            result[f"{name}/f1"] = f1
            if name == _BY_F1_ALONE:
                result[f"{name}/prmscore"] = f1
            else:
                result[f"{name}/negative_f1"] = negative
                result[f"{name}/prmscore"] = (f1 + negative) / 2
        for category, inside in CATEGORIES.items():
            present = [result[f"{name}/prmscore"] for name in inside if name in member]
            if len(present) == len(inside):
                result[f"{category}/prmscore"] = np.mean(present, axis=0)
        f1, negative = f1s(weights @ (counts * whole))
        result |= {"overall/f1": f1, "overall/negative_f1": negative, "overall/prmscore": (f1 + negative) / 2}
        return result

    return figures


def f1s(matrix: Floats) -> tuple[Floats, Floats]:
    """F1 of the right steps and of the wrong ones from matrices (B, 4) of tp, fp, tn, fn; nan where there are none of a kind
    and none is called so.
    """
    tp, fp, tn, fn = matrix.T
    return shares(2 * tp, 2 * tp + fp + fn), shares(2 * tn, 2 * tn + fp + fn)


@settings
class PRMBench(Evaluation):
    """PRMScore on PRMBench, per class, per category and overall, as the benchmark defines it, with intervals.

    The data are PRMBench files, a folder of them, or "hub" to download them.
    """

    name: ClassVar[str] = "prmbench"
    dataset: ClassVar[str | None] = "prmbench"
    threshold: str | None = None
    """A step whose score is under it, or at it, is an error: a number or argmax. Default: the PRM's own."""

    checks: str = "none"
    """Exact checks beside the PRM (`stepmark.check`): all, none, or names with commas between them. A step with a finding is called wrong."""

    def __post_init__(self) -> None:
        if self.threshold is not None and (self.threshold == "oracle" or self.threshold.startswith("tuned:")):
            raise UsageError(
                f"`threshold` {self.threshold}: PRMBench is measured at a number, argmax, or the PRM's own"
            )
        check_asked(self.threshold, ())

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        check_names(self.checks)
        check_neutral(self.threshold, run)

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        lengths = None if run.scores is None else score_lengths(run.scores, model=run.model_name)
        return read_prmbench(run.data, lengths=lengths, columns=run.columns)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def of_sheet(self, sheet: Sheet, run: Run) -> Result:
        """The result of cases of which every step is judged.

        Raises:
            InputError: a step that nobody judged.
            UsageError: a threshold that cannot be applied.
        """
        policy = next(iter(policies(self.threshold, sheet, sheet.groups, {}).values()))
        items = items_of(sheet, policy, self.checks)
        figures = run.figures(items, statistic(items), {"": policy.words})
        steps = sum(item[part] for item in items for part in _PARTS)
        cut = sum(1 for row in sheet.rows if row.steps is not None and None in row.steps.scores)
        counts = Counter(item["group"] for item in items)
        counts["overall"] = len(items) - counts[_ORIGINALS]
        names = _rows(figures)
        beside = "" if self.checks == "none" else f" with the exact checks {self.checks}"
        views = Views(
            title=f"PRMBench: {sheet.prm}{beside}",
            verdict=f"PRMScore {shown(figures['overall/prmscore'])} over all classes; a PRM that knows nothing is near 50 at best.",
            facts=(
                f"{amount(len(items), 'solution')}, {amount(steps, 'step')} with a score. A step is called right when its score is over the "
                f"threshold ({policy.words}). PRMScore is half of F1 on right steps plus half of F1 on wrong ones.",
                *unreadable(sheet, "(in no figure)"),
                f"In no figure: {amount(sheet.unread_steps, 'step')} without a score, of {amount(cut, 'truncated solution')}."
                if cut
                else "No step was truncated.",
            ),
            remarks=(INTERVALS,),
            tiles=[
                tile(f"PRMScore, {name}", figures[f"{name}/prmscore"])
                for name in ("overall", *CATEGORIES)
                if f"{name}/prmscore" in figures
            ],
            sections=(
                Section(
                    title="Figures",
                    text="Calling every step right already gives a high F1 on right steps: PRMScore weighs the wrong ones equally. A PRM "
                    "that knows nothing is near 50 at best.",
                    items=(
                        table_of(
                            f"PRMScore (%), threshold {policy.words}",
                            "Class",
                            names,
                            {
                                "Solutions": lambda name: f"{counts[name]:,}" if name in counts else "",
                                "F1, right steps": cell(figures, "{}/f1"),
                                "F1, wrong steps": cell(figures, "{}/negative_f1"),
                                "PRMScore": cell(figures, "{}/prmscore"),
                            },
                            label=_label,
                            note="multi_solutions has no wrong steps and counts by F1 alone. Overall is of all steps together, not a mean.",
                        ),
                        bars_of("PRMScore by class", figures, names, {"PRMScore": "{}/prmscore"}),
                    ),
                ),
                Section(
                    title="Published results",
                    text="On the full 6,211 rows.",
                    items=(published_table(PRMBENCH, sheet.prm, [figures["overall/prmscore"]]),),
                ),
                Section(title="Examples", items=_examples(sheet, policy, items)),
            ),
        )
        return run.result(self, views, figures, items, prm=sheet.prm, identity=sheet.identity)


def _rows(figures: Mapping[str, Figure]) -> list[str]:
    """Classes and categories in the order of the tables, those that the benchmark does not know after them."""
    named = [figure.removesuffix("/prmscore") for figure in figures if figure.endswith("/prmscore")]
    order = [name for category, inside in CATEGORIES.items() for name in (*inside, category)]
    known = [name for name in order if name in named]
    return [*known, *(name for name in named if name not in (*known, "overall")), "overall"]


def _label(name: str) -> str:
    if name in SHORT:
        return f"{SHORT[name]} ({name})"
    return f"{name}, mean of its classes" if name in CATEGORIES else name


def _examples(sheet: Sheet, policy: Policy, items: Sequence[Item]) -> tuple[Examples, ...]:
    def show(row: CaseScores) -> ProblemView:
        labels = step_labels(row.case.labelled)
        wrong = ", ".join(str(step + 1) for step, label in enumerate(labels) if label == 0)
        return problem(row, card(row, sheet, f"truth: wrong steps {wrong}", policy=policy))

    missed: dict[str, list[CaseScores]] = {}
    for row, item in zip(sheet.rows, items, strict=True):
        if item["named"] is False:
            name = SHORT.get(item["group"], item["group"])
            missed.setdefault(f"{name}: first wrong step called right", []).append(row)
    return examples_of(missed, show, count=3)
