"""What is written of a trained network: the adapter alone or the whole checkpoint, with its spec and its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.spec import SPEC_FILE, LinearHead, MlpHead, ScoringSpec
from stepmark.training.adapter import write_adapter
from stepmark.training.checkpoint import write_merged
from stepmark.training.net import Net
from stepmark.training.written import Written, write_json


def head_tensors(net: Net) -> dict[str, Tensor]:
    """The head's weights by the names that the spec reads them by; none for heads that are rows of the language model."""
    head = net.spec.readout.head if isinstance(net.spec, ScoringSpec) else None
    state = {name: t.detach().float().cpu().contiguous() for name, t in net.head.state_dict().items()}
    if isinstance(head, LinearHead):
        named = {head.weight: state["weight"]}
        return named | ({head.bias: state["bias"]} if head.bias is not None else {})
    if isinstance(head, MlpHead):
        return {f"{head.prefix}.{name}": tensor for name, tensor in state.items()}
    return {}


def adapter_tensors(net: Net) -> dict[str, Tensor]:
    """The adapter's matrices in PEFT's names, in the precision that was computed in."""
    return {
        f"base_model.model.{name.removeprefix('base_model.model.').replace('.default', '')}": tensor.detach()
        .to(net.dtype)
        .cpu()
        .contiguous()
        for name, tensor in net.model.state_dict().items()
        if "lora_" in name
    }


def merged_backbone(net: Net) -> torch.nn.Module:
    """The backbone as a plain one, the adapter added to its weights in float32. The network is spent by it."""
    if net.weights.full:
        plain: torch.nn.Module = net.backbone
        return plain
    merged: torch.nn.Module = net.model.float().merge_and_unload()
    return merged.to(net.dtype)


def write_trained(
    folder: Path, net: Net, *, adapter: bool, base_name: str, notes: Mapping[str, Any]
) -> Written:
    """Write what was trained into a new folder.

    Args:
        folder: must not exist.
        net: after training; without `adapter` it cannot be trained on afterwards.
        adapter: only the adapter and the head.
        base_name: what the adapter names as its base.
        notes: settings, counts and figures, for train.json and the card.

    Raises:
        UsageError: an adapter of all weights, or of a generative PRM.
    """
    spec = net.spec if isinstance(net.spec, ScoringSpec) else None
    if adapter and net.weights.full:
        raise UsageError("`adapter`: all weights were trained, there is no adapter; leave it out")
    if adapter and spec is None:
        raise UsageError(
            "`adapter`: a generative PRM is written whole, so that any server runs it; leave it out"
        )
    if adapter:
        return write_adapter(
            folder,
            adapter=adapter_tensors(net),
            head=head_tensors(net),
            spec=spec,
            base_name=base_name,
            rank=net.weights.lora_rank,
            alpha=net.weights.alpha,
            dtype=net.dtype,
            notes=notes,
        )
    written = write_merged(
        folder,
        backbone=merged_backbone(net),
        head=head_tensors(net),
        output=None if net.tied else net.output().detach(),
        spec=spec,
        base=net.base,
        dtype=net.dtype,
        notes=notes,
    )
    if not isinstance(net.spec, ScoringSpec):
        write_json(folder / SPEC_FILE, net.spec.data())
    return written
