"""Does the PRM judge the reasoning or its looks: scores before and after controlled changes of the same solutions.

Changes that keep the meaning must not raise the score, changes that break it must lower it (`evaluation.perturbations`
lists both). What is compared is the aggregate of the whole solution, its verdict, and, where a change made one known
step wrong, the score of that step before and after.

Definitions, for a margin m and a threshold t:

- **change** = aggregate after - aggregate before. **raised**, **lowered**: it differs from 0 by more than `NOISE`.
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

Each share and mean is also given for the solutions that are right by their labels ("/right") and wrong ("/wrong"). A
change that breaks the meaning is best read on the right ones: a wrong solution has its low score already, and cutting
off its error even mends it. Solutions without a score, before or after, are counted ("unscored") and enter nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.calibration_figures import solution_score
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.perturbations import (
    PERTURBATIONS,
    Donors,
    Perturbed,
    perturbation,
    perturbed,
)
from stepmark.evaluation.result import Item, Result, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.views import (
    Cell,
    Figures,
    card,
    cell,
    problem,
    series_of,
    table_of,
    tile,
)
from stepmark.metrics.aggregate import check_aggregate, check_score
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic
from stepmark.models.prm import first_error as first_under
from stepmark.records import LabelledSolution, ScoreKind
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.page import ProblemView
from stepmark.show.plots import Bars
from stepmark.show.tables import Table
from stepmark.show.text import amount

NOISE = 1e-5
"""A change no greater than this is none: the same steps in another batch differ by as much in float32."""

_MARGINS: dict[ScoreKind, float] = {"probability": 0.05, "margin": 0.1}
"""A twentieth of the range; log-ratios and unbounded scores have no range to take a share of."""


Bools = npt.NDArray[np.bool_]

PRESERVING = "keeps meaning"
BREAKING = "breaks meaning"
"""Before the "/" in the names of figures over all perturbations of one kind."""
_GROUPS = ("", "/right", "/wrong")


@settings
class Robustness(Evaluation):
    """Can the PRM be talked into a higher score, and does it see what is broken on purpose.

    Changes that keep the meaning must not raise the score, changes that break it must lower it. Every solution is graded as it is and with
    each change that applies to it: confident phrasing, formatting, restated or inflated steps; question removed, shuffled or swapped, steps
    shuffled, numbers altered, truncated, irrelevant or repeated answers. What is changed depends on the seed and the solution alone. The
    data are labelled solutions of any shape that stepmark evaluate reads (ProcessBench, PRMBench, candidates, TRL).
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

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        changes = trials(run.take(self.read(run)), self.only or tuple(PERTURBATIONS), run.seed)
        return self.of_trials(run.grade(to_grade(changes)), run, changes)

    def judging(self, sheet: Sheet) -> Judging:
        """These settings with the PRM's own, and the default margin, in the place of None.

        Raises:
            UnknownNameError: no such aggregate.
            ScoreKindError: the aggregate means nothing for these scores.
            UsageError: no aggregate is known, no default margin exists for these scores, or a setting is out of range.
        """
        how = sheet.aggregate if self.aggregate is None else self.aggregate
        if how is None:
            raise UsageError("the scores do not say how their PRM aggregates; choose with `aggregate`")
        check_aggregate(how, sheet.kind)
        threshold = sheet.threshold if self.threshold is None else self.threshold
        if threshold is not None:
            try:
                check_score(threshold, sheet.kind, step=0)
            except ValueError:
                raise UsageError(f"the threshold {threshold!r} is no {sheet.kind}") from None
        margin = self.margin
        if margin is None:
            margin = None if how == "sum-logit" else _MARGINS.get(sheet.kind)
        if margin is None:
            raise UsageError(
                f"there is no usual margin for the {how} of {sheet.kind} scores; give `margin`, the rise that "
                "counts as a success of the attack"
            )
        return Judging(aggregate=how, threshold=threshold, margin=margin)

    def of_trials(self, sheet: Sheet, run: Run, changes: Sequence[Trial]) -> Result:
        """What the changes do to the scores of a PRM.

        Raises:
            UsageError: no changes, a case without scores, or settings that do not fit the scores.
        """
        if not changes:
            raise UsageError("there is nothing to compare: no perturbation applies to any solution")
        how = self.judging(sheet)
        items = items_of(changes, sheet, how)
        threshold = "no threshold" if how.threshold is None else f"threshold {how.threshold:g}"
        policy = f"{how.aggregate}, {threshold}, margin {how.margin:g}"
        figures = run.figures(items, statistic(items), {"": policy})
        names = [name for name in PERTURBATIONS if any(item["perturbation"] == name for item in items)]
        preserving = [name for name in names if perturbation(name).keeps_meaning]
        breaking = [name for name in names if not perturbation(name).keeps_meaning]
        # Where labels say which solutions are right, only those can be broken.
        group = "/right" if any(item["right"] for item in items) else ""
        items_shown: list[Table | Bars] = [_glance(names, figures, group)]
        for mean, changed in ((PRESERVING, preserving), (BREAKING, breaking)):
            items_shown += _change_plot(changed, mean, figures, group if mean == BREAKING else "")
        sections = (
            Section(title="At a glance", text=_GLANCE, items=tuple(items_shown)),
            Section(title="Examples", text=_EXAMPLES, items=examples(sheet, changes, items, how, names)),
        )
        views = Views(
            title=f"Robustness: {sheet.prm}",
            verdict=_verdict(figures, group),
            facts=_facts(items, how),
            tiles=_tiles(figures, group),
            sections=sections,
        )
        return run.result(
            self,
            views,
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
class Judging:
    """How a change of score is judged."""

    aggregate: str
    """One of `metrics.aggregate.AGGREGATES`."""
    threshold: float | None
    """A step strictly under it is an error; None for no verdicts."""
    margin: float
    """A rise by more than this is a success of the attack, in the unit of the aggregate."""


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
    """Every change that applies to every case, in the order of the cases.

    Those of one case that keep its question stand first, so that a PRM reads the question once for all of them.
    Donors are the cases that are right by their labels, or all when none is known to be: a wrong solution of another
    problem could be marked down for its own error.

    Raises:
        UnknownNameError: no such perturbation.
        UsageError: a perturbation needs solutions of another problem, and there is none.
    """
    if len({case.id for case in cases}) < len(cases):
        raise UsageError("two cases have one id; expected every id once")
    needs_donor = any(perturbation(name).needs_donor for name in names)
    if needs_donor and len({case.solution.problem.text for case in cases}) < 2:
        raise UsageError(
            "question-swapped and irrelevant-solution need cases of two problems or more; leave them out"
        )
    right = [case.solution for case in cases if first_error(case.labelled) == -1]
    several = len({solution.problem.text for solution in right}) > 1
    donors = right if several else [case.solution for case in cases]
    ring = Donors(donors) if needs_donor else None
    results: list[Trial] = []
    for case in cases:
        question = case.solution.problem.text
        changes = [
            Trial(original=case, name=name, perturbed=made)
            for name, made in perturbed(replace(case.solution, id=case.id), names, seed, ring)
        ]
        results += sorted(changes, key=lambda trial: trial.perturbed.solution.problem.text != question)
    return results


def to_grade(found: Sequence[Trial]) -> list[Case]:
    """What a PRM must read for these trials: each original once, followed by its changed copies."""
    cases: list[Case] = []
    for _, group in groupby(found, key=lambda trial: trial.original.id):
        copies = list(group)
        cases += [copies[0].original, *(trial.case for trial in copies)]
    return cases


def items_of(found: Sequence[Trial], sheet: Sheet, how: Judging) -> list[dict[str, Any]]:
    """One row a trial, with all that is needed to compute every figure again.

    Keys: `id`, `original` (its id), `perturbation`, `keeps_meaning`, `problem` (what the bootstrap draws),
    `group`, `right` (are the original's steps all right by its labels), `before` and `after` (the aggregate),
    `good_before` and `good_after` (the verdict), `success` (of the attack), `steps_before` and `steps_after` (how many),
    `broken_step`, `proven`, `step_before` and `step_after` (the scores of the broken step), `step_missed` (whether
    it is not under the threshold now, asked only where it was not before), `note`, `refused` (why there is no score). What is
    not known is None. The words are defined at the top of this module.

    Raises:
        UsageError: a case without scores in the sheet, or an aggregate that is infinite.
    """
    by_id = {row.case.id: row for row in sheet.rows}
    missing = next((case.id for case in to_grade(found) if case.id not in by_id), None)
    if missing is not None:
        raise UsageError(
            f"there are no scores for {missing!r}; were they made with the same seed and perturbations?"
        )
    return [_item(trial, by_id[trial.original.id], by_id[trial.case.id], how) for trial in found]


def _item(trial: Trial, before: CaseScores, after: CaseScores, how: Judging) -> dict[str, Any]:
    keeps = perturbation(trial.name).keeps_meaning
    first = first_error(trial.original.labelled)
    score_before, score_after = (_aggregate(row, how.aggregate) for row in (before, after))
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
        "group": trial.original.group,
        "right": None if first is None else first == -1,
        "before": score_before,
        "after": score_after,
        "good_before": good_before,
        "good_after": good_after,
        "success": success,
        "steps_before": len(before.scores),
        "steps_after": len(after.scores),
        "broken_step": broken,
        "proven": trial.perturbed.proven,
        "step_before": step_before,
        "step_after": step_after,
        "step_missed": missed,
        "note": trial.perturbed.note,
        "refused": before.refused or after.refused,
    }


def _aggregate(row: CaseScores, how: str) -> float | None:
    value = solution_score(row, how)
    if value is not None and not math.isfinite(value):
        raise UsageError(
            f"{row.case.id}: the {how} of its scores is {value}, which has no change; take another aggregate"
        )
    return value


def statistic(items: Sequence[Mapping[str, Any]]) -> Statistic:
    """Every figure of these items, as a function of their weights.

    Names are "PERTURBATION/FIGURE" and, for the solutions that are right or wrong by their labels,
    "PERTURBATION/FIGURE/right" and "…/wrong"; "keeps meaning/…" and "breaks meaning/…" are unweighted means over the
    perturbations of that kind for which the figure is defined. Figures: "n" (trials with both scores), "unscored", "before" and
    "after" (mean aggregates), "change", "raised", "lowered", "success"; "flips to good" and "false
    alarms" (kept meaning); "stays good" (broken); "step change" and "step missed" (where a step was made wrong),
    these also over the steps that are proven to be wrong, "…/proven". Without a threshold there are no figures of
    verdicts; nan where a figure is not defined, such as a share of nothing.
    """
    kinds = {item["perturbation"]: bool(item["keeps_meaning"]) for item in items}
    counts: dict[str, Floats] = {}
    columns: dict[str, tuple[Floats, Floats]] = {}
    for name, keeps in kinds.items():
        more_counts, more_columns = _columns(name, keeps, items)
        counts |= more_counts
        columns |= more_columns
    ratios = ratio_statistic(columns)
    # Which perturbations a mean is over is settled by the whole data, so that resamples estimate the same thing.
    whole = ratios(np.ones((1, len(items))))
    means: dict[str, list[str]] = {}
    for kind, label in ((True, PRESERVING), (False, BREAKING)):
        for figure in ("change", "success", "flips to good", "false alarms", "stays good"):
            for group in _GROUPS:
                each = [f"{name}/{figure}{group}" for name, keeps in kinds.items() if keeps is kind]
                if defined := [name for name in each if name in whole and np.isfinite(whole[name][0])]:
                    means[f"{label}/{figure}{group}"] = defined

    def compute(weights: Floats) -> dict[str, Floats]:
        figures = {name: weights @ of for name, of in counts.items()} | dict(ratios(weights))
        return figures | {
            mean: np.mean([figures[name] for name in names], axis=0) for mean, names in means.items()
        }

    return compute


def _columns(
    name: str, keeps: bool, items: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """The counts of one perturbation, and the numerator and denominator of each of its means."""

    def column(key: str) -> Floats:
        return np.array([np.nan if item[key] is None else float(item[key]) for item in items])

    own = np.array([item["perturbation"] == name for item in items])
    before, after, right = column("before"), column("after"), column("right")
    change, step_change = after - before, column("step_after") - column("step_before")
    good, good_after, missed = column("good_before"), column("good_after"), column("step_missed")
    groups = {"": own, "/right": own & (right == 1), "/wrong": own & (right == 0)}
    proven = {**groups, "/proven": own & (column("proven") == 1)}
    scored, judged = np.isfinite(change), np.isfinite(good) & np.isfinite(good_after)
    # Figure: over which items, of which values, in which groups.
    means: dict[str, tuple[Bools, Floats | Bools, Mapping[str, Bools]]] = {
        "before": (scored, before, groups),
        "after": (scored, after, groups),
        "change": (scored, change, groups),
        "raised": (scored, change > NOISE, groups),
        "lowered": (scored, change < -NOISE, groups),
        "success": (scored, column("success"), groups),
    }
    if (judged & own).any():
        if keeps:
            means["flips to good"] = judged & (good == 0) & (right == 0), good_after == 1, {"": own}
            means["false alarms"] = judged & (good == 1) & (right == 1), good_after == 0, {"": own}
        else:
            means["stays good"] = judged & (good == 1), good_after == 1, groups
    if np.isfinite(column("broken_step")[own]).any():
        means["step change"] = np.isfinite(step_change), step_change, proven
        if (judged & own).any():
            means["step missed"] = np.isfinite(missed), missed, proven
    counts = {
        f"{name}/{figure}{group}": (of & member).astype(float)
        for group, member in groups.items()
        for figure, of in (("n", scored), ("unscored", ~scored))
    }
    columns = {
        f"{name}/{figure}{group}": (np.where(of & member, values, 0.0), (of & member).astype(float))
        for figure, (of, values, chosen) in means.items()
        for group, member in chosen.items()
    }
    return counts, columns


_GLANCE = (
    "An attack succeeds when a change that keeps the meaning turns a bad verdict into a good one or raises the score by more than "
    "the margin, and when a change that breaks the meaning does not lower it. The verdict is fooled when a wrong solution "
    "judged bad is judged good (meaning kept), or a solution judged good stays so (meaning broken)."
)
_EXAMPLES = (
    "The original and its changed copy side by side: the attacks that succeeded by the largest rise (or smallest fall) of the score; "
    "where none did, one change that had no effect of this sort."
)


def _facts(items: Sequence[Item], how: Judging) -> list[str]:
    originals = {item["original"]: item for item in items}
    right = Counter(item["right"] for item in originals.values())
    facts = [
        f"{amount(len(originals), 'solution')} of {amount(len({item['problem'] for item in items}), 'problem')} ({right[True]:,} right and "
        f"{right[False]:,} wrong by their labels, {right[None]:,} without a label), {amount(len(items), 'changed copy', 'changed copies')}. A change that "
        "keeps the meaning must not raise the score; one that breaks it must lower it.",
        f"The score of a solution is the {how.aggregate} of its steps; its verdict is good when no step is under "
        f"{'a threshold, of which there is none here' if how.threshold is None else f'{how.threshold:g}'}; a rise "
        f"of more than {how.margin:g} counts as a success of an attack.",
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


def _tiles(figures: Figures, group: str) -> list[Tile]:
    shown_figures = (
        (f"{PRESERVING}/flips to good", "Wrong solutions turned good (%)", "by changes of looks alone"),
        (f"{PRESERVING}/false alarms", "Right solutions turned bad (%)", "by changes of looks alone"),
        (f"{BREAKING}/success{group}", "Broken, and the score does not fall (%)", "mean over the changes"),
        (f"{BREAKING}/stays good{group}", "Broken, and still judged good (%)", "mean over the changes"),
        (
            "numbers-altered/step missed/proven",
            "Wrong calculations not noticed (%)",
            "steps judged good before",
        ),
    )
    return [
        tile(label, replace(figures[name], policy=""), detail=detail)
        for name, label, detail in shown_figures
        if name in figures and figures[name].value is not None
    ]


def _glance(names: Sequence[str], figures: Figures, group: str) -> Table:
    means = [name for name in (PRESERVING, BREAKING) if f"{name}/success" in figures]

    def keeps(name: str) -> bool:
        return name == PRESERVING or (name in PERTURBATIONS and perturbation(name).keeps_meaning)

    def of(figure: str, broken: str | None = None, *, scale: float = 100, digits: int = 1) -> Cell:
        def text(name: str) -> str:
            what = f"{figure}" if keeps(name) else f"{broken or figure}{group}"
            return shown(figures.get(f"{name}/{what}"), scale=scale, digits=digits)

        return text

    def count(name: str) -> str:
        # Of a change that breaks the meaning, the other columns are of the right solutions alone where labels are known.
        total = figures.get(f"{name}/n{'' if keeps(name) else group}")
        return "" if total is None or total.value is None else f"{total.value:,.0f}"

    return table_of(
        "What each change does to the score (shares in %; lower is better)",
        "Change",
        [*names, *means],
        {
            "What it does": lambda name: perturbation(name).summary if name in PERTURBATIONS else "",
            "Meaning": lambda name: "kept" if keeps(name) else "broken",
            "Solutions": count,
            "Mean change": of("change", scale=1, digits=3),
            "Attack succeeds": of("success"),
            "Verdict fooled": of("flips to good", "stays good"),
            "False alarms": lambda name: cell(figures, "{}/false alarms")(name) if keeps(name) else "",
            "Error missed": cell(figures, f"{{}}/step missed{group}"),
        },
        label=lambda name: f"mean, {name}" if name in means else name,
        left=3,
        note="False alarms: of the right solutions that were judged good, those judged bad after a change of looks. Error missed: of the "
        "steps that a change made wrong, those still not under the threshold."
        + (" Broken meaning: over the solutions that are right by their labels." if group else ""),
    )


def _change_plot(names: Sequence[str], mean: str, figures: Figures, group: str) -> tuple[Bars, ...]:
    """What each change did to the score; none where the axis would go from 0 to 0."""
    groups = {"Right by their labels": "/right", "Wrong by their labels": "/wrong"}
    if mean == BREAKING or not any(figures[f"{name}/n/right"].value for name in names):
        groups = {"": group}
    series = tuple(
        series_of(label, [figures[f"{name}/change{of}"] for name in names], scale=1)
        for label, of in groups.items()
        if any(figures[f"{name}/change{of}"].value is not None for name in names)
    )
    if not any(
        value for sery in series for ends in (sery.y, sery.low or (), sery.high or ()) for value in ends
    ):
        return ()
    title = f"Change of the score; it must {'not rise' if mean == PRESERVING else 'fall'}"
    y_label = "mean change of the score"
    return (Bars(title=title, y_label=y_label, labels=tuple(names), series=series, zero_line=True),)


def _verdict(figures: Figures, group: str) -> str:
    kept, broken = (figures.get(name) for name in (f"{PRESERVING}/success", f"{BREAKING}/success{group}"))
    parts = []
    if kept is not None:
        parts.append(f"changes of looks alone succeed in {shown(kept)} % of the trials")
    if broken is not None:
        parts.append(f"the score does not fall in {shown(broken)} % of what was broken")
    return f"On average over the changes, {' and '.join(parts)}." if parts else ""


_SHOWN = 3
"""Examples of each change."""


def examples(
    sheet: Sheet, changes: Sequence[Trial], items: Sequence[Item], how: Judging, names: Sequence[str]
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
    trial: Trial, item: Item, by_id: Mapping[str, CaseScores], sheet: Sheet, how: Judging
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
