"""What the report of process against outcome shows: tables, plots, the most confident disagreements, examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepmark.evaluation.cases import Case, Neutral, step_labels
from stepmark.evaluation.disagreement import CELLS, NAME, OVERALL, Part, Process, cell, parts_of
from stepmark.evaluation.examples import card, problem, spread
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import Policy
from stepmark.records import StepScores
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.plots import Bars, Heat, Series
from stepmark.show.tables import Table

WORDS = {
    "right": "right for right reasons",
    "lucky": "lucky: right answer, wrong step",
    "unlucky": "unlucky: every step right, wrong answer",
    "wrong": "wrong and shown wrong",
}
"""The cells in plain words."""

_MEANING = {
    "right": "Every step and the answer are right.",
    "lucky": "The answer is right although a step is wrong: errors that cancel, a guess, or a label that is wrong. An outcome reward "
    "pays for these.",
    "unlucky": "Every step is right and the answer does not match: often a wrong reference answer, a matter of format, something left "
    "out, or an error that went unseen.",
    "wrong": "A step and the answer are wrong.",
}

Figures = Mapping[str, Figure]


def report(
    *,
    cases: Sequence[Case],
    sheet: Sheet | None,
    items: Sequence[Item],
    chosen: Mapping[str, Policy],
    figures: Sequence[Figure],
    order: Sequence[Process],
    neutral: Neutral,
    show: int,
    settings: Mapping[str, Any],
    data: Sequence[Mapping[str, Any]],
    facts: Sequence[str],
) -> Result:
    """The finished result; see `disagreement.evaluate` for the arguments. `order` are the sources, the main one first."""
    by_name = {figure.name: figure for figure in figures}
    parts = parts_of(items)
    groups = [part for part in parts if not part.writer]
    names: dict[Process, str] = {
        "labels": f"labels ({_judges(cases)})",
        "scores": "scores" if sheet is None else sheet.prm,
    }
    main = order[0]
    sections = [
        Section(
            title="Process and outcome",
            text="Are all steps right, and is the final answer? The threshold stands beside every number that rests on scores.",
            items=(
                _cells_table(groups, order, names, items, by_name),
                _rates_table(groups, order, names, by_name),
                *_heats(groups, order, names, items, by_name),
            ),
        )
    ]
    if len(order) == 2:
        sections.append(
            Section(
                title="The PRM beside the labels",
                text="How often the PRM puts a solution into the cell that the labels put it in. The outcome is the same for both, so only "
                "the process can differ.",
                items=(_agreement_table(groups, by_name), _confusion(items, names["scores"])),
            )
        )
    writers = [part for part in parts if part.writer]
    if len(writers) > 1:
        sections.append(
            Section(
                title="By who wrote the solution",
                items=(
                    _writers_table(writers, main, names[main], items, by_name),
                    _bars(writers, main, by_name),
                ),
            )
        )
    examples = _Examples(cases=cases, sheet=sheet, items=items, chosen=chosen, neutral=neutral, show=show)
    if "scores" in order:
        high, low = confident(items)
        sections.append(
            Section(
                title="Most confident disagreements",
                text="Where the PRM and the outcome contradict each other most, by the score of the weakest step: candidates for wrong "
                "reference answers and wrong labels, and for what a policy could exploit.",
                items=(
                    _confident_table("Scored high, and the answer is wrong", high[:show]),
                    _confident_table("Scored low, and the answer is right", low[:show]),
                    examples.group(
                        f"Scored high, and the answer is wrong ({len(high):,})", high, spread_out=False
                    ),
                    examples.group(
                        f"Scored low, and the answer is right ({len(low):,})", low, spread_out=False
                    ),
                ),
            )
        )
    sections.append(
        Section(
            title="Examples",
            text=f"Sorted by {names[main]}.",
            items=tuple(
                examples.group(
                    f"{WORDS[name].capitalize()} ({len(found):,})",
                    found,
                    text=_MEANING[name],
                )
                for name in CELLS
                for found in [[item for item in items if cell(item[main], item["outcome"]) == name]]
            ),
        )
    )
    return Result(
        evaluation=NAME,
        title=f"Process and outcome: {'labels' if sheet is None else sheet.prm}",
        prm="labels" if sheet is None else sheet.prm,
        facts=(*_facts(cases, items, order, names, sheet), *facts, _INTERVALS),
        figures=tuple(figures),
        tiles=_tiles(groups, main, order, by_name),
        sections=tuple(sections),
        items=tuple(items),
        settings=settings,
        data=data,
    )


_INTERVALS = "In brackets: 95 % bootstrap intervals over problems; where a share is 0 or 100 %, Wilson's, because a bootstrap cannot draw what was not seen."


def _judges(cases: Iterable[Case]) -> str:
    return (
        ", ".join(dict.fromkeys(j.judge for case in cases for step in case.labelled.judgements for j in step))
        or "none"
    )


def _facts(
    cases: Sequence[Case],
    items: Sequence[Item],
    order: Sequence[Process],
    names: Mapping[Process, str],
    sheet: Sheet | None,
) -> list[str]:
    said = [
        f"{len(items):,} solutions of {len({item['problem'] for item in items}):,} problems. Process: whether every step is right; "
        "outcome: whether the final answer is."
    ]
    unknown = sum(item["outcome"] is None for item in items)
    if unknown:
        said.append(f"The outcome of {unknown:,} solutions is not known; they are in no share.")
    for source in order:
        unknown = sum(item[source] is None for item in items)
        if unknown:
            said.append(
                f"By {names[source]}, whether every step is right is not known of {unknown:,} solutions; they are in no share of it."
            )
    if sheet is not None and sheet.refused:
        said.append(
            f"{len(sheet.refused):,} solutions could not be read by the PRM, first {sheet.refused[0].case.id}: "
            f"{sheet.refused[0].refused}"
        )
    if any(j.kind == "value" for case in cases for step in case.labelled.judgements for j in step):
        said.append(
            "Labels from rollouts say whether the answer can still be reached, not whether a step is true: a step is wrong when no rollout "
            "from its end succeeded. The label of a last step is the outcome itself, so a wrong answer always has a wrong step by them."
        )
    return said


def _counted(items: Sequence[Item], part: Part, source: Process) -> Counter[str | None]:
    return Counter(
        cell(item[source], item["outcome"]) for item, m in zip(items, part.member, strict=True) if m
    )


def _cells_table(
    groups: Sequence[Part],
    order: Sequence[Process],
    names: Mapping[Process, str],
    items: Sequence[Item],
    figures: Figures,
) -> Table:
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


def _rates_table(
    groups: Sequence[Part], order: Sequence[Process], names: Mapping[Process, str], figures: Figures
) -> Table:
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


def _heats(
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


def _agreement_table(groups: Sequence[Part], figures: Figures) -> Table:
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


def _confusion(items: Sequence[Item], prm: str) -> Heat:
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


def _writers_table(
    writers: Sequence[Part], source: Process, judged_by: str, items: Sequence[Item], figures: Figures
) -> Table:
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


def _bars(writers: Sequence[Part], source: Process, figures: Figures) -> Bars:
    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    def series(what: str, label: str) -> Series:
        of = [figures[f"{part.name}/{source}/{what}"] for part in writers]
        return Series(
            name=label,
            y=tuple(percent(f.value) for f in of),
            low=tuple(percent(f.low) for f in of),
            high=tuple(percent(f.high) for f in of),
        )

    return Bars(
        title="Lucky and unlucky solutions by who wrote them",
        y_label="%",
        labels=tuple(part.name.removeprefix("by ") for part in writers),
        series=(
            series("lucky-of-right", "Wrong step, of right answers"),
            series("unlucky-of-wrong", "No wrong step, of wrong answers"),
        ),
    )


def confident(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Unlucky solutions by the scores, the highest weakest step first; and lucky ones, the lowest first."""
    unlucky = [item for item in items if cell(item["scores"], item["outcome"]) == "unlucky"]
    lucky = [item for item in items if cell(item["scores"], item["outcome"]) == "lucky"]
    return (
        sorted(unlucky, key=lambda item: -item["weakest"]),
        sorted(lucky, key=lambda item: item["weakest"]),
    )


def _confident_table(title: str, found: Sequence[Item]) -> Table:
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
                item["where"],
                item["policy"] or "–",
                f"{item['weakest']:.4g}",
                _error_words(item["found"]),
                _label_words(item),
            )
            for item in found
        ),
        align=("left", "left", "left", "right", "left", "left"),
    )


def _error_words(first: int | None) -> str:
    return "not known" if first is None else "none" if first == -1 else f"step {first + 1}"


def _label_words(item: Item) -> str:
    if item["labels"] is None:
        return "not known"
    if item["labels"]:
        return "no wrong step"
    return "a wrong step" if item["label"] is None else f"step {item['label'] + 1} wrong"


class _Examples:
    """Groups of example cards, graded where there are scores and else with the labels on the steps."""

    def __init__(
        self,
        *,
        cases: Sequence[Case],
        sheet: Sheet | None,
        items: Sequence[Item],
        chosen: Mapping[str, Policy],
        neutral: Neutral,
        show: int,
    ) -> None:
        self._rows = {
            case.id: row
            for case, row in zip(
                cases,
                [_labelled(case, neutral) for case in cases] if sheet is None else sheet.rows,
                strict=True,
            )
        }
        self._how = "labels" if sheet is None else sheet.aggregate or "min"
        self._graded = sheet is not None
        self._chosen = chosen
        self._show = show

    def group(
        self, title: str, found: Sequence[Item], *, text: str = "", spread_out: bool = True
    ) -> Examples:
        """Cards of some of the items: spread over them, or the first ones."""
        by_id = {item["id"]: item for item in found}
        rows = [self._rows[item["id"]] for item in found]
        kept = spread(rows, self._show) if spread_out else rows[: self._show]
        shown_of = f"{len(kept):,} of {len(found):,}."
        if not self._graded:
            shown_of += " The numbers on the steps are the labels: 1 right, 0 wrong, between them a share; a step without one was not judged."
        return Examples(
            title=title,
            problems=tuple(problem(row, self._card(row, by_id[row.case.id])) for row in kept),
            text=" ".join(part for part in (text, shown_of) if part),
        )

    def _card(self, row: CaseScores, item: Item) -> Any:
        outcome = {True: "right answer", False: "wrong answer", None: "outcome not known"}[item["outcome"]]
        threshold = self._chosen[row.case.group].threshold if self._graded else None
        return card(
            row,
            how=self._how,
            threshold=threshold,
            found=item["found"] if self._graded else item["label"],
            note=f"{outcome}; labels: {_label_words(item)}",
        )


def _labelled(case: Case, neutral: Neutral) -> CaseScores:
    return CaseScores(
        case=case, steps=StepScores(scores=step_labels(case.labelled, neutral), kind="probability")
    )


def _tiles(
    groups: Sequence[Part], main: Process, order: Sequence[Process], figures: Figures
) -> tuple[Tile, ...]:
    whole = groups[-1].name
    named = groups if len(groups) <= 5 else groups[-1:]
    tiles = [
        _tile(f"Wrong step in right answers, {part.name}", figures[f"{part.name}/{main}/lucky-of-right"])
        for part in named
    ]
    tiles.append(
        _tile(f"No wrong step in wrong answers, {whole}", figures[f"{whole}/{main}/unlucky-of-wrong"])
    )
    if len(order) == 2:
        tiles.append(_tile("PRM's cell is the labels'", figures[f"{whole}/both/same-cell"]))
    return tuple(tiles)


def _tile(label: str, figure: Figure) -> Tile:
    interval = (
        ""
        if figure.low is None or figure.high is None
        else f"{100 * figure.low:.1f} to {100 * figure.high:.1f}"
    )
    threshold = f"threshold {figure.policy}" if figure.policy else ""
    return Tile(
        label=label,
        value="–" if figure.value is None else f"{100 * figure.value:.1f} %",
        detail="; ".join(part for part in (interval, threshold) if part),
    )
