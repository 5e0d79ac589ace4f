"""The evaluations by name, the library's and a caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.catalog import FACTORY
from stepmark.errors import UsageError
from stepmark.evaluation.best_of_n import BestOfN
from stepmark.evaluation.calibration import Calibration
from stepmark.evaluation.disagreement import Disagreement
from stepmark.evaluation.drift import Drift
from stepmark.evaluation.evaluation import Evaluation
from stepmark.evaluation.prmbench import PRMBench
from stepmark.evaluation.processbench import ProcessBench
from stepmark.evaluation.robustness import Robustness
from stepmark.evaluation.search import SearchContest
from stepmark.evaluation.verifier import VerifierAccuracy
from stepmark.own import Kind, own

EVALUATIONS: Mapping[str, type[Evaluation]] = {
    kind.name: kind
    for kind in (
        ProcessBench,
        PRMBench,
        BestOfN,
        SearchContest,
        Robustness,
        Disagreement,
        VerifierAccuracy,
        Calibration,
        Drift,
    )
}
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
        kind = EVALUATIONS[method]
        if not settings:
            return kind(), None
        made: Evaluation = own(f"{kind.__module__}:{kind.__name__}", settings, _OWN).method
        return made, None
    if not FACTORY.fullmatch(method):
        from stepmark.catalog import unknown_name

        raise unknown_name("evaluation", method, dict.fromkeys(EVALUATIONS, ""))
    found = own(method, settings, _OWN)
    return found.method, found.source
