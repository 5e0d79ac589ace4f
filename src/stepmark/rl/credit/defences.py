"""Process rewards anchored to the verifier's outcome: a policy cannot win by steps that please the PRM and end wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.groups import Deviation, group_sum, normalised, spread_over
from stepmark.rl.credit.outcome import outcome_grpo
from stepmark.rl.credit.process import grpo_process, rewards_of

RIGHT = 0.5
"""An outcome over this counts as right, where a method asks for right or wrong."""


def is_right(batch: Batch) -> Tensor:
    """(B,) bool: the verifier calls it right."""
    return batch.outcome > RIGHT


def mean_step_reward(batch: Batch) -> Tensor:
    """(B,): the mean of each completion's step rewards; 0 for one without steps, which callers leave out."""
    return rewards_of(batch).sum(-1) / batch.has_step.sum(-1).clamp_min(1)


def blend(batch: Batch, *, process_weight: float, deviation: Deviation = "sample") -> Tensor:
    """(1 - w) * outcome GRPO + w * process GRPO: the plain mixture that the other functions here improve on.

    Args:
        batch: with step rewards.
        process_weight: w.
        deviation: what both divide by.

    Raises:
        UsageError: a weight outside [0, 1], or no step rewards.
    """
    if not 0 <= process_weight <= 1:
        raise UsageError(f"process_weight: expected a number in [0, 1], found {process_weight}")
    outcome = outcome_grpo(batch, deviation=deviation)
    return (1 - process_weight) * outcome + process_weight * grpo_process(batch, deviation=deviation)


def papo(batch: Batch, *, process_weight: float = 1.0, deviation: Deviation = "sample") -> Tensor:
    """Correct-only normalisation (PAPO, arXiv 2603.26535): outcome advantages over all, process advantages among right completions only.

    A right completion gets `(p - mean) / std` of its mean step reward among the group's right ones on top; a wrong one, or one without steps, gets
    nothing more.

    Args:
        batch: with step rewards.
        process_weight: of the process advantages.
        deviation: what both divide by; of the process advantages, the one of the right completions alone.
    """
    among = is_right(batch) & batch.has_step.any(-1)
    process = normalised(mean_step_reward(batch), batch.groups, among, deviation=deviation)
    return outcome_grpo(batch, deviation=deviation) + process_weight * spread_over(process, batch.mask)


def zero_mean_wrong(batch: Batch) -> Tensor:
    """(B, S): step rewards of which those of wrong completions are shifted to mean 0 in each group (PROGRS, arXiv 2604.02341).

    So wrong completions, taken together, earn nothing from the PRM; within them it still tells better steps from worse ones.
    """
    rewards = rewards_of(batch)
    wrong = batch.has_step & ~is_right(batch)[:, None]
    count = group_sum(wrong.sum(-1).to(rewards.dtype), batch.groups).clamp_min(1)
    mean = group_sum(torch.where(wrong, rewards, 0.0).sum(-1), batch.groups) / count
    return torch.where(wrong, rewards - mean[:, None], rewards)


def progrs(batch: Batch, *, process_weight: float = 1.0, deviation: Deviation = "sample") -> Tensor:
    """Outcome GRPO, and process GRPO on `zero_mean_wrong` as a bonus (PROGRS, arXiv 2604.02341).

    Deviation: the paper's bonus is normalised otherwise; here by the group, as in `grpo_process`.
    """
    centred = replace(batch, step_rewards=zero_mean_wrong(batch))
    outcome = outcome_grpo(batch, deviation=deviation)
    return outcome + process_weight * grpo_process(centred, deviation=deviation)


def prof_keep(
    batch: Batch,
    *,
    remove: int,
    correct_only: bool = False,
    fewest_steps: int = 2,
    most_steps: int = 30,
) -> Tensor:
    """(B,) bool: which completions to train on (PROF, Ye et al. 2025, arXiv 2509.03403): those where process and outcome agree.

    Of a group with `d` more right than wrong ones, `min(remove, round((d + remove) / 2))` right ones with the lowest mean step reward go, and wrong ones
    with the highest, so that `remove` go and right and wrong come nearer to balance. A completion of fewer than `fewest_steps` or more than `most_steps` steps
    goes first among the right ones and last among the wrong ones. Of equals the earlier one stays.

    Args:
        batch: with step rewards.
        remove: how many of each group go.
        correct_only: take them from the right ones only (all of them at most): the safe mode where the PRM is out of its domain.
        fewest_steps: under this a solution is suspected of hiding its reasoning.
        most_steps: over this, of padding.

    Raises:
        UsageError: `remove` is negative, or leaves a group empty.
    """
    if remove < 0:
        raise UsageError(f"remove: expected 0 or more, found {remove}")
    mean, right = mean_step_reward(batch), is_right(batch)
    steps = batch.has_step.sum(-1)
    odd = (steps < fewest_steps) | (steps > most_steps)
    keep = torch.ones_like(right)
    for group in torch.unique(batch.groups):
        here = torch.nonzero(batch.groups == group)[:, 0]
        if remove >= len(here):
            raise UsageError(
                f"remove: expected fewer than the {len(here)} completions of a problem, found {remove}"
            )
        good, bad = here[right[here]], here[~right[here]]
        if correct_only:
            from_good, from_bad = min(remove, len(good)), 0
        else:
            # Python rounds halves to even, as the published code does.
            from_good = min(remove, max(0, round((len(good) - len(bad) + remove) / 2)), len(good))
            from_bad = min(remove - from_good, len(bad))
            from_good = remove - from_bad
        low = sorted(good.tolist(), key=lambda row: (not bool(odd[row]), float(mean[row]), -row))
        high = sorted(bad.tolist(), key=lambda row: (bool(odd[row]), -float(mean[row]), -row))
        for row in (*low[:from_good], *high[:from_bad]):
            keep[row] = False
    return keep
