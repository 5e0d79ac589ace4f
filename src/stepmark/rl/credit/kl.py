"""How far the policy is from its reference, token by token (Schulman 2020, "Approximating KL divergence").

With `delta = log pi - log pi_ref` on tokens that the policy wrote: k1 = delta, k2 = delta**2 / 2, k3 = exp(-delta) - 1 + delta. k1 and k3 have the
reverse KL as their mean; k2 is biased and small in variance. As a *loss*, the gradient of k2 is the true gradient of the reverse KL on-policy and
that of k3 a first-order approximation of another one; k1 as a loss has a gradient of mean zero, so it belongs into the reward
(Zhang et al. 2025, arXiv 2510.01555; arXiv 2512.21852).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stepmark.errors import UsageError

Estimator = Literal["k1", "k2", "k3"]
CLAMP = 20.0
"""`delta` is cut to this size under the exponential of k3: beyond it the estimate is a number without meaning that overflows."""


def kl(logprobs: Tensor, reference: Tensor, mask: Tensor, *, estimator: Estimator) -> Tensor:
    """(B, T): the estimate at each token, 0 where masked. `k2` and `k3` are for the loss, `k1` is for the reward.

    Raises:
        UsageError: an estimator that there is not.
    """
    delta = torch.where(mask, logprobs - reference, 0.0)
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return delta**2 / 2
    if estimator == "k3":
        cut = delta.clamp(-CLAMP, CLAMP)
        # Not exp - 1, which loses all figures of a small divergence and makes it negative.
        return torch.expm1(-cut) + cut
    raise UsageError(f"expected k1, k2 or k3, found {estimator!r}")


def kl_reward(logprobs: Tensor, reference: Tensor, mask: Tensor, *, weight: float) -> Tensor:
    """(B, T): what the divergence takes from each token's reward: `-weight * k1`, without a gradient."""
    return -weight * kl(logprobs, reference, mask, estimator="k1").detach()
