"""Step rewards made safe before they are given out: none of these lets a policy earn by writing more steps.

So they are where they are summed as they are (`critic.step_ppo`). Group normalisation takes their mean from every step (`process.grpo_process`): next to
clipped steps that lost, one that did not earns again, and under `delta`, of which the mean is above 0, each further step costs.

Each takes and gives (B, S), 0 where there is no step; put the result into a batch by `dataclasses.replace(batch, step_rewards=...)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.process import rewards_of


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


def potential(batch: Batch, *, gamma: float = 1.0, root: Tensor | None = None) -> Tensor:
    """Potential shaping `gamma * phi(after) - phi(before)` with the scores as potentials (Ng et al. 1999; on PRMs: openreview jUHIOgf5Ov).

    The end of a solution has potential 0, as optimality demands, so with gamma 1 a completion's rewards add up to minus the potential of its problem,
    whatever it writes: beside an outcome reward they move credit between steps and change no ranking of solutions.

    Args:
        batch: scores in any range.
        gamma: discount a step.
        root: (B,) potential before the first step; None for 0.
    """
    scores = rewards_of(batch)
    if root is not None and root.shape != batch.groups.shape:
        raise UsageError(f"root: expected the shape {tuple(batch.groups.shape)}, found {tuple(root.shape)}")
    first = torch.zeros_like(batch.outcome, dtype=scores.dtype) if root is None else root.to(scores.dtype)
    before = torch.cat([first[:, None], scores[:, :-1]], -1)
    last = batch.has_step & ~torch.cat([batch.has_step[:, 1:], torch.zeros_like(batch.has_step[:, :1])], -1)
    after = torch.where(last, 0.0, scores)
    return torch.where(batch.has_step, gamma * after - before, 0.0)
