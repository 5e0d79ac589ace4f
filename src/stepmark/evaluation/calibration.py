"""The calibration evaluation: figures, reliability diagrams, who and what is misjudged, and what scaling improves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from stepmark.data.reading import read_rows
from stepmark.errors import UsageError
from stepmark.evaluation.calibration_figures import (
    FITTED,
    MAPS,
    MEASURED,
    Facet,
    Maps,
    Split,
    Target,
    apply,
    bin_statistic,
    check_how,
    facets,
    fit,
    floor,
    items_of,
    split_by,
    statistic,
    targets_of,
)
from stepmark.evaluation.cases import Case, Neutral, unique
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.result import Item, Result, shown
from stepmark.evaluation.scores import Sheet, score_lengths
from stepmark.evaluation.sources import read_cases, read_prmbench
from stepmark.evaluation.views import Cell, Figures, card, cell, problem, table_of, tile, unreadable
from stepmark.metrics.binary import reliability
from stepmark.metrics.intervals import Statistic, bootstrap
from stepmark.models.lazy import Lazy
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.evaluation import Item as Shown
from stepmark.show.plots import Bin, Reliability
from stepmark.show.tables import ABSENT, Table, interval_text
from stepmark.show.text import amount

if TYPE_CHECKING:
    from stepmark.models.spec import ScoringSpec

_OF = {"steps": "steps", "outcome": "solutions"}
Facets = Mapping[tuple[str, str], Facet]
_HEADINGS = {"steps": "Steps", "outcome": "Outcomes"}

_SHOWN = 5
"""Examples of each sort."""


@settings
class Calibration(Evaluation):
    """Does a score of 0.8 mean right four times in five: reliability, ECE, Brier, AUC, by position and policy.

    The data are labelled solutions: ProcessBench, PRMBench, candidates, PRM800K (flat) or TRL files, or a folder of them.
    """

    name: ClassVar[str] = "calibration"
    target: Target | None = None
    """What a score is compared with: "steps", the label of its step; "outcome", whether the solution's answer is right. Default: all that the data has."""
    bins: Annotated[int, Field(ge=1)] = 10
    """Bins of equal width, of the reliability diagram and ECE."""
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
        if self.fit is None:
            return cases, None if self.fit_share is None else split_by(cases, share=self.fit_share)
        if any(case.group == self.fit for case in cases) or not Path(self.fit).is_file():
            return cases, split_by(cases, group=self.fit)  # lists the groups where there is no such one
        run.add_input(self.fit)
        others = replace(run, facts=[]).take(read_cases([self.fit], columns=run.columns))
        split = split_by(cases, group=Path(self.fit).name, others=others)
        return unique([*cases, *(case for case in others if split.roles.get(case.id) == FITTED)]), split

    def _spec(self, run: Run) -> ScoringSpec:
        """The spec that the checkpoint's scores are made with, once a map may be stored there.

        Raises:
            UsageError: nothing is fitted; the folder is not the PRM that grades; its scores take no map.
        """
        from stepmark.models.checkpoint import spec_of
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
        parts: dict[tuple[str, str], Facet] = {(facet.target, facet.name): facet for facet in facets(items)}
        figures = run.figures(items, statistic(items), {} if split is None else _policies(parts, split))
        views = Views(
            title=f"Calibration: {sheet.prm}",
            verdict=" ".join(
                [*(useless(target, figures) for target in targets), *(direction(t, figures) for t in targets)]
            ).strip(),
            facts=(
                *_counted(items, targets, how),
                *_left_out(sheet, items, targets),
                *_fitted(maps, split),
            ),
            remarks=(
                INTERVALS if split is None else f"{INTERVALS[:-1]}; a fitted map is held fixed in them.",
            ),
            tiles=[tile for target in targets for tile in _tiles(target, figures)],
            sections=_sections(sheet, items, targets, parts, figures, maps, split, how, run),
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


def _policies(parts: Facets, split: Split) -> dict[str, str]:
    """What a facet's map was fitted on."""
    policies = {}
    for target, name in parts:
        if name.startswith("measured, "):
            policies[f"{target}/{name}"] = f"fitted on {split.words}, measured on the rest"
        elif name.startswith(FITTED):
            policies[f"{target}/{name}"] = f"fitted here, on {split.words}"
    return policies


def _sections(
    sheet: Sheet,
    items: Sequence[Item],
    targets: Sequence[Target],
    parts: Facets,
    figures: Figures,
    maps: Mapping[Target, Maps],
    split: Split | None,
    how: str,
    run: Run,
) -> list[Section]:
    first: list[Shown] = []
    if split is not None:
        first += [scaling_table(target, parts, figures, maps[target], split) for target in targets]
    for target in targets:
        title = "Steps" if target == "steps" else f"Outcomes (the {how} of the steps)"
        names = [name for of, name in parts if of == target and (name == "all" or name.startswith("group "))]
        first.append(facet_table(f"Calibration: {title}", "", target, names, parts, figures))
    views = ["all"] if split is None else ["all", *(f"measured, {view}" for view in ("before", *MAPS))]
    facets_shown = [parts[target, view] for target in targets for view in views if (target, view) in parts]
    reliable = [facet for facet in facets_shown if facet.probability and len(facet)]
    diagrams = [reliability_plot(facet, items, run) for facet in reliable]
    sections = [
        Section(
            title="Figures",
            text="ECE: the distance between mean score and share right, averaged over bins of equal width. Bins with few items bias it "
            "upwards, and its interval more: it may lie above the value. Floor: about the ECE of a calibrated PRM on as many independent "
            "items. Gap: mean score minus share right; above 0 the PRM is overconfident.",
            items=(*first, *diagrams),
        )
    ]
    for target in targets:
        tables: list[Shown] = []
        for key in ("position", "policy"):
            names = [name for of, name in parts if of == target and name.startswith(f"{key} ")]
            if len(names) > 1:
                title = f"{_HEADINGS[target]} by {key}"
                tables.append(facet_table(title, key, target, names, parts, figures))
        sections.append(Section(title=f"{_HEADINGS[target]} by part", items=tuple(tables)))
    sections.append(Section(title="Examples", items=examples(sheet, items, targets)))
    return sections


def _counted(items: Sequence[Item], targets: Sequence[Target], how: str) -> list[str]:
    inside = [item for item in items if item["counts"]]
    parts = [
        f"{amount(len(inside), 'solution')} of {amount(len({item['problem'] for item in inside}), 'problem')}."
    ]
    if "steps" in targets:
        parts.append("Steps: the score of every judged step against its label.")
    if "outcome" in targets:
        parts.append(f"Outcome: the {how} of a solution's steps against whether its answer is right.")
    if inside and inside[0]["kind"] != "probability":
        parts.append(
            f"The scores are of the kind {inside[0]['kind']}, no probabilities: only AUC is defined, and the rest once a map is "
            "fitted (`fit`, `fit_share`)."
        )
    return [" ".join(parts)]


def _left_out(sheet: Sheet, items: Sequence[Item], targets: Sequence[Target]) -> list[str]:
    facts = unreadable(sheet, "(in no figure)")
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
            facts.append(
                f"In no figure: {unjudged:,} of {amount(len(pairs), _OF[target][:-1])} without a label"
                + (" (such as steps after the first error)." if target == "steps" else ".")
            )
        if unread:
            facts.append(
                f"In no figure: {amount(unread, _OF[target][:-1])} with a label and without a score."
            )
    return facts


def _fitted(maps: Mapping[Target, Maps], split: Split | None) -> list[str]:
    if split is None:
        return []
    facts = []
    for target, item in maps.items():
        warmth = (
            f"temperature {item.temperature:.4g}"
            if item.temperature is not None
            else f"no temperature ({item.no_temperature})"
        )
        facts.append(
            f"Fitted for {target} on {split.words} ({amount(item.count, 'score')}): {warmth}; Platt scale {item.scale:.4g}, shift "
            f"{item.shift:+.4g}."
        )
        if item.scale <= 0:
            facts.append(
                f"On {split.words}, higher scores do not go with right {_OF[target]}: Platt's scale is not positive."
            )
        if item.certain:
            facts.append(
                f"{item.certain:,} of these scores are exactly 0 or 1, rounded by the PRM; for their logit they are taken for half as "
                "far from it as the nearest other score."
            )
    if split.dropped:
        facts.append(
            f"{amount(split.dropped, 'solution')} of {split.words} not fitted on, because their problems are measured on."
        )
    return facts


def _tiles(target: Target, figures: Figures) -> list[Tile]:
    shown_figures = {
        "AUC (%)": ("all/auc", 100, 1),
        "ECE (%)": ("all/ece", 100, 1),
        "Brier": ("all/brier", 1, 3),
        "Gap (points)": ("all/gap", 100, 1),
        "ECE after Platt (%)": ("measured, platt/ece", 100, 1),
    }
    return [
        tile(f"{label}, {target}", figure, scale=scale, digits=digits)
        for label, (name, scale, digits) in shown_figures.items()
        if (figure := figures.get(f"{target}/{name}")) is not None and figure.value is not None
    ]


def _columns(target: Target, parts: Facets, figures: Figures) -> dict[str, Cell]:
    def lowest(name: str) -> str:
        value = floor(parts[target, name])
        return ABSENT if value is None else f"{100 * value:.1f}"

    return {
        "Count": lambda name: f"{len(parts[target, name]):,}",
        "Share right (%)": cell(figures, f"{target}/{{}}/share_right"),
        "Mean score (%)": cell(figures, f"{target}/{{}}/mean_score"),
        "Gap (points)": cell(figures, f"{target}/{{}}/gap"),
        "AUC (%)": cell(figures, f"{target}/{{}}/auc"),
        "Brier": cell(figures, f"{target}/{{}}/brier", scale=1, digits=3),
        "ECE (%)": cell(figures, f"{target}/{{}}/ece"),
        "Floor (%)": lowest,
    }


def facet_table(
    title: str, key: str, target: Target, names: Sequence[str], parts: Facets, figures: Figures
) -> Table:
    """The figures of some facets of one target."""
    return table_of(
        title,
        key.capitalize(),
        names,
        _columns(target, parts, figures),
        label=lambda name: name.removeprefix(f"{key or 'group'} "),
    )


def scaling_table(target: Target, parts: Facets, figures: Figures, maps: Maps, split: Split) -> Table:
    """Before and after, on what was measured and, marked so, on what was fitted."""
    words = {
        "before": "as scored",
        "temperature": "" if maps.temperature is None else f"temperature {maps.temperature:.3g}",
        "platt": f"Platt, {maps.scale:.3g} * logit {maps.shift:+.3g}",
    }
    names = [
        name for role in (MEASURED, FITTED) for view in words if (target, name := f"{role}, {view}") in parts
    ]
    columns: dict[str, Cell] = {"Scores": lambda name: words[name.rpartition(", ")[2]]}
    return table_of(
        f"Scaling, {target}: fitted on {split.words}",
        "Numbers are",
        names,
        columns | _columns(target, parts, figures),
        label=lambda name: "measured on the rest" if name.startswith(MEASURED) else "fitted here",
        left=2,
        note="Numbers that are fitted here flatter: the map saw those labels.",
    )


def reliability_plot(facet: Facet, items: Sequence[Item], run: Run) -> Reliability:
    """The reliability diagram of probabilities, with intervals over problems."""
    problems = [item["problem"] for item in items]
    intervals = bootstrap(bin_statistic(facet, len(items)), problems, resamples=run.resamples, seed=run.seed)
    view = "as scored" if facet.name == "all" else facet.name
    return Reliability(
        title=f"Reliability: {_OF[facet.target]}, {view}",
        bins=tuple(
            Bin(
                low=entry.low,
                high=entry.high,
                count=entry.count,
                mean_score=entry.mean_score,
                share_right=entry.share_right,
                share_low=intervals[str(at)].low,
                share_high=intervals[str(at)].high,
            )
            for at, entry in enumerate(reliability(list(facet.scores), list(facet.labels), bins=facet.bins))
        ),
        note="Points under the diagonal: too confident.",
    )


def useless(target: Target, figures: Figures) -> str:
    """That the PRM does not tell right from wrong, where its AUC is not above chance; "" elsewhere."""
    found = figures[f"{target}/all/auc"]
    # Scores that are all the same have no interval.
    if found.value is None or (found.value if found.low is None else found.low) > 0.5:
        return ""
    return (
        f"{_HEADINGS[target]}: this PRM does not tell right from wrong here: AUC {shown(found)}, chance is 50. No calibration helps; train one on "
        "rows like these (`stepmark train`), or take another."
    )


def direction(target: Target, figures: Figures) -> str:
    """Whether the PRM is too confident or not confident enough, where the interval tells; "" never."""
    gap = figures[f"{target}/all/gap"]
    if gap.value is None:
        words = "whether the PRM is too confident is not defined for these scores"
    elif gap.low is None or gap.high is None:
        words = f"no interval for the confidence (mean score minus share right is {shown(gap)} points)"
    elif gap.low > 0:
        words = f"overconfident by {shown(gap)} points"
    elif gap.high < 0:
        words = f"underconfident by {interval_text(-gap.value, -gap.high, -gap.low)} points"
    else:
        words = f"neither over- nor underconfident as far as the data can tell ({shown(gap)} points)"
    return f"{_HEADINGS[target]}: {words}."


def examples(sheet: Sheet, items: Sequence[Item], targets: Sequence[Target]) -> tuple[Examples, ...]:
    """The wrong ones with the highest scores, and the right ones with the lowest."""
    groups = []
    for target in targets:
        scored = [
            (score, label, at, step)
            for at, item in enumerate(items)
            if item["counts"]
            for step, (score, label) in enumerate(
                zip(item[target]["scores"], item[target]["labels"], strict=True)
            )
            if score is not None
        ]
        for truth, sort, end in ((0, "wrong", "highest"), (1, "right", "lowest")):
            worst: dict[int, tuple[float, int]] = {}
            for score, label, at, step in sorted(scored, key=lambda one: one[0] if truth else -one[0]):
                if label == truth and len(worst) < _SHOWN:
                    worst.setdefault(at, (score, step))
            views = []
            for at, (score, step) in worst.items():
                subject = "the answer" if target == "outcome" else f"step {step + 1}"
                note = f"truth: {subject} is {sort}; it scores {score:.3g}"
                views.append(problem(sheet.rows[at], card(sheet.rows[at], sheet, note)))
            title = f"{_HEADINGS[target]}: {sort}, and scored {end}"
            groups += [Examples(title=title, problems=tuple(views))] if views else []
    return tuple(groups)
