"""What `stepmark.label` is: a function, and the place of its methods."""

from __future__ import annotations

import inspect
from typing import final

from stepmark import batching, errors
from stepmark.labels import bayes, consensus, exact, formulas, judge, labelling, rollout, solutions, tree

__all__ = ["label"]


@final
class LabelAPI:
    """Label the steps of solutions: `stepmark.label(solutions, policy, …)`; its methods are here by name."""

    __name__ = "label"
    __signature__ = inspect.signature(solutions.label)
    __call__ = staticmethod(solutions.label)

    EveryStep = rollout.EveryStep
    BinarySearch = rollout.BinarySearch
    BayesianSearch = bayes.BayesianSearch
    RolloutTree = tree.RolloutTree
    Judge = judge.Judge
    Formulas = formulas.Formulas
    ExactErrors = exact.ExactErrors
    Consensus = consensus.Consensus
    exact = staticmethod(exact.exact)
    consensus = staticmethod(consensus.consensus)
    Rollouts = labelling.Rollouts
    RatePrior = bayes.RatePrior
    Labelling = labelling.Labelling
    hard_label = staticmethod(rollout.hard_label)
    soft_label = staticmethod(rollout.soft_label)
    # What a labeller of your own is made of.
    Cost = labelling.Cost
    Write = batching.Write
    Verify = batching.Verify
    InputError = errors.InputError
    prefix_text = staticmethod(labelling.prefix_text)
    prompt_of = staticmethod(labelling.prompt_of)


label = LabelAPI()
