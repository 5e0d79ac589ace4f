"""The language-modelling loss on right steps, beside the loss of a step objective.

Cobbe et al. 2021, "Training verifiers to solve math word problems", section 4.2: verifiers that are trained to write right solutions too,
besides judging them, judge better. Deviations: only tokens of steps that are right, or stand before the first wrong one, are fitted; and by
default only tokens with a digit or a sign of arithmetic, in which a right solution differs from a wrong one (a vocabulary of logits is
computed for those alone). Beside them, words of quantity say in English what a calculation does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from stepmark.models.tree import Ints
from stepmark.training.items import Item, Row
from stepmark.training.logprobs import token_logprobs
from stepmark.training.net import Net

Tokens = Literal["arithmetic", "quantities", "all"]
"""Which tokens of right steps are fitted."""
_ARITHMETIC = re.compile(r"[0-9+*/=<>×÷^%$-]")
# Pieces of words too: what a word begins with is a token as often as the word.
_QUANTITY = re.compile(
    r"times|div|add|subtract|multipl|plus|minus|more|less|fewer|twice|double|triple|half|third|quarter|total|sum|left|each|every|\bper\b",
    re.IGNORECASE,
)


def language_loss(net: Net, hidden: Tensor, batch: Sequence[Item], tokens: Tokens) -> Tensor | None:
    """The mean negative log-probability of the fitted tokens of a forward pass; None where it has none.

    With several passes a step, how the rows are cut into passes moves the weight of a token a little.

    Args:
        net: in training.
        hidden: states of the batch.
        batch: trees laid one after the other.
        tokens: which tokens of right steps are fitted.
    """
    fitted = _fitted_tokens(net, batch, tokens)
    if not len(fitted):
        return None
    return -token_logprobs(hidden, net.output(), batch, fitted).sum() / len(fitted)


def _fitted_tokens(net: Net, batch: Sequence[Item], tokens: Tokens) -> Ints:
    """Packed indices of the tokens that are fitted, of trees laid one after the other."""
    parts: list[Ints] = []
    start = 0
    for item in batch:
        places = [right_tokens(item, row) for row in item.rows]
        fitted = np.unique(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)
        if tokens != "all" and len(fitted):
            fitted = fitted[[_is_fitted(net, int(token), tokens) for token in item.tree.ids[fitted]]]
        parts.append(fitted + start)
        start += len(item.tree)
    return np.concatenate(parts)


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
