"""What credit methods are made of: pure functions on the tensors of a `Batch`, (B, T) a token and (B, S) a step.

**Divergence** from the reference, token by token (Schulman 2020, "Approximating KL divergence"). With `delta = log pi - log pi_ref` on tokens
that the policy wrote: k1 = delta, k2 = delta**2 / 2, k3 = exp(-delta) - 1 + delta. k1 and k3 have the reverse KL as their mean. As a *loss*,
k2 has the true gradient of the reverse KL on-policy and k3 an approximation of another one; that of k1 has mean zero, so k1 belongs into the
reward (Zhang et al. 2025, arXiv 2510.01555; arXiv 2512.21852).

**Safe step rewards** (`clip`, `delta`): where they are summed as they are, a policy cannot earn by writing more steps. Group normalisation
(`ProcessGRPO`) takes their mean from every step: next to clipped steps that lost, one that did not earns again, and under `delta` each
further step costs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.batch import Batch

Deviation = Literal["sample", "population"]
"""Which standard deviation of N numbers: `sample` divides the sum of squares by N - 1, as TRL and verl do; `population` by N.

Advantages by the population's are sqrt(N / (N - 1)) times as large: 41 % larger of 2 numbers, 6.9 % of 8.
"""


def degrees_of_freedom(count: Tensor, deviation: Deviation) -> Tensor:
    """What the sum of squares of `count` numbers is divided by; at least 1, because one number has no spread."""
    return (count - 1 if deviation == "sample" else count).clamp_min(1)


def group_sum(values: Tensor, groups: Tensor) -> Tensor:
    """(B,) of each row: the sum of `values` (B,) over its group."""
    _, at = torch.unique(groups, return_inverse=True)
    return torch.zeros_like(values).scatter_add(0, at, values)[at]


def group_mean(values: Tensor, groups: Tensor) -> Tensor:
    """(B,) of each row: the mean of its group."""
    return group_sum(values, groups) / group_sum(torch.ones_like(values), groups)


def leave_one_out(values: Tensor, groups: Tensor) -> Tensor:
    """(B,) of each row: the mean of the *others* of its group, RLOO's baseline (Ahmadian et al. 2024, section 3.2). A group of one is refused."""
    count = group_sum(torch.ones_like(values), groups)
    if (count < 2).any():
        raise UsageError(
            "a leave-one-out baseline needs at least two completions of each problem; sample more, or take another method"
        )
    return (group_sum(values, groups) - values) / (count - 1)


def normalised(
    values: Tensor, groups: Tensor, among: Tensor, *, scale: bool = True, deviation: Deviation = "sample"
) -> Tensor:
    """`values`, (B,) or (B, S), less their group's mean, over its standard deviation; 0 outside `among` and where a group has no spread.

    No epsilon stands under the fraction (TRL adds 1e-4 to the deviation, verl 1e-6). A group with one value gives 0, as in TRL; verl gives
    the value itself.
    """
    flat = values if values.ndim == 2 else values[:, None]
    counted = (among if among.ndim == 2 else among[:, None]).to(values.dtype)
    counted_values = torch.where(counted > 0, flat, 0.0)
    count = group_sum(counted.sum(-1), groups).clamp_min(1)
    mean = (group_sum(counted_values.sum(-1), groups) / count)[:, None]
    centred = (flat - mean) * counted
    centred = torch.where(counted > 0, centred, 0.0)
    if scale:
        squares = group_sum((centred**2).sum(-1), groups)
        spread = (squares / degrees_of_freedom(count, deviation)).sqrt()[:, None]
        # Equal rewards leave rounding errors, which must not be blown up to advantages of size one.
        flatness = 1e-6 * (1 + mean.abs())
        centred = torch.where(spread > flatness, centred / spread.clamp_min(1e-30), 0.0)
    return centred if values.ndim == 2 else centred[:, 0]


def spread_over(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T): each row's one value at all its tokens."""
    return torch.where(mask, values[:, None].expand(mask.shape), 0.0)


def to_go(rewards: Tensor, *, gamma: float = 1.0) -> Tensor:
    """(B, T): the discounted sum from each place to the end of its row."""
    if gamma == 1.0:
        return rewards.flip(-1).cumsum(-1).flip(-1)
    out = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0]) if rewards.shape[1] else rewards.sum(-1)
    for place in range(rewards.shape[1] - 1, -1, -1):
        running = rewards[:, place] + gamma * running
        out[:, place] = running
    return out


def at_step_ends(step_values: Tensor, step_ends: Tensor, tokens: int) -> Tensor:
    """(B, T): each step's value at its last token, 0 elsewhere."""
    present = step_ends >= 0
    out = torch.zeros(len(step_ends), tokens, dtype=step_values.dtype, device=step_values.device)
    return out.scatter_add(1, step_ends.clamp_min(0), torch.where(present, step_values, 0.0))


def over_step_tokens(step_values: Tensor, step_of: Tensor) -> Tensor:
    """(B, T): each step's value at all its tokens, 0 where a token is in no step."""
    if not step_values.shape[1]:
        return torch.zeros(step_of.shape, dtype=step_values.dtype, device=step_values.device)
    return torch.where(step_of >= 0, torch.gather(step_values, 1, step_of.clamp_min(0)), 0.0)


Estimator = Literal["k1", "k2", "k3"]
CLAMP = 20.0
"""`delta` is cut to this size under the exponential of k3: beyond it the estimate is a number without meaning that overflows.

The estimate itself is not cut, as Schulman defines it; verl cuts it to [-10, 10] besides, so a token that the reference finds far more likely
than the policy weighs more here."""


def kl(logprobs: Tensor, reference: Tensor, mask: Tensor, *, estimator: Estimator) -> Tensor:
    """(B, T): the estimate at each token, 0 where masked. `k2` and `k3` are for the loss, `k1` is for the reward."""
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


def rewards_of(batch: Batch) -> Tensor:
    """(B, S): the step rewards, 0 where there is no step."""
    if batch.step_rewards is None:
        raise UsageError("this method needs step rewards: give a PRM")
    return torch.where(batch.has_step, batch.step_rewards, 0.0)


def min_form_rewards(batch: Batch, *, temperature: float = 0.1) -> Tensor:
    """(B, S): PURE's rewards, of which the sum is a soft minimum of the step rewards (Cheng et al. 2025, equation 6).

    `r*_s = softmax(-r / temperature)_s * r_s`, over the steps of one completion. The paper's step rewards are margins p(+) - p(-) in [-1, 1].
    """
    rewards = rewards_of(batch)
    weights = torch.softmax(torch.where(batch.has_step, -rewards / temperature, -torch.inf), -1)
    # A completion without steps has nothing to weigh; its softmax is 0/0.
    return torch.where(batch.has_step, weights * rewards, 0.0)


def at_last_token(values: Tensor, batch: Batch) -> Tensor:
    """(B, T): each row's value at its last trained token; a completion without tokens has no place for it."""
    return at_step_ends(values[:, None], batch.last_token[:, None], batch.mask.shape[1])


def clip(batch: Batch, *, threshold: float) -> Tensor:
    """`min(r - threshold, 0)` (Gao et al. 2024, arXiv 2410.15115, section 4): a step can lose and never earn, so more steps gain nothing."""
    return torch.where(batch.has_step, (rewards_of(batch) - threshold).clamp_max(0.0), 0.0)


def delta(batch: Batch) -> Tensor:
    """`r_k - r_{k+1}`, the last step's own score (Gao et al. 2024, section 4).

    The sum from step k to the end is then the score of step k alone, however many steps follow.
    """
    rewards = rewards_of(batch)
    following = torch.cat([rewards[:, 1:], torch.zeros_like(rewards[:, :1])], -1)
    return torch.where(batch.has_step, rewards - following, 0.0)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, T), 0 where masked (Schulman et al. 2016).

    `delta_t = r_t + gamma * V_{t+1} - V_t`, `A_t = delta_t + gamma * lam * A_{t+1}`, where t+1 is the row's next token that is trained on, and
    nothing follows the last one. Returns are `A + V`, what the critic is fitted to. `values` are of the state before each token.
    """
    out = torch.zeros_like(rewards)
    follow = torch.zeros_like(rewards[:, 0]) if rewards.shape[1] else rewards.sum(-1)
    ahead = torch.zeros_like(follow)
    for place in range(rewards.shape[1] - 1, -1, -1):
        valid = mask[:, place]
        delta = rewards[:, place] + gamma * ahead - values[:, place]
        advantage = delta + gamma * lam * follow
        out[:, place] = torch.where(valid, advantage, 0.0)
        follow = torch.where(valid, advantage, follow)
        ahead = torch.where(valid, values[:, place], ahead)
    return out, torch.where(mask, out + values, 0.0)


def implicit_rewards(batch: Batch) -> Tensor:
    """(B, T): the token rewards, 0 where masked. Raises `UsageError` where the batch has none."""
    if batch.token_rewards is None:
        raise UsageError("this method needs token rewards: give an implicit PRM")
    return torch.where(batch.mask, batch.token_rewards, 0.0)


def batch_scaled(rewards: Tensor) -> Tensor:
    """`rewards` (B, T) over the largest size of a sum from any token to the end, of the *whole* batch (`prime_norm: batch_norm`).

    The published code takes the maximum over one device's share, so that its rewards depend on how many devices there are. When training on
    several gathers first.
    """
    return rewards / (to_go(rewards).abs().amax() + 1e-6) if rewards.numel() else rewards


def whitened(values: Tensor, mask: Tensor, *, deviation: Deviation = "sample") -> Tensor:
    """`values` (B, T) with mean 0 and variance 1 over the tokens of `mask`; 0 elsewhere and where there is no spread.

    It is `masked_whiten` of verl and of TRL's former `PPOTrainer`, with the variance divided by N - 1. They add 1e-8 to the variance, which
    here is not needed, and refuse a single token, which here gives 0.
    """
    count = mask.sum()
    mean = torch.where(mask, values, 0.0).sum() / count.clamp_min(1)
    centred = torch.where(mask, values - mean, 0.0)
    spread = ((centred**2).sum() / degrees_of_freedom(count, deviation)).sqrt()
    if spread <= 1e-6 * (1 + mean.abs()):
        return torch.zeros_like(centred)
    return centred / spread
