"""Objectives in the format of a published PRM family: its layout, its head and its order of classes, with the loss of a step objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.families import FAMILIES
from stepmark.models.generative import GENERATIVE
from stepmark.models.heads import new_head
from stepmark.models.spec import (
    ConfidenceHead,
    EnsembleHead,
    Layout,
    LogRatioHead,
    Readout,
    ScoringSpec,
    VocabHead,
)
from stepmark.registry import unknown_name
from stepmark.settings import settings
from stepmark.training.examples import Example, Target
from stepmark.training.net import Net
from stepmark.training.objectives.base import Objective, StepObjective
from stepmark.training.objectives.generative import Generative
from stepmark.training.objectives.implicit import ImplicitCrossEntropy, ImplicitDPO
from stepmark.training.objectives.steps import (
    HardLabels,
    Outcome,
    SeveralLabels,
    ThreeClass,
    VocabRows,
)


def trainable(family: str) -> bool:
    """Whether `train` can write checkpoints of a family: no ensembles, and no shares of a log-ratio, which have no objective here."""
    if family in GENERATIVE:
        return True
    head = FAMILIES[family].readout.head
    return not isinstance(head, ConfidenceHead | EnsembleHead) and not (
        isinstance(head, LogRatioHead) and head.per_step
    )


@settings
class InFamily(StepObjective):
    """A step objective on the head of a published family, read in its layout.

    The objective sees the logits in its own order of classes; where it fits one logit and the head has two, the logit of right above the
    other's, whose sigmoid is the softmax of the two.
    """

    name: ClassVar[str] = "in-family"
    objective: StepObjective
    family: str
    """A name of `models.families.FAMILIES`."""

    def __post_init__(self) -> None:
        expected, classes = self.expected.classes, self.target.readout.classes
        if expected != classes and (expected, classes) != (1, 2):
            raise UsageError(
                f"`objective` {self.objective.name} fits {expected} logits, and the head of the family {self.family} has {classes}: leave "
                "`objective` out, or take another `family`"
            )
        if (labels := self.target.readout.class_names) != self.objective.axes and "labels" in (
            self.target.readout.activation,
            self.expected.activation,
        ):
            raise UsageError(
                f"`objective` {self.objective.name} fits the labels {', '.join(self.objective.axes) or 'of one axis'}, and the family {self.family} has "
                f"{', '.join(labels or ()) or 'none'}: leave `objective` out"
            )
        if self.objective.outcomes != self.target.outcome_only:
            reads = "the last step only" if self.target.outcome_only else "every step"
            raise UsageError(
                f"`objective` {self.objective.name}: the family {self.family} reads {reads}; leave `objective` out"
            )

    @property
    def target(self) -> ScoringSpec:
        """How the trained checkpoint is read: as the family, but with nothing that finds a checkpoint of its authors."""
        return replace(
            FAMILIES[self.family],
            source=f"trained by `stepmark train` in the format of {self.family}",
            architectures=(),
            settings=(),
            tensors=(),
            checkpoints=(),
        )

    @property
    def expected(self) -> Readout:
        """The readout of the objective's own head."""
        return self.objective.spec(self.target.layout, "").readout

    @property
    def outcomes(self) -> bool:
        """As the objective has it, like all below."""
        return self.objective.outcomes

    @property
    def fits_shares(self) -> bool:
        """As the objective has it."""
        return self.objective.fits_shares

    @property
    def axes(self) -> tuple[str, ...]:
        """As the objective has it."""
        return self.objective.axes

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """The target's."""
        return replace(self.target, layout=layout)

    def head(self, net: Net) -> torch.nn.Module:
        """A new head of the family's form, which begins at zero; or rows of the language model."""
        form, classes = self.target.readout.head, self.target.readout.classes
        if isinstance(form, VocabHead):
            return VocabRows(net, form.candidates, whole=False)
        return new_head(form, net.hidden_size, classes or 1)

    def wanted(self, example: Example) -> Example:
        """As the objective has it."""
        return self.objective.wanted(example)

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """The objective's."""
        return self.objective.loss_of(self._ordered(logits), targets)

    def count_of(self, target: Target) -> int:
        """As the objective has it."""
        return self.objective.count_of(target)

    def score_of(self, logits: Tensor) -> Tensor:
        """The objective's, as the head's activation gives it."""
        score = self.objective.score_of(self._ordered(logits))
        return 2 * score - 1 if self.target.readout.activation == "margin" else score

    def _ordered(self, logits: Tensor) -> Tensor:
        """The head's logits as those of the objective's own head."""
        theirs, ours = self.target.readout, self.expected
        if theirs.classes == 1 or theirs.activation == "labels":
            return logits
        if ours.classes == 1:
            return (logits[:, theirs.good] - logits[:, 1 - theirs.good])[:, None]
        by_class = {index: role for role, index in _roles(ours).items()}
        return logits[:, [_roles(theirs)[by_class[index]] for index in range(ours.classes or 1)]]


def _roles(readout: Readout) -> dict[str, int]:
    """Class indices of wrong, neutral and right steps."""
    neutral = -1 if readout.neutral is None else readout.neutral
    (wrong,) = {*range(readout.classes or 1)} - {readout.good, neutral}
    return {"wrong": wrong, "neutral": neutral, "right": readout.good}


def in_family(objective: Objective | None, family: str) -> Objective:
    """An objective in the format of a published family (`stepmark families`); None: the family's usual one.

    Raises:
        UnknownNameError: no such family.
        UsageError: a family that cannot be trained, or an objective that its head does not serve.
    """
    if family not in FAMILIES and family not in GENERATIVE:
        raise unknown_name("PRM family", family, {**FAMILIES, **GENERATIVE})
    if not trainable(family):
        names = ", ".join(name for name in (*FAMILIES, *GENERATIVE) if trainable(name))
        raise UsageError(
            f"`family` {family}: no objective trains its head; those that can be trained are {names}"
        )
    if family in GENERATIVE:
        settings_of = GENERATIVE[family].settings
        if objective is not None and not isinstance(objective, Generative):
            raise UsageError(
                f"`objective` {objective.name}: the family {family} writes critiques; leave `objective` out, or take generative"
            )
        objective_ = objective or Generative()
        return (
            objective_
            if isinstance(objective_.critic, settings_of)
            else replace(objective_, critic=settings_of())
        )
    spec = FAMILIES[family]
    if isinstance(spec.readout.head, LogRatioHead):
        if objective is not None and not isinstance(objective, ImplicitCrossEntropy | ImplicitDPO):
            raise UsageError(
                f"`objective` {objective.name}: the family {family} is read by a log-ratio; take implicit-ce or implicit-dpo"
            )
        return objective or ImplicitCrossEntropy()
    if objective is None:
        three = spec.readout.neutral is not None
        objective = Outcome() if spec.outcome_only else ThreeClass() if three else HardLabels()
        if spec.readout.activation == "labels":
            objective = SeveralLabels(labels=spec.readout.class_names or ())
    if not isinstance(objective, StepObjective):
        raise UsageError(
            f"`objective` {objective.name}: the family {family} has a head at step ends; take an objective that fits one"
        )
    if objective.token_features:
        raise UsageError(
            f"token_features: the head of the family {family} reads no tokens; leave out one of the two"
        )
    return InFamily(
        objective=objective,
        family=family,
        language_weight=objective.language_weight,
        language_tokens=objective.language_tokens,
    )


def family_layout(family: str) -> Layout | None:
    """How a family writes solutions; None for critics, which read prompts."""
    return None if family in GENERATIVE else FAMILIES[family].layout
