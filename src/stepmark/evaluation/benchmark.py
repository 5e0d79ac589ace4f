"""The evaluator of step benchmarks: published sets in which people labelled the steps of solutions.

A benchmark is a file in `benchmarks/` that says what it is (title, paper, licence, files, columns) and which figures it gives. Most name
one of the metrics that several sets share: `FirstErrors`, `Blame`, `PRMScore`. The names and summaries of all benchmarks are read from
that folder, so that a new one is one file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from stepmark.data.labelled import read_labelled
from stepmark.data.reading import Row, Source, read_rows
from stepmark.errors import InputError, UsageError
from stepmark.evaluation.base import INTERVALS, Evaluation, Run, counted
from stepmark.evaluation.cases import Case, any_success, first_error, unique
from stepmark.evaluation.result import EvaluationResult, Figure, Item, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import ThresholdRule, check_asked, policies
from stepmark.evaluation.views import (
    Column,
    bars_of,
    card,
    examples_of,
    problem,
    table_of,
    tiles_of,
    unreadable,
)
from stepmark.metrics.first_error import first_wrong
from stepmark.metrics.intervals import Floats, Statistic, of_parts
from stepmark.records import DEFAULT_AXIS, Judgement, LabelledSolution, Solution, Step
from stepmark.report.evaluation import Examples, Report, Section
from stepmark.report.tables import Align, Table
from stepmark.settings import settings
from stepmark.verifiers.checks import check_names
from stepmark.words import amount

Ratings = tuple[int | None, ...]
"""One a step: -1 wrong, 0 neutral, 1 right, None for none."""


@dataclass(frozen=True, slots=True)
class Published:
    """One model's published numbers."""

    model: str
    numbers: tuple[float | None, ...]
    """In the order of the table's columns; None where none was published."""
    policy: str
    """The threshold policy; "critic" for language models that are asked for the step."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTable:
    """A table of published numbers."""

    title: str
    columns: tuple[str, ...]
    figures: tuple[str, ...]
    """Our figures in the order of the columns; "*" stands for the last group."""
    rows: tuple[Published, ...]
    note: str = ""

    @classmethod
    def read(cls, title: str, columns: Mapping[str, str], rows: str, *, note: str = "") -> PublishedTable:
        """A table of lines "model | numbers | policy | source", a dash for a number that was not published.

        Args:
            title: of the table.
            columns: heading of each number to our figure.
            rows: the lines.
            note: a sentence under the table.
        """
        listed = []
        for line in filter(None, map(str.strip, rows.splitlines())):
            model, numbers, policy, source = (part.strip() for part in line.split(" | "))
            values = tuple(None if number == "-" else float(number) for number in numbers.split())
            listed.append(Published(model, values, policy, source))
        return cls(
            title=title,
            columns=tuple(columns),
            figures=tuple(columns.values()),
            rows=tuple(listed),
            note=note,
        )


@settings
class Benchmark(Evaluation, ABC):
    """What all step benchmarks share. Abstract: a subclass reads `cases`, makes an `item` of each, and measures one group (`one`)."""

    title: ClassVar[str] = ""
    question: ClassVar[str] = ""
    """What it asks of a PRM, for the table of benchmarks."""
    paper: ClassVar[str] = ""
    home: ClassVar[str] = ""
    """Where its files are, unless "hub" downloads them from `dataset`."""
    licence: ClassVar[str] = ""
    """Of its data; "" where nobody has looked it up."""
    shown: ClassVar[Mapping[str, str]] = {}
    """Column of the main table to figure; the headline first."""
    headlines: ClassVar[int] = 2
    """How many of them are tiles."""
    overall: ClassVar[Literal["average", "all"]] = "all"
    """The row of all groups: the unweighted average of theirs, or the figures of all items together."""
    published: ClassVar[PublishedTable | None] = None
    note: ClassVar[str] = ""
    about: ClassVar[str] = ""
    """A sentence that a reader needs to read the figures correctly."""

    @abstractmethod
    def cases(self, file: Source, run: Run) -> Iterator[Case]:
        """The cases of a file."""

    @abstractmethod
    def one(self, items: Sequence[Item]) -> Statistic:
        """The figures of one group."""

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        return unique(case for file in run.data for case in self.cases(file, run))

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """The figures of each group as GROUP/FIGURE, and of all groups, as functions of the items' weights."""
        groups = places(items)
        several = len(groups) > 1
        parts = groups | ({"all": list(range(len(items)))} if several and self.overall == "all" else {})
        compute = of_parts({name: (at, self.one([items[i] for i in at])) for name, at in parts.items()})
        if not several or self.overall == "all":
            return compute
        first = next(iter(groups))

        def figures(weights: Floats) -> Mapping[str, Floats]:
            result = dict(compute(weights))
            whats = [name.removeprefix(f"{first}/") for name in result if name.startswith(f"{first}/")]
            for what in whats:
                result[f"average/{what}"] = np.mean([result[f"{name}/{what}"] for name in groups], axis=0)
            return result

        return figures

    def rows_of(self, items: Sequence[Item]) -> list[str]:
        """The rows of the main table: the groups, and the row of all."""
        groups = list(dict.fromkeys(item["group"] for item in items))
        return [*groups, *([self.overall] if len(groups) > 1 else [])]

    def label_of(self, name: str) -> str:
        """What the main table calls a row."""
        return name

    def columns(self, items: Sequence[Item]) -> Mapping[str, Column]:
        """Columns of the main table before the figures."""
        del items
        return {}

    def facts(self, items: Sequence[Item], sheet: Sheet | None) -> list[str]:
        """Sentences about what was measured and what was left out."""
        return [
            f"{counted(items)}. {self.about}".strip(),
            *(unreadable(sheet) if sheet is not None else []),
        ]

    def examples(
        self, sheet: Sheet, items: Sequence[Item], chosen: Mapping[str, ThresholdRule]
    ) -> tuple[Examples, ...]:
        """Cards of solutions. Default: none."""
        del sheet, items, chosen
        return ()

    def verdict(self, figures: Mapping[str, Figure], last: str) -> str:
        """The answer in one sentence. Default: the headlines."""
        heads = list(self.shown.items())[: self.headlines]
        return ", ".join(f"{title} {shown(figures[f'{last}/{what}'])} %" for title, what in heads) + "."

    def finished(
        self,
        items: Sequence[Item],
        run: Run,
        name: str,
        sheet: Sheet | None = None,
        chosen: Mapping[str, ThresholdRule] | None = None,
    ) -> EvaluationResult:
        """The result of items.

        `sheet` is None where labels were measured.
        """
        words = {group: policy.words for group, policy in (chosen or {}).items()}
        words.setdefault(self.overall, "; ".join(dict.fromkeys(words.values())))
        figures = run.figures(items, self.statistic(items), words)
        names, head = self.rows_of(items), next(iter(self.shown.values()))
        columns: dict[str, Column] = dict(self.columns(items))
        columns |= {title: "{}/" + what for title, what in self.shown.items()}
        if chosen:
            columns = {
                "Threshold": (
                    "text",
                    lambda name: figures[f"{name}/{head}"].policy if f"{name}/{head}" in figures else "",
                ),
                **columns,
            }
        heads = list(self.shown.items())[: self.headlines]
        tiles = names if len(names) * len(heads) <= _TILES else names[-1:]
        report = Report(
            title=f"{self.title}: {name}{self._beside()}",
            verdict=self.verdict(figures, names[-1]),
            facts=(*self.facts(items, sheet), INTERVALS, *([_TUNING] if chosen else [])),
            tiles=tiles_of(
                figures, {f"{title}, {of}": f"{of}/{what}" for of in tiles for title, what in heads}
            ),
            sections=(
                Section(
                    title="Figures",
                    items=(
                        table_of(
                            f"{self.title} (%)",
                            "Part",
                            names,
                            columns,
                            figures,
                            label=self.label_of,
                            note=self._note(),
                        ),
                        bars_of(
                            self.title,
                            figures,
                            names,
                            {t: "{}/" + what for t, what in list(self.shown.items())[:4]},
                        ),
                    ),
                ),
                Section(title="Published results", items=self._published(name, figures, names[-1])),
                Section(
                    title="Examples", items=() if sheet is None else self.examples(sheet, items, chosen or {})
                ),
            ),
        )
        return run.result(
            self, report, figures, items, prm=name, identity=None if sheet is None else sheet.identity
        )

    def _beside(self) -> str:
        checks = getattr(self, "checks", "none")
        return "" if checks == "none" else f" with the exact checks {checks}"

    def _note(self) -> str:
        return self.note or ("Average: unweighted over the parts." if self.overall == "average" else "")

    def _published(self, name: str, figures: Mapping[str, Figure], last: str) -> tuple[Table, ...]:
        if self.published is None:
            return ()
        own = [figures.get(entry.replace("*", last)) for entry in self.published.figures]
        if None in own:  # an average over other parts is another figure
            own = [
                None if entry.startswith("average/") else of
                for entry, of in zip(self.published.figures, own, strict=True)
            ]
        return (published_table(self.published, name, own),)


_TILES = 6
_TUNING = "Compare figures only where the threshold was chosen in the same way; intervals do not include the uncertainty of its tuning."


@settings
class Rated(Benchmark, ABC):
    """Benchmarks in which each step is rated: by a PRM's scores and a threshold, or by a file of labels.

    A step without a rating counts as wrongly rated, and a first error behind such a step as not found.
    """

    threshold: str | None = None
    """A step whose score is under it is wrong: a number, argmax, tuned:GROUP (the best F1 of first errors on that group, used on all), or oracle (the best of each group on itself: a bound, not a result). Default: the PRM's own."""
    labels: str | None = None
    """A file of labels (`stepmark label`, or predictions in the benchmark's own shape), measured instead of a PRM's; joined by the texts."""

    def item(self, case: Case, ratings: Ratings, scores: Sequence[float | None]) -> Item:
        """The item of a case: how its steps are rated, and their scores (empty where labels are measured)."""
        del scores
        return {
            "id": case.id,
            "problem": case.problem,
            "group": case.group,
            "truth": list(ratings_of(case.labelled)),
            "named": list(ratings),
        }

    def predicted(self, row: Row, cases: Mapping[str, Case]) -> tuple[str, Ratings] | None:
        """The case's id and the ratings that a row of predictions in the benchmark's own shape holds; None for another row."""
        del row, cases
        return None

    def ratings_of(self, labelled: LabelledSolution) -> Ratings:
        """The ratings that a file of labels gives."""
        return ratings_of(labelled)

    def check(self, run: Run) -> None:
        """See `Evaluation.check`."""
        if self.labels is not None and (run.scores is not None or self.threshold is not None):
            raise UsageError("`labels` rates the steps: leave out `scores` and `threshold`")

    def asks_prm(self, run: Run) -> bool:
        """See `Evaluation.asks_prm`."""
        return run.scores is None and self.labels is None

    def read(self, run: Run) -> Sequence[Case]:
        """See `Evaluation.read`."""
        cases = unique(case for file in run.data for case in self.cases(file, run))
        check_asked(self.threshold, list(dict.fromkeys(case.group for case in cases)))
        return cases

    def measure(self, run: Run) -> EvaluationResult:
        """See `Evaluation.measure`."""
        cases = run.take(self.read(run))
        if self.labels is None:
            return self.of_sheet(run.grade(cases), run)
        ratings = self._labelled(run, cases)
        return self.finished([self.item(case, ratings[case.id], ()) for case in cases], run, "labels")

    def of_sheet(self, sheet: Sheet, run: Run) -> EvaluationResult:
        """The result of graded solutions."""
        chosen = self.policies(sheet)
        items = [
            self.item(row.case, chosen[row.case.group].ratings(row) if chosen else (), row.scores)
            for row in sheet.rows
        ]
        return self.finished(items, run, sheet.prm, sheet, chosen)

    def policies(self, sheet: Sheet) -> dict[str, ThresholdRule]:
        """The threshold policy of each group; none where scores are read without a threshold."""
        truth = {row.case.id: first_error(row.case.labelled) for row in sheet.rows}
        return policies(self.threshold, sheet, sheet.groups, truth)

    def places(self, item: Item) -> tuple[int | None, int | None]:
        """The true step of an item and the one that is named, 0-based; -1 for none, None where no step could be named."""
        return first_wrong(item["truth"]), first_wrong(item["named"])

    def truth_in_words(self, item: Item) -> str:
        """For the examples."""
        step = self.places(item)[0]
        return (
            "truth: no wrong step" if step == -1 else f"truth: step {(step or 0) + 1} is the first wrong one"
        )

    def kind_of(self, item: Item) -> str:
        """The sort of example that an item is."""
        true, named = self.places(item)
        return "The step is named" if true == named else "Another step is named"

    def facts(self, items: Sequence[Item], sheet: Sheet | None) -> list[str]:
        """See `Benchmark.facts`."""
        unrated = sum(item["named"].count(None) for item in items if isinstance(item.get("named"), list))
        said = f"{amount(unrated, 'step has', 'steps have')} no rating: counted as rated wrongly."
        return [*Benchmark.facts(self, items, sheet), *([said] if unrated else [])]

    def examples(
        self, sheet: Sheet, items: Sequence[Item], chosen: Mapping[str, ThresholdRule]
    ) -> tuple[Examples, ...]:
        """See `Benchmark.examples`."""
        sorts: dict[str, list[tuple[CaseScores, Item]]] = {}
        for row, item in zip(sheet.rows, items, strict=True):
            sorts.setdefault(self.kind_of(item), []).append((row, item))

        def show(pair: tuple[CaseScores, Item]) -> Any:
            row, item = pair
            policy, named = chosen.get(row.case.group), self.places(item)[1]
            note, checks = self.truth_in_words(item), check_names(getattr(self, "checks", "none"))
            return problem(row, card(row, sheet, note, policy=policy, first_error=named, checks=checks))

        return examples_of(sorts, show)

    def _labelled(self, run: Run, cases: Sequence[Case]) -> Mapping[str, Ratings]:
        assert self.labels is not None
        source, by_id = run.add_input(self.labels), {case.id: case for case in cases}
        result = dict(filter(None, (self.predicted(row, by_id) for row in read_rows(source))))
        if not result:
            result = _joined(source, cases, self.ratings_of, run.axis or DEFAULT_AXIS)
        missing = [case.id for case in cases if case.id not in result]
        if missing:
            raise InputError(
                f"expected labels of every solution, found none of {missing[0]!r} ({len(missing):,} of {len(cases):,} are missing)",
                where=self.labels,
            )
        return result


def places(items: Sequence[Item]) -> dict[str, list[int]]:
    """Where the items of each group stand."""
    groups: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        groups.setdefault(item["group"], []).append(at)
    return groups


def _joined(
    source: Source, cases: Sequence[Case], of: Callable[[LabelledSolution], Ratings], axis: str
) -> dict[str, Ratings]:
    """What a file of labels says of the cases that it has, by their ids; joined by the texts of problem and steps."""

    def key(solution: Solution) -> tuple[str, tuple[str, ...]]:
        return solution.problem.text, solution.texts

    labelled = {key(row.solution): row.labelled.on_axis(axis) for row in read_labelled(source)}
    return {case.id: of(labelled[key(case.solution)]) for case in cases if key(case.solution) in labelled}


def rated(
    solution: Solution, ratings: Sequence[int | None], places: Sequence[str] | None = None
) -> LabelledSolution:
    """A solution with the annotators' ratings of its steps; `places` says where each stands in its source."""
    return LabelledSolution(
        solution=solution,
        judgements=tuple(
            ()
            if rating is None
            else (
                Judgement(
                    kind="correctness",
                    judge="human",
                    rating=rating,  # type: ignore[arg-type]
                    note=None if places is None else places[at],
                ),
            )
            for at, rating in enumerate(ratings)
        ),
    )


def ratings_of(labelled: LabelledSolution) -> Ratings:
    """Each step's rating: the nearest to the mean of its ratings; without any, wrong where no rollout succeeds."""
    results: list[int | None] = []
    for judgements in labelled.judgements:
        given = [j.rating for j in judgements if j.rating is not None]
        if given:
            results.append(round(sum(given) / len(given)))
        else:
            results.append({True: 1, False: -1, None: None}[any_success(judgements, labelled.solution.id)])
    return tuple(results)


def ratings_to(first: int | None, steps: int) -> Ratings:
    """Ratings that name a first error: right before it, wrong at it, none after; -1 for none, None where it is not known."""
    if first is None or first == -1:
        return (None if first is None else 1,) * steps
    return (*(1,) * first, -1, *(None,) * (steps - first - 1))


def text_of(row: Row, column: str) -> str:
    """A text or a number in a column, as a text."""
    text = row.data.get(column)
    if not isinstance(text, str | int) or not str(text).strip():
        raise row.error(f"expected a text, found {text!r:.80}", column)
    return str(text)


def steps_of(row: Row, column: str) -> tuple[Step, ...]:
    """The list of texts in a column as steps. A blank one is kept as "(nothing)", for labels count it."""
    texts = row.data.get(column)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise row.error(f"expected a list of steps, found {texts!r:.80}", column)
    return tuple(Step(text=text.strip() or "(nothing)") for text in texts)


def published_table(table: PublishedTable, model: str = "", figures: Sequence[Figure | None] = ()) -> Table:
    """The rows as a table of strings, with that of the model under test in its place, pointed out.

    `table` holds what was published, by falling last number; `figures` are the shares of the model under test in the order of its columns, None for what was not measured.
    """
    right: list[Align] = ["right"] * len(table.columns)
    rows, marked = list(table.rows), None
    known = [figure for figure in figures if figure is not None and figure.value is not None]
    if known:
        own = [None if figure is None or figure.value is None else 100 * figure.value for figure in figures]
        own += [None] * (len(table.columns) - len(own))
        # By the last column; by the first that is known where the last is not.
        by = next(at for at in (-1, *range(len(own))) if own[at] is not None)
        marked = sum((row.numbers[by] or 0.0) > (own[by] or 0.0) for row in rows)
        policy = known[0].policy.partition(",")[0] or "–"
        rows.insert(marked, Published(model=model, numbers=tuple(own), policy=policy, source="this run"))
    return Table(
        title=table.title,
        columns=("Model", *table.columns, "Threshold", "Source"),
        rows=tuple(
            (row.model, *("–" if n is None else f"{n:.1f}" for n in row.numbers), row.policy, row.source)
            for row in rows
        ),
        marked=marked,
        note=table.note,
        align=("left", *right, "left", "left"),
    )
