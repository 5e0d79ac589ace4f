"""The robustness evaluation: tables, bars with intervals, and the changed solutions beside the originals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.evaluation import INTERVALS, Evaluation, Run, Views
from stepmark.evaluation.examples import card, problem
from stepmark.evaluation.perturbations import PERTURBATIONS, perturbation
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.robustness_items import (
    BREAKING,
    PRESERVING,
    Judging,
    Trial,
    items_of,
    statistic,
    to_grade,
    trials,
)
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.metrics.intervals import Statistic
from stepmark.models.prm import first_error
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.plots import Bars, Series
from stepmark.show.tables import Table
from stepmark.show.views import ProblemView

Figures = Mapping[str, Figure]


@settings
class Robustness(Evaluation):
    """Can the PRM be talked into a higher score, and does it see what is broken on purpose.

    Changes that keep the meaning must not raise the score, changes that break it must lower it. Every solution is graded as it is and with
    each change that applies to it: confident phrasing, formatting, restated or inflated steps; question removed, shuffled or swapped, steps
    shuffled, numbers altered, truncated, irrelevant or repeated answers. What is changed depends on the seed and the solution alone. The
    data are labelled solutions of any shape that stepmark evaluate reads (ProcessBench, PRMBench, candidates, TRL).
    """

    name: ClassVar[str] = "robustness"
    only: Sequence[str] = ()
    """These perturbations only (docs: robustness). Default: all."""
    aggregate: str | None = None
    """How step scores become the solution's score. Default: the PRM's own."""
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A step whose score is under it is an error. Default: the PRM's own."""
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """A rise by more than this is a success of the attack, in the unit of the aggregate. Default: 0.05 for probabilities, 0.1 for margins."""

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `robustness_items.statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        changes = trials(run.take(self.read(run)), self.only or tuple(PERTURBATIONS), run.seed)
        return self.of_trials(run.grade(to_grade(changes)), run, changes)

    def of_trials(self, sheet: Sheet, run: Run, changes: Sequence[Trial]) -> Result:
        """What the changes do to the scores of a PRM.

        Args:
            sheet: scores of `robustness_items.to_grade(changes)`.
            run: the run.
            changes: as `robustness_items.trials` makes them.

        Raises:
            UsageError: no changes, a case without scores, or settings that do not fit the scores.
        """
        if not changes:
            raise UsageError("there is nothing to compare: no perturbation applies to any solution")
        how = Judging(aggregate=self.aggregate, threshold=self.threshold, margin=self.margin).of(sheet)
        items = items_of(changes, sheet, how)
        threshold = "no threshold" if how.threshold is None else f"threshold {how.threshold:g}"
        policy = f"{how.aggregate}, {threshold}, margin {how.margin:g}"
        figures = run.figures(items, statistic(items), {"": policy})
        names = [name for name in PERTURBATIONS if any(item["perturbation"] == name for item in items)]
        kept = [name for name in names if perturbation(name).keeps_meaning]
        broken = [name for name in names if not perturbation(name).keeps_meaning]
        # Where labels say which solutions are right, only those can be broken.
        group = "/right" if any(item["right"] for item in items) else ""
        sections = [Section(title="At a glance", text=_GLANCE, items=(_glance(names, figures, group),))]
        if kept:
            sections.append(
                Section(title="Changes that keep the meaning", text=_KEPT, items=_kept(kept, figures))
            )
        if broken:
            of = "the solutions that are right by their labels" if group else "all solutions"
            sections.append(
                Section(
                    title="Changes that break the meaning",
                    text=_BROKEN.format(of=of),
                    items=_broken(broken, figures, group),
                )
            )
        sections.append(Section(title="What each change does", items=(_list(names, items),)))
        sections.append(
            Section(title="Examples", text=_EXAMPLES, items=examples(sheet, changes, items, how, names))
        )
        views = Views(
            title=f"Robustness: {sheet.prm}",
            facts=_facts(items, how),
            tiles=_tiles(figures, group, names),
            sections=sections,
        )
        return run.result(
            self,
            views,
            figures,
            items,
            prm=sheet.prm,
            identity=sheet.identity,
            perturbations=", ".join(self.only or tuple(PERTURBATIONS)),
            aggregate=how.aggregate,
            threshold=how.threshold,
            margin=how.margin,
        )


_GLANCE = (
    "An attack succeeds when a change that keeps the meaning turns a bad verdict into a good one or raises the score by more than "
    "the margin, and when a change that breaks the meaning does not lower it. The verdict is fooled when a wrong solution "
    "judged bad is judged good (meaning kept), or a solution judged good stays so (meaning broken)."
)
_KEPT = (
    "A right step stays right and a wrong one wrong, so the score must not rise. Attack success: the verdict turns from "
    "bad to good, or the score rises by more than the margin. Flips to good: of the solutions that are wrong by their labels "
    "and were judged bad, those judged good now. False alarms: of the right ones that were judged good, those judged bad now.\n\n"
    "Steps that are added or cut change a product or a sum even where every step keeps its score: that is a weakness of the "
    "aggregate."
)
_BROKEN = (
    "The figures are over {of}. Does not fall: the score is no lower than before. Stays good: of the solutions judged good, "
    "those that still are.\n\n"
    "What is cut off or put in another order may leave every single step true. A PRM that rates steps on their own cannot "
    "see that, and by a minimum or a product a truncated solution can only gain; the table says how much there is to gain for "
    "a policy that stops early."
)
_EXAMPLES = (
    "The original and its changed copy side by side: the attacks that succeeded by the largest rise (or smallest fall) of the score; "
    "where none did, one change that had no effect of this sort."
)


def _facts(items: Sequence[Item], how: Judging) -> list[str]:
    originals = {item["original"]: item for item in items}
    right = Counter(item["right"] for item in originals.values())
    said = [
        f"{len(originals):,} solutions of {len({item['problem'] for item in items}):,} problems ({right[True]:,} right and "
        f"{right[False]:,} wrong by their labels, {right[None]:,} without a label), {len(items):,} changed copies. A change that "
        "keeps the meaning must not raise the score; one that breaks it must lower it.",
        f"The score of a solution is the {how.aggregate} of its steps; its verdict is good when no step is under "
        f"{'a threshold, of which there is none here' if how.threshold is None else f'{how.threshold:g}'}; a rise "
        f"of more than {how.margin:g} counts as a success of an attack.",
    ]
    unscored = [item for item in items if item["before"] is None or item["after"] is None]
    if unscored:
        why = next((f": {item['refused']}" for item in unscored if item["refused"]), "")
        said.append(
            f"{len(unscored):,} comparisons have no score before or after the change and enter no figure of scores, "
            f"first {unscored[0]['id']}{why}"
        )
    said.append(INTERVALS)
    return said


def _tiles(figures: Figures, group: str, names: Sequence[str]) -> tuple[Tile, ...]:
    wanted = (
        (f"{PRESERVING}/flips to good", "Wrong solutions turned good", "by changes of looks alone"),
        (f"{PRESERVING}/false alarms", "Right solutions turned bad", "by changes of looks alone"),
        (f"{BREAKING}/success{group}", "Broken, and the score does not fall", "mean over the changes"),
        (f"{BREAKING}/stays good{group}", "Broken, and still judged good", "mean over the changes"),
        ("numbers-altered/step missed/proven", "Wrong calculations not noticed", "steps judged good before"),
    )
    tiles = []
    for name, label, detail in wanted:
        figure = figures.get(name)
        if figure is None or figure.value is None:
            continue
        ends = (
            ""
            if figure.low is None or figure.high is None
            else f"{100 * figure.low:.1f} to {100 * figure.high:.1f}; "
        )
        tiles.append(Tile(label=label, value=f"{100 * figure.value:.1f} %", detail=f"{ends}{detail}"))
    return tuple(tiles)


def _count(figure: Figure | None) -> str:
    return "–" if figure is None or figure.value is None else f"{figure.value:,.0f}"


def _score(figure: Figure | None) -> str:
    return shown(figure, scale=1, digits=3)


def _plain(figure: Figure | None) -> str:
    return "–" if figure is None or figure.value is None else f"{figure.value:.3f}"


def _glance(names: Sequence[str], figures: Figures, group: str) -> Table:
    rows = []
    for name in (*names, PRESERVING, BREAKING):
        keeps = name == PRESERVING or (name in PERTURBATIONS and perturbation(name).keeps_meaning)
        of = "" if keeps else group
        if f"{name}/success{of}" not in figures:
            continue
        fooled = f"{name}/flips to good" if keeps else f"{name}/stays good{of}"
        rows.append(
            (
                f"mean, {name}" if name in (PRESERVING, BREAKING) else name,
                "kept" if keeps else "broken",
                _count(figures.get(f"{name}/n{of}")),
                _score(figures.get(f"{name}/change{of}")),
                shown(figures.get(f"{name}/success{of}")),
                shown(figures.get(fooled)),
            )
        )
    return Table(
        title="What each change does to the score (shares in %; lower is better)",
        columns=("Change", "Meaning", "Solutions", "Mean change", "Attack succeeds", "Verdict fooled"),
        rows=tuple(rows),
        align=("left", "left", "right", "right", "right", "right"),
        note="Broken meaning: over the solutions that are right by their labels." if group else "",
    )


def _of_changes(
    title: str, names: Sequence[str], mean: str, figures: Figures, group: str, shares: Mapping[str, str]
) -> Table:
    """What each change did, and the mean over them where there are several.

    Args:
        title: ends in "(shares in %)".
        names: the changes.
        mean: the name of the mean over them.
        figures: all.
        group: of solutions: "" or "/right".
        shares: further figures, each with its column's title.
    """
    rows = [
        (
            name,
            _count(figures.get(f"{name}/n{group}")),
            _plain(figures.get(f"{name}/before{group}")),
            _score(figures.get(f"{name}/change{group}")),
            _plain(figures.get(f"{name}/median change{group}")),
            *(shown(figures.get(f"{name}/{share}{group}")) for share in shares),
        )
        for name in (*names, *([mean] if len(names) > 1 else []))
    ]
    return Table(
        title=title,
        columns=("Change", "Solutions", "Score before", "Mean change", "Median change", *shares.values()),
        rows=tuple(rows),
        note="The last row: unweighted mean over the changes." if len(names) > 1 else "",
    )


def _kept(names: Sequence[str], figures: Figures) -> tuple[Table | Bars, ...]:
    shares = {
        "raised": "Raised",
        "lowered": "Lowered",
        "success": "Attack success",
        "flips to good": "Flips to good",
        "false alarms": "False alarms",
    }
    title = "Changes that keep the meaning (shares in %)"
    table = _of_changes(title, names, PRESERVING, figures, "", shares)
    return table, *_bars("Change of the score; it must not rise", names, figures, ("", "/right", "/wrong"))


_SERIES = {"": "All solutions", "/right": "Right by their labels", "/wrong": "Wrong by their labels"}


def _bars(title: str, names: Sequence[str], figures: Figures, groups: Sequence[str]) -> tuple[Bars, ...]:
    """The bars, or nothing where nothing changed: an axis from 0 to 0 shows less than the table."""
    series = []
    for group in groups:
        of = [figures[f"{name}/change{group}"] for name in names]
        if all(figure.value is None for figure in of):
            continue
        series.append(
            Series(
                name=_SERIES[group],
                y=tuple(figure.value for figure in of),
                low=tuple(figure.low for figure in of),
                high=tuple(figure.high for figure in of),
            )
        )
    # With labels, "all solutions" says nothing that the two others do not.
    chosen = series[1:] if len(series) == 3 else series
    if not any(y for one in chosen for ends in (one.y, one.low or (), one.high or ()) for y in ends):
        return ()
    return (
        Bars(
            title=title,
            y_label="mean change of the score",
            labels=tuple(names),
            series=tuple(chosen),
            zero_line=True,
        ),
    )


def _broken(names: Sequence[str], figures: Figures, group: str) -> tuple[Table | Bars, ...]:
    shares = {"raised": "Raised", "success": "Does not fall", "stays good": "Stays good"}
    title = "Changes that break the meaning (shares in %)"
    table = _of_changes(title, names, BREAKING, figures, group, shares)
    bars = _bars("Change of the score; it must fall", names, figures, (group,))
    with_step = [name for name in names if f"{name}/step change" in figures]
    if not with_step:
        return table, *bars
    steps = Table(
        title="The step that became wrong (shares in %)",
        columns=(
            "Change",
            "Change of its score, all",
            "right solutions",
            "proven",
            "Error missed, all",
            "right solutions",
            "proven",
        ),
        rows=tuple(
            (
                name,
                *(_score(figures.get(f"{name}/step change{of}")) for of in ("", "/right", "/proven")),
                *(shown(figures.get(f"{name}/step missed{of}")) for of in ("", "/right", "/proven")),
            )
            for name in with_step
        ),
        note="Missed: not under the threshold now, of those not under it before. Proven: the step's calculation was true and is false "
        "now, by computation.",
    )
    return table, *bars, steps


def _list(names: Sequence[str], items: Sequence[Item]) -> Table:
    counts = Counter(item["perturbation"] for item in items)
    total = len({item["original"] for item in items})
    return Table(
        title="The changes",
        columns=("Change", "Meaning", "What it does", "Source, or what it is nearest to", "Applies to"),
        rows=tuple(
            (
                name,
                "kept" if perturbation(name).keeps_meaning else "broken",
                perturbation(name).summary,
                perturbation(name).source,
                f"{counts[name]:,} of {total:,}",
            )
            for name in names
        ),
        align=("left", "left", "left", "left", "right"),
    )


_SHOWN = 3
"""Examples of each change."""


def examples(
    sheet: Sheet, found: Sequence[Trial], items: Sequence[Item], how: Judging, names: Sequence[str]
) -> tuple[Examples, ...]:
    """A group of examples a change: the attacks that succeeded best, or one change that had no effect of this sort.

    Args:
        sheet: the scores.
        found: the trials.
        items: one a trial, in the same order.
        how: settings, filled in.
        names: the changes, in the order of the page.
    """
    by_id = {row.case.id: row for row in sheet.rows}
    groups = []
    for name in names:
        pairs = [
            (trial, item)
            for trial, item in zip(found, items, strict=True)
            if item["perturbation"] == name and item["success"] is not None
        ]
        # Of a wrong solution a rise may be what its change deserves (its error cut off), so right ones go first there.
        succeeded = [
            pair
            for pair in pairs
            if pair[1]["success"] and (pair[1]["keeps_meaning"] or pair[1]["right"] is not False)
        ]
        succeeded.sort(key=lambda pair: pair[1]["before"] - pair[1]["after"])
        chosen = succeeded[:_SHOWN] or pairs[:1]
        if chosen:
            groups.append(
                Examples(
                    title=f"{name}: {len(succeeded):,} of {len(pairs):,} attacks succeeded",
                    problems=tuple(_before_and_after(trial, item, by_id, how) for trial, item in chosen),
                    text=perturbation(name).summary,
                )
            )
    return tuple(groups)


def _before_and_after(trial: Trial, item: Item, by_id: Mapping[str, CaseScores], how: Judging) -> ProblemView:
    before, after = by_id[trial.original.id], by_id[trial.case.id]
    assert how.aggregate is not None  # filled in
    truth = {True: "right by its labels", False: "wrong by its labels", None: "no label"}[item["right"]]
    note = [f"changed: {item['note']}", f"score {item['before']:.3f} → {item['after']:.3f}"]
    question = trial.case.solution.problem.text
    if question != trial.original.solution.problem.text:
        note.append(f"question now: {question}")
    cards = [
        card(
            row,
            how=how.aggregate,
            threshold=how.threshold,
            found=first_error(row.scores, how.threshold),
            note=words,
            number=number,
        )
        for number, (row, words) in enumerate(
            ((before, f"original, {truth}"), (after, "; ".join(note))), start=1
        )
    ]
    return replace(problem(before, cards[0]), cards=tuple(cards))
