"""A decoder of the Llama kind in plain torch, for checkpoints whose config states exactly that.

The numbers are those of transformers' `LlamaModel`, and so are the names of the weights. It is here because importing transformers' models takes longer than
grading a solution with a small PRM (docs/default-prm.md#start-up-time). A config with any setting that is not listed here is left to transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from stepmark.models import attention
from stepmark.models.checkpoint import read_config

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)
_FIXED = {
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rope_scaling": None,
}
"""Settings that change the numbers, with the one value that is computed here."""
_FREE = {
    *_SIZES,
    *(
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "head_dim",
        "initializer_range",
    ),
    *("model_type", "pad_token_id", "rms_norm_eps", "rope_parameters", "rope_theta", "tie_word_embeddings"),
    *("torch_dtype", "transformers_version", "unk_token_id", "use_cache"),
}
"""Settings that are read here, or change no number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """Sizes of a decoder, named as in `config.json`."""

    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool


def decoder_config(folder: Path) -> DecoderConfig | None:
    """The sizes that a checkpoint's config states; None where the config states anything that `Decoder` does not compute, or leaves a size out.

    Raises:
        CheckpointError: there is no config, or it cannot be read.
    """
    raw = read_config(folder)
    rope = raw.get("rope_parameters", {"rope_theta": raw.get("rope_theta"), "rope_type": "default"})
    sizes = {name: raw.get(name) for name in _SIZES}
    plain = (
        raw.get("model_type") == "llama"
        and not raw.keys() - _FREE - _FIXED.keys()
        and all(raw.get(name, value) == value for name, value in _FIXED.items())
        and raw.get("tie_word_embeddings") in (True, False)
        and all(type(size) is int and size > 0 for size in sizes.values())
        and isinstance(rope, dict)
        and rope.keys() == {"rope_theta", "rope_type"}
        and rope["rope_type"] == "default"
        and all(type(number) in (int, float) for number in (rope["rope_theta"], raw.get("rms_norm_eps")))
    )
    if not plain:
        return None
    width = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    if type(width) is not int or width % 2 or raw["num_attention_heads"] % raw["num_key_value_heads"]:
        return None
    return DecoderConfig(
        **{name: raw[name] for name in _SIZES},
        head_dim=width,
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        tie_word_embeddings=raw["tie_word_embeddings"],
    )


@final
class Decoder(nn.Module):
    """Embeddings, layers and last norm; the caller puts the weights into it.

    Args:
        config: its sizes.
        dtype: that it computes in.
    """

    base_model_prefix = "model"

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(_Layer(config, dtype) for _ in range(config.num_hidden_layers))
        self.norm = _Norm(config, dtype)

    @property
    def base_model(self) -> Decoder:
        """The decoder itself, as of a transformers model without a head."""
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """The embeddings, as of a transformers model."""
        return self.embed_tokens

    def forward(self, ids: Tensor, positions: Tensor, plan: attention.Plan) -> Tensor:
        """Hidden states [tokens, hidden] of token ids at positions, [tokens] each."""
        hidden: Tensor = self.embed_tokens(ids)
        dim = self.config.head_dim
        exponents = torch.arange(0, dim, 2, dtype=torch.float, device=ids.device) / dim
        angles = positions[:, None].float() * (1.0 / self.config.rope_theta**exponents)
        cos, sin = (torch.cat([part, part], -1).to(self.dtype) for part in (angles.cos(), angles.sin()))
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, plan)
        result: Tensor = self.norm(hidden)
        return result


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing: the weight comes from a file, and torch's random numbers on "meta" import its compiler."""


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing, as of `_Embedding`."""


class _Norm(nn.Module):
    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype))
        self.eps = config.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.dim = config.head_dim
        width, queries, keys = (
            config.hidden_size,
            *(heads * self.dim for heads in (config.num_attention_heads, config.num_key_value_heads)),
        )
        self.q_proj = _Linear(width, queries, bias=False, dtype=dtype)
        self.k_proj = _Linear(width, keys, bias=False, dtype=dtype)
        self.v_proj = _Linear(width, keys, bias=False, dtype=dtype)
        self.o_proj = _Linear(queries, width, bias=False, dtype=dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, plan: attention.Plan) -> Tensor:
        query, key, value = (
            project(x).view(1, len(x), -1, self.dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (heads * cos + _half_turned(heads) * sin for heads in (query, key))
        seen = plan.attend(self, query, key, value, self.dim**-0.5)
        result: Tensor = self.o_proj(seen.reshape(len(x), -1))
        return result


class _FeedForward(nn.Module):
    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = _Linear(width, inner, bias=False, dtype=dtype)
        self.up_proj = _Linear(width, inner, bias=False, dtype=dtype)
        self.down_proj = _Linear(inner, width, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class _Layer(nn.Module):
    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.self_attn = _Attention(config, dtype)
        self.mlp = _FeedForward(config, dtype)
        self.input_layernorm = _Norm(config, dtype)
        self.post_attention_layernorm = _Norm(config, dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, plan: attention.Plan) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, plan)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


def _half_turned(heads: Tensor) -> Tensor:
    first, second = heads.chunk(2, -1)
    return torch.cat([-second, first], -1)
