r"""stepmark: process reward models that grade reasoning step by step.

    >>> import stepmark
    >>> [step.text for step in stepmark.split("2 + 3 = 5\n5 * 2 = 10")]
    ['2 + 3 = 5', '5 * 2 = 10']
    >>> stepmark.aggregate([0.9, 0.5], "product")
    0.45

Every public name is listed in `__all__` and loaded when first used; importing this package imports no
heavy library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepmark.metrics.aggregate import aggregate as aggregate
    from stepmark.models.grading import grade as grade
    from stepmark.models.load import load_prm as load_prm
    from stepmark.models.remote.async_client import AsyncClient as AsyncClient
    from stepmark.models.remote.client import Client as Client
    from stepmark.records import Judgement as Judgement
    from stepmark.records import LabelledSolution as LabelledSolution
    from stepmark.records import Problem as Problem
    from stepmark.records import Refusal as Refusal
    from stepmark.records import ScoredSolution as ScoredSolution
    from stepmark.records import Solution as Solution
    from stepmark.records import Step as Step
    from stepmark.records import StepScores as StepScores
    from stepmark.records import Verdict as Verdict
    from stepmark.solutions.segmentation import split as split

__version__ = "0.2.0"

_HOME = {
    "AsyncClient": "stepmark.models.remote.async_client",
    "Client": "stepmark.models.remote.client",
    "Judgement": "stepmark.records",
    "LabelledSolution": "stepmark.records",
    "Problem": "stepmark.records",
    "Refusal": "stepmark.records",
    "ScoredSolution": "stepmark.records",
    "Solution": "stepmark.records",
    "Step": "stepmark.records",
    "StepScores": "stepmark.records",
    "Verdict": "stepmark.records",
    "aggregate": "stepmark.metrics.aggregate",
    "grade": "stepmark.models.grading",
    "load_prm": "stepmark.models.load",
    "split": "stepmark.solutions.segmentation",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'stepmark' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
