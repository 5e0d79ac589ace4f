"""Is B better than A: two results on the same data, compared by a paired bootstrap over problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepmark.catalog import Catalog
from stepmark.errors import InputError
from stepmark.metrics.intervals import Difference, paired_bootstrap
from stepmark.show.tables import Table, interval_text

STATISTICS = Catalog(
    "evaluation",
    {
        "processbench": "stepmark.evaluation.processbench:statistic",
        "best-of-n": "stepmark.evaluation.best_of_n_report:statistic",
        "robustness": "stepmark.evaluation.robustness_figures:statistic",
        "prmbench": "stepmark.evaluation.prmbench:statistic",
        "calibration": "stepmark.evaluation.calibration:statistic",
        "drift": "stepmark.evaluation.drift:statistic",
        "disagreement": "stepmark.evaluation.disagreement:statistic",
        "search": "stepmark.evaluation.search_figures:statistic",
    },
)
"""Evaluation to the function that makes its figures of its items."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two results laid side by side."""

    evaluation: str
    a: str
    """The first PRM."""
    b: str
    """The second."""
    common: int
    """Items that both have."""
    only_a: int
    """Items that only the first has; left aside."""
    only_b: int
    differences: Mapping[str, Difference]
    """Figure to its difference, b - a."""
    warnings: tuple[str, ...]


def compare(
    a: Mapping[str, Any], b: Mapping[str, Any], *, resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Compare two results (`result.read_result`) on the items that both have.

    Raises:
        InputError: of two evaluations, of one that is not in `STATISTICS`, or without a common item.
    """
    if a["evaluation"] != b["evaluation"]:
        raise InputError(
            f"expected two results of one evaluation, found {a['evaluation']!r} and {b['evaluation']!r}"
        )
    if a["evaluation"] not in STATISTICS:  # not left to `load`, which would import what a file names
        raise InputError(
            f"results of {a['evaluation']!r} cannot be compared; those of {', '.join(STATISTICS)} can"
        )
    items_a = {item["id"]: item for item in a["items"]}
    items_b = {item["id"]: item for item in b["items"]}
    ids = [id_ for id_ in items_a if id_ in items_b]
    if not ids:
        raise InputError("the two results have no item in common; were they made on the same data?")
    statistic = STATISTICS.load(a["evaluation"])
    pairs = [(items_a[id_], items_b[id_]) for id_ in ids]
    differences = paired_bootstrap(
        statistic([one for one, _ in pairs]),
        statistic([other for _, other in pairs]),
        [one["problem"] for one, _ in pairs],
        resamples=resamples,
        seed=seed,
    )
    return Comparison(
        evaluation=a["evaluation"],
        a=a["prm"],
        b=b["prm"],
        common=len(ids),
        only_a=len(items_a) - len(ids),
        only_b=len(items_b) - len(ids),
        differences=differences,
        warnings=tuple(_warnings(a, b)),
    )


def _warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    said = []
    policies = {one["name"]: one["policy"] for one in a["figures"]}
    differing = [one for one in b["figures"] if policies.get(one["name"], one["policy"]) != one["policy"]]
    if differing:
        one = differing[0]
        said.append(
            f"the thresholds differ ({one['name']}: {policies[one['name']]!r} and {one['policy']!r}): part of a difference may "
            "be theirs and not the model's"
        )
    if _hashes(a) != _hashes(b):
        said.append("the two were measured on different files; only items with the same id are compared")
    return said


def _hashes(one: Mapping[str, Any]) -> set[str]:
    return {file["sha256"] for file in one["data"]}


def table(comparison: Comparison, *, only: Sequence[str] | None = None) -> Table:
    """The differences as a table.

    Args:
        comparison: what to show.
        only: names of figures; all of them for None.
    """
    rows = []
    for name, one in comparison.differences.items():
        if only is not None and name not in only:
            continue
        rows.append(
            (
                name,
                interval_text(one.a, None, None, scale=1, digits=4),
                interval_text(one.b, None, None, scale=1, digits=4),
                interval_text(one.value, one.low, one.high, scale=1, digits=4),
                "–" if one.p is None else f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001",
            )
        )
    left = [f"{n:,} only in {who}" for n, who in ((comparison.only_a, "A"), (comparison.only_b, "B")) if n]
    return Table(
        title=f"{comparison.evaluation}: A = {comparison.a}, B = {comparison.b}; {comparison.common:,} common items"
        + (f" ({', '.join(left)})" if left else ""),
        columns=("Figure", "A", "B", "B - A", "p"),
        rows=tuple(rows),
        note="Shares are from 0 to 1; tokens and lengths as counted. In brackets: 95 % interval of the difference by paired bootstrap over problems; p: two-sided, of no difference; "
        "not corrected for the number of rows.",
    )
