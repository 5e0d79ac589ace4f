"""Training-free scores: how sure a policy is of the tokens that it wrote, the baseline of every trained grader.

Each token of the answer has a value, from the distribution p that the policy had for it; the higher, the surer:

===============  ===================================================================================================
measure          value of a token
===============  ===================================================================================================
logprob          log p(token)
entropy          sum of p log p: the entropy, below 0
self-certainty   -(mean of log p over the vocabulary) - log |vocabulary|: KL(uniform, p) (Kang et al. 2025, arXiv 2502.18581, equation 8)
top              -(mean of log p over the 20 likeliest tokens): DeepConf's token confidence (Fu et al. 2025, arXiv 2508.15260)
===============  ===================================================================================================

A step's score is the mean over all tokens up to its end, so that the last one is the published score of the whole; with a `window`, the lowest
mean of so many tokens in a row (DeepConf's lowest group; fewer tokens are one group, as in the authors' code). `per_step` reads each
step's tokens alone. Of an agent's trace only its own tokens count. Deviation: steps are joined by blank lines, whatever the policy wrote between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.models.local_prm import TokenValuePRM
from stepmark.models.packed_tree import Ints
from stepmark.models.spec import ConfidenceHead

_TOP = 20


class ConfidencePRM(TokenValuePRM):
    """A language model as its own grader."""

    def token_values(self, tables: Sequence[Tensor], which: Ints, ids: Ints) -> Tensor:
        """See the module."""
        [table] = tables
        return token_values(self._rule.measure, table, which, ids)

    def step_values(self, values: Any, ends: Sequence[int]) -> list[float]:
        """See `step_confidences`."""
        return step_confidences(values, ends, self._rule)

    @property
    def _rule(self) -> ConfidenceHead:
        rule = self.spec.readout.head
        assert isinstance(rule, ConfidenceHead)
        return rule


def token_values(measure: str, table: Tensor, which: Ints, ids: Ints) -> Tensor:
    """Values of tokens, [tokens].

    Args:
        measure: see the module.
        table: log-probabilities, [places, vocabulary].
        which: of each token the place before it.
        ids: the tokens.
    """
    at = torch.from_numpy(which).to(table.device)
    if measure == "logprob":
        return table[at, torch.from_numpy(ids).to(table.device)]
    if measure == "entropy":
        return (table.exp() * table).nan_to_num(0.0).sum(-1)[at]
    if measure == "self-certainty":
        return (-table.mean(-1) - math.log(table.shape[-1]))[at]
    return -table.topk(min(_TOP, table.shape[-1])).values.mean(-1)[at]


def step_confidences(values: Any, ends: Sequence[int], rule: ConfidenceHead) -> list[float]:
    """Scores of steps from the values of the tokens that the policy wrote: [tokens].

    Args:
        values: see `token_values`.
        ends: where the first step that is read begins, then where each ends, counted in those tokens.
        rule: mean or lowest window, of everything so far or of each step.
    """
    starts = ends[:-1] if rule.per_step else [0] * (len(ends) - 1)
    return [_lowest(values[start:end], rule.window) for start, end in zip(starts, ends[1:], strict=True)]


def _lowest(values: Any, window: int | None) -> float:
    if window is None or len(values) <= window:
        return float(np.mean(values)) if len(values) else math.nan
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return float(np.min(sums[window:] - sums[:-window]) / window)
