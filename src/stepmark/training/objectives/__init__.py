"""Objectives by name: what `train` takes as `objective`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepmark.catalog import Catalog
from stepmark.own import Kind, load_method

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
        "outcome": "stepmark.training.objectives.steps:Outcome",
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
)


def load_objective(
    objective: str | Objective, settings: Sequence[str] = ()
) -> tuple[Objective, Mapping[str, Any] | None]:
    """An objective, and where it is from if it is a caller's own; see `own.load_method`."""
    return load_method(objective, settings, _KIND, OBJECTIVES, setting="objective")


__all__ = ["OBJECTIVES", "load_objective"]
