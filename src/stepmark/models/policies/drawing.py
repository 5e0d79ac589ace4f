"""Drawing tokens from a model's log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepmark.batching import Write


def draw(logprobs: Tensor, request: Write, dice: Sequence[torch.Generator]) -> Tensor:
    """One token a row: temperature, then top_k, then top_p, as vLLM and transformers do.

    Args:
        logprobs: natural logarithms of the tokens' probabilities, [rows, vocabulary].
        request: whose sampling settings they are; of all rows.
        dice: each row's own generator; one number is drawn from each, none at temperature 0.

    Returns:
        Token ids, [rows].
    """
    if request.temperature == 0:
        return logprobs.argmax(-1)
    scores = logprobs.double() / request.temperature
    tokens = None
    if request.top_k is not None:
        scores, tokens = scores.topk(min(request.top_k, scores.shape[-1]))
    elif request.top_p < 1:
        scores, tokens = scores.sort(descending=True)
    shares = scores.softmax(-1)
    if request.top_p < 1:
        shares = torch.where(shares.cumsum(-1) - shares < request.top_p, shares, 0.0)
    heights = shares.cumsum(-1)
    numbers = [float(torch.rand((), generator=one, dtype=torch.float64)) for one in dice]
    points = torch.tensor(numbers, dtype=torch.float64, device=heights.device)[:, None] * heights[:, -1:]
    places = torch.searchsorted(heights, points, right=True)
    # Rounding can lead past the end: the last token that has a share at all.
    last = heights.shape[-1] - 1 - shares.ne(0).flip(-1).int().argmax(-1, keepdim=True)
    places = torch.minimum(places, last)
    return (places if tokens is None else tokens.gather(-1, places)).squeeze(-1)
