"""How fast a run learns and when it ends: by its steps or, with a time limit, by the clock where that is ahead; and whether it has enough steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from stepmark.training.parallel import Workers
from stepmark.training.settings import Training

ENOUGH = 30
"""Optimizer steps an epoch, at least: with fewer, the warm-up and the decay leave hardly one at the peak rate."""


class Pace:
    """The learning rate over a run, and the time that is left.

    Args:
        settings: of the run.
        workers: with a time limit all go by the clock of the first, or they would stop at different steps.
    """

    def __init__(self, settings: Training, workers: Workers) -> None:
        self.settings, self._workers = settings, workers
        self.seconds = 0.0
        """Spent on optimizer steps, before an interruption too; measurements are not counted."""

    def spend(self, seconds: float) -> None:
        """Count the time of one step."""
        if self.settings.minutes is not None:
            (seconds,) = self._workers.sum(seconds if self._workers.first else 0.0)
        self.seconds += seconds

    @property
    def share(self) -> float:
        """How much of the time limit is spent; 0 without one."""
        return 0.0 if self.settings.minutes is None else self.seconds / (60 * self.settings.minutes)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 1."""
        return self.settings.peak * schedule(step, steps, self.settings.warmup, least=self.share)

    def left(self, by_steps: float) -> float:
        """Seconds left, where the steps that are left would take `by_steps`."""
        minutes = self.settings.minutes
        return by_steps if minutes is None else max(0.0, min(by_steps, 60 * minutes - self.seconds))


def rate_groups(names: Iterable[str], masters: Sequence[Tensor], head_rate: float) -> list[dict[str, Any]]:
    """What is trained in groups for the optimizer, each with its `share` of the learning rate: the head, and the rest.

    Args:
        names: of `masters`; the head's begin with "head.".
        masters: in their order.
        head_rate: the head's share.
    """
    groups: dict[float, list[Tensor]] = {}
    for name, master in zip(names, masters, strict=True):
        groups.setdefault(head_rate if name.startswith("head.") else 1.0, []).append(master)
    return [{"params": group, "share": share} for share, group in groups.items()]


def schedule(step: int, steps: int, warmup: float, *, least: float = 0.0) -> float:
    """Share of the peak rate at a step, counted from 1: linear warm-up, cosine decay to a tenth.

    Args:
        step: from 1.
        steps: how many there are.
        warmup: share of the steps.
        least: the decay is at least this far, in [0, 1]: a share of time, where that ends sooner than the steps.
    """
    warm = max(1, round(steps * warmup))
    if step <= warm:
        return step / warm
    far = min(1.0, max((step - warm) / max(1, steps - warm), least))
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * far))


def few_steps(steps: int, settings: Training) -> str | None:
    """A warning for a run with too few optimizer steps, with the setting to change; None for a run with enough.

    Args:
        steps: of the whole run.
        settings: of the run.
    """
    each = steps / settings.epochs
    if each >= ENOUGH:
        return None
    lower = ""
    for name, value in (("rows_per_step", settings.rows_per_step), ("token_budget", settings.token_budget)):
        fewer = 1 if value is None else max(1, int(value * each / ENOUGH))
        if value is not None and fewer < value:
            lower = f"lower `{name}` from {value:,} to about {fewer:,} for {ENOUGH}, "
            break
    return f"{each:.3g} optimizer steps an epoch are few to learn from: {lower}raise `epochs`, or label more rows"
