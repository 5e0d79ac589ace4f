"""A config, a spec or an adapter that disagrees with the weights is refused before a network is built."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, MixtralConfig

from stepmark import load_prm
from stepmark.errors import CheckpointError
from stepmark.models.backbone import load_backbone
from stepmark.models.families import FAMILIES
from stepmark.models.policies.local import LocalPolicy, load_language_model
from tiny_language_model import tiny_tokenizer

torch.set_num_threads(1)

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_position_embeddings": 256,
}


@pytest.fixture
def prm(zoo, tmp_path):
    """A classifier's folder with two layers, for a test to spoil."""
    return shutil.copytree(zoo["token-classification"].folder, tmp_path / "prm")


@pytest.fixture
def policy(tmp_path):
    """A language model's folder with three layers, for a test to spoil."""
    folder = tmp_path / "policy"
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def no_network(monkeypatch):
    """Reading weights into a network fails the test: what is refused is refused before."""

    def refuse(*args, **kwargs):
        pytest.fail("a network was filled")

    monkeypatch.setattr(AutoModel, "from_pretrained", refuse)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def edit_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(change(tensors) or tensors, file, {"format": "pt"})


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


def write_spec(folder, **changes):
    spec = asdict(FAMILIES["token-classification"])
    readout = spec["readout"] | {key: value for key, value in changes.items() if key in spec["readout"]}
    spec |= {key: value for key, value in changes.items() if key not in readout} | {"readout": readout}
    (folder / "stepmark.json").write_text(json.dumps(spec), encoding="utf-8")


def refused(folder, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load_prm(str(folder), device="cpu")
    assert str(folder) in str(caught.value)


# ---- numbers of the config -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 4, 100])
def test_another_number_of_layers(prm, policy, no_network, layers):
    for folder in (prm, policy):
        edit_config(folder, num_hidden_layers=layers)
    claimed = rf"num_hidden_layers is {layers}.* {{}} layers" if layers > 3 else r"left over: .*layers\.{}\."
    refused(prm, claimed.format(2 if layers > 3 else 1))
    with pytest.raises(CheckpointError, match=claimed.format(3 if layers > 3 else 1)):
        LocalPolicy.load(policy, device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"torch_dtype": "float99"}, "torch_dtype .*'float99'"),
        ({"dtype": "int8"}, "dtype .*'int8'"),
        ({"hidden_size": 64}, r"score\.weight: expected the shape \(None, 64\)"),
        # Qwen2 has biases that Llama has not: they would be left out without a word.
        ({"model_type": "llama"}, "left over"),
        ({"model_type": "qwen3"}, "missing|of another shape"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"architectures": 5}, "architectures should be"),
    ],
)
def test_other_numbers_that_the_weights_contradict(prm, settings, message):
    edit_config(prm, **settings)
    refused(prm, message)


@pytest.mark.parametrize(
    ("settings", "claimed", "found"),
    [
        ({"vocab_size": 300}, r"\(300, 32\)", r"\(\d+, 32\)"),
        ({"num_key_value_heads": 1}, r"\(8, 32\)", r"\(16, 32\)"),
        ({"intermediate_size": 64}, r"\(64, 32\)", r"\(48, 32\)"),
    ],
)
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_shapes_are_compared_first(prm, no_network, settings, claimed, found, quantize):
    edit_config(prm, **settings)
    with pytest.raises(CheckpointError, match=rf"of another shape: .* {claimed}, in the weights {found}"):
        load_prm(str(prm), device="cpu", quantize=quantize)


@pytest.mark.parametrize("type_", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("part", ["score.weight", "model.layers.0.mlp.up_proj.weight"])
def test_weights_that_are_no_plain_numbers(prm, type_, part):
    edit_tensors(prm, lambda tensors: tensors | {part: tensors[part].to(type_)})
    refused(prm, f"{part}.*(int32|int8|F8_E4M3|bool)")


def test_a_transposed_weight(prm):
    """As many numbers, and another network: transformers' own report says so."""
    part = "model.layers.0.mlp.up_proj.weight"
    edit_tensors(prm, lambda tensors: tensors | {part: tensors[part].T.contiguous()})
    refused(prm, r"do not fill the network.*of another shape: .*layers\.0\.mlp\.up_proj")


# ---- what does load ------------------------------------------------------------------------------------------


def test_buffers_of_old_checkpoints_are_no_weights(zoo, prm):
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    edit_tensors(prm, lambda tensors: tensors | buffers)
    expected = load_prm(str(zoo["token-classification"].folder), device="cpu", dtype="float32").score(
        "p", steps=["a", "b"]
    )
    assert load_prm(str(prm), device="cpu", dtype="float32").score("p", steps=["a", "b"]) == expected


def test_weights_in_the_layout_that_transformers_converts(tmp_path):
    """Mixtral stores its experts one by one, and has them as one tensor in the network."""
    folder = tmp_path / "experts"
    saved = AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4))
    saved.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in load_file(folder / "model.safetensors")
    loaded, _ = load_language_model(folder, device="cpu")
    for name, weight in saved.named_parameters():
        assert torch.equal(weight, loaded.get_parameter(name)), name
    backbone = load_backbone(folder, dtype=torch.float32, device="cpu")
    assert torch.equal(backbone.layers[2].mlp.experts.down_proj, saved.model.layers[2].mlp.experts.down_proj)


# ---- the spec ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"good": 7}, r"stepmark\.json: field 'readout'.*good.*found 7$"),
        ({"good": 1, "neutral": 1}, "neutral"),
        ({"activation": "margin", "good": 1, "neutral": 0}, "neutral"),
        ({"good": 1, "neutral": 0}, r"score\.weight has 2 classes.*3"),
        ({"activation": "sigmoid", "good": 0}, r"score\.weight has 2 classes.*1"),
        ({"class_names": ["one"]}, "class_names"),
        ({"activation": "margin", "scale": 2.0, "score_kind": "margin"}, "scale and shift"),
        ({"scale": 1e999}, "scale"),
        ({"threshold": float("nan")}, "threshold"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"activation": "margin"}, "score_kind"),
        ({"head": {"kind": "linear", "weight": "score.weight", "bias": None}}, r"score\.bias"),
        ({"head": {"kind": "linear", "weight": "score.weight", "bias": "other.bias"}}, r"no tensor 'other\.bias'"),
        ({"head": {"kind": "linear", "weight": "other.weight"}}, r"no tensor 'other\.weight'"),
        ({"head": {"kind": "mlp", "prefix": "score"}}, r"no tensor 'score\.0\.weight'"),
        ({"head": {"kind": "vocab", "candidates": ["+"]}}, "candidates"),
    ],
)  # fmt: skip
def test_a_spec_that_the_head_contradicts(prm, no_network, changes, message):
    write_spec(prm, **changes)
    refused(prm, message)


# ---- several files -------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(zoo, tmp_path):
    return shutil.copytree(zoo["qwen-prm-sharded"].folder, tmp_path / "sharded")


def edit_index(folder, change):
    file = folder / "model.safetensors.index.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data["weight_map"])
    file.write_text(json.dumps(data), encoding="utf-8")


SHARD = "model-0000{}-of-00003.safetensors"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda places: places.update({"score.0.bias": "model-00004-of-00003.safetensors"}), "model-00004-of-00003.safetensors"),
        (lambda places: places.update({"no.such": SHARD.format(1)}), r"no\.such"),
        (lambda places: places.update({"score.0.bias": "../elsewhere.safetensors"}), "elsewhere|beside it"),
        (lambda places: places.update({"score.0.bias": 5}), "weight_map"),
        (lambda places: places.clear(), "weight_map"),
    ],
)  # fmt: skip
def test_an_index_that_the_shards_contradict(sharded, no_network, change, message):
    edit_index(sharded, change)
    refused(sharded, message)


def test_a_tensor_in_two_shards(sharded, no_network):
    file = sharded / SHARD.format(2)
    save_file(load_file(file) | {"score.0.bias": torch.zeros(32)}, file, {"format": "pt"})
    first = json.loads((sharded / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"][
        "score.0.bias"
    ]
    if first == file.name:
        file = sharded / SHARD.format(1)
        save_file(load_file(file) | {"score.0.bias": torch.zeros(32)}, file, {"format": "pt"})
    refused(sharded, r"hold a tensor 'score\.0\.bias'")


# ---- adapters of policies ------------------------------------------------------------------------------------

peft_warns = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@peft_warns
def test_a_policy_over_an_adapter_is_pefts_own_merge(policy, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(policy)
    settings = LoraConfig(
        r=4, lora_alpha=10, target_modules=["q_proj", "up_proj"], modules_to_save=["lm_head"]
    )
    adapted = get_peft_model(base, settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    adapted.save_pretrained(tmp_path / "adapter")
    expected = adapted.merge_and_unload()
    model, tokenizer = load_language_model(tmp_path / "adapter", device="cpu")
    assert len(tokenizer) == len(tiny_tokenizer())
    moved = 0
    before = dict(AutoModelForCausalLM.from_pretrained(policy).named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, expected.get_parameter(name), rtol=1e-6, atol=1e-6)
        moved += not torch.equal(weight, before[name])
    assert moved == 2 * 3 + 1  # two modules of three layers, and the head


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 100_000},
        {"num_hidden_layers": 10**9},
        {"vocab_size": 10**8},
        {"intermediate_size": 10**8},
        {"num_attention_heads": 4 * 10**5, "head_dim": 8},
    ],
)
def test_claims_that_would_take_gigabytes_are_compared_first(prm, policy, no_network, settings):
    """What config.json says is compared with the headers of the weights before memory is taken for it."""
    for folder, load in ((prm, load_prm), (policy, LocalPolicy.load)):
        edit_config(folder, **settings)
        with pytest.raises(CheckpointError, match=str(folder)):
            load(str(folder))


def test_a_file_of_holes_is_no_zeros(prm):
    """As an interrupted download leaves it: the header is there, and the numbers were never written."""
    file = prm / "model.safetensors"
    size, header = file.stat().st_size, file.read_bytes()[:8]
    os.truncate(file, 8 + int.from_bytes(header, "little"))
    os.truncate(file, size)
    if file.stat().st_blocks * 512 >= file.stat().st_size:
        pytest.skip("this file system keeps no holes")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_prm(str(prm))
