"""Flags that mean nothing for what is named beside them: refused with the same sentence by every command, and never passed over."""

from __future__ import annotations

import json

import pytest

from score_servers import OnPort
from stepmark import load_prm
from stepmark.cli import main
from stepmark.errors import UsageError
from stepmark.models.load import idle_settings, read_by
from stepmark.models.scripted import ScriptedPRM

GOOD = {"problem": "Add.", "steps": ["1 + 1 = 2", "2 + 2 = 4"]}
OURS, SERVER = "scripted_prms:arithmetic", "http://127.0.0.1:9"
RATED = {"instruction": "Add.", "responses": [], "next_response": "1 + 1 = 2", "answer": None, "rating": 0}
JUDGED = {"id": "a-1", "generator": "g", "problem": "Add.", "steps": ["1 + 1 = 2"], "label": -1}
JUDGED |= {"final_answer_correct": True}


def file_of(tmp_path, *rows, name="in.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def refused(capfd, *words, flag, why):
    """The one line that a command says instead of running."""
    assert main([str(word) for word in words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {flag}: ") and err.count("\n") == 1, err
    assert why in err


# --- the PRM


FUNCTION, CRITIC, PLAIN = "is made by that function", "writes critiques", "writes no critiques"


@pytest.mark.parametrize(
    ("prm", "words", "why"),
    [
        *((OURS, words, f"{OURS} {FUNCTION}") for words in (
            "--neutral negative", "--dtype float32", "--device cpu", "--token-budget 512", "--seed 1", "--truncate",
            "--family pure", "--reference x", "--model x", "--tokenizer x", "--samples 2",
        )),
        *((SERVER, words, "decides how its PRM is read: say it there") for words in (
            "--dtype float32", "--device cuda", "--token-budget 9", "--neutral negative", "--seed 1",
        )),
        *((SERVER, f"--tokenizer x {words}", f"{SERVER} is a server") for words in (
            "--device cpu", "--seed 1", "--reference y", "--samples 2",
        )),
        (SERVER, "--family genprm --dtype float32", CRITIC),
        *(("org/x", words, PLAIN) for words in ("--seed 1", "--samples 4", "--model x", "--tokenizer x")),
        *(("org/x", f"--family genprm {words}", CRITIC) for words in (
            "--token-budget 9", "--neutral negative", "--truncate", "--reference x", "--tokenizer x",
        )),
        ("default", "--model x", PLAIN),
    ],
)  # fmt: skip
def test_grade_refuses_before_it_loads_or_asks(tmp_path, capfd, prm, words, why):
    words = words.split()
    flag = " ".join(words[2:] if len(words) > 2 else words)
    refused(capfd, "grade", file_of(tmp_path, GOOD), "--prm", prm, *words, flag=flag, why=why)


def test_the_neutral_class_is_of_prms_that_have_one(tmp_path, capfd, zoo):
    file = file_of(tmp_path, GOOD)
    two = str(zoo["token-classification"].folder)
    words = ["grade", file, "--device", "cpu", "--neutral", "negative"]
    why = f"{two} is read as token-classification, which has no neutral class: leave it out"
    refused(capfd, *words, "--prm", two, flag="--neutral negative", why=why)
    three = str(zoo["reasoneval"].folder)
    assert main([*words, "--prm", three, "--family", "reasoneval", "--out", str(tmp_path / "out.jsonl")]) == 0


def test_defaults_that_are_said_are_no_error(tmp_path, capfd):
    words = ["--neutral", "positive", "--dtype", "auto", "--device", "auto", "--seed", "0"]
    assert main(["grade", file_of(tmp_path, GOOD), "--prm", OURS, *words]) == 0
    assert capfd.readouterr().out.count("\n") == 1


def test_python_is_told_too():
    for setting in (
        {"neutral": "negative"},
        {"dtype": "float32"},
        {"device": "cpu"},
        {"token_budget": 5},
        {"seed": 2},
        {"truncate": True},
    ):
        with pytest.raises(UsageError, match=r"^`[a-z_]+`.*is made by that function"):
            load_prm(OURS, **setting)
    assert load_prm(OURS, dtype="auto", seed=0).score("Add.", steps=["1 + 1 = 2"]) == [0.9]


def test_a_checkpoint_that_says_that_it_writes_critiques_is_asked_with_a_seed(tmp_path):
    (tmp_path / "stepmark.json").write_text(json.dumps({"critic": "thinkprm", "settings": {}}))
    idle = idle_settings(str(tmp_path))
    assert "seed" not in idle and "samples" not in idle and "dtype" not in idle
    assert "token_budget" in idle and "neutral" in idle
    served = idle_settings(SERVER, tokenizer=str(tmp_path))
    assert "seed" not in served and "dtype" in served and "tokenizer" not in served


# --- commands in which a flag means something beside the PRM


def test_a_flag_of_the_outcome_model_beside_it(tmp_path, capfd):
    file = file_of(tmp_path, GOOD)
    words = ["grade", file, "--prm", OURS, "--dtype", "float32", "--orm"]
    assert main([*words, str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capfd.readouterr().err  # it is loaded, and not there
    refused(capfd, *words, OURS, flag="--dtype float32", why=FUNCTION)
    settings = {"dtype": "float32", "device": "cpu", "truncate": True, "token_budget": None}
    assert read_by(SERVER, settings) == read_by(OURS, settings) == {}
    assert read_by("org/x", settings) == settings


@pytest.mark.parametrize(
    ("command", "policy", "found"),
    [
        (["search", "beam"], "search_models:policy", "the policy search_models:policy is made by that"),
        (["search", "beam"], "http://127.0.0.1:9/v1#m", "computes on its server"),
        (["label", "rollout"], "http://127.0.0.1:9/v1#m", "http://127.0.0.1:9/v1#m computes on its server"),
        (["sample"], "label_policies:program", "the policy label_policies:program is made by that function"),
    ],
)
def test_policies_that_compute_elsewhere(tmp_path, capfd, command, policy, found):
    file = file_of(tmp_path, {**GOOD, "answer": "4"})
    prm = ["--prm", "search_models:truth"] if command[0] == "search" else []
    words = [*command, file, "--policy", policy, *prm, "--out", tmp_path / "out.jsonl"]
    for flag in ("--dtype float32", "--device cuda:1"):
        refused(capfd, *words, *flag.split(), flag=flag, why=found)
    assert main([str(word) for word in [*words, "--device", "gpu"]]) == 2
    assert "--device gpu: expected auto, cpu, cuda or cuda:NUMBER" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_a_judge_compares_no_answers(tmp_path, capfd):
    words = [
        "label",
        file_of(tmp_path, GOOD),
        "--method",
        "judge",
        "--policy",
        "label_policies:judge",
        "--out",
    ]
    assert main([*words, str(tmp_path / "out.jsonl"), "--verifier", "number"]) == 2
    assert (
        "--verifier number: it compares final answers, which judge does not ask for: leave it out"
        in capfd.readouterr().err
    )


def test_evaluations(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = file_of(tmp_path, JUDGED, {**JUDGED, "id": "a-2"}, name="data.jsonl")
    words = ["evaluate", "processbench", "--data", data, "--resamples", "100", "--prm", OURS]
    for flag in ("--dtype float32", "--device cpu", "--token-budget 7", "--neutral negative"):
        refused(capfd, *words, *flag.split(), flag=flag, why=FUNCTION)
    # The seed is of the resamples too, and there every number is one.
    assert main([*words, "--seed", "7"]) == 0
    capfd.readouterr()
    scores = ["--scores", "evaluation/processbench/scores.jsonl"]
    words = [*words[:-2], *scores]
    refused(capfd, *words, "--dtype", "float32", flag="--dtype float32", why="with --scores no PRM is asked")
    unasked = ["evaluate", "disagreement", "--data", data, "--device", "cpu"]
    refused(capfd, *unasked, flag="--device cpu", why="no PRM is asked here: leave it out")


def test_neutral_ratings_are_read_where_the_prm_has_no_neutral_class(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = file_of(tmp_path, RATED, {**RATED, "instruction": "Sum."}, name="data.jsonl")
    words = ["evaluate", "calibration", "--data", data, "--resamples", "100", "--prm", OURS]
    shares = []
    for neutral in ("positive", "negative"):
        out = tmp_path / neutral
        assert main([*words, "--neutral", neutral, "--out", str(out)]) == 0, capfd.readouterr().err
        result = json.loads((out / "result.json").read_text())
        shares.append({one["name"]: one["value"] for one in result["figures"]}["steps/all/ece"])
    assert shares == pytest.approx([0.1, 0.9])  # 0.9 is said of what is right, or of what is wrong


def test_an_evaluation_over_a_server_of_ours(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = file_of(tmp_path, JUDGED, {**JUDGED, "id": "a-2"}, name="data.jsonl")
    with OnPort(ScriptedPRM(lambda problem, steps: 0.75)) as server:
        words = ["evaluate", "processbench", "--data", data, "--resamples", "100", "--prm", server.url]
        assert main([*words, "--seed", "3"]) == 0
        capfd.readouterr()
        refused(capfd, *words, "--dtype", "float32", flag="--dtype float32", why="stepmark server")
    graded = (tmp_path / "evaluation/processbench/scores.jsonl").read_text().splitlines()
    assert [json.loads(line)["scores"] for line in graded] == [[0.75], [0.75]]


def test_a_server_is_not_started(capfd):
    words = ["serve", "--port", "0", "--prm", OURS]
    refused(capfd, *words, "--dtype", "float32", flag="--dtype float32", why=FUNCTION)
    refused(capfd, *words, "--neutral", "negative", flag="--neutral negative", why=FUNCTION)
    # Batches are of so many tokens whatever the PRM is: this is refused for its host, and not for its budget.
    assert main([*words, "--token-budget", "64", "--host", "192.0.2.1"]) == 2
    assert "--host 192.0.2.1 lets other machines ask" in capfd.readouterr().err
