"""What `stepmark.label` is: a function, and the place of its methods."""

from __future__ import annotations

import inspect
from typing import final

from stepmark.batching import Verify as _Verify
from stepmark.batching import Write as _Write
from stepmark.errors import InputError as _InputError
from stepmark.labels.bayes import BayesianSearch as _BayesianSearch
from stepmark.labels.first_error import BinarySearch as _BinarySearch
from stepmark.labels.formulas import Formulas as _Formulas
from stepmark.labels.judge import Judge as _Judge
from stepmark.labels.labelling import Cost as _Cost
from stepmark.labels.labelling import Labelling as _Labelling
from stepmark.labels.labelling import Rollouts as _Rollouts
from stepmark.labels.labelling import prefix_text as _prefix_text
from stepmark.labels.labelling import prompt_of as _prompt_of
from stepmark.labels.rollout import EveryStep as _EveryStep
from stepmark.labels.rollout import hard_label as _hard_label
from stepmark.labels.rollout import soft_label as _soft_label
from stepmark.labels.solutions import label as _label
from stepmark.labels.tree import RolloutTree as _RolloutTree

__all__ = ["label"]


@final
class LabelAPI:
    """`stepmark.label(solutions, policy, …)`, and the methods that it takes."""

    __name__ = "label"
    __signature__ = inspect.signature(_label)

    __call__ = staticmethod(_label)
    EveryStep = _EveryStep
    BinarySearch = _BinarySearch
    BayesianSearch = _BayesianSearch
    RolloutTree = _RolloutTree
    Judge = _Judge
    Formulas = _Formulas
    Rollouts = _Rollouts
    Labelling = _Labelling
    hard_label = staticmethod(_hard_label)
    soft_label = staticmethod(_soft_label)
    # What a labeller of your own is made of.
    Cost = _Cost
    Write = _Write
    Verify = _Verify
    InputError = _InputError
    prefix_text = staticmethod(_prefix_text)
    prompt_of = staticmethod(_prompt_of)


label = LabelAPI()
"""Label the steps of solutions: `stepmark.label(solutions, policy)`; the methods are here by name."""
