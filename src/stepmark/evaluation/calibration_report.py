"""The calibration evaluation: figures, reliability diagrams, who and what is misjudged, and what scaling mends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.evaluation.calibration import NAME, Facet, Target, facets, items_of, statistic
from stepmark.evaluation.calibration_fit import FITTED, Maps, Split, apply, fit
from stepmark.evaluation.calibration_tables import (
    breakdown,
    direction,
    examples,
    headline,
    reliability_plot,
    reliability_table,
    scaling_table,
)
from stepmark.evaluation.cases import Neutral
from stepmark.evaluation.facts import unreadable
from stepmark.evaluation.result import Figure, Item, Result, measured, shown
from stepmark.evaluation.scores import Sheet
from stepmark.metrics.binary import bin_edges
from stepmark.show.evaluation import Item as Shown
from stepmark.show.evaluation import Section, Tile

_OF = {"steps": "steps", "outcome": "solutions"}


def evaluate(
    sheet: Sheet,
    targets: Sequence[Target],
    *,
    how: str = "min",
    bins: int = 10,
    split: Split | None = None,
    neutral: Neutral = "positive",
    settings: Mapping[str, Any] | None = None,
    data: Sequence[Mapping[str, Any]] = (),
    facts: Sequence[str] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Result, Mapping[Target, Maps]]:
    """Calibration figures of a sheet of scores.

    Args:
        sheet: cases with their scores; with a split by file, those to fit on among them.
        targets: what to measure (`calibration.targets_of`).
        how: the aggregate that stands for a solution (`calibration.check_how`).
        bins: of the reliability diagram and ECE.
        split: what scaling is fitted on; None fits none.
        neutral: what a neutral rating counts as.
        settings: what the scores were made with.
        data: the files' names and hashes.
        facts: more sentences for the top of the report.
        resamples: of the bootstrap over problems.
        seed: of the bootstrap.

    Returns:
        The result, and what was fitted.

    Raises:
        UsageError: no bins, or nothing to fit.
    """
    bin_edges(bins)
    items = items_of(sheet, targets, how=how, bins=bins, neutral=neutral)
    maps: dict[Target, Maps] = {}
    if split is not None:
        for item in items:
            item["role"] = split.roles[item["id"]]
            item["counts"] = not (split.apart and item["role"] == FITTED)
        maps = {target: fit(items, target) for target in targets}
        apply(items, maps)
    return report(
        sheet,
        items,
        targets,
        maps=maps,
        split=split,
        how=how,
        settings=settings,
        data=data,
        facts=facts,
        resamples=resamples,
        seed=seed,
    ), maps


def report(
    sheet: Sheet,
    items: Sequence[Item],
    targets: Sequence[Target],
    *,
    maps: Mapping[Target, Maps],
    split: Split | None,
    how: str,
    settings: Mapping[str, Any] | None,
    data: Sequence[Mapping[str, Any]],
    facts: Sequence[str],
    resamples: int,
    seed: int,
) -> Result:
    """The result of finished items; arguments as of `evaluate`."""
    found: dict[tuple[str, str], Facet] = {(facet.target, facet.name): facet for facet in facets(items)}
    policies = {}
    if split is not None:
        for target, name in found:
            if name.startswith("measured, "):
                policies[f"{target}/{name}"] = f"fitted on {split.words}, measured on the rest"
            elif name.startswith(FITTED):
                policies[f"{target}/{name}"] = f"fitted here, on {split.words}"
    figures = measured(items, statistic(items), policies=policies, resamples=resamples, seed=seed)
    by_name = {figure.name: figure for figure in figures}
    sections: list[Section] = []
    first: list[Shown] = []
    if split is not None:
        first += [scaling_table(target, found, by_name, maps[target], split) for target in targets]
    first += [headline(target, found, by_name, how=how) for target in targets]
    for target in targets:
        first += _diagrams(found[target, "all"], items, resamples, seed)
    sections.append(
        Section(
            title="Figures",
            text="ECE: the distance of mean score and share that is right, averaged over the bins of equal width; biased upwards where they "
            "hold few, and its interval more so, which may lie above it. Floor: about what a calibrated PRM would show on as "
            "many, were they independent. Gap: mean score less share right, over 0 where the PRM is too confident.",
            items=tuple(first),
        )
    )
    for target in targets:
        parts = breakdown(target, found, by_name)
        if parts:
            said = _DIFFICULTY if any(name.startswith("difficulty ") for _, name in found) else ""
            sections.append(Section(title=_PARTS[target], text=said, items=tuple(parts)))
    if split is not None:
        sections.append(_after(targets, found, items, split, resamples, seed))
    sections.append(
        Section(
            title="Bins",
            items=tuple(
                reliability_table(found[target, "all"], items, resamples, seed)
                for target in targets
                if found[target, "all"].probability
            ),
        )
    )
    sections.append(Section(title="Examples", items=examples(sheet, items, targets)))
    return Result(
        evaluation=NAME,
        title=f"Calibration: {sheet.prm}",
        prm=sheet.prm,
        facts=(
            *_counted(items, targets, how),
            *(direction(target, by_name) for target in targets),
            *_left_out(sheet, items, targets),
            *_fitted(maps, split),
            *facts,
            "In brackets: 95 % bootstrap intervals over problems"
            + ("; a fitted map is held fixed in them." if split is not None else "."),
        ),
        figures=figures,
        tiles=tuple(tile for target in targets for tile in _tiles(target, by_name)),
        sections=tuple(section for section in sections if section.items),
        items=tuple(items),
        settings={**(settings or {}), "targets": list(targets), "bins": items[0]["bins"], "how": how},
        data=data,
    )


_PARTS = {
    "steps": "Steps, by what they are part of",
    "outcome": "Outcomes, by what they are part of",
}

_DIFFICULTY = "Difficulty: as the data names it; where it does not, thirds by the share of right ones among the problem's other candidates."


def _diagrams(facet: Facet, items: Sequence[Item], resamples: int, seed: int) -> list[Shown]:
    return (
        [
            reliability_plot(
                facet, items, resamples, seed, title=f"Reliability: {_OF[facet.target]}, as scored"
            )
        ]
        if facet.probability and len(facet)
        else []
    )


def _after(
    targets: Sequence[Target],
    found: Mapping[tuple[str, str], Facet],
    items: Sequence[Item],
    split: Split,
    resamples: int,
    seed: int,
) -> Section:
    shown_ = []
    for target in targets:
        for view in ("before", "temperature", "platt"):
            facet = found.get((target, f"measured, {view}"))
            if facet is not None and facet.probability and len(facet):
                title = f"{_OF[target].capitalize()}, {'before' if view == 'before' else 'after ' + view}"
                shown_.append(reliability_plot(facet, items, resamples, seed, title=title))
    return Section(
        title="Before and after scaling",
        text=f"Fitted on {split.words}, measured on the rest. A map with a positive scale keeps the order of the scores, hence AUC.",
        items=tuple(shown_),
    )


def _counted(items: Sequence[Item], targets: Sequence[Target], how: str) -> list[str]:
    inside = [item for item in items if item["counts"]]
    said = [f"{len(inside):,} solutions of {len({item['problem'] for item in inside}):,} problems."]
    if "steps" in targets:
        said.append("Steps: the score of every judged step against its label.")
    if "outcome" in targets:
        said.append(f"Outcome: the {how} of a solution's steps against whether its answer is right.")
    if inside and inside[0]["kind"] != "probability":
        said.append(
            f"The scores are of the kind {inside[0]['kind']}, no probabilities: only AUC is defined, and the rest once a map is "
            "fitted (--fit, --fit-share)."
        )
    return [" ".join(said)]


def _left_out(sheet: Sheet, items: Sequence[Item], targets: Sequence[Target]) -> list[str]:
    said = unreadable(sheet, "and are in no figure")
    for target in targets:
        pairs = [
            pair
            for item in items
            if item["counts"] and target in item
            for pair in zip(item[target]["scores"], item[target]["labels"], strict=True)
        ]
        unjudged = sum(label is None for _, label in pairs)
        unread = sum(score is None and label is not None for score, label in pairs)
        if unjudged:
            said.append(
                f"{unjudged:,} of {len(pairs):,} {_OF[target]} have no label and are in no figure"
                + (" (such as steps after the first error)." if target == "steps" else ".")
            )
        if unread:
            said.append(f"{unread:,} {_OF[target]} have a label and no score, and are in no figure.")
    return said


def _fitted(maps: Mapping[Target, Maps], split: Split | None) -> list[str]:
    if split is None:
        return []
    said = []
    for target, one in maps.items():
        warmth = (
            f"temperature {one.temperature:.4g}"
            if one.temperature is not None
            else f"no temperature ({one.no_temperature})"
        )
        said.append(
            f"Fitted for {target} on {split.words} ({one.count:,} scores): {warmth}; Platt scale {one.scale:.4g}, shift "
            f"{one.shift:+.4g}."
        )
        if one.scale <= 0:
            said.append(
                f"On {split.words}, higher scores do not go with right {_OF[target]}: Platt's scale is not positive."
            )
        if one.certain:
            said.append(
                f"{one.certain:,} of these scores are exactly 0 or 1, rounded by the PRM; for their logit they are taken for half as "
                "far from it as the nearest other score."
            )
    if split.dropped:
        said.append(
            f"{split.dropped:,} solutions of {split.words} were not fitted on, because their problems are measured on."
        )
    return said


def _tiles(target: Target, figures: Mapping[str, Figure]) -> list[Tile]:
    def tile(facet: str, what: str, label: str) -> Tile | None:
        figure = figures.get(f"{target}/{facet}/{what}")
        if figure is None or figure.value is None:
            return None
        scale, digits = (1, 3) if what == "brier" else (100, 1)
        value, _, interval = shown(figure, scale=scale, digits=digits).partition(" ")
        return Tile(label=f"{label}, {target}", value=value, detail=interval.strip("()[]"))

    found = [
        tile("all", "auc", "AUC (%)"),
        tile("all", "ece", "ECE (%)"),
        tile("all", "brier", "Brier"),
        tile("all", "gap", "Gap (points)"),
        tile("measured, platt", "ece", "ECE after Platt (%)"),
    ]
    return [one for one in found if one is not None]
