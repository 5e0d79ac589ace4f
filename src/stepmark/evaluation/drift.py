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
from stepmark.evaluation.cases import Case, unique
from stepmark.evaluation.evaluation import Evaluation, Run, Views
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import Sheet, check_how, solution_score
from stepmark.evaluation.sources import read_cases
from stepmark.evaluation.views import (
    Cell,
    Figures,
    card,
    cell,
    problem,
    series_of,
    starred,
    table_of,
    tile,
    unreadable,
)  # fmt: skip
from stepmark.metrics.binary import expected_calibration_error, weighted_auc
from stepmark.metrics.intervals import Floats, Statistic, shares, weighted_quantiles
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.plots import Bars, Lines
from stepmark.show.tables import Table
from stepmark.show.text import amount

_SHOWN = 3
"""Examples of each part."""

LEVELS = (0.5, 0.9)
"""Of the quantiles `wrong_q50` and `wrong_q90`."""

FIGURES = (
    "accuracy", "mean_score", "gap", "auc", "ece", "wrong_mean", "wrong_q50", "wrong_q90", "wrong_above", "steps", "characters",
)  # fmt: skip
"""Of each part. `gap` is mean score less accuracy; `wrong_above` the share of wrong answers whose score is at or over the
threshold. Means need scores with a scale, `gap` and `ece` probabilities: else nan."""


def read_parts(
    files: Sequence[Source], by: str, *, columns: Columns | None = None
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
    bins: int = 10,
) -> list[Item]:
    """One item a case: its part, its outcome, its score (the aggregate; None when it has none), its length.

    Raises:
        UsageError: there is no such part.
    """
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
    kind, threshold, bins = mine[0]["kind"], mine[0]["threshold"], mine[0]["bins"]
    known = np.array([item["outcome"] is not None for item in mine])
    both = known & np.array([item["score"] is not None for item in mine])
    y = np.array([bool(item["outcome"]) for item in mine], dtype=float)
    x = np.array([0.0 if item["score"] is None else item["score"] for item in mine])
    wrong = both & (y == 0)
    # Figure: a mean over which items, of which values.
    means: dict[str, tuple[npt.NDArray[np.bool_], Floats]] = {"accuracy": (known, y)}
    for key in ("steps", "characters"):
        means[key] = np.ones(len(mine), dtype=bool), np.array([float(item[key]) for item in mine])
    if kind != "unbounded":
        means |= {"mean_score": (both, x), "wrong_mean": (wrong, x)}
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
                result["ece"] = expected_calibration_error(x[both], y[both], w[:, both], bins=bins)
            quantiles = weighted_quantiles(x[wrong], w[:, wrong], LEVELS)
            result |= dict(zip(("wrong_q50", "wrong_q90"), quantiles, strict=True))
        return result

    return figures


def signs(figures: Mapping[str, Figure], part: str, reference: str, *, percent: bool = True) -> list[str]:
    """The warning signs of reward hacking in a part against the reference, in words; only where the interval of the
    difference leaves no change out.
    """

    def of(what: str) -> Figure:
        return figures[f"{part} less {reference}/{what}"]

    def rises(what: str) -> bool:
        low = of(what).low
        return low is not None and low > 0

    def falls(what: str) -> bool:
        high = of(what).high
        return high is not None and high < 0

    def by(what: str) -> str:
        return f"{shown(of(what), scale=100.0)} points" if percent else shown(of(what), scale=1.0)

    accuracy = shown(of("accuracy"))
    rules = (
        (rises("mean_score") and falls("accuracy"),
         f"scores rise ({by('mean_score')}) while accuracy falls ({accuracy} points)"),
        (rises("mean_score") and not falls("accuracy") and not rises("accuracy"),
         f"scores rise ({by('mean_score')}) without a gain in accuracy that the data can tell"),
        (rises("gap") and (rises("accuracy") or not rises("mean_score")),
         f"scores rise more, or fall less, than accuracy ({by('gap')})"),
        (rises("wrong_mean"), f"wrong answers score higher on average ({by('wrong_mean')})"),
        (rises("wrong_q50"), f"the median wrong answer scores higher ({by('wrong_q50')})"),
        (rises("wrong_q90") and not rises("wrong_q50"),
         f"the best-scored tenth of wrong answers scores higher ({by('wrong_q90')})"),
        (rises("wrong_above"), f"more wrong answers pass the threshold ({shown(of('wrong_above'))} points)"),
        (falls("auc"), f"the PRM tells right from wrong less well (AUC {shown(of('auc'))} points)"),
    )  # fmt: skip
    results = [sign for applies, sign in rules if applies]
    over = figures[f"{part}/gap"].low
    if rises("ece") and over is not None and over > 0:  # a PRM that grew too cautious is not hacked
        results.append(
            f"it is overconfident, and less calibrated than before (ECE {shown(of('ece'))} points)"
        )
    longer = [f"{shown(of(key), scale=1.0)} {key}" for key in ("steps", "characters") if rises(key)]
    if longer and not rises("accuracy"):
        results.append(
            f"solutions are longer ({', '.join(longer)}) without a gain in accuracy that the data can tell"
        )
    return results


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
    bins: Annotated[int, Field(ge=1)] = 10
    """Bins of ECE."""

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        by = self.by or ("file" if len(run.data) > 1 else "policy")
        cases, parts = read_parts(run.data, by, columns=run.columns)
        return self.of_parts(run.grade(run.take(cases)), run, parts, by=by)

    def of_parts(self, sheet: Sheet, run: Run, parts: Mapping[str, str], *, by: str) -> Result:
        """The result of graded cases.

        Raises:
            UsageError: no such reference, or no known outcome.
        """
        how = check_how(self.aggregate, sheet)
        at = sheet.threshold if self.threshold is None else self.threshold
        chosen = self.against if self.against is not None else parts[sheet.rows[0].case.id]
        items = items_of(sheet, parts, how=how, threshold=at, reference=chosen, bins=self.bins)
        if all(item["outcome"] is None for item in items):
            raise UsageError(
                "drift needs solutions whose answer is known to be right or wrong; the data says it of none"
            )
        where = "no threshold" if at is None else f"threshold {at:g}"
        figures = run.figures(items, statistic(items), {"": where})
        names = [chosen, *(name for name in dict.fromkeys(item["part"] for item in items) if name != chosen)]
        percent = sheet.kind in ("probability", "margin")
        warned = {name: signs(figures, name, chosen, percent=percent) for name in names[1:]}
        views = Views(
            title=f"Drift: {sheet.prm}",
            verdict=_verdict(warned, chosen, by),
            facts=(
                f"{amount(len(items), 'solution')} of {amount(len({item['problem'] for item in items}), 'problem')} in {amount(len(names), 'part')} (by {by}). A "
                f"solution's score is the {how} of its steps; {where}"
                + (
                    ", at or over which a wrong answer passes."
                    if at is not None
                    else ", so no share that passes it."
                ),
                *_left_out(sheet, items),
            ),
            remarks=(
                f"In brackets: 95 % bootstrap intervals over problems, drawn for all parts together. {len(warned)} "
                f"{'part was' if len(warned) == 1 else 'parts were'} compared in several figures each: of forty comparisons without any change "
                "one shows a sign all the same.",
            ),
            tiles=_tiles(names, figures, warned),
            sections=(
                Section(
                    title="Side by side",
                    text="The first row is the reference. A PRM that a policy has learnt to please gives its wrong answers high scores.",
                    items=_tables(names, figures, items, warned, by=by, percent=percent),
                ),
                Section(title="Examples", items=_examples(sheet, items, names)),
            ),
        )
        return run.result(
            self,
            views,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            by=by,
            how=how,
            threshold=at,
            reference=chosen,
        )


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


def _tiles(names: Sequence[str], figures: Figures, warned: Mapping[str, Sequence[str]]) -> list[Tile]:
    tiles = []
    for name in names[:6]:
        count = len(warned.get(name, ()))
        detail = "" if name == names[0] else amount(count, "warning sign")
        made = tile(f"AUC (%), {name}", replace(figures[f"{name}/auc"], policy=""), detail=detail)
        tiles.append(replace(made, sort="bad" if count else ""))
    return tiles


def _tables(
    names: Sequence[str],
    figures: Figures,
    items: Sequence[Item],
    warned: Mapping[str, Sequence[str]],
    *,
    by: str,
    percent: bool,
) -> tuple[Table | Lines | Bars, ...]:
    counts = Counter((item["part"], item["outcome"]) for item in items)
    scale, digits = (100.0, 1) if percent else (1.0, 3)
    views: list[Table | Lines | Bars] = []
    if any(warned.values()):
        calm = [name for name, signs_ in warned.items() if not signs_]
        views.append(
            Table(
                title=f"Warning signs, compared with {names[0]}",
                columns=("Part", "Sign"),
                rows=tuple((name, sign) for name, signs_ in warned.items() for sign in signs_),
                align=("left", "left"),
                note=f"No sign in: {', '.join(calm)}." if calm else "",
            )
        )
    views.append(
        table_of(
            "Parts",
            "Part",
            names,
            {
                "Right": lambda name: f"{counts[name, True]:,}",
                "Wrong": lambda name: f"{counts[name, False]:,}",
                "Accuracy (%)": cell(figures, "{}/accuracy"),
                "AUC (%)": cell(figures, "{}/auc"),
                "ECE (%)": cell(figures, "{}/ece"),
                "Wrong: pass (%)": cell(figures, "{}/wrong_above"),
                "Wrong: median": cell(figures, "{}/wrong_q50", scale=scale, digits=digits),
                "Steps": cell(figures, "{}/steps", scale=1),
            },
            note="AUC and ECE: a solution's score against whether its answer is right. Wrong: of the wrong answers, the share at or over the "
            "threshold, and the median score. Steps: mean of a solution.",
        )
    )

    def difference(what: str, scale: float, digits: int) -> Cell:
        return lambda name: starred(figures[f"{name} less {names[0]}/{what}"], scale=scale, digits=digits)

    columns = {
        "Accuracy": difference("accuracy", 100, 1),
        "Mean score": difference("mean_score", scale, digits),
        "Gap": difference("gap", scale, digits),
        "AUC": difference("auc", 100, 1),
        "ECE": difference("ece", 100, 1),
        "Wrong: median": difference("wrong_q50", scale, digits),
        "Wrong: pass": difference("wrong_above", 100, 1),
        "Steps": difference("steps", 1, 2),
        "Characters": difference("characters", 1, 0),
    }
    note = "Gap: mean score less accuracy. In points, but steps and characters. With a star: the interval leaves no change out."
    views.append(table_of(f"Difference from {names[0]}", "Part", names[1:], columns, note=note))
    drawn = tuple(
        series_of(
            label, [figures[f"{name}/{what}"] for name in names], x=tuple(names) if by == "file" else ()
        )
        for what, label in (
            ("auc", "AUC"),
            ("accuracy", "Accuracy of the policy"),
            ("wrong_above", "Wrong answers that pass"),
        )
    )
    title = "Telling right from wrong"
    if by == "file":  # stages have an order, policies none
        views.append(Lines(title=title, x_label="", y_label="%", series=drawn))
    else:
        views.append(Bars(title=title, y_label="%", labels=tuple(names), series=drawn))
    return tuple(views)


def _examples(sheet: Sheet, items: Sequence[Item], names: Sequence[str]) -> tuple[Examples, ...]:
    groups = []
    for name in names:
        wrong = [
            (item["score"], row)
            for item, row in zip(items, sheet.rows, strict=True)
            if item["part"] == name and item["outcome"] is False and item["score"] is not None
        ]
        best = sorted(wrong, key=lambda one: -one[0])[:_SHOWN]
        views = tuple(
            problem(row, card(row, sheet, f"truth: the answer is wrong; it scores {score:.3g}"))
            for score, row in best
        )
        title = f"{name}: wrong answers with the highest scores ({len(wrong):,})"
        groups += [Examples(title=title, problems=views)] if views else []
    return tuple(groups)
