"""A checkpoint of TRL's trainer with a separator of its own, read by the file that docs/migrating.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForTokenClassification, PreTrainedTokenizerFast

import stepmark

PAGE = Path(__file__).resolve().parents[1] / "docs" / "migrating.md"


def test_the_spec_of_the_page_reads_a_blank_line_as_trl_trained_it(tmp_path):
    """In a vocabulary in which a full stop and a blank line are one token, against transformers' own classifier."""
    torch.manual_seed(7)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*letters, "ĊĊ", ".ĊĊ"])}  # Ċ is a newline
    bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ"), (".", "ĊĊ")]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, pad_token="!")  # noqa: S106
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        num_labels=2,
        initializer_range=0.3,
    )
    network = LlamaForTokenClassification(config).eval()
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (spec,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "stepmark.json").write_text(spec, encoding="utf-8")
    problem, steps = "What is 2 * 3 + 4?", ["2 * 3 = 6. ", "6 + 4 = 10."]
    scores = stepmark.load_prm(str(tmp_path), dtype="float32", device="cpu").score(problem, steps=steps)

    def piece(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    ids, reads = piece(problem), []
    for step in steps:  # as `tokenize_row` joined them
        ids += piece(step) + piece("\n\n")
        reads.append(len(ids) - 1)
    with torch.no_grad():
        shares = network(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
    torch.testing.assert_close(torch.tensor(scores), shares[reads, 1], atol=1e-5, rtol=0)
    joined = piece("What is 2 * 3 + 4?2 * 3 = 6.\n\n6 + 4 = 10.\n\n")
    assert vocabulary["ĊĊ"] in ids and vocabulary["ĊĊ"] not in joined  # no separator is left to read
