"""`stepmark train`: settings that cannot be are refused before anything is read, by the flag that was typed."""

from __future__ import annotations

import pytest

from stepmark.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--learning-rate 0", "--learning-rate (learning_rate) must be above 0, found 0.0"),
        ("--learning-rate nan", "--learning-rate (learning_rate) must be above 0, found nan"),
        ("--head-rate -1", "--head-rate (head_rate) must be above 0, found -1.0"),
        ("--epochs 0", "--epochs must be at least 1, found 0"),
        ("--minutes 0", "--minutes must be above 0, found 0.0"),
        ("--token-budget 0", "--token-budget (token_budget) must be at least 1, found 0"),
        ("--rows-per-step 0", "--rows-per-step (rows_per_step) must be at least 1, found 0"),
        ("--limit-tokens 0", "--limit-tokens (limit_tokens) must be at least 1, found 0"),
        ("--max-tokens 0", "--max-tokens (max_tokens) must be at least 1, found 0"),
        ("--coarsen 2", "--coarsen must be from 0 to 1, found 2.0"),
        ("--held-out 1", "--held-out (held_out) must be from 0 to under 1, found 1.0"),
        ("--evaluations 0", "--evaluations must be at least 1, found 0"),
        ("--patience 0", "--patience must be at least 1, found 0"),
        ("--weight-decay -1", "--weight-decay (weight_decay) must be at least 0, found -1.0"),
        ("--seed -1", "--seed must be at least 0, found -1"),
        ("--rank 0", "--rank must be at least 1, found 0"),
        ("--alpha 0", "--alpha must be above 0, found 0.0"),
        ("--frozen-layers -1", "--frozen-layers (frozen_layers) must be at least 0, found -1"),
        ("--device gpu", "--device gpu: expected auto, cpu, cuda or cuda:NUMBER"),
        ("--language-weight -1", "--language-weight (weight) must be above 0, found -1.0"),
        (
            "--language-tokens all",
            "--language-tokens is of the loss that --language-weight adds, and that is",
        ),
        (
            "--objective outcome --language-weight 0.5",
            "--language-weight (weight) goes with labels of steps, not with outcomes",
        ),
        ("--full --warm-start x", "--warm-start (warm_start) is of an adapter; with all weights (--full)"),
        (
            "--full --adapter",
            "--adapter writes an adapter, and --full trains all weights: leave one of the two",
        ),
        ("--full --rank 4", "--rank is of LoRA, and --full trains all weights: leave one of the two out"),
        ("--full --alpha 4", "--alpha is of LoRA, and --full trains all weights: leave one of the two out"),
        (
            "--held-out-data x --held-out 0.2",
            "--held-out is a share of the data, and --held-out-data names a",
        ),
        ("--objective target-tokens --candidates a", "--candidates: expected two or three different tokens"),
        ("--candidates a", "--candidates are of --objective target-tokens, found hard"),
    ],
)
def test_the_flag_is_named(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "rows.jsonl", "--out", "prm", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and said in err, err
    assert list(tmp_path.iterdir()) == []
