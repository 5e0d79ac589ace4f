"""Checkpoints on disk: what tensors they hold, and LoRA adapters over a base.

Safetensors are preferred; a `.bin` is read with `weights_only=True`, which executes nothing.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepmark.errors import CheckpointError

# Settings of PEFT's LoraConfig that change what the adapter computes.
_VARIANTS = (
    "use_dora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "alora_invocation_tokens",
    "layer_replication",
    "trainable_token_indices",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)


class Tensors:
    """The tensors of a checkpoint folder, read one by one without loading the rest.

    Raises:
        CheckpointError: no weights, an unreadable file, a tensor that the index promises and no file has.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}
        self._loaded: dict[Path, dict[str, Tensor]] = {}
        for suffix in ("safetensors", "bin"):
            files = sorted(folder.glob(f"*.{suffix}"))
            if suffix == "bin":
                files = [f for f in files if f.name.startswith(("pytorch_model", "adapter_model"))]
            if files:
                for file in files:
                    for name in self._names(file):
                        self._files[name] = file
                break
        else:
            raise CheckpointError(f"{folder} holds no weights (no *.safetensors, no pytorch_model*.bin)")

    def _names(self, file: Path) -> Iterable[str]:
        if file.suffix == ".bin":
            return self._bin(file)
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as opened:
                return list(opened.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} is not a readable safetensors file ({error}); fetch it again"
            ) from error

    def _bin(self, file: Path) -> dict[str, Tensor]:
        if file not in self._loaded:
            try:
                # Files of before torch 1.6 are no zip archives, and only archives can be mapped.
                mapped = zipfile.is_zipfile(file)
                loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
            except Exception as error:  # torch raises many kinds for a corrupt or an unsafe file
                raise CheckpointError(f"{file} cannot be read with weights_only=True: {error}") from error
            if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
                raise CheckpointError(f"{file} should hold tensors by name, and nothing else")
            self._loaded[file] = loaded
        return self._loaded[file]

    @property
    def names(self) -> frozenset[str]:
        """All tensor names."""
        return frozenset(self._files)

    def get(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            CheckpointError: it is not there; the message lists tensors that are no part of a backbone.
        """
        file = self._files.get(name)
        if file is None:
            raise CheckpointError(
                f"{self.folder}: no tensor {name!r}; beside the backbone it holds {self.beside_backbone()[:8]}"
            )
        if file.suffix == ".bin":
            return self._bin(file)[name]
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    def beside_backbone(self) -> list[str]:
        """Tensor names that belong to no decoder layer, embedding or final norm: heads."""
        parts = ("layers.", "embed_tokens.", "model.norm.", "norm.weight", "rotary")
        return sorted(n for n in self._files if not any(p in n for p in parts))


def merge_adapter(backbone: Any, folder: Path) -> dict[str, Tensor]:
    """Add a LoRA adapter (PEFT layout) to a backbone's weights, in float32, in place.

    Source: Hu et al. 2021, "LoRA", equation 3: W + alpha / r * B A.

    Returns:
        The adapter's other tensors, by name: a head that was saved with it.

    Raises:
        CheckpointError: a variant of LoRA that this does not implement, or a tensor that the base has no place for.
    """
    config = adapter_config(folder)
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    tensors = Tensors(folder)
    others: dict[str, Tensor] = {}
    for name in sorted(tensors.names):
        bare = name.removeprefix("base_model.model.")
        if bare.endswith(".lora_A.weight"):
            target = bare.removesuffix(".lora_A.weight").removeprefix("model.")
            down = tensors.get(name).float()
            up = tensors.get(name.replace(".lora_A.", ".lora_B.")).float()
            try:
                weight = backbone.get_parameter(f"{target}.weight")
            except AttributeError as error:
                raise CheckpointError(
                    f"{folder}: the adapter changes {target!r}, which the base does not have"
                ) from error
            with torch.no_grad():
                weight.copy_((weight.float() + scale * (up @ down).to(weight.device)).to(weight.dtype))
        elif not bare.endswith(".lora_B.weight"):
            others[bare] = tensors.get(name)
    return {name: t for name, t in others.items() if not _replaced(backbone, name, t, folder)}


def _replaced(backbone: Any, name: str, tensor: Tensor, folder: Path) -> bool:
    """Put a tensor that the adapter holds whole (PEFT's `modules_to_save`) into the backbone; False for a head's."""
    target = name.removeprefix("model.")
    if target.split(".")[0] not in dict(backbone.named_children()) and "lora_" not in name:
        return False
    weight = dict(backbone.named_parameters()).get(target)
    if weight is None or weight.shape != tensor.shape:
        raise CheckpointError(
            f"{folder}: the adapter holds {name!r} of shape {tuple(tensor.shape)}, which stepmark cannot put into the "
            "base; merge it with peft"
        )
    with torch.no_grad():
        weight.copy_(tensor)
    return True


def adapter_config(folder: Path) -> dict[str, Any]:
    """`adapter_config.json`, known to be of a LoRA adapter that `merge_adapter` can merge.

    Raises:
        CheckpointError: not JSON, another kind of adapter, a variant of LoRA, or no rank or scale.
    """
    file = folder / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise CheckpointError(f"{file}: expected peft_type LORA; merge another kind of adapter with peft")
    for option in _VARIANTS:
        if config.get(option):
            raise CheckpointError(
                f"{folder}: the adapter uses {option}, which stepmark does not merge; merge it with peft"
            )
    for key in ("r", "lora_alpha"):
        if not isinstance(config.get(key), int | float) or config[key] <= 0:
            raise CheckpointError(f"{file}: {key} should be a number above 0, found {config.get(key)!r}")
    return config
