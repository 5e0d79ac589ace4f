"""The evaluations by name, the library's and a caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepmark.catalog import Catalog
from stepmark.evaluation.evaluation import Evaluation
from stepmark.own import Kind, load_method

EVALUATIONS = Catalog(
    "evaluation",
    {
        "processbench": "stepmark.evaluation.processbench:ProcessBench",
        "prmbench": "stepmark.evaluation.prmbench:PRMBench",
        "who-and-when": "stepmark.evaluation.who_and_when:WhoAndWhen",
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
    """An evaluation, and where it is from if it is a caller's own; see `own.load_method`."""
    return load_method(method, settings, _OWN, EVALUATIONS)
