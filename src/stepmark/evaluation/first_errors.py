"""The metric of ProcessBench: is the first wrong step found, and are right solutions left alone.

Source: Zheng et al. 2024, "ProcessBench: identifying process errors in mathematical reasoning", section 3. Per group: the
share of wrong solutions whose first error is named exactly, the share of right ones in which none is named, and their
harmonic mean F1; over the groups their unweighted average.

Deviations from the authors' script: F1 is 0 and not NaN where both shares are 0; a solution that could not be read to
the point of decision counts as not found, and how many there are is reported; intervals are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from stepmark.data.reading import Row, Source, read_rows
from stepmark.errors import InputError
from stepmark.evaluation.base import Run, counted
from stepmark.evaluation.benchmark import Rated, Ratings, rated, ratings_to, steps_of, text_of
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.result import Figure, Item
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.thresholds import check_neutral
from stepmark.evaluation.views import Cell, Column, unreadable
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.records import LabelledSolution, Problem, Solution
from stepmark.settings import settings
from stepmark.verifiers.checks import check, check_names
from stepmark.words import amount


@settings
class FirstErrors(Rated):
    """Benchmarks that label the first wrong step. Their rows are read by the names of their columns."""

    shown: ClassVar[Mapping[str, str]] = {
        "F1": "f1",
        "Error accuracy": "error",
        "Correct accuracy": "correct",
    }
    headlines: ClassVar[int] = 1
    overall: ClassVar[Literal["average", "all"]] = "average"
    about: ClassVar[str] = (
        "A step under the threshold is an error; the first one is compared with the one that people found. F1 is the harmonic mean of the "
        "two accuracies."
    )
    columns_of: ClassVar[Mapping[str, str]] = {
        "id": "id", "policy": "generator", "problem": "problem", "steps": "steps", "label": "label", "outcome": "final_answer_correct",
    }  # fmt: skip
    """Our name to the benchmark's column, and where there is one `group`; by default ProcessBench's. Without an id solutions are named
    FILE/NUMBER, without a group it is the file's name."""
    counts_from: ClassVar[int] = 0
    """The number of the first step in its labels."""
    also: ClassVar[tuple[str, ...]] = ()
    """Further figures that its authors give: accuracy (the share of solutions that are named exactly, wrong or right), mcc (Matthews' correlation
    of wrong solutions with those in which a step is named; 0 where one of the two never occurs, as in scikit-learn)."""

    checks: str = "none"
    """Exact checks beside the PRM (`stepmark.check`): all, none, or names with commas between them. The first error is then the earlier of the two; a tuned threshold is tuned without them."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        Rated.check(self, run)
        check_names(self.checks)
        check_neutral(self.threshold, run)

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`; solutions whose first wrong step is not marked are left out, and counted in the report."""
        cases = Rated.read(self, run)
        known = [case for case in cases if first_error(case.labelled) is not None]
        if left := len(cases) - len(known):
            run.facts.append(
                f"{amount(left, 'wrong solution')} without a mark at the first wrong step: in no figure."
            )
        return known

    def rows(self, file: Source, run: Run) -> Iterator[Row]:
        """The rows of a file under the benchmark's columns."""
        return read_rows(file, columns=run.columns)

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `Benchmark.cases`."""
        for number, row in enumerate(self.rows(file, run)):
            yield self.case(row, number)

    def case(self, row: Row, number: int) -> Case:
        """The case of a row."""
        names, stem = self.columns_of, Path(row.file).name.split(".")[0] or "row"
        id = text_of(row, names["id"]) if "id" in names else f"{stem}/{number}"
        solution = Solution(
            problem=Problem(text=text_of(row, names["problem"])), steps=steps_of(row, names["steps"]), id=id
        )
        outcome = row.data.get(names["outcome"]) if "outcome" in names else None
        policy = text_of(row, names["policy"]) if "policy" in names else None
        return Case(
            id=id,
            labelled=rated(
                solution, ratings_to(self.first_of(row, len(solution.steps)), len(solution.steps))
            ),
            where=row.where,
            group=text_of(row, names["group"]) if "group" in names else stem,
            outcome=outcome if isinstance(outcome, bool) else None,
            policy=policy,
        )

    def first_of(self, row: Row, steps: int) -> int | None:
        """The 0-based first error by the benchmark's label; -1 for none. None: the label says that there is an error, but not at which step."""
        column = self.columns_of["label"]
        label, last = row.data.get(column), steps - 1 + self.counts_from
        if label in (None, -1) and column in row.data:
            return -1
        if type(label) is not int or not self.counts_from <= label <= last:
            raise row.error(
                f"expected the first wrong step, {self.counts_from} to {last}, or -1 or null for none; found {label!r:.80}",
                column,
            )
        return label - self.counts_from

    def item(self, case: Case, ratings: Ratings, scores: Sequence[float | None]) -> Item:
        """See `Rated.item`: the earlier of the first errors that the PRM and the exact checks name."""
        truth, named = known_error(case), first_wrong(ratings)
        if names := check_names(self.checks):
            steps = [step.text for step in case.solution.steps]
            proven = [finding.step for finding in check(case.problem, steps, names=names)]
            if proven and named is not None and (named < 0 or proven[0] < named):
                named = proven[0]
        return {
            "id": case.id,
            "problem": case.problem,
            "group": case.group,
            "label": truth,
            "found": named,
            "steps": len(case.solution.steps),
            "policy": case.policy,
            "outcome": case.outcome,
        }

    def ratings_of(self, labelled: LabelledSolution) -> Ratings:
        """See `Rated.ratings_of`."""
        return ratings_to(first_error(labelled), len(labelled.solution.steps))

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `Benchmark.one`."""
        wrong = np.array([float(item["label"] != -1) for item in items])
        hit = np.array([float(item["found"] == item["label"]) for item in items])
        blamed = np.array([float(item["found"] not in (None, -1)) for item in items])

        def share(weights: Floats, of: Floats, among: Floats) -> Floats:
            return shares(weights @ (of * among), weights @ among)

        def figures(weights: Floats) -> Mapping[str, Floats]:
            error, correct = share(weights, hit, wrong), share(weights, hit, 1 - wrong)
            values = {"error": error, "correct": correct, "f1": harmonic(error, correct)}
            more = {
                "accuracy": lambda: share(weights, hit, np.ones_like(wrong)),
                "mcc": lambda: _correlation(weights, wrong, blamed),
            }
            return values | {name: more[name]() for name in self.also}

        return figures

    def columns(self, items: Sequence[Item]) -> Mapping[str, Column]:
        """See `Benchmark.columns`."""
        counts = Counter((item["group"], item["label"] != -1) for item in items)

        def count(wrong: bool) -> Cell:
            return lambda name: "" if name == "average" else counts[name, wrong]

        return {"Wrong": count(True), "Right": count(False)}

    def facts(self, items: Sequence[Item], sheet: Sheet | None) -> list[str]:
        """See `Benchmark.facts`."""
        facts = [
            f"{counted(items)}. {self.about}",
            *(unreadable(sheet, "(counted as not found)") if sheet is not None else []),
        ]
        undecided = sum(item["found"] is None for item in items) - (
            0 if sheet is None else len(sheet.refused)
        )
        if undecided:
            what = "step without a score" if sheet is not None else "step without a label"
            facts.append(f"In {undecided:,} more a {what} came before any error; they count as not found.")
        if sheet is not None and sheet.unread_steps:
            facts.append(f"{amount(sheet.unread_steps, 'step has', 'steps have')} no score.")
        return facts

    def verdict(self, figures: Mapping[str, Figure], last: str) -> str:
        """See `Benchmark.verdict`."""
        error, correct, f1 = (figures[f"{last}/{what}"].value for what in ("error", "correct", "f1"))
        if error is None or correct is None or f1 is None:
            return ""
        where = "On average over the subsets the PRM" if last == "average" else f"On {last} the PRM"
        return (
            f"{where} names the first wrong step of {100 * error:.1f} % of the wrong solutions and leaves {100 * correct:.1f} % of the right "
            f"ones alone: F1 {100 * f1:.1f}."
        )

    def places(self, item: Item) -> tuple[int | None, int | None]:
        """See `Rated.places`."""
        return item["label"], item["found"]

    def kind_of(self, item: Item) -> str:
        """See `Rated.kind_of`."""
        return _KINDS[_kind(item)]


def known_error(case: Case) -> int:
    """The first error of a case, 0-based; -1: none. `InputError` where it is not known."""
    truth = first_error(case.labelled)
    if truth is None:
        raise InputError(
            "the first error of this solution is not known: every step up to it needs a label",
            where=case.where,
            field="label",
        )
    return truth


def harmonic(a: Floats, b: Floats) -> Floats:
    """2ab / (a + b), elementwise; 0 where both are 0, nan where one is."""
    total = a + b
    return np.where(total == 0, 0.0, 2 * a * b / np.where(total == 0, 1.0, total))


def _correlation(weights: Floats, truth: Floats, named: Floats) -> Floats:
    """Matthews' correlation coefficient of two columns of 0 and 1."""
    tp, fp, fn, tn = (
        weights @ (a * b)
        for a, b in ((truth, named), (1 - truth, named), (truth, 1 - named), (1 - truth, 1 - named))
    )
    below = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    result: Floats = np.divide(tp * tn - fp * fn, below, out=np.zeros_like(below), where=below > 0)
    return result


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


def _kind(item: Item) -> str:
    named, label = item["found"], item["label"]
    if named is None:
        return "unread"
    if label == -1:
        return "clean" if named == -1 else "alarm"
    if named == -1:
        return "missed"
    return "found" if named == label else "early" if named < label else "late"
