"""Settings of a run of policy training: how the policy learns, the implicit PRM beside it, and the refits of the PRM."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stepmark.errors import UsageError
from stepmark.settings import settings
from stepmark.words import amount

LORA_RATE, FULL_RATE = 1e-5, 1e-6
"""Peak learning rates: GRPO's with all weights (Shao et al. 2024, section 4.2); ten times that with LoRA (Schulman et al. 2025, "LoRA without
regret")."""

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@settings
class PolicyTraining:
    """How a policy is trained; written beside its result."""

    updates: Count = 100
    """Rounds of sampling, scoring and learning."""
    problems: Count = 16
    """Problems of each update; none is drawn again until all had their turn."""
    group: Count = 8
    """Completions of each problem."""
    temperature: Rate = 1.0
    """Temperature of sampling; probabilities are read at it too, so that the first update is on-policy whatever it is."""
    max_tokens: Count = 512
    """Tokens of the longest completion."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str = "Solve the problem step by step, one step a line. Put the final answer in \\boxed{}."
    """Text after the problem; "" for none."""
    split: str = "line"
    """How completions are split into steps (`stepmark split`)."""
    learning_rate: Rate | None = None
    """Constant after the warm-up. Default: 1e-6 with all weights, 1e-5 with LoRA."""
    warmup: Annotated[int, Field(ge=0)] = 5
    """Updates of the warm-up."""
    lora_rank: Count | None = None
    """Rank of LoRA adapters. Default: all weights are trained."""
    epochs: Count = 1
    """Passes over each batch."""
    minibatches: Count = 1
    """Optimizer steps of each pass."""
    token_budget: Count = 8192
    """Padded tokens a forward pass: bounds memory, changes no result."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """A token's ratio of probabilities counts down to 1 - this (PPO; Schulman et al. 2017, equation 7)."""
    clip_high: Rate = 0.2
    """A token's ratio of probabilities counts up to 1 + this; 0.28 is DAPO's (Yu et al. 2025, section 3.1)."""
    average: Literal["token", "sequence", "constant"] = "token"
    """What the loss is a mean of: all tokens (DAPO), completions' means (GRPO), or tokens over the most there could be (Dr. GRPO)."""
    kl: Literal["reward", "k2", "k3"] = "reward"
    """Where the divergence from the starting policy goes: k1 into the reward, or k2 or k3 into the loss (`credit.advantages`)."""
    kl_weight: Weight = 0.0
    """Weight of that divergence. The starting policy is kept at 0 too, to measure the divergence (unless `no_reference`)."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    value_weight: Weight = 0.5
    """Weight of the value head's loss, where there is one."""
    cut: Literal["wrong", "verify", "drop"] = "wrong"
    """A completion that is cut off at `max_tokens`: its outcome is 0; the verifier's result; or it is not trained on (its group still counts it)."""
    refuted: Literal["wrong", "step", "ignore"] = "wrong"
    """A completion with a step that an exact check of the PRM refutes: its outcome is 0 and that step has the lowest score; the step alone has it;
    or nothing is done."""
    evaluate_every: Count = 10
    """Updates between evaluations on held-out problems; the first is before any update."""
    save_every: Count = 10
    """Updates between saved states."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        if self.minibatches > self.problems * self.group:
            raise UsageError(
                f"`minibatches` {self.minibatches}: expected at most the {amount(self.problems * self.group, 'completion')} of an update"
            )

    @property
    def peak(self) -> float:
        """The learning rate after the warm-up."""
        if self.learning_rate is not None:
            return self.learning_rate
        return FULL_RATE if self.lora_rank is None else LORA_RATE


@settings
class Implicit:
    """An implicit PRM that is trained beside the policy, on outcomes (Cui et al. 2025, PRIME)."""

    beta: Rate = 0.05
    """Of the reward beta x (log pi_phi - log pi_ref) (PRIME's)."""
    learning_rate: Rate = 1e-6
    """The implicit PRM's learning rate (PRIME's); small networks take much more."""
    clip: Rate = 10.0
    """Largest norm of the implicit PRM's gradient (PRIME's)."""


@settings
class Refitting:
    """How the PRM, a LoRA adapter, is trained further: fresh completions are labelled by rollouts, and the new PRM is taken if it is not worse."""

    every: Count = 50
    """Updates between refits."""
    problems: Count = 64
    """Problems of a refit whose solutions are trained on, drawn anew each time."""
    held_out: Count = 32
    """Problems on which the old and the new PRM are compared: the same each time, never trained on by the PRM."""
    completions: Count = 2
    """Solutions of each problem of a refit."""
    rollouts: Count = 8
    """Rollouts of a refit from the end of each step."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Learning rate of a refit. Default: 2e-4."""
    epochs: Count = 1
    """Passes of a refit over its solutions."""
