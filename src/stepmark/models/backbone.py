"""Backbones: the network under a PRM's head, loaded by transformers with the tree attention in place.

Only native architectures are loaded; `auto_map` in a config (remote code) is never followed.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.checkpoint import FLOATING, Tensors, read_config
from stepmark.models.decoder import Decoder, DecoderConfig
from stepmark.models.files import ADAPTER_FILE, check_file, present, read_object
from stepmark.models.lazy import check_device
from stepmark.words import amount


def load_backbone(folder: Path, *, dtype: torch.dtype, device: str) -> Any:
    """The decoder without a language-model head, in evaluation mode.

    Raises:
        CheckpointError: missing or corrupt files, an architecture that transformers does not have, or weights
            that do not fill the network.
    """
    from transformers import AutoModel

    attention.register()
    name = attention.NAME
    return load_network(AutoModel, folder, dtype=dtype, device=device, attn_implementation=name).eval()


def load_decoder(folder: Path, config: DecoderConfig, *, dtype: torch.dtype, device: str) -> Decoder:
    """The decoder of a checkpoint, loaded without transformers; raises as `load_backbone`."""
    bound_kernels()
    _check_counts(folder, read_config(folder))
    tensors = checked_weights(folder)
    with torch.device("meta"):
        network = Decoder(config, dtype).eval()
    own = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    stored = {name.removeprefix("model."): name for name in tensors.names}
    shapes = {name: tensors.facts[stored[name]].shape for name in own.keys() & stored.keys()}
    report = {
        "missing_keys": own.keys() - stored.keys(),
        "mismatched_keys": [
            f"{name} {own[name]}, in the weights {s}" for name, s in shapes.items() if s != own[name]
        ],
        "unexpected_keys": tensors.names,
    }
    check_report(folder, network, report)
    weights = tensors.read(stored[name] for name in own)
    network.load_state_dict({name: weights[stored[name]].to(device, dtype) for name in own}, assign=True)
    return network


def load_network(
    maker: Any, folder: Path, *, dtype: torch.dtype | str, device: str, attn_implementation: str | None = None
) -> Any:
    """A network on its device with the weights of a checkpoint, which are known to fill it: the one place that loads weights.

    Args:
        maker: transformers' class for the task (`AutoModel`, `AutoModelForCausalLM`).
        folder: of the checkpoint.
        dtype: of the network; "auto" as the checkpoint is stored.
        device: as torch names it.
        attn_implementation: None for transformers' own choice.

    Raises:
        CheckpointError: the weights cannot be read, or do not fill the network.
    """
    bound_kernels()
    config = checked_config(folder)
    check_shapes(maker, folder, config)
    try:
        with quiet_loading():
            model, report = maker.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attn_implementation,
                trust_remote_code=False,
                # So that a wrong shape is reported to us; it is an error below.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a corrupt file makes transformers or safetensors raise
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error
    check_report(folder, model, report)
    return model.to(device)


def compute_devices(device: str) -> list[str]:
    """The devices that a setting ("all", or as for `compute_device`) means; raises as that."""
    check_device(device, several=True)
    if device != "all":
        return [compute_device(device)]
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not cards:
        raise UsageError("`device` all: this build of torch has no CUDA, or this machine no GPU; use cpu")
    return [f"cuda:{card}" for card in range(cards)]


def compute_device(device: str) -> str:
    """The device that a setting ("auto", "cpu", "cuda", "cuda:N") means.

    Raises:
        UsageError: another name, or a device that this machine does not have.
    """
    check_device(device)
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if cards else "cpu"
    if device != "cpu" and int(device.partition(":")[2] or 0) >= cards:
        has = f"has the GPUs cuda:0 to cuda:{cards - 1}" if cards else "or this build of torch has no CUDA"
        raise UsageError(f"`device` {device}: this machine {has}; use {'one of them' if cards else 'cpu'}")
    return device


def has_bfloat16(device: str) -> bool:
    """Whether a device computes in bfloat16 natively: a GPU as torch says, a processor by its flags."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported())
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and "avx512_bf16" in flags.read_text("utf-8", errors="replace").split()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No bars and no report of unused tensors from transformers: heads are read by us, and what is missing is an error of ours."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def checked_config(folder: Path) -> Any:
    """The config of a checkpoint whose weights are plain numbers, or packed in a way that the config names.

    Whether the weights fill the network exactly is known when they are loaded (`load_network`).

    Raises:
        CheckpointError: the config or the weights cannot be read, or weights mean nothing without scales that the config does not name.
    """
    checked_weights(folder)
    config = load_config(folder)
    limit = token_limit(config)
    if limit is not None and limit < 1:
        raise CheckpointError(
            f"{folder}/config.json: max_position_embeddings and sliding_window should be at least 1, found {limit}"
        )
    return config


def checked_weights(folder: Path) -> Tensors:
    """The tensors of a checkpoint whose weights can be read as its config says; raises as `checked_config`."""
    raw = read_config(folder)
    if present(folder / ADAPTER_FILE):
        raise CheckpointError(
            f"{folder} holds both config.json and {ADAPTER_FILE}: is it a whole model or an adapter? Delete the one that it is not"
        )
    tensors = Tensors(folder)
    if not tensors.files.network:
        raise CheckpointError(
            f"{folder} holds weights, and neither model.safetensors nor an index of shards (model.safetensors.index.json) says which "
            "are the network's; fetch the whole checkpoint"
        )
    odd = [
        f"{name} ({fact.dtype})"
        for name, fact in tensors.facts.items()
        if fact.file in tensors.files.network and name.endswith(".weight") and fact.dtype not in FLOATING
    ]
    if odd and raw.get("quantization_config") is None:
        raise CheckpointError(
            f"{folder}: weights should be of type {', '.join(sorted(FLOATING))}; found {_some(odd)}. Take the checkpoint in its "
            "full precision"
        )
    _check_layers(folder, raw, tensors)
    return tensors


def load_config(folder: Path) -> Any:
    """The checkpoint's config as its native class, whatever remote code it names."""
    from transformers import AutoConfig

    raw = read_config(folder)
    _check_counts(folder, raw)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder}/config.json names no model_type")
    for key in ("dtype", "torch_dtype"):
        if isinstance(raw.get(key), str) and raw[key] not in ("auto", *FLOATING):
            raise CheckpointError(
                f"{folder}/config.json: {key} should be one of {', '.join(sorted(FLOATING))}, found {raw[key]!r}; {_REMEDY}"
            )
    settings = {k: v for k, v in raw.items() if k not in ("auto_map", "model_type", "architectures")}
    try:
        return AutoConfig.for_model(model_type, **settings)
    except ValueError as error:
        raise CheckpointError(
            f"{folder}: transformers has no architecture {model_type!r}, and stepmark runs no remote code"
        ) from error
    except Exception as error:  # a setting of a wrong type or value: the config classes raise what they like
        raise CheckpointError(f"{folder}/config.json: {' '.join(str(error).split())}") from error


_MANY = 1000
"""Layers or experts. More are compared with the weights before anything is built; fewer when the weights are loaded."""


def _check_counts(folder: Path, raw: Mapping[str, Any]) -> None:
    """Refuse a config that names more layers or experts than the weights have tensors: building them takes minutes and gigabytes."""
    for part in (raw, *(value for value in raw.values() if isinstance(value, dict))):
        for name, count in part.items():
            counted = name == "n_layer" or name.endswith(("layers", "experts"))
            if counted and isinstance(count, int) and count > _MANY:
                tensors = len(Tensors(folder).facts)
                if count > tensors:
                    raise CheckpointError(
                        f"{folder}/config.json: {name} is {count}, and the weights are {tensors} tensors; {_REMEDY}"
                    )


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def _layer_of(name: str) -> int:
    """The number of the layer that a tensor's name puts it into; -1 for none."""
    found = _LAYER.search(name)
    return -1 if found is None else int(found[1])


def _check_layers(folder: Path, raw: Mapping[str, Any], tensors: Tensors) -> None:
    """Refuse a config that claims more layers than the weights have: the network would be built first, and found half empty then."""
    layers = 1 + max(map(_layer_of, tensors.facts), default=-1)
    for part in (raw, *(value for value in raw.values() if isinstance(value, dict))):
        claimed = part.get("num_hidden_layers")
        if isinstance(claimed, int) and claimed > layers > 0:
            raise CheckpointError(
                f"{folder}/config.json: num_hidden_layers is {claimed}, and the weights have {amount(layers, 'layer')}; {_REMEDY}"
            )


def check_shapes(maker: Any, folder: Path, config: Any) -> None:
    """Refuse (`CheckpointError`) a config whose network has another size than the weights' headers say, before memory is taken for it.

    Only what is known by its name, layers beyond the claimed ones, and the sum: which other tensors are missing or left over is known when
    they are loaded (`check_report`), because transformers renames some.
    """
    if getattr(config, "quantization_config", None) is not None:
        return  # packed weights have other shapes
    try:
        with torch.device("meta"):
            network = maker.from_config(copy.deepcopy(config))
    except Exception as error:  # the config classes and networks raise what they like
        raise CheckpointError(f"{folder}/config.json: {' '.join(str(error).split())}") from error
    tensors = Tensors(folder)
    facts = {name: fact for name, fact in tensors.facts.items() if fact.file in tensors.files.network}
    prefix = f"{network.base_model_prefix}."
    own = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    other = [
        f"{name} {shape}, in the weights {facts[form].shape}"
        for name, shape in own.items()
        for form in (name, name.removeprefix(prefix), prefix + name)
        if form in facts and facts[form].shape != shape
    ]
    layers = max(map(_layer_of, own), default=-1)
    beyond = [name for name in facts if _layer_of(name) > layers]
    check_report(folder, network, {"missing_keys": (), "mismatched_keys": other, "unexpected_keys": beyond})
    described, held = sum(map(math.prod, own.values())), sum(fact.elements for fact in facts.values())
    if described > 2 * held:
        raise CheckpointError(
            f"{folder}: config.json describes {described} weights, and the files hold {held}; {_REMEDY}"
        )


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer; a `CheckpointError` where there is none or its files cannot be read."""
    from transformers import AutoTokenizer

    # transformers reads the config too, and passes over any other file that it cannot open.
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if present(folder / name):
            (read_config(folder) if name == "config.json" else read_object(folder / name))
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"):
        if present(folder / name):
            check_file(folder / name)
    # Without these, transformers makes an empty tokenizer for some model types and says nothing.
    if not any(present(folder / name) for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise CheckpointError(f"{folder} holds no tokenizer (no tokenizer.json); fetch the whole checkpoint")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a corrupt file makes transformers or tokenizers raise
        if present(folder / "tokenizer.json"):
            read_object(folder / "tokenizer.json")  # where that is the cause, it says so
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be read ({type(error).__name__}: {error}); fetch it again"
        ) from error


def saved_dtype(folder: Path) -> torch.dtype:
    """The precision that a checkpoint is stored in, as its config says, else its first tensor of plain numbers."""
    dtype = load_config(folder).dtype
    if dtype is None:
        facts = Tensors(folder).facts.values()
        dtype = next((fact.dtype for fact in facts if fact.dtype in FLOATING), "float32")
    known: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return known


def token_limit(config: Any) -> int | None:
    """Tokens that the backbone reads at most: its positions, or its attention window if that is shorter.

    The tree attention has no sliding window: a longer text would silently be read otherwise than in training.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    if getattr(config, "use_sliding_window", True):
        limits.append(getattr(config, "sliding_window", None))
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


_REMEDY = "use the config.json that was published with these weights, or fetch the whole checkpoint again"


def check_report(folder: Path, network: Any, report: Mapping[str, Iterable[Any]]) -> None:
    """Refuse (`CheckpointError`) what transformers' `output_loading_info` reports as missing, mismatched or left over in the network as filled."""
    problems = [
        f"{what}: {_some(parts)}"
        for what, parts in (
            ("missing", sorted(map(str, report["missing_keys"]))),
            ("of another shape", sorted(map(str, report["mismatched_keys"]))),
            ("left over", leftover(network, map(str, report["unexpected_keys"]))),
        )
        if parts
    ]
    if problems:
        raise CheckpointError(
            f"{folder}: the weights do not fill the network that config.json describes ({'. '.join(problems)}); {_REMEDY}"
        )


def leftover(network: Any, names: Iterable[str]) -> list[str]:
    """Of tensor names, those that belong to the network's own modules and have no place in it; heads are none."""
    prefix = f"{network.base_model_prefix}."
    modules = {name for name, _ in network.base_model.named_children()}
    ignored = [
        *(() if isinstance(network, Decoder) else network._keys_to_ignore_on_load_unexpected or ()),
        r"rotary_emb\.inv_freq$",
        r"(^|\.)position_ids$",
    ]
    held = {*network.state_dict(), *(name for name, _ in network.named_buffers())}
    return sorted(
        name
        for name in names
        if name.removeprefix(prefix).split(".")[0] in modules
        and not held & {name, name.removeprefix(prefix), prefix + name}
        and not any(re.search(pattern, name) for pattern in ignored)
    )


def _some(parts: list[str]) -> str:
    return "; ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


KEPT = 128
"""Shapes: those of a pass are there again in the next layer, and hardly any is there again in the next pass."""
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN's compiled products, and those of ideep, which is between it and torch. Each keeps 1024 by default."""


def bound_kernels() -> None:
    """Have torch keep fewer compiled matrix products; in bfloat16 each takes half a megabyte.

    Packed trees have another shape in nearly every pass, so a long run would keep a gigabyte that is never used again. Environment variables set the
    limit; they are read at the first product, and one that is set already stays.
    """
    for name in CACHES:
        os.environ.setdefault(name, str(KEPT))
