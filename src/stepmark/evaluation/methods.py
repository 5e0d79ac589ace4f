"""The evaluations by name, the library's and a caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.catalog import FACTORY, Catalog
from stepmark.errors import UsageError
from stepmark.evaluation.evaluation import Evaluation
from stepmark.own import Kind, own

EVALUATIONS = Catalog(
    "evaluation",
    {
        "processbench": "stepmark.evaluation.processbench:ProcessBench",
        "prmbench": "stepmark.evaluation.prmbench:PRMBench",
        "best-of-n": "stepmark.evaluation.best_of_n:BestOfN",
        "search": "stepmark.evaluation.search:SearchContest",
        "robustness": "stepmark.evaluation.robustness:Robustness",
        "disagreement": "stepmark.evaluation.disagreement:Disagreement",
        "verifier": "stepmark.evaluation.verifier:VerifierAccuracy",
        "calibration": "stepmark.evaluation.calibration:Calibration",
        "drift": "stepmark.evaluation.drift:Drift",
    },
)
"""The library's evaluations. To add one: a module with its class, and a line here."""

_OWN = Kind(
    what="evaluation",
    call="items",
    base=Evaluation,
    wanted="a class that is a frozen dataclass derived from stepmark.evaluate.Evaluation, with a name, items(sheet) and statistic(items)",
    page="add-benchmark.md",
    commands=tuple(EVALUATIONS),
)


def load_evaluation(
    method: str | Evaluation, settings: Sequence[str] = ()
) -> tuple[Evaluation, Mapping[str, Any] | None]:
    """An evaluation, and where it is from if it is a caller's own.

    Args:
        method: a name in `EVALUATIONS`, "package.module:Class", or the evaluation itself.
        settings: "name=value" each, for a name.

    Raises:
        UnknownNameError: no such evaluation.
        UsageError: a setting that it does not have or take; settings for an evaluation that is made already.
    """
    if not isinstance(method, str):
        if not isinstance(method, Evaluation):
            raise UsageError(
                f"`method`: expected the name of an evaluation or an evaluation, found {type(method).__name__}"
            )
        if settings:
            raise UsageError(
                "`settings` are for an evaluation by its name: set the fields of the evaluation itself"
            )
        return method, None
    if method in EVALUATIONS:
        made: Evaluation = (
            own(EVALUATIONS[method], settings, _OWN).method if settings else EVALUATIONS.load(method)()
        )
        return made, None
    if not FACTORY.fullmatch(method):
        raise EVALUATIONS.unknown(method)
    found = own(method, settings, _OWN)
    return found.method, found.source
