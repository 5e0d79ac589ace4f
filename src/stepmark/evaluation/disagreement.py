"""Process against outcome: right answers reached by a wrong step, and right steps that end in a wrong answer.

Every solution stands in one of four cells, by whether all its steps are right (by labels, or by a PRM's scores under a
threshold) and whether its final answer is. ProcessBench (Zheng et al. 2024) counts the right answers that rest on a wrong step:
3.5 % on GSM8K, 18.8 % on MATH, 51.8 % on Omni-MATH; an outcome reward pays for them all the same.

A case whose outcome or process is not known is counted as such and enters no share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from stepmark.errors import UsageError
from stepmark.evaluation.base import Evaluation, Run, counted
from stepmark.evaluation.cases import Case, Neutral, first_error, step_labels
from stepmark.evaluation.result import EvaluationResult, Figure, Item, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import ThresholdRule, policies
from stepmark.evaluation.views import (
    SHOWN,
    Column,
    Figures,
    card,
    examples_of,
    problem,
    table_of,
    tiles_of,
    unreadable,
)
from stepmark.metrics.intervals import Statistic, ratio_statistic, wilson
from stepmark.models.lazy import note_idle
from stepmark.records import LabelledSolution, StepScores
from stepmark.report.evaluation import Report, Section
from stepmark.report.page import ProblemView
from stepmark.report.tables import ABSENT, Table
from stepmark.settings import settings
from stepmark.words import amount

Process = Literal["labels", "scores"]
"""What says whether the steps are right."""

CELLS = {
    "right": "Right for right reasons",
    "lucky": "Lucky: right answer, wrong step",
    "unlucky": "Unlucky: every step right, wrong answer",
    "wrong": "Wrong and shown wrong",
}
"""The four cells in plain words."""

OVERALL = "overall"
"""The name of all groups together."""

_RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **{name: ((name,), tuple(CELLS)) for name in CELLS},
    "lucky-of-right": (("lucky",), ("right", "lucky")),
    "unlucky-of-wrong": (("unlucky",), ("unlucky", "wrong")),
}
"""Name to the cells that count and the cells in question."""


@settings
class Disagreement(Evaluation):
    """How often a right answer rests on a wrong step, and right steps end in a wrong answer, with intervals.

    The data are labelled solutions with outcomes: ProcessBench, candidates, Math-Shepherd.
    """

    name: ClassVar[str] = "disagreement"
    process: Process = "labels"
    """What says whether the steps are right: the data's labels, or a PRM's scores."""
    threshold: str | None = None
    """Of scores: a step whose score is under it is an error: a number, argmax, tuned:GROUP (the best on that group's labels), or oracle. Default: the PRM's own."""
    neutral: Neutral = "positive"
    """What the neutral class of a three-class PRM, and a neutral human rating, count as."""

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and self.process == "scores"

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.process == "labels":
            why = "the steps are judged by labels; `process` scores asks the PRM"
            note_idle({"scores": run.scores, "threshold": self.threshold}, {"scores": why, "threshold": why})

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        if all(case.outcome is None for case in cases):
            raise UsageError("expected data that says whether final answers are right; it says so of none")
        return self.of_cases(cases, run, run.grade(cases) if self.process == "scores" else None)

    def of_cases(self, cases: Sequence[Case], run: Run, sheet: Sheet | None = None) -> EvaluationResult:
        """The 2x2 of process and outcome, by the labels of cases or by their scores."""
        chosen: dict[str, ThresholdRule] = {}
        if sheet is not None:
            truth = {case.id: first_error(case.labelled, self.neutral) for case in cases}
            chosen = policies(self.threshold, sheet, sheet.groups, truth)
        items = items_of(cases, sheet, chosen, neutral=self.neutral)
        if all(item[self.process] is None for item in items):
            raise UsageError(
                "`process` labels: no solution of this data has all its steps judged; take a PRM's scores: `process` scores"
                if sheet is None
                else "`process` scores: the PRM judges no solution to its end"
            )
        figures = widened(run.figures(items, self.statistic(items), _thresholds(items, chosen)), items)
        report = self._report(cases, sheet, items, chosen, figures)
        prm = "labels" if sheet is None else sheet.prm
        return run.result(self, report, figures, items, prm=prm, identity=sheet.identity if sheet else None)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """Every figure as a function of the items' weights, named PART/SOURCE/WHAT.

        PART is a group or "overall"; SOURCE is what judged the steps: "labels" or "scores". WHAT, each a share:

        - `right`, `lucky`, `unlucky`, `wrong`: of all whose steps and outcome are known;
        - `lucky-of-right`: a wrong step, of those with a right answer; `unlucky-of-wrong`: no wrong step, of those with a wrong one.
        """
        return ratio_statistic(ratios(items))

    def _report(
        self,
        cases: Sequence[Case],
        sheet: Sheet | None,
        items: Sequence[Item],
        chosen: Mapping[str, ThresholdRule],
        figures: Figures,
    ) -> Report:
        groups, main = list(parts_of(items)), self.process
        whole = groups[-1]
        named = dict.fromkeys(j.judge for case in cases for step in case.labelled.judgements for j in step)
        judges = {"scores": sheet.prm} if sheet is not None else {}
        if f"{whole}/labels/lucky" in figures:
            judges["labels"] = f"labels ({', '.join(named)})"
        lucky, unlucky = (
            figures[f"{whole}/{main}/{what}"] for what in ("lucky-of-right", "unlucky-of-wrong")
        )
        labelled = (_labels_as_scores(case, self.neutral) for case in cases)
        rows = {row.case.id: row for row in (labelled if sheet is None else sheet.rows)}

        def show(item: Item) -> ProblemView:
            row = rows[item["id"]]
            labels = {None: "not known", True: "no wrong step", False: "a wrong step"}[item["labels"]]
            first = item["found"] if sheet is not None else item["label"]
            note = f"{_OUTCOMES[item['outcome']]}; labels: {labels}"
            return problem(row, card(row, sheet, note, policy=chosen.get(row.case.group), first_error=first))

        sorts: dict[str, Sequence[Item]] = {
            title: [item for item in items if cell_of(item[main], item["outcome"]) == name]
            for name, title in CELLS.items()
        }
        if sheet is not None:
            high, low = confident(items)
            sorts = {
                "Scored high, and the answer is wrong": high[:SHOWN],
                "Scored low, and the answer is right": low[:SHOWN],
            } | sorts
        return Report(
            title=f"Process and outcome: {'labels' if sheet is None else sheet.prm}",
            verdict=f"According to {judges[main]}, {shown(lucky)} % of the right answers rest on a wrong step, and {shown(unlucky)} % of the wrong "
            "ones have none.",
            facts=(
                *_facts(cases, items, main, sheet),
                "In brackets: 95 % bootstrap intervals over problems; where a share is 0 or 100 %, Wilson's, because a bootstrap cannot draw what "
                "was not seen.",
            ),
            tiles=tiles_of(
                figures,
                {
                    f"Wrong step in right answers, {whole} (%)": f"{whole}/{main}/lucky-of-right",
                    f"No wrong step in wrong answers, {whole} (%)": f"{whole}/{main}/unlucky-of-wrong",
                },
            ),
            sections=(
                Section(
                    title="Process and outcome",
                    text="Are all steps right, and is the final answer?",
                    items=_tables(
                        [f"{group}/{source}" for group in groups for source in judges], judges, items, figures
                    ),
                ),
                Section(
                    title="Examples",
                    text=""
                    if sheet is not None
                    else "The numbers on the steps are the labels: 1 right, 0 wrong.",
                    items=examples_of(sorts, show),
                ),
            ),
        )


_OUTCOMES = {True: "right answer", False: "wrong answer", None: "outcome not known"}


def _labels_as_scores(case: Case, neutral: Neutral) -> CaseScores:
    steps = StepScores(scores=step_labels(case.labelled, neutral), kind="probability")
    return CaseScores(case=case, steps=steps)


def cell_of(process: bool | None, outcome: bool | None) -> str | None:
    """The cell of a case: one of `CELLS`, None when either is not known."""
    if process is None or outcome is None:
        return None
    if outcome:
        return "right" if process else "lucky"
    return "unlucky" if process else "wrong"


def steps_right(labelled: LabelledSolution, neutral: Neutral = "positive") -> bool | None:
    """Whether every step is right by its judgements; False as soon as one is known to be wrong; None for not known.

    Unlike in `cases.first_error`, a step that nobody judged does not hide a wrong one after it.
    """
    verdicts = [
        first_error(LabelledSolution(solution=labelled.solution, judgements=(judgements,)), neutral)
        for judgements in labelled.judgements
    ]
    if 0 in verdicts:
        return False
    return None if None in verdicts or not verdicts else True


def items_of(
    cases: Sequence[Case],
    sheet: Sheet | None = None,
    chosen: Mapping[str, ThresholdRule] | None = None,
    *,
    neutral: Neutral = "positive",
) -> list[Item]:
    """One item a case: what is known of its steps, by labels and by scores (with the policy of each group), and of its end."""
    items = []
    rows: Sequence[CaseScores | None] = (None,) * len(cases) if sheet is None else sheet.rows
    for case, row in zip(cases, rows, strict=True):
        result = None if row is None or chosen is None else chosen[case.group].found(row)
        read = [] if row is None else [score for score in row.scores if score is not None]
        items.append(
            {
                "id": case.id,
                "problem": case.problem,
                "group": case.group,
                "policy": case.policy,
                "where": case.where,
                "outcome": case.outcome,
                "labels": steps_right(case.labelled, neutral),
                "label": first_error(case.labelled, neutral),
                "scores": None if result is None else result == -1,
                "found": result,
                "weakest": min(read, default=None),
                "steps": len(case.solution.steps),
            }
        )
    return items


def parts_of(items: Sequence[Item]) -> dict[str, list[bool]]:
    """Name to membership of each item: the groups, and all together where there are several."""
    groups = list(dict.fromkeys(item["group"] for item in items))
    parts = {group or "all": [item["group"] == group for item in items] for group in groups}
    return parts | ({OVERALL: [True] * len(items)} if len(groups) > 1 else {})


def ratios(items: Sequence[Item]) -> dict[str, tuple[list[float], list[float]]]:
    """Every figure of the statistic: which items count, and which are in question."""
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for source in ("labels", "scores"):
        if all(item[source] is None for item in items):
            continue
        known = [cell_of(item[source], item["outcome"]) for item in items]
        for part, member in parts_of(items).items():
            for what, pair in _RATIOS.items():
                above, below = (
                    [float(m and c in of) for m, c in zip(member, known, strict=True)] for of in pair
                )
                columns[f"{part}/{source}/{what}"] = above, below
    return columns


def widened(figures: Figures, items: Sequence[Item]) -> dict[str, Figure]:
    """The figures, those of 0 and 1 with Wilson's interval over their problems.

    Where none was seen no resample has one either: a bootstrap would claim that there are none at all.
    """
    of = ratios(items)

    def one(figure: Figure) -> Figure:
        if figure.value not in (0.0, 1.0):
            return figure
        asked = of[figure.name][1]
        problems = len({item["problem"] for item, m in zip(items, asked, strict=True) if m > 0})
        interval = wilson(problems if figure.value else 0, problems, level=figure.level)
        return replace(figure, low=interval.low, high=interval.high)

    return {name: one(figure) for name, figure in figures.items()}


def _thresholds(items: Sequence[Item], chosen: Mapping[str, ThresholdRule]) -> dict[str, str]:
    """Part of a figure's name to the threshold that it rests on."""
    words: dict[str, str] = {}
    for part, member in parts_of(items).items() if chosen else ():
        groups = dict.fromkeys(item["group"] for item, m in zip(items, member, strict=True) if m)
        words[f"{part}/scores"] = "; ".join(dict.fromkeys(chosen[group].words for group in groups))
    return words


def _facts(cases: Sequence[Case], items: Sequence[Item], main: Process, sheet: Sheet | None) -> list[str]:
    facts = [f"{counted(items)}. Process: whether every step is right; outcome: whether the final answer is."]
    for what, key in (("the outcome", "outcome"), (f"the process by {main}", main)):
        if unknown := sum(item[key] is None for item in items):
            facts.append(f"In no share: {amount(unknown, 'solution')} of which {what} is not known.")
    if sheet is not None:
        facts += unreadable(sheet)
        facts.append(
            "By a PRM, what is called lucky can be its false alarm, and what is called unlucky an error that it missed."
        )
    elif any(j.kind == "value" for case in cases for step in case.labelled.judgements for j in step):
        facts.append(
            "Labels from rollouts: a step is wrong when no rollout from its end succeeded, so that a wrong answer always has a wrong step."
        )
    return facts


def _tables(
    rows: Sequence[str], judges: Mapping[str, str], items: Sequence[Item], figures: Figures
) -> tuple[Table, Table]:
    """The shares that matter and those of the four cells, a row for each GROUP/SOURCE."""
    counts: dict[str, Counter[bool]] = {}
    for row in rows:
        part, source = row.rsplit("/", 1)
        members = zip(items, parts_of(items)[part], strict=True)
        counts[row] = Counter(cell_of(item[source], item["outcome"]) is not None for item, m in members if m)
    judged: dict[str, Column] = {"Steps judged by": ("text", lambda row: judges[row.rpartition("/")[2]])}
    rates: dict[str, Column] = {
        "Threshold": ("text", lambda row: figures[f"{row}/lucky"].policy or ABSENT),
        "Lucky, of right answers": "{}/lucky-of-right",
        "Unlucky, of wrong answers": "{}/unlucky-of-wrong",
        "Solutions": lambda row: counts[row][True],
        "Not known": lambda row: counts[row][False],
    }
    cells: dict[str, Column] = {title: f"{{}}/{name}" for name, title in CELLS.items()}
    first, second = (
        table_of(title, "Group", rows, judged | own, figures, label=lambda row: row.rpartition("/")[0])
        for title, own in (
            ("Where process and outcome part (%)", rates),
            ("The four cells, of the solutions whose steps and outcome are known (%)", cells),
        )
    )
    return first, second


def confident(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Unlucky solutions by the scores, the highest weakest step first; and lucky ones, the lowest first.

    They point at wrong reference answers, wrong labels, and what a policy could exploit.
    """
    of: dict[str | None, list[Item]] = {"unlucky": [], "lucky": []}
    for item in items:
        of.setdefault(cell_of(item["scores"], item["outcome"]), []).append(item)
    return (
        sorted(of["unlucky"], key=lambda item: -item["weakest"]),
        sorted(of["lucky"], key=lambda item: item["weakest"]),
    )
