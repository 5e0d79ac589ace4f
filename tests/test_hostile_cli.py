"""What people type by mistake, in every command: one message that says what to do, no traceback, nothing spoilt."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import label_policies  # noqa: F401 - its name is patched
import stepmark.cli
from stepmark.backends import Completion
from stepmark.cli import main
from stepmark.errors import raised_at
from stepmark.models.scripted import ScriptedPolicy

NO_NUMBER = Completion(text="x", finish="end", tokens=1, logprob=float("nan"))
GOOD = {"problem": "Add.", "steps": ["1 + 1 = 2", "2 + 2 = 4"], "answer": "4"}
TESTS = Path(__file__).parent
GRADE = ["grade", "good.jsonl", "--prm", "scripted_prms:arithmetic"]
SAMPLE = ["sample", "good.jsonl", "--policy", "label_policies:program", "--out", "out.jsonl"]
ROLLOUT = ["label", "rollout", "good.jsonl", "--policy", "label_policies:program", "--out", "out.jsonl"]
SEARCH = ["search", "beam", "good.jsonl", "--policy", "search_models:policy", "--prm", "search_models:truth"]
SEARCH += ["--out", "out.jsonl"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = json.dumps(GOOD) + "\n"
    (tmp_path / "good.jsonl").write_text(line * 2)
    (tmp_path / "broken.jsonl").write_text(line + '{"problem": "x", \n' + line)
    (tmp_path / "fake.jsonl.gz").write_text(line)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(line.encode() * 2000)[:60])
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    return tmp_path


def inside(folder):
    files = [path for path in sorted(folder.rglob("*")) if not path.is_symlink() and path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Files that are none.
        (["grade", ""], "found an empty text"),
        (
            ["grade", "https://host/a.jsonl"],
            "https://host/a.jsonl",
        ),
        (["grade", "fake.jsonl.gz"], "fake.jsonl.gz"),
        (["grade", "cut.jsonl.gz"], "cut.jsonl.gz"),
        (
            ["evaluate", "compare", "run", "run"],
            "run/result.json",
        ),
        (
            ["evaluate", "compare", "deep.json", "deep.json"],
            "deep.json",
        ),
        # Outputs that cannot be.
        ([*GRADE, "--out", ""], "cannot write to a file without a name"),
        (
            ["convert", "good.jsonl", "--to", "trl", "--out", "./good.jsonl"],
            "--out ./good.jsonl is the input",
        ),
        (["problems", "read", "good.jsonl", "--out", "./good.jsonl"], "--out ./good.jsonl is the input"),
        (["problems", "arithmetic", "--out", "p.jsonl", "--solutions", "p.jsonl"], "--solutions p.jsonl"),
        (["problems", "arithmetic", "--out", "no/p.jsonl"], "no/p.jsonl"),
        # Links that lead nowhere.
        (
            ["grade", "loop", "--prm", "scripted_prms:arithmetic"],
            "loop: ",
        ),
        ([*GRADE, "--out", "loop"], "loop: "),
        (["train", "good.jsonl", "--out", "loop"], "loop exists"),
        # One broken line in the middle.
        (["label", "formulas", "broken.jsonl", "--out", "o"], "--keep-going"),
        (
            ["label", "exact", "broken.jsonl", "--out", "o"],
            "--keep-going",
        ),
        # Numbers out of range.
        (["problems", "arithmetic", "--count", "0", "--out", "p.jsonl"], "--count 0"),
        ([*SAMPLE, "--temperature", "inf"], "--temperature inf"),
        ([*SAMPLE, "--top-p", "2"], "--top-p 2.0"),
        ([*SEARCH, "--policy-memory-tokens", "-1"], "--policy-memory-tokens -1"),
        ([*ROLLOUT, "--k", "0"], "--k 0"),
        (["label", "exact", "good.jsonl", "--wrong", "0", "--out", "o"], "--wrong 0"),
        # Names that are none.
        (
            ["grade", "good.jsonl", "--prm", ""],
            "expected a PRM",
        ),
        (["grade", "good.jsonl", "--prm", "defualt"], "Did you mean 'default'?"),
        (
            ["grade", "good.jsonl", "--prm", "os:getcwd"],
            "expected a PRM from its call, found a str",
        ),
        ([*SAMPLE, "--verifier", "os:getcwd"], "expected an answer verifier from its call, found a str"),
        (
            ["sample", "good.jsonl", "--out", "o", "--policy", ""],
            "expected a policy",
        ),
        (
            ["sample", "good.jsonl", "--out", "o", "--policy", "os:getcwd"],
            "no name, identity, complete",
        ),
        (
            ["sample", "good.jsonl", "--out", "o", "--policy", "json:loads"],
            "json:loads: its call failed: TypeError",
        ),
        (
            ["sample", "good.jsonl", "--out", "o", "--policy", "stepmark:arithmetik"],
            "Did you mean 'stepmark:arithmetic'",
        ),
        # Words that are none.
        (["--hepl"], "Did you mean '--help'"),
        ([*GRADE, "more.jsonl"], "expected nothing more, found 'more.jsonl'\nSee: stepmark grade --help"),
        (["label", "exact", "-x", "--out", "o"], "See: stepmark label exact --help"),
        (["evaluate", "procesbench"], "Did you mean 'processbench'"),
    ],
)
def test_one_message_says_what_to_do_and_nothing_is_spoilt(folder, capfd, words, said):
    before = inside(folder)
    assert main(words) == 2
    err = capfd.readouterr().err
    assert said in err and err.startswith("error: "), err
    assert "Traceback" not in err and "STEPMARK_DEBUG" not in err.replace(
        "(STEPMARK_DEBUG=1 shows how it came there)", ""
    )
    assert {path: text for path, text in inside(folder).items() if path in before} == before
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["label", "rollout", "PIPE", "--policy", "label_policies:program", "--budget", "9", "--out", "o"],
        ["label", "exact", "PIPE", "--out", "o"],
        [
            "evaluate",
            "search",
            "--data",
            "PIPE",
            "--policy",
            "search_models:policy",
            "--prm",
            "search_models:truth",
        ],
    ],
)
def test_a_pipe_is_not_read_twice(folder, capfd, words):
    words = [*words, "--budgets", "100"] if words[0] == "evaluate" else words
    reading, writing = os.pipe()
    os.write(writing, b"{}\n")
    os.close(writing)
    try:
        assert main([f"/dev/fd/{reading}" if word == "PIPE" else word for word in words]) == 2
    finally:
        os.close(reading)
    err = capfd.readouterr().err
    assert "found a pipe" in err
    assert not list(folder.glob("o*"))


def test_what_nobody_foresaw_is_one_message_with_its_place(capfd, monkeypatch):
    def fail(tokens):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(stepmark.cli, "_run", fail)
    assert main(["grade"]) == 1
    err = capfd.readouterr().err
    line = fail.__code__.co_firstlineno + 1
    assert err.startswith(
        f"error: ZeroDivisionError: by nothing\nraised at {__file__}:{line}; STEPMARK_DEBUG=1"
    )
    assert "please report it" in err
    monkeypatch.setenv("STEPMARK_DEBUG", "1")
    assert main(["grade"]) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err


def test_a_policy_whose_numbers_are_none(folder, capfd, monkeypatch):
    monkeypatch.setattr(
        "label_policies.ScriptedPolicy",
        lambda write, **more: ScriptedPolicy(lambda request, number: NO_NUMBER, **more),
    )
    assert main([*SAMPLE, "--verifier", "none"]) == 1
    err = capfd.readouterr().err
    assert "found nan" in err
    assert "mistake in stepmark" not in err and not (folder / "out.jsonl").exists()


def test_a_mistake_of_stepmarks_own_is_placed_in_stepmark():
    from stepmark.records import to_data

    with pytest.raises(TypeError) as caught:
        to_data(3)
    assert raised_at(caught.value) == f"{__file__}:{caught.traceback[0].lineno + 1}"
    assert "records" in str(raised_at(caught.value, ours=True))


def process(words, redirect="", **environment):
    """The command as a shell runs it."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = f'"{sys.executable}" -m stepmark {words} {redirect}'
    surroundings = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(["sh", "-c", command], capture_output=True, env=surroundings, check=False)


def test_where_the_locale_has_no_accents(folder):
    (folder / "text.txt").write_text("é = 1\n\nλ = 2\n", encoding="utf-8")
    done = process("split text.txt", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xe9 = 1" in done.stdout and b"\\u03bb = 2" in done.stdout


def test_closed_outputs(folder):
    done = process(" ".join(GRADE), ">&-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: standard output is closed: send it somewhere, > FILE or > /dev/null\n"
    done = process(" ".join(GRADE), "2>&-")
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 2)
    assert all(json.loads(line)["scores"] for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ["rl", "good.jsonl", "--updates", "1.5"],
        ["rl", "good.jsonl", "--updates=1.5"],
        ["grade", "good.jsonl", "--show", ".5"],
        ["label", "rollout", "good.jsonl", "--in-flight", "2.5"],
        ["problems", "arithmetic", "10", "--steps", "3", "6.5"],
        ["serve", "--port", "80.5"],
    ],
)
def test_a_fraction_is_no_whole_number(words, capsys):
    """cyclopts would round it, and say nothing."""
    assert main(words) == 2
    assert "expected a whole number" in capsys.readouterr().err


def test_a_whole_number_may_have_a_point_and_a_fraction_be_one(capsys):
    assert main([*GRADE, "--show", "1.0", "--threshold", "0.5"]) == 0
