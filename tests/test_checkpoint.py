"""Checkpoints on disk: tensors, what is refused, and LoRA adapters against peft's own merge."""

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig

from stepmark.errors import CheckpointError
from stepmark.models import attention
from stepmark.models.backbone import load_backbone, load_config, token_limit
from stepmark.models.checkpoint import Tensors, beside_backbone, merge_adapter
from stepmark.models.places import find_checkpoint

torch.set_num_threads(1)


def write_json(file, data):
    file.write_text(json.dumps(data), encoding="utf-8")


# Tensors


def test_tensors_of_several_safetensors_files(tmp_path):
    save_file(
        {"model.layers.0.a": torch.arange(3.0), "score.weight": torch.ones(2, 2)},
        tmp_path / "model-00001-of-00002.safetensors",
    )
    save_file({"model.norm.weight": torch.tensor([7.0])}, tmp_path / "model-00002-of-00002.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not looked at where there are safetensors")
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    places = {"model.layers.0.a": first, "score.weight": first, "model.norm.weight": second}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": places})
    tensors = Tensors(tmp_path)
    assert tensors.names == {"model.layers.0.a", "score.weight", "model.norm.weight"}
    assert tensors.get("model.layers.0.a").tolist() == [0.0, 1.0, 2.0]
    assert tensors.get("model.norm.weight").tolist() == [7.0]
    assert beside_backbone(tensors.facts) == ["score.weight"]


# Finding


@pytest.mark.parametrize("name", ["nowhere", "./owner/name", "/no/such/folder", "~/nothing", "a/b/c"])
def test_no_folder_and_no_hub_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="there is no folder"):
        find_checkpoint(name)


# Backbones

TINY = LlamaConfig(
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=2,
    intermediate_size=48,
    vocab_size=30,
    initializer_range=0.25,
    max_position_embeddings=64,
    pad_token_id=None,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A language model's folder in two shards, as published: lm_head, and every name under `model.`."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(TINY).save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_a_backbone_holds_the_checkpoints_numbers(base):
    backbone = load_backbone(base, dtype=torch.float32, device="cpu")
    assert not backbone.training
    assert backbone.config._attn_implementation == attention.NAME
    tensors = Tensors(base)
    for name, parameter in backbone.named_parameters():
        torch.testing.assert_close(parameter, tensors.get(f"model.{name}"), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"model_type": "llama", "max_position_embeddings": 2048}, 2048),
        # A window of attention is a limit where it is on: the tree attention sees further than it.
        ({"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": 4096}, 4096),
        ({"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": None}, 32768),
        (
            {
                "model_type": "qwen2",
                "max_position_embeddings": 4096,
                "sliding_window": 1024,
                "use_sliding_window": False,
            },
            4096,
        ),
        (
            {
                "model_type": "qwen2",
                "max_position_embeddings": 4096,
                "sliding_window": 1024,
                "use_sliding_window": True,
            },
            1024,
        ),
    ],
)
def test_the_token_limit(tmp_path, settings, limit):
    write_json(tmp_path / "config.json", settings)
    assert token_limit(load_config(tmp_path)) == limit


# Adapters

# peft 0.21 asks transformers for a name that it is about to drop.
peft_warns = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def bare_backbone():
    """The same random decoder each time, with transformers' own attention."""
    torch.manual_seed(1)
    return AutoModel.from_config(TINY, attn_implementation="sdpa").eval()


def causal_language_model():
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(TINY, attn_implementation="sdpa").eval()


def save_adapter(model, folder, **settings):
    """A LoRA adapter with random matrices in PEFT's own layout; returns peft's merged network."""
    adapted = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=10, target_modules=["q_proj", "v_proj", "down_proj"], **settings)
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
                assert "lora" in name or "modules_to_save" in name
    adapted.save_pretrained(folder)
    return adapted.merge_and_unload()


def assert_same_network(ours, theirs, unlike):
    """All parameters equal, and some of them moved."""
    wanted = dict(theirs.named_parameters())
    moved = []
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, wanted[name], rtol=1e-6, atol=1e-6, msg=lambda m, n=name: n + m)
        moved.append(not torch.equal(parameter, unlike.get_parameter(name)))
    assert sum(moved) >= 6


@peft_warns
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}])
def test_merging_equals_pefts_own(tmp_path, settings):
    theirs = save_adapter(bare_backbone(), tmp_path, **settings)
    ours = bare_backbone()
    assert merge_adapter(ours, tmp_path) == {}
    assert_same_network(ours, theirs, bare_backbone())


@peft_warns
def test_an_adapter_over_a_whole_language_model(tmp_path):
    """The names of such an adapter have one more `model.`."""
    theirs = save_adapter(causal_language_model(), tmp_path)
    ours = causal_language_model().model
    merge_adapter(ours, tmp_path)
    assert_same_network(ours, theirs.model, causal_language_model().model)


@peft_warns
def test_modules_that_were_trained_whole(tmp_path):
    """A head goes to the caller; an embedding replaces the base's, or it would silently be the old one."""
    theirs = save_adapter(
        causal_language_model(),
        tmp_path,
        modules_to_save=["embed_tokens", "lm_head"],
        ensure_weight_tying=False,
    )
    ours = causal_language_model().model
    others = merge_adapter(ours, tmp_path)
    assert list(others) == ["lm_head.weight"]
    torch.testing.assert_close(others["lm_head.weight"], theirs.lm_head.weight)
    assert not torch.equal(ours.embed_tokens.weight, causal_language_model().model.embed_tokens.weight)
    assert_same_network(ours, theirs.model, causal_language_model().model)


@peft_warns
def test_a_merge_into_bfloat16_is_rounded_once(tmp_path):
    theirs = save_adapter(bare_backbone().to(torch.bfloat16).float(), tmp_path)
    ours = bare_backbone().to(torch.bfloat16)
    merge_adapter(ours, tmp_path)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(
            parameter, theirs.get_parameter(name).to(torch.bfloat16), rtol=2**-7, atol=1e-6
        )


def changed(folder, *, config=None, tensors=None):
    """An adapter in the folder, its config or tensors changed by functions of them."""
    save_adapter(bare_backbone(), folder)
    if config is not None:
        data = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        write_json(folder / "adapter_config.json", config(data))
    if tensors is not None:
        file = folder / "adapter_model.safetensors"
        save_file(tensors(load_file(file)), file)


QUERY = "base_model.model.layers.0.self_attn.q_proj"


@peft_warns
@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            lambda t: {n.replace("layers.0", "layers.7"): v for n, v in t.items()},
            r"changes 'layers\.7\..*base does not have",
        ),
        (
            lambda t: {n: v for n, v in t.items() if n != f"{QUERY}.lora_B.weight"},
            r"no tensor .*lora_B\.weight",
        ),
        (
            lambda t: {**t, "base_model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 30)},
            "lora_embedding_A",
        ),
        (lambda t: {**t, f"{QUERY}.lora_B.bias": torch.zeros(32)}, r"lora_B\.bias"),
        (lambda t: {**t, f"{QUERY}.base_layer.bias": torch.zeros(32)}, r"base_layer\.bias"),
        (lambda t: {**t, "base_model.model.embed_tokens.weight": torch.zeros(31, 32)}, r"shape \(31, 32\)"),
        (
            lambda t: {n: v for n, v in t.items() if n != f"{QUERY}.lora_A.weight"},
            r"no tensor .*lora_A\.weight",
        ),
        # The scale is alpha / r: with another rank than the config's it would be another adapter.
        (
            lambda t: {n: v[:2] if "lora_A" in n else v[:, :2].contiguous() for n, v in t.items()},
            r"lora_A\.weight.*\(2, \d+\).*\(4, \d+\)",
        ),
        (
            lambda t: {**t, f"{QUERY}.lora_B.weight": torch.zeros(4, 32)},
            r"lora_B\.weight.*\(4, 32\).*\(32, 4\)",
        ),
        (lambda t: {n: v for n, v in t.items() if "layers.1" not in n}, r"layers\.1\.mlp.*3 modules"),
        (lambda t: {n: v.int() for n, v in t.items()}, "int32"),
    ],
)
def test_adapter_tensors_without_a_place_are_refused(tmp_path, tensors, message):
    changed(tmp_path, tensors=tensors)
    with pytest.raises(CheckpointError, match=message):
        merge_adapter(bare_backbone(), tmp_path)
