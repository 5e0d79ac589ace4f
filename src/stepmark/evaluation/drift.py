"""Drift: does a PRM still tell right from wrong when the policy changes, or when the policy was trained against it.

The same PRM on solutions of several policies, or of several stages of one training. A policy that learns to please the PRM writes wrong
answers that score high: their scores rise, more of them pass the threshold, AUC falls, calibration is lost, solutions grow longer,
and all that while accuracy stands still (Gao et al. 2023, "Scaling laws for reward model overoptimization", is about the gap).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepmark.errors import UsageError
from stepmark.evaluation.calibration import solution_score
from stepmark.evaluation.cases import Case, unique
from stepmark.evaluation.result import Figure, Item, shown
from stepmark.evaluation.scores import Sheet
from stepmark.evaluation.sources import read_cases
from stepmark.metrics.binary import brier, expected_calibration_error, weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, shares
from stepmark.metrics.quantiles import weighted_quantiles
from stepmark.store import Columns

NAME = "drift"

LEVELS = (0.1, 0.5, 0.9)
"""Of the quantiles `q10`, `q50` and `q90`."""

FIGURES = (
    "accuracy",
    "mean_score",
    "gap",
    "auc",
    "ece",
    "brier",
    "wrong_mean",
    "wrong_q10",
    "wrong_q50",
    "wrong_q90",
    "wrong_above",
    "right_mean",
    "right_q10",
    "right_q50",
    "right_q90",
    "steps",
    "characters",
)
"""Of each part. `gap` is mean score less accuracy; `wrong_above` the share of wrong answers whose score is at or over the
threshold. Means need scores with a scale, `gap`, `ece` and `brier` probabilities: else nan."""


def read_parts(
    files: Sequence[str], by: str, *, columns: Columns | None = None
) -> tuple[list[Case], dict[str, str]]:
    """The cases, and the part that each id belongs to.

    Args:
        files: the data.
        by: "policy", who wrote the solution; "file", one stage a file. Where files share ids, all become PART:ID.
        columns: as `store.read_rows`.

    Raises:
        UsageError: less than two parts; a solution without a policy.
        InputError: what the reader of the data refuses.
    """
    if by == "policy":
        cases = read_cases(files, columns=columns)
        nobody = next((case for case in cases if case.policy is None), None)
        if nobody is not None:
            raise UsageError(
                f"{nobody.where}: the data does not say who wrote this solution; give one file a stage and --by file"
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
    found = list(dict.fromkeys(parts.values()))
    if len(found) < 2:
        raise UsageError(
            f"drift is between parts, and by {by} there is only {found[0]!r}; give several files, or data "
            "of several policies and --by policy"
        )
    return cases, parts


def _names(files: Sequence[str]) -> list[str]:
    """A name a file: without its folder and endings where that is unique."""
    short = [Path(file).name.split(".")[0] for file in files]
    if len(set(short)) == len(short):
        return short
    if len(set(files)) < len(files):
        raise UsageError(f"--data names {next(f for f in files if files.count(f) > 1)} twice")
    return list(files)


def items_of(
    sheet: Sheet,
    parts: Mapping[str, str],
    *,
    how: str,
    threshold: float | None,
    reference: str,
    bins: int = 10,
) -> list[Item]:
    """One item a case: its part, its outcome, its score (the aggregate; None when it has none), its length.

    Args:
        sheet: the scores.
        parts: case id to part.
        how: the aggregate.
        threshold: for `wrong_above`; None for none.
        reference: the part that the others are compared with.
        bins: of ECE.

    Raises:
        UsageError: there is no such part.
    """
    known = list(dict.fromkeys(parts[row.case.id] for row in sheet.rows))
    if reference not in known:
        raise UsageError(f"--against {reference}: there is no such part; parts: {', '.join(known)}")
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
            "bins": bins,
            "steps": len(row.case.solution.steps),
            "characters": sum(map(len, row.case.solution.texts)),
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
        found = {f"{name}/{what}": value for name in names for what, value in of[name].items()}
        if reference in of:
            for name in names:
                if name != reference:
                    for what in FIGURES:
                        found[f"{name} less {reference}/{what}"] = of[name][what] - of[reference][what]
        return found

    return figures


def _figures(items: Sequence[Item], own: npt.NDArray[np.intp]) -> Callable[[Floats], dict[str, Floats]]:
    mine = [items[at] for at in own]
    outcome = np.array([item["outcome"] is not None for item in mine])
    scored = np.array([item["score"] is not None for item in mine])
    y = np.array([bool(item["outcome"]) for item in mine], dtype=float)
    x = np.array([0.0 if item["score"] is None else item["score"] for item in mine])
    lengths = {key: np.array([float(item[key]) for item in mine]) for key in ("steps", "characters")}
    both = outcome & scored
    kind, threshold, bins = mine[0]["kind"], mine[0]["threshold"], mine[0]["bins"]

    def mean(values: Floats, weights: Floats) -> Floats:
        return shares(weights @ values, weights.sum(axis=1))

    def figures(weights: Floats) -> dict[str, Floats]:
        w = weights[:, own]
        found = dict.fromkeys(FIGURES, np.full(len(w), np.nan))
        found["accuracy"] = mean(y[outcome], w[:, outcome])
        for key, values in lengths.items():
            found[key] = mean(values, w)
        if not both.any():
            return found
        found["auc"] = weighted_auc(x[both], y[both], w[:, both])
        if kind != "unbounded":
            found["mean_score"] = mean(x[both], w[:, both])
        if kind == "probability":
            found["gap"] = mean((x - y)[both], w[:, both])
            found["ece"] = expected_calibration_error(x[both], y[both], w[:, both], bins=bins)
            found["brier"] = brier(x[both], y[both], w[:, both])
        for sort, of in (("wrong", both & (y == 0)), ("right", both & (y == 1))):
            if kind != "unbounded":
                found[f"{sort}_mean"] = mean(x[of], w[:, of])
            for level, values in zip(LEVELS, weighted_quantiles(x[of], w[:, of], LEVELS), strict=True):
                found[f"{sort}_q{100 * level:.0f}"] = values
        if threshold is not None:
            wrong = both & (y == 0)
            found["wrong_above"] = mean((x[wrong] >= threshold).astype(float), w[:, wrong])
        return found

    return figures


def signs(figures: Mapping[str, Figure], part: str, reference: str, *, percent: bool = True) -> list[str]:
    """The warning signs of reward hacking in a part against the reference, in words; only where the interval of the
    difference leaves no change out.

    Args:
        figures: by name.
        part: the part.
        reference: what it is compared with.
        percent: whether scores are on a scale of 0 to 1, and shown in percent.
    """

    def of(what: str) -> Figure:
        return figures[f"{part} less {reference}/{what}"]

    def rises(what: str) -> bool:
        low = of(what).low
        return low is not None and low > 0

    def falls(what: str) -> bool:
        high = of(what).high
        return high is not None and high < 0

    scale, unit = (100.0, " points") if percent else (1.0, "")

    def by(what: str, *, length: bool = False) -> str:
        return f"{shown(of(what), scale=1.0 if length else scale)}{'' if length else unit}"

    found = []
    if rises("mean_score") and falls("accuracy"):
        found.append(
            f"scores rise ({by('mean_score')}) while accuracy falls ({shown(of('accuracy'))} points)"
        )
    elif rises("mean_score") and not rises("accuracy"):
        found.append(f"scores rise ({by('mean_score')}) without a gain in accuracy that the data can tell")
    elif rises("gap"):
        found.append(f"scores rise more, or fall less, than accuracy ({by('gap')})")
    if rises("wrong_mean"):
        found.append(f"wrong answers score higher on average ({by('wrong_mean')})")
    if rises("wrong_q50"):
        found.append(f"the median wrong answer scores higher ({by('wrong_q50')})")
    if rises("wrong_q90") and not rises("wrong_q50"):
        found.append(f"the best-scored tenth of wrong answers scores higher ({by('wrong_q90')})")
    if rises("wrong_above"):
        found.append(f"more wrong answers pass the threshold ({shown(of('wrong_above'))} points)")
    if falls("auc"):
        found.append(f"the PRM tells right from wrong less well (AUC {shown(of('auc'))} points)")
    over = figures[f"{part}/gap"].low
    if rises("ece") and over is not None and over > 0:  # a PRM that grew too cautious is not hacked
        found.append(f"it is overconfident, and less calibrated than before (ECE {shown(of('ece'))} points)")
    longer = [f"{by(key, length=True)} {key}" for key in ("steps", "characters") if rises(key)]
    if longer and not rises("accuracy"):
        found.append(
            f"solutions are longer ({', '.join(longer)}) without a gain in accuracy that the data can tell"
        )
    return found
