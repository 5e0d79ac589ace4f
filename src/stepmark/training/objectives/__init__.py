"""Objectives by name: what `stepmark train --objective` takes."""

from stepmark.catalog import Catalog

OBJECTIVES = Catalog(
    "objective",
    {
        "hard": "stepmark.training.objectives.steps:Hard",
        "ce": "stepmark.training.objectives.steps:CrossEntropy",
        "soft": "stepmark.training.objectives.steps:Soft",
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

__all__ = ["OBJECTIVES"]
