"""Process against outcome: the evaluation, its tables, plots and examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.evaluation.cases import Case, Neutral, first_error, step_labels
from stepmark.evaluation.disagreement_items import (
    CELLS,
    OVERALL,
    Part,
    Process,
    cell,
    items_of,
    parts_of,
    sources_of,
    statistic,
    threshold_words,
    widened,
)
from stepmark.evaluation.evaluation import Evaluation, Run, Views
from stepmark.evaluation.examples import card, problem, spread
from stepmark.evaluation.result import Figure, Item, Result, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.sources import read_cases, read_openr
from stepmark.evaluation.thresholds import Policy, policies
from stepmark.metrics.intervals import Statistic
from stepmark.models.lazy import Lazy
from stepmark.records import StepScores
from stepmark.settings import settings
from stepmark.show.evaluation import Examples, Section, Tile
from stepmark.show.plots import Bars, Heat, Series
from stepmark.show.tables import Table
from stepmark.show.views import CardView

_MEANING = {
    "right": "Every step and the answer are right.",
    "lucky": "The answer is right although a step is wrong: errors that cancel, a guess, or a label that is wrong. An outcome reward "
    "pays for these.",
    "unlucky": "Every step is right and the answer does not match: often a wrong reference answer, a matter of format, something left "
    "out, or an error that went unseen.",
    "wrong": "A step and the answer are wrong.",
}


WORDS = {
    "right": "right for right reasons",
    "lucky": "lucky: right answer, wrong step",
    "unlucky": "unlucky: every step right, wrong answer",
    "wrong": "wrong and shown wrong",
}
"""The cells in plain words."""

Figures = Mapping[str, Figure]
"""By name."""


@settings
class Disagreement(Evaluation):
    """How often a right answer rests on a wrong step, and right steps end in a wrong answer, with intervals.

    The data are labelled solutions with outcomes: ProcessBench, candidates, Math-Shepherd, openr's rollout trees.
    """

    name: ClassVar[str] = "disagreement"
    process: Process = "labels"
    """What says whether the steps are right: the data's labels, or a PRM's scores. The other is shown beside it where there is one: with labels, the PRM of `scores`, or a PRM other than the default."""
    threshold: str | None = None
    """A step whose score is under it is an error: a number, argmax, tuned:GROUP (the best on that group's labels), or oracle. Default: the PRM's own."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """Rollouts behind each share of an openr tree, which its files do not say. Default: of a share only whether any rollout succeeded is used."""
    show: Annotated[int, Field(ge=1)] = 6
    """Examples of each cell, and rows of each list of confident disagreements."""
    neutral: Neutral = "positive"
    """What the neutral class of a three-class PRM, and a neutral human rating, count as."""

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and self._graded(run)

    def _graded(self, run: Run) -> bool:
        default = isinstance(run.prm, Lazy) and run.prm.name == "default"
        return self.process == "scores" or run.scores is not None or not (run.prm is None or default)

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        if self.trials is None:
            return read_cases(run.data, columns=run.columns)
        return read_openr(run.data, trials=self.trials, columns=run.columns)

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """See `statistic`."""
        return statistic(items)

    def measure(self, run: Run) -> Result:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        return self.of_cases(cases, run, run.grade(cases) if self._graded(run) else None)

    def of_cases(self, cases: Sequence[Case], run: Run, sheet: Sheet | None = None) -> Result:
        """The 2x2 of process and outcome, by labels, by scores, or by both side by side.

        Args:
            cases: solutions of which at least some have an outcome.
            run: the run.
            sheet: their scores, in the same order.

        Raises:
            UsageError: no case has an outcome, or `process` says nothing of any step; a threshold that cannot be applied.
        """
        if self.threshold is not None and sheet is None:
            raise UsageError(
                f"`threshold` {self.threshold} is for a PRM's scores, and there are none; name a file (`scores`), a PRM (`prm`), or let the "
                "default one judge the steps (`process` scores)"
            )
        if all(case.outcome is None for case in cases):
            raise UsageError(
                "no case of this data says whether its final answer is right; expected data with outcomes (ProcessBench, candidates, "
                "Math-Shepherd)"
            )
        chosen: dict[str, Policy] = {}
        if sheet is not None:
            truth = {case.id: first_error(case.labelled, self.neutral) for case in cases}
            chosen = policies(self.threshold, sheet, sheet.groups, truth)
        items = items_of(cases, sheet, chosen, neutral=self.neutral)
        present = sources_of(items)
        if self.process not in present:
            raise UsageError(
                "no solution of this data has all its steps judged; take a PRM's scores: `process` scores"
                if self.process == "labels"
                else "there are no scores that say whether the steps are right; name a PRM or a file: `prm` or `scores`"
            )
        figures = widened(run.figures(items, statistic(items), threshold_words(items, chosen)), items)
        order = (self.process, *(source for source in present if source != self.process))
        prm = "labels" if sheet is None else sheet.prm
        views = self._views(cases, sheet, items, chosen, figures, order)
        identity = None if sheet is None else sheet.identity
        return run.result(self, views, figures, items, prm=prm, identity=identity)

    def _views(
        self,
        cases: Sequence[Case],
        sheet: Sheet | None,
        items: Sequence[Item],
        chosen: Mapping[str, Policy],
        by_name: Figures,
        order: Sequence[Process],
    ) -> Views:
        """What the report shows; `order` are the sources, the main one first."""
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
                    cells_table(groups, order, names, items, by_name),
                    rates_table(groups, order, names, by_name),
                    *heats(groups, order, names, items, by_name),
                ),
            )
        ]
        if len(order) == 2:
            sections.append(
                Section(
                    title="The PRM beside the labels",
                    text="How often the PRM puts a solution into the cell that the labels put it in. The outcome is the same for both, so only "
                    "the process can differ.",
                    items=(agreement_table(groups, by_name), confusion(items, names["scores"])),
                )
            )
        writers = [part for part in parts if part.writer]
        if len(writers) > 1:
            sections.append(
                Section(
                    title="By who wrote the solution",
                    items=(
                        writers_table(writers, main, names[main], items, by_name),
                        *writers_bars(writers, order, names, by_name),
                    ),
                )
            )
        examples = ExampleCards(
            cases=cases, sheet=sheet, items=items, chosen=chosen, neutral=self.neutral, show=self.show
        )
        if "scores" in order:
            high, low = confident(items)
            sections.append(
                Section(
                    title="Most confident disagreements",
                    text="Where the PRM and the outcome contradict each other most, by the score of the weakest step: candidates for wrong "
                    "reference answers and wrong labels, and for what a policy could exploit.",
                    items=(
                        confident_table("Scored high, and the answer is wrong", high[: self.show]),
                        confident_table("Scored low, and the answer is right", low[: self.show]),
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
        return Views(
            title=f"Process and outcome: {'labels' if sheet is None else sheet.prm}",
            facts=_facts(cases, items, order, names, sheet),
            remarks=(_INTERVALS,),
            tiles=_tiles(groups, main, order, by_name),
            sections=sections,
        )


_INTERVALS = "In brackets: 95 % bootstrap intervals over problems; where a share is 0 or 100 %, Wilson's, because a bootstrap cannot draw what was not seen."


def _judges(cases: Iterable[Case]) -> str:
    return (
        ", ".join(dict.fromkeys(j.judge for case in cases for step in case.labelled.judgements for j in step))
        or "none"
    )


def _solutions(count: int) -> str:
    return f"{count:,} solution{'' if count == 1 else 's'}"


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
        said.append(f"The outcome is not known of {_solutions(unknown)}, which count in no share.")
    for source in order:
        unknown = sum(item[source] is None for item in items)
        if unknown:
            said.append(
                f"By {names[source]}, whether every step is right is not known of {_solutions(unknown)}, which count in none of its shares."
            )
    if sheet is not None and sheet.refused:
        said.append(
            f"The PRM could not read {_solutions(len(sheet.refused))}, first {sheet.refused[0].case.id}: "
            f"{sheet.refused[0].refused}"
        )
    if "scores" in order:
        said.append(
            "By a PRM, what is called lucky can be its false alarm, and what is called unlucky an error that it missed."
        )
    if any(j.kind == "value" for case in cases for step in case.labelled.judgements for j in step):
        said.append(
            "Labels from rollouts say whether the answer can still be reached, not whether a step is true: a step is wrong when no rollout "
            "from its end succeeded. The label of a last step is the outcome itself, so a wrong answer always has a wrong step by them."
        )
    return said


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


def confident(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Unlucky solutions by the scores, the highest weakest step first; and lucky ones, the lowest first."""
    unlucky = [item for item in items if cell(item["scores"], item["outcome"]) == "unlucky"]
    lucky = [item for item in items if cell(item["scores"], item["outcome"]) == "lucky"]
    return (
        sorted(unlucky, key=lambda item: -item["weakest"]),
        sorted(lucky, key=lambda item: item["weakest"]),
    )


class ExampleCards:
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

    def _card(self, row: CaseScores, item: Item) -> CardView:
        outcome = {True: "right answer", False: "wrong answer", None: "outcome not known"}[item["outcome"]]
        threshold = self._chosen[row.case.group].threshold if self._graded else None
        return card(
            row,
            how=self._how,
            threshold=threshold,
            found=item["found"] if self._graded else item["label"],
            note=f"{outcome}; labels: {label_words(item)}",
        )


def _labelled(case: Case, neutral: Neutral) -> CaseScores:
    return CaseScores(
        case=case, steps=StepScores(scores=step_labels(case.labelled, neutral), kind="probability")
    )
