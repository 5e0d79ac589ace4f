"""Outcome and step scores in one row of token rewards, and back: for trainers that carry nothing else to their advantages.

Each step's score stands at the step's last token and the outcome at the completion's last token. That is the last step's end too, so the last
step's score stands one token before it. A score of exactly 0 would read as no step; `NO_ZERO` stands for it. The sum of a row is the outcome and all
step scores.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import InputError, UsageError
from stepmark.rl.adapters.completions import check_credit
from stepmark.rl.batch import Batch
from stepmark.rl.credit import Credit
from stepmark.rl.rewarding import Rated

NO_ZERO = float(torch.finfo(torch.float32).tiny)
"""Stands for a step score of 0: the smallest normal float32 (and bfloat16), about 1.2e-38."""

CARRIED = ("grpo", "process-grpo", "min-form", "progress", "papo")
"""The methods of `CREDITS` that need no more than a row holds."""


def token_row(outcome: float, ends: Sequence[int], scores: Sequence[float], *, tokens: int) -> list[float]:
    """The rewards of a completion's tokens.

    What it cannot hold: a last step of a single token becomes one step with the one before it and has the lower of their scores, as steps that
    share their last token have; the step of a completion of one token has no place.

    Args:
        outcome: the verifier's reward.
        ends: place of each step's last token, rising; the last one is the completion's last token (`spans.step_spans`).
        scores: one a step; none for a completion without scores.
        tokens: of the completion, at least one.

    Raises:
        InputError: no tokens, scores that are not one a step, a last step that does not end the completion.
    """
    if tokens < 1 or len(ends) != len(scores) or (ends and ends[-1] != tokens - 1):
        raise InputError(
            f"expected one score for each step, and the last step to end {tokens} tokens, found {len(scores)} scores for the ends {list(ends)}"
        )
    row = [0.0] * tokens
    for end, score in zip(ends, scores, strict=True):
        place = min(end, tokens - 2)
        if place >= 0:
            known = row[place]
            # Only the last step can meet another: ends rise, and only it was moved.
            row[place] = min(score, 0.0 if known == NO_ZERO else known) if known else score
            row[place] = row[place] or NO_ZERO
    row[-1] = outcome
    return row


def row_of(rated: Rated, outcome: float) -> list[float]:
    """The `token_row` of a completion of `completions.rate`; steps that share their last token have the lowest of their scores."""
    scores = rated.scores
    each = [] if scores is None else [min(scores[step] for step in steps) for steps in rated.spans.steps]
    return token_row(outcome, rated.spans.ends if each else (), each, tokens=len(rated.drawn.ids))


def batch_of_rows(rewards: Tensor, mask: Tensor, groups: Sequence[Hashable]) -> tuple[Batch | None, Tensor]:
    """The batch that `token_row`s were made from, without completions that have no tokens or no other of their problem.

    Args:
        rewards: (B, T).
        mask: (B, T) bool: the completions' tokens, without gaps.
        groups: of each; completions of one problem have equal ones.

    Returns:
        The batch, None when nothing is left; and (B,) bool, which rows are in it.
    """
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    number = torch.tensor([numbers[group] for group in groups], device=rewards.device)
    written = mask.any(-1)
    kept = written & (((number[:, None] == number) & written).sum(-1) > 1)
    if not kept.any():
        return None, kept
    rewards, mask, number = rewards[kept].float(), mask[kept], number[kept]
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, -1).amax(-1, keepdim=True)
    here = mask & (rewards != 0) & (places < last)
    count = here.sum(-1)
    # Stable: the places of steps first, in their order.
    ends = torch.argsort(~here, dim=-1, stable=True)[:, : max(1, int(count.max()))]
    scores = rewards.gather(1, ends)
    steps = torch.arange(ends.shape[1], device=mask.device)
    ends = torch.where(steps == count[:, None] - 1, last, ends)
    return Batch(
        mask=mask,
        groups=number,
        outcome=rewards.gather(1, last)[:, 0],
        step_ends=torch.where(steps < count[:, None], ends, -1),
        step_rewards=torch.where(scores == NO_ZERO, 0.0, scores),
    ), kept


def estimator(credit: Credit) -> Callable[..., tuple[Tensor, Tensor]]:
    """An advantage estimator of verl's: (B, T) advantages, twice, from rows of rewards.

    Raises:
        UsageError: a method that needs a critic or token rewards; when called: KL in the reward, which would hide the steps, one completion a problem, or
            scores that are no probabilities where it needs them.
    """
    check_credit(credit, prm=True)

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any,
        config: Any = None,
        reward_baselines: Any = None,
    ) -> tuple[Tensor, Tensor]:
        if config is not None and config.get("use_kl_in_reward"):
            raise UsageError(
                "algorithm.use_kl_in_reward hides where steps end; set actor_rollout_ref.actor.use_kl_loss instead"
            )
        batch, kept = batch_of_rows(token_level_rewards, response_mask.bool(), list(index))
        if batch is None:
            raise UsageError(
                "expected several completions of a problem, found one of each: set actor_rollout_ref.rollout.n"
            )
        scores = batch.step_rewards
        if credit.needs.probabilities and scores is not None and not ((scores >= 0) & (scores <= 1)).all():
            raise UsageError(
                f"{type(credit).__name__} needs a PRM whose scores are probabilities, found one of {scores.min():g} and one of {scores.max():g}"
            )
        found = torch.zeros_like(token_level_rewards, dtype=torch.float32)
        found[kept] = credit.assign(batch).advantages
        return found, found

    return estimate
