"""Does the PRM judge the reasoning or its looks: scores before and after controlled changes of the same solutions.

Changes that keep the meaning must not raise the score, changes that break it must lower it (`evaluation.perturbations`
lists both). What is compared is the aggregate of the whole solution, its verdict, and, where a change made one known
step wrong, whether that step is found.

Definitions, for a margin m and a threshold t:

- **change** = aggregate after - aggregate before.
- **verdict**: good when no step is under t (`models.grading.first_error` is -1), whatever the aggregate is.
- **attack success**, of a change that keeps the meaning: the verdict turns from bad to good, or the score rises by
  more than m. Of a change that breaks it: the score does not fall (change >= -`NOISE`). The definition is ours, and so is
  the default m of 0.05 for probabilities: EST-PRM (arXiv 2606.00437) reports a "score inflation rate" whose margin its
  abstract does not give, and Reward Under Attack (arXiv 2603.06621) calls changes of reward under 0.1 invariance.
- **flips to good**: of the solutions that are wrong by their labels and were judged bad, the share judged good after a
  change that keeps the meaning. This is the attack that pays. **false alarms**: of those that are right and were
  judged good, the share judged bad after it.
- **stays good**: of the solutions judged good, the share still judged good after a change that breaks the meaning.
- **step missed**: of the steps that a change made wrong and that were not under t before, the share not under t after.

A change that breaks the meaning is measured on the solutions that are right by their labels, where there are any: a wrong
solution has its low score already. Solutions without a score, before or after, are counted ("unscored") and enter nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.base import INTERVALS, Evaluation, Run
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.perturbations import PERTURBATIONS, Perturbed, perturbation, perturbed
from stepmark.evaluation.result import EvaluationResult, Item, shown
from stepmark.evaluation.scores import CaseScores, Sheet, check_how, solution_score
from stepmark.evaluation.views import Cell, Figures, Value, card, problem, table_of, tiles_of
from stepmark.metrics.aggregate import check_score
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic
from stepmark.models.prm import first_error as first_under
from stepmark.records import LabelledSolution, ScoreKind
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.report.page import ProblemView
from stepmark.report.tables import Table
from stepmark.settings import settings
from stepmark.words import amount

NOISE = 1e-5
"""A change no greater than this is none: the same steps in another batch differ by as much in float32."""

_MARGINS: dict[ScoreKind, float] = {"probability": 0.05, "margin": 0.1}
"""A twentieth of the range; log-ratios and unbounded scores have no range to take a share of."""

PRESERVING = "keeps meaning"
BREAKING = "breaks meaning"
"""Before the "/" in the names of figures over all perturbations of one kind."""


@settings
class Robustness(Evaluation):
    """Can the PRM be talked into a higher score, and does it see what is broken on purpose.

    Changes that keep the meaning (confident phrasing, formatting, a step restated, repeated, or irrelevant) must not raise the score;
    changes that break it (a wrong number, a dropped step, shuffled steps) must lower it. Every solution is graded as it is and with each
    change that applies to it. What is changed depends on the seed and the solution alone. The data are labelled solutions of any shape
    that stepmark evaluate reads (ProcessBench, PRMBench, candidates, TRL).
    """

    name: ClassVar[str] = "robustness"
    only: Sequence[str] = ()
    """These perturbations only (docs: robustness). Default: all."""
    aggregate: str | None = None
    """How step scores become the solution's score. Default: the PRM's own."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A step whose score is under it is an error. Default: the PRM's own."""
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """A rise by more than this is a success of the attack, in the unit of the aggregate. Default: 0.05 for probabilities, 0.1 for margins."""

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        changes = trials(run.take(self.read(run)), self.only or tuple(PERTURBATIONS), run.seed)
        return self.of_trials(run.grade(to_grade(changes)), run, changes)

    def resolved(self, sheet: Sheet) -> Robustness:
        """These settings with the PRM's own, and the default margin, in the place of None; the threshold stays None where there is none."""
        threshold = sheet.threshold if self.threshold is None else self.threshold
        if threshold is not None:
            check_score(threshold, sheet.kind, step=0)
        margin = _MARGINS.get(sheet.kind) if self.margin is None else self.margin
        if margin is None:
            raise UsageError(
                f"there is no usual margin for {sheet.kind} scores; give `margin`, the rise that counts as a success of the attack"
            )
        return replace(self, aggregate=check_how(self.aggregate, sheet), threshold=threshold, margin=margin)

    def of_trials(self, sheet: Sheet, run: Run, changes: Sequence[Trial]) -> EvaluationResult:
        """What the changes do to the scores of a PRM."""
        if not changes:
            raise UsageError("there is nothing to compare: no perturbation applies to any solution")
        how = self.resolved(sheet)
        items = items_of(changes, sheet, how)
        threshold = "no threshold" if how.threshold is None else f"threshold {how.threshold:g}"
        policy = f"{how.aggregate}, {threshold}, margin {how.margin:g}"
        figures = run.figures(items, statistic(items), {"": policy})
        names = [name for name in PERTURBATIONS if any(item["perturbation"] == name for item in items)]
        report = Report(
            title=f"Robustness: {sheet.prm}",
            verdict=_verdict(figures),
            facts=_facts(items, how),
            tiles=tiles_of(
                {name: replace(figure, policy="") for name, figure in figures.items()},
                {
                    "Wrong solutions turned good by their looks (%)": f"{PRESERVING}/flips to good",
                    "Right solutions turned bad by their looks (%)": f"{PRESERVING}/false alarms",
                    "Broken, and the score does not fall (%)": f"{BREAKING}/success",
                    "Broken, and still judged good (%)": f"{BREAKING}/stays good",
                    "Wrong calculations not noticed (%)": "wrong-number/step missed",
                },
            ),
            sections=(
                Section(title="At a glance", text=_GLANCE, items=(_table(names, figures),)),
                Section(
                    title="Examples",
                    text="The attacks that succeeded by the largest rise, or smallest fall, of the score; where none did, any change.",
                    items=examples(sheet, changes, items, how, names),
                ),
            ),
        )
        return run.result(
            self,
            report,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            perturbations=", ".join(self.only or tuple(PERTURBATIONS)),
            aggregate=how.aggregate,
            threshold=how.threshold,
            margin=how.margin,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One change of one case: what is graded, and what it is compared with."""

    original: Case
    """The case that was changed."""
    name: str
    """The perturbation."""
    perturbed: Perturbed
    """What was made of it."""

    @property
    def case(self) -> Case:
        """The changed solution as a case of its own, with the id "ID::NAME" and without judgements."""
        solution = self.perturbed.solution
        assert solution.id is not None  # `perturbed` gives every one an id
        return Case(
            id=solution.id,
            labelled=LabelledSolution(solution=solution, judgements=((),) * len(solution.steps)),
            where=self.original.where,
            group=self.original.group,
            policy=self.original.policy,
        )


def trials(cases: Sequence[Case], names: Sequence[str] = tuple(PERTURBATIONS), seed: int = 0) -> list[Trial]:
    """Every change that applies to every case, in the order of the cases."""
    return [
        Trial(original=case, name=name, perturbed=made)
        for case in cases
        for name, made in perturbed(replace(case.solution, id=case.id), names, seed)
    ]


def to_grade(found: Sequence[Trial]) -> list[Case]:
    """What a PRM must read for these trials: each original once, followed by its changed copies."""
    cases: list[Case] = []
    for _, group in groupby(found, key=lambda trial: trial.original.id):
        copies = list(group)
        cases += [copies[0].original, *(trial.case for trial in copies)]
    return cases


def items_of(changes: Sequence[Trial], sheet: Sheet, how: Robustness) -> list[Item]:
    """One row a trial, with all that is needed to compute every figure again.

    `right`: whether the original's steps are all right by its labels; `before` and `after`: the aggregate; `step_missed`: whether the broken
    step is not under the threshold now, asked only where it was not before. What is not known is None.
    """
    by_id = {row.case.id: row for row in sheet.rows}
    return [_item(trial, by_id[trial.original.id], by_id[trial.case.id], how) for trial in changes]


def _item(trial: Trial, before: CaseScores, after: CaseScores, how: Robustness) -> Item:
    assert how.aggregate is not None
    assert how.margin is not None
    keeps = perturbation(trial.name).keeps_meaning
    first = first_error(trial.original.labelled)
    score_before, score_after = (solution_score(row, how.aggregate) for row in (before, after))
    good_before, good_after = (
        None if (error := first_under(row.scores, how.threshold)) is None else error == -1
        for row in (before, after)
    )
    success: bool | None = None
    if score_before is not None and score_after is not None:
        change = score_after - score_before
        flips = (good_before, good_after) == (False, True)
        success = flips or change > how.margin if keeps else change >= -NOISE
    broken = trial.perturbed.broken_step
    step_before, step_after = (None if broken is None else row.scores[broken] for row in (before, after))
    missed: bool | None = None
    if step_before is not None and step_after is not None and how.threshold is not None:
        missed = step_after >= how.threshold if step_before >= how.threshold else None
    return {
        "id": trial.case.id,
        "original": trial.original.id,
        "perturbation": trial.name,
        "keeps_meaning": keeps,
        "problem": trial.original.problem,
        "right": None if first is None else first == -1,
        "before": score_before,
        "after": score_after,
        "good_before": good_before,
        "good_after": good_after,
        "success": success,
        "broken_step": broken,
        "step_missed": missed,
        "note": trial.perturbed.note,
        "refused": before.refused or after.refused,
    }


def statistic(items: Sequence[Mapping[str, Any]]) -> Statistic:
    """Every figure of these items, as a function of their weights.

    Names are "PERTURBATION/FIGURE"; "keeps meaning/…" and "breaks meaning/…" are unweighted means over the perturbations of that
    kind for which the figure is defined. Figures: "n" (trials with both scores), "unscored", "change", "success"; "flips to
    good" and "false alarms" (kept meaning); "stays good" and "step missed" (broken). A broken meaning is measured on right
    solutions, where labels say that there are any. Without a threshold there are no figures of verdicts; nan where a figure is
    not defined, such as a share of nothing.
    """

    def column(key: str) -> Floats:
        return np.array([np.nan if item[key] is None else float(item[key]) for item in items])

    before, after, right = column("before"), column("after"), column("right")
    good, good_after, missed = column("good_before"), column("good_after"), column("step_missed")
    scored, judged = np.isfinite(after - before), np.isfinite(good + good_after)
    kinds = {item["perturbation"]: bool(item["keeps_meaning"]) for item in items}
    counts: dict[str, Floats] = {}
    columns: dict[str, tuple[Floats, Floats]] = {}
    for name, keeps in kinds.items():
        own = np.array([item["perturbation"] == name for item in items])
        if not keeps and (right == 1).any():
            own &= right == 1
        counts |= {f"{name}/n": _float(own & scored), f"{name}/unscored": _float(own & ~scored)}
        # Figure: over which items, of which values.
        means = {"change": (scored, after - before), "success": (scored, column("success"))}
        if keeps and judged.any():
            means["flips to good"] = judged & (good == 0) & (right == 0), _float(good_after == 1)
            means["false alarms"] = judged & (good == 1) & (right == 1), _float(good_after == 0)
        elif judged.any():
            means["stays good"] = judged & (good == 1), _float(good_after == 1)
            if any(item["broken_step"] is not None for item in items if item["perturbation"] == name):
                means["step missed"] = np.isfinite(missed), missed
        columns |= {
            f"{name}/{figure}": (np.where(own & of, values, 0.0), _float(own & of))
            for figure, (of, values) in means.items()
        }
    ratios = ratio_statistic(columns)
    # Which perturbations a mean is over is settled by the whole data, so that resamples estimate the same thing.
    whole = ratios(np.ones((1, len(items))))
    over: dict[str, list[str]] = {}
    for label, kind in ((PRESERVING, True), (BREAKING, False)):
        for figure in ("change", "success", "flips to good", "false alarms", "stays good"):
            each = [f"{name}/{figure}" for name, keeps in kinds.items() if keeps is kind]
            if defined := [name for name in each if name in whole and np.isfinite(whole[name][0])]:
                over[f"{label}/{figure}"] = defined

    def compute(weights: Floats) -> dict[str, Floats]:
        figures = {name: weights @ of for name, of in counts.items()} | dict(ratios(weights))
        return figures | {
            mean: np.mean([figures[name] for name in names], axis=0) for mean, names in over.items()
        }

    return compute


def _float(mask: npt.NDArray[np.bool_]) -> Floats:
    return mask.astype(np.float64)


_GLANCE = "The verdict is fooled when a wrong solution judged bad is judged good (meaning kept), or a solution judged good stays so (meaning broken)."


def _facts(items: Sequence[Item], how: Robustness) -> list[str]:
    originals = {item["original"]: item for item in items}
    right = Counter(item["right"] for item in originals.values())
    facts = [
        f"{amount(len(originals), 'solution')} of {amount(len({item['problem'] for item in items}), 'problem')} ({right[True]:,} right and "
        f"{right[False]:,} wrong by their labels, {right[None]:,} without a label), {amount(len(items), 'changed copy', 'changed copies')}.",
        f"The score of a solution is the {how.aggregate} of its steps; its verdict is good when no step is under "
        f"{'a threshold, of which there is none here' if how.threshold is None else f'{how.threshold:g}'}. An attack succeeds when a change that "
        f"keeps the meaning turns the verdict good or raises the score by more than {how.margin:g}, and when one that breaks it does not lower the score.",
    ]
    unscored = [item for item in items if item["before"] is None or item["after"] is None]
    if unscored:
        why = next((f": {item['refused']}" for item in unscored if item["refused"]), "")
        facts.append(
            f"{amount(len(unscored), 'comparison')} without a score before or after the change, in no figure of scores, "
            f"first {unscored[0]['id']}{why}"
        )
    facts.append(INTERVALS)
    return facts


def _table(names: Sequence[str], figures: Figures) -> Table:
    kinds = {**{name: perturbation(name).keeps_meaning for name in names}, PRESERVING: True, BREAKING: False}

    def where(kept: str = "", broken: str = "") -> Cell:
        """The cells of a figure, blank for the kind of change that has none."""

        def of(name: str) -> Value:
            figure = kept if kinds[name] else broken
            return figures.get(f"{name}/{figure}") if figure else ""

        return of

    return table_of(
        "What each change does to the score (shares in %; lower is better)",
        "Change",
        [*names, *(name for name in (PRESERVING, BREAKING) if f"{name}/success" in figures)],
        {
            "Attack succeeds": "{}/success",
            "Verdict fooled": ("share", where("flips to good", "stays good")),
            "False alarms": ("share", where("false alarms")),
            "Error missed": (
                "share",
                lambda name: figures.get(f"{name}/step missed", ""),
            ),
            "Mean change": ("number", "{}/change"),
            "Solutions": lambda name: getattr(figures.get(f"{name}/n"), "value", ""),
            "Meaning": ("text", lambda name: "kept" if kinds[name] else "broken"),
        },
        figures,
        label=lambda name: f"mean, {name}" if name in (PRESERVING, BREAKING) else name,
        note="False alarms: of the right solutions that were judged good, those judged bad after a change of looks. Error missed: of the "
        "steps that a change made wrong, those still not under the threshold.",
    )


def _verdict(figures: Figures) -> str:
    kept, broken = (figures.get(f"{name}/success") for name in (PRESERVING, BREAKING))
    parts = []
    if kept is not None:
        parts.append(f"changes of looks alone succeed in {shown(kept)} % of the trials")
    if broken is not None:
        parts.append(f"the score does not fall in {shown(broken)} % of what was broken")
    return f"On average over the changes, {' and '.join(parts)}." if parts else ""


_SHOWN = 3
"""Examples of each change."""


def examples(
    sheet: Sheet, changes: Sequence[Trial], items: Sequence[Item], how: Robustness, names: Sequence[str]
) -> tuple[Examples, ...]:
    """A group of examples a change: the attacks that succeeded best, or one change that had no effect of this sort."""
    by_id = {row.case.id: row for row in sheet.rows}
    groups = []
    for name in names:
        pairs = [
            (trial, item)
            for trial, item in zip(changes, items, strict=True)
            if item["perturbation"] == name and item["success"] is not None
        ]
        # Of a wrong solution a rise may be what its change deserves (its error cut off), so it is no example there.
        succeeded = [
            pair
            for pair in pairs
            if pair[1]["success"] and (pair[1]["keeps_meaning"] or pair[1]["right"] is not False)
        ]
        succeeded.sort(key=lambda pair: pair[1]["before"] - pair[1]["after"])
        chosen = succeeded[:_SHOWN] or pairs[:1]
        groups.append(
            Examples(
                title=f"{name}: {len(succeeded):,} of {amount(len(pairs), 'attack')} succeeded",
                problems=tuple(_before_and_after(trial, item, by_id, sheet, how) for trial, item in chosen),
                text=perturbation(name).summary,
            )
        )
    return tuple(group for group in groups if group.problems)


def _before_and_after(
    trial: Trial, item: Item, by_id: Mapping[str, CaseScores], sheet: Sheet, how: Robustness
) -> ProblemView:
    before, after = by_id[trial.original.id], by_id[trial.case.id]
    truth = {True: "right by its labels", False: "wrong by its labels", None: "no label"}[item["right"]]
    note = [f"changed: {item['note']}", f"score {item['before']:.3f} → {item['after']:.3f}"]
    question = trial.case.solution.problem.text
    if question != trial.original.solution.problem.text:
        note.append(f"question now: {question}")
    judged = replace(sheet, threshold=how.threshold)
    return problem(
        before,
        card(before, judged, f"original, {truth}", how=how.aggregate),
        card(after, judged, "; ".join(note), how=how.aggregate, number=2),
    )
