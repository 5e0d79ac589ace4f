"""Write what was trained as a Hugging Face checkpoint, or as an adapter over one. Written whole or not at all.

Three layouts of a whole checkpoint, and who reads each without stepmark:

- `token-classification`: `score.weight`, `score.bias` over a decoder, the class that transformers has natively for Llama, Qwen2,
  Qwen3, Mistral, Gemma and others; vLLM serves it too.
- `qwen2-prm`: `score.0`, ReLU, `score.2`, the layout of Qwen2.5-Math-PRM, which vLLM serves as `Qwen2ForProcessRewardModel`. That
  class fixes two labels and as many middle units as the hidden size, so a linear head is written as such a network: z is
  relu(z) - relu(-z), to the last bit.
- `causal-lm`: a language model; for PRMs that are read from its output, implicit and generative ones.

In each, `stepmark.json` says how the checkpoint is read.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.backbone import load_config, load_tokenizer, quiet_loading, read_config
from stepmark.models.checkpoint import Tensors
from stepmark.models.heads import build_head, output_rows
from stepmark.models.spec import SPEC_FILE, LinearHead, LogRatioHead, MlpHead, ScoringSpec, VocabHead
from stepmark.training.adapter import write_adapter
from stepmark.training.head_layout import WholeLayout, in_layout, layout_of
from stepmark.training.written import TRAIN_FILE, Written, new_folder, refuse_infinite, step_tag, write_json

__all__ = ["TRAIN_FILE", "Written", "check_base", "write_adapter", "write_merged"]

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_SHARD = "5GB"


def write_merged(
    folder: Path,
    *,
    backbone: torch.nn.Module,
    head: Mapping[str, Tensor],
    output: Tensor | None = None,
    spec: ScoringSpec | None,
    base: Path,
    dtype: torch.dtype,
    layout: Literal["auto"] | WholeLayout = "auto",
    notes: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> Written:
    """A whole checkpoint in a new folder: config, weights (shards of 5 GB), tokenizer, `stepmark.json`, `train.json`.

    `config.json` is the base's own with the head's entries in place of its own, so that whatever reads the base reads this. The
    head is stored in float32: readers that compute in less cast it, the others keep its digits.

    Args:
        folder: must not exist yet.
        backbone: the decoder, adapters merged; any device.
        head: tensors by the names that the spec's head gives them; empty where the language-model head is read.
        output: the language-model head [vocabulary, hidden] where it was trained apart from the embedding; None takes the base's:
            the embedding if tied, else its own.
        spec: how it is read; None for a generative PRM, which is read by naming its `--family`.
        base: the folder of the model that training began with: its config, tokenizer and generation settings.
        dtype: of the backbone on disk.
        layout: auto takes the one that vLLM and transformers serve: `qwen2-prm` for heads of one or two labels on Qwen2 bases,
            `token-classification` for others, `causal-lm` where the head is of the language model.
        notes: goes to `train.json`.
        tokenizer: where training has changed it; None takes the base's files as they are.

    Raises:
        UsageError: the folder exists; a head that the layout cannot hold.
        CheckpointError: transformers has no such class for this base; weights that are not finite or do not fill it; a spec that
            the tokenizer or the head does not serve.
    """
    kind = read_config(base).get("model_type")
    where = layout_of(layout, spec, head, kind)
    readout = None if spec is None else spec.readout
    if readout is not None and where != "causal-lm":
        readout, head = in_layout(readout, head, where)
        spec = replace(spec, readout=readout) if spec is not None else None
    head = {name: t.detach().to("cpu", torch.float32).contiguous() for name, t in head.items()}
    state = {
        name: t.detach().to("cpu", dtype if t.is_floating_point() else t.dtype).contiguous()
        for name, t in backbone.state_dict().items()
    }
    refuse_infinite([*state.items(), *head.items(), *([] if output is None else [("output", output)])])
    rows = _output(backbone, output, base, dtype, state) if where == "causal-lm" else None
    with new_folder(folder) as work:
        architecture = _save_weights(work, base, where, state, head, rows)
        tokens = _save_tokenizer(work, base, tokenizer)
        write_json(
            work / "config.json",
            _config(base, architecture, dtype, state, rows, _labels(spec, where), tokens),
        )
        tag = None
        if spec is not None:
            tag = _checked(work, spec, backbone, tokens)
            write_json(work / SPEC_FILE, asdict(spec))
        write_json(work / TRAIN_FILE, dict(notes or {}))
    return Written(folder=folder, layout=where, architecture=architecture, spec=spec, tag=tag)


def check_base(base: Path, spec: ScoringSpec | None) -> None:
    """Find out before training that a whole checkpoint could not be written in the end.

    Args:
        base: the folder of the model that training begins with.
        spec: how the checkpoint would be read.

    Raises:
        UsageError: no layout holds this kind of head over this base, or transformers has no class for it.
    """
    if spec is None or isinstance(spec.readout.head, VocabHead | LogRatioHead):
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

    kind = read_config(base).get("model_type")
    head = spec.readout.head
    if isinstance(head, MlpHead) and kind == "qwen2":
        return
    if not isinstance(head, LinearHead) or kind not in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES:
        raise UsageError(
            f"a {head.kind} head over a {kind} base is in no layout that transformers or vLLM read, so no whole checkpoint can be "
            "written. Write the adapter alone (`adapter`), which stepmark reads; or train target tokens (`objective` "
            "target-tokens); or take another base"
        )


def _output(
    backbone: Any, output: Tensor | None, base: Path, dtype: torch.dtype, state: Mapping[str, Tensor]
) -> Tensor | None:
    """The language-model head to be stored; None where it is the embedding."""
    if output is None and backbone.config.tie_word_embeddings:
        return None
    rows = output if output is not None else output_rows(Tensors(base), backbone)
    rows = rows.detach().to("cpu", dtype).contiguous()
    embedding = backbone.get_input_embeddings().weight
    if rows.shape != embedding.shape:
        raise UsageError(
            f"the language-model head has the shape {tuple(rows.shape)}, the embedding {tuple(embedding.shape)}"
        )
    tied = backbone.config.tie_word_embeddings and torch.equal(rows, embedding.detach().to("cpu", dtype))
    return None if tied else rows


def _save_weights(
    work: Path,
    base: Path,
    where: WholeLayout,
    state: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    output: Tensor | None,
) -> str:
    """Weights and generation settings; gives the architecture's name."""
    if where == "qwen2-prm":
        from huggingface_hub import save_torch_state_dict

        save_torch_state_dict(
            {**{f"model.{name}": t for name, t in state.items()}, **head}, work, max_shard_size=_SHARD
        )
        return "Qwen2ForProcessRewardModel"
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    config = load_config(base)
    config.vocab_size = _vocabulary(state)
    if where == "token-classification":
        config.num_labels = head["score.weight"].shape[0]
        maker: Any = AutoModelForTokenClassification
    else:
        config.tie_word_embeddings = output is None
        maker = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = maker.from_config(config)
    except ValueError as error:  # what transformers raises where it has no such class
        raise CheckpointError(
            f"{base}: transformers has no {where} class for {config.model_type!r} (`check_base` says so before training)"
        ) from error
    named = {f"{model.base_model_prefix}.{name}": t for name, t in state.items()} | dict(head)
    if where == "causal-lm":
        embedding = next(name for name in named if name.endswith("embed_tokens.weight"))
        named["lm_head.weight"] = named[embedding] if output is None else output
    try:
        model.load_state_dict(named, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"{type(model).__name__} cannot hold these weights: {error}") from error
    model.tie_weights()
    with quiet_loading():
        # It turns the names and the shapes of some architectures back into those of their files.
        model.save_pretrained(work, max_shard_size=_SHARD)
    if where == "causal-lm" and (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", work / "generation_config.json")
    return type(model).__name__


def _vocabulary(state: Mapping[str, Tensor]) -> int:
    return next(t.shape[0] for name, t in state.items() if name.endswith("embed_tokens.weight"))


def _labels(spec: ScoringSpec | None, where: WholeLayout) -> tuple[str, ...]:
    """What the labels are called, by index; none for a language model."""
    if spec is None or where == "causal-lm":
        return ()
    readout = spec.readout
    if readout.class_names is not None:
        return readout.class_names
    if readout.activation in ("softmax", "margin"):
        return ("wrong", "right") if readout.good == 1 else ("right", "wrong")
    return ("right",)


def _config(
    base: Path,
    architecture: str,
    dtype: torch.dtype,
    state: Mapping[str, Tensor],
    output: Tensor | None,
    labels: Sequence[str],
    tokens: Any,
) -> dict[str, Any]:
    """The base's own config with what is new; its other entries stay."""
    drop = (
        "auto_map",
        "quantization_config",
        "_name_or_path",
        "num_labels",
        "id2label",
        "label2id",
        "problem_type",
    )
    config = {key: value for key, value in read_config(base).items() if key not in drop}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        # Transformers 4 and tools of its time read these and would silently turn by the default angles without them.
        config.setdefault("rope_theta", rope["rope_theta"])
        if rope.get("rope_type", "default") != "default":
            config.setdefault("rope_scaling", {k: v for k, v in rope.items() if k != "rope_theta"})
    config["architectures"] = [architecture]
    config["vocab_size"] = _vocabulary(state)
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    if labels:
        config["num_labels"] = len(labels)
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    elif output is not None:
        config["tie_word_embeddings"] = False
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        known = getattr(tokens, name)
        if config.get(name) is None and known is not None:
            config[name] = known
    return config


def _save_tokenizer(work: Path, base: Path, changed: Any) -> Any:
    """The base's tokenizer files as they are, or those of a changed one; gives it as a reader will load it."""
    if changed is not None:
        changed.save_pretrained(work)
    else:
        for name in _TOKENIZER_FILES:
            if (base / name).is_file():
                shutil.copyfile(base / name, work / name)
    return load_tokenizer(work)


def _checked(work: Path, spec: ScoringSpec, backbone: Any, tokens: Any) -> int | None:
    """Read the head back as `load_prm` will, before the folder gets its name; gives the tag."""
    tag = step_tag(spec, tokens)
    if not isinstance(spec.readout.head, LogRatioHead):
        build_head(spec.readout.head, Tensors(work), backbone, tokens, "cpu")
    return tag
