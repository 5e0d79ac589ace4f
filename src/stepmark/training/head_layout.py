"""Which layout of a checkpoint holds a head, and the head in the form of that layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.spec import LinearHead, LogRatioHead, MlpHead, Readout, ScoringSpec, VocabHead

WholeLayout = Literal["token-classification", "qwen2-prm", "causal-lm"]


def process_reward_head(weight: Tensor, bias: Tensor | None, *, good: int = 0) -> dict[str, Tensor]:
    """A linear head of one or two labels as the head of `Qwen2ForProcessRewardModel`, the same function to the last bit.

    Each logit z goes through two middle units, relu(z) and relu(-z), of which one is zero; the other middle units are zero.
    One logit becomes the second of two whose first is 0: the softmax's share of it is the sigmoid.

    Args:
        weight: [1 or 2, hidden].
        bias: [1 or 2], or none.
        good: which of two means right; it becomes the second, as readers of this layout expect.

    Returns:
        `score.0.weight` [hidden, hidden], `score.0.bias` [hidden], `score.2.weight` [2, hidden], `score.2.bias` [2].

    Raises:
        UsageError: another number of labels, or fewer hidden units than the middle ones that are needed.
    """
    labels, hidden = weight.shape
    if labels not in (1, 2) or hidden < 2 * labels:
        raise UsageError(
            f"the qwen2-prm layout holds one or two labels over a hidden size of at least two units a label, found {labels} "
            f"over {hidden}; take the layout token-classification"
        )
    if labels == 2 and good == 0:
        weight, bias = weight.flip(0), None if bias is None else bias.flip(0)
    made = {
        "score.0.weight": torch.zeros(hidden, hidden),
        "score.0.bias": torch.zeros(hidden),
        "score.2.weight": torch.zeros(2, hidden),
        "score.2.bias": torch.zeros(2),
    }
    for label in range(labels):
        for unit, sign in ((2 * label, 1.0), (2 * label + 1, -1.0)):
            made["score.0.weight"][unit] = sign * weight[label].detach().float().cpu()
            if bias is not None:
                made["score.0.bias"][unit] = sign * bias[label].detach().float().cpu()
            # A lone logit is the second one: its share of the softmax beside 0 is its sigmoid.
            made["score.2.weight"][label + 2 - labels, unit] = sign
    return made


def layout_of(
    asked: Literal["auto"] | WholeLayout, spec: ScoringSpec | None, head: Mapping[str, Tensor], kind: Any
) -> WholeLayout:
    """The layout to write, known to hold the head."""
    form = None if spec is None else spec.readout.head
    if form is None or isinstance(form, VocabHead | LogRatioHead):
        if asked not in ("auto", "causal-lm"):
            raise UsageError(
                f"this PRM is read from a language model's output; its layout is causal-lm, not {asked}"
            )
        return "causal-lm"
    assert spec is not None
    if isinstance(form, LinearHead):
        labels = _tensor(head, form.weight).shape[0]
        # Its class on vLLM gives two logits through a softmax, at every mark.
        fits = (
            labels <= 2
            and spec.readout.activation in ("sigmoid", "softmax", "margin")
            and not spec.outcome_only
        )
        possible: tuple[WholeLayout, ...] = ("token-classification",)
        if kind == "qwen2" and fits:
            possible = ("qwen2-prm", "token-classification")
    elif isinstance(form, MlpHead) and kind == "qwen2":
        possible = ("qwen2-prm",)
    else:
        raise UsageError(
            f"a head of the kind {form.kind!r} over a {kind} base has no layout that transformers or vLLM read; train a linear "
            "head, or write an adapter, which stepmark reads"
        )
    if asked == "auto":
        return possible[0]
    if asked not in possible:
        raise UsageError(
            f"the layout {asked} cannot hold this head ({form.kind}, {spec.readout.activation}) over a {kind} base; "
            f"possible: {', '.join(possible)}"
        )
    return asked


def in_layout(
    readout: Readout, head: Mapping[str, Tensor], where: WholeLayout
) -> tuple[Readout, Mapping[str, Tensor]]:
    """The readout and the head's tensors under the names, and in the form, of the layout."""
    form = readout.head
    if isinstance(form, MlpHead):
        names = [f"{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
        made = {f"score.{name}": _tensor(head, f"{form.prefix}.{name}") for name in names}
        middle, hidden = made["score.0.weight"].shape
        if middle != hidden:
            raise UsageError(
                f"Qwen2ForProcessRewardModel has as many middle units as its hidden size, {hidden}; this head has {middle}"
            )
        return replace(readout, head=MlpHead()), made
    assert isinstance(form, LinearHead)
    weight = _tensor(head, form.weight)
    bias = head.get(form.bias) if form.bias is not None else None
    if where == "qwen2-prm":
        made = process_reward_head(weight, bias, good=readout.good)
        activation = "softmax" if readout.activation == "sigmoid" else readout.activation
        return replace(readout, head=MlpHead(), activation=activation, good=1), made
    bias = torch.zeros(weight.shape[0]) if bias is None else bias
    return replace(readout, head=LinearHead()), {"score.weight": weight, "score.bias": bias}


def _tensor(head: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in head:
        raise UsageError(f"the spec reads the head's tensor {name!r}, found {sorted(head)}")
    return head[name]
