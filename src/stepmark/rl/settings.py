"""Settings of a run of policy training, refused before anything is loaded where they cannot be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stepmark.errors import UsageError, said

LORA_RATE, FULL_RATE = 1e-5, 1e-6
"""Peak learning rates: GRPO's with all weights (Shao et al. 2024, section 4.2); ten times that with LoRA (Schulman et al. 2025, "LoRA without
regret")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RL:
    """How a policy is trained; written beside its result."""

    updates: int = 100
    """Rounds of sampling, scoring and learning."""
    problems: int = 16
    """Of each update; drawn without repeating any until all had their turn."""
    group: int = 8
    """Completions of each problem."""
    temperature: float = 1.0
    """Of sampling; probabilities are read at it too, so that the first update is on-policy whatever it is."""
    max_tokens: int = 512
    """The longest completion."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str = "Solve the problem step by step, one step a line. Put the final answer in \\boxed{}."
    """What is said after the problem; "" for nothing."""
    split: str = "line"
    """How completions are cut into steps (`stepmark split`)."""
    learning_rate: float | None = None
    """Constant after the warm-up. None: 1e-6 with all weights, 1e-5 with LoRA."""
    warmup: int = 5
    """Updates."""
    rank: int | None = None
    """Of LoRA; None trains all weights."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 1
    """Optimizer steps of each pass."""
    token_budget: int = 8192
    """Padded tokens a forward pass: bounds memory, changes no result."""
    clip_low: float = 0.2
    """A token's ratio of probabilities counts down to 1 - this (PPO; Schulman et al. 2017, equation 7)."""
    clip_high: float = 0.2
    """And up to 1 + this; 0.28 is DAPO's (Yu et al. 2025, section 3.1)."""
    average: Literal["token", "sequence", "constant"] = "token"
    """What the loss is a mean of: all tokens (DAPO), completions' means (GRPO), or tokens over the most there could be (Dr. GRPO)."""
    kl: Literal["reward", "k2", "k3"] = "reward"
    """Where the divergence from the starting policy goes: k1 into the reward, or k2 or k3 into the loss (`credit.kl`)."""
    kl_weight: float = 0.0
    """0: none. The starting policy is kept all the same, to know the divergence (`--no-reference`: it is not)."""
    clip: float = 1.0
    """The gradient's norm at most."""
    value_weight: float = 0.5
    """Of the value head's loss, where there is one."""
    cut: Literal["wrong", "verify", "drop"] = "wrong"
    """A completion that is cut off at `max_tokens`: its outcome is 0; what the verifier says; or it is not trained on (its group still counts it)."""
    keep_consistent: int | None = None
    """Take so many completions of each group out where process and outcome disagree (`defences.prof_keep`)."""
    evaluate_every: int = 10
    """Updates between evaluations on held-out problems; the first is before any update."""
    save_every: int = 10
    """Updates between saved states."""
    seed: int = 0
    """Of everything random."""

    def __post_init__(self) -> None:
        for name, least in (
            ("updates", 1),
            ("problems", 1),
            ("group", 1),
            ("max_tokens", 1),
            ("warmup", 0),
            ("epochs", 1),
            ("minibatches", 1),
            ("token_budget", 1),
            ("evaluate_every", 1),
            ("save_every", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"{said(name)} must be at least {least}, found {getattr(self, name)}")
        for name, fits, expected in (
            (
                "temperature",
                0 < self.temperature < math.inf,
                "above 0: a greedy policy gives equal completions",
            ),
            ("learning_rate", 0 < self.peak < math.inf, "above 0"),
            ("rank", self.rank is None or self.rank >= 1, "at least 1"),
            ("clip_low", 0 < self.clip_low < 1, "between 0 and 1"),
            ("clip_high", 0 < self.clip_high < math.inf, "above 0"),
            ("kl_weight", 0 <= self.kl_weight < math.inf, "at least 0"),
            ("clip", self.clip > 0, "above 0"),
            ("value_weight", 0 <= self.value_weight < math.inf, "at least 0"),
            (
                "minibatches",
                self.minibatches <= self.problems * self.group,
                "at most the completions of an update",
            ),
            (
                "keep_consistent",
                self.keep_consistent is None or 0 < self.keep_consistent < self.group,
                f"from 1 to under the group's {self.group}",
            ),
        ):
            if not fits:
                raise UsageError(f"{said(name)} must be {expected}, found {getattr(self, name)}")

    @property
    def peak(self) -> float:
        """The learning rate after the warm-up."""
        if self.learning_rate is not None:
            return self.learning_rate
        return FULL_RATE if self.rank is None else LORA_RATE
