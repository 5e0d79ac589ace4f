"""Backbones: the network under a PRM's head, loaded by transformers with the tree attention in place.

Only native architectures are loaded; `auto_map` in a config (remote code) is never followed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepmark.errors import CheckpointError, UsageError
from stepmark.models import attention
from stepmark.models.checkpoint import Tensors
from stepmark.models.files import ADAPTER_FILE, check_file, present, read_object
from stepmark.models.kernels import bound_kernels
from stepmark.models.weights_check import check_layers, check_network, check_report


def load_backbone(folder: Path, *, dtype: torch.dtype, device: str) -> Any:
    """The decoder without a language-model head, in evaluation mode.

    Raises:
        CheckpointError: missing or corrupt files, an architecture that transformers does not have, or weights
            that do not fill the network.
    """
    from transformers import AutoModel

    attention.register()
    bound_kernels()
    config = checked_config(
        folder, lambda config: AutoModel.from_config(config, attn_implementation=attention.NAME)
    )
    model = load_network(AutoModel, folder, config, dtype=dtype, attn_implementation=attention.NAME)
    return model.eval().to(device)


def load_network(
    maker: Any, folder: Path, config: Any, *, dtype: torch.dtype | str, attn_implementation: str | None = None
) -> Any:
    """A network with the weights of a checkpoint, which are known to fill it.

    Args:
        maker: transformers' class for the task (`AutoModel`, `AutoModelForCausalLM`).
        folder: of the checkpoint.
        config: from `checked_config`.
        dtype: of the network; "auto" as the checkpoint is stored.
        attn_implementation: None for transformers' own choice.

    Raises:
        CheckpointError: the weights cannot be read, or do not fill the network.
    """
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
    return model


def compute_device(device: str) -> str:
    """The device that a setting means.

    Args:
        device: "auto" (CUDA where there is one), "cpu", "cuda", or "cuda:N".

    Raises:
        UsageError: another name, or a device that this machine does not have.
    """
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if cards else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if found is None:
        raise UsageError(
            f"device should be auto, cpu, cuda or cuda:N (the number of a GPU), found {device!r}"
        )
    if device != "cpu" and int(found[1] or 0) >= cards:
        has = f"has the GPUs cuda:0 to cuda:{cards - 1}" if cards else "or this build of torch has no CUDA"
        raise UsageError(f"device {device}: this machine {has}; use {'one of them' if cards else 'cpu'}")
    return device


@contextmanager
def without_bars() -> Iterator[None]:
    """No bars from transformers: a run has its own, and a page that shows a command's output has none."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No bars and no report of unused tensors from transformers: heads are read by us, and what is missing is
    an error of ours."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_bars():
            yield
    finally:
        logging.set_verbosity(level)


def checked_config(folder: Path, build: Callable[[Any], Any]) -> Any:
    """The config of a checkpoint, known to describe the network that its weights fill.

    Args:
        folder: of the checkpoint.
        build: makes the network from the config, on torch's meta device.

    Raises:
        CheckpointError: config and weights disagree, or one of them cannot be read.
    """
    raw = read_config(folder)
    if present(folder / ADAPTER_FILE):
        raise CheckpointError(
            f"{folder} holds both config.json and {ADAPTER_FILE}: is it a whole model or an adapter? Delete the one that it is not"
        )
    tensors = Tensors(folder)
    check_layers(raw, tensors)
    config = load_config(folder)
    check_layers({"num_hidden_layers": getattr(config.get_text_config(), "num_hidden_layers", None)}, tensors)
    limit = token_limit(config)
    if limit is not None and limit < 1:
        raise CheckpointError(
            f"{folder}/config.json: max_position_embeddings and sliding_window should be at least 1, found {limit}"
        )
    quantised = raw.get("quantization_config") is not None
    check_network(folder, lambda: build(copy.deepcopy(config)), tensors, quantised=quantised)
    return config


def load_config(folder: Path) -> Any:
    """The checkpoint's config as its native class, whatever remote code it names."""
    from transformers import AutoConfig

    raw = read_config(folder)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder}/config.json names no model_type")
    settings = {k: v for k, v in raw.items() if k not in ("auto_map", "model_type", "architectures")}
    try:
        return AutoConfig.for_model(model_type, **settings)
    except ValueError as error:
        raise CheckpointError(
            f"{folder}: transformers has no architecture {model_type!r}, and stepmark runs no remote code"
        ) from error
    except Exception as error:  # a setting of a wrong type or value: the config classes raise what they like
        raise CheckpointError(f"{folder}/config.json: {' '.join(str(error).split())}") from error


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer.

    Raises:
        CheckpointError: there is none, or its files cannot be read.
    """
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


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as it is."""
    file = folder / "config.json"
    if not present(file):
        raise CheckpointError(f"{folder} holds no config.json: it is not a checkpoint")
    config = read_object(file)
    labels = config.get("num_labels")
    if labels is not None and not (isinstance(labels, int) and 0 <= labels <= _MOST_LABELS):
        raise CheckpointError(
            f"{file}: num_labels should be a whole number of at most {_MOST_LABELS:,}, found {labels!r}"
        )
    return config


_MOST_LABELS = 100_000
"""transformers writes a name for each label that is claimed, whether or not a head has it."""


def token_limit(config: Any) -> int | None:
    """Tokens that the backbone reads at most: its positions, or its attention window if that is shorter.

    The tree attention has no sliding window, so a longer text would silently be read otherwise than in
    training.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    if getattr(config, "use_sliding_window", True):
        limits.append(getattr(config, "sliding_window", None))
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None
