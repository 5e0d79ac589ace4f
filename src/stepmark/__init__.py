r"""stepmark: process reward models that grade reasoning step by step.

    >>> import stepmark
    >>> [step.text for step in stepmark.split("2 + 3 = 5\n5 * 2 = 10")]
    ['2 + 3 = 5', '5 * 2 = 10']
    >>> stepmark.aggregate([0.9, 0.5], "product")
    0.45

`load_prm`, `load_policy` and `load_verifier` load models by name; `grade` and `search` run over files or rows and write the files that the
commands of the same names write. The searches are in `stepmark.search` (`stepmark.search.BeamSearch`). Every public name is listed in
`__all__` and loaded when first used; importing this package imports no heavy library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepmark.batching.cluster_settings import Cluster as Cluster
    from stepmark.metrics.aggregate import aggregate as aggregate
    from stepmark.models.grader import Grader as Grader
    from stepmark.models.load import load_prm as load_prm
    from stepmark.models.policies import load_policy as load_policy
    from stepmark.models.remote.async_client import AsyncClient as AsyncClient
    from stepmark.models.remote.client import Client as Client
    from stepmark.problems.answers import load_verifier as load_verifier
    from stepmark.records import Judgement as Judgement
    from stepmark.records import LabelledSolution as LabelledSolution
    from stepmark.records import Problem as Problem
    from stepmark.records import Refusal as Refusal
    from stepmark.records import ScoredSolution as ScoredSolution
    from stepmark.records import Solution as Solution
    from stepmark.records import Step as Step
    from stepmark.records import StepScores as StepScores
    from stepmark.records import Verdict as Verdict
    from stepmark.scoring.run import grade as grade
    from stepmark.search.public import SearchAPI
    from stepmark.solutions.checks import Finding as Finding
    from stepmark.solutions.checks import check as check
    from stepmark.solutions.segmentation import split as split
    from stepmark.store.results import Results as Results

    search: SearchAPI

__version__ = "0.2.0"

_HOME = {
    "AsyncClient": "stepmark.models.remote.async_client",
    "Client": "stepmark.models.remote.client",
    "Cluster": "stepmark.batching.cluster_settings",
    "Finding": "stepmark.solutions.checks",
    "Grader": "stepmark.models.grader",
    "Judgement": "stepmark.records",
    "LabelledSolution": "stepmark.records",
    "Problem": "stepmark.records",
    "Refusal": "stepmark.records",
    "Results": "stepmark.store.results",
    "ScoredSolution": "stepmark.records",
    "Solution": "stepmark.records",
    "Step": "stepmark.records",
    "StepScores": "stepmark.records",
    "Verdict": "stepmark.records",
    "aggregate": "stepmark.metrics.aggregate",
    "check": "stepmark.solutions.checks",
    "grade": "stepmark.scoring.run",
    "load_policy": "stepmark.models.policies",
    "load_prm": "stepmark.models.load",
    "load_verifier": "stepmark.problems.answers",
    "search": "stepmark.search",
    "split": "stepmark.solutions.segmentation",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'stepmark' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"stepmark.{name}" else getattr(module, name)  # a module that can be called
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
