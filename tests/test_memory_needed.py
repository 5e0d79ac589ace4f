"""What a PRM takes before it is loaded, against what its tensors take once it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch

from checkpoints import implicit, qwen_prm
from stepmark import load_prm
from stepmark.cli import main
from stepmark.errors import CheckpointError, UsageError
from stepmark.models.critics import ThinkPRM
from stepmark.models.families import PUBLISHED
from stepmark.models.generative import CriticSpec
from stepmark.models.memory import free_on, memory_lines, memory_of
from stepmark.models.policies.local import load_language_model
from stepmark.models.quantized import weights_of
from tiny_language_model import tiny_model, tiny_tokenizer


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_weights_are_those_that_are_loaded(tmp_path: Path, quantize: Literal["int8", "int4"] | None) -> None:
    qwen_prm(tmp_path)
    settings = {"dtype": "bfloat16", "device": "cpu", "quantize": quantize}
    prm = load_prm(str(tmp_path), **settings)  # type: ignore[arg-type]
    backbone = prm.engines[0].backbone  # type: ignore[attr-defined]
    buffers = (b for name, b in backbone.named_buffers() if "inv_freq" not in name)
    held = sum(t.numel() * t.element_size() for t in (*backbone.parameters(), *buffers))
    needed = memory_of(str(tmp_path), **settings)  # type: ignore[arg-type]
    hidden = backbone.config.hidden_size
    assert needed.weights == held + 2 * (hidden * hidden + hidden + 2 * hidden + 2)  # the head of two layers


def test_cache_and_activations_by_hand(tmp_path: Path) -> None:
    built = qwen_prm(tmp_path)
    config = built.network.config
    memory = memory_of(str(tmp_path), dtype="float32", device="cpu", token_budget=100)
    size = config.hidden_size // config.num_attention_heads
    assert memory.cache == 2 * 100 * config.num_hidden_layers * config.num_key_value_heads * size * 2 * 4
    pieces = 10 * 128 * config.num_attention_heads * 200
    assert memory.activations == 100 * (8 * config.hidden_size + 3 * config.intermediate_size) * 4 + pieces
    assert memory.total == memory.weights + memory.cache + memory.activations


def test_an_implicit_prm_takes_two_models_and_their_outputs(tmp_path: Path) -> None:
    built = implicit(tmp_path)
    one = sum(p.numel() for p in built.network.parameters())
    assert memory_of(str(built.folder), family="implicit", dtype="float32", device="cpu").weights == 8 * one


def test_a_published_prm_that_is_not_here() -> None:
    plain = memory_of("qwen-7b", device="cpu")
    assert plain.weights / 1e9 == pytest.approx(PUBLISHED["qwen-7b"].memory)
    assert plain.cache is None
    # 6.53B weights of layers at 1 and 9/16 bytes, 0.54B of embeddings at 2.
    for bits, gigabytes in (("int8", 6.526 + 1.09), ("int4", 6.526 * 4.5 / 8 + 1.09)):
        memory = memory_of("qwen-7b", device="cpu", quantize=bits)  # type: ignore[arg-type]
        assert memory.weights / 1e9 == pytest.approx(gigabytes, abs=0.01)
    # A critic has its output layer besides: 0.545B weights more, which stay plain.
    for bits, gigabytes in (("int8", 6.526 + 2.18), ("int4", 6.526 * 4.5 / 8 + 2.18)):
        memory = memory_of("genprm-7b", device="cpu", quantize=bits)  # type: ignore[arg-type]
        assert memory.weights / 1e9 == pytest.approx(gigabytes, abs=0.01)
    lines = [line for line in memory_lines("genprm-7b", device="cpu") if "weights" in line]
    assert [line.split(":")[0] for line in lines] == ["plain", "int8", "int4"]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_what_a_critic_takes(tmp_path: Path, quantize: Literal["int8", "int4"] | None, tied: bool) -> None:
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, hidden=64, tied=tied, context=3000).to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    spec = CriticSpec(settings=ThinkPRM(max_tokens=500))
    (tmp_path / "stepmark.json").write_text(json.dumps(spec.data()))
    needed = memory_of(str(tmp_path), quantize=quantize, device="cpu")  # as saved, in bfloat16
    model, _ = load_language_model(tmp_path, quantize=quantize, device="cpu")
    assert needed.weights == sum(t.numel() * t.element_size() for _, t in weights_of(model))
    # Keys and values of 2 layers, 2 heads of 16 and 16 texts of 1,024 + 500 tokens, and as much again for growth.
    assert needed.cache == 2 * 2 * 2 * 16 * (16 * 1524) * 2 * 2
    logits = 3 * 16 * len(tokenizer) * 4
    matrix = 0 if quantize is None else 2 * 64 * 128 * 2
    assert needed.activations == 16 * 1024 * (8 * 64 + 3 * 128) * 2 + logits + matrix


def test_what_it_cannot_say() -> None:
    with pytest.raises(CheckpointError, match="families"):
        memory_of("nothing-here")
    with pytest.raises(UsageError, match="server"):
        memory_of("http://localhost:1")


def test_doctor_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qwen_prm(tmp_path)
    assert main(["doctor", "--prm", str(tmp_path), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[-3:]] == ["plain", "int8", "int4"]
    if free_on("cpu"):
        assert all(line.endswith(": fits") for line in lines[-3:])
