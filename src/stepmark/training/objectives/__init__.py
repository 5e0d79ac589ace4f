"""Objectives by name: what `train` takes as `objective`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepmark.catalog import FACTORY, Catalog
from stepmark.errors import UsageError
from stepmark.own import Kind, own

if TYPE_CHECKING:
    from stepmark.training.objectives.base import Objective

OBJECTIVES = Catalog(
    "objective",
    {
        "hard": "stepmark.training.objectives.steps:HardLabels",
        "ce": "stepmark.training.objectives.steps:CrossEntropy",
        "soft": "stepmark.training.objectives.steps:SoftLabels",
        "mse": "stepmark.training.objectives.steps:SquaredError",
        "beta-binomial": "stepmark.training.objectives.steps:BetaBinomial",
        "three-class": "stepmark.training.objectives.steps:ThreeClass",
        "target-tokens": "stepmark.training.objectives.steps:TargetTokens",
        "outcome": "stepmark.training.objectives.outcome:Outcome",
        "implicit-ce": "stepmark.training.objectives.implicit:ImplicitCrossEntropy",
        "implicit-dpo": "stepmark.training.objectives.implicit:ImplicitDPO",
        "generative": "stepmark.training.objectives.generative:Generative",
    },
)
"""Name: the frozen dataclass of its settings. "package.module:Class" names one of your own."""

_KIND = Kind(
    what="objective",
    call="fit",
    wanted="a frozen dataclass with a name and the methods of stepmark.training.objectives.base.Objective (or derived from StepObjective there)",
    page="training.md",
    commands=tuple(OBJECTIVES),
)


def load_objective(
    objective: str | Objective, settings: Sequence[str] = ()
) -> tuple[Objective, Mapping[str, Any] | None]:
    """An objective, and where it is from if it is a caller's own.

    Args:
        objective: a name in `OBJECTIVES`, "package.module:Class", or the objective itself.
        settings: "name=value" each, for a name.

    Raises:
        UnknownNameError: no such objective.
        UsageError: a setting that it does not have or take; settings for an objective that is made already.
    """
    if not isinstance(objective, str):
        if settings:
            raise UsageError(
                "`settings` are for an objective by its name: set the fields of the objective itself"
            )
        return objective, None
    if objective not in OBJECTIVES and not FACTORY.fullmatch(objective):
        raise OBJECTIVES.unknown(objective)
    made = own(OBJECTIVES.get(objective, objective), settings, _KIND, setting="objective")
    return made.method, None if objective in OBJECTIVES else made.source


__all__ = ["OBJECTIVES", "load_objective"]
