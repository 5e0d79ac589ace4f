"""`--verifier code` in every command that takes it: refused without a sandbox, and the isolation stands in each manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepmark.backends import VerdictRequest
from stepmark.cli import main
from stepmark.errors import UsageError
from stepmark.sampling.run import build
from stepmark.verifiers import code_sandbox
from stepmark.verifiers.base import load_verifier

TESTS = json.dumps({"text": "Double.", "test_list": ["assert double(2) == 4"], "task_id": 1})
RIGHT = "```python\ndef double(x):\n    return 2 * x\n```"
ROWS = {
    "problems": {"problem": "Write double(x).", "answer": TESTS, "id": "a"},
    "solutions": {"problem": "Write double(x).", "steps": ["Think.", RIGHT], "answer": TESTS},
    "pairs": {"gold": TESTS, "answer": RIGHT, "equal": True, "id": "a"},
}
POLICY = ["--policy", "label_policies:program"]
COMMANDS = {
    "sample": ["sample", "problems.jsonl", *POLICY, "--n", "1", "--out", "out.jsonl"],
    "label": ["label", "binary", "solutions.jsonl", *POLICY, "--k", "1", "--out", "out.jsonl"],
    "search": ["search", "greedy", "problems.jsonl", *POLICY, "--out", "out.jsonl"],
    "rl": ["rl", "problems.jsonl", "--policy", "stepmark:arithmetic", "--credit", "grpo", "--out", "out"],
    "evaluate verifier": ["evaluate", "verifier", "--data", "pairs.jsonl", "--out", "out"],
    "evaluate best-of-n": ["evaluate", "best-of-n", "--data", "problems.jsonl", *POLICY, "--out", "out"],
    "evaluate search": [
        "evaluate",
        "search",
        "--data",
        "problems.jsonl",
        *POLICY,
        "--budgets",
        "99",
        "--out",
        "out",
    ],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with an input for each command."""
    for name, row in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_sandbox_nothing_begins(folder, command, monkeypatch, capsys):
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: None)
    assert main([*COMMANDS[command], "--verifier", "code"]) == 2
    message = capsys.readouterr().err
    assert "apt-get install bubblewrap" in message
    assert "--isolation unsafe" in message
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.jsonl" for name in sorted(ROWS)]


@pytest.mark.parametrize("isolation", code_sandbox.ISOLATIONS)
@pytest.mark.parametrize("command", ["sample", "label", "search", "evaluate verifier"])
def test_the_isolation_is_said_and_stands_in_the_manifest(folder, command, isolation, capsys):
    try:
        load_verifier("code", isolation=isolation).close()
    except UsageError:
        pytest.skip(f"no sandbox works here: {code_sandbox.install_line()}")
    flag = ["--isolation", isolation] if isolation == "unsafe" else []  # bubblewrap is the default
    assert main([*COMMANDS[command], "--verifier", "code", *flag]) == 0
    assert f"programs run in isolation '{isolation}': " in capsys.readouterr().err
    manifest = folder / ("out/result.json" if command.startswith("evaluate") else "out.jsonl.manifest.json")
    assert json.loads(manifest.read_text())["settings"]["isolation"] == isolation


def test_a_worker_of_a_cluster_takes_the_isolation_of_the_run(monkeypatch):
    monkeypatch.setattr(code_sandbox.shutil, "which", lambda name: None)
    _, verify = build(policy=None, verifier="code", isolation="unsafe").answers[VerdictRequest]
    [verdict] = verify([VerdictRequest(answer=RIGHT, gold=TESTS)], lambda number, reply: None)
    assert verdict.correct
    with pytest.raises(UsageError, match="bubblewrap is not installed"):
        build(policy=None, verifier="code")
