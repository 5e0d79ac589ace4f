"""Credit from an implicit PRM: a reward for every token (Cui et al. 2025, PRIME)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.groups import (
    Deviation,
    degrees_of_freedom,
    group_sum,
    leave_one_out,
    spread_over,
    to_go,
)
from stepmark.rl.credit.process import at_last_token


def implicit_rewards(batch: Batch) -> Tensor:
    """(B, T): the token rewards, 0 where masked.

    Raises:
        UsageError: the batch has none.
    """
    if batch.token_rewards is None:
        raise UsageError("this method needs token rewards: give an implicit PRM")
    return torch.where(batch.mask, batch.token_rewards, 0.0)


def batch_scaled(rewards: Tensor) -> Tensor:
    """`rewards` (B, T) over the largest size of a sum from any token to the end, of the *whole* batch (`prime_norm: batch_norm`).

    The published code takes the maximum over one device's share, so that its rewards depend on how many devices there are. Whoever trains on
    several gathers first.
    """
    return rewards / (to_go(rewards).abs().amax() + 1e-6) if rewards.numel() else rewards


def prime_paper(
    batch: Batch, *, gamma: float = 1.0, process_weight: float = 1.0, outcome_weight: float = 1.0
) -> Tensor:
    """RLOO with implicit rewards, as the paper writes it (Cui et al. 2025, equation 5).

    `A_t = sum over s >= t of gamma**(s-t) * (r_s - mean over others of their mean token reward) + (outcome - mean of the others' outcome)`. The weights are
    ours; the paper has 1 and 1.

    Raises:
        UsageError: no token rewards, or a problem with one completion.
    """
    rewards = implicit_rewards(batch)
    mean = rewards.sum(-1) / batch.mask.sum(-1).clamp_min(1)
    centred = torch.where(batch.mask, rewards - leave_one_out(mean, batch.groups)[:, None], 0.0)
    outcome = spread_over(batch.outcome - leave_one_out(batch.outcome, batch.groups), batch.mask)
    return torch.where(
        batch.mask, process_weight * to_go(centred, gamma=gamma) + outcome_weight * outcome, 0.0
    )


def prime_code(
    batch: Batch,
    *,
    process_weight: float = 5.0,
    outcome_weight: float = 5.0,
    whiten: bool = True,
    deviation: Deviation = "sample",
) -> Tensor:
    """RLOO with implicit rewards, as the published code does it (verl-recipe/prime at 48ea0a7, `compute_rloo_advantage_return`).

    Of K completions, `r~_t = r_t * K/(K-1) - (1/(K-1)) * sum over all j, this one too, of j's mean token reward`: the paper's value plus
    `(r_t - mean r) / (K-1)`. The outcome, treated so, is exact RLOO, at the last token. Returns are sums to the end; the advantage is the returns
    whitened over all tokens of the batch (`whitened`: the sample's deviation is the code's).

    Raises:
        UsageError: no token rewards, or a problem with one completion.
    """
    rewards = implicit_rewards(batch)
    size = group_sum(torch.ones_like(batch.outcome), batch.groups)
    outcome = batch.outcome - leave_one_out(batch.outcome, batch.groups)  # refuses groups of one
    mean = rewards.sum(-1) / batch.mask.sum(-1).clamp_min(1)
    shift = group_sum(mean, batch.groups) / (size - 1)
    centred = torch.where(batch.mask, rewards * (size / (size - 1))[:, None] - shift[:, None], 0.0)
    returns = to_go(process_weight * centred + outcome_weight * at_last_token(outcome, batch))
    if whiten:
        return whitened(returns, batch.mask, deviation=deviation)
    return torch.where(batch.mask, returns, 0.0)


def whitened(values: Tensor, mask: Tensor, *, deviation: Deviation = "sample") -> Tensor:
    """`values` (B, T) with mean 0 and variance 1 over the tokens of `mask`; 0 elsewhere and where there is no spread.

    It is `masked_whiten` of verl and of TRL's former `PPOTrainer`: over the N tokens of the whole batch, with the variance divided by N - 1.
    They add 1e-8 to the variance, which here is not needed, and refuse a single token, which here gives 0.

    Args:
        values: (B, T).
        mask: (B, T) bool.
        deviation: `sample` is theirs; with `population` the variance is divided by N.
    """
    count = mask.sum()
    mean = torch.where(mask, values, 0.0).sum() / count.clamp_min(1)
    centred = torch.where(mask, values - mean, 0.0)
    spread = ((centred**2).sum() / degrees_of_freedom(count, deviation)).sqrt()
    if spread <= 1e-6 * (1 + mean.abs()):
        return torch.zeros_like(centred)
    return centred / spread
