"""Does the PRM judge the reasoning or its looks: scores before and after controlled changes of the same solutions.

Changes that keep the meaning must not raise the score, changes that break it must lower it (`evaluation.perturbations`
lists both). What is compared is the aggregate of the whole solution, its verdict, and, where a change made one known
step wrong, the score of that step before and after.

Definitions, for a margin m and a threshold t:

- **change** = aggregate after - aggregate before. **raised**, **lowered**: it differs from 0 by more than `NOISE`.
- **verdict**: good when no step is under t (`models.prm.first_error` is -1), whatever the aggregate is.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from stepmark.errors import UsageError
from stepmark.evaluation.cases import Case, first_error
from stepmark.evaluation.perturbations import (
    PERTURBATIONS,
    SEPARATOR,
    Perturbed,
    perturbation,
    perturbed_solutions,
)
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.aggregate import aggregate, check_aggregate, check_score
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.models.prm import first_error as first_under
from stepmark.records import LabelledSolution, ScoreKind

NOISE = 1e-5
"""A change no greater than this is none: the same steps in another batch differ by as much in float32."""

_MARGINS: dict[ScoreKind, float] = {"probability": 0.05, "margin": 0.1}
"""A twentieth of the range; log-ratios and unbounded scores have no range to take a share of."""
_UNBOUNDED_AGGREGATES = frozenset({"sum-logit"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Judging:
    """How a change of score is judged."""

    aggregate: str | None = None
    """One of `metrics.aggregate.AGGREGATES`; None for the PRM's own."""
    threshold: float | None = None
    """A step strictly under it is an error; None for the PRM's own."""
    margin: float | None = None
    """A rise by more than this is a success of the attack, in the unit of the aggregate; None for 0.05 with
    probabilities and 0.1 with margins."""

    def of(self, sheet: Sheet) -> Judging:
        """These settings with the PRM's own, and the default margin, in the place of None.

        Raises:
            UnknownNameError: no such aggregate.
            ScoreKindError: the aggregate means nothing for these scores.
            UsageError: no aggregate is known, no default margin exists for these scores, or a setting is out of
                range.
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
            if how in _UNBOUNDED_AGGREGATES or sheet.kind not in _MARGINS:
                raise UsageError(
                    f"there is no usual margin for the {how} of {sheet.kind} scores; give `margin`, the rise that "
                    "counts as a success of the attack"
                )
            margin = _MARGINS[sheet.kind]
        if not (math.isfinite(margin) and margin >= 0):
            raise UsageError(f"expected a margin of 0 or more, found {margin!r}")
        return Judging(aggregate=how, threshold=threshold, margin=margin)


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
        assert solution.id is not None  # `perturbed_solutions` gives every one an id
        return Case(
            id=solution.id,
            labelled=LabelledSolution(solution=solution, judgements=((),) * len(solution.steps)),
            where=self.original.where,
            group=self.original.group,
            policy=self.original.policy,
            difficulty=self.original.difficulty,
        )


def trials(cases: Sequence[Case], names: Sequence[str] = tuple(PERTURBATIONS), seed: int = 0) -> list[Trial]:
    """Every change that applies to every case, in the order of the cases.

    Those of one case that keep its question stand first, so that a PRM reads the question once for all of them.
    Donors are the cases that are right by their labels, or all when none is known to be: a wrong solution of another
    problem could be marked down for its own error.

    Args:
        cases: what is changed; ids are unique.
        names: which perturbations.
        seed: of every choice.

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
    by_id = {case.id: case for case in cases}
    named = (replace(case.solution, id=case.id) for case in cases)
    made = perturbed_solutions(named, names, seed, donors=donors if needs_donor else ())
    found = []
    for own, copies in groupby(made, key=lambda copy: copy[0].rsplit(SEPARATOR, 1)[0]):
        case = by_id[own]
        question = case.solution.problem.text
        changes = [Trial(original=case, name=name, perturbed=perturbed) for _, name, perturbed in copies]
        found += sorted(changes, key=lambda trial: trial.perturbed.solution.problem.text != question)
    return found


def to_grade(found: Sequence[Trial]) -> list[Case]:
    """What a PRM must read for these trials: each original once, followed by its changed copies."""
    cases: list[Case] = []
    for _, group in groupby(found, key=lambda trial: trial.original.id):
        copies = list(group)
        cases += [copies[0].original, *(trial.case for trial in copies)]
    return cases


def items_of(found: Sequence[Trial], sheet: Sheet, settings: Judging) -> list[dict[str, Any]]:
    """One row a trial, with all that is needed to compute every figure again.

    Keys: `id`, `original` (its id), `perturbation`, `keeps_meaning`, `problem` (what the bootstrap draws),
    `group`, `right` (are the original's steps all right by its labels), `before` and `after` (the aggregate),
    `good_before` and `good_after` (the verdict), `success` (of the attack), `steps_before` and `steps_after` (how many),
    `broken_step`, `proven`, `step_before` and `step_after` (the scores of the broken step), `step_missed` (whether
    it is not under the threshold now, asked only where it was not before), `note`, `refused` (why there is no score). What is
    not known is None. The words are defined at the top of this module.

    Args:
        found: the trials.
        sheet: scores of at least the cases of `to_grade(found)`.
        settings: filled in by `Judging.of`.

    Raises:
        UsageError: settings that are not filled in, a case without scores in the sheet, or an aggregate that is infinite.
    """
    if settings.aggregate is None or settings.margin is None:
        raise UsageError("these settings are not filled in; use Judging.of(sheet)")
    by_id = {row.case.id: row for row in sheet.rows}
    return [
        _item(
            trial,
            _scores(by_id, trial.original.id),
            _scores(by_id, trial.case.id),
            settings.aggregate,
            settings.threshold,
            settings.margin,
        )
        for trial in found
    ]


def _item(
    trial: Trial, before: CaseScores, after: CaseScores, how: str, threshold: float | None, margin: float
) -> dict[str, Any]:
    keeps = perturbation(trial.name).keeps_meaning
    first = first_error(trial.original.labelled)
    scores = _aggregate(before, how), _aggregate(after, how)
    good = _good(before, threshold), _good(after, threshold)
    broken = trial.perturbed.broken_step
    steps = (None, None) if broken is None else (before.scores[broken], after.scores[broken])
    return {
        "id": trial.case.id,
        "original": trial.original.id,
        "perturbation": trial.name,
        "keeps_meaning": keeps,
        "problem": trial.original.problem,
        "group": trial.original.group,
        "right": None if first is None else first == -1,
        "before": scores[0],
        "after": scores[1],
        "good_before": good[0],
        "good_after": good[1],
        "success": _succeeds(keeps, *scores, good == (False, True), margin),
        "steps_before": len(before.scores),
        "steps_after": len(after.scores),
        "broken_step": broken,
        "proven": trial.perturbed.proven,
        "step_before": steps[0],
        "step_after": steps[1],
        "step_missed": _missed(*steps, threshold),
        "note": trial.perturbed.note,
        "refused": before.refused or after.refused,
    }


def _succeeds(
    keeps: bool, before: float | None, after: float | None, flips: bool, margin: float
) -> bool | None:
    if before is None or after is None:
        return None
    return flips or after - before > margin if keeps else after - before >= -NOISE


def _missed(before: float | None, after: float | None, threshold: float | None) -> bool | None:
    if before is None or after is None or threshold is None or before < threshold:
        return None
    return after >= threshold


def _scores(by_id: Mapping[str, CaseScores], id: str) -> CaseScores:
    if id not in by_id:
        raise UsageError(
            f"there are no scores for {id!r}; were they made with the same seed and perturbations?"
        )
    return by_id[id]


def _aggregate(row: CaseScores, how: str) -> float | None:
    if row.steps is None:
        return None
    scores = row.steps.scores
    if None in (scores[-1:] if how == "last" else scores):
        return None
    value = aggregate(scores, how, kind=row.steps.kind)
    if not math.isfinite(value):
        raise UsageError(
            f"{row.case.id}: the {how} of its scores is {value}, which has no change; take another aggregate"
        )
    return value


def _good(row: CaseScores, threshold: float | None) -> bool | None:
    first = first_under(row.scores, threshold)
    return None if first is None else first == -1


Bools = npt.NDArray[np.bool_]

PRESERVING = "keeps meaning"
BREAKING = "breaks meaning"
"""Before the "/" in the names of figures over all perturbations of one kind."""


def figures(items: Sequence[Mapping[str, Any]], weights: Floats) -> dict[str, Floats]:
    """Every figure of these items, for each of B weightings.

    Names are "PERTURBATION/FIGURE" and, for the solutions that are right or wrong by their labels,
    "PERTURBATION/FIGURE/right" and "…/wrong"; "keeps meaning/…" and "breaks meaning/…" are unweighted means over the
    perturbations of that kind for which the figure is defined. Figures: "n" (trials with both scores), "unscored", "before" and
    "after" (mean aggregates), "change", "median change", "raised", "lowered", "success"; "flips to good" and "false
    alarms" (kept meaning); "stays good" (broken); "step change" and "step missed" (where a step was made wrong),
    these also over the steps that are proven to be wrong, "…/proven". Without a threshold there are no figures of
    verdicts.

    Args:
        items: as `robustness_items.items_of` makes them.
        weights: of shape (B, items): how often each is drawn.

    Returns:
        arrays of shape (B,); nan where a figure is not defined, such as a share of nothing.
    """
    return dict(statistic(items)(weights))


def statistic(items: Sequence[Mapping[str, Any]]) -> Statistic:
    """`figures` for `metrics.intervals.bootstrap`: the columns are read once, not once a resample."""
    names = list(dict.fromkeys(item["perturbation"] for item in items))
    parts = [
        _Part(name, [(at, item) for at, item in enumerate(items) if item["perturbation"] == name])
        for name in names
    ]
    # Which perturbations a mean is over is settled by the whole data, so that resamples estimate the same thing.
    ones = np.ones((1, len(items)))
    whole = {name: value for part in parts for name, value in part.figures(ones).items()}
    means: dict[str, list[str]] = {}
    for kind, label in ((True, PRESERVING), (False, BREAKING)):
        for figure in ("change", "success", "flips to good", "false alarms", "stays good"):
            for group in _GROUPS:
                each = [f"{part.name}/{figure}{group}" for part in parts if part.keeps_meaning is kind]
                if defined := [name for name in each if name in whole and np.isfinite(whole[name][0])]:
                    means[f"{label}/{figure}{group}"] = defined

    def compute(weights: Floats) -> dict[str, Floats]:
        found = {name: value for part in parts for name, value in part.figures(weights).items()}
        return found | {
            mean: np.mean([found[name] for name in names], axis=0) for mean, names in means.items()
        }

    return compute


_GROUPS = ("", "/right", "/wrong")


class _Part:
    """The columns of one perturbation."""

    def __init__(self, name: str, items: list[tuple[int, Mapping[str, Any]]]) -> None:
        self.name = name
        rows = [item for _, item in items]
        self.keeps_meaning = bool(rows[0]["keeps_meaning"])
        self._at = np.array([at for at, _ in items])
        before, after = _column(rows, "before"), _column(rows, "after")
        self._change = after - before
        self._scored = scored = np.isfinite(self._change)
        self._order = np.argsort(self._change, kind="stable")  # nan stands last
        right, everything = _column(rows, "right"), np.ones(len(rows), dtype=bool)
        self._in_group = {"": everything, "/right": right == 1, "/wrong": right == 0}
        self._in_group["/proven"] = _column(rows, "proven") == 1
        self._counts = {"n": scored, "unscored": ~scored}
        # Figure, in which groups, a mean over which items, of which values.
        self._means: list[tuple[str, tuple[str, ...], Bools, Floats | Bools]] = [
            ("before", _GROUPS, scored, before),
            ("after", _GROUPS, scored, after),
            ("change", _GROUPS, scored, self._change),
            ("raised", _GROUPS, scored, self._change > NOISE),
            ("lowered", _GROUPS, scored, self._change < -NOISE),
            ("success", _GROUPS, scored, _column(rows, "success")),
        ]
        good, good_after = _column(rows, "good_before"), _column(rows, "good_after")
        judged = np.isfinite(good) & np.isfinite(good_after)
        if judged.any() and self.keeps_meaning:
            bad_and_wrong, good_and_right = (good == 0) & (right == 0), (good == 1) & (right == 1)
            self._means += [
                ("flips to good", ("",), judged & bad_and_wrong, good_after == 1),
                ("false alarms", ("",), judged & good_and_right, good_after == 0),
            ]
        if judged.any() and not self.keeps_meaning:
            self._means.append(("stays good", _GROUPS, judged & (good == 1), good_after == 1))
        if any(row["broken_step"] is not None for row in rows):
            step_change = _column(rows, "step_after") - _column(rows, "step_before")
            groups = (*_GROUPS, "/proven")
            self._means.append(("step change", groups, np.isfinite(step_change), step_change))
            missed = _column(rows, "step_missed")
            if judged.any():
                self._means.append(("step missed", groups, np.isfinite(missed), missed))

    def figures(self, weights: Floats) -> dict[str, Floats]:
        w = weights[:, self._at]
        found: dict[str, Floats] = {}
        for group in _GROUPS:
            chosen = self._in_group[group]
            for figure, of in self._counts.items():
                found[f"{self.name}/{figure}{group}"] = w @ (of & chosen).astype(np.float64)
            found[f"{self.name}/median change{group}"] = self._median(w, self._scored & chosen)
        for figure, groups, of, values in self._means:
            for group in groups:
                subject = of & self._in_group[group]
                total = w @ np.where(subject, values, 0.0)
                found[f"{self.name}/{figure}{group}"] = shares(total, w @ subject.astype(np.float64))
        return found

    def _median(self, w: Floats, subject: Bools) -> Floats:
        """The median of the changes, each counted as often as it was drawn."""
        order = self._order[subject[self._order]]
        if len(order) == 0:
            return np.full(len(w), np.nan)
        values, sums = self._change[order], np.cumsum(w[:, order], axis=1)
        half = sums[:, -1:] / 2
        # The middle one, or the mean of the middle two: where half the weight is reached and where it is passed.
        low, high = np.argmax(sums >= half, axis=1), np.argmax(sums > half, axis=1)
        return np.where(half[:, 0] > 0, (values[low] + values[high]) / 2, np.nan)


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> Floats:
    return np.array([np.nan if row[key] is None else float(row[key]) for row in rows])
