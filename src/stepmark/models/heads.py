"""Heads: from hidden states to logits, and from logits to step scores. All in float32, whatever the backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.checkpoint import FLOATING, TensorFact, Tensors, fact_of
from stepmark.models.spec import (
    ConfidenceHead,
    EnsembleHead,
    Head,
    LinearHead,
    LogRatioHead,
    MlpHead,
    Readout,
    TokenHead,
    VocabHead,
)
from stepmark.words import amount

Neutral = Literal["positive", "negative"]
HeadFunction = Callable[[Tensor], Tensor]
"""[rows, hidden] -> [rows, classes]."""


def check_head(
    head: Head,
    facts: Mapping[str, TensorFact],
    *,
    folder: Path,
    hidden: int | None,
    classes: int | None = None,
) -> None:
    """Refuse head tensors that are not what the spec says, before any is read.

    Args:
        head: of the spec.
        facts: of every tensor of the checkpoint.
        folder: for messages.
        hidden: the backbone's hidden size; None where it is not known yet.
        classes: how many logits the readout takes (`Readout.classes`); None for any number.

    Raises:
        CheckpointError: a tensor is missing, not of floating point, of another shape, or there and not named by the spec.
    """

    def sizes(name: str, *expected: int | None) -> tuple[int, ...]:
        fact = fact_of(facts, name, folder)
        if fact.dtype not in FLOATING:
            raise CheckpointError(
                f"{fact.file}: {name} is of type {fact.dtype}; expected one of {', '.join(sorted(FLOATING))}"
            )
        if len(fact.shape) != len(expected) or any(
            size is not None and size != actual for size, actual in zip(expected, fact.shape, strict=True)
        ):
            raise CheckpointError(
                f"{fact.file}: {name}: expected the shape {expected} (None: any), found {fact.shape}"
            )
        return fact.shape

    if isinstance(head, TokenHead):
        wide = None if hidden is None else TOKEN_FEATURES + hidden
        sizes(head.bias, sizes(head.weight, classes, wide)[0])
    elif isinstance(head, LinearHead):
        count = sizes(head.weight, None, hidden)[0]
        usual = head.weight.removesuffix("weight") + "bias"
        wrong = None
        if classes is not None and count != classes:
            wrong = (
                f"{facts[head.weight].file}: {head.weight} has {amount(count, 'class', 'classes')}, and the spec reads {classes}; name the right `family`, "
                "or say in stepmark.json how it is read"
            )
        elif head.bias is None and usual in facts:
            wrong = (
                f"{facts[usual].file} holds {usual!r}, and the spec says that the head has no bias: name the tensor as its bias in "
                "stepmark.json, or name the right `family`"
            )
        if wrong is not None:
            raise CheckpointError(wrong)
        if head.bias is not None:
            sizes(head.bias, count)
    elif isinstance(head, MlpHead):
        if classes not in (None, 2):
            raise CheckpointError(
                f"{folder}: a head of two layers has 2 classes, and the spec reads {classes}"
            )
        middle = sizes(f"{head.prefix}.0.weight", None, hidden)[0]
        sizes(f"{head.prefix}.0.bias", middle)
        sizes(f"{head.prefix}.2.weight", 2, middle)
        sizes(f"{head.prefix}.2.bias", 2)
    elif isinstance(head, EnsembleHead):
        members, width = None, hidden
        for name, out in zip(_ENSEMBLE, (None, None, 1), strict=True):
            members, _, width = sizes(f"{head.prefix}.{name}.weight", members, width, out)
            sizes(f"{head.prefix}.{name}.bias", members, width)
    elif "lm_head.weight" in facts:
        sizes("lm_head.weight", None, hidden)


TOKEN_FEATURES = 4
"""Numbers that a `TokenHead` reads of a step's tokens (`token_head.token_features`)."""
_ENSEMBLE = ("nn1", "nn2", "nn_out")


def build_head(head: Head, tensors: Tensors, backbone: Any, tokenizer: Any, device: str) -> HeadFunction:
    """The function of a head, its weights read from the checkpoint and checked against the backbone.

    Raises:
        CheckpointError: a tensor is missing or has the wrong shape, or a candidate token is unknown.
    """
    check_head(head, tensors.facts, folder=tensors.folder, hidden=int(backbone.config.hidden_size))
    linear = torch.nn.functional.linear

    def get(*names: str) -> list[Tensor]:
        return [tensors.get(name).to(device, torch.float32) for name in names]

    if isinstance(head, LinearHead | TokenHead):
        [weight], bias = get(head.weight), None if head.bias is None else get(head.bias)[0]
        return lambda rows: linear(rows, weight, bias)
    if isinstance(head, MlpHead):
        w1, b1, w2, b2 = get(*head.names.values())
        return lambda rows: linear(torch.relu(linear(rows, w1, b1)), w2, b2)
    if isinstance(head, EnsembleHead):
        layers = [get(f"{head.prefix}.{name}.weight", f"{head.prefix}.{name}.bias") for name in _ENSEMBLE]

        def ensemble(rows: Tensor) -> Tensor:
            state = rows.expand(layers[0][0].shape[0], -1, -1)
            for i, (weight, bias) in enumerate(layers):
                state = torch.baddbmm(bias[:, None, :], state, weight)
                state = torch.relu(state) if i < len(layers) - 1 else state
            return state.squeeze(-1).transpose(0, 1)

        return ensemble
    if isinstance(head, VocabHead):
        verdicts = _verdict_rows(head, output_rows(tensors, backbone), tokenizer).to(device).float()
        return lambda rows: linear(rows, verdicts)
    assert isinstance(head, LogRatioHead | ConfidenceHead)
    raise CheckpointError(
        "this PRM has no head; it is read from the probabilities of one language model, or of two language models"
    )


def new_head(head: Head, hidden: int, classes: int) -> torch.nn.Module:
    """A head to train, over hidden states of this size: its parameters have the names of `HeadKind.names`, and its last layer begins at zero, every
    class equally likely.

    Raises:
        CheckpointError: a kind that is not trained.
    """
    if not isinstance(head, LinearHead | MlpHead | TokenHead):
        raise CheckpointError(f"a head of the kind {head.kind!r} has no weights of its own to train")
    has_bias = isinstance(head, MlpHead) or head.bias is not None
    width = hidden + (TOKEN_FEATURES if isinstance(head, TokenHead) else 0)
    last = torch.nn.Linear(width, classes, bias=has_bias)
    for parameter in last.parameters():
        torch.nn.init.zeros_(parameter)
    if isinstance(head, MlpHead):
        return torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), last)
    return last


def verdict_ids(head: VocabHead, tokenizer: Any) -> list[int]:
    """The token of each candidate, in order.

    Raises:
        CheckpointError: the tokenizer does not know a candidate, or two end in the same token.
    """
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
    return ids


def _verdict_rows(head: VocabHead, rows: Tensor, tokenizer: Any) -> Tensor:
    """The rows of the language-model head for the candidate tokens."""
    ids = verdict_ids(head, tokenizer)
    if max(ids) >= len(rows):
        raise CheckpointError(
            f"the tokenizer has the verdicts {head.candidates} at {ids}, and lm_head.weight only {amount(len(rows), 'row')}"
        )
    return rows[torch.tensor(ids, device=rows.device)]


def output_rows(tensors: Tensors, backbone: Any) -> Tensor:
    """The language-model head's weight [vocabulary, hidden]: its own, or the embedding where they are tied."""
    if "lm_head.weight" in tensors.names:
        return tensors.get("lm_head.weight")
    if backbone.config.tie_word_embeddings:
        weight: Tensor = backbone.get_input_embeddings().weight.detach()
        return weight
    raise CheckpointError(
        "the checkpoint has no lm_head.weight and does not tie it to the embedding; its verdicts cannot be read"
    )


def step_scores(
    readout: Readout, logits: Tensor, neutral: Neutral
) -> tuple[list[float], list[tuple[float, ...]] | None]:
    """Scores [rows] of logits [rows, classes], and the probabilities of the classes of three-class PRMs or of several labels.

    Args:
        neutral: whether a neutral step counts as good (Lightman et al. 2023, Table 4).

    Raises:
        CheckpointError: the head has another number of classes than its spec says, or gave NaN or an infinity.
    """
    if not torch.isfinite(logits).all():
        raise CheckpointError(
            "the model gave NaN or an infinity; try `dtype` float32, or check the checkpoint"
        )
    if readout.activation == "sigmoid-mean" and not logits.shape[1]:
        raise CheckpointError("the ensemble has no members")
    if readout.classes not in (None, logits.shape[1]):
        raise CheckpointError(
            f"this family's head has {amount(readout.classes, 'class', 'classes')}, the checkpoint's has {logits.shape[1]}"
        )
    if readout.activation == "sigmoid":
        return torch.sigmoid(readout.scale * logits[:, 0] + readout.shift).tolist(), None
    if readout.activation == "labels":
        p = torch.sigmoid(logits.double())
        p[:, readout.good] = torch.sigmoid(readout.scale * logits[:, readout.good].double() + readout.shift)
        return p[:, readout.good].tolist(), [tuple(row) for row in p.tolist()]
    if readout.activation == "identity":
        return logits[:, 0].tolist(), None
    if readout.activation == "sigmoid-mean":
        return torch.sigmoid(logits).mean(-1).tolist(), None
    # In float64, so that a sum of class probabilities does not pass 1 by a rounding.
    p = torch.softmax(logits.double(), -1)
    if readout.activation == "margin":
        return (p[:, readout.good] - p[:, 1 - readout.good]).tolist(), None
    if readout.neutral is None:
        # The softmax of two is the sigmoid of their difference.
        above = logits[:, readout.good].double() - logits[:, 1 - readout.good].double()
        return torch.sigmoid(readout.scale * above + readout.shift).tolist(), None
    score = p[:, readout.good] + (p[:, readout.neutral] if neutral == "positive" else 0.0)
    return score.clamp(0.0, 1.0).tolist(), [tuple(row) for row in p.tolist()]
