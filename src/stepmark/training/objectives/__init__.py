"""Objectives by name: what `train` takes as `objective`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepmark.registry import Registry

if TYPE_CHECKING:
    from stepmark.training.objectives.base import Objective

OBJECTIVES = Registry(
    "objective",
    {
        "hard": "stepmark.training.objectives.steps:HardLabels",
        "ce": "stepmark.training.objectives.steps:CrossEntropy",
        "soft": "stepmark.training.objectives.steps:SoftLabels",
        "mse": "stepmark.training.objectives.steps:SquaredError",
        "beta-binomial": "stepmark.training.objectives.steps:BetaBinomial",
        "three-class": "stepmark.training.objectives.steps:ThreeClass",
        "target-tokens": "stepmark.training.objectives.steps:TargetTokens",
        "labels": "stepmark.training.objectives.steps:SeveralLabels",
        "outcome": "stepmark.training.objectives.steps:Outcome",
        "implicit-ce": "stepmark.training.objectives.implicit:ImplicitCrossEntropy",
        "implicit-dpo": "stepmark.training.objectives.implicit:ImplicitDPO",
        "generative": "stepmark.training.objectives.generative:Generative",
    },
    setting="objective",
    call="fit",
    expected="a frozen dataclass with a name and the methods of stepmark.training.objectives.base.Objective (or derived from StepObjective there)",
    page="training.md",
)
"""Name: the frozen dataclass of its settings. "package.module:Class" names one of your own."""


def load_objective(
    objective: str | Objective, settings: Sequence[str] = ()
) -> tuple[Objective, Mapping[str, Any] | None]:
    """An objective, and where it is from if it is a caller's own; see `Registry.method`."""
    return OBJECTIVES.method(objective, settings)


__all__ = ["OBJECTIVES", "load_objective"]
