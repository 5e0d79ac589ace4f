"""The metric of PRMBench: which kinds of wrong step does a PRM see.

Source: Song et al. 2025, "PRMBench: a fine-grained and challenging benchmark for process-level reward models", section 3.3, and
its evaluation script. A step is called right when its score is over the threshold (strictly, so a step at it is called
wrong). Right steps are the positives. From the confusion matrix of all steps of a class: F1 of the right steps, F1 of the wrong
ones, PRMScore = half their sum. A class of `by_f1_alone` has no wrong steps and counts by F1 alone. A category is the mean of its
classes; overall is PRMScore of the matrix of all classes together, save `correct` (unchanged originals, where a file has them).

A PRM with a neutral class (ReasonEval) says by that class whether a step is redundant: in the classes of `redundant` a step is called
wrong where its probability is over 0.15, as in the script.

Of rows with the same class and index the first counts; an error step past the end says nothing; a step without a score (cut off, or
in a solution that could not be read) is in no matrix, and how many there are is reported. The benchmark's `similarity` to
the 758 unchanged originals is not computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from stepmark.data.reading import Source, read_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import Run
from stepmark.evaluation.benchmark import Benchmark, places
from stepmark.evaluation.cases import Case, first_error, step_labels
from stepmark.evaluation.result import EvaluationResult, Figure, Item, shown
from stepmark.evaluation.scores import CaseScores, Sheet, score_lengths
from stepmark.evaluation.sources import read_prmbench
from stepmark.evaluation.thresholds import ThresholdRule, check_asked, check_neutral, policies
from stepmark.evaluation.views import Column, card, examples_of, problem, unreadable
from stepmark.metrics.intervals import Floats, Statistic, of_parts, shares
from stepmark.report.evaluation import Examples
from stepmark.report.page import ProblemView
from stepmark.settings import settings
from stepmark.verifiers.checks import check, check_names
from stepmark.words import amount

_ORIGINALS = "correct"
_PARTS = ("tp", "fp", "tn", "fn")


@settings
class PRMScore(Benchmark):
    """Benchmarks that say of every step whether it is wrong, by class of error, in the format of PRMBench."""

    categories: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Category to the classes that it is the mean of, in the benchmark's own spelling."""
    short: ClassVar[Mapping[str, str]] = {}
    """Class to the benchmark's name for what it tests."""
    by_f1_alone: ClassVar[tuple[str, ...]] = ()
    """Classes without wrong steps."""
    redundant: ClassVar[tuple[str, ...]] = ()
    """Classes whose wrong steps are redundant, not false."""
    numbered: ClassVar[bool] = True
    """Whether a number in front of a step is layout."""
    shown: ClassVar[Mapping[str, str]] = {
        "PRMScore": "prmscore", "F1, right steps": "f1", "F1, wrong steps": "negative_f1",
    }  # fmt: skip
    headlines: ClassVar[int] = 1
    note: ClassVar[str] = (
        "Overall is of all steps together, not a mean. Calling every step right already gives a high F1 on right steps."
    )

    threshold: str | None = None
    """A step whose score is under it, or at it, is an error: a number or argmax. Default: the PRM's own."""
    neutral_over: Annotated[float, Field(gt=0, lt=1)] | None = 0.15
    """For PRMs with a neutral class, in classes of redundant steps: a step whose neutral class is likelier than this is an error. None: judged by the threshold."""
    checks: str = "none"
    """Exact checks beside the PRM (`stepmark.check`): all, none, or names with commas between them. A step with a finding is called wrong."""

    def __post_init__(self) -> None:
        if self.threshold is not None and (self.threshold == "oracle" or self.threshold.startswith("tuned:")):
            raise UsageError(
                f"`threshold` {self.threshold}: {self.title} is measured at a number, argmax, or the PRM's own"
            )
        check_asked(self.threshold, ())

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        check_names(self.checks)
        check_neutral(self.threshold, run)

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        yield from read_prmbench([file], columns=run.columns, numbered=self.numbered)

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        lengths = None if run.scores is None else score_lengths(read_rows(run.scores), model=run.model_name)
        return read_prmbench(run.data, lengths=lengths, columns=run.columns, numbered=self.numbered)

    def of_sheet(self, sheet: Sheet, run: Run) -> EvaluationResult:
        """The result of cases of which every step is judged."""
        chosen = policies(self.threshold, sheet, sheet.groups, {})
        policy = next(iter(chosen.values()))
        items = self.items_of(sheet, policy)
        return self.finished(
            items, run, sheet.prm, sheet, dict.fromkeys([*self.rows_of(items), *chosen], policy)
        )

    def items_of(self, sheet: Sheet, policy: ThresholdRule) -> list[Item]:
        """One item a case with its confusion matrix: `tp` right called right, `fp` wrong called right, `tn` wrong called wrong, `fn`
        right called wrong; `unread` steps without a score; `named` whether the first wrong step is called wrong (None without
        one). A step that the exact checks refute is called wrong where it has a score.
        """
        items = []
        names = check_names(self.checks)
        for row in sheet.rows:
            labels = step_labels(row.case.labelled)
            texts = [step.text for step in row.case.solution.steps]
            refuted = (
                {finding.step for finding in check(row.case.problem, texts, names=names)} if names else set()
            )
            calls = [
                call if call is None else call and step not in refuted
                for step, call in enumerate(self._calls(row, policy))
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

    def _calls(self, row: CaseScores, policy: ThresholdRule) -> list[bool | None]:
        """Whether each step is called right; None without a score."""
        steps = row.steps
        if steps is None:
            return [None] * len(row.scores)
        names, classes = steps.class_names or (), steps.classes
        by_neutral = self.neutral_over is not None and row.case.group in self.redundant
        if by_neutral and classes is not None and "neutral" in names:
            neutral, over = names.index("neutral"), self.neutral_over or 0.0
            return [None if kind is None else kind[neutral] <= over for kind in classes]
        if policy.threshold is not None:
            return [None if score is None else score > policy.threshold for score in row.scores]
        if classes is None or "negative" not in names:
            return [None] * len(row.scores)
        return [None if rating is None else rating != -1 for rating in policy.ratings(row)]

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`: `f1`, `negative_f1`, `prmscore` of one class."""
        counts = np.array([[float(item[part]) for part in _PARTS] for item in items]).reshape(-1, len(_PARTS))

        def figures(weights: Floats) -> Mapping[str, Floats]:
            f1, negative = f1s(weights @ counts)
            return {"f1": f1, "negative_f1": negative, "prmscore": (f1 + negative) / 2}

        return figures

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """The figures of each class, of each category whose classes are all there, and overall."""
        groups = places(items)
        rows = {**groups, "overall": [at for at, item in enumerate(items) if item["group"] != _ORIGINALS]}
        compute = of_parts({name: (at, self.one([items[i] for i in at])) for name, at in rows.items()})

        def figures(weights: Floats) -> Mapping[str, Floats]:
            result = dict(compute(weights))
            for name in groups.keys() & set(self.by_f1_alone):
                del result[f"{name}/negative_f1"]
                result[f"{name}/prmscore"] = result[f"{name}/f1"]
            for category, inside in self.categories.items():
                if groups.keys() >= set(inside):
                    scores = [result[f"{name}/prmscore"] for name in inside]
                    result[f"{category}/prmscore"] = np.mean(scores, axis=0)
            return result

        return figures

    def rows_of(self, items: Sequence[Item]) -> list[str]:
        """Classes and categories in the order of the tables, those that the benchmark does not know after them."""
        groups = dict.fromkeys(item["group"] for item in items)
        order = [
            name
            for category, inside in self.categories.items()
            for name in (*inside, *([category] if groups.keys() >= set(inside) else []))
            if name in groups or name == category
        ]
        return [*order, *(name for name in groups if name not in order), "overall"]

    def label_of(self, name: str) -> str:
        """See `Benchmark.label_of`."""
        if name in self.short:
            return f"{self.short[name]} ({name})"
        return f"{name}, mean of its classes" if name in self.categories else name

    def columns(self, items: Sequence[Item]) -> Mapping[str, Column]:
        """See `Benchmark.columns`."""
        counts = Counter(item["group"] for item in items)
        counts["overall"] = len(items) - counts[_ORIGINALS]
        return {"Solutions": lambda name: counts.get(name, "")}

    def facts(self, items: Sequence[Item], sheet: Sheet | None) -> list[str]:
        """See `Benchmark.facts`."""
        assert sheet is not None
        steps = sum(item[part] for item in items for part in _PARTS)
        cut = sum(1 for row in sheet.rows if row.steps is not None and None in row.steps.scores)
        return [
            f"{amount(len(items), 'solution')}, {amount(steps, 'step')} with a score. A step is called right when its score is over the "
            "threshold. PRMScore is half of F1 on right steps plus half of F1 on wrong ones.",
            *unreadable(sheet, "(in no figure)"),
            f"In no figure: {amount(sheet.unread_steps, 'step')} without a score, of {amount(cut, 'truncated solution')}."
            if cut
            else "No step was truncated.",
        ]

    def verdict(self, figures: Mapping[str, Figure], last: str) -> str:
        """See `Benchmark.verdict`."""
        return f"PRMScore {shown(figures[f'{last}/prmscore'])} over all classes; a PRM that knows nothing is near 50 at best."

    def examples(
        self, sheet: Sheet, items: Sequence[Item], chosen: Mapping[str, ThresholdRule]
    ) -> tuple[Examples, ...]:
        """See `Benchmark.examples`: first wrong steps that are called right, by class."""

        def show(row: CaseScores) -> ProblemView:
            labels = step_labels(row.case.labelled)
            wrong = ", ".join(str(step + 1) for step, label in enumerate(labels) if label == 0)
            return problem(row, card(row, sheet, f"truth: wrong steps {wrong}", policy=chosen["overall"]))

        missed: dict[str, list[CaseScores]] = {}
        for row, item in zip(sheet.rows, items, strict=True):
            if item["named"] is False:
                name = self.short.get(item["group"], item["group"])
                missed.setdefault(f"{name}: first wrong step called right", []).append(row)
        return examples_of(missed, show, count=3)


def f1s(matrix: Floats) -> tuple[Floats, Floats]:
    """F1 of the right steps and of the wrong ones from matrices (B, 4) of tp, fp, tn, fn; nan where there are none of a kind
    and none is called so.
    """
    tp, fp, tn, fn = matrix.T
    return shares(2 * tp, 2 * tp + fp + fn), shares(2 * tn, 2 * tn + fp + fn)
