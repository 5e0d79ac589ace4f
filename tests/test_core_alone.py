"""The core without any extra: every station that needs more says which line to type, and none ends in a traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"math-verify": "math_verify", "pyyaml": "yaml"}
"""What a package is imported as, where it is not its name."""

COMMANDS = {
    "grade": ("grade graded.jsonl --prm elsewhere --out out", "local"),
    "grade-default": ("grade graded.jsonl --out out", "default"),
    "train": ("train labels.jsonl --out out", "train"),
    "train-all": ("train labels.jsonl --full --out out", "train"),
    "sample": ("sample problems.jsonl --policy elsewhere --n 2 --verifier number --out out", "local"),
    "search": ("search greedy problems.jsonl --policy elsewhere --verifier number --out out", "local"),
    "label": ("label rollout graded.jsonl --policy elsewhere --out out", "local"),
    "rl": ("rl problems.jsonl --policy elsewhere --credit grpo --verifier number --out out", "train"),
    "annotate": ("annotate graded.jsonl", "annotate"),
    "serve": ("serve", "serve"),
    "ray": ("sample problems.jsonl --policy elsewhere --verifier number --out out --ray local", "cluster"),
}
"""A command, and the extra that it asks for first."""
WORKING = ("split solution.txt", "families", "problems arithmetic --count 2 --seed 1 --out made.jsonl")

RUN = """
import contextlib, io, json, sys

missing = set(json.loads(sys.argv[1]))


class Without:
    "The finder of installed packages, but for those that only an extra brings."

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else self.finder.find_spec(name, path, target)

    def find_distributions(self, *args):
        return getattr(self.finder, "find_distributions", lambda *args: [])(*args)


sys.meta_path[:] = [Without(one) for one in sys.meta_path]
from stepmark.cli import main

said = {}
for name, words in json.loads(sys.argv[2]).items():
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(words.split())
        except BaseException as failed:
            code = repr(failed)
    said[name] = (code, error.getvalue())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("core")
    problem = {"problem": "What is 2 + 3?", "answer": "5", "id": "a"}
    (folder / "problems.jsonl").write_text(json.dumps(problem) + "\n", encoding="utf-8")
    row = {"problem": "What is 2 + 3?", "steps": ["2 + 3 = 5"], "answer": "5"}
    (folder / "graded.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    label = {"prompt": "What is 2 + 3?", "completions": ["2 + 3 = 5"], "labels": [True]}
    (folder / "labels.jsonl").write_text(json.dumps(label) + "\n", encoding="utf-8")
    (folder / "solution.txt").write_text("2 + 3 = 5\n5 * 2 = 10\n", encoding="utf-8")
    wanted = {Requirement(one).name for extra in EXTRAS.values() for one in extra} - {"stepmark"}
    core = {Requirement(one).name for one in PROJECT["dependencies"]}
    missing = [MODULES.get(name, name.replace("-", "_")) for name in sorted(wanted - core)]
    commands = {name: words for name, (words, _) in COMMANDS.items()} | {one: one for one in WORKING}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(missing), json.dumps(commands)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_missing_is_said_with_the_line_to_type(said, name):
    code, error = said[name]
    assert code == 2, error
    plain = re.sub(r"\s+", " ", error)
    assert plain.startswith("error: ")
    [extra] = re.findall(r"pip install [\"']stepmark\[(\w+)\]", plain)
    assert extra == COMMANDS[name][1]


@pytest.mark.parametrize("words", WORKING)
def test_what_the_core_does_it_does_alone(said, words):
    code, error = said[words]
    assert code == 0, error
