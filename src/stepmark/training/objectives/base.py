"""What an objective is: how a checkpoint that it trains is read, what it fits, and its loss.

Beside the loss of a step objective, a language-modelling loss on right steps: Cobbe et al. 2021, "Training verifiers to solve math word
problems", section 4.2: verifiers that are trained to write right solutions too judge better. Deviations: only tokens of steps that are right,
or stand before the first wrong one, are fitted; and by default only tokens with a digit or a sign of arithmetic, in which a right solution
differs from a wrong one (a vocabulary of logits is computed for those alone), and on demand words of quantity.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.generative import CriticSpec
from stepmark.models.heads import new_head
from stepmark.models.packed_tree import Ints
from stepmark.models.spec import Layout, LinearHead, Readout, ScoringSpec, TokenHead
from stepmark.settings import settings
from stepmark.training.examples import Dropped, Example, Target
from stepmark.training.logprobs import token_logprobs
from stepmark.training.net import Net
from stepmark.training.packing import TrainingItem, TreeRow, items_of

Tokens = Literal["arithmetic", "quantities", "all"]
"""Which tokens of right steps are fitted."""
_ARITHMETIC = re.compile(r"[0-9+*/=<>×÷^%$-]")
# Pieces of words too: what a word begins with is a token as often as the word.
_QUANTITY = re.compile(
    _ARITHMETIC.pattern
    + r"|times|div|add|subtract|multipl|plus|minus|more|less|fewer|twice|double|triple|half|third|quarter|total|sum|left|each|every|\bper\b",
    re.IGNORECASE,
)


def language_loss(net: Net, hidden: Tensor, batch: Sequence[TrainingItem], tokens: Tokens) -> Tensor | None:
    """The mean negative log-probability of the fitted tokens of a forward pass; None where it has none.

    With several passes a step, how the rows are cut into passes moves the weight of a token a little.
    """
    fitted = _fitted_tokens(net, batch, tokens)
    if not len(fitted):
        return None
    return -token_logprobs(hidden, net.output(), batch, fitted).sum() / len(fitted)


def _fitted_tokens(net: Net, batch: Sequence[TrainingItem], tokens: Tokens) -> Ints:
    """Packed indices of the tokens that are fitted, of trees laid one after the other."""
    parts: list[Ints] = []
    start, pattern = 0, _QUANTITY if tokens == "quantities" else _ARITHMETIC
    for item in batch:
        places = [right_tokens(item, row) for row in item.rows]
        fitted = np.unique(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)
        if tokens != "all" and len(fitted):
            distinct, back = np.unique(item.tree.ids[fitted], return_inverse=True)
            texts = [net.tokenizer.decode([int(token)]) for token in distinct]
            fitted = fitted[np.array([pattern.search(text) is not None for text in texts])[back]]
        parts.append(fitted + start)
        start += len(item.tree)
    return np.concatenate(parts)


def right_tokens(item: TrainingItem, row: TreeRow) -> Ints:
    """Packed indices of a row's tokens from its first step to the end of the last step that is known to be right and before any wrong one."""
    end = -1
    for target, place in zip(row.example.targets, row.reads, strict=True):
        if target is None or place is None:
            continue
        if target.value is None or target.value <= 0.5:
            break
        end = int(item.tree.depths[item.reads[place]])
    return row.path[row.answer : end + 1] if end >= 0 else np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """One forward pass against its labels."""

    loss: Tensor
    """The **sum** over labels, each with its weight: passes and processes add up, and are divided once by all labels."""
    labels: float
    """How many there were."""
    scores: tuple[float, ...]
    """What the checkpoint would score at each read of the batch, item after item; as graded."""


class Objective(Protocol):
    """One way to train a grader: a frozen dataclass of settings."""

    @property
    def name(self) -> str:
        """Its name, as `train` takes it."""

    @property
    def outcomes(self) -> bool:
        """Whether it fits the outcome of whole solutions instead of steps."""

    @property
    def marked(self) -> bool:
        """Whether steps end in a token that the base must have; else a blank line ends them."""

    def spec(self, layout: Layout, base: str) -> ScoringSpec | CriticSpec:
        """How the trained checkpoint is read.

        Args:
            base: the base model's name, for objectives that compare with it.
        """

    def head(self, net: Net) -> torch.nn.Module:
        """A new head for this network."""

    def wanted(self, example: Example) -> Example:
        """The example with what this objective cannot fit masked.

        Raises:
            InputError: the labels are of a kind that this objective is not for; says which objective is.
        """

    def items(
        self, group: Sequence[Example], net: Net, *, budget: int, dropped: Dropped, every_step: bool
    ) -> Iterator[TrainingItem]:
        """One problem's examples as trees of tokens.

        Args:
            every_step: read steps that are not fitted too, for measuring.

        Raises:
            InputError: labels of a kind that this objective is not for, or one example alone is larger than the budget.
        """

    def fit(self, net: Net, batch: Sequence[TrainingItem]) -> Fitted:
        """Forward pass and loss of one batch."""


@settings
class StepObjective(ABC):
    """Objectives that read a head at step ends. Abstract: `loss_of`.

    Raises:
        UsageError: a setting out of its range, or a language-modelling loss beside an objective of outcomes.
    """

    name: ClassVar[str]
    """Its name, with which results are marked."""
    token_features: bool = False
    """The head reads the log-probabilities of the step's tokens too (`models.token_head`); steps then end as the base writes them, without a
    token of their own."""
    language_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of a language-modelling loss on right steps beside the objective's own (Cobbe et al. 2021, section 4.2); 0 for none."""
    language_tokens: Tokens = "arithmetic"
    """Which tokens that loss fits: `arithmetic`, those with a digit or a sign; `quantities`, those and words of quantity ("times",
    "more", "half"); `all`."""

    def __post_init__(self) -> None:
        if self.outcomes and self.language_weight:
            raise UsageError("language_weight goes with labels of steps, not with outcomes alone")
        if not self.language_weight and self.language_tokens != "arithmetic":
            raise UsageError("language_tokens is of the loss that language_weight adds, and that is 0")

    @property
    def marked(self) -> bool:
        """A token that ends a step is read, which to a language model would be the least likely of all."""
        return not self.token_features

    @property
    def outcomes(self) -> bool:
        """Steps are fitted."""
        return False

    @property
    def fits_shares(self) -> bool:
        """Whether shares of rollouts are fitted as they are, so that those of a row are preferred to its ratings."""
        return False

    @property
    def readout(self) -> Readout:
        """The head, and how its logits become a score: one logit through a sigmoid, unless an objective says otherwise."""
        return Readout(head=LinearHead(), activation="sigmoid")

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """How our own checkpoints are read, before calibration."""
        return ScoringSpec(
            family="stepmark",
            summary="stepmark's own: read at a marker token after each step",
            source="trained by `stepmark train`",
            layout=layout,
            readout=self._readout,
            score_kind="probability",
            aggregate="min",
            aggregate_source="the grader is trained up to the first error only; the minimum asks for the worst step",
            threshold=0.5,
        )

    @property
    def _readout(self) -> Readout:
        """The readout with the head that `token_features` asks for."""
        readout = self.readout
        if not self.token_features:
            return readout
        if not isinstance(readout.head, LinearHead):
            raise UsageError(
                f"token_features is of a linear head; {self.name} has a head of kind {readout.head.kind!r} here"
            )
        return replace(readout, head=TokenHead())

    def head(self, net: Net) -> torch.nn.Module:
        """A new head of the readout's kind: every class equally likely."""
        return new_head(self._readout.head, net.hidden_size, self.readout.classes or 1)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of judgement that it fits, the score's first; none where it fits one alone, that of the rules."""
        return ()

    @abstractmethod
    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """[labels, classes] against as many targets: [labels]."""

    def count_of(self, target: Target) -> int:
        """How many labels a target holds."""
        return 1

    def score_of(self, logits: Tensor) -> Tensor:
        """[reads, classes]: the score as graded, [reads]; a neutral step counts as right."""
        readout = self.readout
        if readout.activation in ("sigmoid", "labels"):
            return torch.sigmoid(logits[:, readout.good])
        shares = torch.softmax(logits, -1)
        right = shares[:, readout.good]
        return right if readout.neutral is None else shares[:, readout.neutral] + right

    def fits(self, target: Target, example: Example) -> bool:
        """Whether this target can be fitted. Every one, unless an objective says otherwise."""
        return True

    def wanted(self, example: Example) -> Example:
        """Mask what cannot be fitted."""
        return replace(
            example,
            targets=tuple(
                target if target is not None and self.fits(target, example) else None
                for target in example.targets
            ),
        )

    def items(
        self, group: Sequence[Example], net: Net, *, budget: int, dropped: Dropped, every_step: bool
    ) -> Iterator[TrainingItem]:
        """Trees of the examples with what cannot be fitted masked."""
        return items_of(
            [self.wanted(example) for example in group],
            net.encoder,
            budget=budget,
            dropped=dropped,
            every_step=every_step,
            outcomes=self.outcomes,
        )

    def fit(self, net: Net, batch: Sequence[TrainingItem]) -> Fitted:
        """Forward pass and loss; held-out figures are without the language-modelling loss."""
        if not (self.language_weight and net.model.training):
            return self.fit_logits(net.read(batch), batch)
        hidden = net.hidden(batch)
        fitted = self.fit_logits(net.read_hidden(hidden, batch), batch)
        beside = language_loss(net, hidden, batch, self.language_tokens)
        if beside is None:
            return fitted
        # A mean over tokens, as much as so many labels.
        return replace(fitted, loss=fitted.loss + self.language_weight * beside * fitted.labels)

    def fit_logits(self, logits: Tensor, batch: Sequence[TrainingItem]) -> Fitted:
        """The loss of a batch's logits, [reads, classes]."""
        places = [
            (at, target, weight)
            for at, (target, weight) in enumerate(
                (t, w) for item in batch for t, w in zip(item.targets, item.weights, strict=True)
            )
            if target is not None
        ]
        rows = logits[torch.tensor([at for at, _, _ in places], device=logits.device, dtype=torch.long)]
        weights = torch.tensor([weight for _, _, weight in places], device=logits.device)
        losses = self.loss_of(rows, [target for _, target, _ in places])
        return Fitted(
            loss=(losses * weights).sum(),
            labels=float(sum(self.count_of(target) * weight for _, target, weight in places)),
            scores=tuple(self.score_of(logits.detach()).tolist()),
        )
