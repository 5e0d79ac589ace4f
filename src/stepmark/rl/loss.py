"""The policy's loss: a clipped ratio of probabilities times advantages, and what keeps it near its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stepmark.rl.credit.kl import Estimator, kl

Average = Literal["token", "sequence", "constant"]


def token_weights(mask: Tensor, average: Average, *, max_tokens: int) -> Tensor:
    """(B, T): each token's share in the loss of the whole batch, so that parts of the batch can be added up in any cut.

    Args:
        mask: (B, T) bool, of the whole batch.
        average: `token`: one over all tokens; `sequence`: one over completions with tokens, times their lengths; `constant`: one over completions
            times `max_tokens`.
        max_tokens: the longest completion that there could be.
    """
    counted = mask.float()
    if average == "token":
        return counted / counted.sum().clamp_min(1)
    if average == "sequence":
        rows = (counted.sum(-1) > 0).sum().clamp_min(1)
        return counted / counted.sum(-1, keepdim=True).clamp_min(1) / rows
    return counted / (len(mask) * max_tokens)


def share_of(weights: Tensor, chosen: Tensor, average: Average) -> Tensor:
    """Scalar, above 0: what the `token_weights` of some rows are divided by, so that an optimizer step on them is of the size of one on all.

    By `constant` it is their share of the rows: their share of the tokens would make a mean over tokens of it again.

    Args:
        weights: (B, T), of the whole batch.
        chosen: numbers of the rows.
        average: as the weights are.
    """
    if average == "constant":
        return weights.new_tensor(len(chosen) / len(weights))
    return weights[chosen].sum().clamp_min(1e-12)


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """The loss and what is watched beside it, all without the parts of other rows: they add up."""

    loss: Tensor
    """Scalar, to be minimised."""
    clipped: Tensor
    """Weighted share of tokens of which the clipping took the gradient."""
    divergence: Tensor | None
    """Weighted k3 estimate of the distance from the reference; None without one."""


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    reference: Tensor | None = None,
    kl_loss: Estimator | None = None,
    kl_weight: float = 0.0,
) -> PolicyLoss:
    """PPO's clipped objective a token (Schulman et al. 2017, equation 7), negated; plus `kl_weight` times an estimate of the divergence.

    Args:
        logprobs: (B, T) of the policy now, with gradient.
        old: (B, T) when the completions were written.
        advantages: (B, T).
        weights: (B, T) from `token_weights`; 0 where masked.
        clip_low: the ratio counts down to 1 - this where the advantage is negative.
        clip_high: and up to 1 + this where it is positive.
        reference: (B, T) of the reference policy, or None.
        kl_loss: which estimate is in the loss; None: none.
        kl_weight: its weight.
    """
    here = weights > 0
    delta = torch.where(here, logprobs - old, 0.0)
    ratio = delta.exp()
    plain = ratio * advantages
    cut = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -(torch.minimum(plain, cut) * weights).sum()
    divergence = None
    if reference is not None:
        divergence = (kl(logprobs.detach(), reference, here, estimator="k3") * weights).sum()
        if kl_loss is not None and kl_weight:
            loss = loss + kl_weight * (kl(logprobs, reference, here, estimator=kl_loss) * weights).sum()
    return PolicyLoss(loss=loss, clipped=((cut < plain) * weights).sum().detach(), divergence=divergence)


def value_loss(values: Tensor, returns: Tensor, weights: Tensor) -> Tensor:
    """Scalar: half the weighted mean square between a critic's values and the returns."""
    return 0.5 * ((values - returns) ** 2 * weights).sum()
