"""How much memory a PRM takes, known before it is loaded: from its config and the headers of its weight files alone.

For a pass of T tokens (`token_budget`) in elements of b bytes:

    weights     = sum over tensors of elements x bytes, layers' matrices by `quantize`
    cache       = 2 x T x layers x key_heads x head_size x 2 x b
    activations = T x (8 hidden + 3 inner) x b + 10 x queries x heads x 2 T + 2 x the largest matrix's plain form, where quantized

A critic writes 16 critiques at once: in its cache, T is 16 times the tokens of the longest; its activations are of 16 prompts of 1,024 tokens, with
what the vocabulary's logits take in float32. Measured with 16 prompts of 1,016 tokens and few written (0.2B weights in 4 layers), the peak was 0.92 (plain) and 0.93
(int8) of the estimate with `PROCESS`; long critiques were not measured.

The cache holds the keys and values that later passes need, at most those of one pass and a path, and a copy while its pool grows. Of the scores of attention, a piece of
`queries` (128 on a CPU, 512 on CUDA) is there at a time. Measured on a CPU, the peak of
the process was 0.81 (plain), 1.03 (int8) and 1.18 (int4) of the estimate with `PROCESS` at 1.5B, and 0.90, 0.94 and 0.91 at 7B (docs/scale.md#memory).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.families import find_published
from stepmark.models.lazy import Bits, is_server
from stepmark.models.load import writes_critiques
from stepmark.models.spec import LogRatioHead

PROCESS = 500_000_000
"""Bytes that Python, torch and transformers take on a CPU beside the PRM."""
_WRITTEN, _PROMPT = 16, 1024
"""Critiques at once (`LocalPolicy`'s default), and tokens of a prompt."""
_CHOICES: tuple[Bits | None, ...] = (None, "int8", "int4")
_MATRIX_BITS = {"int8": 8, "int4": 4.5}


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes that a PRM takes on its device."""

    weights: int
    cache: int | None
    """None where only the table of published PRMs is known."""
    activations: int | None

    @property
    def total(self) -> int:
        """All that is known."""
        return self.weights + (self.cache or 0) + (self.activations or 0)


def memory_of(
    name: str,
    *,
    family: str | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    quantize: Bits | None = None,
    device: str = "auto",
    token_budget: int | None = None,
) -> Memory:
    """What the PRM of a checkpoint takes; nothing is downloaded, no weights are read.

    Args:
        name, family, dtype, quantize, device, token_budget: as for `load_prm`. With the device "all", the sum over the GPUs.

    Raises:
        CheckpointError: the checkpoint is not here and no published one, or cannot be read.
        UsageError: the PRM does not compute in this process.
    """
    from stepmark.models.backbone import compute_devices
    from stepmark.models.files import local_folder
    from stepmark.models.places import NAMES, built_in, folder_of

    if is_server(name):
        raise UsageError(f"{name} computes on its server; ask `stepmark doctor` there")
    where = compute_devices(device)[0]
    folder = folder_of(name) if name in NAMES else built_in(name) or local_folder(name)
    if folder is not None:
        return _of_folder(folder, name, family, dtype, quantize, where, token_budget)
    published = find_published(name)
    if published is None:
        raise CheckpointError(f"{name} is neither a folder here nor a published PRM (`stepmark families`)")
    each = 4 if dtype == "float32" else 2
    base, models = published.base, max(1, published.language_models)
    # The table of embeddings stays plain; where the output layer is that table, it is 15 % of a network of 1.5B.
    table = base.output or base.backbone * 15 // 100
    output = base.output if published.language_models else 0
    matrices = (
        _MATRIX_BITS[quantize] * (base.backbone - table) // 8 if quantize else each * (base.backbone - table)
    )
    return Memory(weights=int(models * (each * (table + output) + matrices)), cache=None, activations=None)


def _of_folder(
    folder: Path,
    name: str,
    family: str | None,
    dtype: str,
    bits: Bits | None,
    device: str,
    budget: int | None,
) -> Memory:
    from stepmark.models.backbone import saved_dtype
    from stepmark.models.checkpoint import Tensors, spec_of
    from stepmark.models.load import base_of, compute_dtype, critic_settings_of
    from stepmark.models.quantized import quantized_bytes

    base, in_bfloat16 = base_of(folder)
    config = _text_config(base)
    critic = critic_settings_of(name, family) if writes_critiques(name, family=family) else None
    saved = critic is not None and dtype == "auto"
    bytes_each = (saved_dtype(base) if saved else compute_dtype(dtype, device, in_bfloat16)).itemsize
    # An implicit PRM loads a reference model of the same size beside it, and the output layers of both.
    implicit = critic is None and isinstance(spec_of(folder, name, family).readout.head, LogRatioHead)
    models = 2 if implicit else 1
    # The head of a PRM is a few rows of the output layer; a tied one is the table of embeddings.
    whole_head = implicit or (critic is not None and not config.get("tie_word_embeddings"))
    weights = largest = 0
    for tensor, fact in Tensors(base).facts.items():
        if tensor == "lm_head.weight" and not whole_head:
            continue
        matrix = len(fact.shape) == 2 and re.search(r"(^|\.)layers\.\d+\..*\.weight$", tensor) is not None
        if matrix:
            largest = max(largest, fact.elements)
            weights += quantized_bytes(fact.shape[0], fact.shape[1], bits, bytes_each)
        else:
            weights += fact.elements * bytes_each
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    size = int(config.get("head_dim") or hidden // heads)
    groups = int(config.get("num_key_value_heads") or heads)
    if critic is None:
        held = tokens = budget or (2048 if device == "cpu" else 16384)
        shared = 10 * (128 if device == "cpu" else 512) * heads * 2 * tokens
    else:
        longest = _PROMPT + critic.max_tokens
        held = _WRITTEN * min(longest, int(config.get("max_position_embeddings") or longest))
        tokens = min(held, _WRITTEN * _PROMPT)
        shared = 3 * _WRITTEN * int(config["vocab_size"]) * 4
    cache = 2 * held * int(config["num_hidden_layers"]) * groups * size * 2 * bytes_each
    activations = tokens * (8 * hidden + 3 * int(config["intermediate_size"])) * bytes_each
    activations += shared + (0 if bits is None else 2 * largest * bytes_each)
    return Memory(weights=models * weights, cache=models * cache, activations=activations)


def _text_config(folder: Path) -> dict[str, Any]:
    from stepmark.models.backbone import load_config

    config: dict[str, Any] = load_config(folder).get_text_config().to_dict()
    needed = ("num_attention_heads", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    if lacking := [key for key in needed if not isinstance(config.get(key), int)]:
        raise CheckpointError(f"{folder}/config.json lacks {', '.join(lacking)}")
    return config


def free_on(device: str) -> dict[str, int]:
    """Bytes that are free now on each device that a setting means; empty where this system does not say.

    Args:
        device: as for `load_prm`.
    """
    from stepmark.models.backbone import compute_devices

    devices = compute_devices(device)
    if devices == ["cpu"]:
        file = Path("/proc/meminfo")
        match = re.search(r"MemAvailable: +(\d+) kB", file.read_text("ascii")) if file.is_file() else None
        return {} if match is None else {"cpu": int(match[1]) * 1024}
    import torch

    return {name: torch.cuda.mem_get_info(name)[0] for name in devices}


def memory_lines(name: str, *, family: str | None = None, device: str = "auto") -> Iterator[str]:
    """What a PRM takes plain, in 8 and in 4 bit, and whether that is free; a line each, in 10^9 bytes. Raises as `memory_of`."""
    free = free_on(device)
    for where, size in free.items():
        yield f"free on {where}: {size / 1e9:.1f} GB"
    for bits in _CHOICES:
        memory = memory_of(name, family=family, quantize=bits, device=device)
        parts = [f"weights {memory.weights / 1e9:.2f}"]
        if memory.cache is not None and memory.activations is not None:
            parts += [f"cache {memory.cache / 1e9:.2f}", f"activations {memory.activations / 1e9:.2f}"]
        # Every GPU of several has activations of its own.
        needed = memory.total + (len(free) - 1) * (memory.activations or 0) if free else memory.total
        needed += PROCESS if "cpu" in free else 0
        verdict = "" if not free else "fits" if needed < sum(free.values()) else "does not fit"
        if memory.cache is None:  # of a published PRM that is not here the weights alone are known
            known = "cache and activations come on top"
            yield f"{bits or 'plain'}: {parts[0]} GB; {known}{': does not fit' if verdict == 'does not fit' else ''}"
        else:
            yield f"{bits or 'plain'}: {', '.join(parts)}; {needed / 1e9:.2f} GB in all{verdict and f': {verdict}'}"
