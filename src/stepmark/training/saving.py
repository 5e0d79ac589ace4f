"""Write what was trained as a Hugging Face checkpoint, or as an adapter over one. Written whole or not at all.

Layouts of a whole checkpoint, and who reads each without stepmark (`stepmark.json` beside the weights says how stepmark does):

- `token-classification`: `score.weight`, `score.bias` over a decoder: transformers' class for Llama, Qwen2, Qwen3, Mistral, Gemma and
  others; vLLM serves it too.
- `qwen2-prm`: `score.0`, ReLU, `score.2`: Qwen2.5-Math-PRM's, which vLLM serves as `Qwen2ForProcessRewardModel`. That class has two labels
  and as many middle units as the hidden size; a linear head is written as such a network: z is relu(z) - relu(-z), to the last bit.
- `causal-lm`: a language model, for implicit and generative PRMs and target tokens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from stepmark.errors import CheckpointError, UsageError
from stepmark.models.backbone import load_config, load_tokenizer, quiet_loading
from stepmark.models.checkpoint import Tensors, read_config
from stepmark.models.encoding import Encoder
from stepmark.models.heads import build_head, output_rows
from stepmark.models.spec import (
    SPEC_FILE,
    ChatLayout,
    ConfidenceHead,
    ConversationLayout,
    DialogueLayout,
    LinearHead,
    LogRatioHead,
    MlpHead,
    PieceLayout,
    Readout,
    ScoringSpec,
)
from stepmark.store import naming
from stepmark.training.net import Net

TRAIN_FILE = "train.json"
"""Beside the weights: the settings of the run."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A checkpoint on disk, and what a reader must know of it."""

    folder: Path
    layout: Literal["token-classification", "qwen2-prm", "causal-lm", "adapter"]
    architecture: str | None
    """As `config.json` names it; None for an adapter."""
    spec: ScoringSpec | None
    """As it stands in the folder. The head may be another than was given: the same function in the layout's form."""
    tag: int | None
    """The token id that step ends carry and nothing else in a graded text, which servers want to know; None where there is no such
    token, and for an adapter."""


def step_tag(spec: ScoringSpec, tokenizer: Any) -> int | None:
    """The token at every step end, where it stands nowhere else in a text that is graded; None where there is no such token."""
    Encoder(tokenizer, spec.layout, max_tokens=None, outcome_only=spec.outcome_only).check()
    layout = spec.layout
    if (
        isinstance(layout, DialogueLayout | ConversationLayout)
        or layout.mark_is_text
        or not layout.mark.strip()
        or spec.outcome_only
    ):
        return None
    if isinstance(layout, PieceLayout) and layout.read_back:
        return None
    if isinstance(layout, ChatLayout) and layout.ending == "turn":
        return None
    tag = int(tokenizer(layout.mark.strip(), add_special_tokens=False)["input_ids"][0])
    # Of other words a tokenizer makes one token alone and another one after a space.
    return tag if tag in tokenizer.added_tokens_decoder else None


def refuse_infinite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raises `CheckpointError` where a tensor holds NaN or an infinity."""
    for name, tensor in tensors:
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{name} holds NaN or an infinity: training diverged; nothing was written")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that gets its name when it is whole; after an error there is none. One that exists is refused."""
    _refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with naming(folder):
            yield work
        # mkdtemp lets nobody else in; a checkpoint is as open as any folder.
        mask = os.umask(0)
        os.umask(mask)
        work.chmod(0o777 & ~mask)
        _refuse_existing(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise UsageError(f"{folder} exists; delete it or choose another")


def write_json(file: Path, data: object) -> None:
    """One JSON file of a new folder."""
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


WholeLayout = Literal["token-classification", "qwen2-prm", "causal-lm"]


def process_reward_head(weight: Tensor, bias: Tensor | None, *, good: int = 0) -> dict[str, Tensor]:
    """A linear head of one or two labels as the head of `Qwen2ForProcessRewardModel`, the same function to the last bit.

    Each logit z goes through two middle units, relu(z) and relu(-z); the others are zero. A lone logit becomes the second of two whose first
    is 0: its share of the softmax is its sigmoid.

    Args:
        weight: [1 or 2, hidden].
        bias: [1 or 2], or none.
        good: which of two means right; it becomes the second, as readers of this layout expect.
    """
    labels, hidden = weight.shape
    if labels not in (1, 2) or hidden < 2 * labels:
        raise UsageError(
            f"the qwen2-prm layout holds one or two labels over a hidden size of at least two units a label, found {labels} "
            f"over {hidden}; take the layout token-classification"
        )
    if labels == 2 and good == 0:
        weight, bias = weight.flip(0), None if bias is None else bias.flip(0)
    spec_ = {
        "score.0.weight": torch.zeros(hidden, hidden),
        "score.0.bias": torch.zeros(hidden),
        "score.2.weight": torch.zeros(2, hidden),
        "score.2.bias": torch.zeros(2),
    }
    for label in range(labels):
        for unit, sign in ((2 * label, 1.0), (2 * label + 1, -1.0)):
            spec_["score.0.weight"][unit] = sign * weight[label].detach().float().cpu()
            if bias is not None:
                spec_["score.0.bias"][unit] = sign * bias[label].detach().float().cpu()
            spec_["score.2.weight"][label + 2 - labels, unit] = sign
    return spec_


def layout_of(spec: ScoringSpec | None, base: Path) -> WholeLayout:
    """The layout to write: `causal-lm` where the language model is read, else `qwen2-prm` for one or two labels on Qwen2 bases, else
    `token-classification`. Raises `UsageError` where transformers and vLLM have no class for this head over this base.
    """
    from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    form, kind = None if spec is None else spec.readout.head, read_config(base).get("model_type")
    if spec is None or form is None or not form.on_state:
        return "causal-lm"
    if kind == "qwen2" and (isinstance(form, MlpHead) or _fits_vllm(spec)):
        return "qwen2-prm"
    if isinstance(form, LinearHead) and type(load_config(base)) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING:
        return "token-classification"
    raise UsageError(
        f"a {form.kind} head over a {kind} base is in no layout that transformers or vLLM read, so no whole checkpoint can be written. Write "
        "the adapter alone (`adapter`), which stepmark reads; or train target tokens (`objective` target-tokens); or take another base"
    )


def _fits_vllm(spec: ScoringSpec) -> bool:
    """Whether vLLM's class, two logits through a softmax at every mark, gives the numbers of a linear head."""
    return (
        isinstance(spec.readout.head, LinearHead)
        and spec.readout.activation in ("sigmoid", "softmax", "margin")
        and spec.readout.neutral is None
        and not spec.outcome_only
    )


def in_layout(
    readout: Readout, head: Mapping[str, Tensor], where: WholeLayout
) -> tuple[Readout, Mapping[str, Tensor]]:
    """The readout and the head's tensors under the names, and in the form, of the layout."""
    form = readout.head
    if isinstance(form, MlpHead):
        built_head = {f"score.{part}": _tensor(head, name) for part, name in form.names.items()}
        middle, hidden = built_head["score.0.weight"].shape
        if middle != hidden:
            raise UsageError(
                f"Qwen2ForProcessRewardModel has as many middle units as its hidden size, {hidden}; this head has {middle}"
            )
        return replace(readout, head=MlpHead()), built_head
    assert isinstance(form, LinearHead)
    weight = _tensor(head, form.weight)
    bias = head.get(form.bias) if form.bias is not None else None
    if where == "qwen2-prm":
        built_head = process_reward_head(weight, bias, good=readout.good)
        activation = "softmax" if readout.activation == "sigmoid" else readout.activation
        return replace(readout, head=MlpHead(), activation=activation, good=1), built_head
    bias = torch.zeros(weight.shape[0]) if bias is None else bias
    return replace(readout, head=LinearHead()), {"score.weight": weight, "score.bias": bias}


def _tensor(head: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in head:
        raise UsageError(f"the spec reads the head's tensor {name!r}, found {sorted(head)}")
    return head[name]


def write_adapter(
    folder: Path,
    *,
    adapter: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    spec: ScoringSpec,
    base_name: str,
    rank: int,
    alpha: float,
    notes: Mapping[str, Any] | None = None,
) -> Written:
    """A LoRA adapter with its head in a new folder, in PEFT's layout.

    `peft` loads it over transformers' own class of the base: for a linear head `AutoModelForTokenClassification` (the head
    comes with it), for the language-model head `AutoModelForCausalLM`, for others `AutoModel` (the head is not taken).

    Args:
        adapter: the LoRA matrices by their names inside the decoder (`layers.0.self_attn.q_proj.lora_A.weight`).
        head: tensors by the names that the spec's head gives them.
        base_name: what the adapter names as its base: a hub name, a folder, or the built-in one.
        notes: goes to `train.json`.
    """
    linear, mlp = isinstance(spec.readout.head, LinearHead), isinstance(spec.readout.head, MlpHead)
    # Where the decoder stands in the class that peft loads the base with.
    inside = "base_model.model." if mlp else "base_model.model.model."
    tensors = {f"{inside}{name}": t.detach().cpu().contiguous() for name, t in adapter.items()}
    tensors |= {f"base_model.model.{name}": t.detach().float().cpu().contiguous() for name, t in head.items()}
    refuse_infinite(tensors.items())
    layers = {int(match[1]) for name in adapter if (match := re.search(r"(?:^|\.)layers\.(\d+)\.", name))}
    config = {
        "peft_type": "LORA",
        "task_type": "TOKEN_CLS" if linear else "FEATURE_EXTRACTION" if mlp else "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in adapter}),
        # Without them peft would put fresh adapters into the layers that have none here.
        **({"layers_to_transform": sorted(layers), "layers_pattern": "layers"} if layers else {}),
        "modules_to_save": ["score"] if linear else None,
    }
    with new_folder(folder) as work:
        from safetensors.torch import save_file

        save_file(tensors, work / "adapter_model.safetensors", metadata={"format": "pt"})
        write_json(work / "adapter_config.json", config)
        write_json(work / SPEC_FILE, asdict(spec))
        write_json(work / TRAIN_FILE, dict(notes or {}))
    return Written(folder=folder, layout="adapter", architecture=None, spec=spec, tag=None)


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
    notes: Mapping[str, Any] | None = None,
) -> Written:
    """A whole checkpoint in a new folder: config, weights (shards of 5 GB), tokenizer, `stepmark.json`, `train.json`.

    `config.json` is the base's own with the head's entries in place of its own, so that whatever reads the base reads this. The
    head is stored in float32: readers that compute in less cast it, the others keep its digits.

    Args:
        backbone: the decoder, adapters merged; any device.
        head: tensors by the names that the spec's head gives them; empty where the language-model head is read.
        output: the language-model head [vocabulary, hidden] where it was trained apart from the embedding; None takes the base's.
        spec: how it is read; None for a generative PRM.
        base: the folder of the model that training began with.
        dtype: of the backbone on disk.
        notes: goes to `train.json`.
    """
    where = layout_of(spec, base)
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
        for name in _TOKENIZER_FILES:
            if (base / name).is_file():
                shutil.copyfile(base / name, work / name)
        tokens = load_tokenizer(work)
        write_json(
            work / "config.json",
            _config(base, architecture, dtype, state, rows, _labels(spec, where), tokens),
        )
        tag = None
        if spec is not None:
            tag = step_tag(spec, tokens)
            if not isinstance(spec.readout.head, ConfidenceHead | LogRatioHead):
                # Read back as `load_prm` will, before the folder gets its name.
                build_head(spec.readout.head, Tensors(work), backbone, tokens, "cpu")
            write_json(work / SPEC_FILE, asdict(spec))
        write_json(work / TRAIN_FILE, dict(notes or {}))
    return Written(folder=folder, layout=where, architecture=architecture, spec=spec, tag=tag)


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
    config.vocab_size = next(t.shape[0] for name, t in state.items() if name.endswith("embed_tokens.weight"))
    if where == "token-classification":
        config.num_labels = head["score.weight"].shape[0]
        maker: Any = AutoModelForTokenClassification
    else:
        config.tie_word_embeddings = output is None
        maker = AutoModelForCausalLM
    with torch.device("meta"):
        model = maker.from_config(config)
    named = {f"{model.base_model_prefix}.{name}": t for name, t in state.items()}
    if where == "token-classification":
        named |= head
    else:
        embedding = next(name for name in named if name.endswith("embed_tokens.weight"))
        named["lm_head.weight"] = named[embedding] if output is None else output
    model.load_state_dict(named, strict=True, assign=True)
    model.tie_weights()
    with quiet_loading():
        # It turns the names and the shapes of some architectures back into those of their files.
        beside = {} if where == "token-classification" else dict(head)
        model.save_pretrained(
            work, max_shard_size=_SHARD, state_dict={**model.state_dict(), **beside} if beside else None
        )
    if where == "causal-lm" and (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", work / "generation_config.json")
    return type(model).__name__


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
    config["vocab_size"] = next(
        t.shape[0] for name, t in state.items() if name.endswith("embed_tokens.weight")
    )
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    if labels:
        config["num_labels"] = len(labels)
        config["id2label"] = {str(i): name for i, name in enumerate(labels)}
        config["label2id"] = {name: i for i, name in enumerate(labels)}
    elif output is not None:
        config["tie_word_embeddings"] = False
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        recorded = getattr(tokens, name)
        if config.get(name) is None and recorded is not None:
            config[name] = recorded
    return config


def head_names(net: Net) -> dict[str, str]:
    """The head's parameters, and what they are called in a checkpoint; none for heads that are rows of the language model."""
    return dict(net.spec.readout.head.names) if isinstance(net.spec, ScoringSpec) else {}


def head_tensors(net: Net) -> dict[str, Tensor]:
    """The head's weights by the names that the spec reads them by, in float32."""
    state = net.head.state_dict()
    return {
        outer: state[inner].detach().float().cpu().contiguous() for inner, outer in head_names(net).items()
    }


def write_trained(
    folder: Path, net: Net, *, adapter: bool, base_name: str, notes: Mapping[str, Any]
) -> Written:
    """Write what was trained into a new folder. A network that is written whole cannot be trained on afterwards."""
    spec = net.spec if isinstance(net.spec, ScoringSpec) else None
    if adapter and spec is not None:
        return write_adapter(
            folder,
            adapter={
                name.removeprefix("base_model.model.").replace(".default", ""): tensor.detach().to(net.dtype)
                for name, tensor in net.model.state_dict().items()
                if "lora_" in name
            },
            head=head_tensors(net),
            spec=spec,
            base_name=base_name,
            rank=net.weights.lora_rank,
            alpha=net.weights.alpha,
            notes=notes,
        )
    # Added to the weights in float32.
    backbone = net.backbone if net.weights.full else net.model.float().merge_and_unload().to(net.dtype)
    written = write_merged(
        folder,
        backbone=backbone,
        head=head_tensors(net),
        output=None if net.tied else net.output().detach(),
        spec=spec,
        base=net.base,
        dtype=net.dtype,
        notes=notes,
    )
    if not isinstance(net.spec, ScoringSpec):
        write_json(folder / SPEC_FILE, net.spec.data())
    return written
