"""The plots and tables of a run's page, from its evaluations and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.metrics.intervals import Interval
from stepmark.rl.hacking import PROBES
from stepmark.rl.watched import CELLS, LEVELS, Cell, Watch, Watched
from stepmark.show.evaluation import Item
from stepmark.show.plots import Lines, Mark, Series
from stepmark.show.tables import ABSENT, Table, interval_text

X = "update"
_POINTS = 200
_WORDS = {
    "both": "steps good, answer right",
    "slipped": "steps good, answer wrong",
    "lucky": "a bad step, answer right",
    "neither": "a bad step, answer wrong",
}
_PROBES = {
    "empty": "a step that says nothing",
    "irrelevant": "another problem's steps",
    "repeated": "the first step six times",
    "shuffled": "the steps in another order",
}


def overview(rows: Sequence[Watched], watch: Watch) -> list[Item]:
    """Accuracy, the return, what it promises, and the sum that the alarm is drawn from."""
    accuracy = _series("accuracy, verified", rows, [row.accuracy for row in rows])
    returns = [_line("PRM return, mean step", rows, "step_return")] if _any(rows, "step_return") else []
    whole = [_line("PRM return, solution", rows, "solution_return")] if _any(rows, "solution_return") else []
    marks = _marks(rows)
    plots: list[Item] = []
    if rows[-1].kind == "probability":
        plots.append(
            Lines(
                title="Accuracy and PRM return",
                x_label=X,
                y_label="share, mean score",
                series=(accuracy, *returns, *whole),
                y_range=(0, 1),
                marks=marks,
            )
        )
    else:
        plots.append(
            Lines(
                title="Accuracy",
                x_label=X,
                y_label="share",
                series=(accuracy,),
                y_range=(0, 1),
                marks=marks,
            )
        )
        if returns or whole:
            plots.append(
                Lines(
                    title="PRM return",
                    x_label=X,
                    y_label="mean score",
                    series=(*returns, *whole),
                    marks=marks,
                )
            )
    if _any(rows, "promised"):
        plots.append(
            _plot(
                "Accuracy, promised and found",
                rows,
                (accuracy, _line("promised by the PRM's scores", rows, "promised")),
                "share",
                share=True,
                note="Promised: what the scores stood for at the PRM's first evaluation.",
            )
        )
    if _any(rows, "cusum"):
        limit = watch.cusum.alarm_above
        plots.append(
            Lines(
                title="Promise less outcome, and its sum",
                x_label=X,
                y_label="standard errors",
                series=(
                    Series(name="CUSUM", x=_x(rows), y=tuple(row.cusum for row in rows)),
                    Series(name="gap", x=_x(rows), y=tuple(row.gap for row in rows)),
                    Series(name=f"alarm over {limit:g}", x=_x(rows), y=(limit,) * len(rows)),
                ),
                marks=marks,
                note=f"Of each evaluation's gap, {watch.cusum.slack:g} is taken for noise.",
            )
        )
    return plots


def judgement(rows: Sequence[Watched]) -> list[Item]:
    """How well the PRM tells right from wrong."""
    plots: list[Item] = []
    if _any(rows, "auc"):
        plots.append(_plot("AUC", rows, (_line("", rows, "auc"),), "AUC", share=True))
    calibration = [_line(name, rows, key) for name, key in (("Brier", "brier"), ("ECE", "ece"))]
    calibration = [series for series in calibration if any(y is not None for y in series.y)]
    if calibration:
        plots.append(_plot("Calibration error", rows, tuple(calibration), "error, lower is better"))
    if any(row.wrong_quantiles for row in rows):
        plots.append(
            _plot(
                "Scores of wrong answers",
                rows,
                tuple(
                    Series(
                        name=f"{level:.0%}",
                        x=_x(rows),
                        y=tuple(row.wrong_quantiles[at] if row.wrong_quantiles else None for row in rows),
                    )
                    for at, level in enumerate(LEVELS)
                ),
                "weakest step's score",
                note="Quantiles; a line that rises is wrong answers gaining score.",
            )
        )
    return plots


def crossed(rows: Sequence[Watched]) -> list[Item]:
    """The 2x2 of process and outcome over time."""
    if all(row.quadrants is None for row in rows):
        return []
    shares = {
        cell: [
            None if row.quadrants is None else row.quadrants.share(getattr(row.quadrants, cell))
            for row in rows
        ]
        for cell in CELLS
    }
    order: tuple[Cell, ...] = ("slipped", "both", "lucky", "neither")
    plot = _plot(
        "Share of solutions",
        rows,
        tuple(_series(_WORDS[cell], rows, shares[cell]) for cell in order),
        "share",
        share=True,
    )
    table = Table(
        title="Counts and shares (%)",
        columns=("Update", *(_WORDS[cell].capitalize() for cell in CELLS), "Agree (%)"),
        rows=tuple(
            (
                f"{row.update:,}",
                *(
                    f"{getattr(row.quadrants, cell):,} · {_bracket(shares[cell][at], 100)}"
                    if row.quadrants
                    else ABSENT
                    for cell in CELLS
                ),
                _bracket(row.quadrants.agreement, 100) if row.quadrants else ABSENT,
            )
            for at, row in enumerate(rows)
        ),
        note=f"Threshold {rows[-1].threshold:g}." if rows[-1].threshold is not None else "",
    )
    return [plot, table]


def probes(rows: Sequence[Watched]) -> list[Item]:
    """The scores of null probes."""
    if not any(probed.count for row in rows for probed in row.probes.values()):
        return []
    genuine = [row.solution_return for row in rows]
    plots: list[Item] = [
        _plot(
            "Mean score",
            rows,
            (
                _series("real solutions", rows, genuine),
                *(
                    _series(
                        kind, rows, [row.probes[kind].score if kind in row.probes else None for row in rows]
                    )
                    for kind in PROBES
                ),
            ),
            "score of the solution",
        )
    ]
    last = rows[-1]
    plots.append(
        Table(
            title=f"After update {last.update:,}",
            columns=("Probe", "Scored", "Mean score", "Without a bad step (%)", "Above its original (%)"),
            rows=tuple(
                (
                    f"{kind}: {_PROBES[kind]}",
                    f"{one.count:,}" + (f" ({one.refused:,} unreadable)" if one.refused else ""),
                    _bracket(one.score, 1),
                    _bracket(one.passed, 100),
                    _bracket(one.above, 100),
                )
                for kind, one in last.probes.items()
            ),
        )
    )
    return plots


def written(rows: Sequence[Watched]) -> list[Item]:
    """What the solutions are like."""
    plots: list[Item] = [
        _plot("Steps a solution", rows, (_line("", rows, "steps"),), "steps"),
        _plot(
            "Tokens",
            rows,
            (_line("a solution", rows, "tokens"), _line("a step", rows, "tokens_a_step")),
            "tokens",
        ),
        _plot(
            "Repetition and failures",
            rows,
            (
                _line("four words said before", rows, "repetition"),
                *(
                    _line(name, rows, key)
                    for name, key in (
                        ("cut off", "cut"),
                        ("blank", "blank"),
                        ("no answer found", "unparsed"),
                        ("PRM cannot read", "unscored"),
                    )
                    if _any(rows, key)
                ),
            ),
            "share",
            share=True,
        ),
    ]
    if _any(rows, "divergence"):
        plots.append(
            _plot(
                "Divergence from the starting policy", rows, (_line("", rows, "divergence"),), "nats a token"
            )
        )
    return plots


def learning(history: Sequence[Mapping[str, Any]]) -> list[Item]:
    """The curves of training itself."""
    if not history:
        return []
    plots: list[Item] = []
    for title, y_label, names in (
        ("Samples of training", "share, mean score", ("accuracy", "reward", "flat")),
        ("Gradient", "norm before clipping", ("gradient",)),
        ("Loss", "policy loss", ("loss",)),
        ("Implicit PRM", "cross-entropy", ("implicit_loss",)),
    ):
        known = [name for name in names if any(row.get(name) is not None for row in history)]
        if known:
            plots.append(
                Lines(
                    title=title,
                    x_label=X,
                    y_label=y_label,
                    series=tuple(_smooth(history, name, named=len(names) > 1) for name in known),
                    note="flat: groups all right or all wrong, which teach nothing by the outcome."
                    if "flat" in known
                    else "",
                )
            )
    return plots


def _smooth(history: Sequence[Mapping[str, Any]], name: str, *, named: bool) -> Series:
    each = max(1, -(-len(history) // _POINTS))
    xs, ys = [], []
    for at in range(0, len(history), each):
        some = history[at : at + each]
        known = [row[name] for row in some if row.get(name) is not None]
        xs.append(float(some[-1]["update"]))
        ys.append(sum(known) / len(known) if known else None)
    return Series(name=name if named else "", x=tuple(xs), y=tuple(ys))


def _plot(
    title: str,
    rows: Sequence[Watched],
    series: tuple[Series, ...],
    y_label: str,
    *,
    share: bool = False,
    note: str = "",
) -> Lines:
    return Lines(
        title=title,
        x_label=X,
        y_label=y_label,
        series=series,
        y_range=(0, 1) if share else None,
        marks=_marks(rows),
        note=note,
    )


def _marks(rows: Sequence[Watched]) -> tuple[Mark, ...]:
    alarmed = rows[-1].alarmed
    found = () if alarmed is None else (Mark(x=float(alarmed), name="alarm"),)
    return (*found, *(Mark(x=float(row.update), name="new PRM") for row in rows if row.rebased))


def _any(rows: Sequence[Watched], name: str) -> bool:
    return any(getattr(row, name) is not None for row in rows)


def _x(rows: Sequence[Watched]) -> tuple[float, ...]:
    return tuple(float(row.update) for row in rows)


def _line(name: str, rows: Sequence[Watched], key: str) -> Series:
    return _series(name, rows, [getattr(row, key) for row in rows])


def _series(name: str, rows: Sequence[Watched], values: Sequence[Interval | None]) -> Series:
    return Series(
        name=name,
        x=_x(rows),
        y=tuple(None if one is None else one.value for one in values),
        low=tuple(None if one is None else one.low for one in values),
        high=tuple(None if one is None else one.high for one in values),
    )


def _bracket(one: Interval | None, scale: float) -> str:
    if one is None:
        return ABSENT
    return interval_text(one.value, one.low, one.high, scale, 1 if scale == 100 else 3)
