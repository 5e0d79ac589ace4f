"""What reports are made of: tables, bars and tiles of figures by name, and cards of example solutions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, TypeVar

from stepmark.evaluation.result import Figure, shown
from stepmark.evaluation.scores import CaseScores, Sheet
from stepmark.evaluation.thresholds import ThresholdRule
from stepmark.metrics.aggregate import aggregate, allowed
from stepmark.metrics.first_error import found_error
from stepmark.records import StepScores
from stepmark.report import colour
from stepmark.report.evaluation import Examples, Tile
from stepmark.report.page import CardView, ProblemView
from stepmark.report.plots import Bars, Series
from stepmark.report.tables import ABSENT, Table
from stepmark.scoring.report import step_views
from stepmark.verifiers.checks import CheckName, check
from stepmark.words import amount

Figures = Mapping[str, Figure]
"""By name."""
Value = Figure | float | str | None
"""Of a cell: a figure is shown with its interval; None is not known."""
Cell = Callable[[str], Value]
"""The value of a table's cell, of the name of its row."""
Kind = Literal["text", "count", "share", "points", "coefficient", "number", "change", "mean"]
"""What the numbers of a column are. Shares and points are in percent; points and changes are differences, with a star where the interval
leaves 0 out."""
Column = str | Cell | tuple[Kind, str | Cell]
"""Cells of a table: what they are and where they are from, the name of a figure with {} for that of the row, or a function. Alone, a name is
of a share and a function gives a count."""

_WRITTEN: dict[Kind, tuple[float, int]] = {
    "text": (1, 0), "count": (1, 0), "share": (100, 1), "points": (100, 1), "coefficient": (1, 2), "number": (1, 3), "change": (1, 3),
    "mean": (1, 1),
}  # fmt: skip
"""Scale and decimals."""

SHOWN = 6
"""Default number of examples of each sort."""

T = TypeVar("T")


def written(value: Value, kind: Kind = "share") -> str:
    """A value as tables and sentences have it."""
    if isinstance(value, str):
        return value
    scale, digits = _WRITTEN[kind]
    if value is None or isinstance(value, float | int):
        return ABSENT if value is None else f"{scale * value:,.{digits}f}"
    sure = value.low is not None and value.high is not None and not value.low <= 0 <= value.high
    return shown(value, scale=scale, digits=digits) + (" *" if sure and kind in ("points", "change") else "")


def table_of(
    title: str,
    first: str,
    names: Sequence[str],
    columns: Mapping[str, Column],
    figures: Figures,
    *,
    label: Callable[[str], str] = str,
    note: str = "",
) -> Table:
    """A table with a row for each name.

    `columns` maps headings to cells; `label` is what the first column (`first`) shows of a name.
    """
    parts: list[tuple[Kind, str | Cell]] = [
        column if isinstance(column, tuple) else ("share" if isinstance(column, str) else "count", column)
        for column in columns.values()
    ]

    def text(name: str, kind: Kind, source: str | Cell) -> str:
        return written(figures.get(source.format(name)) if isinstance(source, str) else source(name), kind)

    return Table(
        title=title,
        columns=(first, *columns),
        rows=tuple((label(name), *(text(name, *part) for part in parts)) for name in names),
        note=note,
        align=("left", *("left" if kind == "text" else "right" for kind, _ in parts)),
    )


def value_of(figures: Figures, pattern: str) -> Cell:
    """Cells of a figure without its interval, by its name with {} for that of the row."""
    return lambda name: None if (figure := figures.get(pattern.format(name))) is None else figure.value


def series_of(
    name: str, figures: Sequence[Figure | None], *, scale: float = 100, x: tuple[str, ...] = ()
) -> Series:
    """Figures with their intervals as a series of a plot."""

    def scaled(values: list[float | None]) -> tuple[float | None, ...]:
        return tuple(None if value is None else scale * value for value in values)

    return Series(
        name=name,
        x=x,
        y=scaled([None if figure is None else figure.value for figure in figures]),
        low=scaled([None if figure is None else figure.low for figure in figures]),
        high=scaled([None if figure is None else figure.high for figure in figures]),
    )


def bars_of(title: str, figures: Figures, names: Sequence[str], patterns: Mapping[str, str]) -> Bars:
    """Shares in percent as bars.

    `patterns` maps the name of a series to that of its figures, with {} for the group.
    """
    return Bars(
        title=title,
        y_label="%",
        labels=tuple(names),
        series=tuple(
            series_of(label, [figures.get(pattern.format(name)) for name in names])
            for label, pattern in patterns.items()
        ),
    )


def tile(label: str, figure: Figure, *, kind: Kind = "share", detail: str = "") -> Tile:
    """A figure, with its interval, its threshold policy and a detail beside it."""
    value, _, interval = written(figure, kind).partition(" ")
    policy = f"threshold {figure.policy}" if figure.policy else ""
    return Tile(label=label, value=value, detail="; ".join(filter(None, (interval, policy, detail))))


def tiles_of(figures: Figures, labels: Mapping[str, str | tuple[Kind, str]]) -> list[Tile]:
    """Tiles of those figures that are defined; `labels` says what stands above a figure, and its name (of a share), or its kind and name."""
    parts: dict[str, tuple[Kind, str]] = {
        label: ("share", of) if isinstance(of, str) else of for label, of in labels.items()
    }
    return [
        tile(label, figure, kind=kind)
        for label, (kind, name) in parts.items()
        if (figure := figures.get(name)) is not None and figure.value is not None
    ]


def spread(values: Sequence[T], count: int = SHOWN) -> list[T]:
    """At most `count` values, evenly spaced over all of them, so that no one corner of the data is shown alone."""
    if len(values) <= count:
        return list(values)
    return [values[at * len(values) // count] for at in range(count)]


def examples_of(
    sorts: Mapping[str, Sequence[T]], show: Callable[[T], ProblemView], *, count: int = SHOWN, text: str = ""
) -> tuple[Examples, ...]:
    """A folded group of examples for each sort that has any, spread over the data."""
    return tuple(
        Examples(
            title=f"{title} ({len(of):,})",
            problems=tuple(map(show, spread(of, count))),
            text=f"{text} {count:,} of {len(of):,}.".strip() if len(of) > count else text,
        )
        for title, of in sorts.items()
        if of
    )


def card(
    row: CaseScores,
    sheet: Sheet | None,
    note: str,
    *,
    how: str | None = None,
    policy: ThresholdRule | None = None,
    first_error: int | None = None,
    number: int = 1,
    checks: Collection[CheckName] = (),
) -> CardView:
    """A case as a card.

    `sheet` is None where labels are shown instead of scores, and `note` says the truth in words. By default the score is the PRM's own aggregate, and
    the first error (0-based, -1 for none) what the policy, else the PRM's own threshold, says. A step that `checks` refute is red, whatever its score.
    """
    solution, proofs = row.case.solution, dict[int, tuple[str, ...]]()
    for finding in check(solution.problem.text, solution.texts, names=checks) if checks else ():
        proofs[finding.step] = (*proofs.get(finding.step, ()), str(finding))
    steps = row.steps or StepScores(scores=row.scores, kind="unbounded")
    how = how or ("labels" if sheet is None else sheet.aggregate or "min")
    threshold = policy.threshold if policy is not None else None if sheet is None else sheet.threshold
    if first_error is None and policy is not None:
        first_error = policy.found(row)
    elif first_error is None and threshold is not None:
        first_error = found_error(row.scores, threshold)
    read = steps.scores[-1:] if how == "last" else steps.scores
    score = (
        aggregate(steps.scores, how, kind=steps.kind)
        if None not in read and how in allowed(steps.kind)
        else None
    )
    return CardView(
        number=number,
        title=row.case.id,
        note=" · ".join(part for part in (row.case.policy, note) if part),
        kind=steps.kind,
        threshold=threshold,
        score=score,
        aggregate=how,
        place=colour.aggregate_position(score, how, steps.kind, threshold),
        aggregates=(),
        first_error=first_error,
        steps=step_views(solution, steps, proofs),
    )


def problem(row: CaseScores, *cards: CardView) -> ProblemView:
    """The row's problem with these cards."""
    about = row.case.solution.problem
    answer = None if about.answer is None else f"reference answer {about.answer}"
    return ProblemView(
        number=cards[0].number,
        text=about.text,
        note=" · ".join(part for part in (row.case.group, about.id, answer) if part),
        cards=cards,
    )


def unreadable(sheet: Sheet, consequence: str = "") -> list[str]:
    """The sentence about the solutions that the PRM could not read, with the reason for the first; none where it read all."""
    if not sheet.refused:
        return []
    first = sheet.refused[0]
    what = f"{amount(len(sheet.refused), 'solution')} could not be read {consequence}".strip()
    return [f"{what}, first {first.case.id}: {first.refused}"]
