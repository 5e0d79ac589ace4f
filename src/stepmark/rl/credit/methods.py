"""The methods by name: each a frozen dataclass of its paper's settings, which are the flags of `stepmark rl`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

from torch import Tensor

from stepmark.catalog import Catalog
from stepmark.errors import UsageError, said
from stepmark.records import ScoreKind
from stepmark.rl.batch import Batch
from stepmark.rl.credit import critic, defences, implicit, outcome, process, shaping
from stepmark.rl.credit.groups import Deviation, check_deviation, to_go

THRESHOLD = 0.5
"""Of `clip`, where nothing else is said."""
Shaping = Literal["none", "clip", "delta", "zero-mean-wrong"]
"""What is done to step rewards before they are given out: nothing, `shaping.clip`, `shaping.delta`, `defences.zero_mean_wrong`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a method reads beside outcomes."""

    steps: bool = False
    """Step rewards: a PRM."""
    tokens: bool = False
    """Token rewards: an implicit PRM."""
    values: bool = False
    """A critic."""
    probabilities: bool = False
    """Step rewards that are probabilities, and no margins or the like."""


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """What a batch's tokens are worth."""

    advantages: Tensor
    """(B, T), 0 where masked."""
    returns: Tensor | None = None
    """(B, T): what a critic is fitted to; None for methods without one."""


class Credit(Protocol):
    """A way to assign credit: a frozen dataclass of settings."""

    @property
    def needs(self) -> Needs:
        """What the batch must hold."""

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """The advantages of a batch.

        Args:
            batch: with what `needs` says.
            kl: (B, T): what the divergence from the reference adds to each token's reward (`kl.kl_reward`), or None.
        """


def check_kind(credit: Credit, kind: ScoreKind, *, prm: str) -> None:
    """Refuse a PRM whose scores a method would read as what they are not.

    Args:
        credit: the method.
        kind: of the PRM's scores.
        prm: its name.

    Raises:
        UsageError: the method reads probabilities, and these are none.
    """
    if credit.needs.probabilities and kind != "probability":
        instead = (
            "; --no-centre (centre=False) takes margins as they are" if isinstance(credit, MinForm) else ""
        )
        raise UsageError(
            f"{type(credit).__name__} needs a PRM whose scores are probabilities; those of {prm} are of the kind {kind!r}{instead}"
        )


def _check(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a setting outside [low, high], or one that is not finite, before a run begins."""
    if not (low <= value <= high and math.isfinite(value)):
        expected = f"in [{low:g}, {high:g}]" if high < math.inf else f"of {low:g} or more"
        raise UsageError(f"{said(name)}: expected a number {expected}, found {value}")


def _check_shaping(shaping: str, threshold: float) -> None:
    if shaping not in get_args(Shaping):
        raise UsageError(
            f"{said('shaping')}: expected none, clip, delta or zero-mean-wrong, found {shaping!r}"
        )
    if not math.isfinite(threshold):
        raise UsageError(f"{said('threshold')}: expected a finite number, found {threshold}")
    if threshold != THRESHOLD and shaping != "clip":
        raise UsageError(f"{said('threshold')}: it is of the shaping clip, and this is {shaping}")


def _check_deviation(deviation: Deviation, used: bool, by: str) -> None:
    check_deviation(deviation)
    if deviation != "sample" and not used:
        raise UsageError(f"{said('deviation')}: {by} divides by none; leave it out")


def _with_kl(advantages: Tensor, batch: Batch, kl: Tensor | None) -> Assigned:
    # Without a critic, the divergence of all that follows is charged to a token, as the rest of its return is.
    if kl is not None:
        advantages = advantages + to_go(kl) * batch.mask
    return Assigned(advantages=advantages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """GRPO on the verifier's outcome alone: the baseline that every process reward has to beat.

    Raises:
        UsageError: a setting that means nothing beside another.
    """

    scale: bool = True
    """Divide by the group's standard deviation; without, Dr. GRPO."""
    deviation: Deviation = "sample"
    """Which standard deviation (`groups.Deviation`)."""

    def __post_init__(self) -> None:
        _check_deviation(self.deviation, self.scale, "an advantage that is not scaled")

    @property
    def needs(self) -> Needs:
        """Nothing more."""
        return Needs()

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `outcome.outcome_grpo`."""
        found = outcome.outcome_grpo(batch, scale=self.scale, deviation=self.deviation)
        return _with_kl(found, batch, kl)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """GRPO with process supervision, and the outcome beside it as far as `process_weight` is under 1.

    Raises:
        UsageError: a setting outside its range.
    """

    process_weight: float = 1.0
    """1 is the paper's: the PRM alone. It is what gets hacked; anchor it."""
    shaping: Shaping = "none"
    threshold: float = THRESHOLD
    """Of `clip`."""
    deviation: Deviation = "sample"
    """Which standard deviation (`groups.Deviation`)."""

    def __post_init__(self) -> None:
        _check("process_weight", self.process_weight, 0, 1)
        _check_shaping(self.shaping, self.threshold)
        check_deviation(self.deviation)

    @property
    def needs(self) -> Needs:
        """A PRM."""
        return Needs(steps=True)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `process.grpo_process`, `defences.blend` and `shaping`."""
        batch = replace(batch, step_rewards=shaped(batch, self.shaping, threshold=self.threshold))
        found = defences.blend(batch, process_weight=self.process_weight, deviation=self.deviation)
        return _with_kl(found, batch, kl)


@dataclass(frozen=True, kw_only=True, slots=True)
class MinForm:
    """PURE: the soft minimum of the step rewards.

    Raises:
        UsageError: a setting outside its range.
    """

    temperature: float = 0.1
    baseline: Literal["token", "step", "none"] = "token"
    outcome_weight: float = 1.0
    centre: bool = True
    """Make a margin 2 p - 1 of a probability, as the paper's rewards are."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(
                f"{said('temperature', 'min_temperature')}: expected a number above 0, found {self.temperature}"
            )
        _check("outcome_weight", self.outcome_weight, 0)

    @property
    def needs(self) -> Needs:
        """A PRM; of probabilities, where margins are made of its scores."""
        return Needs(steps=True, probabilities=self.centre)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `process.min_form`."""
        if self.centre and batch.step_rewards is not None:
            batch = replace(batch, step_rewards=2 * batch.step_rewards - 1)
        found = process.min_form(
            batch, temperature=self.temperature, baseline=self.baseline, outcome_weight=self.outcome_weight
        )
        return _with_kl(found, batch, kl)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Process advantage verifiers: each step's change of the probability of success.

    Raises:
        UsageError: a setting outside its range.
    """

    alpha: float = 3.0
    root: Literal["given", "group"] = "group"

    def __post_init__(self) -> None:
        _check("alpha", self.alpha, 0)

    @property
    def needs(self) -> Needs:
        """A PRM whose scores are values."""
        return Needs(steps=True, probabilities=True)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `process.progress`."""
        return _with_kl(process.progress(batch, alpha=self.alpha, root=self.root), batch, kl)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prime:
    """PRIME: implicit token rewards with a leave-one-out baseline, beside the outcome.

    Raises:
        UsageError: a setting outside its range.
    """

    form: Literal["paper", "code"] = "paper"
    gamma: float = 1.0
    """Discount a token, in the paper's form."""
    process_weight: float = 1.0
    outcome_weight: float = 1.0
    normalise: bool = True
    """Divide token rewards by the batch's largest return first (`implicit.batch_scaled`)."""
    deviation: Deviation = "sample"
    """Which standard deviation the published code's form whitens by (`groups.Deviation`)."""

    def __post_init__(self) -> None:
        _check("gamma", self.gamma, 0, 1)
        if self.form == "code" and self.gamma != 1:
            raise UsageError(
                f"{said('gamma')}: the published code's form does not discount; expected 1, found {self.gamma}"
            )
        _check("process_weight", self.process_weight, 0)
        _check("outcome_weight", self.outcome_weight, 0)
        _check_deviation(self.deviation, self.form == "code", "the paper's form")

    @property
    def needs(self) -> Needs:
        """An implicit PRM."""
        return Needs(tokens=True)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `implicit.prime_paper` and `implicit.prime_code`."""
        if self.normalise:
            batch = replace(batch, token_rewards=implicit.batch_scaled(implicit.implicit_rewards(batch)))
        if self.form == "paper":
            found = implicit.prime_paper(
                batch,
                gamma=self.gamma,
                process_weight=self.process_weight,
                outcome_weight=self.outcome_weight,
            )
        else:
            found = implicit.prime_code(
                batch,
                process_weight=self.process_weight,
                outcome_weight=self.outcome_weight,
                deviation=self.deviation,
            )
        return _with_kl(found, batch, kl)


@dataclass(frozen=True, kw_only=True, slots=True)
class Papo:
    """Outcome GRPO, and process rewards among right completions only.

    Raises:
        UsageError: a setting outside its range.
    """

    process_weight: float = 1.0
    deviation: Deviation = "sample"
    """Which standard deviation (`groups.Deviation`)."""

    def __post_init__(self) -> None:
        _check("process_weight", self.process_weight, 0)
        check_deviation(self.deviation)

    @property
    def needs(self) -> Needs:
        """A PRM."""
        return Needs(steps=True)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `defences.papo`."""
        found = defences.papo(batch, process_weight=self.process_weight, deviation=self.deviation)
        return _with_kl(found, batch, kl)


@dataclass(frozen=True, kw_only=True, slots=True)
class PPO:
    """PPO on the verifier's outcome alone: a value head, generalised advantages.

    Raises:
        UsageError: a setting outside its range.
    """

    gamma: float = 1.0
    lam: float = 0.95
    whiten: bool = True
    """Advantages with mean 0 and variance 1 over the batch."""
    deviation: Deviation = "sample"
    """Which standard deviation they are whitened by (`groups.Deviation`)."""

    def __post_init__(self) -> None:
        _check("gamma", self.gamma, 0, 1)
        _check("lam", self.lam, 0, 1)
        _check_deviation(self.deviation, self.whiten, "an advantage that is not whitened")

    @property
    def needs(self) -> Needs:
        """A critic."""
        return Needs(values=True)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `critic.ppo`."""
        advantages, returns = critic.ppo(batch, gamma=self.gamma, lam=self.lam, kl=kl)
        if self.whiten:
            advantages = implicit.whitened(advantages, batch.mask, deviation=self.deviation)
        return Assigned(advantages=advantages, returns=returns)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPPO:
    """Step-by-step PPO: the PRM's score at each step's end, a value head, generalised advantages.

    Raises:
        UsageError: a setting outside its range.
    """

    gamma: float = 1.0
    lam: float = 0.95
    outcome_weight: float = 1.0
    shaping: Shaping = "delta"
    """`none` is the paper's, whose sums grow with the number of steps."""
    threshold: float = THRESHOLD
    whiten: bool = True
    """Advantages with mean 0 and variance 1 over the batch."""
    deviation: Deviation = "sample"
    """Which standard deviation they are whitened by (`groups.Deviation`)."""

    def __post_init__(self) -> None:
        _check("gamma", self.gamma, 0, 1)
        _check("lam", self.lam, 0, 1)
        _check_deviation(self.deviation, self.whiten, "an advantage that is not whitened")
        _check("outcome_weight", self.outcome_weight, 0)
        _check_shaping(self.shaping, self.threshold)

    @property
    def needs(self) -> Needs:
        """A PRM and a critic."""
        return Needs(steps=True, values=True)

    def assign(self, batch: Batch, *, kl: Tensor | None = None) -> Assigned:
        """See `critic.step_ppo`."""
        batch = replace(batch, step_rewards=shaped(batch, self.shaping, threshold=self.threshold))
        advantages, returns = critic.step_ppo(
            batch, gamma=self.gamma, lam=self.lam, outcome_weight=self.outcome_weight, kl=kl
        )
        if self.whiten:
            advantages = implicit.whitened(advantages, batch.mask, deviation=self.deviation)
        return Assigned(advantages=advantages, returns=returns)


def shaped(batch: Batch, how: Shaping, *, threshold: float = THRESHOLD) -> Tensor:
    """(B, S): the batch's step rewards after a `Shaping`.

    Raises:
        UsageError: a way that there is not, or no step rewards.
    """
    if how == "none":
        return process.rewards_of(batch)
    if how == "clip":
        return shaping.clip(batch, threshold=threshold)
    if how == "delta":
        return shaping.delta(batch)
    if how == "zero-mean-wrong":
        return defences.zero_mean_wrong(batch)
    raise UsageError(f"{said('shaping')}: expected none, clip, delta or zero-mean-wrong, found {how!r}")


CREDITS = Catalog(
    "credit method",
    {
        "outcome": "stepmark.rl.credit.methods:Outcome",
        "process": "stepmark.rl.credit.methods:Process",
        "min-form": "stepmark.rl.credit.methods:MinForm",
        "progress": "stepmark.rl.credit.methods:Progress",
        "prime": "stepmark.rl.credit.methods:Prime",
        "papo": "stepmark.rl.credit.methods:Papo",
        "ppo": "stepmark.rl.credit.methods:PPO",
        "step-ppo": "stepmark.rl.credit.methods:StepPPO",
    },
)
"""The classes, by name."""
