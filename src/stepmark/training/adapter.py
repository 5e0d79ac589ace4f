"""Write what was trained as a LoRA adapter with its head, in PEFT's layout. Written whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.spec import SPEC_FILE, LinearHead, MlpHead, ScoringSpec
from stepmark.training.written import TRAIN_FILE, Written, new_folder, refuse_infinite, write_json


def write_adapter(
    folder: Path,
    *,
    adapter: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    output: Tensor | None = None,
    spec: ScoringSpec | None,
    base_name: str,
    rank: int,
    alpha: float,
    dtype: torch.dtype | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Written:
    """A LoRA adapter with its head in a new folder, in PEFT's layout.

    `peft` loads it over transformers' own class of the base: for a linear head `AutoModelForTokenClassification` (the head
    comes with it), for the language-model head `AutoModelForCausalLM`, for others `AutoModel` (the head is not taken).

    Args:
        folder: must not exist yet.
        adapter: `lora_A` and `lora_B` weights, named as `peft` has them in the network (`…layers.0.self_attn.q_proj.lora_A.default.weight`)
            with or without its prefixes.
        head: tensors by the names that the spec's head gives them.
        output: the language-model head [vocabulary, hidden] where it was trained too.
        spec: how it is read; None for a generative PRM.
        base_name: what the adapter names as its base: a hub name, a folder, or the built-in one.
        rank: of the adapter.
        alpha: its scale is alpha / rank.
        dtype: of the adapter on disk; None keeps it as it is. Heads are float32.
        notes: goes to `train.json`.

    Raises:
        UsageError: the folder exists; `adapter` holds something else than pairs of LoRA weights of this rank.
        CheckpointError: weights that are not finite.
    """
    lora = _bare(adapter, rank)
    linear = spec is not None and isinstance(spec.readout.head, LinearHead)
    mlp = spec is not None and isinstance(spec.readout.head, MlpHead)
    # Where the decoder stands in the class that peft loads the base with.
    inside = "" if mlp else "model."
    tensors = {
        f"base_model.model.{inside}{name}": t.detach().to("cpu", dtype or t.dtype).contiguous()
        for name, t in lora.items()
    }
    beside = dict(head) if output is None else {**head, "lm_head.weight": output}
    tensors |= {
        f"base_model.model.{n}": t.detach().to("cpu", torch.float32).contiguous() for n, t in beside.items()
    }
    refuse_infinite(tensors.items())
    numbers = {int(m[1]) for name in lora if (m := re.search(r"(?:^|\.)layers\.(\d+)\.", name))}
    config = {
        "peft_type": "LORA",
        "task_type": "TOKEN_CLS" if linear else "FEATURE_EXTRACTION" if mlp else "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in lora}),
        # Without them peft would put fresh adapters into the layers that have none here.
        **({"layers_to_transform": sorted(numbers), "layers_pattern": "layers"} if numbers else {}),
        "modules_to_save": ["score"] if linear else ["lm_head"] if output is not None else None,
    }
    with new_folder(folder) as work:
        from safetensors.torch import save_file

        save_file(tensors, work / "adapter_model.safetensors", metadata={"format": "pt"})
        write_json(work / "adapter_config.json", config)
        if spec is not None:
            write_json(work / SPEC_FILE, asdict(spec))
        write_json(work / TRAIN_FILE, dict(notes or {}))
    return Written(folder=folder, layout="adapter", architecture=None, spec=spec, tag=None)


def _bare(adapter: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """LoRA weights by their names inside the decoder."""
    named: dict[str, Tensor] = {}
    for name, tensor in adapter.items():
        found = re.fullmatch(r"(?:base_model\.model\.)?(?:model\.)?(.+\.lora_[AB])(?:\.\w+)?\.weight", name)
        if found is None:
            raise UsageError(
                f"expected LoRA weights, named ….lora_A.weight and ….lora_B.weight; found {name!r}"
            )
        if tensor.shape[0 if found[1].endswith("A") else -1] != rank:
            raise UsageError(f"{name}: expected rank {rank}, found the shape {tuple(tensor.shape)}")
        named[f"{found[1]}.weight"] = tensor
    targets = {name.rsplit(".lora_", 1)[0] for name in named}
    if not targets or len(named) != 2 * len(targets):
        raise UsageError(
            f"expected pairs of lora_A and lora_B, found {len(named)} tensors of {len(targets)} layers"
        )
    return named
