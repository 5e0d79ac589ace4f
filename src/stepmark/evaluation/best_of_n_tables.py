"""Best-of-N as tables and plots: from items and intervals to what a reader sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepmark.evaluation.best_of_n import method_names, summary, vote_refusal
from stepmark.evaluation.length_bias import CORRECTNESS, MEASURES
from stepmark.evaluation.result import Figure
from stepmark.metrics.aggregate import AGGREGATES
from stepmark.metrics.intervals import Interval
from stepmark.records import ScoreKind
from stepmark.show.plots import Lines, Series
from stepmark.show.tables import ABSENT, Align, Table, interval_text

Rows = Sequence[Mapping[str, Any]]
Found = Figure | Interval
Figures = Mapping[str, Found]


def percent(figure: Found | None) -> str:
    """A share as "81.2 [79.3, 83.0]", in percent."""
    return words(figure, scale=100.0, digits=1)


def words(figure: Found | None, *, scale: float = 1.0, digits: int = 2) -> str:
    """A figure and its interval; a dash where there is none."""
    if figure is None:
        return ABSENT
    return interval_text(figure.value, figure.low, figure.high, scale=scale, digits=digits)


def _right(columns: int) -> tuple[Align, ...]:
    right: Align = "right"
    return (right,) * columns


def _sizes(rows: Rows) -> list[int]:
    return [int(n) for n in rows[0]["sizes"]]


def accuracy_table(rows: Rows, figures: Figures) -> Table:
    """Accuracy of every method at every N, and its selection gap and its lead over the majority vote at the largest."""
    sizes = _sizes(rows)
    most = sizes[-1]
    body = []
    for method in method_names(rows):
        once = method in {"single", "greedy"}
        body.append(
            (
                method,
                *(
                    percent(figures.get(f"accuracy/{method}/{n}")) if not once or n == 1 else ABSENT
                    for n in ([1, *sizes] if 1 not in sizes else sizes)
                ),
                words(figures.get(f"over majority/{method}/{most}"), scale=100, digits=1),
                percent(figures.get(f"gap/{method}/{most}")) if method != "oracle" else ABSENT,
            )
        )
    shown = [1, *sizes] if 1 not in sizes else sizes
    return Table(
        title="Accuracy by method and N, %",
        columns=(
            "Method",
            *(f"N = {n}" for n in shown),
            f"Over majority, N = {most}",
            f"Gap to the oracle, N = {most}",
        ),
        rows=tuple(body),
        note="Expectations over all subsets of N of a problem's candidates. " + coverage(rows),
    )


def coverage(rows: Rows) -> str:
    """What was counted and what was not, in one sentence."""
    told = summary(rows)
    said = [
        f"{told['counted']} of {told['problems']} problems have at least {_sizes(rows)[-1]} candidates and count",
        f"{told['candidates']} candidates",
    ]
    if told["with greedy"]:
        said.append(f"greedy: {told['with greedy']} problems")
    if told["unknown correctness"]:
        said.append(
            f"correctness unknown for {told['unknown correctness']}: left out where one of them is chosen"
        )
    if told["no answer"]:
        said.append(f"{told['no answer']} without an answer never vote")
    unscored = sorted({count for count in told["no score"].values() if count})
    if unscored:
        span = f"{unscored[0]}" if len(unscored) == 1 else f"{unscored[0]} to {unscored[-1]}, by aggregate,"
        said.append(f"{span} without a score cannot be chosen by it")
    if told["mixed groups"]:
        said.append(f"{told['mixed groups']} answer groups hold right and wrong candidates")
    drawn = [f"N = {n}: {used['most']}" for n, used in told["subsets"].items() if not used["exact"]]
    said.append(
        f"votes on random subsets ({', '.join(drawn)} a problem)"
        if drawn
        else "all subsets of each size counted"
    )
    return "; ".join(said) + "."


def price_table(rows: Rows, figures: Figures) -> Table | None:
    """Expected tokens a problem by N, the policy's and the graders' apart; None when nobody counted any."""
    readers = [
        (name, who)
        for name, who in (("Policy", "policy"), ("PRM", "prm"), ("Outcome model", "outcome"))
        if any(f"tokens/{who}/{n}" in figures for n in _sizes(rows))
    ]
    if not readers:
        return None
    known = summary(rows)["problems with tokens"]
    return Table(
        title="Tokens a problem",
        columns=("N", *(name for name, _ in readers)),
        rows=tuple(
            (str(n), *(words(figures.get(f"tokens/{who}/{n}"), digits=0) for _, who in readers))
            for n in _sizes(rows)
        ),
        note="Means over the problems whose candidates all have a count: "
        + ", ".join(f"{name} {known[who]}" for name, who in readers)
        + ". A choice by PRM or a weighted vote pays policy and PRM; a majority vote only the policy.",
        align=_right(1 + len(readers)),
    )


def undecided_table(rows: Rows, figures: Figures) -> Table | None:
    """Shares of choices of unknown correctness, and of subsets in which nothing can be chosen; None when all are 0."""
    sizes = _sizes(rows)
    same: dict[tuple[str, ...], list[str]] = {}  # methods with equal rows share one
    for what, name in (("unknown", "correctness unknown"), ("nothing", "nothing to choose")):
        for method in method_names(rows):
            cells = [figures.get(f"{what}/{method}/{n}") for n in sizes]
            if any(cell is not None for cell in cells):
                row = (name, *(percent(cell) if cell else "0.0" for cell in cells))
                same.setdefault(row, []).append(method)
    body = [(", ".join(methods), *row) for row, methods in same.items()]
    if not body:
        return None
    return Table(
        title="Choices that could not be judged, or not be made, %",
        columns=("Method", "What", *(f"N = {n}" for n in sizes)),
        rows=tuple(body),
        align=("left", "left", *_right(len(sizes))),
        note="Unknown ones are left out of the accuracy; where nothing can be chosen, the choice is wrong.",
    )


def length_table(figures: Figures) -> Table:
    """Rank correlation of score and length, and how long the chosen solution is, by aggregate."""
    hows = [*AGGREGATES, "orm", CORRECTNESS]
    measures = [m for m in MEASURES if f"length/{m}/all" in figures]
    body = []
    for measure in measures:
        for how in hows:
            cells = [
                figures.get(f"length/{measure}/spearman/{how}"),
                figures.get(f"length/{measure}/chosen less all/{how}"),
                figures.get(f"length/{measure}/chosen less right/{how}"),
            ]
            if any(cells):
                name = "(correctness itself)" if how == CORRECTNESS else how
                body.append(
                    (
                        measure,
                        name,
                        words(cells[0]),
                        words(cells[1], digits=1),
                        words(cells[2], digits=1),
                    )
                )
    last, chance = figures.get("lowest step is last"), figures.get("lowest step is last, by chance")
    note = "Within each problem, averaged over problems; a dash where scores or lengths never differ."
    if last is not None:
        note += (
            f" The lowest step is the last in {percent(last)} % of solutions, {percent(chance)} % by chance."
        )
    return Table(
        title="Length bias",
        columns=(
            "Length in",
            "Score",
            "Rank correlation",
            "Chosen less mean",
            "Chosen less mean right one",
        ),
        rows=tuple(body),
        note=note,
        align=("left", "left", "right", "right", "right"),
    )


def policy_table(figures: Figures, aggregate: str) -> Table | None:
    """Each policy: its candidates, accuracy, mean score and AUC of the score; None when no policy is named.

    Args:
        figures: intervals of `policy_statistic`.
        aggregate: whose score is shown.
    """
    names = [name.removesuffix("/accuracy") for name in figures if name.endswith("/accuracy")]
    if not names:
        return None

    def value(policy: str) -> float:
        found = figures[f"{policy}/accuracy"].value
        return -1.0 if found is None else found

    return Table(
        title=f"By policy ({aggregate})",
        columns=("Policy", "Candidates", "Accuracy, %", "Mean score", "AUC within the policy"),
        rows=tuple(
            (
                policy,
                words(Interval(value=figures[f"{policy}/candidates"].value, low=None, high=None), digits=0),
                percent(figures[f"{policy}/accuracy"]),
                words(figures.get(f"{policy}/score/{aggregate}"), digits=3),
                words(figures.get(f"{policy}/auc/{aggregate}"), digits=3),
            )
            for policy in sorted(names, key=lambda name: (-value(name), name))
        ),
        note="AUC: how often a right candidate scores above a wrong one of the same policy.",
    )


def readers_of(method: str) -> tuple[str, ...]:
    """Whose tokens a method pays: names of `tokens/WHO/N`."""
    if method == "greedy":
        return ("greedy",)
    if method == "best orm":
        return ("policy", "outcome")
    return ("policy", "prm") if method.startswith(("best ", "vote ")) else ("policy",)


def price_plot(rows: Rows, figures: Figures, aggregate: str) -> Lines:
    """Accuracy against the tokens that each method pays in all, with bands; against N where they were not counted.

    Args:
        rows: the items.
        figures: intervals of `statistic`.
        aggregate: whose choice and weighted vote are drawn: the PRM's own, named before looking at the accuracy. All
            aggregates are in `aggregate_plot`.
    """
    methods = [
        method
        for method in method_names(rows)
        if method
        in {"greedy", "single", "majority", f"best {aggregate}", "best orm", f"vote {aggregate}", "oracle"}
    ]
    counted = [method for method in methods if _is_counted(rows, figures, method)]
    in_tokens = "single" in counted
    left_out = [method for method in methods if method not in counted]
    drawn = [
        _series(rows, figures, method, in_tokens=in_tokens) for method in (counted if in_tokens else methods)
    ]
    note = "" if not left_out else f"Tokens were not counted for: {', '.join(left_out)}."
    return Lines(
        title="Accuracy against " + ("tokens" if in_tokens else "N"),
        x_label="Tokens a problem: policy and graders" if in_tokens else "N",
        y_label="Accuracy, %",
        series=tuple(one for one in drawn if one.y),
        log_x=True,
        note=note,
    )


def _tokens(figures: Figures, method: str, n: int) -> float | None:
    """What the method pays in all; None where a part of it was not counted."""
    found = [figures.get(f"tokens/{who}/{n}") for who in readers_of(method)]
    values = [one.value for one in found if one is not None and one.value is not None]
    return sum(values) if len(values) == len(found) and sum(values) > 0 else None


def _sizes_of(rows: Rows, method: str) -> list[int]:
    return [1] if method in {"single", "greedy"} else _sizes(rows)


def _is_counted(rows: Rows, figures: Figures, method: str) -> bool:
    return all(_tokens(figures, method, n) is not None for n in _sizes_of(rows, method))


def aggregate_plot(rows: Rows, figures: Figures) -> Lines | None:
    """Accuracy of the best by each aggregate against N; None without step scores."""
    methods = [m for m in method_names(rows) if m.startswith("best ") and m != "best orm"]
    if not methods:
        return None
    return Lines(
        title="Best of N by aggregate",
        x_label="N",
        y_label="Accuracy, %",
        # Without bands: seven of them over each other hide the lines.
        series=tuple(
            replace(_series(rows, figures, method, in_tokens=False), low=None, high=None)
            for method in methods
        ),
        log_x=True,
        note="Intervals are in the table. Choosing the aggregate by this plot and reporting its accuracy from the same data flatters it.",
    )


def _series(rows: Rows, figures: Figures, method: str, *, in_tokens: bool) -> Series:
    cells = [(n, figures.get(f"accuracy/{method}/{n}")) for n in _sizes_of(rows, method)]
    known = [(n, cell) for n, cell in cells if cell is not None and cell.value is not None]

    def x(n: int) -> float:
        paid = _tokens(figures, method, n) if in_tokens else None
        return float(n) if paid is None else paid

    def scaled(value: float | None) -> float | None:
        return None if value is None else 100.0 * value

    return Series(
        name=method,
        x=tuple(x(n) for n, _ in known),
        y=tuple(scaled(cell.value) for _, cell in known),
        low=tuple(scaled(cell.low) for _, cell in known),
        high=tuple(scaled(cell.high) for _, cell in known),
    )


def refused_votes(kind: ScoreKind | None, names: Sequence[str] = AGGREGATES) -> tuple[str, ...]:
    """Sentences that say which weighted votes are left out, and why."""
    if kind is None:
        return ()
    if kind != "probability":
        return (f"No weighted votes: {vote_refusal(names[0], kind)}.",)
    return tuple(
        f"No vote weighted by {how}: {why}." for how in names if (why := vote_refusal(how, kind)) is not None
    )
