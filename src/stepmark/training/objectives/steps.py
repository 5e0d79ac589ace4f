"""Objectives that fit each labelled step at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.models.spec import Layout, LinearHead, MlpHead, Readout, ScoringSpec, VocabHead
from stepmark.records import DEFAULT_AXIS
from stepmark.settings import settings
from stepmark.training.examples import Example, Target, known_value
from stepmark.training.net import Net
from stepmark.training.objectives.base import StepObjective

Above = Annotated[float, Field(ge=0, lt=1)]


def _values(targets: Sequence[Target], like: Tensor) -> Tensor:
    return torch.tensor([known_value(t) for t in targets], dtype=like.dtype, device=like.device)


@settings
class HardLabels(StepObjective):
    """Right or wrong: binary cross-entropy of one logit.

    A share of rollouts becomes right where it is above `above`: with 0, where any rollout succeeded, as in Wang et al. 2024
    (Math-Shepherd, equation 3) and as Zhang et al. 2025 found best ("The Lessons of Developing PRMs", section 3.1.4).
    """

    name: ClassVar[str] = "hard"
    above: Above = 0.0
    """A share of successful rollouts above this is right."""

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy against 1 or 0."""
        hard = (_values(targets, logits) > self.above).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits[:, 0], hard, reduction="none")


@settings
class CrossEntropy(StepObjective):
    """Right or wrong: cross-entropy over two classes, class 1 right: the head of token classification (TRL's layout) or,
    with `kind="mlp"`, of `Qwen2ForProcessRewardModel`."""

    name: ClassVar[str] = "ce"
    above: Above = 0.0
    """A share of successful rollouts above this is right."""
    kind: Literal["linear", "mlp"] = "linear"
    """`linear`, one layer; `mlp`, two layers with a ReLU between them."""

    @property
    def readout(self) -> Readout:
        """Two logits, through a softmax."""
        head = MlpHead() if self.kind == "mlp" else LinearHead()
        return Readout(head=head, activation="softmax", good=1)

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(logits, (_values(targets, logits) > self.above).long(), reduction="none")


@settings
class SoftLabels(HardLabels):
    """The share itself: binary cross-entropy against it, never rounded (Wang et al. 2024, equation 4)."""

    name: ClassVar[str] = "soft"

    @property
    def fits_shares(self) -> bool:
        """Shares, unrounded."""
        return True

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy against the share."""
        return F.binary_cross_entropy_with_logits(logits[:, 0], _values(targets, logits), reduction="none")


@settings
class SquaredError(HardLabels):
    """The share itself: squared error of the probability (Zhang et al. 2025, section 2.2, soft labels)."""

    name: ClassVar[str] = "mse"

    @property
    def fits_shares(self) -> bool:
        """Shares, unrounded."""
        return True

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """(P(right) - share)²."""
        return (torch.sigmoid(logits[:, 0]) - _values(targets, logits)) ** 2


@settings
class BetaBinomial(StepObjective):
    """(successes, trials) as they were counted: the likelihood under a Beta distribution of the success rate.

    2 of 2 and 32 of 32 are both "1.0" and not equally certain. Two logits are the logarithms of the Beta's parameters, Beta(1, 1) to begin
    with, so the score, its mean, is their softmax: a / (a + b). Steps that were rated and not counted are one trial. The binomial
    coefficient, which no parameter moves, is left out.
    """

    name: ClassVar[str] = "beta-binomial"

    @property
    def fits_shares(self) -> bool:
        """Shares, unrounded."""
        return True

    @property
    def readout(self) -> Readout:
        """Two logits, log b and log a, through a softmax."""
        return Readout(head=LinearHead(), activation="softmax", good=1)

    def fits(self, target: Target, example: Example) -> bool:
        """Counts and ratings; a bare share does not say how many rollouts it is of."""
        if target.trials is None and target.value not in (0.0, 1.0):
            raise InputError(
                f"the objective beta-binomial needs (successes, trials) and found only the share {target.value:g}; "
                "take the `objective` soft",
                where=example.where,
            )
        return True

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """-log of B(s + a, n - s + b) / B(a, b)."""
        # Outside, the logarithms of gamma functions lose all digits in float32; e^±12 trials say enough.
        b, a = torch.exp(logits.clamp(-12, 12)).double().unbind(-1)
        counts = [
            (t.successes if t.successes is not None and t.trials else t.value, t.trials or 1) for t in targets
        ]
        s, n = torch.tensor(counts, dtype=torch.float64, device=logits.device).unbind(-1)

        def log_beta(x: Tensor, y: Tensor) -> Tensor:
            return torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y)

        return (log_beta(a, b) - log_beta(s + a, n - s + b)).float()


_THREE: dict[str, Any] = {
    "activation": "softmax",
    "good": 2,
    "neutral": 1,
    "class_names": ("negative", "neutral", "positive"),
}


def _ratings(targets: Sequence[Target], like: Tensor) -> Tensor:
    """The class of each rating: 0 wrong, 1 neutral, 2 right."""
    return torch.tensor([int(t.rating or 0) + 1 for t in targets], device=like.device)


@settings
class ThreeClass(StepObjective):
    """Negative, neutral, positive, as people rate: cross-entropy over three classes (Xia et al. 2024, ReasonEval).

    Whether neutral counts as right is decided when grading (`--neutral`), not here.
    """

    name: ClassVar[str] = "three-class"

    @property
    def readout(self) -> Readout:
        """Three logits, through a softmax."""
        return Readout(head=LinearHead(), **_THREE)

    def fits(self, target: Target, example: Example) -> bool:
        """Ratings only."""
        if target.rating is None:
            raise InputError(
                "the objective three-class needs ratings (-1, 0, 1) and found rollouts; take the `objective` soft or hard",
                where=example.where,
            )
        return True

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Cross-entropy over the three."""
        return F.cross_entropy(logits, _ratings(targets, logits), reduction="none")


@settings
class TargetTokens(StepObjective):
    """Tokens of the language-model head: cross-entropy between the candidates' logits, and no others.

    With two candidates Math-Shepherd's "+" and "-" (Wang et al. 2024), with three the rating token of Lightman et al. 2023.
    No logit of any other token is computed.
    """

    name: ClassVar[str] = "target-tokens"
    candidates: tuple[str, ...] = ("-", "+")
    """From wrong to right: two or three texts that are one token each."""
    above: Above = 0.0
    """A share of successful rollouts above this is right."""

    def __post_init__(self) -> None:
        StepObjective.__post_init__(self)
        if len(self.candidates) not in (2, 3) or len(set(self.candidates)) != len(self.candidates):
            raise UsageError(
                f"candidates: expected two or three different tokens, found {', '.join(self.candidates) or 'none'}"
            )

    @property
    def readout(self) -> Readout:
        """Rows of the language-model head."""
        head = VocabHead(candidates=self.candidates)
        if len(self.candidates) == 3:
            return Readout(head=head, **_THREE)
        return Readout(head=head, activation="softmax", good=1)

    def head(self, net: Net) -> torch.nn.Module:
        """The candidates' rows, as they are in the base; they are trained with it or stay."""
        return VocabRows(net, self.candidates)

    def fits(self, target: Target, example: Example) -> bool:
        """With three candidates ratings only."""
        if len(self.candidates) == 3 and target.rating is None:
            raise InputError(
                "three target tokens need ratings (-1, 0, 1) and found rollouts; take two candidates, or the `objective` soft",
                where=example.where,
            )
        return True

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Cross-entropy between the candidates."""
        three = len(self.candidates) == 3
        classes = _ratings(targets, logits) if three else (_values(targets, logits) > self.above).long()
        return F.cross_entropy(logits, classes, reduction="none")


def keeps_neutral(objective: object) -> bool:
    """Whether an objective has a class for neutral steps."""
    inner = getattr(objective, "objective", objective)  # of an objective in the format of a family
    return isinstance(inner, ThreeClass) or (isinstance(inner, TargetTokens) and len(inner.candidates) == 3)


class VocabRows(torch.nn.Module):
    """Some rows of the language-model head. It owns no parameters: the rows are the network's.

    Args:
        candidates: texts, each of which names the row of its last token.

    Raises:
        CheckpointError: the tokenizer does not have them as tokens, or two of them are the same.
    """

    def __init__(self, net: Net, candidates: tuple[str, ...], *, whole: bool = True) -> None:
        super().__init__()
        ids = []
        for text in candidates:
            tokens = net.tokenizer.encode(text, add_special_tokens=False)
            if not tokens or (whole and len(tokens) > 1) or tokens[-1] == net.tokenizer.unk_token_id:
                raise CheckpointError(
                    f"the target {text!r} is not one token of this base but {tokens}; take others"
                )
            ids.append(tokens[-1])
        if len(set(ids)) < len(ids):
            raise CheckpointError(
                f"the targets {candidates} end in the same token of this base; take another base"
            )
        # In a list, so that torch does not take the network's own rows for parameters of the head.
        self._net = [net]
        self.ids = torch.tensor(ids, device=net.device)
        # Now, so that rows of its own are among the parameters when the optimizer takes them.
        net.output()

    def forward(self, rows: Tensor) -> Tensor:
        """Logits of the candidates, [rows, candidates]."""
        return F.linear(rows, self._net[0].output()[self.ids].float())


@settings
class SeveralLabels(StepObjective):
    """Several labels a step, such as the criteria of a judge: a logit each, binary cross-entropy, summed over the labels that are known.

    The label of a step that no row gives is left out of the loss (Wang et al. 2026, arXiv 2603.03800, train rubrics so beside sparse outcomes).
    """

    name: ClassVar[str] = "labels"
    labels: tuple[str, ...] = (DEFAULT_AXIS,)
    """The axes of judgement that are fitted; the first is the score of a step."""

    def __post_init__(self) -> None:
        StepObjective.__post_init__(self)
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise UsageError(
                f"labels: expected axes of judgement, each once, found {', '.join(self.labels) or 'none'}"
            )

    @property
    def axes(self) -> tuple[str, ...]:
        """All labels."""
        return self.labels

    @property
    def readout(self) -> Readout:
        """A sigmoid of each label's logit."""
        return Readout(head=LinearHead(), activation="labels", class_names=self.labels)

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy of the labels that are known."""
        nan = float("nan")
        rows = [[nan if label is None else label for label in target.labels] for target in targets]
        table = torch.tensor(rows, dtype=logits.dtype, device=logits.device).reshape(logits.shape)
        known = ~table.isnan()
        losses = F.binary_cross_entropy_with_logits(logits, table.nan_to_num(), reduction="none")
        return (losses * known).sum(-1)

    def count_of(self, target: Target) -> int:
        """The labels that are known."""
        return sum(label is not None for label in target.labels)


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
        return replace(
            StepObjective.spec(self, layout, base),
            summary="stepmark's own outcome reward model: one logit at a marker token after the last step",
            aggregate="last",
            aggregate_source="an outcome reward model gives one verdict",
            outcome_only=True,
        )

    def wanted(self, example: Example) -> Example:
        """The outcome as the last step's target."""
        blank = (None,) * (len(example.targets) - 1)
        last = None if example.outcome is None else Target(value=float(example.outcome))
        return replace(example, targets=(*blank, last))

    def loss_of(self, logits: Tensor, targets: Sequence[Target]) -> Tensor:
        """Binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(logits[:, 0], _values(targets, logits), reduction="none")
