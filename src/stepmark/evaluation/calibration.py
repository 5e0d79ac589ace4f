"""The calibration evaluation: figures, reliability diagrams, who and what is misjudged, and what scaling improves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.calibration_figures import (
    FITTED,
    MAPS,
    MEASURED,
    POSITIONS,
    Facet,
    Maps,
    Split,
    Target,
    apply,
    bin_statistic,
    by_file,
    by_group,
    by_share,
    check_how,
    facets,
    fit,
    floor,
    items_of,
    statistic,
    targets_of,
)
from stepmark.evaluation.cases import Case, Neutral, unique
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.examples import card, problem, unreadable
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import Sheet, score_lengths
from stepmark.evaluation.sources import read_cases, read_prmbench
from stepmark.metrics.binary import reliability
from stepmark.metrics.first_error import found_error
from stepmark.metrics.intervals import Interval, Statistic, bootstrap
from stepmark.models.lazy import Lazy
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.evaluation import Item as Shown
from stepmark.show.plots import Bars, Bin, Reliability, Series
from stepmark.show.tables import ABSENT, Align, Table, interval_text
from stepmark.show.views import ProblemView
from stepmark.store import read_rows

if TYPE_CHECKING:
    from stepmark.models.spec import ScoringSpec

_OF = {"steps": "steps", "outcome": "solutions"}
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
_HEADINGS = {"steps": "Steps", "outcome": "Outcomes"}

_SHOWN = 5
"""Examples of each sort."""


@settings
class Calibration(Evaluation):
    """Does a score of 0.8 mean right four times in five: reliability, ECE, Brier, AUC, by position, policy and difficulty.

    The data are labelled solutions: ProcessBench, PRMBench, candidates, PRM800K (flat) or TRL files, or a folder of them.
    """

    name: ClassVar[str] = "calibration"
    target: Target | None = None
    """What a score is compared with: "steps", the label of its step; "outcome", whether the solution's answer is right. Default: all that the data has."""
    bins: Annotated[int, Field(ge=1)] = 10
    """Of the reliability diagram and of ECE, of equal width."""
    aggregate: str | None = None
    """How step scores become one number for the solution. Default: the PRM's own."""
    fit: str | None = None
    """Fit temperature and Platt scaling on this, measure on the rest: another data file, or a group of the data."""
    fit_share: float | None = None
    """Fit on this share of the problems, chosen by a hash of each."""
    store: str | Path | None = None
    """Write the fitted Platt map into this checkpoint's stepmark.json; it must be the PRM that graded."""
    neutral: Neutral = "positive"
    """What the neutral class of a three-class PRM, and a neutral human rating, count as."""

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.fit is not None and self.fit_share is not None:
            raise UsageError("expected `fit` or `fit_share`, found both")
        if self.store is not None:
            self._spec(run)

    def read(self, run: Run) -> Sequence[Case]:
        """The cases. Of two PRMBench rows with one id, the one that the scores are of, as `PRMBench` has it."""
        if run.scores is not None and all(
            "modified_process" in next(read_rows(file, columns=run.columns)).data for file in run.data
        ):
            lengths = score_lengths(run.scores, model=run.model_name)
            return read_prmbench(run.data, lengths=lengths, columns=run.columns)
        return read_cases(run.data, columns=run.columns)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        whole, split = self._split(cases, run)
        targets = targets_of(cases, self.target)
        if self.store is not None and "steps" not in targets:
            raise UsageError(
                "`store`: a checkpoint scores steps, and nothing is fitted to steps here: the data judges none, or `target` is outcome"
            )
        result, maps = self.calibrated(run.grade(whole), run, targets, split=split)
        if self.store is not None:
            assert split is not None
            self._store(run, maps["steps"], split, result)
        return result

    def _split(self, cases: list[Case], run: Run) -> tuple[list[Case], Split | None]:
        """The cases to grade, and what is fitted on."""
        if self.fit_share is not None:
            return cases, by_share(cases, self.fit_share)
        if self.fit is None:
            return cases, None
        if any(case.group == self.fit for case in cases) or not Path(self.fit).is_file():
            return cases, by_group(cases, self.fit)  # lists the groups where there is no such one
        run.add_input(self.fit)
        others = read_cases([self.fit], columns=run.columns)
        whole, split = by_file(cases, replace(run, facts=[]).take(others), Path(self.fit).name)
        return unique(whole), split

    def _spec(self, run: Run) -> ScoringSpec:
        """The spec that the checkpoint's scores are made with, once a map may be stored there.

        Raises:
            UsageError: nothing is fitted; the folder is not the PRM that grades; its scores take no map.
        """
        from stepmark.models.detect import spec_of
        from stepmark.models.spec import SPEC_FILE, check_readout

        assert self.store is not None
        store, prm = Path(self.store), run.prm
        if self.fit is None and self.fit_share is None:
            raise UsageError("`store` needs a map that is fitted: give `fit` or `fit_share` too")
        if run.scores is not None:
            raise UsageError(
                "`store` and `scores` do not go together: a file of scores does not show which checkpoint gave them; grade with "
                f"`prm` {store}"
            )
        if not store.is_dir():
            raise UsageError(f"`store` {store}: expected the folder of a checkpoint")
        if not isinstance(prm, Lazy) or Path(prm.name).resolve() != store.resolve():
            raise UsageError(
                f"`store` {store} is not the checkpoint that grades, which is `prm` {'' if prm is None else prm.name}; a calibration "
                "belongs to the checkpoint that it was fitted on"
            )
        family = prm.arguments.get("family")
        if family is not None and (store / SPEC_FILE).is_file():
            raise UsageError(
                f"`family` {family} passes over {store / SPEC_FILE}, into which `store` writes; leave one of them out"
            )
        spec = spec_of(store, prm.name, family)
        check_readout(spec.readout)
        return spec

    def _store(self, run: Run, maps: Maps, split: Split, result: Result) -> None:
        from stepmark.models.spec import store_calibration

        assert self.store is not None
        if maps.scale <= 0:
            raise UsageError(
                f"`store`: the fitted scale is {maps.scale:.4g}, so that higher scores would become lower; nothing was stored"
            )
        figures = {
            f"{part}, {what}": result.figures[f"steps/{part}/{what}"].value
            for part in ("measured, before", "measured, platt")
            for what in ("ece", "brier")
        }
        new = store_calibration(
            Path(self.store),
            self._spec(run),
            scale=maps.scale,
            shift=maps.shift,
            note={"on": split.words, "steps": maps.count, "data": list(result.data), "figures": figures},
        )
        run.note(
            f"stored in {Path(self.store) / 'stepmark.json'}: scale {new.readout.scale:.4g}, shift {new.readout.shift:+.4g}; what was there "
            f"stands in {Path(self.store) / 'calibration.json'}"
        )

    def calibrated(
        self, sheet: Sheet, run: Run, targets: Sequence[Target], *, split: Split | None = None
    ) -> tuple[Result, Mapping[Target, Maps]]:
        """The result of graded cases, and what was fitted.

        Args:
            sheet: cases with their scores; with a split by file, those to fit on among them.
            run: the run.
            targets: what to measure (`calibration_items.targets_of`).
            split: what scaling is fitted on; None fits none.

        Raises:
            UsageError: nothing to fit.
        """
        how = check_how(self.aggregate, sheet)
        items = items_of(sheet, targets, how=how, bins=self.bins, neutral=self.neutral)
        maps: dict[Target, Maps] = {}
        if split is not None:
            for item in items:
                item["role"] = split.roles[item["id"]]
                item["counts"] = not (split.apart and item["role"] == FITTED)
            maps = {target: fit(items, target) for target in targets}
            apply(items, maps)
        found: dict[tuple[str, str], Facet] = {(facet.target, facet.name): facet for facet in facets(items)}
        figures = run.figures(items, statistic(items), {} if split is None else _policies(found, split))
        views = Views(
            title=f"Calibration: {sheet.prm}",
            facts=(
                *_counted(items, targets, how),
                *(direction(target, figures) for target in targets),
                *_left_out(sheet, items, targets),
                *_fitted(maps, split),
            ),
            remarks=(
                INTERVALS if split is None else f"{INTERVALS[:-1]}; a fitted map is held fixed in them.",
            ),
            tiles=[tile for target in targets for tile in _tiles(target, figures)],
            sections=_sections(sheet, items, targets, found, figures, maps, split, how, run),
        )
        result = run.result(
            self,
            views,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            targets=list(targets),
            bins=items[0]["bins"],
            how=how,
        )
        return result, maps


def _policies(found: Mapping[tuple[str, str], Facet], split: Split) -> dict[str, str]:
    """What a facet's map was fitted on."""
    policies = {}
    for target, name in found:
        if name.startswith("measured, "):
            policies[f"{target}/{name}"] = f"fitted on {split.words}, measured on the rest"
        elif name.startswith(FITTED):
            policies[f"{target}/{name}"] = f"fitted here, on {split.words}"
    return policies


def _sections(
    sheet: Sheet,
    items: Sequence[Item],
    targets: Sequence[Target],
    found: Mapping[tuple[str, str], Facet],
    figures: Figures,
    maps: Mapping[Target, Maps],
    split: Split | None,
    how: str,
    run: Run,
) -> list[Section]:
    sections: list[Section] = []
    first: list[Shown] = []
    if split is not None:
        first += [scaling_table(target, found, figures, maps[target], split) for target in targets]
    first += [headline(target, found, figures, how=how) for target in targets]
    for target in targets:
        first += _diagrams(found[target, "all"], items, run.resamples, run.seed)
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
        parts = breakdown(target, found, figures)
        if parts:
            note = _DIFFICULTY if any(name.startswith("difficulty ") for _, name in found) else ""
            sections.append(Section(title=_PARTS[target], text=note, items=tuple(parts)))
    if split is not None:
        sections.append(_after(targets, found, items, split, run.resamples, run.seed))
    sections.append(
        Section(
            title="Bins",
            items=tuple(
                reliability_table(found[target, "all"], items, run.resamples, run.seed)
                for target in targets
                if found[target, "all"].probability
            ),
        )
    )
    sections.append(Section(title="Examples", items=examples(sheet, items, targets)))
    return sections


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
            "fitted (`fit`, `fit_share`)."
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
                title=f"{_HEADINGS[target]} by {key}",
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
                    title=f"{_HEADINGS[target]} by {key}: what is scored, and what is right",
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
        return f"{_HEADINGS[target]}: whether the PRM is too confident is not defined for these scores."
    parts = [f"{_HEADINGS[target]}: {_confidence(gap, 'overall')}"]
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
                    title=f"{_HEADINGS[target]}: {title.lower()}",
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
