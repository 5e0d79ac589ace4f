"""Benchmarks that label every step: what they share, with DeltaBench and Hard2Verify.

Each compares a rating of every step with the annotators' one: -1 wrong, 0 neutral, 1 right. A PRM rates by a threshold (or by its largest
class, for PRMs of three), a file of labels as it says. A step without a rating counts as wrongly rated, and a first error behind such a step
as not found.

**DeltaBench** (He et al. 2025, arXiv 2502.19361, and its evaluation.py): which sections of a long chain of thought are wrong. The truth of a
row is `reason_error_section_numbers` together with `reason_unuseful_section_numbers`, counted from 1; sections after the last of them are
left out, for annotation ends there. Precision, recall and F1 of the wrong sections: the means over rows (macro), and of all sections together
(micro). Rows without a wrong section are in no figure, as in the authors' means.

**Hard2Verify** (Pandit et al. 2025, arXiv 2510.13744): TPR is the share of right ones that are taken for right, TNR that of wrong ones.
Balanced accuracy is their mean, balanced F1 their harmonic mean: of steps; of whole responses, right when no step is wrong; and of the first
error, where a wrong response counts if its first wrong step is named and a right one if none is. A constant rating has 50 and 0.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from stepmark.data.labelled import read_labelled
from stepmark.data.reading import Row, Source, read_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.cases import Case, first_error, unique
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.processbench import harmonic
from stepmark.evaluation.published import DELTABENCH, HARD2VERIFY, PublishedTable, published_table
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.thresholds import check_asked, policies
from stepmark.evaluation.views import bars_of, card, cell, examples_of, problem, table_of, tile, unreadable
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic, shares
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section
from stepmark.show.text import amount

Ratings = tuple[int | None, ...]
"""One a step: -1 wrong, 0 neutral, 1 right, None for none."""


@settings
class StepLabels(Evaluation, ABC):
    """What they share. Abstract: `cases` reads a file, `one` measures a group, `shown` names its figures."""

    title: ClassVar[str] = ""
    shown: ClassVar[Mapping[str, str]] = {}
    """Column to figure."""
    published: ClassVar[PublishedTable]
    beside: ClassVar[tuple[str, ...]] = ()
    """Figures in the order of its columns; "*" stands for the last part."""
    note: ClassVar[str] = ""
    threshold: str | None = None
    """A step whose score is under it is wrong: a number, argmax, tuned:GROUP or oracle (by the F1 of first errors). Default: the PRM's own."""
    labels: str | None = None
    """A file of labels (`stepmark label`, or predictions in the benchmark's own shape), measured instead of a PRM's."""

    @abstractmethod
    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """The cases of a file."""

    @abstractmethod
    def one(self, items: Sequence[Item]) -> Statistic:
        """The figures of one group."""

    def predicted(self, row: Row, cases: Mapping[str, Case]) -> tuple[str, Ratings] | None:
        """The case's id and the ratings that a row of predictions in the benchmark's own shape holds; None for another row."""
        del row, cases
        return None

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.labels is not None and (run.scores is not None or self.threshold is not None):
            raise UsageError("`labels` rates the steps: leave out `scores` and `threshold`")

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and self.labels is None

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        cases = unique(case for file in run.data for case in self.cases(file, run))
        check_asked(self.threshold, list(dict.fromkeys(case.group for case in cases)))
        return cases

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        if self.labels is None:
            return self.of_sheet(run.grade(cases), run)
        named = self._ratings(run, cases)
        return self._result([_item(case, named[case.id]) for case in cases], run, "labels")

    def of_sheet(self, sheet: Sheet, run: Run) -> Result:
        """The result of graded solutions."""
        truth = {row.case.id: first_error(row.case.labelled) for row in sheet.rows}
        chosen = policies(self.threshold, sheet, sheet.groups, truth)
        items = [_item(row.case, chosen[row.case.group].ratings(row)) for row in sheet.rows]
        words = {group: policy.words for group, policy in chosen.items()}
        return self._result(items, run, sheet.prm, sheet, words)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """The figures of each group, and of all together, as functions of the items' weights."""
        parts: dict[str, list[int]] = {}
        for at, item in enumerate(items):
            parts.setdefault(item["group"], []).append(at)
        if len(parts) > 1:
            parts["all"] = list(range(len(items)))
        ones = {name: (np.array(at), self.one([items[i] for i in at])) for name, at in parts.items()}

        def figures(weights: Floats) -> Mapping[str, Floats]:
            return {
                f"{name}/{what}": value
                for name, (at, entry) in ones.items()
                for what, value in entry(weights[:, at]).items()
            }

        return figures

    def _ratings(self, run: Run, cases: Sequence[Case]) -> Mapping[str, Ratings]:
        assert self.labels is not None
        source, by_id = run.add_input(self.labels), {case.id: case for case in cases}
        result = dict(filter(None, (self.predicted(row, by_id) for row in read_rows(source))))
        if not result:
            result = joined(source, cases, _ratings)
        missing = [case.id for case in cases if case.id not in result]
        if missing:
            raise InputError(
                f"expected labels of every solution, found none of {missing[0]!r} ({len(missing):,} of {len(cases):,} are missing)",
                where=self.labels,
            )
        return result

    def _result(
        self,
        items: Sequence[Item],
        run: Run,
        name: str,
        sheet: Sheet | None = None,
        words: Mapping[str, str] | None = None,
    ) -> Result:
        words = dict(words or {})
        words["all"] = "; ".join(dict.fromkeys(words.values()))
        figures = run.figures(items, self.statistic(items), words)
        groups = list(dict.fromkeys(item["group"] for item in items))
        names = [*groups, *(["all"] if len(groups) > 1 else [])]
        columns = {title: cell(figures, "{}/" + what) for title, what in self.shown.items()}
        if sheet is not None:
            columns = {"Threshold": _threshold(figures, next(iter(self.shown.values()))), **columns}
        steps = [(first_wrong(item["truth"]), first_wrong(item["named"])) for item in items]
        cards = () if sheet is None else examples(sheet, steps)
        views = Views(
            title=f"{self.title}: {name}",
            verdict=", ".join(
                f"{title} {shown(figures[f'{names[-1]}/{what}'])} %"
                for title, what in list(self.shown.items())[:2]
            )
            + ".",
            facts=(
                f"{amount(len(items), 'solution')} with {amount(sum(len(item['truth']) for item in items), 'labelled step')}.",
                *(unreadable(sheet) if sheet is not None else []),
                *_unrated(items),
            ),
            remarks=(INTERVALS,),
            tiles=[
                tile(f"{title}, {names[-1]}", figures[f"{names[-1]}/{what}"])
                for title, what in list(self.shown.items())[:2]
            ],
            sections=(
                Section(
                    title="Figures",
                    items=(
                        table_of(
                            f"{self.title} (%)",
                            "Part",
                            names,
                            columns,
                            note=self.note,
                            left=1 + (sheet is not None),
                        ),
                        bars_of(
                            self.title,
                            figures,
                            names,
                            {title: "{}/" + what for title, what in list(self.shown.items())[:4]},
                        ),
                    ),
                ),
                Section(
                    title="Published results",
                    items=(
                        published_table(
                            self.published,
                            name,
                            [figures.get(entry.replace("*", names[-1])) for entry in self.beside],
                        ),
                    ),
                ),
                Section(title="Examples", items=cards),
            ),
        )
        return run.result(
            self, views, figures, items, prm=name, identity=None if sheet is None else sheet.identity
        )


def joined(source: Source, cases: Sequence[Case], of: Callable[[LabelledSolution], Any]) -> dict[str, Any]:
    """What a file of labels says of the cases that it has, by their ids; joined by the texts of problem and steps."""

    def key(solution: Solution) -> tuple[str, tuple[str, ...]]:
        return solution.problem.text, solution.texts

    labelled = {key(row.solution): row.labelled for row in read_labelled(source)}
    return {case.id: of(labelled[key(case.solution)]) for case in cases if key(case.solution) in labelled}


def examples(
    sheet: Sheet, steps: Sequence[tuple[int | None, int | None]], notes: Sequence[str] = ()
) -> tuple[Examples, ...]:
    """Cards of solutions whose step is named, and of others.

    Args:
        sheet: the scores.
        steps: of each row the true step and the named one, 0-based; -1 for none, None for not known.
        notes: the truth in words. Default: the true step.
    """
    sorts: dict[str, list[Any]] = {"The step is named": [], "Another step is named": []}
    for at, (row, (true, named)) in enumerate(zip(sheet.rows, steps, strict=True)):
        words = "truth: no wrong step" if true == -1 else f"truth: step {(true or 0) + 1}"
        sorts["The step is named" if named == true else "Another step is named"].append(
            (row, notes[at] if notes else words, named)
        )
    return examples_of(sorts, lambda one: problem(one[0], card(one[0], sheet, one[1], first_error=one[2])))


def rated(
    solution: Solution, ratings: Sequence[int | None], places: Sequence[str] | None = None
) -> LabelledSolution:
    """A solution with the annotators' ratings of its steps; `places` says where each stands in its source."""
    return LabelledSolution(
        solution=solution,
        judgements=tuple(
            ()
            if rating is None
            else (
                Judgement(
                    kind="correctness",
                    judge="human",
                    rating=rating,  # type: ignore[arg-type]
                    note=None if places is None else places[at],
                ),
            )
            for at, rating in enumerate(ratings)
        ),
    )


def _item(case: Case, named: Ratings) -> Item:
    return {
        "id": case.id,
        "problem": case.problem,
        "group": case.group,
        "truth": list(_ratings(case.labelled)),
        "named": list(named),
    }


def _ratings(labelled: LabelledSolution) -> Ratings:
    """Each step's rating: the nearest to the mean of its ratings; without any, wrong where no rollout succeeds."""
    results: list[int | None] = []
    for judgements in labelled.judgements:
        given = [j.rating for j in judgements if j.rating is not None]
        tried = [j for j in judgements if j.trials or j.share is not None]
        if given:
            results.append(round(sum(given) / len(given)))
        else:
            results.append((1 if any(j.successes or j.share for j in tried) else -1) if tried else None)
    return tuple(results)


def _threshold(figures: Mapping[str, Figure], what: str) -> Callable[[str], str]:
    return lambda name: figures[f"{name}/{what}"].policy


def _unrated(items: Sequence[Item]) -> list[str]:
    count = sum(item["named"].count(None) for item in items)
    return (
        [f"{amount(count, 'step has', 'steps have')} no rating: counted as rated wrongly."] if count else []
    )


# --- DeltaBench -------------------------------------------------------------------------------------------------


@settings
class DeltaBench(StepLabels):
    """F1 of the wrong sections of long chains of thought on DeltaBench, by domain, with intervals.

    The data are its rows: `question`, `sections_content`, `reason_error_section_numbers`, `reason_unuseful_section_numbers`, `task_l1`, `id`.
    """

    name: ClassVar[str] = "deltabench"
    title: ClassVar[str] = "DeltaBench"
    shown: ClassVar[Mapping[str, str]] = {
        "F1, macro": "f1", "Precision, macro": "precision", "Recall, macro": "recall", "F1, micro": "micro f1",
        "F1, macro, all sections named": "f1, all named",
    }  # fmt: skip
    published: ClassVar[PublishedTable] = DELTABENCH
    beside: ClassVar[tuple[str, ...]] = ("math/f1", "code/f1", "pcb/f1", "general/f1", "*/f1")

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `StepLabels.cases`."""
        for row in read_rows(file, columns=run.columns):
            texts = _sections(row)
            wrong = _numbers(row, "reason_error_section_numbers", len(texts))
            wrong |= _numbers(row, "reason_unuseful_section_numbers", len(texts))
            id = _text(row, "id")
            solution = Solution(
                problem=Problem(text=_text(row, "question")), steps=tuple(map(_step, texts)), id=id
            )
            ratings = [-1 if at in wrong else 1 for at in range(1, len(texts) + 1)]
            group = str(row.data.get("task_l1") or "")
            yield Case(id=id, labelled=rated(solution, ratings), where=row.where, group=group)

    def predicted(self, row: Row, cases: Mapping[str, Case]) -> tuple[str, Ratings] | None:
        """See `StepLabels.predicted`: rows of the authors' script, with `error_sections_nums`."""
        case = cases.get(str(row.data.get("id")))
        numbers = row.data.get("error_sections_nums")
        if case is None or not isinstance(numbers, list):
            return None
        return case.id, tuple(-1 if at + 1 in numbers else 1 for at in range(len(case.solution.steps)))

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `StepLabels.one`."""
        counts = []
        for item in items:
            last = max((at for at, rating in enumerate(item["truth"], 1) if rating == -1), default=0)
            pairs = [
                (true == -1, named == -1)
                for true, named in zip(item["truth"][:last], item["named"][:last], strict=True)
            ]
            counts.append((pairs.count((True, True)), pairs.count((False, True)), pairs.count((True, False))))
        hits, alarms, misses = np.array(counts, dtype=float).reshape(-1, 3).T
        wrong = hits + misses
        known = (wrong > 0).astype(float)
        length = np.array(
            [max((at for at, r in enumerate(i["truth"], 1) if r == -1), default=0) for i in items], float
        )

        def divided(top: Floats, bottom: Floats) -> Floats:
            return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)

        macro = {
            "f1": divided(2 * hits, 2 * hits + alarms + misses),
            "precision": divided(hits, hits + alarms),
            "recall": divided(hits, wrong),
            "f1, all named": divided(2 * wrong, wrong + length),
        }

        def figures(weights: Floats) -> Mapping[str, Floats]:
            values = {name: shares(weights @ (each * known), weights @ known) for name, each in macro.items()}
            return values | {
                "micro f1": shares(2 * (weights @ hits), weights @ (2 * hits + alarms * known + misses))
            }

        return figures


def _sections(row: Row) -> list[str]:
    text = row.data.get("sections_content", row.data.get("section_content"))
    if not isinstance(text, str):
        raise row.error("expected the sections as one text, found none", "sections_content")
    parts = re.split(r"(?mi)^section\s*(\d+)\s*:", text)
    numbers = [int(number) for number in parts[1::2]]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise row.error(f"expected sections numbered from 1, found {numbers[:9]}", "sections_content")
    return parts[2::2]


def _step(text: str) -> Step:
    return Step(text=text.strip() or "(nothing)")


def _numbers(row: Row, column: str, sections: int) -> set[int]:
    listed = row.data.get(column)
    if not isinstance(listed, list) or any(
        type(number) is not int or not 1 <= number <= sections for number in listed
    ):
        raise row.error(f"expected a list of numbers from 1 to {sections}, found {listed!r:.80}", column)
    return set(listed)


def _text(row: Row, column: str) -> str:
    text = row.data.get(column)
    if not isinstance(text, str | int) or not str(text).strip():
        raise row.error(f"expected a text, found {text!r:.80}", column)
    return str(text)


# --- Hard2Verify ------------------------------------------------------------------------------------------------


@settings
class Hard2Verify(StepLabels):
    """Balanced accuracy and F1 of steps, responses and first errors on Hard2Verify, with intervals.

    The data are its rows, decrypted with the authors' function: `unique_id`, `question`, `model_response_by_step`, `human_labels`.
    """

    name: ClassVar[str] = "hard2verify"
    title: ClassVar[str] = "Hard2Verify"
    shown: ClassVar[Mapping[str, str]] = {
        f"{title}, {'balanced F1' if what == 'f1' else 'balanced accuracy'}": f"{figure}/{what}"
        for what in ("f1", "accuracy")
        for title, figure in (("Step", "step"), ("Response", "response"), ("First error", "first error"))
    }
    published: ClassVar[PublishedTable] = HARD2VERIFY
    beside: ClassVar[tuple[str, ...]] = ("*/first error/f1",)
    note: ClassVar[str] = "A constant rating has a balanced accuracy of 50 and a balanced F1 of 0."

    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """See `StepLabels.cases`."""
        for row in read_rows(file, columns=run.columns):
            texts, labels = row.data.get("model_response_by_step"), row.data.get("human_labels")
            if isinstance(texts, str) and isinstance(row.data.get("canary"), str):
                raise row.error(
                    "the row is encrypted; decrypt it with decrypt_sample of the authors' utils.py",
                    "model_response_by_step",
                )
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise row.error(f"expected a list of steps, found {texts!r:.80}", "model_response_by_step")
            if not isinstance(labels, list) or len(labels) != len(texts) or not set(labels) <= {0, 1}:
                raise row.error(
                    f"expected {amount(len(texts), 'label')} of 0 or 1, found {labels!r:.80}", "human_labels"
                )
            id = _text(row, "unique_id")
            solution = Solution(
                problem=Problem(text=_text(row, "question")), steps=tuple(map(_step, texts)), id=id
            )
            labelled = rated(solution, [1 if label else -1 for label in labels])
            yield Case(id=id, labelled=labelled, where=row.where, group="hard2verify")

    def one(self, items: Sequence[Item]) -> Statistic:
        """See `StepLabels.one`."""
        sides: dict[str, tuple[list[float], list[float]]] = {
            f"{what}/{side}": ([], [])
            for what in ("step", "response", "first error")
            for side in ("tpr", "tnr")
        }
        for item in items:
            steps = list(zip(item["truth"], item["named"], strict=True))
            true, named = first_wrong(item["truth"]), first_wrong(item["named"])
            side = "tpr" if true == -1 else "tnr"
            result = named == -1 if true == -1 else any(rating == -1 for rating in item["named"])
            of: dict[str, tuple[float, float]] = {
                "step/tpr": (steps.count((1, 1)), item["truth"].count(1)),
                "step/tnr": (steps.count((-1, -1)), item["truth"].count(-1)),
                f"response/{side}": (result, 1),
                f"first error/{side}": (named == true, 1),
            }
            for name, (tops, bottoms) in sides.items():
                top, bottom = of.get(name, (0, 0))
                tops.append(top)
                bottoms.append(bottom)
        ratios = ratio_statistic(sides)

        def figures(weights: Floats) -> Mapping[str, Floats]:
            values = ratios(weights)
            made: dict[str, Floats] = {}
            for what in ("step", "response", "first error"):
                a, b = values[f"{what}/tpr"], values[f"{what}/tnr"]
                made |= {f"{what}/f1": harmonic(a, b), f"{what}/accuracy": (a + b) / 2}
            return made

        return figures
