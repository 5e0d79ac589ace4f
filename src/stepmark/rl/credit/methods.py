"""The credit methods by name: each a frozen dataclass of its paper's settings, over the functions of `credit.advantages`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.own import Kind, load_method
from stepmark.records import ScoreKind
from stepmark.rl.batch import Batch
from stepmark.rl.credit import Assigned, Credit, Needs, advantages
from stepmark.rl.credit.advantages import Deviation, to_go
from stepmark.settings import settings

CLIP_AT = 0.5
"""Default of `clip_at`."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClipAt = Annotated[float, Field(allow_inf_nan=False)]
Shaping = Literal["none", "clip", "delta", "zero-mean-wrong"]
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
    if clip_at != CLIP_AT and shaping != "clip":
        raise UsageError(f"`clip_at`: it belongs to the shaping clip, and this is {shaping}")


def _check_deviation(deviation: Deviation, used: bool, by: str) -> None:
    if deviation != "sample" and not used:
        raise UsageError(f"`deviation`: {by} divides by none; leave it out")


@settings
class _WithoutCritic(ABC):
    """A method of advantages alone. Abstract: `advantages`."""

    @abstractmethod
    def advantages(self, batch: Batch) -> Tensor:
        """(B, T), 0 where masked."""

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """`advantages`; the divergence of all that follows is charged to a token, as the rest of its return is."""
        found = self.advantages(batch)
        return Assigned(advantages=found if kl is None else found + to_go(kl) * batch.mask)


@settings
class GRPO(_WithoutCritic):
    """GRPO on the verifier's outcome alone: the baseline that every process reward has to beat."""

    name: ClassVar[str] = "grpo"
    needs: ClassVar[Needs] = Needs()
    scale: bool = True
    """Divide by the group's standard deviation; without, Dr. GRPO."""
    deviation: Deviation = "sample"
    """Which standard deviation (`advantages.Deviation`)."""

    def __post_init__(self) -> None:
        _check_deviation(self.deviation, self.scale, "an advantage that is not scaled")

    def advantages(self, batch: Batch) -> Tensor:
        """See `outcome_grpo`."""
        return advantages.outcome_grpo(batch, scale=self.scale, deviation=self.deviation)


@settings
class ProcessGRPO(_WithoutCritic):
    """GRPO with process supervision, and the outcome beside it as far as `process_weight` is under 1."""

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
        """See `blend`."""
        batch = shaped(batch, self.shaping, clip_at=self.clip_at)
        return advantages.blend(batch, process_weight=self.process_weight, deviation=self.deviation)


@settings
class MinForm(_WithoutCritic):
    """PURE: the soft minimum of the step rewards."""

    name: ClassVar[str] = "min-form"
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Of the soft minimum; the lower, the more the weakest step alone counts."""
    baseline: Literal["token", "step", "none"] = "token"
    outcome_weight: Weight = 1.0
    centre: bool = True
    """Make a margin 2 p - 1 of a probability, as the paper's rewards are."""

    @property
    def needs(self) -> Needs:
        """A PRM; of probabilities, where margins are made of its scores."""
        return Needs(steps=True, probabilities=self.centre)

    def advantages(self, batch: Batch) -> Tensor:
        """See `min_form`."""
        if self.centre and batch.step_rewards is not None:
            batch = replace(batch, step_rewards=2 * batch.step_rewards - 1)
        return advantages.min_form(
            batch, temperature=self.temperature, baseline=self.baseline, outcome_weight=self.outcome_weight
        )


@settings
class ProgressAdvantage(_WithoutCritic):
    """Process advantage verifiers: each step's change of the probability of success."""

    name: ClassVar[str] = "progress"
    needs: ClassVar[Needs] = Needs(steps=True, probabilities=True)
    progress_weight: Weight = 3.0
    """The paper's alpha: weight of progress beside the outcome; 3 to 5 in the paper."""

    def advantages(self, batch: Batch) -> Tensor:
        """See `progress`."""
        return advantages.progress(batch, alpha=self.progress_weight)


@settings
class PRIME(_WithoutCritic):
    """PRIME: implicit token rewards with a leave-one-out baseline, beside the outcome."""

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
        if self.form == "code" and self.gamma != 1:
            raise UsageError(
                f"`gamma`: the published code's form does not discount; expected 1, found {self.gamma}"
            )
        _check_deviation(self.deviation, self.form == "code", "the paper's form")

    def advantages(self, batch: Batch) -> Tensor:
        """See `prime_paper` and `prime_code`."""
        if self.normalise:
            batch = replace(batch, token_rewards=advantages.batch_scaled(advantages.implicit_rewards(batch)))
        process, outcome = self.process_weight, self.outcome_weight
        if self.form == "paper":
            return advantages.prime_paper(
                batch, gamma=self.gamma, process_weight=process, outcome_weight=outcome
            )
        return advantages.prime_code(
            batch, process_weight=process, outcome_weight=outcome, deviation=self.deviation
        )


@settings
class PAPO(_WithoutCritic):
    """Outcome GRPO, and process rewards among right completions only."""

    name: ClassVar[str] = "papo"
    needs: ClassVar[Needs] = Needs(steps=True)
    process_weight: Weight = 1.0
    deviation: Deviation = "sample"
    """Which standard deviation (`advantages.Deviation`)."""

    def advantages(self, batch: Batch) -> Tensor:
        """See `papo`."""
        return advantages.papo(batch, process_weight=self.process_weight, deviation=self.deviation)


@settings
class PPO:
    """PPO on the verifier's outcome alone: a value head, generalised advantages."""

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

    def estimated(self, batch: Batch, kl: Tensor | None) -> tuple[Tensor, Tensor]:
        """Advantages and returns: see `ppo`."""
        return advantages.ppo(batch, gamma=self.gamma, lam=self.lam, kl=kl)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """The estimates, whitened."""
        values, returns = self.estimated(batch, kl)
        if self.whiten:
            values = advantages.whitened(values, batch.mask, deviation=self.deviation)
        return Assigned(advantages=values, returns=returns)


@settings
class StepPPO(PPO):
    """Step-by-step PPO: the PRM's score at each step's end, a value head, generalised advantages."""

    name: ClassVar[str] = "step-ppo"
    needs: ClassVar[Needs] = Needs(steps=True, values=True)
    outcome_weight: Weight = 1.0
    shaping: Shaping = "delta"
    """`none` is the paper's, whose sums grow with the number of steps."""
    clip_at: ClipAt = CLIP_AT
    """Of the shaping clip: a step's reward above this counts as this."""

    def __post_init__(self) -> None:
        PPO.__post_init__(self)
        _check_shaping(self.shaping, self.clip_at)

    def estimated(self, batch: Batch, kl: Tensor | None) -> tuple[Tensor, Tensor]:
        """Advantages and returns: see `step_ppo`."""
        return advantages.step_ppo(
            shaped(batch, self.shaping, clip_at=self.clip_at),
            gamma=self.gamma,
            lam=self.lam,
            outcome_weight=self.outcome_weight,
            kl=kl,
        )


def shaped(batch: Batch, how: Shaping, *, clip_at: float = CLIP_AT) -> Batch:
    """The batch with its step rewards after a `Shaping`.

    Raises:
        UsageError: no step rewards.
    """
    made = {
        "none": advantages.rewards_of,
        "clip": lambda batch: advantages.clip(batch, threshold=clip_at),
        "delta": advantages.delta,
        "zero-mean-wrong": advantages.zero_mean_wrong,
    }[how](batch)
    return replace(batch, step_rewards=made)


CREDITS: Mapping[str, Callable[[], Credit]] = {
    one.name: one for one in (GRPO, ProcessGRPO, MinForm, ProgressAdvantage, PRIME, PAPO, PPO, StepPPO)
}
"""The library's credit methods by name. To add one: a class, and its name here."""

_OWN = Kind(
    what="credit method",
    call="assign",
    wanted="a class, or a function whose call gives one, that is a frozen dataclass with a name, needs and assign(batch)",
    page="rl.md",
)


def load_credit(
    credit: str | Credit, settings: Sequence[str] = ()
) -> tuple[Credit, Mapping[str, Any] | None]:
    """A credit method, and where it is from if it is a caller's own; see `own.load_method`."""
    return load_method(credit, settings, _OWN, CREDITS, setting="credit")
