"""Credit from the outcome alone: every token of a completion gets the same."""

from __future__ import annotations

import torch
from torch import Tensor

from stepmark.rl.batch import Batch
from stepmark.rl.credit.groups import Deviation, leave_one_out, normalised, spread_over


def outcome_grpo(batch: Batch, *, scale: bool = True, deviation: Deviation = "sample") -> Tensor:
    """GRPO with outcome supervision (Shao et al. 2024, DeepSeekMath, section 4.1.2): `(r - mean) / std` of the group, at every token.

    A group that is all right or all wrong has no spread and gives 0: there is nothing to prefer. The paper does not say which standard deviation
    it means; the default is the sample's (N - 1), as in TRL's `GRPOTrainer` and verl's `compute_grpo_outcome_advantage`. No epsilon stands
    under the fraction (`groups.normalised`).

    Args:
        batch: completions; groups of one give 0.
        scale: divide by the standard deviation; without, it is Dr. GRPO's advantage (Liu et al. 2025, section 3.2).
        deviation: which one.
    """
    every = torch.ones_like(batch.outcome, dtype=torch.bool)
    found = normalised(batch.outcome, batch.groups, every, scale=scale, deviation=deviation)
    return spread_over(found, batch.mask)


def rloo(batch: Batch) -> Tensor:
    """REINFORCE with the others' mean as the baseline (Ahmadian et al. 2024, section 3.2), at every token.

    Raises:
        UsageError: a problem with one completion.
    """
    return spread_over(batch.outcome - leave_one_out(batch.outcome, batch.groups), batch.mask)
