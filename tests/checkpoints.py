"""Tiny random checkpoints in the layouts that PRMs were published in, and tokenizers made from a few sentences.

A builder writes the folder by hand (config.json as transformers 4 wrote it, tensor names of the authors' code) and
gives back the network that it took the weights from, so that a test can run that network without the folder.
Head weights are set so that scores spread around their middle: parity of saturated scores would prove little.
"""

# ruff: noqa: S105, S106 - these tokens are words of a vocabulary, not secrets

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    MistralModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

SENTENCES = (
    "Step 1: A box holds 12 pens, and Ann buys 3 boxes, so she has 12 * 3 = 36 pens.",
    "Step 2: She gives 6 pens away, which leaves 36 - 6 = 30 pens. The answer is: 30",
    "Let x be the number of apples; then 2x + 5 = 17, and x = 6. Please reason step by step.",
    "Question: how many are left? Answer: the sum of the two numbers is 5 + 7 = 12.",
    "Therefore the train needs 4 hours, because 240 / 60 = 4. This step is wrong, that one is right.",
)

CHATML = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% else %}<|im_start|>system\nYou are a tiny model.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A default system line stands in when none is given, as in Qwen2.5."""

HEADERS = (
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday is a day."
    "{% if messages[0].role == 'system' %}\n\n{{ messages[0].content | trim }}{% endif %}<|eot_id|>"
    "{% for m in messages %}{% if m.role != 'system' %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""The shape of Llama 3's: headers, a system turn always, contents trimmed."""

# How Qwen2 and Llama 3 cut text before they merge: punctuation takes the newlines after it.
_PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(special: list[str], *, nfc: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        # With its four newlines, VersaPRM's mark becomes one token, as it is in Llama 3.
        [f"{s}\n\n{s} \n\n\n\n{s}\n" for s in SENTENCES] * 20,
        trainers.BpeTrainer(
            vocab_size=420,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def chatml_tokenizer(
    *, marker: str | None = "<extra_0>", template: str | None = CHATML
) -> PreTrainedTokenizerFast:
    """Byte-level BPE as in Qwen2.5: ChatML, no BOS, NFC."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *([marker] if marker else [])]
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(special, nfc=True),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
    )


def bos_tokenizer() -> PreTrainedTokenizerFast:
    """As `chatml_tokenizer`, with a BOS text (Skywork's has one) that is not added by itself."""
    tokenizer = chatml_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    return tokenizer


def headers_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE as in Llama 3: headers, and a BOS that encoding adds by itself."""
    bos = "<|begin_of_text|>"
    tokenizer = _byte_level([bos, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], nfc=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token="<|eot_id|>",
        pad_token="<|eot_id|>",
        chat_template=HEADERS,
    )


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's and Mistral's: words begin with ▁, unknown characters become bytes, BOS is added."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        [*SENTENCES, "+ - ки", "a ки b + c - d ки"] * 20,
        trainers.BpeTrainer(vocab_size=400, show_progress=False),
    )
    learned = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [name for name, _ in sorted(learned["vocab"].items(), key=lambda item: item[1])]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[tuple(merge) for merge in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in names[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


@dataclass(frozen=True, kw_only=True)
class Built:
    """A checkpoint on disk, and what it was made of."""

    folder: Path
    tokenizer: PreTrainedTokenizerFast
    network: Any
    """The transformers model that holds the weights, with ordinary attention."""
    head: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors beside that network."""
    reference: Built | None = None
    """An implicit PRM's other model."""
    lora: Mapping[str, tuple[Tensor, Tensor, float]] = field(default_factory=dict)
    """Module -> (A, B, alpha / r): what an adapter adds to that module's output."""


_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_ROPE: dict[str, dict[str, Any]] = {
    "qwen2": {"rope_theta": 10000.0},
    "qwen3": {"rope_theta": 10000.0},
    "mistral": {"rope_theta": 10000.0},
    "llama": {"rope_theta": 500000.0, "rope_scaling": _LLAMA3_ROPE},
}
_CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "mistral": MistralConfig, "llama": LlamaConfig}


def _network(
    kind: Any, tokenizer: PreTrainedTokenizerFast, *, seed: int, tied: bool = False, **settings: Any
) -> Any:
    """A random model of the class `kind`, every weight drawn (no zero biases, no norms of one)."""
    model_type = kind.config_class.model_type
    rope = _ROPE[model_type]
    config = _CONFIGS[model_type](
        vocab_size=len(tokenizer),
        tie_word_embeddings=tied,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": rope["rope_theta"],
            **rope.get("rope_scaling", {}),
        },
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
        **_SIZES,
        **settings,
    )
    network = kind(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in network.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(1 + 0.2 * noise if "norm" in name else noise * (1.0 if "embed" in name else 0.25))
    return network


def _hidden_at_marks(
    network: Any, tokenizer: PreTrainedTokenizerFast, mark: str, opening: str = ""
) -> Tensor:
    """Hidden states [n, hidden] at the marks of some solutions (at every step's last token without a mark)."""
    states = []
    for first in range(len(SENTENCES)):
        ids = tokenizer.encode(f"{opening}{SENTENCES[first]}\n", add_special_tokens=False)
        at = []
        for k in range(1, len(SENTENCES)):
            step = SENTENCES[(first + k) % len(SENTENCES)]
            for part in (step[: len(step) // 2], step[len(step) // 2 :]):
                ids += tokenizer.encode(part, add_special_tokens=False)
                ids += tokenizer.encode(mark, add_special_tokens=False)
                at.append(len(ids) - 1)
        states.append(network.base_model(torch.tensor([ids])).last_hidden_state[0, at])
    return torch.cat(states)


def _rows(states: Tensor, count: int, seed: int, *, spread: float = 0.9) -> Tensor:
    """`count` random rows whose products with the states have mean 0 and the given standard deviation."""
    rows = torch.randn(count, states.shape[1], generator=torch.Generator().manual_seed(seed))
    mean = states.mean(0)
    rows -= (rows @ mean)[:, None] * mean / mean.square().sum()
    return rows * (spread / (states @ rows.T).std(0))[:, None]


def save_config(folder: Path, architecture: str, network: Any, **more: Any) -> None:
    """config.json as transformers 4 wrote it: rope_theta and torch_dtype at the top."""
    config = network.config
    raw = {
        "architectures": [architecture],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "float32",
        "transformers_version": "4.37.0",
        "use_cache": True,
        **_SIZES,
        **_ROPE[config.model_type],
        **more,
    }
    (folder / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerFast, published_class: str) -> None:
    """tokenizer.json and tokenizer_config.json, the latter naming the class that was published."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**settings, "tokenizer_class": published_class}), encoding="utf-8")


def _safetensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def _sharded(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    names = sorted(tensors)
    where = {name: f"model-{1 + i % 3:05d}-of-00003.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        part = {name: tensors[name].contiguous() for name in names if where[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _backbone_tensors(network: Any, prefix: str = "model.") -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in network.state_dict().items()}


def _mlp_head(states: Tensor, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = states.shape[1]
    head = {
        "score.0.weight": torch.randn(width, width, generator=generator) / width**0.5,
        "score.0.bias": 0.1 * torch.randn(width, generator=generator),
        "score.2.bias": 0.1 * torch.randn(2, generator=generator),
    }
    features = torch.relu(states @ head["score.0.weight"].T + head["score.0.bias"])
    return {**head, "score.2.weight": _rows(features, 2, seed + 1, spread=1.0)}


def qwen_prm(folder: Path, *, shards: bool = False) -> Built:
    """Qwen2ForProcessRewardModel: two-layer head, remote code named in auto_map, a useless lm_head."""
    tokenizer = chatml_tokenizer()
    network = _network(Qwen2Model, tokenizer, seed=1)
    head = _mlp_head(_hidden_at_marks(network, tokenizer, "<extra_0>"), seed=2)
    tensors = {**_backbone_tensors(network), **head, "lm_head.weight": torch.zeros(len(tokenizer), 32)}
    (_sharded if shards else _safetensors)(folder, tensors)
    save_config(
        folder,
        "Qwen2ForProcessRewardModel",
        network,
        auto_map={
            "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
            "AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel",
        },
        sliding_window=64,  # shorter than any text here: it must not be used
        use_sliding_window=False,
    )
    save_tokenizer(folder, tokenizer, "Qwen2Tokenizer")
    return Built(folder=folder, tokenizer=tokenizer, network=network, head=head)


def skywork(folder: Path) -> Built:
    """Qwen2ForPrmModel: a scalar head, in pytorch_model.bin."""
    tokenizer = bos_tokenizer()
    network = _network(Qwen2Model, tokenizer, seed=3)
    states = _hidden_at_marks(network, tokenizer, "\n")
    head = {"v_head.summary.weight": _rows(states, 1, 4), "v_head.summary.bias": torch.tensor([0.1])}
    lm_head = {"lm_head.weight": torch.zeros(len(tokenizer), 32)}
    torch.save({**_backbone_tensors(network), **head, **lm_head}, folder / "pytorch_model.bin")
    save_config(
        folder, "Qwen2ForPrmModel", network, auto_map={"AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig"}
    )
    save_tokenizer(folder, tokenizer, "Qwen2Tokenizer")
    return Built(folder=folder, tokenizer=tokenizer, network=network, head=head)


def _causal_lm(
    folder: Path, network: Any, tokenizer: PreTrainedTokenizerFast, tokenizer_class: str, **more: Any
) -> Built:
    tensors = dict(network.state_dict())
    if network.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    _safetensors(folder, tensors)
    save_config(folder, type(network).__name__, network, **more)
    save_tokenizer(folder, tokenizer, tokenizer_class)
    return Built(folder=folder, tokenizer=tokenizer, network=network)


def _set_verdicts(
    network: Any, tokenizer: PreTrainedTokenizerFast, mark: str, verdicts: tuple[str, ...], seed: int
) -> None:
    """Rows of the language-model head for some verdicts, so that they compete at a mark."""
    ids = [tokenizer.encode(v, add_special_tokens=False)[-1] for v in verdicts]
    states = _hidden_at_marks(network, tokenizer, mark)
    network.lm_head.weight[ids] = _rows(states, len(ids), seed, spread=0.6)


def math_shepherd(folder: Path) -> Built:
    """MistralForCausalLM; the verdicts are ▁+ and ▁-."""
    tokenizer = sentencepiece_tokenizer()
    network = _network(MistralForCausalLM, tokenizer, seed=5, sliding_window=None)
    _set_verdicts(network, tokenizer, "ки", ("+", "-"), 6)
    return _causal_lm(folder, network, tokenizer, "LlamaTokenizer", sliding_window=4096)


_ASSISTANT = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"


def rlhflow(folder: Path, *, tied: bool = False) -> Built:
    """LlamaForCausalLM with Llama 3's template; the head its own, or tied to the embedding and not stored."""
    tokenizer = headers_tokenizer()
    network = _network(LlamaForCausalLM, tokenizer, seed=7, tied=tied)
    if tied:
        states = _hidden_at_marks(network, tokenizer, _ASSISTANT)
        plus, minus = (tokenizer.encode(v, add_special_tokens=False)[-1] for v in "+-")
        rows = network.lm_head.weight
        # The embedding of a verdict is moved too; both verdicts then lie apart by what reads well.
        rows[minus] = rows[plus] - _rows(states, 1, 8, spread=0.5)[0]
    else:
        _set_verdicts(network, tokenizer, _ASSISTANT, ("+", "-"), 8)
    return _causal_lm(folder, network, tokenizer, "PreTrainedTokenizerFast")


def versaprm(folder: Path) -> Built:
    """LlamaForCausalLM; the mark is one token of a space and four newlines."""
    tokenizer = headers_tokenizer()
    network = _network(LlamaForCausalLM, tokenizer, seed=9)
    _set_verdicts(network, tokenizer, " \n\n\n\n", ("-", "+"), 10)
    return _causal_lm(folder, network, tokenizer, "PreTrainedTokenizerFast")


def versaprm_adapter(folder: Path) -> Built:
    """A LoRA adapter (PEFT layout, written by hand) over a VersaPRM base in the folder `base` beside it."""
    base = folder / "base"
    base.mkdir()
    built = versaprm(base)
    generator = torch.Generator().manual_seed(11)
    rank, alpha = 3, 6
    lora: dict[str, tuple[Tensor, Tensor, float]] = {}
    tensors: dict[str, Tensor] = {}
    for name, module in built.network.named_modules():
        if name.endswith(("q_proj", "v_proj", "o_proj", "down_proj")):
            out, into = module.weight.shape
            down = 0.2 * torch.randn(rank, into, generator=generator)
            up = 0.2 * torch.randn(out, rank, generator=generator)
            lora[name] = (down, up, alpha / rank)
            tensors[f"base_model.model.{name}.lora_A.weight"] = down
            tensors[f"base_model.model.{name}.lora_B.weight"] = up
    adapter = folder / "adapter"
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"],
        "fan_in_fan_out": False,
        "bias": "none",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return Built(folder=adapter, tokenizer=built.tokenizer, network=built.network, lora=lora)


def implicit(folder: Path) -> Built:
    """Two Qwen2ForCausalLM over one vocabulary: `policy` and `reference`."""
    made = []
    for i, name in enumerate(("policy", "reference")):
        part = folder / name
        part.mkdir()
        tokenizer = chatml_tokenizer(marker=None)
        network = _network(Qwen2ForCausalLM, tokenizer, seed=12 + i)
        made.append(_causal_lm(part, network, tokenizer, "Qwen2Tokenizer"))
    policy, reference = made
    return Built(
        folder=policy.folder, tokenizer=policy.tokenizer, network=policy.network, reference=reference
    )


def token_classifier(folder: Path, *, bos: bool = False) -> Built:
    """Qwen2ForTokenClassification, as TRL's trainer (and PURE's) saved it."""
    tokenizer = bos_tokenizer() if bos else chatml_tokenizer(marker=None)
    network = _network(Qwen2ForTokenClassification, tokenizer, seed=14, num_labels=2)
    states = _hidden_at_marks(network, tokenizer, "\n")
    network.score.weight.copy_(_rows(states, 2, 15, spread=0.6))
    return _classifier(folder, network, tokenizer)


def outcome_model(folder: Path) -> Built:
    """Qwen2ForSequenceClassification with one logit and no bias."""
    tokenizer = chatml_tokenizer(marker=None)
    network = _network(Qwen2ForSequenceClassification, tokenizer, seed=16, num_labels=1)
    states = _hidden_at_marks(network, tokenizer, "<|im_end|>\n")
    network.score.weight.copy_(_rows(states, 1, 17))
    return _classifier(folder, network, tokenizer)


def openhands_critic(folder: Path) -> Built:
    """Qwen3ForSequenceClassification with 27 logits and no bias. The template is not the one that the critic is read with."""
    tokenizer = chatml_tokenizer(marker=None, template="{{ messages[0].content }}, and nothing else")
    network = _network(Qwen3ForSequenceClassification, tokenizer, seed=24, num_labels=27, head_dim=8)
    states = _hidden_at_marks(network, tokenizer, "<|im_end|>\n")
    network.score.weight.copy_(_rows(states, 27, 25))
    return _classifier(folder, network, tokenizer, head_dim=8, problem_type="multi_label_classification")


def _classifier(folder: Path, network: Any, tokenizer: PreTrainedTokenizerFast, **more: Any) -> Built:
    _safetensors(folder, network.state_dict())
    labels = network.config.num_labels
    save_config(
        folder,
        type(network).__name__,
        network,
        id2label={str(i): f"LABEL_{i}" for i in range(labels)},
        label2id={f"LABEL_{i}": i for i in range(labels)},
        **more,
    )
    save_tokenizer(folder, tokenizer, "Qwen2Tokenizer")
    return Built(folder=folder, tokenizer=tokenizer, network=network)


def reasoneval(folder: Path, *, large: bool = False) -> Built:
    """ReasonEval: 7B over Mistral without a bias, 34B over Llama with one; their config keys differ too."""
    tokenizer = sentencepiece_tokenizer()
    network = (
        _network(LlamaModel, tokenizer, seed=18)
        if large
        else _network(MistralModel, tokenizer, seed=18, sliding_window=None)
    )
    states = _hidden_at_marks(network, tokenizer, "")
    head = {"score_head.weight": _rows(states, 3, 19)}
    if large:
        head["score_head.bias"] = torch.tensor([0.3, -0.4, 0.2])
    _safetensors(folder, {**_backbone_tensors(network), **head})
    settings = {"score_dim": 3, "bias": True} if large else {"score_dimension": 3, "use_bias": False}
    save_config(folder, "ReasonEval_34B" if large else "ReasonEval_7B", network, **settings)
    save_tokenizer(folder, tokenizer, "LlamaTokenizer")
    return Built(folder=folder, tokenizer=tokenizer, network=network, head=head)


def actprm(folder: Path, *, members: int = 5) -> Built:
    """Qwen2ForEnsemblePRM: stacked members [members, in, out], and a twin of them that must not be read."""
    tokenizer = chatml_tokenizer()
    network = _network(Qwen2Model, tokenizer, seed=20)
    generator = torch.Generator().manual_seed(21)
    states = _hidden_at_marks(network, tokenizer, "<extra_0>")
    head: dict[str, Tensor] = {}
    state = states.expand(members, -1, -1)
    for name, into, out in (("nn1", 32, 16), ("nn2", 16, 16)):
        head[f"score.model.{name}.weight"] = torch.randn(members, into, out, generator=generator) / into**0.5
        head[f"score.model.{name}.bias"] = 0.1 * torch.randn(members, out, generator=generator)
        state = torch.relu(
            state @ head[f"score.model.{name}.weight"] + head[f"score.model.{name}.bias"][:, None]
        )
    last = [_rows(state[i] + 1e-3, 1, 30 + i, spread=1.5)[0] for i in range(members)]
    head["score.model.nn_out.weight"] = torch.stack(last)[:, :, None]
    head["score.model.nn_out.bias"] = 0.5 * torch.randn(members, 1, generator=generator)
    twin = {
        name.replace("score.model.", "score.reg_model."): torch.randn(tensor.shape, generator=generator)
        for name, tensor in head.items()
    }
    _safetensors(folder, {**_backbone_tensors(network), **head, **twin})
    save_config(
        folder,
        "Qwen2ForEnsemblePRM",
        network,
        num_ensemble=members,
        rr_token="<extra_0>",
        rr_token_id=tokenizer.convert_tokens_to_ids("<extra_0>"),
        problem_type="single_label_classification",
    )
    save_tokenizer(folder, tokenizer, "Qwen2Tokenizer")
    return Built(folder=folder, tokenizer=tokenizer, network=network, head=head)


def three_class(folder: Path) -> Built:
    """Qwen2ForCausalLM whose next token after a blank line is a rating: -, 0 or +."""
    tokenizer = chatml_tokenizer(marker=None)
    network = _network(Qwen2ForCausalLM, tokenizer, seed=22)
    _set_verdicts(network, tokenizer, "\n\n", ("-", "0", "+"), 23)
    return _causal_lm(folder, network, tokenizer, "Qwen2Tokenizer")


BUILDERS: Mapping[str, Callable[[Path], Built]] = {
    "qwen-prm": qwen_prm,
    "qwen-prm-sharded": lambda folder: qwen_prm(folder, shards=True),
    "skywork": skywork,
    "math-shepherd": math_shepherd,
    "rlhflow": rlhflow,
    "rlhflow-tied": lambda folder: rlhflow(folder, tied=True),
    "implicit": implicit,
    "token-classification": token_classifier,
    "openhands-critic": openhands_critic,
    "token-classification-bos": lambda folder: token_classifier(folder, bos=True),
    "versaprm": versaprm,
    "versaprm-adapter": versaprm_adapter,
    "reasoneval": reasoneval,
    "reasoneval-34b": lambda folder: reasoneval(folder, large=True),
    "actprm": actprm,
    "three-class": three_class,
    "orm": outcome_model,
}


class Zoo:
    """Every checkpoint, built on first use and kept for the test run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._built: dict[str, Built] = {}

    def __getitem__(self, name: str) -> Built:
        if name not in self._built:
            folder = self._root / name
            folder.mkdir()
            self._built[name] = BUILDERS[name](folder)
        return self._built[name]


@dataclass(frozen=True, kw_only=True)
class Example:
    """A family as the tests of all families need it; a new family gets one here, and its truth in test_families.py."""

    checkpoint: str
    """In `BUILDERS`."""
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    """For tests that need no network."""
    told: bool = True
    """The family is told without a flag."""
    aggregate: str
    """The authors'; with who says so."""
    control: tuple[str, ...]
    """Markers and control tokens, which a text must not hold."""


FAMILY_EXAMPLES: Mapping[str, Example] = {
    "qwen-prm": Example(
        checkpoint="qwen-prm",
        tokenizer=chatml_tokenizer,
        aggregate="product",  # best of 8 in the paper
        control=("<extra_0>", "<|im_end|>"),
    ),
    "reasonflux-prm": Example(
        checkpoint="qwen-prm",
        tokenizer=chatml_tokenizer,
        told=False,
        aggregate="mean",  # ours
        control=("<extra_0>",),
    ),
    "skywork": Example(
        checkpoint="skywork",
        tokenizer=bos_tokenizer,
        aggregate="mean",  # model card
        control=("<|endoftext|>",),
    ),
    "math-shepherd": Example(
        checkpoint="math-shepherd",
        tokenizer=sentencepiece_tokenizer,
        told=False,
        aggregate="min",  # paper
        control=("ки", "</s>"),
    ),
    "rlhflow": Example(
        checkpoint="rlhflow",
        tokenizer=headers_tokenizer,
        told=False,
        aggregate="mean",  # prm_evaluate.py
        control=("<|eot_id|>",),
    ),
    "implicit": Example(
        checkpoint="implicit",
        tokenizer=chatml_tokenizer,
        told=False,
        aggregate="min",
        control=("<|im_end|>",),
    ),
    "implicit-per-step": Example(
        checkpoint="implicit",
        tokenizer=chatml_tokenizer,
        told=False,
        aggregate="min",
        control=("<|im_end|>",),
    ),
    "token-classification": Example(
        checkpoint="token-classification",
        tokenizer=bos_tokenizer,
        aggregate="product",  # ours
        control=("<|endoftext|>",),
    ),
    "pure": Example(
        checkpoint="token-classification",
        tokenizer=chatml_tokenizer,
        told=False,
        aggregate="softmin",  # bon.py
        control=("<|im_end|>",),
    ),
    "versaprm": Example(
        checkpoint="versaprm",
        tokenizer=headers_tokenizer,
        told=False,
        aggregate="min",  # one of the three that their code reports
        control=("<|begin_of_text|>",),
    ),
    "reasoneval": Example(
        checkpoint="reasoneval",
        tokenizer=sentencepiece_tokenizer,
        aggregate="min",  # examples.py
        control=("<s>",),
    ),
    "reasoneval-34b": Example(
        checkpoint="reasoneval-34b",
        tokenizer=sentencepiece_tokenizer,
        aggregate="min",
        control=("</s>",),
    ),
    "actprm": Example(
        checkpoint="actprm",
        tokenizer=chatml_tokenizer,
        aggregate="product",  # ours
        control=("<extra_0>", "<|im_start|>"),
    ),
    "three-class": Example(
        checkpoint="three-class",
        tokenizer=headers_tokenizer,
        told=False,
        aggregate="product",  # Lightman et al.
        control=("<|im_end|>",),
    ),
    "orm": Example(
        checkpoint="orm",
        tokenizer=chatml_tokenizer,
        aggregate="last",
        control=("<|im_end|>",),
    ),
}
FAMILY_EXAMPLES |= {
    "openhands-critic": Example(
        checkpoint="openhands-critic",
        tokenizer=partial(chatml_tokenizer, marker=None, template=None),
        told=False,
        aggregate="last",  # the client reads the end of the conversation
        control=("<|im_start|>", "<|im_end|>"),
    )
}
CONFIDENCES = ("mean-logprob", "entropy", "self-certainty", "deepconf")
FAMILY_EXAMPLES |= {name: replace(FAMILY_EXAMPLES["implicit"], aggregate="last") for name in CONFIDENCES}
LOG_RATIOS = ("implicit", "implicit-per-step")
STEPWISE = tuple(name for name in FAMILY_EXAMPLES if name != "orm")
"""Families that score every step."""


def load_family(zoo: Zoo, name: str, **settings: Any) -> Any:
    """The tiny PRM of a family, by default in float32 on the CPU."""
    from stepmark import load_prm

    example = FAMILY_EXAMPLES[name]
    built = zoo[example.checkpoint]
    if built.reference is not None and name not in CONFIDENCES:
        settings["reference"] = str(built.reference.folder)
    family = None if example.told else name
    return load_prm(str(built.folder), family=family, **{"dtype": "float32", "device": "cpu"} | settings)
