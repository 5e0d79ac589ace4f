"""Names of other libraries that their documentation does not promise: all that stepmark uses, each with what it counts on.

A new version that changes one of them fails here, by its name. The first test holds that there are no others.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import stepmark
from stepmark.models import attention

torch.set_num_threads(1)

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 40,
}  # fmt: skip
UNDERSCORED = {
    # Tested below.
    "_attn_implementation": {"models/attention.py"},
    "_keys_to_ignore_on_load_unexpected": {"models/backbone.py"},
    "_softmax_backward_data": {"models/attention.py"},
    # Tested where it is used: test_rl_adapters_trl.py, test_cli.py.
    "_metrics": {"rl/adapters/trl.py"},
}
PROMISED = {"_asdict", "_fields", "_replace", "_mapping", "_exit"}
"""Documented, whatever they begin with: of named tuples, of SQLAlchemy's rows, of os."""


def test_no_other_private_names_are_used():
    root = Path(stepmark.__file__).parent
    trees = {str(file.relative_to(root)): ast.parse(file.read_text("utf-8")) for file in root.rglob("*.py")}
    nodes = [(file, node) for file, tree in trees.items() for node in ast.walk(tree)]
    ours = {
        node.name
        for _, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    ours |= {
        node.attr for _, node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    ours |= {node.id for _, node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found: dict[str, set[str]] = {}
    for file, node in nodes:
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
            ("stepmark", "__future__")
        ):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in ours | PROMISED:
                found.setdefault(name, set()).add(file)
    assert found == UNDERSCORED


def tiny(config_class=LlamaConfig, **more):
    torch.manual_seed(0)
    return AutoModel.from_config(config_class(**SIZES, **more), attn_implementation="sdpa").eval()


def test_the_config_says_which_attention_is_set():
    model = tiny()
    assert model.config._attn_implementation == "sdpa"
    with attention.planned(model):
        assert model.config._attn_implementation == attention.NAME
    assert model.config._attn_implementation == "sdpa"


def test_an_attention_of_ours_is_called_with_unknown_arguments_and_without_a_mask(monkeypatch):
    seen = []

    def attend(module, query, key, value, attention_mask, **more):
        seen.append((module, attention_mask, more.get("stepmark_plan")))
        return torch.zeros(1, query.shape[2], query.shape[1], query.shape[3]), None

    monkeypatch.setattr(attention, "_attend", attend)
    model = tiny()
    with attention.planned(model), torch.no_grad():
        model(
            input_ids=torch.tensor([[1, 2]]),
            position_ids=torch.tensor([[0, 1]]),
            use_cache=False,
            stepmark_plan="it",
        )
    monkeypatch.undo()
    attention.register()
    assert [(module, mask, plan) for module, mask, plan in seen] == [
        (layer.self_attn, None, "it") for layer in model.layers
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_torch_operators(dtype):
    torch.manual_seed(0)
    x, grad = (torch.randn(3, 5, dtype=dtype) for _ in range(2))
    x.requires_grad_()
    weights = x.softmax(-1)
    (expected,) = torch.autograd.grad(weights, x, grad)
    given = torch.ops.aten._softmax_backward_data(grad, weights.detach(), -1, dtype)
    torch.testing.assert_close(given, expected)
    (expected,) = torch.autograd.grad(F.silu(x), x, grad)
    torch.testing.assert_close(torch.ops.aten.silu_backward(grad, x.detach()), expected)


def test_an_architecture_says_which_tensors_it_passes_over():
    from transformers import Glm4MoeForCausalLM, LlamaForCausalLM

    assert LlamaForCausalLM._keys_to_ignore_on_load_unexpected is None
    assert any("layers" in pattern for pattern in Glm4MoeForCausalLM._keys_to_ignore_on_load_unexpected)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_the_decoders_that_training_computes_itself_have_these_parts(config_class):
    """`training.net` reads them; `test_fused.py` compares its numbers with those of transformers."""
    model = tiny(config_class)
    x = model.embed_tokens(torch.tensor([1, 2]))
    cos, _ = model.rotary_emb(x[None], torch.tensor([[0, 1]]))
    assert cos.shape == (1, 2, 8)
    assert model.norm.variance_epsilon == model.config.rms_norm_eps
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in model.layers:
        assert layer.gradient_checkpointing is True
        own, mlp = layer.self_attn, layer.mlp
        parts = [own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        assert all(isinstance(part, torch.nn.Linear) for part in parts)
        assert own.scaling == own.head_dim**-0.5 == 8**-0.5
        assert {layer.input_layernorm.variance_epsilon, layer.post_attention_layernorm.variance_epsilon} == {
            model.config.rms_norm_eps
        }
        assert hasattr(own, "q_norm") == (type(own).__name__ == "Qwen3Attention")


def test_the_parts_of_an_adapted_layer():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        tiny(), LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", init_lora_weights=False)
    )
    module = model.get_base_model().layers[0].mlp.up_proj
    assert not module.disable_adapters
    (name,) = module.active_adapters
    x = torch.randn(3, 32)
    low = x @ module.lora_A[name].weight.t() @ module.lora_B[name].weight.t()
    expected = module.base_layer(x) + module.scaling[name] * low
    torch.testing.assert_close(module(x), expected)


def test_the_headers_of_weights_are_read_without_them(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", framework="pt") as opened:
        part = opened.get_slice("a")
        assert (part.get_dtype(), part.get_shape()) == ("BF16", [2, 3])


def test_gguf_gives_plain_numbers():
    gguf = pytest.importorskip("gguf")

    numbers = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    packed = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    assert np.abs(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0) - numbers).max() < 1 / 127
