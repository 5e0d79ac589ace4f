"""Credit with a critic: generalised advantage estimation over token rewards (Schulman et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.groups import at_step_ends
from stepmark.rl.credit.process import at_last_token, rewards_of


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, T), 0 where masked.

    `delta_t = r_t + gamma * V_{t+1} - V_t`, `A_t = delta_t + gamma * lam * A_{t+1}`, where t+1 is the row's next token that is trained on, and
    nothing follows the last one. Returns are `A + V`, what the critic is fitted to.

    Args:
        rewards: (B, T).
        values: (B, T), of the state before each token.
        mask: (B, T) bool; masked tokens in the middle of a row are stepped over.
        gamma: discount a token.
        lam: 1 trusts the rewards, 0 the critic.
    """
    out = torch.zeros_like(rewards)
    follow = torch.zeros_like(rewards[:, 0]) if rewards.shape[1] else rewards.sum(-1)
    ahead = torch.zeros_like(follow)
    for place in range(rewards.shape[1] - 1, -1, -1):
        here = mask[:, place]
        delta = rewards[:, place] + gamma * ahead - values[:, place]
        advantage = delta + gamma * lam * follow
        out[:, place] = torch.where(here, advantage, 0.0)
        follow = torch.where(here, advantage, follow)
        ahead = torch.where(here, values[:, place], ahead)
    return out, torch.where(mask, out + values, 0.0)


def ppo(
    batch: Batch, *, gamma: float = 1.0, lam: float = 0.95, kl: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """PPO with a critic and the outcome alone, at the last token (Ouyang et al. 2022, "Training language models to follow instructions", section 3.5).

    Args:
        batch: with values.
        gamma: discount a token.
        lam: of GAE.
        kl: as `step_ppo`'s.

    Returns:
        Advantages and returns, (B, T) each.

    Raises:
        UsageError: values are missing.
    """
    if batch.values is None:
        raise UsageError("PPO needs the critic's values")
    rewards = at_last_token(batch.outcome, batch)
    return gae(rewards if kl is None else rewards + kl, batch.values, batch.mask, gamma=gamma, lam=lam)


def step_ppo(
    batch: Batch,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    outcome_weight: float = 1.0,
    kl: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Step-by-step PPO (Wang et al. 2024, Math-Shepherd, section 3.4): the PRM's score at each step's last token, a critic, GAE.

    Args:
        batch: with step rewards and values.
        gamma: discount a token.
        lam: of GAE.
        outcome_weight: of the verifier's reward at the last token; 0 in the paper.
        kl: (B, T) what the divergence from the reference adds to the rewards (`kl_reward`: negative), or None.

    Returns:
        Advantages and returns, (B, T) each.

    Raises:
        UsageError: step rewards or values are missing.
    """
    if batch.values is None:
        raise UsageError("step PPO needs the critic's values")
    rewards = at_step_ends(rewards_of(batch), batch.step_ends, batch.mask.shape[1])
    rewards = rewards + outcome_weight * at_last_token(batch.outcome, batch)
    if kl is not None:
        rewards = rewards + kl
    return gae(rewards, batch.values, batch.mask, gamma=gamma, lam=lam)
