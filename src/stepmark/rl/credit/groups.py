"""Means and standard deviations within groups of completions of one problem."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stepmark.errors import UsageError

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
    """(B,) of each row: the mean of the *others* of its group, RLOO's baseline (Ahmadian et al. 2024, section 3.2).

    Raises:
        UsageError: a group of one, which has no others.
    """
    count = group_sum(torch.ones_like(values), groups)
    if (count < 2).any():
        raise UsageError(
            "a leave-one-out baseline needs at least two completions of each problem; sample more, or take another method"
        )
    return (group_sum(values, groups) - values) / (count - 1)


def normalised(
    values: Tensor, groups: Tensor, among: Tensor, *, scale: bool = True, deviation: Deviation = "sample"
) -> Tensor:
    """`values` less their group's mean, over its standard deviation; 0 outside `among` and where a group has no spread.

    No epsilon stands under the fraction (TRL adds 1e-4 to the deviation, verl 1e-6). A group with one value gives 0, as in TRL; verl gives
    the value itself.

    Args:
        values: (B,) or (B, S).
        groups: (B,).
        among: bool, the shape of `values`: what counts.
        scale: divide by the standard deviation.
        deviation: which one.
    """
    flat = values if values.ndim == 2 else values[:, None]
    counted = (among if among.ndim == 2 else among[:, None]).to(values.dtype)
    kept = torch.where(counted > 0, flat, 0.0)
    count = group_sum(counted.sum(-1), groups).clamp_min(1)
    mean = (group_sum(kept.sum(-1), groups) / count)[:, None]
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
    here = step_ends >= 0
    out = torch.zeros(len(step_ends), tokens, dtype=step_values.dtype, device=step_values.device)
    return out.scatter_add(1, step_ends.clamp_min(0), torch.where(here, step_values, 0.0))


def over_step_tokens(step_values: Tensor, step_of: Tensor) -> Tensor:
    """(B, T): each step's value at all its tokens, 0 where a token is in no step."""
    if not step_values.shape[1]:
        return torch.zeros(step_of.shape, dtype=step_values.dtype, device=step_values.device)
    return torch.where(step_of >= 0, torch.gather(step_values, 1, step_of.clamp_min(0)), 0.0)
