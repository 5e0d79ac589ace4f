"""Is B better than A: two results on the same data, compared by a paired bootstrap over problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stepmark.errors import InputError
from stepmark.evaluation.base import EVALUATIONS, Evaluation, load_evaluation
from stepmark.evaluation.result import EvaluationResult, Item, read_result
from stepmark.metrics.intervals import Difference, Statistic, paired_bootstrap
from stepmark.report.tables import Table, interval_text, printed, table_html, terminal
from stepmark.settings import checked
from stepmark.words import amount


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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

    def table(self, *, only: Sequence[str] | None = None) -> str:
        """The differences as text; `only` names figures, all of them for None."""
        return printed(terminal(table(self, only=only)))

    def __str__(self) -> str:
        return "\n".join([self.table(), *(f"note: {warning}" for warning in self.warnings)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return table_html(table(self))


@checked
def compare(
    a: EvaluationResult | str | Path,
    b: EvaluationResult | str | Path,
    *,
    method: str | Evaluation | None = None,
    resamples: Annotated[int, Field(ge=100)] = 2000,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Comparison:
    """Test the difference of two results on the same data by a paired bootstrap over problems.

    Args:
        a: the result of the first PRM, or its result.json, or the folder of that.
        b: that of the second.
        method: the evaluation, where files hold results of your own one: it, or "package.module:Class". Default: by its name in the file.
        resamples: bootstrap resamples.
        seed: seed of the resamples.

    Raises:
        InputError: results of two evaluations, of one that is not known, or without a common item.
    """
    first, second = _body(a), _body(b)
    if first["evaluation"] != second["evaluation"]:
        raise InputError(
            f"expected two results of one evaluation, found {first['evaluation']!r} and {second['evaluation']!r}"
        )
    items_a = {item["id"]: item for item in first["items"]}
    items_b = {item["id"]: item for item in second["items"]}
    ids = [id_ for id_ in items_a if id_ in items_b]
    if not ids:
        raise InputError("the two results have no item in common; were they made on the same data?")
    statistic = _statistic(a, b, first["evaluation"], first["settings"], method)
    pairs = [(items_a[id_], items_b[id_]) for id_ in ids]
    differences = paired_bootstrap(
        statistic([entry for entry, _ in pairs]),
        statistic([other for _, other in pairs]),
        [entry["problem"] for entry, _ in pairs],
        resamples=resamples,
        seed=seed,
    )
    return Comparison(
        evaluation=first["evaluation"],
        a=first["prm"],
        b=second["prm"],
        common=len(ids),
        only_a=len(items_a) - len(ids),
        only_b=len(items_b) - len(ids),
        differences=differences,
        warnings=tuple(_warnings(first, second)),
    )


def _body(result: EvaluationResult | str | Path) -> Mapping[str, Any]:
    """A result as its file has it."""
    if not isinstance(result, EvaluationResult):
        return read_result(result)
    return {
        "evaluation": result.evaluation,
        "prm": result.prm,
        "items": result.items,
        "figures": [asdict(figure) for figure in result.figures.values()],
        "data": result.data,
        "settings": result.settings,
    }


def _statistic(
    a: EvaluationResult | str | Path,
    b: EvaluationResult | str | Path,
    name: str,
    settings: Mapping[str, Any],
    method: str | Evaluation | None,
) -> Callable[[Sequence[Item]], Statistic]:
    if method is not None:
        return load_evaluation(method)[0].statistic
    for result in (a, b):
        if isinstance(result, EvaluationResult) and result.statistic is not None:
            return result.statistic
    if name not in EVALUATIONS:  # never imported by a name that stands in a file
        raise InputError(
            f"how results of {name!r} are made is not known: give `method`, your class; known are {', '.join(EVALUATIONS)}"
        )
    kind = EVALUATIONS.load(name)
    # What it cannot be made without, and choices by name, on which some figures depend, such as how predictions are counted.
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    names = [field.name for field in fields(kind) if field.name in settings]
    made: Evaluation = kind(
        **{name: settings[name] for name in names if name in needed or isinstance(settings[name], str)}
    )
    return made.statistic


def _warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    warnings = []
    policies = {item["name"]: item["policy"] for item in a["figures"]}
    differing = [
        item for item in b["figures"] if policies.get(item["name"], item["policy"]) != item["policy"]
    ]
    if differing:
        item = differing[0]
        warnings.append(
            f"the thresholds differ ({item['name']}: {policies[item['name']]!r} and {item['policy']!r}): part of a difference may "
            "be theirs and not the model's"
        )
    if _hashes(a) != _hashes(b):
        warnings.append("the two were measured on different files; only items with the same id are compared")
    return warnings


def _hashes(result: Mapping[str, Any]) -> set[str]:
    return {file["sha256"] for file in result["data"]}


def table(comparison: Comparison, *, only: Sequence[str] | None = None) -> Table:
    """The differences as a table."""
    rows = []
    for name, item in comparison.differences.items():
        if only is not None and name not in only:
            continue
        rows.append(
            (
                name,
                interval_text(item.a, None, None, scale=1, digits=4),
                interval_text(item.b, None, None, scale=1, digits=4),
                interval_text(item.value, item.low, item.high, scale=1, digits=4),
                "–" if item.p is None else f"{item.p:.3f}" if item.p >= 0.001 else "< 0.001",
            )
        )
    unmatched = [
        f"{n:,} only in {who}" for n, who in ((comparison.only_a, "A"), (comparison.only_b, "B")) if n
    ]
    return Table(
        title=f"{comparison.evaluation}: A = {comparison.a}, B = {comparison.b}; {amount(comparison.common, 'common item')}"
        + (f" ({', '.join(unmatched)})" if unmatched else ""),
        columns=("Figure", "A", "B", "B - A", "p"),
        rows=tuple(rows),
        note="Shares are from 0 to 1; tokens and lengths as counted. In brackets: 95 % interval of the difference by paired bootstrap over problems; p: two-sided, of no difference; "
        "not corrected for the number of rows.",
    )
