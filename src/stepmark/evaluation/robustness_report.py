"""A robustness evaluation as a `Result`: tables, bars with intervals, and the changed solutions beside the originals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.errors import UsageError
from stepmark.evaluation.perturbations import PERTURBATIONS, perturbation
from stepmark.evaluation.result import Figure, Item, Result, measured, shown
from stepmark.evaluation.robustness import Robustness, Trial, items_of
from stepmark.evaluation.robustness_examples import examples
from stepmark.evaluation.robustness_figures import BREAKING, PRESERVING, statistic
from stepmark.evaluation.scores import Sheet
from stepmark.show.evaluation import Section, Tile
from stepmark.show.plots import Bars, Series
from stepmark.show.tables import Table

NAME = "robustness"

Figures = Mapping[str, Figure]


def evaluate(
    sheet: Sheet,
    found: Sequence[Trial],
    how: Robustness | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    data: Sequence[Mapping[str, Any]] = (),
    facts: Sequence[str] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """What controlled changes do to the scores of a PRM.

    Args:
        sheet: scores of `robustness.to_grade(found)`.
        found: the changes, as `robustness.trials` makes them.
        how: aggregate, threshold and margin; what is None in it is filled in from the sheet.
        settings: what the scores were made with: perturbations, their seed.
        data: the files' names and hashes.
        facts: more sentences for the top of the report.
        resamples: of the bootstrap over problems.
        seed: of the bootstrap.

    Raises:
        UsageError: no trials, a case without scores, or settings that do not fit the scores.
    """
    if not found:
        raise UsageError("there is nothing to compare: no perturbation applies to any solution")
    how = (how or Robustness()).of(sheet)
    items = items_of(found, sheet, how)
    threshold = "no threshold" if how.threshold is None else f"threshold {how.threshold:g}"
    policy = f"{how.aggregate}, {threshold}, margin {how.margin:g}"
    measured_figures = measured(
        items, statistic(items), policies={"": policy}, resamples=resamples, seed=seed
    )
    figures = {figure.name: figure for figure in measured_figures}
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
        sections.append(
            Section(
                title="Changes that break the meaning",
                text=_BROKEN.format(
                    of="the solutions that are right by their labels" if group else "all solutions"
                ),
                items=_broken(broken, figures, group),
            )
        )
    sections.append(Section(title="What each change does", items=(_list(names, items),)))
    sections.append(
        Section(title="Examples", text=_EXAMPLES, items=examples(sheet, found, items, how, names))
    )
    return Result(
        evaluation=NAME,
        title=f"Robustness: {sheet.prm}",
        prm=sheet.prm,
        facts=(*_facts(items, how), *facts),
        figures=measured_figures,
        tiles=_tiles(figures, group, names),
        sections=tuple(sections),
        items=tuple(items),
        settings={
            **(settings or {}),
            "aggregate": how.aggregate,
            "threshold": how.threshold,
            "margin": how.margin,
        },
        data=data,
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


def _facts(items: Sequence[Item], how: Robustness) -> list[str]:
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
    said.append("In brackets: 95 % bootstrap intervals over problems.")
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
