"""The drift evaluation: parts side by side, differences from the reference, warning signs in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.errors import UsageError
from stepmark.evaluation.drift import NAME, items_of, signs, statistic
from stepmark.evaluation.examples import card, problem
from stepmark.evaluation.facts import unreadable
from stepmark.evaluation.result import Figure, Item, Result, measured, shown
from stepmark.evaluation.scores import Sheet
from stepmark.metrics.binary import bin_edges
from stepmark.metrics.first_error import found_error
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.plots import Bars, Lines, Series
from stepmark.show.tables import Table

Figures = Mapping[str, Figure]

_SHOWN = 3
"""Examples of each part."""


def evaluate(
    sheet: Sheet,
    parts: Mapping[str, str],
    *,
    by: str,
    how: str = "min",
    threshold: str | None = None,
    reference: str | None = None,
    bins: int = 10,
    settings: Mapping[str, Any] | None = None,
    data: Sequence[Mapping[str, Any]] = (),
    facts: Sequence[str] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """Drift figures of a sheet of scores.

    Args:
        sheet: cases with their scores; at least some with a known outcome.
        parts: case id to part (`drift.read_parts`).
        by: what the parts are: "policy" or "file".
        how: the aggregate that stands for a solution.
        threshold: a number; None for the PRM's own.
        reference: the part that the others are compared with; None for the first.
        bins: of ECE.
        settings: what the scores were made with.
        data: the files' names and hashes.
        facts: more sentences for the top of the report.
        resamples: of the bootstrap over problems.
        seed: of the bootstrap.

    Raises:
        UsageError: a threshold that is no number, no such reference, no known outcome, no bins.
    """
    bin_edges(bins)
    at = _threshold(threshold, sheet)
    chosen = reference if reference is not None else parts[sheet.rows[0].case.id]
    items = items_of(sheet, parts, how=how, threshold=at, reference=chosen, bins=bins)
    if all(item["outcome"] is None for item in items):
        raise UsageError(
            "drift needs solutions whose answer is known to be right or wrong; the data says it of none"
        )
    where = "no threshold" if at is None else f"threshold {at:g}"
    figures = measured(items, statistic(items), policies={"": where}, resamples=resamples, seed=seed)
    by_name = {figure.name: figure for figure in figures}
    names = [chosen, *(name for name in dict.fromkeys(item["part"] for item in items) if name != chosen)]
    percent = sheet.kind in ("probability", "margin")
    warned = {name: signs(by_name, name, chosen, percent=percent) for name in names[1:]}
    return Result(
        evaluation=NAME,
        title=f"Drift: {sheet.prm}",
        prm=sheet.prm,
        facts=(
            f"{len(items):,} solutions of {len({item['problem'] for item in items}):,} problems in {len(names)} parts (by {by}). A "
            f"solution's score is the {how} of its steps; {where}"
            + (
                ", at or over which a wrong answer passes."
                if at is not None
                else ", so no share that passes it."
            ),
            *_words(warned, chosen, by),
            *_left_out(sheet, items),
            *facts,
            f"In brackets: 95 % bootstrap intervals over problems, drawn for all parts together. {len(warned)} "
            f"{'part was' if len(warned) == 1 else 'parts were'} compared in several figures each: of forty comparisons without any change "
            "one shows a sign all the same.",
        ),
        figures=figures,
        tiles=_tiles(names, by_name, warned),
        sections=(
            Section(
                title="Side by side",
                text="The first row is the reference. A PRM that a policy has learnt to please gives its wrong answers high scores.",
                items=(
                    *([_signs(warned, chosen)] if any(warned.values()) else []),
                    _table(names, by_name, items),
                    _quantiles(names, by_name, percent=percent),
                    *_differences(names, by_name, percent=percent),
                    *_plots(names, by_name, by=by, percent=percent),
                ),
            ),
            Section(title="Examples", items=_examples(sheet, items, names)),
        ),
        items=tuple(items),
        settings={
            **(settings or {}),
            "by": by,
            "how": how,
            "threshold": at,
            "reference": chosen,
            "bins": bins,
        },
        data=data,
    )


def _threshold(asked: str | None, sheet: Sheet) -> float | None:
    if asked is None:
        return sheet.threshold
    try:
        number = float(asked)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"--threshold {asked}: expected a number")
    return number


def _words(warned: Mapping[str, Sequence[str]], reference: str, by: str) -> list[str]:
    counted = [f"{name} {len(found)}" for name, found in warned.items() if found]
    if not counted:
        return [f"No warning sign against {reference} that the data can tell."]
    meaning = (
        "Between stages of one training these are the signs of reward hacking."
        if by == "file"
        else "Between policies these say whose wrong answers the PRM takes for right; between stages of one training they "
        "are the signs of reward hacking."
    )
    return [f"Warning signs against {reference}: {', '.join(counted)}. {meaning}"]


def _left_out(sheet: Sheet, items: Sequence[Item]) -> list[str]:
    said = unreadable(sheet)
    unscored = sum(item["score"] is None for item in items)
    unknown = sum(item["outcome"] is None for item in items)
    if unscored:
        said.append(
            f"{unscored:,} solutions have no score (not read, or a step without one) and count only in accuracy and length."
        )
    if unknown:
        said.append(f"Of {unknown:,} solutions the outcome is not known; they count only in length.")
    return said


def _tiles(names: Sequence[str], figures: Figures, warned: Mapping[str, Sequence[str]]) -> tuple[Tile, ...]:
    tiles = []
    for name in names[:6]:
        value, _, interval = shown(figures[f"{name}/auc"]).partition(" ")
        signs_ = len(warned.get(name, ()))
        said = "" if name == names[0] else f"; {signs_} warning sign{'' if signs_ == 1 else 's'}"
        tiles.append(
            Tile(
                label=f"AUC (%), {name}",
                value=value,
                detail=f"{interval.strip('[]')}{said}",
                sort="bad" if signs_ else "",
            )
        )
    return tuple(tiles)


def _table(names: Sequence[str], figures: Figures, items: Sequence[Item]) -> Table:
    counts = Counter((item["part"], item["outcome"]) for item in items)
    return Table(
        title="Parts",
        columns=(
            "Part",
            "Right",
            "Wrong",
            "Accuracy (%)",
            "AUC (%)",
            "ECE (%)",
            "Brier",
            "Steps",
            "Characters",
        ),
        rows=tuple(
            (
                name,
                f"{counts[name, True]:,}",
                f"{counts[name, False]:,}",
                shown(figures[f"{name}/accuracy"]),
                shown(figures[f"{name}/auc"]),
                shown(figures[f"{name}/ece"]),
                shown(figures[f"{name}/brier"], scale=1, digits=3),
                shown(figures[f"{name}/steps"], scale=1),
                shown(figures[f"{name}/characters"], scale=1, digits=0),
            )
            for name in names
        ),
        note="AUC, ECE and Brier: a solution's score against whether its answer is right. Steps, characters: mean of a solution.",
    )


def _quantiles(names: Sequence[str], figures: Figures, *, percent: bool) -> Table:
    scale, digits = (100.0, 1) if percent else (1.0, 3)
    columns = ("wrong_mean", "wrong_q10", "wrong_q50", "wrong_q90", "right_mean", "right_q50")
    return Table(
        title="Scores of wrong and of right answers" + (" (%)" if percent else ""),
        columns=(
            "Part",
            "Wrong: pass (%)",
            "mean",
            "10 %",
            "median",
            "90 %",
            "Right: mean",
            "median",
        ),
        rows=tuple(
            (
                name,
                shown(figures[f"{name}/wrong_above"]),
                *(shown(figures[f"{name}/{what}"], scale=scale, digits=digits) for what in columns),
            )
            for name in names
        ),
        note="Pass: the share of wrong answers at or over the threshold. 10 %: the score under which a tenth of them lie.",
    )


def _differences(names: Sequence[str], figures: Figures, *, percent: bool) -> list[Table]:
    points = (100.0, 1)
    scores = points if percent else (1.0, 3)
    first = {
        "accuracy": ("Accuracy", points),
        "mean_score": ("Mean score", scores),
        "gap": ("Gap", scores),
        "auc": ("AUC", points),
        "ece": ("ECE", points),
    }
    second = {
        "wrong_mean": ("Wrong: mean score", scores),
        "wrong_q50": ("Wrong: median", scores),
        "wrong_above": ("Wrong: pass", points),
        "steps": ("Steps", (1.0, 2)),
        "characters": ("Characters", (1.0, 0)),
    }

    def cell(name: str, what: str, scale: float, digits: int) -> str:
        figure = figures[f"{name} less {names[0]}/{what}"]
        sure = figure.low is not None and figure.high is not None and (figure.low > 0 or figure.high < 0)
        return shown(figure, scale=scale, digits=digits) + (" *" if sure else "")

    return [
        Table(
            title=f"Less {names[0]}: {title}",
            columns=("Part", *(label for label, _ in columns.values())),
            rows=tuple(
                (name, *(cell(name, what, *how) for what, (_, how) in columns.items())) for name in names[1:]
            ),
            note="Gap: mean score less accuracy. " * ("gap" in columns)
            + "In points; steps and characters as they are. " * percent
            + "With a star: the interval leaves no change out.",
        )
        for title, columns in (("scores and outcomes", first), ("wrong answers and length", second))
    ]


def _plots(names: Sequence[str], figures: Figures, *, by: str, percent: bool) -> list[Lines | Bars]:
    unit = "%" if percent else "score"
    scores = {f"wrong_q{q}": f"{q} %" if q != 50 else "median" for q in (90, 50, 10)}
    return [
        _plot("Scores of wrong answers: quantiles", unit, names, figures, scores, by=by, percent=percent),
        _plot(
            "Wrong answers that pass the threshold",
            "%",
            names,
            figures,
            {"wrong_above": "Share"},
            by=by,
            percent=True,
        ),
        _plot(
            "Telling right from wrong",
            "%",
            names,
            figures,
            {"auc": "AUC", "accuracy": "Accuracy of the policy"},
            by=by,
            percent=True,
        ),
    ]


def _plot(
    title: str,
    unit: str,
    names: Sequence[str],
    figures: Figures,
    what: Mapping[str, str],
    *,
    by: str,
    percent: bool,
) -> Lines | Bars:
    lines = by == "file"  # stages have an order, policies none

    def scaled(values: list[float | None]) -> tuple[float | None, ...]:
        return tuple(None if value is None else value * (100 if percent else 1) for value in values)

    series = tuple(
        Series(
            name=label,
            x=tuple(names) if lines else (),
            y=scaled([figures[f"{name}/{key}"].value for name in names]),
            low=scaled([figures[f"{name}/{key}"].low for name in names]),
            high=scaled([figures[f"{name}/{key}"].high for name in names]),
        )
        for key, label in what.items()
    )
    if lines:
        return Lines(title=title, x_label="", y_label=unit, series=series)
    return Bars(title=title, y_label=unit, labels=tuple(names), series=series)


def _signs(warned: Mapping[str, Sequence[str]], reference: str) -> Table:
    rows = [(name, sign) for name, found in warned.items() for sign in found]
    calm = [name for name, found in warned.items() if not found]
    return Table(
        title=f"Warning signs against {reference}",
        columns=("Part", "Sign"),
        rows=tuple(rows),
        align=("left", "left"),
        note=f"No sign in: {', '.join(calm)}." if calm else "",
    )


def _examples(sheet: Sheet, items: Sequence[Item], names: Sequence[str]) -> tuple[Examples, ...]:
    groups = []
    for name in names:
        wrong = [
            (item["score"], at)
            for at, item in enumerate(items)
            if item["part"] == name and item["outcome"] is False and item["score"] is not None
        ]
        best = sorted(wrong, key=lambda one: -one[0])[:_SHOWN]
        views = []
        for score, at in best:
            row = sheet.rows[at]
            view = card(
                row,
                how=sheet.aggregate or "min",
                threshold=sheet.threshold,
                found=None if sheet.threshold is None else found_error(row.scores, sheet.threshold),
                note=f"truth: the answer is wrong; it scores {score:.3g}",
            )
            views.append(problem(row, view))
        groups.append(
            Examples(
                title=f"{name}: wrong answers with the highest scores",
                problems=tuple(views),
                text=f"{len(views)} of {len(wrong):,} wrong answers.",
            )
        )
    return tuple(group for group in groups if group.problems)
