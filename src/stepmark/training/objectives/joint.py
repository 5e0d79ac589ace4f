"""A step objective beside the language-modelling loss on right steps.

Cobbe et al. 2021, "Training verifiers to solve math word problems", section 4.2: verifiers that are trained to write right solutions too,
besides judging them, judge better. Deviations: only tokens of steps that are right, or stand before the first wrong one, are fitted; and by
default only tokens with a digit or a sign of arithmetic, in which a right solution differs from a wrong one (a vocabulary of logits is
computed for those alone). Beside them, words of quantity say in English what a calculation does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import UsageError, said
from stepmark.models.generative import CriticSpec
from stepmark.models.spec import Layout, ScoringSpec
from stepmark.models.tree import Ints
from stepmark.training.examples import Dropped, Example
from stepmark.training.items import Item, Row
from stepmark.training.logprobs import token_logprobs
from stepmark.training.net import Net
from stepmark.training.objectives.base import Fitted, Objective

Tokens = Literal["arithmetic", "quantities", "all"]
"""Which tokens of right steps are fitted."""
_ARITHMETIC = re.compile(r"[0-9+*/=<>×÷^%$-]")
# Pieces of words too: what a word begins with is a token as often as the word.
_QUANTITY = re.compile(
    r"times|div|add|subtract|multipl|plus|minus|more|less|fewer|twice|double|triple|half|third|quarter|total|sum|left|each|every|\bper\b",
    re.IGNORECASE,
)


class FitsSteps(Objective, Protocol):
    """An objective whose loss is of logits at step ends."""

    def fit_logits(self, logits: Tensor, batch: Sequence[Item]) -> Fitted:
        """The loss of a batch's logits, [reads, classes]."""


@dataclass(frozen=True, kw_only=True)
class Joint:
    """An objective and the language-modelling loss.

    The loss of a batch is the objective's, a label, plus `weight` times the mean negative log-probability of the tokens that are
    fitted. That mean is over a forward pass: with several a step, how the rows are cut into passes moves a token's weight a little.
    """

    objective: FitsSteps
    weight: float
    """Of the language-modelling loss; above 0."""
    tokens: Tokens = "arithmetic"
    """Which tokens of right steps are fitted: `arithmetic`, those with a digit or a sign; `quantities`, those and words of quantity
    ("times", "more", "half"); `all`."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise UsageError(f"{said('weight', 'language_weight')} must be above 0, found {self.weight}")
        if self.tokens not in ("arithmetic", "quantities", "all"):
            raise UsageError(
                f"{said('tokens', 'language_tokens')} must be arithmetic, quantities or all, found {self.tokens!r}"
            )
        if self.objective.outcomes:
            raise UsageError(
                f"{said('weight', 'language_weight')} goes with labels of steps, not with outcomes alone"
            )

    @property
    def name(self) -> str:
        """The objective's, and that language modelling is beside it."""
        return f"{self.objective.name} + {self.weight:g} x language modelling"

    @property
    def outcomes(self) -> bool:
        """Steps are fitted."""
        return False

    @property
    def marked(self) -> bool:
        """A token that ends a step is read."""
        return True

    def spec(self, layout: Layout, base: str) -> ScoringSpec | CriticSpec:
        """The objective's."""
        return self.objective.spec(layout, base)

    def head(self, net: Net) -> torch.nn.Module:
        """The objective's."""
        return self.objective.head(net)

    def wanted(self, example: Example) -> Example:
        """As the objective has it."""
        return self.objective.wanted(example)

    def items(
        self, group: Sequence[Example], net: Net, *, budget: int, dropped: Dropped, every_step: bool
    ) -> Iterator[Item]:
        """The objective's trees."""
        return self.objective.items(group, net, budget=budget, dropped=dropped, every_step=every_step)

    def fit(self, net: Net, batch: Sequence[Item]) -> Fitted:
        """Forward pass and both losses."""
        hidden = net.hidden(batch)
        fitted = self.objective.fit_logits(net.read_hidden(hidden, batch), batch)
        if not net.model.training:
            return fitted  # held-out figures are the objective's own
        wanted = self._tokens(net, batch)
        if not len(wanted):
            return fitted
        mean = token_logprobs(hidden, net.output(), batch, wanted).sum() / len(wanted)
        return replace(fitted, loss=fitted.loss - self.weight * mean * fitted.labels)

    def _tokens(self, net: Net, batch: Sequence[Item]) -> Ints:
        """Packed indices of the tokens that are fitted, of trees laid one after the other."""
        found: list[Ints] = []
        start = 0
        for item in batch:
            places = [right_tokens(item, row) for row in item.rows]
            mine = np.unique(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)
            if self.tokens != "all" and len(mine):
                mine = mine[[_is_fitted(net, int(token), self.tokens) for token in item.tree.ids[mine]]]
            found.append(mine + start)
            start += len(item.tree)
        return np.concatenate(found)


def right_tokens(item: Item, row: Row) -> Ints:
    """Packed indices of a row's tokens from its first step to the end of the last step that is known to be right and before any wrong one."""
    end = -1
    for target, place in zip(row.example.targets, row.reads, strict=True):
        if target is None or place is None:
            continue
        if target.value <= 0.5:
            break
        end = int(item.tree.depths[item.reads[place]])
    return row.path[row.answer : end + 1] if end >= 0 else np.empty(0, dtype=np.int64)


_KNOWN: dict[tuple[int, int, Tokens], bool] = {}


def _is_fitted(net: Net, token: int, tokens: Tokens) -> bool:
    key = (id(net.tokenizer), token, tokens)
    if key not in _KNOWN:
        text = net.tokenizer.decode([token])
        _KNOWN[key] = _ARITHMETIC.search(text) is not None or (
            tokens == "quantities" and _QUANTITY.search(text) is not None
        )
    return _KNOWN[key]
