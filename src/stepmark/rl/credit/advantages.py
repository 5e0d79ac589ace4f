"""Credit functions: from a batch's rewards to an advantage for each token. All are pure; (B, T) and (B, S) as in `Batch`.

**Divergence** from the reference, token by token (Schulman 2020, "Approximating KL divergence"). With `delta = log pi - log pi_ref` on tokens
that the policy wrote: k1 = delta, k2 = delta**2 / 2, k3 = exp(-delta) - 1 + delta. k1 and k3 have the reverse KL as their mean; k2 is biased
and small in variance. As a *loss*, the gradient of k2 is the true gradient of the reverse KL on-policy and that of k3 a first-order
approximation of another one; k1 as a loss has a gradient of mean zero, so it belongs into the reward (Zhang et al. 2025, arXiv 2510.01555;
arXiv 2512.21852).

**Safe step rewards** (`clip`, `delta`): where they are summed as they are (`step_ppo`), a policy cannot earn by writing more steps. Group
normalisation takes their mean from every step (`grpo_process`): next to clipped steps that lost, one that did not earns again, and under
`delta`, of which the mean is above 0, each further step costs.
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


Estimator = Literal["k1", "k2", "k3"]
CLAMP = 20.0
"""`delta` is cut to this size under the exponential of k3: beyond it the estimate is a number without meaning that overflows."""


def kl(logprobs: Tensor, reference: Tensor, mask: Tensor, *, estimator: Estimator) -> Tensor:
    """(B, T): the estimate at each token, 0 where masked. `k2` and `k3` are for the loss, `k1` is for the reward.

    Raises:
        UsageError: an estimator that there is not.
    """
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


def outcome_grpo(batch: Batch, *, scale: bool = True, deviation: Deviation = "sample") -> Tensor:
    """GRPO with outcome supervision (Shao et al. 2024, DeepSeekMath, section 4.1.2): `(r - mean) / std` of the group, at every token.

    A group that is all right or all wrong has no spread and gives 0: there is nothing to prefer. The paper does not say which standard deviation
    it means; the default is the sample's (N - 1), as in TRL's `GRPOTrainer` and verl's `compute_grpo_outcome_advantage`. No epsilon stands
    under the fraction (`normalised`).

    Args:
        batch: completions; groups of one give 0.
        scale: divide by the standard deviation; without, it is Dr. GRPO's advantage (Liu et al. 2025, section 3.2).
    """
    every = torch.ones_like(batch.outcome, dtype=torch.bool)
    found = normalised(batch.outcome, batch.groups, every, scale=scale, deviation=deviation)
    return spread_over(found, batch.mask)


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

    Deviations: the code sets the advantage of separator tokens to 0; here the maker of `batch.mask` decides that. Its `token` baseline
    counts a step without its separator (`num_tokens_per_step`) and the other completions with theirs (`response_length`), so that it
    takes less than the average share from each step; here both counts are of a step's trained tokens, the separator with them.

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
        # What has no steps has no rewards: it counts in no baseline.
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


def progress(batch: Batch, *, alpha: float = 3.0) -> Tensor:
    """Process advantage verifiers (Setlur et al. 2024, arXiv 2410.08146, equation 5): each step is weighted by `Q + alpha * progress`.

    The step rewards are a prover's values, the probability of a right answer after each step; a step's progress is its value less the one
    before it. `Q` of the policy is estimated by the verifier's outcome less its group's mean, for all tokens alike.

    Deviation: the value before the first step is the group's mean outcome, which estimates it for the policy as its own prover.

    Args:
        batch: step rewards are values in [0, 1].
        alpha: weight of progress; the paper took 3 to 5 for training.

    Raises:
        UsageError: no step rewards.
    """
    values, mean = rewards_of(batch), group_mean(batch.outcome, batch.groups)
    before = torch.cat([mean[:, None], values[:, :-1]], -1)
    step = torch.where(batch.has_step, values - before, 0.0)
    outcome = spread_over(batch.outcome - mean, batch.mask)
    return torch.where(batch.mask, outcome + alpha * over_step_tokens(step, batch.step_of), 0.0)


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


def prof_keep(batch: Batch, *, remove: int, fewest_steps: int = 2, most_steps: int = 30) -> Tensor:
    """(B,) bool: which completions to train on (PROF, Ye et al. 2025, arXiv 2509.03403): those where process and outcome agree.

    Of a group with `d` more right than wrong ones, `min(remove, round((d + remove) / 2))` right ones with the lowest mean step reward go, and
    wrong ones with the highest, so that `remove` go and right and wrong come nearer to balance. A completion of fewer than `fewest_steps` or
    more than `most_steps` steps goes first among the right ones and last among the wrong ones. Of equals the earlier one stays.

    Args:
        fewest_steps: under this a solution is suspected of hiding its reasoning.

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
        good, bad = here[right[here]].tolist(), here[~right[here]].tolist()
        # Python rounds halves to even, as the published code does.
        from_good = min(remove, max(0, round((len(good) - len(bad) + remove) / 2)), len(good))
        from_bad = min(remove - from_good, len(bad))
        low = sorted(good, key=lambda row: (not bool(odd[row]), float(mean[row]), -row))
        high = sorted(bad, key=lambda row: (bool(odd[row]), -float(mean[row]), -row))
        for row in (*low[: remove - from_bad], *high[:from_bad]):
            keep[row] = False
    return keep


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

    The published code takes the maximum over one device's share, so that its rewards depend on how many devices there are. When training on
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
