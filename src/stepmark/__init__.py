r"""stepmark: process reward models that grade reasoning step by step.

    >>> import stepmark
    >>> [step.text for step in stepmark.split("2 + 3 = 5\n5 * 2 = 10")]
    ['2 + 3 = 5', '5 * 2 = 10']
    >>> stepmark.aggregate([0.9, 0.5], "product")
    0.45

`load_prm`, `load_policy` and `load_verifier` load models by name; `grade`, `sample`, `label` and `search` run over files or rows and write
the files that the commands of the same names write. The methods are in `stepmark.label` (`stepmark.label.EveryStep`) and in
`stepmark.search` (`stepmark.search.BeamSearch`). Every public name is listed in
`__all__` and loaded when first used; importing this package imports no heavy library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepmark import errors as errors
    from stepmark.backends.cluster import Cluster as Cluster
    from stepmark.data.formats.rows import LabelledRow as LabelledRow
    from stepmark.data.labelled import convert as convert
    from stepmark.data.labelled import read_labelled as read_labelled
    from stepmark.data.steps.splitting import split as split
    from stepmark.evaluation.public import evaluate as evaluate
    from stepmark.integrations.hub import publish as publish
    from stepmark.labels.public import label as label
    from stepmark.metrics.aggregate import aggregate as aggregate
    from stepmark.metrics.agreement import krippendorff_alpha as krippendorff_alpha
    from stepmark.models.load import load_prm as load_prm
    from stepmark.models.policies import load_policy as load_policy
    from stepmark.models.prm import Grader as Grader
    from stepmark.models.remote.client import AsyncClient as AsyncClient
    from stepmark.models.remote.client import Client as Client
    from stepmark.models.scripted import ScriptedPolicy as ScriptedPolicy
    from stepmark.models.scripted import ScriptedPRM as ScriptedPRM
    from stepmark.problems.arithmetic_world import ArithmeticWorld as ArithmeticWorld
    from stepmark.problems.sources import load_problems as load_problems
    from stepmark.records import GradedSolution as GradedSolution
    from stepmark.records import GradedStep as GradedStep
    from stepmark.records import Judgement as Judgement
    from stepmark.records import LabelledSolution as LabelledSolution
    from stepmark.records import Problem as Problem
    from stepmark.records import Refusal as Refusal
    from stepmark.records import SampledSolution as SampledSolution
    from stepmark.records import Solution as Solution
    from stepmark.records import Step as Step
    from stepmark.records import StepScores as StepScores
    from stepmark.records import Verdict as Verdict
    from stepmark.rl.public import RLAPI
    from stepmark.sampling.problems import sample as sample
    from stepmark.scoring.run import grade as grade
    from stepmark.search.run import SearchAPI
    from stepmark.serving.app import BackgroundServer as BackgroundServer
    from stepmark.serving.app import serve_in_process as serve_in_process
    from stepmark.serving.run import serve as serve
    from stepmark.serving.settings import ChatModel as ChatModel
    from stepmark.serving.settings import ServerSettings as ServerSettings
    from stepmark.store.results import Results as Results
    from stepmark.training.public import TrainAPI
    from stepmark.verifiers.base import load_verifier as load_verifier
    from stepmark.verifiers.checks import Finding as Finding
    from stepmark.verifiers.checks import check as check

    rl: RLAPI
    search: SearchAPI
    train: TrainAPI

__version__ = "0.2.0"

_HOME = {
    "ArithmeticWorld": "stepmark.problems.arithmetic_world",
    "AsyncClient": "stepmark.models.remote.client",
    "BackgroundServer": "stepmark.serving.app",
    "ChatModel": "stepmark.serving.settings",
    "Client": "stepmark.models.remote.client",
    "Cluster": "stepmark.backends.cluster",
    "Finding": "stepmark.verifiers.checks",
    "GradedSolution": "stepmark.records",
    "GradedStep": "stepmark.records",
    "Grader": "stepmark.models.prm",
    "Judgement": "stepmark.records",
    "LabelledRow": "stepmark.data.formats.rows",
    "LabelledSolution": "stepmark.records",
    "Problem": "stepmark.records",
    "Refusal": "stepmark.records",
    "Results": "stepmark.store.results",
    "SampledSolution": "stepmark.records",
    "ScriptedPRM": "stepmark.models.scripted",
    "ScriptedPolicy": "stepmark.models.scripted",
    "ServerSettings": "stepmark.serving.settings",
    "Solution": "stepmark.records",
    "Step": "stepmark.records",
    "StepScores": "stepmark.records",
    "Verdict": "stepmark.records",
    "aggregate": "stepmark.metrics.aggregate",
    "check": "stepmark.verifiers.checks",
    "convert": "stepmark.data.labelled",
    "errors": "stepmark.errors",
    "evaluate": "stepmark.evaluation.public",
    "grade": "stepmark.scoring.run",
    "krippendorff_alpha": "stepmark.metrics.agreement",
    "label": "stepmark.labels.public",
    "load_policy": "stepmark.models.policies",
    "load_prm": "stepmark.models.load",
    "load_problems": "stepmark.problems.sources",
    "load_verifier": "stepmark.verifiers.base",
    "publish": "stepmark.integrations.hub",
    "read_labelled": "stepmark.data.labelled",
    "rl": "stepmark.rl",
    "sample": "stepmark.sampling.problems",
    "search": "stepmark.search",
    "serve": "stepmark.serving.run",
    "serve_in_process": "stepmark.serving.app",
    "split": "stepmark.data.steps.splitting",
    "train": "stepmark.training.public",
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
