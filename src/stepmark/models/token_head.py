"""A trained head that reads how likely the language model finds the step's own tokens, beside the hidden state at its end.

A model that can write right steps finds a wrong one unlikely at the token where it goes wrong. A linear head on the last hidden state hardly learns to
read that; four numbers say it. Sources: the least probability of a token tells errors (Varshney et al. 2023, arXiv 2307.03987, section 3.1); confidence
of groups of tokens ranks solutions (Fu et al. 2025, arXiv 2508.15260, whose features need no training). The combination with a head is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.confidence import token_values
from stepmark.models.heads import step_scores
from stepmark.models.local_prm import TokenValuePRM
from stepmark.models.packed_tree import Ints
from stepmark.models.session import Read, States, Text


def token_features(logprobs: Tensor, lengths: Sequence[int]) -> Tensor:
    """Least, mean and sum of a step's log-probabilities, and the logarithm of its number of tokens: [steps, 4].

    Args:
        logprobs: of the tokens of all steps, one step after the other, [tokens].
        lengths: how many of them each step has.

    Raises:
        CheckpointError: a step without a token.
    """
    if min(lengths, default=1) < 1:
        raise CheckpointError("a step has no token of its author's; this PRM cannot read it")
    counts = torch.tensor(lengths, device=logprobs.device)
    step = torch.arange(len(counts), device=logprobs.device).repeat_interleave(counts)
    zeros = torch.zeros(len(counts), dtype=logprobs.dtype, device=logprobs.device)
    least = zeros.scatter_reduce(0, step, logprobs, "amin", include_self=False)
    total = zeros.index_add(0, step, logprobs)
    return torch.stack((least, total / counts, total, counts.to(logprobs.dtype).log()), -1)


class TokenHeadPRM(TokenValuePRM):
    """A PRM with a `spec.TokenHead`."""

    def needed(self, text: Text) -> Ints:
        """What stands before each token of the answer, and the ends of steps."""
        return np.union1d(self.written(text), text.reads)

    def read(self, states: States, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
        """See `LocalPRM.read`."""
        results = []
        for text, path, (values, ends) in zip(
            texts, paths, self.token_spans(states, texts, paths), strict=True
        ):
            # The token that is read is the mark's and not the author's.
            parts = [values[start : end - 1] for start, end in pairwise(ends)]
            hidden = states.states(path[text.reads]).float()
            own = torch.from_numpy(np.concatenate(parts)).float()
            features = token_features(own, [len(part) for part in parts]).to(hidden.device)
            logits = self.head(torch.cat((features, hidden), -1)).float().cpu()
            scores, classes = step_scores(self.spec.readout, logits, self.neutral)
            results.append(Read(scores=scores, classes=classes, logits=logits))
        return results

    def token_values(self, tables: Sequence[Tensor], which: Ints, ids: Ints) -> Tensor:
        """Log-probabilities."""
        return token_values("logprob", tables[0], which, ids)

    def step_values(self, values: Any, ends: Sequence[int]) -> list[float]:
        """Not used: `read` needs the hidden states too."""
        raise NotImplementedError
