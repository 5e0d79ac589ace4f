"""Settings of a training run, refused before anything is loaded where they cannot be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stepmark.errors import UsageError, said
from stepmark.training.net import Weights

_NO_FLAGS = ("warmup", "clip", "save_every")


def _said(field: str) -> str:
    return field if field in _NO_FLAGS else said(field)


@dataclass(frozen=True, kw_only=True)
class Train:
    """Settings of a training run; written beside its result."""

    weights: Weights = field(default_factory=Weights)
    learning_rate: float | None = None
    """Peak of a linear warm-up and a cosine decay to a tenth. None: 2e-4 with LoRA, 1e-5 with all weights (`docs/training.md` names the
    sources)."""
    head_rate: float = 1.0
    """The head's learning rate, as a multiple of that of the other weights."""
    warm_start: str | None = None
    """Folder of a LoRA adapter with its head, over the same base, from which training starts; its rank is at most that of `weights`."""
    warmup: float = 0.05
    """Share of the steps."""
    weight_decay: float = 0.0
    clip: float = 1.0
    """The gradient's norm at most."""
    minutes: float | None = None
    """Stop after this long, not counting measurements; the learning rate decays by the clock where that is ahead of the steps. Two such
    runs are not the same."""
    epochs: int = 2
    token_budget: int = 2048
    """Distinct tokens a forward pass: bounds memory."""
    rows_per_step: int | None = None
    """Rows an optimizer step, at least (gradient accumulation over forward passes). None: one forward pass a step."""
    limit_tokens: int | None = None
    """Distinct tokens an epoch, the same number from each source; None takes everything."""
    max_tokens: int | None = 1024
    """Longer rows are left out and counted."""
    coarsen: float = 0.0
    """Share of step borders joined away (`training.examples.coarsen`), drawn anew each epoch."""
    held_out: float = 0.06
    """Share of problems kept for measuring."""
    evaluations: int = 4
    """How often, evenly over the run, the held-out problems are measured; the last time at its end."""
    patience: int | None = None
    """Stop after as many evaluations without a better held-out loss, and keep the best weights. None: run to the end, keep the last."""
    save_every: int = 50
    """Optimizer steps between saved states."""
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "epochs": 1,
            "token_budget": 1,
            "rows_per_step": 1,
            "limit_tokens": 1,
            "max_tokens": 1,
            "evaluations": 1,
            "patience": 1,
            "save_every": 1,
            "seed": 0,
        }
        for name, number in least.items():
            found = getattr(self, name)
            if found is not None and found < number:
                raise UsageError(f"{_said(name)} must be at least {number}, found {found}")
        for name, fits, expected in (
            ("learning_rate", 0 < self.peak < math.inf, "above 0"),
            ("head_rate", 0 < self.head_rate < math.inf, "above 0"),
            ("minutes", self.minutes is None or 0 < self.minutes < math.inf, "above 0"),
            ("warmup", 0 <= self.warmup <= 1, "from 0 to 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0"),
            ("clip", self.clip > 0, "above 0"),
            ("coarsen", 0 <= self.coarsen <= 1, "from 0 to 1"),
            ("held_out", 0 <= self.held_out < 1, "from 0 to under 1"),
        ):
            if not fits:
                raise UsageError(f"{_said(name)} must be {expected}, found {getattr(self, name)}")
        if self.warm_start is not None and self.weights.rank is None:
            raise UsageError(
                f"{said('warm_start')} is of an adapter; with all weights (--full), name the checkpoint itself as the --base"
            )

    @property
    def peak(self) -> float:
        """The learning rate at its peak."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 1e-5 if self.weights.rank is None else 2e-4
