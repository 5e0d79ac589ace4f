"""Backbones: the network under a PRM's head, loaded by transformers with the tree attention in place.

Only native architectures are loaded; `auto_map` in a config (remote code) is never followed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepmark.errors import CheckpointError
from stepmark.models import attention
from stepmark.models.kernels import bound_kernels


def load_backbone(folder: Path, *, dtype: torch.dtype, device: str) -> Any:
    """The decoder without a language-model head, in evaluation mode.

    Raises:
        CheckpointError: missing or corrupt files, an architecture that transformers does not have, or weights
            that do not fill the network.
    """
    from transformers import AutoModel

    attention.register()
    bound_kernels()
    config = load_config(folder)
    try:
        with quiet_loading():
            model, report = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attention.NAME,
                trust_remote_code=False,
                # So that a wrong shape is reported to us; it is an error below.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a corrupt file makes transformers or safetensors raise
        raise CheckpointError(f"{folder}: the weights cannot be read: {error}") from error
    missing = sorted(report["missing_keys"])
    wrong = sorted(str(k) for k in report["mismatched_keys"])
    if missing or wrong:
        raise CheckpointError(
            f"{folder}: the weights do not fill the network; missing {missing[:5]}, wrong shape {wrong[:5]} "
            f"({len(missing)} and {len(wrong)} in all)"
        )
    return model.eval().to(device)


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
        raise CheckpointError(f"{folder}/config.json: {error}") from error


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's tokenizer.

    Raises:
        CheckpointError: there is none, or its files cannot be read.
    """
    from transformers import AutoTokenizer

    # Without these, transformers makes an empty tokenizer for some model types and says nothing.
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise CheckpointError(f"{folder} holds no tokenizer (no tokenizer.json); fetch the whole checkpoint")
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a corrupt file makes transformers or tokenizers raise
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be read ({type(error).__name__}: {error}); fetch it again"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as it is."""
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json: it is not a checkpoint")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} should hold an object, found {type(config).__name__}")
    return config


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
