"""What a new PRM is worth on the held-out solutions: its figures with intervals, beside those of another PRM and of chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np

from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.first_error import found_error, harmonic_mean
from stepmark.metrics.intervals import Difference, Floats, Interval, Statistic, bootstrap, paired_bootstrap
from stepmark.report.tables import interval_text
from stepmark.words import amount

CHANCE = 0.5
"""The AUC of scores that know nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A held-out solution as two PRMs score it. Steps without a label do not count in the AUC."""

    problem: str
    targets: tuple[float | None, ...]
    """1 right, 0 wrong, or the share of rollouts that reached the answer; None for a step without a label."""
    scores: tuple[float | None, ...]
    baseline: tuple[float | None, ...] | None = None
    first_error: int | None = None
    """Where the first error is, -1 for none; None where it is not known."""
    steps_to: int = 0
    """How many steps the search for a first error reads."""
    refuted: tuple[int, ...] = ()
    """Steps that an exact check proves wrong, by number from 0."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Figures of a new PRM on held-out solutions; intervals are over problems."""

    problems: int
    steps: int
    """Labelled steps; for an objective that fits outcomes, solutions."""
    unit: str
    """What the AUC is of: step or solution."""
    auc: Interval
    f1: Interval | None
    """Of first errors, at the threshold, with the checks; None without right or without wrong solutions."""
    threshold: float | None
    tuned: bool
    """Whether the threshold was chosen on these solutions. The interval of `f1` does not include what that adds."""
    checks: str
    baseline: str | None
    baseline_auc: Interval | None = None
    baseline_f1: Interval | None = None
    """At the baseline's own threshold, with its own checks."""
    difference: Difference | None = None
    """This PRM's AUC minus the baseline's, on the same steps."""

    unmade: int = 0
    """Optimizer steps that the time limit left no time for."""

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """From `dataclasses.asdict`, as `train.json` holds it."""
        record = dict(data)
        for name in ("auc", "f1", "baseline_auc", "baseline_f1"):
            record[name] = None if record[name] is None else Interval(**record[name])
        record["difference"] = None if record["difference"] is None else Difference(**record["difference"])
        return cls(**record)

    @property
    def learnt(self) -> bool:
        """Whether the whole interval of the AUC lies above chance."""
        if self.auc.low is None:
            # Every resample is the same: where each right step is above each wrong one, enough problems say so without an interval.
            return self.auc.value == 1.0 and self.problems >= 10
        return self.auc.low > CHANCE

    @property
    def verdict(self) -> str:
        """The result in one or two sentences: whether anything was learnt, and whether the baseline is beaten."""
        rows = f"more rows (there are {amount(self.problems, 'held-out problem')}), right and wrong in equal parts"
        if self.unmade:
            rows = f"more `minutes` (the time limit left out {amount(self.unmade, 'optimizer step')}), then {rows}"
        if not self.learnt and self.auc.low is None:
            return f"The held-out problems are too few to tell whether anything was learnt. Try {rows}."
        if not self.learnt:
            return (
                f"Nothing was learnt: on held-out {self.unit}s this PRM is not distinguishable from chance (AUC {_text(self.auc)}; chance is 50). "
                f"Try {rows}; then more `epochs`, or another `base`."
            )
        if self.difference is None or self.difference.low is None or self.difference.high is None:
            return f"This PRM is better than chance on held-out {self.unit}s (AUC {_text(self.auc)}; chance is 50)."
        gap = f"AUC {_difference(self.difference)} points"
        if self.difference.low > 0:
            return f"This PRM is better than {self.baseline_name} on held-out {self.unit}s: {gap}."
        if self.difference.high < 0:
            return f"This PRM is worse than {self.baseline_name} on held-out {self.unit}s: {gap}. Use that one, or try {rows}."
        return (
            f"This PRM is better than chance (AUC {_text(self.auc)}; chance is 50), but not distinguishable from {self.baseline_name}: {gap}. "
            f"Try {rows}."
        )

    @property
    def lines(self) -> list[str]:
        """The figures, one line each, and the verdict."""
        lines = [
            f"held out: {amount(self.steps, f'labelled {self.unit}')} of {amount(self.problems, 'problem')} that were not trained on",
            f"AUC of {self.unit} scores: this PRM {_text(self.auc)}"
            + (f", {self.baseline_name} {_text(self.baseline_auc)}" if self.baseline_auc is not None else "")
            + f", chance {100 * CHANCE:.1f}",
        ]
        if self.difference is not None:
            lines.append(f"this PRM minus {self.baseline_name}, paired: {_difference(self.difference)}")
        if self.f1 is not None:
            beside = "" if self.baseline_f1 is None else f", {self.baseline_name} {_text(self.baseline_f1)}"
            lines.append(f"first-error F1: this PRM {_text(self.f1)}{beside}")
        if self.threshold is not None:
            how = "chosen on these solutions" if self.tuned else "not tuned"
            checks = "none" if self.checks == "none" else f"{self.checks}, beside every grade"
            lines.append(f"stored: threshold {self.threshold:.3g} ({how}), exact checks {checks}")
        return [*lines, self.verdict]

    @property
    def table(self) -> dict[str, str]:
        """The figures by what they are, for a model card."""
        rows = {f"AUC of {self.unit} scores, % [95 % interval]; chance is 50": _text(self.auc)}
        if self.baseline_auc is not None and self.difference is not None:
            rows[f"the same of {self.baseline_name}"] = _text(self.baseline_auc)
            rows["the difference, paired, points"] = _difference(self.difference)
        if self.f1 is not None and self.threshold is not None:
            how = ", chosen on the same solutions" if self.tuned else ""
            rows[f"first-error F1 at the threshold {self.threshold:.3g}{how}"] = _text(self.f1)
            if self.baseline_f1 is not None:
                rows[f"first-error F1 of {self.baseline_name}"] = _text(self.baseline_f1)
        return rows

    @property
    def baseline_name(self) -> str:
        """The baseline, for people."""
        return "the default PRM" if self.baseline == "default" else str(self.baseline)


def compare(
    scored: Sequence[Scored],
    *,
    outcomes: bool = False,
    threshold: float | None,
    tuned: bool,
    checks: str,
    baseline: str | None = None,
    baseline_threshold: float | None = None,
    baseline_checks: str = "none",
    resamples: int = 2000,
) -> HeldOut | None:
    """The figures of held-out solutions; None where there is no right or no wrong step.

    Args:
        scored: with calibrated scores, and the baseline's where there is one.
        outcomes: each has one target and one score: of the whole solution.
        threshold, baseline_threshold: under it a step counts as an error.
        checks, baseline_checks: "none" where refuted steps are not counted as errors.
    """
    steps = [
        (row.problem, target, row.scores[at], None if row.baseline is None else row.baseline[at])
        for row in scored
        for at, target in enumerate(row.targets)
        if target is not None and row.scores[at] is not None
    ]
    compared = baseline is not None and all(theirs is not None for *_, theirs in steps)
    problems = [problem for problem, *_ in steps]
    targets = np.array([target for _, target, *_ in steps])
    if not steps or not (targets > 0).any() or not (targets < 1).any():
        return None

    def auc_of(values: Sequence[float]) -> Statistic:
        scores = np.array(values)
        return lambda weights: {"auc": weighted_auc(scores, targets, weights)}

    ours = auc_of([float(score) for *_, score, _ in steps])  # type: ignore[arg-type]
    theirs = auc_of([float(score) for *_, score in steps]) if compared else None  # type: ignore[arg-type]
    labelled = [row for row in scored if row.first_error is not None]

    def f1_of(whose: str, limit: float | None, with_checks: bool) -> Interval | None:
        if limit is None or len({row.first_error == -1 for row in labelled}) < 2:
            return None
        errors = [_found(row, whose, limit, with_checks) for row in labelled]
        hits = np.array(
            [at == row.first_error for at, row in zip(errors, labelled, strict=True)], dtype=float
        )
        wrong = np.array([row.first_error != -1 for row in labelled], dtype=float)
        return bootstrap(_f1(hits, wrong), [row.problem for row in labelled], resamples=resamples)["f1"]

    return HeldOut(
        problems=len({row.problem for row in scored}),
        steps=len(steps),
        unit="solution" if outcomes else "step",
        auc=bootstrap(ours, problems, resamples=resamples)["auc"],
        f1=f1_of("scores", threshold, checks != "none"),
        threshold=threshold,
        tuned=tuned,
        checks=checks,
        baseline=baseline if compared else None,
        baseline_auc=None if theirs is None else bootstrap(theirs, problems, resamples=resamples)["auc"],
        baseline_f1=f1_of("baseline", baseline_threshold, baseline_checks != "none") if compared else None,
        difference=None if theirs is None else paired_bootstrap(theirs, ours, problems, resamples=resamples)["auc"],
    )  # fmt: skip


def _found(row: Scored, whose: str, threshold: float, with_checks: bool) -> int | None:
    """The first step under the threshold or refuted; -1 for none."""
    scores = row.scores if whose == "scores" else row.baseline
    assert scores is not None
    read = list(scores[: row.steps_to])
    for at in row.refuted if with_checks else ():
        if at < len(read):
            read[at] = -np.inf
    return found_error(read, threshold)


def _f1(hits: Floats, wrong: Floats) -> Statistic:
    def figures(weights: Floats) -> dict[str, Floats]:
        with np.errstate(invalid="ignore"):
            a = (weights @ (hits * wrong)) / (weights @ wrong)
            b = (weights @ (hits * (1 - wrong))) / (weights @ (1 - wrong))
        return {"f1": np.array([harmonic_mean(x, y) for x, y in zip(a, b, strict=True)])}

    return figures


def _text(figure: Interval) -> str:
    return interval_text(figure.value, figure.low, figure.high)


def _difference(figure: Difference) -> str:
    parts = (figure.value, figure.low, figure.high)
    shown = ["–" if part is None else f"{100 * part:+.1f}" for part in parts]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"
