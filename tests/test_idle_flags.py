"""A flag that has no effect is one note on standard error; the run goes on."""

from __future__ import annotations

import json

import pytest

from stepmark import load_prm
from stepmark.cli import main
from stepmark.errors import IdleSettingWarning
from stepmark.models.load import idle_settings, read_by

GOOD = {"problem": "Add.", "steps": ["1 + 1 = 2", "2 + 2 = 4"], "answer": "4"}
OURS, SERVER = "scripted_prms:arithmetic", "http://127.0.0.1:9"
JUDGED = {"generator": "g", "problem": "Add.", "steps": ["1 + 1 = 2"], "label": -1, "final_answer_correct": True}  # fmt: skip


def file_of(tmp_path, *rows):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def noted(capfd, flag, *words):
    """Run a command to its end; exactly one note names the flag."""
    assert main([str(word) for word in words]) == 0
    notes = [line for line in capfd.readouterr().err.splitlines() if line.startswith("note: ")]
    assert [flag in note for note in notes] == [True], notes


@pytest.mark.parametrize(
    "words",
    ["--neutral negative", "--dtype float32", "--device cpu", "--token-budget 512", "--seed 1", "--truncate",
     "--family pure", "--reference x", "--model x", "--tokenizer x", "--samples 2"],
)  # fmt: skip
def test_a_prm_that_a_function_makes(tmp_path, capfd, words):
    noted(capfd, words.split()[0], "grade", file_of(tmp_path, GOOD), "--prm", OURS, *words.split())


def test_the_neutral_class_of_a_prm_that_has_none(tmp_path, capfd, zoo):
    folder = zoo["token-classification"].folder
    words = ["grade", file_of(tmp_path, GOOD), "--device", "cpu", "--prm", folder, "--out", tmp_path / "out"]
    noted(capfd, "--neutral", *words, "--neutral", "negative")


def test_defaults_that_are_given_need_no_note(tmp_path, capfd):
    words = ["--neutral", "positive", "--dtype", "auto", "--device", "auto", "--seed", "0"]
    assert main(["grade", file_of(tmp_path, GOOD), "--prm", OURS, *words]) == 0
    assert "note:" not in capfd.readouterr().err


def test_in_python_it_is_a_warning():
    with pytest.warns(IdleSettingWarning, match="`dtype`"):
        prm = load_prm(OURS, dtype="float32")
    assert prm.score("Add.", steps=["1 + 1 = 2"]) == [0.9]


def test_what_a_name_tells(tmp_path):
    (tmp_path / "stepmark.json").write_text(json.dumps({"critic": "thinkprm", "settings": {}}))
    critic, served = idle_settings(str(tmp_path)), idle_settings(SERVER, tokenizer=str(tmp_path))
    assert not {"seed", "samples", "dtype"} & set(critic) and {"token_budget", "neutral"} <= set(critic)
    assert "dtype" in served and not {"seed", "tokenizer"} & set(served)
    settings = {"dtype": "float32", "device": "cpu", "truncate": True, "token_budget": None}
    assert read_by(SERVER, settings) == read_by(OURS, settings) == {}
    assert read_by("org/x", settings) == settings


def test_policies_that_compute_elsewhere(tmp_path, capfd):
    words = ["sample", file_of(tmp_path, GOOD), "--policy", "label_policies:program", "--out", tmp_path / "out"]  # fmt: skip
    noted(capfd, "--device", *words, "--device", "cpu")


def test_a_judge_compares_no_answers(tmp_path, capfd):
    words = ["label", file_of(tmp_path, GOOD), "--method", "judge", "--policy", "label_policies:judge"]
    noted(capfd, "--verifier", *words, "--out", tmp_path / "out.jsonl", "--verifier", "number")


def test_evaluations(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = file_of(tmp_path, {**JUDGED, "id": "a-1"}, {**JUDGED, "id": "a-2"})
    words = ["evaluate", "processbench", "--data", data, "--resamples", "100", "--prm", OURS]
    noted(capfd, "--dtype", *words, "--dtype", "float32")
    # The seed is of the resamples too.
    assert main([*words, "--seed", "7", "--out", "other"]) == 0
    assert "note:" not in capfd.readouterr().err
