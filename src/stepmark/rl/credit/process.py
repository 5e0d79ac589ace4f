"""Credit from a PRM's step rewards."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.rl.batch import Batch
from stepmark.rl.credit.groups import (
    Deviation,
    at_step_ends,
    group_mean,
    group_sum,
    leave_one_out,
    normalised,
    over_step_tokens,
    spread_over,
    to_go,
)


def rewards_of(batch: Batch) -> Tensor:
    """(B, S): the step rewards, 0 where there is no step.

    Raises:
        UsageError: the batch has none.
    """
    if batch.step_rewards is None:
        raise UsageError("this method needs step rewards: give a PRM")
    return torch.where(batch.has_step, batch.step_rewards, 0.0)


def grpo_process(batch: Batch, *, scale: bool = True, deviation: Deviation = "sample") -> Tensor:
    """GRPO with process supervision (Shao et al. 2024, DeepSeekMath, section 4.1.3).

    All step rewards of a group are normalised together, `r~ = (r - mean) / std`; a token's advantage is the sum of `r~` over the steps that end at
    it or later. It is a sum and not a mean, so a solution of many good steps gains by their number: see `clip` and `delta`.

    Args:
        batch: with step rewards.
        scale: divide by the standard deviation.
        deviation: which one, of all N step rewards of a group. The paper does not say which; the default is the one that `outcome_grpo` has.
    """
    step = normalised(rewards_of(batch), batch.groups, batch.has_step, scale=scale, deviation=deviation)
    return torch.where(batch.mask, to_go(at_step_ends(step, batch.step_ends, batch.mask.shape[1])), 0.0)


def min_form_rewards(batch: Batch, *, temperature: float = 0.1) -> Tensor:
    """(B, S): PURE's rewards, of which the sum is a soft minimum of the step rewards (Cheng et al. 2025, equation 6).

    `r*_s = softmax(-r / temperature)_s * r_s`, over the steps of one completion. The paper's step rewards are margins p(+) - p(-) in [-1, 1].
    """
    rewards = rewards_of(batch)
    weights = torch.softmax(torch.where(batch.has_step, -rewards / temperature, -torch.inf), -1)
    # A completion without steps has nothing to weigh; its softmax is 0/0.
    return torch.where(batch.has_step, weights * rewards, 0.0)


def min_form(
    batch: Batch,
    *,
    temperature: float = 0.1,
    baseline: Literal["token", "step", "none"] = "token",
    outcome_weight: float = 1.0,
) -> Tensor:
    """PURE: credit by the soft minimum of the step rewards, with a leave-one-out baseline (Cheng et al. 2025, section 3; code at 41f9363).

    Returns are sums of `min_form_rewards` from a token to the end. Baselines, from the other completions j of the problem, with R_j the sum of j's
    rewards: `token` takes `length of the step * sum R_j / sum length_j` from each step, so that long steps carry their share; `step` takes the
    mean of `R_j / steps_j`, which favours completions of few steps. Completions without steps have no part in either, and where nobody else has steps
    there is nothing to take. The verifier's reward enters as `outcome - 1` less that of the others, at
    the last token.

    Deviation: the code sets the advantage of separator tokens to 0; here, whoever makes `batch.mask` decides that.

    Raises:
        UsageError: no step rewards, or a problem with one completion and a baseline.
    """
    rewards = min_form_rewards(batch, temperature=temperature)
    total = rewards.sum(-1)
    if baseline == "token":
        lengths = batch.step_lengths.to(rewards.dtype)
        length = lengths.sum(-1)
        others = group_sum(length, batch.groups) - length
        rate = (group_sum(total, batch.groups) - total) / others.clamp_min(1)
        leave_one_out(total, batch.groups)  # refuses groups of one
        rewards = rewards - lengths * rate[:, None]
    elif baseline == "step":
        leave_one_out(total, batch.groups)  # refuses groups of one
        # What has no steps has no rewards: it counts in nobody's baseline.
        there = batch.has_step.any(-1).to(rewards.dtype)
        mean = total / batch.has_step.sum(-1).clamp_min(1)
        others = group_sum(there, batch.groups) - there
        each = (group_sum(mean, batch.groups) - mean) / others.clamp_min(1)
        rewards = torch.where(batch.has_step, rewards - each[:, None], 0.0)
    elif baseline != "none":
        raise UsageError(f"expected token, step or none, found {baseline!r}")
    tokens = at_step_ends(rewards, batch.step_ends, batch.mask.shape[1])
    if outcome_weight:
        verified = batch.outcome - 1
        tokens = tokens + outcome_weight * at_last_token(
            verified - leave_one_out(verified, batch.groups), batch
        )
    return torch.where(batch.mask, to_go(tokens), 0.0)


def progress(batch: Batch, *, alpha: float = 3.0, root: Literal["given", "group"] = "given") -> Tensor:
    """Process advantage verifiers (Setlur et al. 2024, arXiv 2410.08146, equation 5): each step is weighted by `Q + alpha * progress`.

    The step rewards are a prover's values, the probability of a right answer after each step; a step's progress is its value less the one before
    it. `Q` of the policy is estimated by the verifier's outcome less its group's mean, for all tokens alike.

    Args:
        batch: step rewards are values in [0, 1].
        alpha: weight of progress; the paper took 3 to 5 for training.
        root: where the value before the first step comes from: `root_values`, or the group's mean outcome, which estimates the same for the
            policy as its own prover (a deviation).

    Raises:
        UsageError: no step rewards, or `root` "given" and none given.
    """
    values = rewards_of(batch)
    if root == "given" and batch.root_values is None:
        raise UsageError("progress needs the value before the first step: give root_values, or root='group'")
    first = (
        batch.root_values
        if root == "given" and batch.root_values is not None
        else group_mean(batch.outcome, batch.groups)
    )
    before = torch.cat([first[:, None], values[:, :-1]], -1)
    step = torch.where(batch.has_step, values - before, 0.0)
    outcome = spread_over(batch.outcome - group_mean(batch.outcome, batch.groups), batch.mask)
    return torch.where(batch.mask, outcome + alpha * over_step_tokens(step, batch.step_of), 0.0)


def at_last_token(values: Tensor, batch: Batch) -> Tensor:
    """(B, T): each row's value at its last trained token; a completion without tokens has no place for it."""
    return at_step_ends(values[:, None], batch.last_token[:, None], batch.mask.shape[1])
