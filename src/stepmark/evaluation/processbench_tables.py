"""Tables and plots of a ProcessBench result, from its items and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from stepmark.evaluation.result import Figure, Item, shown
from stepmark.metrics.first_error import harmonic_mean
from stepmark.show.plots import Bars, Heat, Series
from stepmark.show.tables import Table


def accuracy_table(names: Sequence[str], figures: Mapping[str, Figure], items: Sequence[Item]) -> Table:
    """Error accuracy, correct accuracy and F1 of each subset, with the threshold beside them."""
    counts = Counter((item["group"], item["label"] != -1) for item in items)
    rows = []
    for name in names:
        of = ("", "") if name == "average" else (f"{counts[name, True]:,}", f"{counts[name, False]:,}")
        rows.append(
            (
                name,
                figures[f"{name}/f1"].policy,
                *of,
                shown(figures[f"{name}/error"]),
                shown(figures[f"{name}/correct"]),
                shown(figures[f"{name}/f1"]),
            )
        )
    return Table(
        title="First-error accuracy (%)",
        columns=("Subset", "Threshold", "Wrong", "Right", "Error accuracy", "Correct accuracy", "F1"),
        rows=tuple(rows),
        align=("left", "left", "right", "right", "right", "right", "right"),
        note="Average: unweighted over the subsets.",
    )


def accuracy_bars(names: Sequence[str], figures: Mapping[str, Figure]) -> Bars:
    """The same as bars."""

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    def series(what: str, label: str) -> Series:
        of = [figures[f"{name}/{what}"] for name in names]
        return Series(
            name=label,
            y=tuple(percent(f.value) for f in of),
            low=tuple(percent(f.low) for f in of),
            high=tuple(percent(f.high) for f in of),
        )

    return Bars(
        title="Finding errors and leaving right steps alone",
        y_label="%",
        labels=tuple(names),
        series=(series("error", "Error accuracy"), series("correct", "Correct accuracy"), series("f1", "F1")),
    )


_FAR = 3


def _distance(item: Item) -> str:
    if item["found"] is None:
        return "not read"
    if item["found"] == -1:
        return "none named"
    off = item["found"] - item["label"]
    if abs(off) >= _FAR:
        return f"{_FAR} or more {'early' if off < 0 else 'late'}"
    return "exact" if off == 0 else f"{abs(off)} {'early' if off < 0 else 'late'}"


_DISTANCES = (
    "3 or more early",
    "2 early",
    "1 early",
    "exact",
    "1 late",
    "2 late",
    "3 or more late",
    "none named",
    "not read",
)


def distance_table(items: Sequence[Item], groups: Sequence[str]) -> Table:
    """How far the named step lies from the first wrong one, per subset."""
    rows = []
    for group in groups:
        wrong = [_distance(item) for item in items if item["group"] == group and item["label"] != -1]
        counts = Counter(wrong)
        rows.append(
            (
                group,
                *(
                    f"{counts[name]:,} ({100 * counts[name] / max(len(wrong), 1):.0f} %)"
                    for name in _DISTANCES
                ),
            )
        )
    return Table(
        title="Distance of the named step from the first wrong one (wrong solutions)",
        columns=("Subset", *_DISTANCES),
        rows=tuple(rows),
    )


def _bucket(step: int) -> str:
    return str(step + 1) if step < 6 else "7–9" if step < 9 else "10+"


_BUCKETS = ("1", "2", "3", "4", "5", "6", "7–9", "10+")


def position_table(items: Sequence[Item]) -> Table:
    """How that goes with the position of the first wrong step."""
    rows = []
    for name in _BUCKETS:
        wrong = [item for item in items if item["label"] != -1 and _bucket(item["label"]) == name]
        if not wrong:
            continue
        kinds = Counter(
            "unread"
            if item["found"] is None
            else "none"
            if item["found"] == -1
            else "exact"
            if item["found"] == item["label"]
            else "early"
            if item["found"] < item["label"]
            else "late"
            for item in wrong
        )
        rows.append(
            (
                name,
                f"{len(wrong):,}",
                *(f"{100 * kinds[k] / len(wrong):.0f}" for k in ("exact", "early", "late", "none")),
            )
        )
    return Table(
        title="By the position of the first wrong step (%)",
        columns=("Step", "Solutions", "Exact", "Earlier", "Later", "None named"),
        rows=tuple(rows),
    )


def position_heat(items: Sequence[Item]) -> Heat:
    """The true first error against the named one."""
    columns = (*_BUCKETS, "none")
    true_names = (*_BUCKETS, "none")
    counts = Counter(
        (
            "none" if item["label"] == -1 else _bucket(item["label"]),
            "none" if item["found"] == -1 else _bucket(item["found"]),
        )
        for item in items
        if item["found"] is not None
    )
    table = tuple(tuple(counts[true, named] for named in columns) for true in true_names)
    totals = [sum(row) for row in table]
    return Heat(
        title="True first error against the named one",
        x_label="Named step",
        y_label="First wrong step",
        x_names=columns,
        y_names=true_names,
        values=tuple(
            tuple(count / total if total else None for count in row)
            for row, total in zip(table, totals, strict=True)
        ),
        counts=table,
        value_range=(0.0, 1.0),
        note="Each row adds up to 1: of the solutions whose first wrong step is there, the share in which each step is named.",
    )


def writer_table(items: Sequence[Item]) -> Table:
    """The accuracies by who wrote the solution."""
    rows = []
    for writer in sorted({item["policy"] or "" for item in items}):
        own = [item for item in items if (item["policy"] or "") == writer]
        wrong = [item for item in own if item["label"] != -1]
        right = [item for item in own if item["label"] == -1]
        hits = [sum(item["found"] == item["label"] for item in part) for part in (wrong, right)]
        accuracies = [
            hit / len(part) if part else None for hit, part in zip(hits, (wrong, right), strict=True)
        ]
        f1 = None
        if accuracies[0] is not None and accuracies[1] is not None:
            f1 = harmonic_mean(accuracies[0], accuracies[1])
        rows.append(
            (
                writer or "not named",
                f"{len(wrong):,}",
                f"{len(right):,}",
                *("–" if a is None else f"{100 * a:.1f}" for a in (*accuracies, f1)),
            )
        )
    return Table(
        title="By who wrote the solution (%; all subsets together)",
        columns=("Writer", "Wrong", "Right", "Error accuracy", "Correct accuracy", "F1"),
        rows=tuple(rows),
        note="Few solutions each: read the differences with care.",
    )
