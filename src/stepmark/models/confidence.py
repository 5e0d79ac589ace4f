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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.encoding import Encoder
from stepmark.models.engine import Engine
from stepmark.models.local import LocalPRM, before_own, encoded_of
from stepmark.models.prm import Weights
from stepmark.models.session import Read, States, Text, WholeSolution
from stepmark.models.spec import ConfidenceHead, ScoringSpec
from stepmark.models.tree import Ints

_WORDS = 256
"""Distributions over a vocabulary that are made at a time."""
_TOP = 20


class ConfidencePRM(LocalPRM):
    """A language model as its own grader. Made by `load_prm`.

    Args:
        policy: an engine and the weight of its language-model head, [vocabulary, hidden].
        identity: as of `HeadPRM`.
    """

    has_head = False

    def __init__(
        self,
        *,
        name: str,
        spec: ScoringSpec,
        encoder: Encoder,
        policy: tuple[Engine, Tensor],
        identity: Callable[[], str],
    ) -> None:
        super().__init__(name, spec, encoder, (policy[0],), identity)
        if not isinstance(spec.readout.head, ConfidenceHead):
            raise CheckpointError(f"{spec.family} is no training-free score")
        self.output, self.rule = policy[1], spec.readout.head

    @property
    def size(self) -> Weights | None:
        """See `PRM.size`, with the output layer."""
        bare = super().size
        return bare and Weights(parameters=bare.parameters + self.output.numel(), attention=bare.attention)

    def needed(self, text: Text) -> Ints:
        """What stands before each token that the policy wrote."""
        return before_own(text)

    def read(self, states: States, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
        """See `TokenPRM.read`; a token's value is stored beside it (`States.value`)."""
        needed = [before_own(text) for text in texts]
        above = np.concatenate([path[n] for n, path in zip(needed, paths, strict=True)])
        tokens = np.concatenate([path[n + 1] for n, path in zip(needed, paths, strict=True)])
        ids = np.concatenate([text.ids[n + 1] for n, text in zip(needed, texts, strict=True)])
        _, first = np.unique(tokens, return_index=True)
        fresh = first[np.isnan(states.value[tokens[first]])]
        fresh = fresh[np.argsort(above[fresh], kind="stable")]
        for start in range(0, len(fresh), _WORDS):
            batch = fresh[start : start + _WORDS]
            parents, which = np.unique(above[batch], return_inverse=True)
            logits = states.states(parents, 0).to(self.output.dtype) @ self.output.T
            values = token_values(self.rule.measure, torch.log_softmax(logits.float(), -1), which, ids[batch])
            states.value[tokens[batch]] = values.double().cpu().numpy()
        results = []
        for text, path, places in zip(texts, paths, needed, strict=True):
            encoded = encoded_of(text)
            before = (
                None if isinstance(text.asked, WholeSolution) or len(encoded.reads) < 2 else encoded.reads[-2]
            )
            ends = np.searchsorted(places + 1, text.reads, side="right").tolist()
            begin = 0 if before is None else int(np.searchsorted(places + 1, before, side="right"))
            scores = step_confidences(states.value[path[places + 1]], [begin, *ends], self.rule)
            if not all(map(math.isfinite, scores)):
                raise CheckpointError(
                    f"{self.name} gave NaN or an infinity as a score: its weights are damaged"
                )
            results.append(Read(scores=scores))
        return results


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
