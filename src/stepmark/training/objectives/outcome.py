"""The outcome reward model: only the last step is read, and fitted to whether the final answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from stepmark.models.spec import Layout, LinearHead, Readout, ScoringSpec
from stepmark.settings import settings
from stepmark.training.examples import Example, Target
from stepmark.training.net import Net
from stepmark.training.objectives.base import StepObjective
from stepmark.training.objectives.steps import linear_head, marker_spec


@settings
class Outcome(StepObjective):
    """Is the final answer right: binary cross-entropy of one logit at the last step (Cobbe et al. 2021; the ORM of Lightman et al. 2023,
    without their loss on every token).

    Rows need an outcome (a verified final answer); step labels are not looked at.
    """

    name: ClassVar[str] = "outcome"

    @property
    def outcomes(self) -> bool:
        """Whole solutions are fitted."""
        return True

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """One logit, through a sigmoid, at the last step only."""
        return marker_spec(
            layout,
            Readout(head=LinearHead(), activation="sigmoid"),
            summary="stepmark's own outcome reward model: one logit at a marker token after the last step",
            aggregate="last",
            aggregate_source="an outcome reward model gives one verdict",
            outcome_only=True,
        )

    def head(self, net: Net) -> torch.nn.Module:
        """One unit."""
        return linear_head(net, 1)

    def wanted(self, example: Example) -> Example:
        """The outcome as the last step's target."""
        blank = (None,) * (len(example.targets) - 1)
        last = None if example.outcome is None else Target(value=float(example.outcome))
        return replace(example, targets=(*blank, last))

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy."""
        wanted = torch.tensor([t.value for t in targets], dtype=logits.dtype, device=logits.device)
        return F.binary_cross_entropy_with_logits(logits[:, 0], wanted, reduction="none")

    def score_of(self, logits: Tensor) -> Tensor:
        """P(the final answer is right)."""
        return torch.sigmoid(logits[:, 0])
