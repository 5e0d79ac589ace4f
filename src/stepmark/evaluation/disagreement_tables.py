"""Tables and plots of process against outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepmark.evaluation.disagreement import CELLS, OVERALL, Part, Process, cell
from stepmark.evaluation.result import Figure, Item, shown
from stepmark.show.plots import Bars, Heat, Series
from stepmark.show.tables import Table

WORDS = {
    "right": "right for right reasons",
    "lucky": "lucky: right answer, wrong step",
    "unlucky": "unlucky: every step right, wrong answer",
    "wrong": "wrong and shown wrong",
}
"""The cells in plain words."""

Figures = Mapping[str, Figure]
"""By name."""


def _counted(items: Sequence[Item], part: Part, source: Process) -> Counter[str | None]:
    return Counter(
        cell(item[source], item["outcome"]) for item, m in zip(items, part.member, strict=True) if m
    )


def cells_table(
    groups: Sequence[Part],
    order: Sequence[Process],
    names: Mapping[Process, str],
    items: Sequence[Item],
    figures: Figures,
) -> Table:
    """Counts and shares of the four cells, a row a group and source."""
    rows = []
    for part in groups:
        for source in order:
            counts = _counted(items, part, source)
            rows.append(
                (
                    part.name,
                    names[source],
                    *(
                        f"{counts[name]:,} ({shown(figures[f'{part.name}/{source}/{name}'])})"
                        for name in CELLS
                    ),
                    f"{counts[None]:,}",
                )
            )
    return Table(
        title="The four cells: solutions (%)",
        columns=(
            "Group",
            "Steps judged by",
            *(words[0].upper() + words[1:] for words in WORDS.values()),
            "Not known",
        ),
        rows=tuple(rows),
        align=("left", "left", "right", "right", "right", "right", "right"),
        note="Shares are of the solutions whose steps and outcome are known.",
    )


def rates_table(
    groups: Sequence[Part], order: Sequence[Process], names: Mapping[Process, str], figures: Figures
) -> Table:
    """The figures that matter of each table, a row a group and source."""
    rows = []
    for part in groups:
        for source in order:
            of = {
                what: figures[f"{part.name}/{source}/{what}"]
                for what in ("lucky-of-right", "unlucky-of-wrong", "lucky-of-flawed", "agreement", "phi")
            }
            rows.append(
                (
                    part.name,
                    names[source],
                    of["phi"].policy or "–",
                    *(shown(figure) for what, figure in of.items() if what != "phi"),
                    shown(of["phi"], scale=1, digits=2),
                )
            )
    return Table(
        title="Where process and outcome part (%)",
        columns=(
            "Group",
            "Steps judged by",
            "Threshold",
            "Lucky, of right answers",
            "Unlucky, of wrong answers",
            "Lucky, of wrong steps",
            "Agreement",
            "Phi",
        ),
        rows=tuple(rows),
        align=("left", "left", "left", "right", "right", "right", "right", "right"),
        note="Lucky, of wrong steps: solutions with a wrong step that end in the right answer all the same. Agreement: steps and answer are "
        "both right or both wrong. Phi: the correlation of the two, from −1 to 1; a dash where one of them does not vary.",
    )


def heats(
    groups: Sequence[Part],
    order: Sequence[Process],
    names: Mapping[Process, str],
    items: Sequence[Item],
    figures: Figures,
) -> list[Heat]:
    """All together by each source; each group by the main source, where they are few."""
    whole = groups[-1]
    asked = [(whole, source) for source in order]
    if 1 < len(groups) <= 5:
        asked += [(part, order[0]) for part in groups[:-1]]
    found = []
    for part, source in asked:
        counts = _counted(items, part, source)
        values = {name: figures[f"{part.name}/{source}/{name}"].value for name in CELLS}
        where = "" if len(groups) == 1 else f", {'all groups' if part.name == OVERALL else part.name}"
        found.append(
            Heat(
                title=f"Process and outcome by {names[source]}{where}",
                x_label="Final answer",
                y_label="Steps",
                x_names=("right", "wrong"),
                y_names=("all right", "one wrong"),
                values=((values["right"], values["unlucky"]), (values["lucky"], values["wrong"])),
                counts=((counts["right"], counts["unlucky"]), (counts["lucky"], counts["wrong"])),
                value_range=(0.0, 1.0),
                note="Share of the solutions, and their number.",
            )
        )
    return found


def agreement_table(groups: Sequence[Part], figures: Figures) -> Table:
    """How far the PRM's cells are the labels'."""
    what = ("same-cell", "lucky-found", "lucky-confirmed", "unlucky-found", "unlucky-confirmed")
    return Table(
        title="The PRM's cells against the labels' (%)",
        columns=(
            "Group",
            "Threshold",
            "Same cell",
            "Lucky ones found",
            "Called lucky, and are",
            "Unlucky ones found",
            "Called unlucky, and are",
        ),
        rows=tuple(
            (
                part.name,
                figures[f"{part.name}/both/same-cell"].policy,
                *(shown(figures[f"{part.name}/both/{one}"]) for one in what),
            )
            for part in groups
        ),
        align=("left", "left", "right", "right", "right", "right", "right"),
        note="Of the solutions for which labels, scores and outcome are all known.",
    )


_POSSIBLE = {"right": ("right", "lucky"), "lucky": ("right", "lucky")} | dict.fromkeys(
    ("unlucky", "wrong"), ("unlucky", "wrong")
)
"""The outcome is the same for both judges."""


def confusion(items: Sequence[Item], prm: str) -> Heat:
    """The labels' cell against the PRM's."""
    counts = Counter(
        (cell(item["labels"], item["outcome"]), cell(item["scores"], item["outcome"])) for item in items
    )
    totals = {name: sum(counts[name, other] for other in CELLS) for name in CELLS}
    return Heat(
        title="The labels' cell and the PRM's",
        x_label=f"By {prm}",
        y_label="By labels",
        x_names=CELLS,
        y_names=CELLS,
        values=tuple(
            tuple(
                counts[name, other] / totals[name] if totals[name] and other in _POSSIBLE[name] else None
                for other in CELLS
            )
            for name in CELLS
        ),
        counts=tuple(tuple(counts[name, other] for other in CELLS) for name in CELLS),
        value_range=(0.0, 1.0),
        note="Each row adds up to 1. "
        + "; ".join(f"{name}: {words.partition(': ')[2] or words}" for name, words in WORDS.items())
        + ". Where the answers differ there can be none.",
    )


def writers_table(
    writers: Sequence[Part], source: Process, judged_by: str, items: Sequence[Item], figures: Figures
) -> Table:
    """The cells of every writer, by one source."""
    rows = []
    for part in writers:
        counts = _counted(items, part, source)
        rows.append(
            (
                part.name.removeprefix("by "),
                *(f"{counts[name]:,}" for name in CELLS),
                f"{counts[None]:,}",
                shown(figures[f"{part.name}/{source}/lucky-of-right"]),
                shown(figures[f"{part.name}/{source}/unlucky-of-wrong"]),
            )
        )
    return Table(
        title=f"By who wrote the solution; steps judged by {judged_by}",
        columns=(
            "Writer",
            *(name.capitalize() for name in CELLS),
            "Not known",
            "Wrong step, of right answers (%)",
            "No wrong step, of wrong answers (%)",
        ),
        rows=tuple(rows),
        note="All groups together. Few solutions each: read the differences with care.",
    )


def writers_bars(
    writers: Sequence[Part], order: Sequence[Process], names: Mapping[Process, str], figures: Figures
) -> list[Bars]:
    """Both shares of every writer, by each source; a share that is 0 throughout has no picture."""

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    found = []
    for what, title in (
        ("lucky-of-right", "A wrong step, of right answers"),
        ("unlucky-of-wrong", "No wrong step, of wrong answers"),
    ):
        series = []
        for source in order:
            of = [figures[f"{part.name}/{source}/{what}"] for part in writers]
            if any(figure.value for figure in of):
                series.append(
                    Series(
                        name=f"by {names[source]}",
                        y=tuple(percent(f.value) for f in of),
                        low=tuple(percent(f.low) for f in of),
                        high=tuple(percent(f.high) for f in of),
                    )
                )
        if series:
            found.append(
                Bars(
                    title=title,
                    y_label="%",
                    labels=tuple(part.name.removeprefix("by ") for part in writers),
                    series=tuple(series),
                )
            )
    return found


def confident_table(title: str, found: Sequence[Item]) -> Table:
    """Solutions of which scores and outcome contradict each other."""
    return Table(
        title=title,
        columns=(
            "Solution",
            "Where",
            "Written by",
            "Weakest step's score",
            "First error by scores",
            "By labels",
        ),
        rows=tuple(
            (
                item["id"],
                Path(item["where"]).name,  # of a path, FILE:LINE
                item["policy"] or "–",
                f"{item['weakest']:.4g}",
                _error_words(item["found"]),
                label_words(item),
            )
            for item in found
        ),
        align=("left", "left", "left", "right", "left", "left"),
    )


def _error_words(first: int | None) -> str:
    return "not known" if first is None else "none" if first == -1 else f"step {first + 1}"


def label_words(item: Item) -> str:
    """What the labels say of an item's steps."""
    if item["labels"] is None:
        return "not known"
    if item["labels"]:
        return "no wrong step"
    return "a wrong step" if item["label"] is None else f"step {item['label'] + 1} wrong"
