"""What `stepmark.train` is: a function, and the place of its objectives and settings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, final

from stepmark.training.examples import LabelRules as _LabelRules
from stepmark.training.run import train as _train
from stepmark.training.settings import Training as _Training
from stepmark.training.trained import Trained as _Trained

if TYPE_CHECKING:
    from stepmark.training.objectives.base import StepObjective as _StepObjective
    from stepmark.training.objectives.generative import Generative as _Generative
    from stepmark.training.objectives.implicit import ImplicitCrossEntropy as _ImplicitCrossEntropy
    from stepmark.training.objectives.implicit import ImplicitDPO as _ImplicitDPO
    from stepmark.training.objectives.outcome import Outcome as _Outcome
    from stepmark.training.objectives.steps import BetaBinomial as _BetaBinomial
    from stepmark.training.objectives.steps import CrossEntropy as _CrossEntropy
    from stepmark.training.objectives.steps import HardLabels as _HardLabels
    from stepmark.training.objectives.steps import SoftLabels as _SoftLabels
    from stepmark.training.objectives.steps import SquaredError as _SquaredError
    from stepmark.training.objectives.steps import TargetTokens as _TargetTokens
    from stepmark.training.objectives.steps import ThreeClass as _ThreeClass

__all__ = ["TrainAPI", "train"]

_OBJECTIVES = {
    **dict.fromkeys(
        (
            "BetaBinomial",
            "CrossEntropy",
            "HardLabels",
            "SoftLabels",
            "SquaredError",
            "TargetTokens",
            "ThreeClass",
        ),
        "steps",
    ),
    **dict.fromkeys(("ImplicitCrossEntropy", "ImplicitDPO"), "implicit"),
    "Generative": "generative",
    "Outcome": "outcome",
    "StepObjective": "base",
}
"""Name: the module of `training.objectives` that it is in; each imports torch, so only when it is asked for."""


@final
class TrainAPI:
    """`stepmark.train(rows, out=…)`, its settings, and the objectives that it takes."""

    __call__ = staticmethod(_train)
    Training = _Training
    LabelRules = _LabelRules
    Trained = _Trained
    if TYPE_CHECKING:
        HardLabels = _HardLabels
        CrossEntropy = _CrossEntropy
        SoftLabels = _SoftLabels
        SquaredError = _SquaredError
        BetaBinomial = _BetaBinomial
        ThreeClass = _ThreeClass
        TargetTokens = _TargetTokens
        Outcome = _Outcome
        ImplicitCrossEntropy = _ImplicitCrossEntropy
        ImplicitDPO = _ImplicitDPO
        Generative = _Generative
        # What an objective of your own is derived from.
        StepObjective = _StepObjective
    else:

        def __getattr__(self, name: str) -> Any:
            if name == "__signature__":
                return inspect.signature(_train)
            if name not in _OBJECTIVES:
                raise AttributeError(f"stepmark.train has no attribute {name!r}")
            import importlib

            return getattr(importlib.import_module(f"stepmark.training.objectives.{_OBJECTIVES[name]}"), name)

    def __dir__(self) -> list[str]:
        return sorted(["LabelRules", "Trained", "Training", *_OBJECTIVES])


train = TrainAPI()
