"""`stepmark train`: settings that cannot be are refused before a model is loaded, by the flag that was typed."""

from __future__ import annotations

import pytest

from stepmark.cli import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--learning-rate 0", "--learning-rate 0.0: expected more than 0"),
        ("--learning-rate nan", "--learning-rate nan: expected a number, more than 0"),
        ("--epochs 0", "--epochs 0: expected 1 or more"),
        ("--coarsen 2", "--coarsen 2.0: expected a number in [0, 1]"),
        ("--held-out 1", "--held-out 1.0: expected a number in [0, 1)"),
        ("--lora-rank 0", "--lora-rank 0: expected 1 or more"),
        ("--lora-alpha 0", "--lora-alpha 0.0: expected more than 0"),
        ("--frozen-layers -1", "--frozen-layers -1: expected 0 or more"),
        ("--device gpu", "--device gpu: expected auto, cpu, cuda or cuda:NUMBER"),
        ("--full --warm-start x", "--warm-start is of a LoRA adapter; with all weights (--full), name the checkpoint itself as the --base"),
        ("--full --adapter", "--adapter writes a LoRA adapter, and --full trains all weights: leave out one of the two"),
        ("--full --lora-rank 4", "--lora-rank is of a LoRA adapter, and --full trains all weights: leave out one of the two"),
        ("--full --lora-alpha 4", "--lora-alpha is of a LoRA adapter, and --full trains all weights"),
        ("--held-out-data x --held-out 0.2", "--held-out is a share of the rows, and --held-out-data names others instead"),
        ("--log tensorbord", "--log tensorbord: expected tensorboard or wandb"),
        ("--objective hrd", "Did you mean 'hard'"),
        ("--objective hard --set language_weight=-1", "language_weight=-1.0: expected 0 or more"),
        ("--objective hard --set language_tokens=all", "language_tokens is of the loss that language_weight adds, and that is 0"),
        ("--objective outcome --set language_weight=0.5", "language_weight goes with labels of steps, not with outcomes"),
        ("--objective target-tokens --set candidates=a", "candidates: expected two or three different tokens, found a"),
        ("--objective hard --set candidates=a,b", "setting of HardLabels"),
        ("--objective nowhere:Mine", "--objective nowhere:Mine: there is no module 'nowhere'"),
        ("--family math-shepherd --set above=0.5", "--set are fields of an --objective: name it too"),
        ("--family math-shephard", "Did you mean 'math-shepherd'"),
        ("--family actprm", "--family actprm: no objective trains its head; those that can be trained are qwen-prm, reasonflux-prm, skywork"),
        ("--family implicit-per-step", "--family implicit-per-step: no objective trains its head"),
        ("--family math-shepherd --mark x", "--mark: the --family math-shepherd has its own; leave out one of the two"),
        ("--family math-shepherd --objective three-class", "--objective three-class fits 3 logits, and the head of the family math-shepherd has 2"),
        ("--family math-shepherd --objective outcome", "--objective outcome: the family math-shepherd reads every step"),
        ("--family orm --objective hard", "--objective hard: the family orm reads the last step only"),
        ("--family genprm --objective hard", "--objective hard: the family genprm writes critiques"),
        ("--family implicit --objective hard", "--objective hard: the family implicit is read by a log-ratio"),
        ("--family qwen-prm --objective generative", "--objective generative: the family qwen-prm has a head at step ends"),
    ],
)  # fmt: skip
def test_the_flag_is_named(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text("{}\n", encoding="utf-8")
    assert main(["train", "rows.jsonl", "--out", "prm", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and expected in err, err
    assert list(tmp_path.iterdir()) == [file]
