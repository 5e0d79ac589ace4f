"""Training that goes on from an adapter that was trained before: the function is the same at the start, whatever the ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.checkpoint import Tensors, adapter_config
from stepmark.models.default import default_folder
from stepmark.models.detect import read_spec
from stepmark.models.files import local_folder, present
from stepmark.models.places import BUILT_IN, find_checkpoint
from stepmark.models.spec import SPEC_FILE, LinearHead, MlpHead, ScoringSpec

if TYPE_CHECKING:
    from stepmark.training.net import Net

_NAME = re.compile(r"(?:base_model\.model\.)?(?:model\.)?(.+\.lora_[AB])(?:\.\w+)?\.weight")


def warm_start(name: str, masters: Mapping[str, Tensor], net: Net) -> None:
    """Put an adapter's matrices and its head where training begins, in place.

    Of a lower rank, its matrices fill the first rows of A and columns of B; the rest of A stays as drawn and of B zero. A scale of its own
    (alpha / rank) goes into B.

    Args:
        name: "default" for the PRM that ships, a folder, or a hub name.
        masters: what is trained, by name (`Net.named_parameters`), as it was drawn.
        net: with the new head.

    Raises:
        CheckpointError: no LoRA adapter, one over another base, or its weights do not fit: a higher rank, layers that are frozen here,
            another head.
        UsageError: it reads solutions in another layout or with another mark than this run.
    """
    folder = default_folder() if name == "default" else find_checkpoint(name)
    config = adapter_config(folder)
    _same_base(folder, config.get("base_model_name_or_path"), net)
    if present(folder / SPEC_FILE) and isinstance(net.spec, ScoringSpec):
        spec = read_spec(folder / SPEC_FILE)
        if spec.layout != net.spec.layout:
            raise UsageError(
                f"`warm_start` {name}: it reads solutions otherwise than this run would ({spec.layout!r} and {net.spec.layout!r}); "
                "take the same `mark` and `layout`"
            )
    rank = int(config["r"])
    theirs = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    ours = net.weights.alpha / net.weights.lora_rank
    places = {found[1]: tensor for key, tensor in masters.items() if (found := _NAME.fullmatch(key))}
    tensors = Tensors(folder)
    filled = 0
    with torch.no_grad():
        for key in sorted(tensors.names):
            named = _NAME.fullmatch(key)
            if named is None:
                continue
            place, given = places.get(named[1]), tensors.get(key)
            up = named[1].endswith("B")
            if place is None:
                raise CheckpointError(
                    f"{folder}: the adapter changes {named[1]}, which is not trained here; lower `frozen_layers`"
                )
            if given.dim() != 2 or given.shape[1 if up else 0] != rank:
                raise CheckpointError(
                    f"{folder}: {key} has the shape {tuple(given.shape)}, and adapter_config.json says r = {rank}"
                )
            wide = rank if up else given.shape[1]
            if wide > place.shape[1] or given.shape[0] > place.shape[0]:
                raise CheckpointError(
                    f"{folder}: {named[1]} has the shape {tuple(given.shape)}, which {tuple(place.shape)} cannot hold; `lora_rank` "
                    f"must be at least {rank}, and the base the same"
                )
            if up:
                place.zero_()[:, :rank] = given.to(place) * (theirs / ours)
            else:
                place[: len(given)] = given.to(place)
            filled += 1
        if not filled:
            raise CheckpointError(f"{folder} holds no LoRA weights")
        for inner, outer in _head_names(net).items():
            if (key := f"base_model.model.{outer}") not in tensors.names:
                continue
            given, place = tensors.get(key), masters[f"head.{inner}"]
            if given.shape != place.shape:
                raise CheckpointError(
                    f"{folder}: its head's {outer} has the shape {tuple(given.shape)}, and this objective's {tuple(place.shape)}; "
                    "train with the objective that it was trained with"
                )
            place.copy_(given)


def _same_base(folder: Path, named: object, net: Net) -> None:
    if not isinstance(named, str) or not (named in BUILT_IN or local_folder(named)):
        return  # a hub name, or a folder of another machine: shapes are all that can be compared
    if find_checkpoint(named).resolve() != net.base.resolve():
        raise CheckpointError(f"{folder} is an adapter over {named}, and the base here is {net.base}")


def _head_names(net: Net) -> dict[str, str]:
    """The head's parameters, and what they are called in a checkpoint."""
    head = net.spec.readout.head if isinstance(net.spec, ScoringSpec) else None
    if isinstance(head, LinearHead):
        return {"weight": head.weight} | ({"bias": head.bias} if head.bias is not None else {})
    if isinstance(head, MlpHead):
        return {name: f"{head.prefix}.{name}" for name, _ in net.head.named_parameters()}
    return {}
