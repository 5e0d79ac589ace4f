"""A full disk: the file is named, what to do is said, what was done is kept, and the same command goes on when there is room."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from small_disk import SmallDisk, files_limited_to
from stepmark.cli import main

ROOM = 20_000
"""KiB: enough for every command here."""


@pytest.fixture
def disk(tmp_path):
    made = SmallDisk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rows = [
        {"problem": f"Add {n}.", "steps": [f"{n} + 1 = {n + 1}", "2 + 2 = 4"], "answer": "4"}
        for n in range(200)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["problems", "arithmetic", "--count", "6", "--out", f"{folder}/problems.jsonl"]
    assert main([*words, "--solutions", f"{folder}/solutions.jsonl"]) == 0
    return folder


GRADE = "grade rows.jsonl --prm scripted_prms:arithmetic"
LABEL = "label rollout solutions.jsonl --policy search_models:policy --verifier number --k 4"
SAMPLE = "sample problems.jsonl --policy search_models:policy --verifier number --n 16"
SEARCH = "search beam problems.jsonl --policy search_models:policy --prm search_models:truth"


def words_of(command, files, out):
    return [str(files / word) if word.endswith(".jsonl") else word for word in command.split()] + [
        "--out",
        str(out),
    ]


FULL = re.compile("No space left on device|database or disk is full", re.IGNORECASE)
"""In the words of the system, or of SQLite."""


def check_refused(capfd, code, disk):
    err = capfd.readouterr().err
    assert code == 1, err
    message = err[err.index("error: ") :]
    assert message.startswith(f"error: {disk}/"), err
    assert FULL.search(message), err
    assert "mistake in stepmark" not in err and "Traceback" not in err and "Errno" not in err, err
    return message


@pytest.mark.parametrize(
    ("command", "kib", "file"),
    [
        (GRADE, 8, "out.jsonl.part"),
        (GRADE, 60, "out.jsonl"),  # while the finished rows are copied
        (LABEL, 8, "out.jsonl.replies.sqlite"),  # where SQLite cannot even begin
        (LABEL, 64, "out.jsonl.replies.sqlite"),
        ("label formulas rows.jsonl", 40, "out.jsonl.part"),
        (SAMPLE, 40, "out.jsonl.replies.sqlite"),
        (SAMPLE, 64, "out.jsonl.replies.sqlite"),
        (SEARCH, 40, "out.jsonl.replies.sqlite"),
        (SEARCH, 64, "out.jsonl.replies.sqlite"),
    ],
)
def test_the_file_is_named_and_the_same_command_goes_on(tmp_path, files, disk, capfd, command, kib, file):
    disk.resize(kib)
    out = disk.folder / "out.jsonl"
    code = main(words_of(command, files, out))
    assert f"{disk.folder}/{file}: " in check_refused(capfd, code, disk.folder)
    assert not out.exists()
    disk.resize(ROOM)
    assert main(words_of(command, files, out)) == 0
    (tmp_path / "apart").mkdir()
    undisturbed = tmp_path / "apart" / "out.jsonl"
    assert main(words_of(command, files, undisturbed)) == 0
    assert out.read_bytes() == undisturbed.read_bytes()


def test_grade_says_what_is_kept(files, disk, capfd):
    disk.resize(8)
    out = disk.folder / "out.jsonl"
    code = main(words_of(GRADE, files, out))
    rows = (disk.folder / "out.jsonl.part").read_bytes().count(b"\n") - 1
    assert rows > 5
    assert f"{rows} rows are kept in {out}.part; the same command continues from there" in check_refused(
        capfd, code, disk.folder
    )


@pytest.mark.parametrize("command", [GRADE, LABEL, SAMPLE, SEARCH])
def test_a_limit_on_the_size_of_files_is_one_message_too(tmp_path, files, capfd, command):
    """Where no disk can be mounted, the same code is tried by a limit of the process."""
    out = tmp_path / "out.jsonl"
    with files_limited_to(20_000):
        code = main(words_of(command, files, out))
    err = capfd.readouterr().err
    assert code == 1 and f"error: {out}." in err and "Traceback" not in err, err
    assert "mistake in stepmark" not in err and "Traceback" not in err, err
    assert main(words_of(command, files, out)) == 0


def test_standard_output_may_be_the_full_disk(files):
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("this system has no /dev/full")
    for command in (f"grade {files}/rows.jsonl --prm scripted_prms:arithmetic", "families"):
        done = subprocess.run(
            ["sh", "-c", f'"{sys.executable}" -m stepmark {command} > /dev/full'],
            capture_output=True,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]  # noqa: PTH120
                ),
            },
        )
        assert done.returncode == 1
        err = done.stderr.decode()
        assert err.startswith("error: standard output"), err
        assert FULL.search(err), err
        assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("kib", "is_saved"),
    [
        (8, False),  # while the state is saved
        (100, True),  # while the checkpoint is written
    ],
)
def test_train(tmp_path, disk, capfd, kib, is_saved):
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
    from test_recipe import file_of, rated_rows, words
    from tiny_base import write_base

    torch.set_num_threads(1)
    base, data = write_base(tmp_path / "base"), [file_of(tmp_path / "rated.jsonl", rated_rows(problems=12))]
    adapter = ["--adapter"] if kib == 8 else []
    out = disk.folder / "prm"
    disk.resize(kib)
    code = main(words(data, out, base, *adapter, epochs=2))
    assert f"error: {disk.folder}/prm.run" in check_refused(capfd, code, disk.folder)
    assert not out.exists() and (disk.folder / "prm.run" / "state.pt").is_file() == is_saved
    disk.resize(ROOM)
    assert main(words(data, out, base, *adapter, epochs=2)) == 0
    (tmp_path / "apart").mkdir()
    undisturbed = tmp_path / "apart" / "prm"
    assert main(words(data, undisturbed, base, *adapter, epochs=2)) == 0
    weights = "adapter_model.safetensors" if adapter else "model.safetensors"
    assert (out / weights).read_bytes() == (undisturbed / weights).read_bytes()


@pytest.mark.parametrize("kib", [60, 120])
def test_rl(tmp_path, disk, capfd, monkeypatch, kib):
    torch = pytest.importorskip("torch")
    from test_rl_cli import problems, words
    from tiny_language_model import tiny_model, tiny_tokenizer

    torch.set_num_threads(1)
    monkeypatch.setattr("stepmark.rl.report.rl_html", lambda *_arguments, **_more: iter(("",)))
    policy, tokens = tmp_path / "policy", tiny_tokenizer()
    tiny_model(tokens).save_pretrained(policy)
    tokens.save_pretrained(policy)
    out = disk.folder / "out"
    disk.resize(kib)
    command = words(problems(tmp_path), policy, out)
    check_refused(capfd, main(command), disk.folder)
    disk.resize(ROOM)
    assert main(command) == 0
    (tmp_path / "apart").mkdir()
    undisturbed = tmp_path / "apart" / "out"
    assert main(words(problems(tmp_path), policy, undisturbed)) == 0
    for name in ("model.safetensors", "history.jsonl", "monitor.jsonl"):
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()
