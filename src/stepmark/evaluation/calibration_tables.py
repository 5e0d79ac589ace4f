"""Tables, plots, words and examples of the calibration report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepmark.evaluation.calibration import (
    MAPS,
    POSITIONS,
    Facet,
    Target,
    bin_statistic,
    floor,
)
from stepmark.evaluation.calibration_fit import FITTED, MEASURED, Maps, Split
from stepmark.evaluation.examples import card, problem
from stepmark.evaluation.result import Figure, Item, shown
from stepmark.evaluation.scores import Sheet
from stepmark.metrics.binary import reliability
from stepmark.metrics.first_error import found_error
from stepmark.metrics.intervals import Interval, bootstrap
from stepmark.show.evaluation import Examples
from stepmark.show.plots import Bars, Bin, Reliability, Series
from stepmark.show.tables import ABSENT, Align, Table, interval_text
from stepmark.show.views import ProblemView

Facets = Mapping[tuple[str, str], Facet]
Figures = Mapping[str, Figure]

_COLUMNS = (
    "Count",
    "Share right (%)",
    "Mean score (%)",
    "Gap (points)",
    "AUC (%)",
    "Brier",
    "ECE (%)",
    "Floor (%)",
)
_SCALED = (0, 2, 3, 4, 5, 6)
"""The columns of the scaling table."""
_RIGHT: Align = "right"
_OF = {"steps": "Steps", "outcome": "Outcomes"}

_SHOWN = 5
"""Examples of each sort."""


def _cells(facet: Facet, figures: Figures) -> tuple[str, ...]:
    def of(what: str, *, scale: float = 100, digits: int = 1) -> str:
        return shown(figures.get(f"{facet.target}/{facet.name}/{what}"), scale=scale, digits=digits)

    low = floor(facet)
    return (
        f"{len(facet):,}",
        of("share_right"),
        of("mean_score"),
        of("gap"),
        of("auc"),
        of("brier", scale=1, digits=3),
        of("ece"),
        ABSENT if low is None else f"{100 * low:.1f}",
    )


def headline(target: Target, facets: Facets, figures: Figures, *, how: str) -> Table:
    """All, and each group."""
    names = [name for of, name in facets if of == target and (name == "all" or name.startswith("group "))]
    title = "Steps" if target == "steps" else f"Outcomes (the {how} of the steps)"
    return Table(
        title=f"Calibration: {title}",
        columns=("", *_COLUMNS),
        rows=tuple((name.removeprefix("group "), *_cells(facets[target, name], figures)) for name in names),
    )


def breakdown(target: Target, facets: Facets, figures: Figures) -> list[Table | Bars]:
    """By position, policy and difficulty: the numbers, and mean score beside share right as bars."""
    tables: list[Table] = []
    plots: list[Bars] = []
    for key in ("position", "policy", "difficulty"):
        names = [name for of, name in facets if of == target and name.startswith(f"{key} ")]
        if len(names) < 2:
            continue
        if key == "position":
            names.sort(key=lambda name: POSITIONS.index(name.removeprefix("position ")))
        short = [name.removeprefix(f"{key} ") for name in names]
        tables.append(
            Table(
                title=f"{_OF[target]} by {key}",
                columns=(key.capitalize(), *_COLUMNS),
                rows=tuple(
                    (label, *_cells(facets[target, name], figures))
                    for label, name in zip(short, names, strict=True)
                ),
            )
        )
        if facets[target, names[0]].probability:
            plots.append(
                Bars(
                    title=f"{_OF[target]} by {key}: what is scored, and what is right",
                    y_label="%",
                    x_label=key,
                    labels=tuple(short),
                    series=tuple(
                        _series(label, [figures[f"{target}/{name}/{what}"] for name in names])
                        for what, label in (("mean_score", "Mean score"), ("share_right", "Share right"))
                    ),
                )
            )
    return [*tables, *plots]


def _series(name: str, figures: Sequence[Figure]) -> Series:
    def percent(values: list[float | None]) -> tuple[float | None, ...]:
        return tuple(None if value is None else 100 * value for value in values)

    return Series(
        name=name,
        y=percent([figure.value for figure in figures]),
        low=percent([figure.low for figure in figures]),
        high=percent([figure.high for figure in figures]),
    )


def scaling_table(target: Target, facets: Facets, figures: Figures, maps: Maps, split: Split) -> Table:
    """Before and after, on what was measured and, marked so, on what was fitted."""
    said = {
        "before": "as scored",
        "temperature": f"temperature {maps.temperature:.3g}" if maps.temperature is not None else "",
        "platt": f"Platt, {maps.scale:.3g} * logit {maps.shift:+.3g}",
    }
    rows = []
    for role, label in ((MEASURED, "measured on the rest"), (FITTED, "fitted here")):
        for view in ("before", *MAPS):
            facet = facets.get((target, f"{role}, {view}"))
            if facet is not None:
                cells = _cells(facet, figures)
                rows.append((label, said[view], *(cells[at] for at in _SCALED)))
    return Table(
        title=f"Scaling, {target}: fitted on {split.words}",
        columns=("Numbers are", "Scores", *(_COLUMNS[at] for at in _SCALED)),
        rows=tuple(rows),
        align=("left", "left", *[_RIGHT] * len(_SCALED)),
        note="Numbers that are fitted here flatter: the map saw those labels.",
    )


def _shares(facet: Facet, items: Sequence[Item], resamples: int, seed: int) -> dict[str, Interval]:
    return bootstrap(
        bin_statistic(facet, len(items)), [item["problem"] for item in items], resamples=resamples, seed=seed
    )


def reliability_plot(
    facet: Facet, items: Sequence[Item], resamples: int, seed: int, *, title: str
) -> Reliability:
    """The reliability diagram of probabilities, with intervals over problems."""
    intervals = _shares(facet, items, resamples, seed)
    bins = reliability(list(facet.scores), list(facet.labels), bins=facet.bins)
    return Reliability(
        title=title,
        bins=tuple(
            Bin(
                low=one.low,
                high=one.high,
                count=one.count,
                mean_score=one.mean_score,
                share_right=one.share_right,
                share_low=intervals[str(at)].low,
                share_high=intervals[str(at)].high,
            )
            for at, one in enumerate(bins)
        ),
        note="Points under the diagonal: too confident.",
    )


def reliability_table(facet: Facet, items: Sequence[Item], resamples: int, seed: int) -> Table:
    """The bins as numbers."""
    intervals = _shares(facet, items, resamples, seed)
    rows = []
    bins = reliability(list(facet.scores), list(facet.labels), bins=facet.bins) if len(facet) else ()
    for at, one in enumerate(bins):
        share = intervals[str(at)]
        last = "]" if at == len(bins) - 1 else ")"
        rows.append(
            (
                f"[{one.low:.3g}, {one.high:.3g}{last}",
                f"{one.count:,}",
                interval_text(one.mean_score, None, None),
                interval_text(one.share_right, share.low, share.high),
                ABSENT
                if one.mean_score is None or one.share_right is None
                else f"{100 * (one.mean_score - one.share_right):+.1f}",
            )
        )
    return Table(
        title=f"Bins of the reliability diagram: {facet.target}",
        columns=("Scores", "Count", "Mean score (%)", "Share right (%)", "Gap (points)"),
        rows=tuple(rows),
    )


def direction(target: Target, figures: Figures) -> str:
    """Whether the PRM is too confident or not confident enough, where the interval tells; "" never."""
    gap = figures[f"{target}/all/gap"]
    if gap.value is None:
        return f"{_OF[target]}: whether the PRM is too confident is not defined for these scores."
    parts = [f"{_OF[target]}: {_confidence(gap, 'overall')}"]
    for what, where in (("gap_high", "in scores from 0.5 up"), ("gap_low", "in scores under 0.5")):
        figure = figures[f"{target}/all/{what}"]
        if figure.value is not None:
            parts.append(_confidence(figure, where))
    return "; ".join(parts) + "."


def _confidence(gap: Figure, where: str) -> str:
    assert gap.value is not None
    if gap.low is None or gap.high is None:
        return f"no interval for the confidence {where} (mean score less share right is {shown(gap)} points)"
    if gap.low > 0:
        return f"overconfident {where} by {shown(gap)} points"
    if gap.high < 0:
        return f"underconfident {where} by {interval_text(-gap.value, -gap.high, -gap.low)} points"
    return f"neither over- nor underconfident {where} as far as the data can tell ({shown(gap)} points)"


def examples(sheet: Sheet, items: Sequence[Item], targets: Sequence[Target]) -> tuple[Examples, ...]:
    """The wrong ones with the highest scores, and the right ones with the lowest."""
    groups = []
    for target in targets:
        worst: dict[str, list[tuple[float, int, int]]] = {"wrong": [], "right": []}
        for at, item in enumerate(items):
            if not item["counts"]:
                continue
            for step, (score, label) in enumerate(
                zip(item[target]["scores"], item[target]["labels"], strict=True)
            ):
                if score is not None and label in (0, 1):
                    worst["right" if label else "wrong"].append((score, at, step))
        for sort, title in (
            ("wrong", "Wrong, and scored highest"),
            ("right", "Right, and scored lowest"),
        ):
            ordered = sorted(worst[sort], key=lambda one: -one[0] if sort == "wrong" else one[0])
            chosen: dict[int, tuple[float, int]] = {}
            for score, at, step in ordered:
                chosen.setdefault(at, (score, step))
                if len(chosen) == _SHOWN:
                    break
            groups.append(
                Examples(
                    title=f"{_OF[target]}: {title.lower()}",
                    problems=tuple(
                        _example(sheet, at, score, step, target, sort) for at, (score, step) in chosen.items()
                    ),
                    text=f"{len(chosen)} solutions; of equally misleading ones the first in the data.",
                )
            )
    return tuple(group for group in groups if group.problems)


def _example(sheet: Sheet, at: int, score: float, step: int, target: Target, sort: str) -> ProblemView:
    row = sheet.rows[at]
    if target == "outcome":
        note = f"truth: the answer is {sort}; it scores {score:.3g}"
    else:
        note = f"truth: step {step + 1} is {sort}; it scores {score:.3g}"
    view = card(
        row,
        how=sheet.aggregate or "min",
        threshold=sheet.threshold,
        found=None if sheet.threshold is None else found_error(row.scores, sheet.threshold),
        note=note,
    )
    return problem(row, view)
