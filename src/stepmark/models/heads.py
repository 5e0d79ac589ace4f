"""Heads: from hidden states to logits, and from logits to step scores. All in float32, whatever the backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.checkpoint import Tensors
from stepmark.models.spec import EnsembleHead, Head, LinearHead, LogRatioHead, MlpHead, Readout, VocabHead

Neutral = Literal["positive", "negative"]
HeadFunction = Callable[[Tensor], Tensor]
"""[rows, hidden] -> [rows, classes]."""


class _Source:
    """Head tensors, from the checkpoint or from what came with an adapter, as float32 on the device."""

    def __init__(self, tensors: Tensors, extra: Mapping[str, Tensor], device: str) -> None:
        self._tensors, self._extra, self._device = tensors, extra, device

    def __contains__(self, name: str) -> bool:
        return name in self._extra or name in self._tensors.names

    def get(self, name: str) -> Tensor:
        tensor = self._extra[name] if name in self._extra else self._tensors.get(name)
        return tensor.to(self._device, torch.float32)


def build_head(
    head: Head, tensors: Tensors, extra: Mapping[str, Tensor], backbone: Any, tokenizer: Any, device: str
) -> HeadFunction:
    """The function of a head, its weights read from the checkpoint and checked against the backbone.

    Raises:
        CheckpointError: a tensor is missing or has the wrong shape, or a candidate token is unknown.
    """
    source = _Source(tensors, extra, device)
    hidden = int(backbone.config.hidden_size)
    if isinstance(head, LinearHead):
        weight = _shaped(source.get(head.weight), head.weight, (None, hidden))
        bias = None
        if head.bias is not None and head.bias in source:
            bias = _shaped(source.get(head.bias), head.bias, (weight.shape[0],))
        return lambda rows: torch.nn.functional.linear(rows, weight, bias)
    if isinstance(head, MlpHead):
        first, last = f"{head.prefix}.0", f"{head.prefix}.2"
        w1 = _shaped(source.get(f"{first}.weight"), f"{first}.weight", (None, hidden))
        w2 = _shaped(source.get(f"{last}.weight"), f"{last}.weight", (2, w1.shape[0]))
        b1 = _shaped(source.get(f"{first}.bias"), f"{first}.bias", (w1.shape[0],))
        b2 = _shaped(source.get(f"{last}.bias"), f"{last}.bias", (2,))
        linear = torch.nn.functional.linear
        return lambda rows: linear(torch.relu(linear(rows, w1, b1)), w2, b2)
    if isinstance(head, EnsembleHead):
        return _ensemble(head, source, hidden)
    if isinstance(head, VocabHead):
        return _vocab(head, source, backbone, tokenizer, device)
    assert isinstance(head, LogRatioHead)
    raise CheckpointError("an implicit PRM has no head; it is read by comparing two language models")


def _ensemble(head: EnsembleHead, source: _Source, hidden: int) -> HeadFunction:
    layers = []
    width: int | None = hidden
    for name in ("nn1", "nn2", "nn_out"):
        weight = _shaped(
            source.get(f"{head.prefix}.{name}.weight"), f"{head.prefix}.{name}.weight", (None, width, None)
        )
        layers.append((weight, source.get(f"{head.prefix}.{name}.bias")))
        width = weight.shape[2]

    def apply(rows: Tensor) -> Tensor:
        state = rows.expand(layers[0][0].shape[0], -1, -1)
        for i, (weight, bias) in enumerate(layers):
            state = torch.baddbmm(bias[:, None, :], state, weight)
            if i < len(layers) - 1:
                state = torch.relu(state)
        return state.squeeze(-1).transpose(0, 1)

    return apply


def _vocab(head: VocabHead, source: _Source, backbone: Any, tokenizer: Any, device: str) -> HeadFunction:
    ids = []
    for text in head.candidates:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if not tokens or tokens[-1] == tokenizer.unk_token_id:
            raise CheckpointError(
                f"the tokenizer does not know the verdict {text!r} that this PRM answers with"
            )
        ids.append(tokens[-1])
    if len(set(ids)) != len(ids):
        raise CheckpointError(
            f"the verdicts {head.candidates} end in the same token; this tokenizer cannot serve this PRM"
        )
    hidden = int(backbone.config.hidden_size)
    every = _shaped(output_rows(source, backbone), "lm_head.weight", (None, hidden))
    if max(ids) >= len(every):
        raise CheckpointError(
            f"the tokenizer has the verdicts {head.candidates} at {ids}, and lm_head.weight only {len(every)} rows"
        )
    weight = every[torch.tensor(ids, device=device)].float()
    return lambda rows: torch.nn.functional.linear(rows, weight)


def output_rows(
    source: _Source | Tensors, backbone: Any, extra: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The language-model head's weight [vocabulary, hidden]: its own, or the embedding where they are tied.

    Args:
        extra: what came with an adapter; a head among it takes the place of the base's.
    """
    if extra is not None and "lm_head.weight" in extra:
        return extra["lm_head.weight"]
    names = source.names if isinstance(source, Tensors) else source
    if "lm_head.weight" in names:
        return source.get("lm_head.weight")
    if backbone.config.tie_word_embeddings:
        weight: Tensor = backbone.get_input_embeddings().weight.detach()
        return weight
    raise CheckpointError(
        "the checkpoint has no lm_head.weight and does not tie it to the embedding; its verdicts cannot be read"
    )


def _shaped(tensor: Tensor, name: str, shape: tuple[int | None, ...]) -> Tensor:
    if len(tensor.shape) != len(shape) or any(
        want is not None and want != found for want, found in zip(shape, tensor.shape, strict=True)
    ):
        raise CheckpointError(f"{name}: expected the shape {shape} (None: any), found {tuple(tensor.shape)}")
    return tensor


def step_scores(
    readout: Readout, logits: Tensor, neutral: Neutral
) -> tuple[list[float], list[tuple[float, ...]] | None]:
    """Scores [rows] of logits [rows, classes], and the class probabilities for three-class PRMs.

    Args:
        neutral: whether a neutral step counts as good (Lightman et al. 2023, Table 4).

    Raises:
        CheckpointError: the head has another number of classes than its spec says, or gave NaN or an infinity.
    """
    if not torch.isfinite(logits).all():
        raise CheckpointError(
            "the model gave NaN or an infinity; try --dtype float32, or check the checkpoint"
        )
    classes = logits.shape[1]
    if readout.activation == "sigmoid":
        _classes(classes, 1)
        return torch.sigmoid(readout.scale * logits[:, 0] + readout.shift).tolist(), None
    if readout.activation == "identity":
        _classes(classes, 1)
        return logits[:, 0].tolist(), None
    if readout.activation == "sigmoid-mean":
        if classes == 0:
            raise CheckpointError("the ensemble has no members")
        return torch.sigmoid(logits).mean(-1).tolist(), None
    # In float64, so that a sum of class probabilities does not pass 1 by a rounding.
    p = torch.softmax(logits.double(), -1)
    if readout.activation == "margin":
        _classes(classes, 2)
        return (p[:, readout.good] - p[:, 1 - readout.good]).tolist(), None
    if readout.neutral is None:
        _classes(classes, 2)
        # The softmax of two is the sigmoid of their difference.
        above = logits[:, readout.good].double() - logits[:, 1 - readout.good].double()
        return torch.sigmoid(readout.scale * above + readout.shift).tolist(), None
    _classes(classes, 3)
    score = p[:, readout.good] + (p[:, readout.neutral] if neutral == "positive" else 0.0)
    return score.clamp(0.0, 1.0).tolist(), [tuple(row) for row in p.tolist()]


def _classes(found: int, expected: int) -> None:
    if found != expected:
        raise CheckpointError(f"this family's head has {expected} classes, the checkpoint's has {found}")
