"""What `stepmark.train` is: a function, and the place of its objectives and settings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, final

from stepmark.training.examples import LabelRules as _LabelRules
from stepmark.training.measure import Trained as _Trained
from stepmark.training.objectives import OBJECTIVES
from stepmark.training.run import train as _train
from stepmark.training.settings import Training as _Training

__all__ = ["TrainAPI", "train"]

_CLASSES = {
    place.partition(":")[2]: place
    for place in (*OBJECTIVES.values(), "stepmark.training.objectives.base:StepObjective")
}
"""Name: where it is. Each imports torch, so only when it is asked for."""


@final
class TrainAPI:
    """`stepmark.train(rows, out=…)`, its settings, and the objectives that it takes."""

    __call__ = staticmethod(_train)
    Training = _Training
    LabelRules = _LabelRules
    Trained = _Trained
    if TYPE_CHECKING:
        # `StepObjective` is what an objective of your own is derived from.
        from stepmark.training.objectives.base import StepObjective
        from stepmark.training.objectives.generative import Generative
        from stepmark.training.objectives.implicit import ImplicitCrossEntropy, ImplicitDPO
        from stepmark.training.objectives.steps import (
            BetaBinomial,
            CrossEntropy,
            HardLabels,
            Outcome,
            SoftLabels,
            SquaredError,
            TargetTokens,
            ThreeClass,
        )
    else:

        def __getattr__(self, name: str) -> Any:
            if name == "__signature__":
                return inspect.signature(_train)
            if name not in _CLASSES:
                raise AttributeError(f"stepmark.train has no attribute {name!r}")
            return OBJECTIVES.load(_CLASSES[name])

    def __dir__(self) -> list[str]:
        return sorted(["LabelRules", "Trained", "Training", *_CLASSES])


train = TrainAPI()
