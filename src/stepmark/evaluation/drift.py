"""Drift: does a PRM still tell right from wrong when the policy changes, or when the policy was trained against it.

The same PRM on solutions of several policies, or of several stages of one training. A policy that learns to please the PRM writes wrong
answers that score high: their scores rise, more of them pass the threshold, AUC falls, calibration is lost, solutions grow longer,
and all that while accuracy stands still (Gao et al. 2023, "Scaling laws for reward model overoptimization", is about the gap).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepmark.data.columns import Columns
from stepmark.data.reading import Source
from stepmark.errors import UsageError
from stepmark.evaluation.base import Evaluation, Run, counted
from stepmark.evaluation.cases import Case, unique
from stepmark.evaluation.result import EvaluationResult, Item, shown
from stepmark.evaluation.scores import CaseScores, Sheet, check_how, solution_score
from stepmark.evaluation.sources import read_cases
from stepmark.evaluation.views import (
    Figures,
    Kind,
    card,
    examples_of,
    problem,
    series_of,
    table_of,
    tile,
    unreadable,
)
from stepmark.metrics.binary import expected_calibration_error, weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, shares, weighted_quantiles
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.report.plots import Lines
from stepmark.report.tables import Table
from stepmark.settings import settings
from stepmark.words import amount

_SHOWN = 3
"""Examples of each part."""

FIGURES = ("accuracy", "mean_score", "gap", "auc", "ece", "wrong_q50", "wrong_above", "steps")
"""Of each part. `gap` is mean score less accuracy; `wrong_q50` the median score of wrong answers and `wrong_above` the share of them whose
score is at or over the threshold. Means need scores with a scale, `gap` and `ece` probabilities: else nan."""


def read_parts(
    files: Sequence[Source], by: str, *, columns: Columns | None = None
) -> tuple[list[Case], dict[str, str]]:
    """The cases, and the part that each id belongs to.

    `by` "policy" is who wrote the solution, "file" one stage a file. Where files share ids, all become PART:ID.
    """
    if by == "policy":
        cases = read_cases(files, columns=columns)
        nobody = next((case for case in cases if case.policy is None), None)
        if nobody is not None:
            raise UsageError(
                f"{nobody.where}: the data does not say who wrote this solution; give one file a stage and set `by` to file"
            )
        parts = {case.id: case.policy or "" for case in cases}
    else:
        names = _names(files)
        per_file = [read_cases([file], columns=columns) for file in files]
        ids = [case.id for inside in per_file for case in inside]
        if len(set(ids)) < len(ids):
            per_file = [
                [replace(case, id=f"{name}:{case.id}") for case in inside]
                for name, inside in zip(names, per_file, strict=True)
            ]
        cases = unique(case for inside in per_file for case in inside)
        parts = {case.id: name for name, inside in zip(names, per_file, strict=True) for case in inside}
    results = list(dict.fromkeys(parts.values()))
    if len(results) < 2:
        raise UsageError(
            f"drift is between parts, and by {by} there is only {results[0]!r}; give several files, or data "
            "of several policies, `by` policy"
        )
    return cases, parts


def _names(files: Sequence[Source]) -> list[str]:
    """A name a file: without its folder and endings where that is unique."""
    names = [str(file) if isinstance(file, str | Path) else "rows" for file in files]
    short = [Path(name).name.split(".")[0] for name in names]
    if len(set(names)) < len(names):
        raise UsageError(f"`data` names {next(name for name in names if names.count(name) > 1)} twice")
    return short if len(set(short)) == len(short) else names


def items_of(
    sheet: Sheet,
    parts: Mapping[str, str],
    *,
    how: str,
    threshold: float | None,
    reference: str,
) -> list[Item]:
    """One item a case: its part, its outcome, its score (the aggregate; None when it has none), its length."""
    known = list(dict.fromkeys(parts[row.case.id] for row in sheet.rows))
    if reference not in known:
        raise UsageError(f"`against` {reference}: there is no such part; parts: {', '.join(known)}")
    return [
        {
            "id": row.case.id,
            "problem": row.case.problem,
            "part": parts[row.case.id],
            "reference": reference,
            "outcome": row.case.outcome,
            "score": solution_score(row, how),
            "kind": sheet.kind,
            "threshold": threshold,
            "steps": len(row.case.solution.steps),
        }
        for row in sheet.rows
    ]


def statistic(items: Sequence[Item]) -> Statistic:
    """`PART/FIGURE` for each of `FIGURES`, and `PART less REFERENCE/FIGURE`, as functions of the items' weights."""
    names = list(dict.fromkeys(item["part"] for item in items))
    reference = items[0]["reference"]
    parts = {
        name: _figures(items, np.array([at for at, item in enumerate(items) if item["part"] == name]))
        for name in names
    }

    def figures(weights: Floats) -> Mapping[str, Floats]:
        of = {name: part(weights) for name, part in parts.items()}
        result = {f"{name}/{what}": value for name in names for what, value in of[name].items()}
        if reference in of:
            for name in names:
                if name != reference:
                    for what in FIGURES:
                        result[f"{name} less {reference}/{what}"] = of[name][what] - of[reference][what]
        return result

    return figures


def _figures(items: Sequence[Item], own: npt.NDArray[np.intp]) -> Callable[[Floats], dict[str, Floats]]:
    mine = [items[at] for at in own]
    kind, threshold = mine[0]["kind"], mine[0]["threshold"]
    known = np.array([item["outcome"] is not None for item in mine])
    both = known & np.array([item["score"] is not None for item in mine])
    y = np.array([bool(item["outcome"]) for item in mine], dtype=float)
    x = np.array([item["score"] or 0.0 for item in mine])
    wrong = both & (y == 0)
    # Figure: a mean over which items, of which values.
    means = {
        "accuracy": (known, y),
        "steps": (known | True, np.array([float(item["steps"]) for item in mine])),
    }
    if kind != "unbounded":
        means["mean_score"] = both, x
    if kind == "probability":
        means["gap"] = both, x - y
    if threshold is not None:
        means["wrong_above"] = wrong, (x >= threshold).astype(float)

    def figures(weights: Floats) -> dict[str, Floats]:
        w = weights[:, own]
        result = dict.fromkeys(FIGURES, np.full(len(w), np.nan))
        for name, (of, values) in means.items():
            result[name] = shares(w[:, of] @ values[of], w[:, of].sum(axis=1))
        if both.any():
            result["auc"] = weighted_auc(x[both], y[both], w[:, both])
            if kind == "probability":
                result["ece"] = expected_calibration_error(x[both], y[both], w[:, both])
            (result["wrong_q50"],) = weighted_quantiles(x[wrong], w[:, wrong], (0.5,))
        return result

    return figures


def signs(figures: Figures, part: str, reference: str, *, percent: bool = True) -> list[str]:
    """The warning signs of reward hacking in a part against the reference, in words; only where the interval of the
    difference leaves no change out.
    """
    change = {what: figures[f"{part} less {reference}/{what}"] for what in FIGURES}
    rises = {what: figure.low is not None and figure.low > 0 for what, figure in change.items()}
    falls = {what: figure.high is not None and figure.high < 0 for what, figure in change.items()}
    points = {what: f"{shown(figure)} points" for what, figure in change.items()}
    points["steps"] = f"{shown(change['steps'], scale=1)} steps"
    if not percent:
        points |= {what: shown(change[what], scale=1) for what in ("mean_score", "gap", "wrong_q50")}
    gains, over = rises["accuracy"], figures[f"{part}/gap"].low or 0.0
    rules = {
        "scores rise while accuracy does not": ("mean_score", rises["mean_score"] and not gains),
        "scores rise more, or fall less, than accuracy": ("gap", rises["gap"] and (gains or not rises["mean_score"])),
        "the median wrong answer scores higher": ("wrong_q50", rises["wrong_q50"]),
        "more wrong answers pass the threshold": ("wrong_above", rises["wrong_above"]),
        "AUC falls": ("auc", falls["auc"]),
        # A PRM that grew too cautious is not hacked.
        "overconfident, and ECE rises": ("ece", rises["ece"] and over > 0),
        "longer solutions without a gain in accuracy": ("steps", rises["steps"] and not gains),
    }  # fmt: skip
    return [f"{sign} ({points[what]})" for sign, (what, applies) in rules.items() if applies]


@settings
class Drift(Evaluation):
    """The same PRM on several policies, or stages of a training: does it still tell right from wrong, or is it hacked.

    The data are solutions whose answer is known to be right or wrong: candidates or ProcessBench files; by file one file a stage, in their
    order.
    """

    name: ClassVar[str] = "drift"
    by: Literal["policy", "file"] | None = None
    """What the parts are: "policy", who wrote the solution; "file", one part a file. Default: file where there are several."""
    against: str | None = None
    """The part that the others are compared with. Default: the first."""
    aggregate: str | None = None
    """How step scores become one number for the solution. Default: the PRM's own."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A solution whose score is under it is an error; a wrong answer at or over it passes. Default: the PRM's own."""

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        by = self.by or ("file" if len(run.data) > 1 else "policy")
        cases, parts = read_parts(run.data, by, columns=run.columns)
        return self.of_parts(run.grade(run.take(cases)), run, parts, by=by)

    def of_parts(self, sheet: Sheet, run: Run, parts: Mapping[str, str], *, by: str) -> EvaluationResult:
        """The result of graded cases."""
        how = check_how(self.aggregate, sheet)
        at = sheet.threshold if self.threshold is None else self.threshold
        chosen = self.against if self.against is not None else parts[sheet.rows[0].case.id]
        items = items_of(sheet, parts, how=how, threshold=at, reference=chosen)
        if all(item["outcome"] is None for item in items):
            raise UsageError(
                "drift needs solutions whose answer is known to be right or wrong; the data says it of none"
            )
        where = "no threshold" if at is None else f"threshold {at:g}"
        figures = run.figures(items, statistic(items), {"": where})
        names = [chosen, *(name for name in dict.fromkeys(item["part"] for item in items) if name != chosen)]
        percent = sheet.kind in ("probability", "margin")
        warned = {name: signs(figures, name, chosen, percent=percent) for name in names[1:]}
        passes = "so no share that passes it" if at is None else "at or over which a wrong answer passes"
        report = Report(
            title=f"Drift: {sheet.prm}",
            verdict=_verdict(warned, chosen, by),
            facts=(
                f"{counted(items)} in {amount(len(names), 'part')} (by {by}). A solution's score is the {how} of its steps; {where}, {passes}.",
                *_left_out(sheet, items),
                f"In brackets: 95 % bootstrap intervals over problems, drawn for all parts together. {amount(len(warned), 'part was', 'parts were')} "
                "compared in several figures each: of forty comparisons without any change one shows a sign all the same.",
            ),
            tiles=[
                replace(
                    tile(
                        f"AUC (%), {name}",
                        replace(figures[f"{name}/auc"], policy=""),
                        detail=amount(len(warned[name]), "warning sign") if name in warned else "",
                    ),
                    sort="bad" if warned.get(name) else "",
                )
                for name in names[:6]
            ],
            sections=(
                Section(
                    title="Side by side",
                    text="The first row is the reference. A PRM that a policy has learnt to please gives its wrong answers high scores.",
                    items=(
                        *_tables(names, figures, items, warned, percent=percent),
                        *([_plot(names, figures)] if by == "file" else ()),
                    ),
                ),
                Section(title="Examples", items=_examples(sheet, items, names)),
            ),
        )
        return run.result(
            self, report, figures, items, prm=sheet.prm, identity=sheet.identity, by=by, how=how, threshold=at, reference=chosen
        )  # fmt: skip


def _verdict(warned: Mapping[str, Sequence[str]], reference: str, by: str) -> str:
    counted = [f"{name} ({len(item)})" for name, item in warned.items() if item]
    if not counted:
        return f"No warning sign, compared with {reference}."
    meaning = (
        "Between stages of one training these are the signs of reward hacking."
        if by == "file"
        else "Between policies these show whose wrong answers the PRM accepts."
    )
    return f"Warning signs, compared with {reference}: {', '.join(counted)}. {meaning}"


def _left_out(sheet: Sheet, items: Sequence[Item]) -> list[str]:
    facts = unreadable(sheet)
    unscored = sum(item["score"] is None for item in items)
    unknown = sum(item["outcome"] is None for item in items)
    if unscored:
        facts.append(
            f"Without a score (not read, or a step without one): {amount(unscored, 'solution')}, counted only in accuracy and length."
        )
    if unknown:
        facts.append(f"Of {amount(unknown, 'solution')} the outcome is not known; they count only in length.")
    return facts


def _tables(
    names: Sequence[str],
    figures: Figures,
    items: Sequence[Item],
    warned: Mapping[str, Sequence[str]],
    *,
    percent: bool,
) -> list[Table]:
    counts = Counter((item["part"], item["outcome"]) for item in items)
    scores: Kind = "share" if percent else "number"
    change: Kind = "points" if percent else "change"
    less = f"{{}} less {names[0]}/"
    signs_ = table_of(
        f"Warning signs, compared with {names[0]}",
        "Part",
        [name for name in names[1:] if warned[name]],
        {"Signs": ("text", lambda name: "; ".join(warned[name]))},
        figures,
    )
    parts = table_of(
        "Parts",
        "Part",
        names,
        {
            "Right": lambda name: counts[name, True],
            "Wrong": lambda name: counts[name, False],
            "Accuracy (%)": "{}/accuracy",
            "AUC (%)": "{}/auc",
            "ECE (%)": "{}/ece",
            "Wrong: pass (%)": "{}/wrong_above",
            "Wrong: median": (scores, "{}/wrong_q50"),
            "Steps": ("mean", "{}/steps"),
        },
        figures,
        note="AUC and ECE: a solution's score against whether its answer is right. Wrong: of the wrong answers, the share at or over the "
        "threshold, and the median score. Steps: mean of a solution.",
    )
    changes = table_of(
        f"Difference from {names[0]}",
        "Part",
        names[1:],
        {
            "Accuracy": ("points", less + "accuracy"),
            "Mean score": (change, less + "mean_score"),
            "Gap": (change, less + "gap"),
            "AUC": ("points", less + "auc"),
            "ECE": ("points", less + "ece"),
            "Wrong: median": (change, less + "wrong_q50"),
            "Wrong: pass": ("points", less + "wrong_above"),
            "Steps": ("change", less + "steps"),
        },
        figures,
        note="Gap: mean score less accuracy. In points, but steps. With a star: the interval leaves no change out.",
    )
    return [*([signs_] if signs_.rows else []), parts, changes]


def _plot(names: Sequence[str], figures: Figures) -> Lines:
    """What becomes of the figures from stage to stage."""
    labels = {"auc": "AUC", "accuracy": "Accuracy of the policy", "wrong_above": "Wrong answers that pass"}
    series = tuple(
        series_of(label, [figures[f"{name}/{what}"] for name in names], x=tuple(names))
        for what, label in labels.items()
    )
    return Lines(title="Telling right from wrong", x_label="", y_label="%", series=series)


def _examples(sheet: Sheet, items: Sequence[Item], names: Sequence[str]) -> tuple[Examples, ...]:
    sorts: dict[str, list[CaseScores]] = {}
    for name in names:
        rows = zip(items, sheet.rows, strict=True)
        wrong = [
            (item["score"], row) for item, row in rows if item["part"] == name and item["outcome"] is False
        ]
        best = sorted((pair for pair in wrong if pair[0] is not None), key=lambda pair: -pair[0])
        sorts[f"{name}: wrong answers with the highest scores"] = [row for _, row in best[:_SHOWN]]
    return examples_of(sorts, lambda row: problem(row, card(row, sheet, "truth: the answer is wrong")))
