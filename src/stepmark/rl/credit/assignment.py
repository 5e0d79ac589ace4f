"""The credit methods by name: each a frozen dataclass of its paper's settings, whose method is the paper's formula."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.lazy import note_idle
from stepmark.records import ScoreKind
from stepmark.registry import Registry
from stepmark.rl.batch import Batch
from stepmark.rl.credit import Assigned, Credit, Needs, advantages, turns
from stepmark.rl.credit.advantages import (
    Deviation,
    at_last_token,
    at_step_ends,
    batch_scaled,
    gae,
    group_mean,
    group_sum,
    implicit_rewards,
    leave_one_out,
    min_form_rewards,
    normalised,
    over_step_tokens,
    rewards_of,
    spread_over,
    to_go,
    whitened,
)
from stepmark.settings import settings

CLIP_AT = 0.5
"""Default of `clip_at`."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClipAt = Annotated[float, Field(allow_inf_nan=False)]
Shaping = Literal["none", "clip", "delta"]
"""What is done to step rewards first: nothing, or the function of that name in `credit.advantages`."""


def check_kind(credit: Credit, kind: ScoreKind, *, prm: str) -> None:
    """Refuse a PRM whose scores a method would read as what they are not.

    Raises:
        UsageError: the method reads probabilities, and these are none.
    """
    if credit.needs.probabilities and kind != "probability":
        instead = "; `centre` false takes margins as they are" if isinstance(credit, MinForm) else ""
        raise UsageError(
            f"{type(credit).__name__} needs a PRM whose scores are probabilities; those of {prm} are of the kind {kind!r}{instead}"
        )


def _check_shaping(shaping: Shaping, clip_at: float) -> None:
    note_idle(
        {"clip_at": clip_at != CLIP_AT or None},
        {} if shaping == "clip" else {"clip_at": f"the shaping is {shaping}"},
    )


def _check_deviation(deviation: Deviation, used: bool, by: str) -> None:
    note_idle(
        {"deviation": deviation != "sample" or None}, {} if used else {"deviation": f"{by} divides by none"}
    )


@settings
class _WithoutCritic(ABC):
    """A method of advantages alone. Abstract: `advantages`."""

    @abstractmethod
    def advantages(self, batch: Batch) -> Tensor:
        """(B, T), 0 where masked. Raises `UsageError` where the batch lacks what the method `needs`."""

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """`advantages`; the divergence of all that follows is charged to a token, as the rest of its return is."""
        result = self.advantages(batch)
        return Assigned(advantages=result if kl is None else result + to_go(kl) * batch.mask)


def _of_outcomes(batch: Batch, deviation: Deviation, *, scale: bool = True) -> Tensor:
    every = torch.ones_like(batch.outcome, dtype=torch.bool)
    result = normalised(batch.outcome, batch.groups, every, scale=scale, deviation=deviation)
    return spread_over(result, batch.mask)


@settings
class GRPO(_WithoutCritic):
    """GRPO on the verifier's outcome alone (Shao et al. 2024, DeepSeekMath, section 4.1.2): `(r - mean) / std` of the group, at every token.

    A group that is all right or all wrong has no spread and gives 0. The paper does not say which standard deviation it means; the default is
    the sample's (N - 1), as in TRL's `GRPOTrainer` and verl's `compute_grpo_outcome_advantage`, without their epsilon (`normalised`).
    """

    name: ClassVar[str] = "grpo"
    needs: ClassVar[Needs] = Needs()
    scale: bool = True
    """Divide by the group's standard deviation; without, Dr. GRPO (Liu et al. 2025, section 3.2)."""
    deviation: Deviation = "sample"
    """Which standard deviation (`advantages.Deviation`)."""

    def __post_init__(self) -> None:
        _check_deviation(self.deviation, self.scale, "an advantage that is not scaled")

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T)."""
        return _of_outcomes(batch, self.deviation, scale=self.scale)


@settings
class RLOO(_WithoutCritic):
    """REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, section 3.2): the outcome less the mean of the others', at every token."""

    name: ClassVar[str] = "rloo"
    needs: ClassVar[Needs] = Needs()

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T)."""
        return spread_over(batch.outcome - leave_one_out(batch.outcome, batch.groups), batch.mask)


@settings
class ProcessGRPO(_WithoutCritic):
    """GRPO with process supervision (Shao et al. 2024, DeepSeekMath, section 4.1.3), mixed with `GRPO`: (1 - w) * outcome + w * process.

    All step rewards of a group are normalised together, `r~ = (r - mean) / std`; a token's process advantage is the sum of `r~` over the steps
    that end at it or later. It is a sum and not a mean, so a solution of many good steps gains by their number: see `shaping`.
    """

    name: ClassVar[str] = "process-grpo"
    needs: ClassVar[Needs] = Needs(steps=True)
    process_weight: Share = 1.0
    """1 is the paper's: the PRM alone. It is what gets hacked; anchor it."""
    shaping: Shaping = "none"
    clip_at: ClipAt = CLIP_AT
    """Of the shaping clip: a step's reward above this counts as this."""
    deviation: Deviation = "sample"
    """Which standard deviation (`advantages.Deviation`)."""

    def __post_init__(self) -> None:
        _check_shaping(self.shaping, self.clip_at)

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T)."""
        batch = shaped(batch, self.shaping, clip_at=self.clip_at)
        step = normalised(rewards_of(batch), batch.groups, batch.has_step, deviation=self.deviation)
        process = torch.where(
            batch.mask, to_go(at_step_ends(step, batch.step_ends, batch.mask.shape[1])), 0.0
        )
        weight = self.process_weight
        return (1 - weight) * _of_outcomes(batch, self.deviation) + weight * process


@settings
class MinForm(_WithoutCritic):
    """PURE: credit by the soft minimum of the step rewards, with a leave-one-out baseline (Cheng et al. 2025, section 3; code at 41f9363).

    Returns are sums of `min_form_rewards` from a token to the end; the verifier's reward enters as `outcome - 1` less that of the others, at
    the last token. Completions without steps have no part in a baseline, and where nobody else has steps there is nothing to take.

    Deviations: the code sets the advantage of separator tokens to 0; here the maker of `batch.mask` decides that. Its `token` baseline
    counts a step without its separator (`num_tokens_per_step`) and the other completions with theirs (`response_length`), so that it
    takes less than the average share from each step; here both counts are of a step's trained tokens, the separator with them.
    """

    name: ClassVar[str] = "min-form"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Of the soft minimum; the lower, the more the weakest step alone counts."""
    baseline: Literal["token", "step", "none"] = "token"
    """From the other completions j with the sum of rewards R_j: `token` takes `length of the step * sum R_j / sum length_j` from each step;
    `step` the mean of `R_j / steps_j`, which favours completions of few steps."""
    outcome_weight: Weight = 1.0
    centre: bool = True
    """Make a margin 2 p - 1 of a probability, as the paper's rewards are."""

    @property
    def needs(self) -> Needs:
        """A PRM; of probabilities, where margins are made of its scores."""
        return Needs(steps=True, probabilities=self.centre)

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T)."""
        if self.centre and batch.step_rewards is not None:
            batch = replace(batch, step_rewards=2 * batch.step_rewards - 1)
        rewards = min_form_rewards(batch, temperature=self.temperature)
        total = rewards.sum(-1)
        if self.baseline != "none":
            leave_one_out(total, batch.groups)  # refuses groups of one
        if self.baseline == "token":
            lengths = batch.step_lengths.to(rewards.dtype)
            length = lengths.sum(-1)
            others = group_sum(length, batch.groups) - length
            rate = (group_sum(total, batch.groups) - total) / others.clamp_min(1)
            rewards = rewards - lengths * rate[:, None]
        elif self.baseline == "step":
            there = batch.has_step.any(-1).to(rewards.dtype)
            mean = total / batch.has_step.sum(-1).clamp_min(1)
            others = group_sum(there, batch.groups) - there
            each = (group_sum(mean, batch.groups) - mean) / others.clamp_min(1)
            rewards = torch.where(batch.has_step, rewards - each[:, None], 0.0)
        tokens = at_step_ends(rewards, batch.step_ends, batch.mask.shape[1])
        if self.outcome_weight:
            verified = batch.outcome - 1
            advantage = verified - leave_one_out(verified, batch.groups)
            tokens = tokens + self.outcome_weight * at_last_token(advantage, batch)
        return torch.where(batch.mask, to_go(tokens), 0.0)


@settings
class ProgressAdvantage(_WithoutCritic):
    """Process advantage verifiers (Setlur et al. 2024, arXiv 2410.08146, equation 5): each step is weighted by `Q + alpha * progress`.

    The step rewards are a prover's probabilities of success after each step; a step's progress is its value less the one before it. `Q` of
    the policy is the verifier's outcome less its group's mean. Deviation: the value before the first step is the group's mean outcome, which
    estimates it for the policy as its own prover.
    """

    name: ClassVar[str] = "progress"
    needs: ClassVar[Needs] = Needs(steps=True, probabilities=True)
    progress_weight: Weight = 3.0
    """The paper's alpha: weight of progress beside the outcome; 3 to 5 in the paper."""

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T)."""
        values, mean = rewards_of(batch), group_mean(batch.outcome, batch.groups)
        before = torch.cat([mean[:, None], values[:, :-1]], -1)
        step = over_step_tokens(torch.where(batch.has_step, values - before, 0.0), batch.step_of)
        outcome = spread_over(batch.outcome - mean, batch.mask)
        return torch.where(batch.mask, outcome + self.progress_weight * step, 0.0)


@settings
class PRIME(_WithoutCritic):
    """PRIME: RLOO with an implicit PRM's token rewards, beside the outcome (Cui et al. 2025, equation 5).

    `paper`: `A_t = sum over s >= t of gamma**(s-t) * (r_s - mean over others of their mean token reward) + (outcome - the others' mean)`.
    `code` (verl-recipe/prime at 48ea0a7, `compute_rloo_advantage_return`): of K completions, `r~_t = r_t * K/(K-1) - (1/(K-1)) * sum over all
    j, this one too, of j's mean token reward`, the outcome at the last token, and the returns whitened over the batch's tokens.
    """

    name: ClassVar[str] = "prime"
    needs: ClassVar[Needs] = Needs(tokens=True)
    form: Literal["paper", "code"] = "paper"
    gamma: Share = 1.0
    """Discount a token, in the paper's form."""
    process_weight: Weight = 1.0
    outcome_weight: Weight = 1.0
    normalise: bool = True
    """Divide token rewards by the batch's largest return first (`advantages.batch_scaled`)."""
    deviation: Deviation = "sample"
    """Which standard deviation the published code's form whitens by (`advantages.Deviation`)."""

    def __post_init__(self) -> None:
        if self.form == "code":
            note_idle(
                {"gamma": self.gamma != 1 or None}, {"gamma": "the published code's form does not discount"}
            )
        _check_deviation(self.deviation, self.form == "code", "the paper's form")

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T)."""
        rewards = implicit_rewards(batch)
        if self.normalise:
            rewards = torch.where(batch.mask, batch_scaled(rewards), 0.0)
        outcome = batch.outcome - leave_one_out(batch.outcome, batch.groups)
        mean = rewards.sum(-1) / batch.mask.sum(-1).clamp_min(1)
        if self.form == "paper":
            centred = torch.where(batch.mask, rewards - leave_one_out(mean, batch.groups)[:, None], 0.0)
            process = self.process_weight * to_go(centred, gamma=self.gamma)
            return torch.where(
                batch.mask, process + self.outcome_weight * spread_over(outcome, batch.mask), 0.0
            )
        size = group_sum(torch.ones_like(batch.outcome), batch.groups)
        shift = group_sum(mean, batch.groups) / (size - 1)
        centred = torch.where(batch.mask, rewards * (size / (size - 1))[:, None] - shift[:, None], 0.0)
        returns = to_go(self.process_weight * centred + self.outcome_weight * at_last_token(outcome, batch))
        return whitened(returns, batch.mask, deviation=self.deviation)


@settings
class PPO:
    """PPO on the verifier's outcome, at the last token: a value head, generalised advantages (Ouyang et al. 2022, section 3.5)."""

    name: ClassVar[str] = "ppo"
    needs: ClassVar[Needs] = Needs(values=True)
    gamma: Share = 1.0
    lam: Share = 0.95
    whiten: bool = True
    """Advantages with mean 0 and variance 1 over the batch."""
    deviation: Deviation = "sample"
    """Which standard deviation they are whitened by (`advantages.Deviation`)."""

    def __post_init__(self) -> None:
        _check_deviation(self.deviation, self.whiten, "an advantage that is not whitened")

    def rewards(self, batch: Batch) -> Tensor:
        """(B, T), without the divergence."""
        return at_last_token(batch.outcome, batch)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """Generalised advantages of `rewards`, whitened.

        Raises:
            UsageError: the batch has no values.
        """
        if batch.values is None:
            raise UsageError(f"{type(self).__name__} needs the critic's values")
        rewards = self.rewards(batch) if kl is None else self.rewards(batch) + kl
        result, returns = gae(rewards, batch.values, batch.mask, gamma=self.gamma, lam=self.lam)
        if self.whiten:
            result = whitened(result, batch.mask, deviation=self.deviation)
        return Assigned(advantages=result, returns=returns)


@settings
class _ByTurn(_WithoutCritic):
    """A method of `credit.turns` whose turns are the batch's steps. Abstract: `of`.

    A completion without step scores, which a PRM could not read, is in no group and gets 0.
    """

    needs: ClassVar[Needs] = Needs(steps=True)

    @abstractmethod
    def of(self, conversations: turns.Turns) -> Tensor:
        """(B, K): the advantage of each turn."""

    def advantages(self, batch: Batch) -> Tensor:
        """(B, T): each turn's advantage at its own tokens, 0 where masked."""
        rewards = advantages.rewards_of(batch)
        read = batch.has_step.any(-1)
        values = torch.zeros(batch.mask.shape, dtype=rewards.dtype, device=rewards.device)
        if read.any():
            conversations = turns.Turns(
                rewards=rewards[read],
                present=batch.has_step[read],
                outcome=batch.outcome[read],
                groups=batch.groups[read],
            )
            values[read] = turns.over_tokens(self.of(conversations), batch.step_of[read])
        return values


@settings
class Discounted(_ByTurn):
    """The discounted return of each turn, among all turns of the group."""

    name: ClassVar[str] = "discounted"
    gamma: Share = 0.95
    """Discount a turn."""
    scale: bool = True
    """Divide by the group's standard deviation."""

    def of(self, conversations: turns.Turns) -> Tensor:
        """See `turns.discounted`."""
        return turns.discounted(conversations, gamma=self.gamma, scale=self.scale)


@settings
class MTGRPO(_ByTurn):
    """The outcome's advantage at every turn, plus that of the turn's own reward before the last turn."""

    name: ClassVar[str] = "mt-grpo"
    coefficient: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Weight of the turns' own rewards."""
    scale: bool = True
    """Divide by the group's standard deviation."""

    def of(self, conversations: turns.Turns) -> Tensor:
        """See `turns.mt_grpo`."""
        return turns.mt_grpo(conversations, coefficient=self.coefficient, scale=self.scale)


def shaped(batch: Batch, how: Shaping, *, clip_at: float = CLIP_AT) -> Batch:
    """The batch with its step rewards after a `Shaping`.

    Raises:
        UsageError: no step rewards.
    """
    made = {
        "none": rewards_of,
        "clip": lambda batch: advantages.clip(batch, threshold=clip_at),
        "delta": advantages.delta,
    }[how](batch)
    return replace(batch, step_rewards=made)


CREDITS = Registry(
    "credit method",
    {
        item.name: f"{__name__}:{item.__name__}"
        for item in (GRPO, RLOO, ProcessGRPO, MinForm, ProgressAdvantage, PRIME, PPO, Discounted, MTGRPO)
    },
    setting="credit",
    call="assign",
    expected="a class, or a function whose call gives one, that is a frozen dataclass with a name, needs and assign(batch)",
    page="rl.md",
)
"""The library's credit methods by name. To add one: a class, and its name here."""


def load_credit(
    credit: str | Credit, settings: Sequence[str] = ()
) -> tuple[Credit, Mapping[str, Any] | None]:
    """A credit method, and where it is from if it is a caller's own; see `Registry.method`."""
    return CREDITS.method(credit, settings)
